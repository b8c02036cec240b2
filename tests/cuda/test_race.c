/* test_race.c - the race detector finds each of these faults in each of ten schedules, and says
 * nothing of the same program without the fault. Compiled with instrumentation. */
#include "config.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/cuda/emu_control.h"
#include "tests/cuda/emu_stream.h"
#include "tests/cuda/test_emu.h"
#include "tests/cuda/test_race.h"

enum { N = 256, SCHEDULES = 10 };

struct rig {
    bool fault;
    int schedule;
    cudaStream_t s, t;
    cudaEvent_t e, f, g;
    float *a, *b, *c;        /* (N) of device memory */
    float *pinned, *pinned2; /* (N) */
};

static void wait_for(struct rig *r, cudaStream_t waits, cudaEvent_t e, cudaStream_t recorded) {
    must(cudaEventRecord(e, recorded));
    if (!r->fault)
        must(cudaStreamWaitEvent(waits, e, 0));
}

/* ---- programs, right but for the fault ---- */

static void a_stream_reads_what_another_wrote(struct rig *r) {
    must(cudaMemsetAsync(r->b, 0, N * sizeof *r->b, r->s));
    r_scale(r->s, r->a, r->b, N, 2.0f);
    wait_for(r, r->t, r->e, r->s);
    r_scale(r->t, r->c, r->a, N, 2.0f);
    must(cudaStreamSynchronize(r->s));
    must(cudaStreamSynchronize(r->t));
}

static void a_buffer_is_written_again(struct rig *r) {
    must(cudaMemsetAsync(r->a, 0, N * sizeof *r->a, r->s));
    must(cudaEventRecord(r->e, r->s));
    must(cudaStreamWaitEvent(r->t, r->e, 0));
    must(cudaMemcpyAsync(r->pinned, r->a, N * sizeof *r->a, cudaMemcpyDefault, r->t));
    wait_for(r, r->s, r->f, r->t);
    must(cudaMemsetAsync(r->a, 1, N * sizeof *r->a, r->s));
    must(cudaDeviceSynchronize());
}

static void pinned_memory_is_filled_again(struct rig *r) {
    for (int round = 0; round < 2; round++) {
        if (round > 0 && !r->fault)
            must(cudaEventSynchronize(r->e));
        r->pinned[0] = (float)round;
        must(cudaMemcpyAsync(r->a, r->pinned, N * sizeof *r->a, cudaMemcpyDefault, r->s));
        must(cudaEventRecord(r->e, r->s));
    }
    must(cudaStreamSynchronize(r->s));
}

static void the_host_reads_a_result(struct rig *r) {
    must(cudaMemsetAsync(r->a, 0, N * sizeof *r->a, r->s));
    must(cudaMemcpyAsync(r->pinned, r->a, N * sizeof *r->a, cudaMemcpyDefault, r->s));
    if (!r->fault)
        must(cudaStreamSynchronize(r->s));
    volatile float *p = r->pinned;
    if (p[7] != 0.0f && !r->fault)
        abort();
    must(cudaStreamSynchronize(r->s));
}

/* The wait finds the record of the first round, long done. */
static void an_event_is_recorded_in_each_round(struct rig *r) {
    must(cudaMemsetAsync(r->b, 0, N * sizeof *r->b, r->s));
    for (int round = 0; round < 2; round++) {
        r_scale(r->s, r->a, r->b, N, 2.0f);
        if (round == 0 || !r->fault)
            must(cudaEventRecord(r->e, r->s));
        must(cudaStreamWaitEvent(r->t, r->e, 0));
        r_scale(r->t, r->c, r->a, N, 2.0f);
        must(cudaEventRecord(r->f, r->t));
        must(cudaStreamWaitEvent(r->s, r->f, 0));
    }
    must(cudaDeviceSynchronize());
}

static void a_block_sums_in_shared_memory(struct rig *r) {
    must(cudaMemsetAsync(r->a, 0, N * sizeof *r->a, r->s));
    r_tree(r->s, r->b, r->a, 2, !r->fault);
    must(cudaStreamSynchronize(r->s));
}

static void blocks_add_to_one_number(struct rig *r) {
    must(cudaMemsetAsync(r->a, 0, N * sizeof *r->a, r->s));
    must(cudaMemsetAsync(r->b, 0, N * sizeof *r->b, r->s));
    r_total(r->s, r->b, r->a, 4, !r->fault);
    must(cudaStreamSynchronize(r->s));
}

static void lanes_exchange_by_shared_memory(struct rig *r) {
    must(cudaMemsetAsync(r->a, 0, N * sizeof *r->a, r->s));
    r_turn(r->s, r->b, r->a, !r->fault);
    must(cudaStreamSynchronize(r->s));
}

static void neighbours_share_four_bytes(struct rig *r) {
    must(cudaMemsetAsync(r->a, 0, N * sizeof *r->a, r->s));
    r_halves(r->s, (uint16_t *)(void *)r->a, 3, r->fault);
    must(cudaStreamSynchronize(r->s));
}

static void a_counter_is_only_added_to(struct rig *r) {
    must(cudaMemsetAsync(r->a, 0, N * sizeof *r->a, r->s));
    r_peek(r->s, (int *)(void *)r->a, (int *)(void *)r->b, r->fault);
    must(cudaStreamSynchronize(r->s));
}

/* Two pinned buffers take turns, each written again when the copy out of it is done. */
static void a_result_goes_through_two_buffers(struct rig *r) {
    cudaEvent_t copied[2] = {r->e, r->f};
    for (int round = 0; round < 4; round++) {
        float *pinned = round % 2 == 0 || r->fault ? r->pinned : r->pinned2;
        if (round >= 2)
            must(cudaEventSynchronize(copied[round % 2]));
        pinned[1] = (float)round;
        if (round > 0)
            must(cudaStreamWaitEvent(r->t, r->g, 0));
        must(cudaMemcpyAsync(r->a, pinned, N * sizeof *r->a, cudaMemcpyDefault, r->t));
        must(cudaEventRecord(copied[round % 2], r->t));
        must(cudaStreamWaitEvent(r->s, copied[round % 2], 0));
        r_scale(r->s, r->b, r->a, N, 1.0f);
        must(cudaEventRecord(r->g, r->s));
    }
    must(cudaDeviceSynchronize());
}

/* ---- two host threads ---- */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool filled;

static void *filler(void *arg) {
    struct rig *r = arg;
    r->pinned[3] = 5.0f;
    if (!r->fault) {
        pthread_mutex_lock(&mutex);
        filled = true;
        pthread_cond_signal(&changed);
        pthread_mutex_unlock(&mutex);
    }
    return NULL;
}

static void a_thread_fills_what_another_copies(struct rig *r) {
    pthread_t thread;
    filled = false;
    if (pthread_create(&thread, NULL, filler, r) != 0)
        abort();
    pthread_mutex_lock(&mutex);
    while (!filled && !r->fault)
        pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
    must(cudaMemcpyAsync(r->a, r->pinned, N * sizeof *r->a, cudaMemcpyDefault, r->s));
    must(cudaStreamSynchronize(r->s));
    if (pthread_join(thread, NULL) != 0)
        abort();
}

static atomic_bool flag;

static void *raiser(void *arg) {
    struct rig *r = arg;
    if (r->fault)
        atomic_store(&flag, true);
    r->pinned[3] = 5.0f;
    atomic_store(&flag, true);
    return NULL;
}

static void a_flag_says_that_a_buffer_is_filled(struct rig *r) {
    pthread_t thread;
    atomic_store(&flag, false);
    if (pthread_create(&thread, NULL, raiser, r) != 0)
        abort();
    while (!r->fault && !atomic_load(&flag))
        sched_yield();
    must(cudaMemcpyAsync(r->a, r->pinned, N * sizeof *r->a, cudaMemcpyDefault, r->s));
    must(cudaStreamSynchronize(r->s));
    if (pthread_join(thread, NULL) != 0)
        abort();
}

/* A thread's end orders what it did, a pipe what was written before. */
static void *piper(void *arg) {
    int *fds = arg;
    char c = 0;
    if (read(fds[0], &c, 1) != 1)
        abort();
    float *pinned = *(float **)(void *)(fds + 2);
    pinned[5] = 1.0f;
    return NULL;
}

static void buffers_pass_through_a_pipe_and_a_join(struct rig *r) {
    pthread_t thread;
    union {
        int fds[4];
        float *pinned[2];
    } u;
    u.pinned[1] = r->pinned;
    if (pipe(u.fds) != 0 || pthread_create(&thread, NULL, piper, u.fds) != 0)
        abort();
    must(cudaMemcpyAsync(r->pinned, r->pinned2, N * sizeof *r->a, cudaMemcpyDefault, r->s));
    if (!r->fault)
        must(cudaStreamSynchronize(r->s));
    if (write(u.fds[1], "x", 1) != 1 || pthread_join(thread, NULL) != 0)
        abort();
    if (r->pinned[5] != 1.0f && !r->fault)
        abort();
    must(cudaStreamSynchronize(r->s));
    close(u.fds[0]);
    close(u.fds[1]);
}

/* ---- memory that is registered; operations of a library ---- */

static void registered_memory_is_watched(struct rig *r) {
    float *host = calloc(N, sizeof *host);
    if (host == NULL)
        abort();
    must(cudaHostRegister(host, N * sizeof *host, cudaHostRegisterDefault));
    must(cudaMemcpyAsync(r->a, host, N * sizeof *host, cudaMemcpyDefault, r->s));
    if (!r->fault)
        must(cudaStreamSynchronize(r->s));
    host[N - 1] = 1.0f;
    must(cudaStreamSynchronize(r->s));
    must(cudaHostUnregister(host));
    free(host);
}

static void do_nothing(void *arg) { (void)arg; }

/* Rows of 8 floats, 16 apart, on one stream, and the columns between them on another. */
static void operations_are_known_by_their_ranges(struct rig *r) {
    size_t between = r->fault ? 7 : 8;
    struct emu_op left = {.name = "left",
                          .run = do_nothing,
                          .ranges = {{r->a, 4, 8 * sizeof(float), 16 * sizeof(float), true}},
                          .range_count = 1};
    struct emu_op right = {
        .name = "right",
        .run = do_nothing,
        .ranges = {{r->a + between, 4, 8 * sizeof(float), 16 * sizeof(float), true}},
        .range_count = 1};
    emu_queue(r->s, &left);
    emu_queue(r->t, &right);
    must(cudaDeviceSynchronize());
}

static const struct program {
    void (*run)(struct rig *r);
    const char *name;
    const char *said; /* of the fault */
} programs[] = {
    {a_stream_reads_what_another_wrote, "missing cudaStreamWaitEvent", "of device allocation 1"},
    {a_buffer_is_written_again, "buffer reused too early", "cudaMemsetAsync (stream 1) writes it"},
    {pinned_memory_is_filled_again, "pinned buffer refilled too early",
     "byte 0 of pinned allocation 4"},
    {the_host_reads_a_result, "host read without synchronisation", "host thread 1 reads it"},
    {an_event_is_recorded_in_each_round, "forgotten record", "scale_kernel (stream 1"},
    {a_block_sums_in_shared_memory, "missing __syncthreads", "of shared memory part"},
    {blocks_add_to_one_number, "+= across blocks", "byte 0 of device allocation 2"},
    {lanes_exchange_by_shared_memory, "missing __syncwarp", "of shared memory dynamic"},
    {neighbours_share_four_bytes, "a neighbour's element", "byte 14 of device allocation 1"},
    {a_counter_is_only_added_to, "plain read of a counter", "peek_kernel"},
    {a_result_goes_through_two_buffers, "one buffer where two are needed",
     "of pinned allocation 4"},
    {a_thread_fills_what_another_copies, "threads without a mutex", "host thread 2 writes it"},
    {a_flag_says_that_a_buffer_is_filled, "a flag that is raised too early",
     "host thread 2 writes it"},
    {buffers_pass_through_a_pipe_and_a_join, "handed over too early", "host thread 2 writes it"},
    {registered_memory_is_watched, "registered memory changed too early", "byte 1020 of pinned"},
    {operations_are_known_by_their_ranges, "columns that overlap", "left"},
};

static void run(void *arg) {
    const struct rig *how = ((void **)arg)[0];
    const struct program *p = ((void **)arg)[1];
    struct rig r = *how;
    struct emu_settings e = emu_get_settings();
    e.order = r.schedule == 0 ? EMU_LAZY : r.schedule == 1 ? EMU_EAGER : EMU_RANDOM;
    e.threads = (enum emu_thread_order)(r.schedule % 3);
    e.seed = (uint64_t)r.schedule;
    emu_set_settings(&e);
    r.s = stream_open();
    r.t = stream_open();
    r.e = event_open();
    r.f = event_open();
    r.g = event_open();
    r.a = device_memory(N * sizeof *r.a);
    r.b = device_memory(N * sizeof *r.b);
    r.c = device_memory(N * sizeof *r.c);
    r.pinned = pinned_memory(N * sizeof *r.pinned);
    r.pinned2 = pinned_memory(N * sizeof *r.pinned2);
    p->run(&r);
}

static void each_fault_is_found_in_every_schedule(void **state) {
    (void)state;
    for (size_t p = 0; p < sizeof programs / sizeof programs[0]; p++)
        for (int schedule = 0; schedule < SCHEDULES; schedule++) {
            struct rig how = {.fault = true, .schedule = schedule};
            void *arg[] = {&how, (void *)(uintptr_t)&programs[p]};
            print_message("%s, schedule %d\n", programs[p].name, schedule);
            dies(run, arg, "race: ");
            dies(run, arg, programs[p].said);
        }
}

static void a_right_program_is_silent_in_every_schedule(void **state) {
    (void)state;
    for (size_t p = 0; p < sizeof programs / sizeof programs[0]; p++)
        for (int schedule = 0; schedule < SCHEDULES; schedule++) {
            struct rig how = {.fault = false, .schedule = schedule};
            void *arg[] = {&how, (void *)(uintptr_t)&programs[p]};
            print_message("%s, schedule %d\n", programs[p].name, schedule);
            lives(run, arg);
        }
}

int test_race(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_right_program_is_silent_in_every_schedule),
        cmocka_unit_test(each_fault_is_found_in_every_schedule),
    };
    return cmocka_run_group_tests_name("races", tests, NULL, NULL);
}
