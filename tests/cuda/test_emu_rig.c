/* test_emu_rig.c - memory, handles, and children that must die. */
#include "config.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/cuda/emu_control.h"
#include "tests/cuda/test_emu.h"

void must(cudaError_t e) {
    if (e != cudaSuccess)
        fail_msg("%s: %s", cudaGetErrorName(e), cudaGetErrorString(e));
}

void *device_memory(size_t bytes) {
    void *p = NULL;
    must(cudaMalloc(&p, bytes));
    return p;
}

void *pinned_memory(size_t bytes) {
    void *p = NULL;
    must(cudaMallocHost(&p, bytes));
    return p;
}

cudaStream_t stream_open(void) {
    cudaStream_t s = NULL;
    must(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
}

cudaEvent_t event_open(void) {
    cudaEvent_t e = NULL;
    must(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    return e;
}

void settings_reset(void) {
    struct emu_settings s = emu_get_settings();
    s.order = EMU_LAZY;
    s.threads = EMU_ASC;
    s.seed = 1;
    s.strict = s.no_device = s.driver_old = s.exclusive = false;
    emu_set_settings(&s);
    emu_fail_at(0, NULL);
}

/* Starts fn(arg) in a child whose stderr is *err; no core file, and an end after 20 seconds. */
static pid_t start(void (*fn)(void *arg), void *arg, FILE **err) {
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        signal(SIGABRT, SIG_DFL); /* cmocka's would go on with the tests */
        alarm(20);
        dup2(fds[1], STDERR_FILENO);
        close(fds[0]);
        fn(arg);
        _exit(0);
    }
    close(fds[1]);
    *err = fdopen(fds[0], "r");
    assert_non_null(*err);
    return child;
}

static int finish(pid_t child, FILE *err, char *out, size_t cap) {
    int status;
    size_t n = fread(out, 1, cap - 1, err);
    out[n] = '\0';
    fclose(err);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

void dies(void (*fn)(void *arg), void *arg, const char *text) {
    char said[4096];
    FILE *err;
    pid_t child = start(fn, arg, &err);
    int status = finish(child, err, said, sizeof said);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
        fail_msg("status %#x instead of an abort that says \"%s\"; stderr: %s", (unsigned)status,
                 text, said);
    if (strstr(said, text) == NULL)
        fail_msg("\"%s\" was not said, but: %s", text, said);
}

void lives(void (*fn)(void *arg), void *arg) {
    char said[4096];
    FILE *err;
    pid_t child = start(fn, arg, &err);
    int status = finish(child, err, said, sizeof said);
    if (status != 0)
        fail_msg("status %#x; stderr: %s", (unsigned)status, said);
}
