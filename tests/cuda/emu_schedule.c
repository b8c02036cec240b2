/* emu_schedule.c - when operations run, and in which order. */
#include "config.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "tests/cuda/emu_block.h"
#include "tests/cuda/emu_control.h"
#include "tests/cuda/emu_memory.h"
#include "tests/cuda/emu_queue_internal.h"

static uint64_t random_state = 1, operations_run, activity;
static struct CUstream_st *running; /* whose operation runs */
static cudaError_t running_error;

void emu_queue_seed(uint64_t seed) { random_state = seed * 2 + 1; }

bool emu_queue_is_running(void) { return running != NULL; }

static uint32_t draw(uint32_t below) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % below);
}

uint64_t emu_operations_run(void) {
    emu_lock();
    uint64_t n = operations_run;
    emu_unlock();
    return n;
}

static double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- one operation ---- */

static void check_ranges(const struct emu_op *op) {
    for (size_t i = 0; i < op->range_count; i++)
        emu_check_range(op->name, "at the time it runs, its memory", &op->ranges[i],
                        EMU_DEVICE | EMU_PINNED);
}

static void check_zones(const struct emu_op *op) {
    for (size_t i = 0; i < op->range_count; i++)
        if (op->ranges[i].write && op->ranges[i].rows > 0)
            emu_memory_check_zone(op->name, emu_memory_find(op->ranges[i].start));
}

/* True: done. */
static bool run_work(struct CUstream_st *s, const struct emu_op *op) {
    bool done = true;
    if (running != NULL)
        emu_die(op->name, "an operation runs another");
    check_ranges(op);
    emu_memory_open();
    running = s;
    running_error = cudaSuccess;
    emu_race_begin_operation(s->clock, op->name);
    if (op->run != NULL)
        op->run(op->arg);
    else
        done = op->poll(op->arg);
    for (size_t i = 0; done && i < op->range_count; i++)
        emu_race_touch(&op->ranges[i]);
    emu_race_end_operation();
    running = NULL;
    if (done) {
        operations_run++;
        check_zones(op);
    }
    return done;
}

static void finish_record(struct CUstream_st *s, struct emu_record *r) {
    r->done = true;
    r->seconds = now_seconds();
    r->clock = emu_race_stream_now(s->clock);
}

/* Takes the head of s off its queue. */
static void pop(struct CUstream_st *s) {
    struct emu_queued *q = s->head;
    s->head = q->next;
    if (s->head == NULL)
        s->tail = NULL;
    s->done = q->sequence;
    if (q->type == EMU_OP_WORK && q->op.release != NULL)
        q->op.release(q->op.arg);
    emu_record_put(q->record);
    emu_race_clock_free(q->host);
    free(q);
}

void emu_operation_failed(cudaError_t error) {
    if (running == NULL)
        emu_die("emu_operation_failed", "no operation runs");
    running_error = error;
}

/* The head can run: it is not a wait for what is not done, and not blocked. */
static bool can_run(const struct CUstream_st *s) {
    return s->head != NULL && !s->blocked &&
           (s->head->type != EMU_OP_WAIT || s->head->record->done);
}

/* Runs the head of s, or finds that it is blocked. */
static void run_head(struct CUstream_st *s) {
    struct emu_queued *q = s->head;
    activity++;
    emu_race_stream_learns(s->clock, q->host);
    if (q->type == EMU_OP_WORK && !run_work(s, &q->op)) {
        s->blocked = true;
        return;
    }
    if (q->type == EMU_OP_RECORD)
        finish_record(s, q->record);
    else if (q->type == EMU_OP_WAIT)
        emu_race_stream_learns(s->clock, q->record->clock);
    pop(s);
    if (running_error != cudaSuccess) {
        cudaError_t error = running_error;
        running_error = cudaSuccess;
        emu_queue_break(s->device, error);
    }
}

void emu_schedule_drop(struct CUstream_st *s) {
    while (s->head != NULL) {
        if (s->head->type == EMU_OP_RECORD)
            finish_record(s, s->head->record);
        pop(s);
    }
}

/* ---- which one ---- */

/* What must run next for s to go on: its head, or the head of the stream that it waits for. NULL:
 * that is blocked. */
static struct CUstream_st *needed(struct CUstream_st *s) {
    while (s->head != NULL && s->head->type == EMU_OP_WAIT && !s->head->record->done)
        s = s->head->record->stream;
    return s->head == NULL || s->blocked ? NULL : s;
}

/* Any stream that can run, drawn by chance if `random`, else the oldest. NULL: none. */
static struct CUstream_st *any(bool random) {
    struct CUstream_st *chosen = NULL;
    uint32_t n = 0;
    for (struct CUstream_st *s = emu_streams; s != NULL; s = s->next)
        if (can_run(s) && (!random || draw(++n) == 0))
            chosen = s;
    return chosen;
}

static void unblock(void) {
    for (struct CUstream_st *s = emu_streams; s != NULL; s = s->next)
        s->blocked = false;
}

/* Lets peers and other threads of this process go on. */
static void let_go(unsigned round) {
    if (emu_lock_depth() != 1)
        emu_die("emulation", "a wait with the lock held %u times", emu_lock_depth());
    struct timespec pause = {0, 20000l << (round < 6 ? round : 6)};
    emu_unlock();
    nanosleep(&pause, NULL);
    emu_lock();
}

bool emu_schedule_until(struct CUstream_st *s, uint64_t sequence, bool may_wait) {
    unblock();
    for (unsigned round = 0; s->done < sequence;) {
        bool random = emu_get_settings().order == EMU_RANDOM;
        struct CUstream_st *next = random ? any(true) : needed(s);
        if (next == NULL)
            next = any(random); /* a peer may wait for what nobody asked for here */
        if (next != NULL) {
            run_head(next);
            continue;
        }
        if (!may_wait)
            return false;
        let_go(round++);
        unblock();
    }
    return true;
}

void emu_schedule_some(void) {
    struct CUstream_st *s;
    enum emu_order order = emu_get_settings().order;
    activity++;
    if (order == EMU_LAZY || running != NULL)
        return;
    unblock();
    while ((order == EMU_EAGER || draw(2) == 0) && (s = any(order == EMU_RANDOM)) != NULL)
        run_head(s);
}

/* ---- peers ---- */

void emu_wait(unsigned round) {
    struct CUstream_st *s;
    unblock();
    while ((s = any(emu_get_settings().order == EMU_RANDOM)) != NULL)
        run_head(s);
    let_go(round);
}

static bool has_peer_work(const struct CUstream_st *s, uint64_t *sequence) {
    bool found = false;
    for (const struct emu_queued *q = s->head; q != NULL; q = q->next)
        if (q->type == EMU_OP_WORK && q->op.poll != NULL) {
            *sequence = q->sequence;
            found = true;
        }
    return found;
}

/* A peer may wait for this process while its host code does something else: when nobody called for
 * a while, what peers need is run. */
static void *progress_main(void *arg) {
    uint64_t seen = 0;
    (void)arg;
    for (;;) {
        struct timespec pause = {0, 20000000};
        nanosleep(&pause, NULL);
        emu_lock();
        for (struct CUstream_st *s = emu_streams; s != NULL && activity == seen; s = s->next) {
            uint64_t sequence, before = activity;
            if (has_peer_work(s, &sequence))
                emu_schedule_until(s, sequence, false);
            seen += activity - before;
        }
        seen = activity;
        emu_unlock();
    }
    return NULL;
}

void emu_schedule_peer_work(void) {
    static pid_t started_in; /* threads do not survive a fork */
    pthread_t thread;
    sigset_t all, old;
    if (started_in == getpid())
        return;
    started_in = getpid();
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    if (pthread_create(&thread, NULL, progress_main, NULL) != 0)
        emu_die("emulation", "a thread could not be started");
    pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}
