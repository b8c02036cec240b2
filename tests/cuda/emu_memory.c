/* emu_memory.c - the ledger of allocations, and what it says when memory is touched wrongly. */
#include "config.h"

#include "tests/cuda/emu_memory.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/cuda/emu_block.h"
#include "tests/cuda/emu_fiber.h"
#include "tests/cuda/emu_race.h"
#include "tests/cuda/emu_shared.h"

enum { PAGE = 4096, ALIGN = 256, HUGE = 2 << 20, DEVICE_MAX = 16, FRESH_BYTE = 0xff };

static struct emu_allocation **ledger; /* by start, which is unique but for freed registrations */
static size_t ledger_count, ledger_cap;
static uint32_t next_number = 1;
static size_t used[DEVICE_MAX];
static bool open_now;

/* The first entry whose start is above p. */
static size_t position_above(const void *p) {
    size_t lo = 0, hi = ledger_count;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if ((uintptr_t)ledger[mid]->start > (uintptr_t)p)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

static bool ledger_add(struct emu_allocation *a) {
    if (ledger_count == ledger_cap) {
        size_t cap = ledger_cap == 0 ? 64 : ledger_cap * 2;
        struct emu_allocation **grown = realloc(ledger, cap * sizeof(struct emu_allocation *));
        if (grown == NULL)
            return false;
        ledger = grown;
        ledger_cap = cap;
    }
    size_t at = position_above(a->start);
    memmove(ledger + at + 1, ledger + at, (ledger_count - at) * sizeof(struct emu_allocation *));
    ledger[at] = a;
    ledger_count++;
    return true;
}

static void ledger_drop(const struct emu_allocation *a) {
    size_t at = 0;
    while (ledger[at] != a)
        at++;
    ledger_count--;
    memmove(ledger + at, ledger + at + 1, (ledger_count - at) * sizeof(struct emu_allocation *));
}

struct emu_allocation *emu_memory_find(const void *p) {
    size_t at = position_above(p);
    if (at == 0)
        return NULL;
    struct emu_allocation *a = ledger[at - 1];
    return (uintptr_t)p - (uintptr_t)a->start <= a->bytes ? a : NULL;
}

struct emu_allocation *emu_memory_at(size_t n) {
    return n < ledger_count ? ledger[n] : NULL;
}

size_t emu_memory_used(int device) { return used[device]; }

void emu_memory_describe(const struct emu_allocation *a, char *out, size_t cap) {
    snprintf(out, cap, "%s %u (%s, %zu bytes)%s%s",
             a->kind == EMU_DEVICE ? "device allocation" : "pinned allocation", a->number, a->call,
             a->bytes, a->freed ? ", freed by " : "", a->freed ? a->freed_call : "");
}

/* ---- touched wrongly ---- */

static struct sigaction previous_action;

/* The allocation whose mapping p lies in. */
static const struct emu_allocation *mapping_of(uintptr_t p) {
    for (size_t i = 0; i < ledger_count; i++)
        if (ledger[i]->map != NULL && p - (uintptr_t)ledger[i]->map < ledger[i]->map_bytes)
            return ledger[i];
    return NULL;
}

static void fault_report(const struct emu_allocation *a, uintptr_t p) {
    char what[160], where[64];
    uintptr_t start = (uintptr_t)a->start;
    emu_memory_describe(a, what, sizeof what);
    if (p < start)
        snprintf(where, sizeof where, "%zu bytes before", (size_t)(start - p));
    else if (p >= start + a->bytes)
        snprintf(where, sizeof where, "%zu bytes beyond the end of",
                 (size_t)(p - start - a->bytes));
    else
        snprintf(where, sizeof where, "byte %zu of", (size_t)(p - start));
    if (emu_block_kernel() != NULL)
        emu_trap("access to %s %s", where, what);
    emu_die("host code", "access to %s %s%s", where, what,
            a->freed || p < start || p >= start + a->bytes
                ? ""
                : ": device memory, while no operation runs");
}

/* Says what was touched. An address of someone else's goes the way it went before. */
static void on_fault(int sig, siginfo_t *info, void *context) {
    (void)sig;
    (void)context;
    uintptr_t p = (uintptr_t)info->si_addr;
    const struct emu_allocation *a = mapping_of(p);
    if (a != NULL)
        fault_report(a, p);
    if (emu_fiber_is_guard(info->si_addr))
        emu_trap("the stack of a thread overflows: too much local memory");
    const unsigned char *shared;
    size_t shared_bytes;
    emu_shared_region(&shared, &shared_bytes);
    if (p - (uintptr_t)shared < shared_bytes)
        emu_trap("access beyond the block's shared memory");
    if (emu_block_kernel() != NULL)
        fprintf(stderr, "emulation: %s, block (%u,%u,%u), thread (%u,%u,%u): access to %p\n",
                emu_block_kernel(), emu_block_idx.x, emu_block_idx.y, emu_block_idx.z,
                emu_thread_idx.x, emu_thread_idx.y, emu_thread_idx.z, info->si_addr);
    sigaction(SIGSEGV, &previous_action, NULL); /* the access is made again */
}

/* A fiber whose stack overflows needs another one for the handler. */
static void make_signal_stack(void) {
    static _Thread_local bool made;
    stack_t old;
    if (made)
        return;
    made = true;
    if (sigaltstack(NULL, &old) != 0 || (old.ss_flags & SS_DISABLE) == 0)
        return;
    stack_t s = {.ss_size = 64 << 10};
    s.ss_sp = mmap(NULL, s.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (s.ss_sp != MAP_FAILED)
        sigaltstack(&s, NULL);
}

/* Again and again: a test's frame may have put its own handler there meanwhile. */
static void catch_faults(void) {
    struct sigaction action = {.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER}, old;
    if (sigaction(SIGSEGV, NULL, &old) == 0 && old.sa_sigaction == on_fault)
        return;
    action.sa_sigaction = on_fault;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &previous_action);
}

/* ---- allocations ---- */

static int protection(const struct emu_allocation *a) {
    return a->kind == EMU_PINNED || open_now ? PROT_READ | PROT_WRITE : PROT_NONE;
}

struct emu_allocation *emu_memory_add(const char *call, enum emu_kind kind, int device,
                                      size_t bytes) {
    catch_faults();
    size_t span = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    size_t inner = (span + PAGE - 1) / PAGE * PAGE;
    struct emu_allocation *a = calloc(1, sizeof *a);
    if (a == NULL)
        return NULL;
    a->map_bytes = inner + 2 * PAGE;
    void *place = emu_race_place(a->map_bytes);
    a->map =
        mmap(place, a->map_bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (place == NULL ? 0 : MAP_FIXED), -1, 0);
    if (a->map == MAP_FAILED)
        goto no_map;
    if (mprotect(a->map + PAGE, inner, PROT_READ | PROT_WRITE) != 0)
        goto no_entry;
    if (inner >= HUGE)
        madvise(a->map + PAGE, inner, MADV_HUGEPAGE);
    a->start = a->map + PAGE + inner - span;
    a->bytes = bytes;
    a->kind = kind;
    a->device = device;
    a->call = call;
    a->number = next_number;
    if (!ledger_add(a))
        goto no_entry;
    next_number++;
    memset(a->map + PAGE, FRESH_BYTE, inner);
    mprotect(a->map + PAGE, inner, protection(a));
    used[device] += kind == EMU_DEVICE ? bytes : 0;
    emu_race_memory(a->start, bytes);
    return a;
no_entry:
    munmap(a->map, a->map_bytes);
no_map:
    free(a);
    return NULL;
}

bool emu_memory_register(const char *call, int device, void *start, size_t bytes) {
    for (size_t i = 0; i < ledger_count; i++)
        if (!ledger[i]->freed && (uintptr_t)ledger[i]->start < (uintptr_t)start + bytes &&
            (uintptr_t)start < (uintptr_t)ledger[i]->start + ledger[i]->bytes)
            return false;
    struct emu_allocation *a = calloc(1, sizeof *a);
    if (a == NULL)
        emu_die(call, "no memory");
    *a = (struct emu_allocation){.start = start,
                                 .bytes = bytes,
                                 .kind = EMU_PINNED,
                                 .device = device,
                                 .call = call,
                                 .number = next_number++};
    if (!ledger_add(a))
        emu_die(call, "no memory");
    emu_race_memory(a->start, bytes);
    return true;
}

static void check_bytes(const char *after, const struct emu_allocation *a,
                        const unsigned char *from, const unsigned char *to, const char *side) {
    char what[160];
    for (const unsigned char *p = from; p < to; p++)
        if (*p != FRESH_BYTE) {
            emu_memory_describe(a, what, sizeof what);
            emu_die(after, "byte %zu %s %s was written", (size_t)(p - from), side, what);
        }
}

void emu_memory_check_zone(const char *after, const struct emu_allocation *a) {
    bool was_open = open_now;
    if (a->map == NULL || a->freed)
        return;
    if (a->kind == EMU_DEVICE)
        emu_memory_open();
    check_bytes(after, a, a->map + PAGE, a->start, "of the page before");
    check_bytes(after, a, a->start + a->bytes, a->map + a->map_bytes - PAGE, "beyond the end of");
    if (!was_open)
        emu_memory_close();
}

void emu_memory_remove(const char *call, struct emu_allocation *a) {
    emu_memory_check_zone(call, a);
    emu_race_memory_gone(a->start, a->bytes);
    if (a->kind == EMU_DEVICE)
        used[a->device] -= a->bytes;
    a->freed = true;
    a->freed_call = call;
    if (a->map == NULL) {
        ledger_drop(a);
        free(a);
        return;
    }
    /* A fresh mapping in its place: the pages go back, the addresses stay taken. */
    if (mmap(a->map, a->map_bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        emu_die(call, "mmap failed");
}

static void protect_all(void) {
    for (size_t i = 0; i < ledger_count; i++) {
        const struct emu_allocation *a = ledger[i];
        if (a->kind == EMU_DEVICE && !a->freed &&
            mprotect(a->map + PAGE, a->map_bytes - 2 * PAGE, protection(a)) != 0)
            emu_die("mprotect", "device memory could not be opened or closed");
    }
}

void emu_memory_open(void) {
    if (open_now)
        return;
    make_signal_stack();
    catch_faults();
    open_now = true;
    protect_all();
}

void emu_memory_close(void) {
    if (!open_now)
        return;
    open_now = false;
    protect_all();
}
