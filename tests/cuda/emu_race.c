/* emu_race.c - a race detector for streams, host threads and kernels that does not depend on the
 * order in which things happen to run.
 *
 * The program's sources and the kernels are compiled with -fsanitize=thread, whose calls arrive in
 * emu_tsan.c and come here. Every stream and host thread has a clock of what it knows of the
 * others:
 *   - an operation knows what the host thread that queued it knew, and what came before it in its
 *     stream;
 *   - a record of an event keeps what its stream knew; a stream that waits for it, and a host
 * thread that synchronises with it or with the stream, learn that;
 *   - host threads learn from each other by mutexes, atomics, threads' starts and ends, and by what
 *     they read from descriptors.
 * Two accesses to the same device, pinned or shared memory, one of them a write, of which neither
 * knows of the other, are a race. What operations do that are not instrumented (copies, products,
 * collectives) is known by their ranges.
 *
 * The actors of streams and threads that have ended are used again; they go on from their clocks,
 * so a race with one that ended may be missed, and none is invented. */
#include "config.h"

#include "tests/cuda/emu_race.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/emu_memory.h"
#include "tests/cuda/emu_race_shadow.h"
#include "tests/cuda/emu_race_sync.h"
#include "tests/cuda/emu_shared.h"

enum { NAMES = 4096 }; /* operations of an actor whose names are remembered */

struct actor {
    bool used, is_host;
    uint32_t number, clock;
    const char *names[NAMES]; /* of its operations, by clock */
};

/* Guards all below and the shadow; taken after the lock of emu_stream.h, if both. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct actor *actors[EMU_RACE_ACTORS];
static uint32_t host_numbers;
static size_t race_count;
static bool keep_going;

/* Of the host thread that runs, NULL before its first access; acting: the operation's instead. */
static _Thread_local struct emu_clock *host_clock;
static _Thread_local struct emu_clock *acting;
static pthread_key_t end_of_thread;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The kernel that runs, if acting is in one. */
static struct {
    bool runs;
    uint32_t block;
    uint16_t barrier, thread;
    uint16_t warp_sync[EMU_THREADS_MAX / EMU_WARP];
    uint32_t threads;
} grid;

static void fatal(const char *what) {
    fprintf(stderr, "races: %s\n", what);
    abort();
}

static void lock(void) { pthread_mutex_lock(&mutex); }
static void unlock(void) { pthread_mutex_unlock(&mutex); }

/* ---- actors ---- */

/* A new actor knows what `from` knows. With the mutex held. */
static struct emu_clock *actor_open(bool is_host, uint32_t number, const struct emu_clock *from) {
    unsigned a = 1; /* 0 is nobody */
    while (a < EMU_RACE_ACTORS && actors[a] != NULL && actors[a]->used)
        a++;
    if (a == EMU_RACE_ACTORS)
        fatal("too many streams and threads");
    if (actors[a] == NULL)
        actors[a] = calloc(1, sizeof *actors[a]);
    struct emu_clock *c = calloc(1, sizeof *c);
    if (actors[a] == NULL || c == NULL)
        fatal("no memory");
    if (from != NULL)
        memcpy(c->of, from->of, sizeof c->of);
    actors[a]->used = true;
    actors[a]->is_host = is_host;
    actors[a]->number = number;
    c->actor = (uint8_t)a;
    c->of[a] = ++actors[a]->clock;
    return c;
}

static void actor_close(struct emu_clock *c) {
    lock();
    actors[c->actor]->used = false;
    unlock();
    free(c);
}

static void thread_ends(void *arg) {
    (void)arg;
    if (host_clock != NULL)
        actor_close(host_clock);
    host_clock = NULL;
}

static void make_key(void) { pthread_key_create(&end_of_thread, thread_ends); }

/* The clock of the calling host thread. With the mutex held. */
static struct emu_clock *host(void) {
    if (host_clock == NULL) {
        host_clock = actor_open(true, ++host_numbers, NULL);
        pthread_once(&once, make_key);
        pthread_setspecific(end_of_thread, host_clock);
    }
    return host_clock;
}

static struct emu_clock *copy_of(const struct emu_clock *c) {
    struct emu_clock *copy = malloc(sizeof *copy);
    if (copy == NULL)
        fatal("no memory");
    memcpy(copy, c, sizeof *copy);
    return copy;
}

static void learn(struct emu_clock *c, const struct emu_clock *from) {
    for (unsigned a = 0; a < EMU_RACE_ACTORS; a++)
        if (from->of[a] > c->of[a])
            c->of[a] = from->of[a];
}

static void next_clock(struct emu_clock *c) { c->of[c->actor] = ++actors[c->actor]->clock; }

/* ---- host threads among themselves, emu_race_sync.h ---- */

void emu_race_release(struct emu_clock **place) {
    lock();
    struct emu_clock *c = acting != NULL ? acting : host();
    if (*place == NULL)
        *place = copy_of(c);
    else
        learn(*place, c);
    if (acting == NULL)
        next_clock(c);
    unlock();
}

void emu_race_acquire(struct emu_clock *const *place) {
    lock();
    if (*place != NULL)
        learn(acting != NULL ? acting : host(), *place);
    unlock();
}

/* ---- queues ---- */

struct emu_clock *emu_race_stream(uint32_t number) {
    lock();
    struct emu_clock *c = actor_open(false, number, host());
    unlock();
    return c;
}

void emu_race_stream_gone(struct emu_clock *stream) { actor_close(stream); }

struct emu_clock *emu_race_host_now(void) {
    lock();
    struct emu_clock *c = copy_of(host());
    next_clock(host());
    unlock();
    return c;
}

struct emu_clock *emu_race_stream_now(const struct emu_clock *stream) {
    return copy_of(stream);
}

void emu_race_stream_learns(struct emu_clock *stream, const struct emu_clock *from) {
    lock();
    if (from != NULL)
        learn(stream, from);
    unlock();
}

void emu_race_host_learns(const struct emu_clock *from) {
    lock();
    if (from != NULL)
        learn(host(), from);
    unlock();
}

void emu_race_clock_free(struct emu_clock *c) { free(c); }

void emu_race_begin_operation(struct emu_clock *stream, const char *name) {
    lock();
    next_clock(stream);
    actors[stream->actor]->names[stream->of[stream->actor] % NAMES] = name;
    acting = stream;
    unlock();
}

void emu_race_end_operation(void) { acting = NULL; }

/* ---- kernels ---- */

void emu_race_begin_grid(const struct emu_kernel *k, uint32_t thread_count) {
    (void)k;
    grid.runs = true;
    grid.threads = thread_count;
    grid.block = 0;
}

void emu_race_end_grid(void) { grid.runs = false; }

void emu_race_begin_block(void) {
    grid.block++;
    grid.barrier = 0;
    memset(grid.warp_sync, 0, sizeof grid.warp_sync);
}

void emu_race_thread(uint32_t thread) { grid.thread = (uint16_t)thread; }

void emu_race_barrier(void) {
    if (++grid.barrier == 0)
        fatal("more than 65535 barriers in a block");
}

/* Counts for the warp only where all of it meets: a part of a warp orders nothing for the rest. */
void emu_race_syncwarp(uint32_t first_thread, uint32_t members) {
    uint32_t left = grid.threads - first_thread;
    uint32_t whole = left >= EMU_WARP ? UINT32_MAX : (1u << left) - 1;
    if (members == whole)
        grid.warp_sync[first_thread / EMU_WARP]++;
}

/* ---- accesses ---- */

static void describe_place(const void *p, char *out, size_t cap) {
    const char *name;
    size_t offset;
    char text[160];
    const struct emu_allocation *a = emu_memory_find(p);
    if (a != NULL) {
        emu_memory_describe(a, text, sizeof text);
        snprintf(out, cap, "byte %zu of %s", (size_t)((uintptr_t)p - (uintptr_t)a->start), text);
    } else if (emu_shared_name(p, &name, &offset)) {
        snprintf(out, cap, "byte %zu of shared memory %s", offset, name);
    } else {
        snprintf(out, cap, "%p", p);
    }
}

static void describe_cell(const struct emu_cell *c, bool wrote, char *out, size_t cap) {
    const struct actor *who = actors[c->actor];
    const char *did = wrote ? "writes" : "reads";
    if (who->is_host)
        snprintf(out, cap, "host thread %u %s it", who->number, did);
    else if ((c->flags & EMU_CELL_KERNEL) == 0)
        snprintf(out, cap, "%s (stream %u) %s it", who->names[c->clock % NAMES], who->number, did);
    else
        snprintf(out, cap, "%s (stream %u; block %u, thread %u%s) %s it",
                 who->names[c->clock % NAMES], who->number, c->block - 1, c->thread,
                 (c->flags & (EMU_CELL_LANES | EMU_CELL_WARPS | EMU_CELL_BLOCKS)) != 0
                     ? " and others"
                     : "",
                 did);
}

static void report(const struct emu_cell *first, bool first_wrote, const struct emu_cell *second,
                   bool second_writes, const void *at) {
    char place[240], a[240], b[240];
    describe_place(at, place, sizeof place);
    describe_cell(first, first_wrote, a, sizeof a);
    describe_cell(second, second_writes, b, sizeof b);
    race_count++;
    fflush(stdout);
    fprintf(stderr, "race: %s: %s, and %s, and neither is known to come first\n", place, a, b);
    if (!keep_going)
        abort();
}

static bool in_shared(const void *p) {
    const unsigned char *start;
    size_t bytes;
    emu_shared_region(&start, &bytes);
    return (uintptr_t)p - (uintptr_t)start < bytes;
}

static void accessor_now(struct emu_accessor *a, bool atomic) {
    const struct emu_clock *c = acting != NULL ? acting : host();
    *a = (struct emu_accessor){.knows = c};
    a->cell.actor = c->actor;
    a->cell.clock = c->of[c->actor];
    a->cell.flags = EMU_CELL_USED | (atomic ? EMU_CELL_ATOMIC : 0);
    if (acting == NULL || !grid.runs)
        return;
    a->cell.flags |= EMU_CELL_KERNEL;
    a->cell.block = grid.block;
    a->cell.barrier = grid.barrier;
    a->cell.thread = grid.thread;
    a->cell.warp_sync = grid.warp_sync[grid.thread / EMU_WARP];
}

bool emu_race_watches(const void *p) { return emu_shadow_watches(p); }

void emu_race_access(const void *p, size_t bytes, bool write, bool atomic) {
    struct emu_accessor a;
    struct emu_cell other;
    const void *at;
    bool wrote;
    if (!emu_shadow_watches(p))
        return;
    lock();
    accessor_now(&a, atomic);
    if (emu_shadow_access(&a, p, bytes, write, in_shared(p), &other, &wrote, &at))
        report(&other, wrote, &a.cell, write, at);
    unlock();
}

void emu_race_touch(const struct emu_range *r) {
    for (size_t row = 0; r->row_bytes > 0 && row < r->rows; row++)
        emu_race_access((const char *)r->start + row * r->pitch_bytes, r->row_bytes, r->write,
                        false);
}

/* ---- memory ---- */

void *emu_race_place(size_t bytes) { return emu_shadow_place(bytes); }

void emu_race_memory(const void *start, size_t bytes) {
    lock();
    emu_shadow_watch(start, bytes);
    unlock();
}

void emu_race_memory_gone(const void *start, size_t bytes) {
    (void)bytes;
    lock();
    emu_shadow_unwatch(start);
    unlock();
}

size_t emu_race_count(void) { return race_count; }
void emu_race_keep_going(bool keep) { keep_going = keep; }
