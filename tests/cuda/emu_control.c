/* emu_control.c - settings, the count of calls, and the one that is made to fail. */
#include "config.h"

#include "tests/cuda/emu_control.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/emu_memory.h"
#include "tests/cuda/emu_queue.h"
#include "tests/cuda/emu_stream.h"

static struct emu_settings settings = {.devices = 1,
                                       .memory_bytes = (size_t)1 << 30,
                                       .order = EMU_LAZY,
                                       .threads = EMU_ASC,
                                       .seed = 1};
static bool environment_read;
static uint64_t call_count, fail_at; /* fail_at 0: none */
static char fail_error[64], failed_call[64];

/* ---- the lock ---- */

static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static unsigned depth; /* guarded by the mutex */

static void read_environment(void);

void emu_lock(void) {
    pthread_mutex_lock(&mutex);
    depth++;
    if (!environment_read)
        read_environment();
}

void emu_unlock(void) {
    if (depth == 1)
        emu_memory_close();
    depth--;
    pthread_mutex_unlock(&mutex);
}

unsigned emu_lock_depth(void) { return depth; }

void emu_die(const char *call, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fflush(stdout);
    fprintf(stderr, "emulation: %s: %s\n", call, text);
    abort();
}

/* ---- the environment ---- */

static uint64_t parse_number(const char *name, const char *text, uint64_t low, uint64_t high) {
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || *text == '-' || v < low || v > high)
        emu_die(name, "\"%s\" is not a number from %llu to %llu", text, (unsigned long long)low,
                (unsigned long long)high);
    return v;
}

static uint64_t number_of(const char *name, uint64_t otherwise, uint64_t low, uint64_t high) {
    const char *text = getenv(name);
    return text == NULL || *text == '\0' ? otherwise : parse_number(name, text, low, high);
}

/* words: NULL at the end; the place of the variable's value among them. */
static int word_of(const char *name, const char *const *words) {
    const char *text = getenv(name);
    if (text == NULL || *text == '\0')
        return 0;
    for (int i = 0; words[i] != NULL; i++)
        if (strcmp(words[i], text) == 0)
            return i;
    emu_die(name, "\"%s\" is not one of %s, %s, %s", text, words[0], words[1], words[2]);
}

static void set_failure(uint64_t nth, const char *error) {
    call_count = 0;
    fail_at = nth;
    failed_call[0] = '\0';
    snprintf(fail_error, sizeof fail_error, "%s", error == NULL ? "" : error);
}

static void read_failure(void) {
    char number[32];
    const char *text = getenv("EMU_FAIL_AT");
    if (text == NULL || *text == '\0')
        return;
    size_t digits = strcspn(text, ":");
    snprintf(number, sizeof number, "%.*s", (int)digits, text);
    set_failure(parse_number("EMU_FAIL_AT", number, 1, UINT64_MAX),
                text[digits] == ':' ? text + digits + 1 : "");
}

static void read_environment(void) {
    static const char *const orders[] = {"lazy", "eager", "random", NULL};
    static const char *const thread_orders[] = {"asc", "desc", "random", NULL};
    environment_read = true;
    settings.devices = (int)number_of("EMU_DEVICES", 1, 0, EMU_DEVICE_MAX);
    settings.memory_bytes = number_of("EMU_MEMORY", (uint64_t)1 << 30, 1, UINT64_MAX / 2);
    settings.order = (enum emu_order)word_of("EMU_ORDER", orders);
    settings.threads = (enum emu_thread_order)word_of("EMU_THREADS", thread_orders);
    settings.seed = number_of("EMU_SEED", 1, 0, UINT64_MAX);
    settings.strict = number_of("EMU_STRICT", 0, 0, 1) != 0;
    settings.no_device = number_of("EMU_NO_DEVICE", 0, 0, 1) != 0;
    settings.driver_old = number_of("EMU_DRIVER_OLD", 0, 0, 1) != 0;
    settings.exclusive = number_of("EMU_EXCLUSIVE", 0, 0, 1) != 0;
    read_failure();
    emu_queue_seed(settings.seed);
}

/* ---- settings ---- */

struct emu_settings emu_get_settings(void) {
    emu_lock();
    struct emu_settings s = settings;
    emu_unlock();
    return s;
}

void emu_set_settings(const struct emu_settings *s) {
    emu_lock();
    if (s->devices < 0 || s->devices > EMU_DEVICE_MAX)
        emu_die("emu_set_settings", "%d devices", s->devices);
    if (s->devices != settings.devices || s->memory_bytes != settings.memory_bytes)
        for (int d = 0; d < EMU_DEVICE_MAX; d++)
            if (emu_memory_used(d) != 0)
                emu_die("emu_set_settings", "device %d has memory that is not freed", d);
    settings = *s;
    emu_queue_seed(settings.seed);
    emu_unlock();
}

/* ---- failures ---- */

void emu_fail_at(uint64_t nth, const char *error) {
    emu_lock();
    set_failure(nth, error);
    emu_queue_forget_errors();
    emu_unlock();
}

uint64_t emu_call_count(void) {
    emu_lock();
    uint64_t n = call_count;
    emu_unlock();
    return n;
}

const char *emu_failed_call(void) { return failed_call; }

bool emu_fail(const char *call) {
    emu_lock();
    bool now = ++call_count == fail_at;
    if (now)
        snprintf(failed_call, sizeof failed_call, "%s", call);
    emu_unlock();
    return now;
}

const char *emu_fail_error(void) { return fail_error; }
