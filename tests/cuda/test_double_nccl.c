/* test_double_nccl.c - the double of NCCL by itself: what it answers, what it refuses, and that it
 * is as strict as it says. */
#include "config.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <nccl.h>
#include <pthread.h>

#include "tensor/dtype.h"
#include "tests/cuda/double_nccl.h"
#include "tests/cuda/emu_control.h"
#include "tests/cuda/ranks.h"

enum { WITHIN_S = 20 };

/* A world as a test has it: the id is made before the ranks are forked. */
struct world {
    ncclUniqueId id;
    int ranks;
    int devices[RANKS_MOST];
    int variant; /* of the test */
    enum emu_order order;
};

static struct world world_of(int ranks) {
    struct world w = {.ranks = ranks, .devices = {0, 1, 2, 3}};
    assert_int_equal(ncclGetUniqueId(&w.id), ncclSuccess);
    return w;
}

/* ---- in a rank ---- */

static ncclResult_t settle(ncclComm_t comm) {
    ncclResult_t r = ncclInProgress;
    double until = rank_now() + 5;
    while (r == ncclInProgress && rank_now() < until) {
        RANK_CHECK(ncclCommGetAsyncError(comm, &r) == ncclSuccess);
        (void)usleep(100);
    }
    return r;
}

static ncclComm_t start(const struct world *w, unsigned rank) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = NULL;
    struct emu_settings s = emu_get_settings();
    s.order = w->order;
    emu_set_settings(&s);
    rank_devices(RANKS_MOST, w->devices[rank]);
    config.blocking = 0;
    RANK_CHECK(ncclCommInitRankConfig(&comm, w->ranks, w->id, (int)rank, &config) ==
               ncclInProgress);
    return comm;
}

static ncclComm_t join(const struct world *w, unsigned rank) {
    ncclComm_t comm = start(w, rank);
    RANK_CHECK(settle(comm) == ncclSuccess);
    return comm;
}

static void leave(ncclComm_t comm) {
    RANK_CHECK(ncclCommFinalize(comm) == ncclInProgress);
    RANK_CHECK(settle(comm) == ncclSuccess);
    RANK_CHECK(ncclCommDestroy(comm) == ncclInProgress);
    RANK_CHECK(double_nccl_open_count() == 0);
}

static void run(ncclComm_t comm, ncclResult_t r) {
    RANK_CHECK(r == ncclInProgress);
    RANK_CHECK(settle(comm) == ncclSuccess);
}

static float value(unsigned rank, size_t i) { return (float)((rank * 31 + i) % 61) - 20; }

static void gather_once(ncclComm_t comm, cudaStream_t s, const struct world *w, unsigned rank,
                        size_t elems) {
    float *host = malloc((size_t)w->ranks * elems * sizeof *host);
    RANK_CHECK(host != NULL);
    for (size_t i = 0; i < elems; i++)
        host[i] = value(rank, i);
    float *send = rank_put(s, host, elems * sizeof *host);
    float *recv = rank_alloc((size_t)w->ranks * elems * sizeof *host);
    run(comm, ncclAllGather(send, recv, elems, ncclFloat32, comm, s));
    rank_get(s, recv, host, (size_t)w->ranks * elems * sizeof *host);
    for (unsigned r = 0; r < (unsigned)w->ranks; r++)
        for (size_t i = 0; i < elems; i++)
            RANK_CHECK(host[r * elems + i] == value(r, i));
    RANK_CHECK(cudaFree(send) == cudaSuccess && cudaFree(recv) == cudaSuccess);
    free(host);
}

static void body_gather(unsigned rank, void *arg) {
    /* the last: more than a round of 256 KiB */
    static const size_t counts[] = {1, 7, 1023, 65536, 150001};
    const struct world *w = arg;
    ncclComm_t comm = join(w, rank);
    cudaStream_t s = rank_stream();
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        gather_once(comm, s, w, rank, counts[i]);
    leave(comm);
    RANK_CHECK(cudaStreamDestroy(s) == cudaSuccess);
    RANK_CHECK(emu_leaks(true) == 0);
}

static void all_gather_brings_the_parts_of_all_ranks(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++)
        for (int order = EMU_LAZY; order <= EMU_RANDOM; order++) {
            struct world w = world_of(ranks);
            w.order = (enum emu_order)order;
            ranks_must_pass((unsigned)ranks, WITHIN_S, body_gather, &w);
        }
}

/* 2^24 + 1 is 2^24 in f32: the 1 is lost where it meets only that. Rank order would lose it on all.
 */
static void body_order(unsigned rank, void *arg) {
    static const float of_rank[] = {16777216, 1, -16777216};
    static const float expected[] = {1, 1, 0};
    const struct world *w = arg;
    ncclComm_t comm = join(w, rank);
    cudaStream_t s = rank_stream();
    float host[3] = {of_rank[rank], of_rank[rank], of_rank[rank]}, got = 0;
    void *send = rank_put(s, host, sizeof host), *recv = rank_alloc(sizeof got);
    run(comm, ncclReduceScatter(send, recv, 1, ncclFloat32, ncclSum, comm, s));
    rank_get(s, recv, &got, sizeof got);
    RANK_CHECK(got == expected[rank]);
    leave(comm);
}

static void body_bf16_rounds_at_each_step(unsigned rank, void *arg) {
    /* 256 + 1 is 256 in bf16, so 1 is lost as often as it comes after it */
    static const float of_rank[] = {256, 1, 1};
    static const float expected[] = {258, 256, 256};
    const struct world *w = arg;
    ncclComm_t comm = join(w, rank);
    cudaStream_t s = rank_stream();
    uint16_t v = bf16_from_f32(of_rank[rank]), host[3] = {v, v, v}, got = 0;
    void *send = rank_put(s, host, sizeof host), *recv = rank_alloc(sizeof got);
    run(comm, ncclReduceScatter(send, recv, 1, ncclBfloat16, ncclSum, comm, s));
    rank_get(s, recv, &got, sizeof got);
    RANK_CHECK(bf16_to_f32(got) == expected[rank]);
    leave(comm);
}

static void sums_begin_behind_the_own_rank_and_round_each_time(void **state) {
    (void)state;
    struct world w = world_of(3);
    ranks_must_pass(3, WITHIN_S, body_order, &w);
    w = world_of(3);
    ranks_must_pass(3, WITHIN_S, body_bf16_rounds_at_each_step, &w);
}

static void body_in_place(unsigned rank, void *arg) {
    const struct world *w = arg;
    enum { N = 100 };
    ncclComm_t comm = join(w, rank);
    cudaStream_t s = rank_stream();
    float host[2 * N] = {0};
    for (size_t i = 0; i < N; i++)
        host[rank * N + i] = value(rank, i);
    float *both = rank_put(s, host, sizeof host);
    run(comm, ncclAllGather(both + rank * N, both, N, ncclFloat32, comm, s));
    run(comm, ncclReduceScatter(both, both + rank * N, N, ncclFloat32, ncclSum, comm, s));
    rank_get(s, both, host, sizeof host);
    for (size_t i = 0; i < N; i++)
        RANK_CHECK(host[rank * N + i] == 2 * value(rank, i));
    leave(comm);
}

static void calls_in_place_work(void **state) {
    (void)state;
    struct world w = world_of(2);
    ranks_must_pass(2, WITHIN_S, body_in_place, &w);
}

/* A second stream's collective comes behind the first stream's, though only it is waited for. */
static void body_two_streams(unsigned rank, void *arg) {
    const struct world *w = arg;
    ncclComm_t comm = join(w, rank);
    cudaStream_t s[2] = {rank_stream(), rank_stream()};
    float part = value(rank, 0), all[2] = {0};
    void *send = rank_put(s[0], &part, sizeof part);
    void *middle = rank_alloc(sizeof all), *recv = rank_alloc(sizeof part);
    run(comm, ncclAllGather(send, middle, 1, ncclFloat32, comm, s[0]));
    run(comm, ncclReduceScatter(middle, recv, 1, ncclFloat32, ncclSum, comm, s[1]));
    rank_get(s[1], recv, &part, sizeof part);
    RANK_CHECK(part == 2 * value(rank, 0));
    leave(comm);
}

static void collectives_of_two_streams_run_in_the_order_of_the_calls(void **state) {
    (void)state;
    for (int order = EMU_LAZY; order <= EMU_RANDOM; order++) {
        struct world w = world_of(2);
        w.order = (enum emu_order)order;
        ranks_must_pass(2, WITHIN_S, body_two_streams, &w);
    }
}

struct thread_rank {
    const struct world *w;
    unsigned rank;
};

static void *thread_main(void *arg) {
    const struct thread_rank *t = arg;
    RANK_CHECK(cudaSetDevice((int)t->rank) == cudaSuccess);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = NULL;
    config.blocking = 0;
    RANK_CHECK(ncclCommInitRankConfig(&comm, 2, t->w->id, (int)t->rank, &config) == ncclInProgress);
    RANK_CHECK(settle(comm) == ncclSuccess);
    gather_once(comm, rank_stream(), t->w, t->rank, 70000);
    RANK_CHECK(ncclCommFinalize(comm) == ncclInProgress && settle(comm) == ncclSuccess);
    RANK_CHECK(ncclCommDestroy(comm) == ncclInProgress);
    return NULL;
}

static void body_threads(unsigned rank, void *arg) {
    struct world *w = arg;
    (void)rank;
    rank_devices(2, 0);
    RANK_CHECK(ncclGetUniqueId(&w->id) == ncclSuccess);
    struct thread_rank t[2] = {{w, 0}, {w, 1}};
    pthread_t second;
    RANK_CHECK(pthread_create(&second, NULL, thread_main, &t[1]) == 0);
    (void)thread_main(&t[0]);
    RANK_CHECK(pthread_join(second, NULL) == 0);
    RANK_CHECK(double_nccl_open_count() == 0);
}

static void ranks_may_be_threads(void **state) {
    (void)state;
    struct world w = world_of(2);
    ranks_must_pass(1, WITHIN_S, body_threads, &w);
}

/* ---- what it answers when something is wrong ---- */

static void body_twins(unsigned rank, void *arg) {
    const struct world *w = arg;
    ncclComm_t comm = start(w, rank);
    if (rank == 2) {
        ncclResult_t r = ncclSuccess;
        for (int i = 0; i < 200; i++, (void)usleep(1000))
            RANK_CHECK(ncclCommGetAsyncError(comm, &r) == ncclSuccess);
        RANK_CHECK(r == ncclInProgress || r == ncclSuccess);
    } else {
        RANK_CHECK(settle(comm) == ncclInvalidUsage);
        RANK_CHECK_TEXT(ncclGetLastError(NULL), "Duplicate GPU detected");
    }
    RANK_CHECK(ncclCommAbort(comm) == ncclInProgress);
}

static void two_ranks_on_one_device_are_refused(void **state) {
    (void)state;
    struct world w = world_of(3);
    w.devices[1] = 0;
    ranks_must_pass(3, WITHIN_S, body_twins, &w);
}

static void body_too_early(unsigned rank, void *arg) {
    const struct world *w = arg;
    ncclComm_t comm = join(w, rank);
    cudaStream_t s = rank_stream();
    float *p = rank_alloc(8);
    RANK_CHECK(ncclAllGather(p, p, 1, ncclFloat32, comm, s) == ncclInProgress);
    RANK_CHECK(ncclAllGather(p, p, 1, ncclFloat32, comm, s) == ncclInvalidArgument);
    RANK_CHECK_TEXT(ncclGetLastError(comm), "before the previous operation");
    RANK_CHECK(settle(comm) == ncclInvalidArgument);
    RANK_CHECK(ncclCommFinalize(comm) == ncclInvalidArgument);
    RANK_CHECK(ncclCommAbort(comm) == ncclInProgress);
}

static void a_call_before_the_last_is_done_is_an_error_that_stays(void **state) {
    (void)state;
    struct world w = world_of(1);
    ranks_must_pass(1, WITHIN_S, body_too_early, &w);
}

/* What is recorded before the communicator is asked is not behind the collective. */
static void body_recorded_early(unsigned rank, void *arg) {
    const struct world *w = arg;
    ncclComm_t comm = join(w, rank);
    cudaStream_t s = rank_stream(), other = rank_stream();
    cudaEvent_t early;
    float one = 1, got = 0;
    float *send = rank_put(s, &one, sizeof one), *recv = rank_alloc(sizeof one);
    RANK_CHECK(cudaEventCreateWithFlags(&early, cudaEventDisableTiming) == cudaSuccess);
    RANK_CHECK(ncclAllGather(send, recv, 1, ncclFloat32, comm, s) == ncclInProgress);
    RANK_CHECK(cudaEventRecord(early, s) == cudaSuccess);
    RANK_CHECK(settle(comm) == ncclSuccess);
    RANK_CHECK(cudaStreamWaitEvent(other, early, 0) == cudaSuccess);
    rank_get(other, recv, &got, sizeof got);
    RANK_CHECK(got != got); /* NaN: memory as it was allocated */
    rank_get(s, recv, &got, sizeof got);
    RANK_CHECK(got == 1);
    leave(comm);
}

static void a_collective_is_on_its_stream_when_the_communicator_says_so(void **state) {
    (void)state;
    struct world w = world_of(1);
    ranks_must_pass(1, WITHIN_S, body_recorded_early, &w);
}

enum { WAITS_FOR_HANG, WAITS_FOR_KILLED, WAITS_FOR_ERROR, WAITS_FOR_HANG_BY_ENVIRONMENT };

static void *abort_later(void *arg) {
    (void)usleep(150000);
    RANK_CHECK(ncclCommAbort(arg) == ncclInProgress);
    return NULL;
}

/* Rank 1 never answers in its second collective, for one reason or the other; rank 0 waits for the
 * stream, and an abort from another thread lets it go. */
static void body_waits(unsigned rank, void *arg) {
    const struct world *w = arg;
    if (w->variant == WAITS_FOR_HANG_BY_ENVIRONMENT)
        (void)setenv("NCCL_DOUBLE_HANG", "1:2", 1);
    ncclComm_t comm = join(w, rank);
    cudaStream_t s = rank_stream();
    float all[2] = {0};
    float *p = rank_put(s, all, sizeof all);
    if (w->variant == WAITS_FOR_HANG)
        double_nccl_hang(1, 2);
    if (w->variant == WAITS_FOR_ERROR)
        double_nccl_async_error(1, 2);
    run(comm, ncclAllGather(p + rank, p, 1, ncclFloat32, comm, s));
    RANK_CHECK(cudaStreamSynchronize(s) == cudaSuccess);
    if (rank == 1 && w->variant == WAITS_FOR_KILLED)
        (void)raise(SIGKILL);
    run(comm, ncclAllGather(p + rank, p, 1, ncclFloat32, comm, s));
    pthread_t thread;
    double before = rank_now();
    RANK_CHECK(pthread_create(&thread, NULL, abort_later, comm) == 0);
    if (rank == 1 && w->variant == WAITS_FOR_ERROR) {
        RANK_CHECK(cudaStreamQuery(s) != cudaErrorUnknown);
        ncclResult_t r = ncclSuccess;
        for (int i = 0; i < 100 && r == ncclSuccess; i++, (void)usleep(1000)) {
            (void)cudaStreamQuery(s);
            RANK_CHECK(ncclCommGetAsyncError(comm, &r) == ncclSuccess);
        }
        RANK_CHECK(r == ncclRemoteError);
    }
    RANK_CHECK(cudaStreamSynchronize(s) == cudaSuccess);
    RANK_CHECK(rank_now() - before > 0.1);
    RANK_CHECK(pthread_join(thread, NULL) == 0);
    rank_get(s, p, all, sizeof all);
    RANK_CHECK(all[0] != all[0] && all[1] != all[1]);
    RANK_CHECK(double_nccl_open_count() == 0);
}

static void an_abort_from_another_thread_frees_who_waits(void **state) {
    (void)state;
    for (int variant = WAITS_FOR_HANG; variant <= WAITS_FOR_HANG_BY_ENVIRONMENT; variant++) {
        struct world w = world_of(2);
        struct rank_end ends[2];
        w.variant = variant;
        if (variant != WAITS_FOR_KILLED) {
            ranks_must_pass(2, WITHIN_S, body_waits, &w);
            continue;
        }
        ranks_run(2, WITHIN_S, body_waits, &w, ends);
        assert_string_equal(ends[0].text, "");
        assert_int_equal(ends[0].status, 0);
        assert_int_equal(ends[1].status, SIGKILL);
    }
}

static void body_never_joins(unsigned rank, void *arg) {
    const struct world *w = arg;
    double_nccl_hang(1, 0);
    ncclComm_t comm = start(w, rank);
    ncclResult_t r = ncclSuccess;
    for (int i = 0; i < 100; i++, (void)usleep(1000))
        RANK_CHECK(ncclCommGetAsyncError(comm, &r) == ncclSuccess && r == ncclInProgress);
    RANK_CHECK(ncclCommAbort(comm) == ncclInProgress);
}

static void a_rank_may_never_join(void **state) {
    (void)state;
    struct world w = world_of(2);
    ranks_must_pass(2, WITHIN_S, body_never_joins, &w);
}

static void body_maker_is_gone(unsigned rank, void *arg) {
    const struct world *w = arg;
    ncclComm_t comm = start(w, rank);
    RANK_CHECK(settle(comm) == ncclSystemError);
    RANK_CHECK(ncclCommAbort(comm) == ncclInProgress);
}

static void an_id_ends_with_its_maker(void **state) {
    (void)state;
    struct world w = world_of(1);
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t maker = fork();
    if (maker == 0) {
        ncclUniqueId id;
        _exit(ncclGetUniqueId(&id) != ncclSuccess ||
              write(ends[1], &id, sizeof id) != (ssize_t)sizeof id);
    }
    assert_true(maker > 0);
    assert_int_equal(read(ends[0], &w.id, sizeof w.id), sizeof w.id);
    int status = 1;
    assert_int_equal(waitpid(maker, &status, 0), maker);
    assert_int_equal(status, 0);
    (void)close(ends[0]);
    (void)close(ends[1]);
    ranks_must_pass(1, WITHIN_S, body_maker_is_gone, &w);
}

static void body_injected(unsigned rank, void *arg) {
    const struct world *w = arg;
    ncclComm_t comm = join(w, rank);
    cudaStream_t s = rank_stream();
    float *p = rank_alloc(4);
    emu_fail_at(1, "ncclInternalError");
    RANK_CHECK(ncclAllGather(p, p, 1, ncclFloat32, comm, s) == ncclInternalError);
    RANK_CHECK_TEXT(emu_failed_call(), "ncclAllGather");
    RANK_CHECK(settle(comm) == ncclInternalError);
    emu_fail_at(1, NULL);
    RANK_CHECK(ncclCommAbort(comm) != ncclInProgress);
    RANK_CHECK(double_nccl_open_count() == 0); /* even so */
    ncclUniqueId id;
    emu_fail_at(1, "cudaErrorMemoryAllocation");
    RANK_CHECK(ncclGetUniqueId(&id) == ncclUnhandledCudaError);
    int version = 0;
    emu_fail_at(1, NULL);
    RANK_CHECK(ncclGetVersion(&version) == ncclSuccess && version == NCCL_VERSION_CODE);
    RANK_CHECK_TEXT(ncclGetErrorString(ncclRemoteError), "remote process exited");
    RANK_CHECK(emu_call_count() == 0);
}

static void failures_are_injected_by_name(void **state) {
    (void)state;
    struct world w = world_of(1);
    ranks_must_pass(1, WITHIN_S, body_injected, &w);
}

/* ---- what ends the program ---- */

enum {
    OTHER_COUNT,
    OTHER_DTYPE,
    OTHER_KIND,
    NO_DTYPE,
    NO_SUM,
    HOST_MEMORY,
    SHORT_MEMORY,
    OVERLAP,
    DEFAULT_STREAM,
    OTHER_STREAM,
    OTHER_MEMORY,
    BLOCKING,
    NO_CONFIG,
    BARE_CONFIG,
    SPLIT_CONFIG,
    EARLY_DESTROY,
    LATE_ABORT,
    LATE_USE,
    NO_COMM,
    TWICE,
    OTHER_WORLD,
    NO_ID,
    BAD_ENVIRONMENT,
    AFTER_FINALIZE
};

static void wrong_world(const struct world *w, unsigned rank) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = NULL;
    ncclUniqueId id = w->id;
    if (w->variant == BAD_ENVIRONMENT)
        (void)setenv("NCCL_DOUBLE_HANG", "1", 1);
    rank_devices(2, 0);
    if (w->variant != BLOCKING)
        config.blocking = 0;
    if (w->variant == BARE_CONFIG)
        memset(&config, 0, sizeof config);
    if (w->variant == SPLIT_CONFIG)
        config.splitShare = 1;
    if (w->variant == NO_ID)
        memset(&id, 0, sizeof id);
    (void)ncclCommInitRankConfig(&comm, w->ranks, id, (int)rank,
                                 w->variant == NO_CONFIG ? NULL : &config);
    if (w->variant == TWICE)
        (void)ncclCommInitRankConfig(&comm, w->ranks, id, (int)rank, &config);
    if (w->variant == OTHER_WORLD)
        (void)ncclCommInitRankConfig(&comm, w->ranks + 1, id, (int)rank, &config);
}

static void wrong_life(const struct world *w, ncclComm_t comm, cudaStream_t s, float *p) {
    ncclResult_t r;
    if (w->variant == EARLY_DESTROY)
        (void)ncclCommDestroy(comm);
    if (w->variant == NO_COMM)
        (void)ncclAllGather(p, p, 1, ncclFloat32, NULL, s);
    if (w->variant == AFTER_FINALIZE) {
        RANK_CHECK(ncclCommFinalize(comm) == ncclInProgress && settle(comm) == ncclSuccess);
        (void)ncclAllGather(p, p, 1, ncclFloat32, comm, s);
    }
    (void)ncclCommAbort(comm);
    if (w->variant == LATE_ABORT)
        (void)ncclCommAbort(comm);
    if (w->variant == LATE_USE)
        (void)ncclCommGetAsyncError(comm, &r);
}

/* Two ranks that do not say the same; each of 4 floats. */
static void wrong_together(const struct world *w, unsigned rank, ncclComm_t comm, cudaStream_t s,
                           float *p) {
    ncclDataType_t type = w->variant == OTHER_DTYPE && rank == 1 ? ncclBfloat16 : ncclFloat32;
    size_t count = w->variant == OTHER_COUNT && rank == 1 ? 1 : 2;
    float *q = rank_alloc(16);
    if (w->variant == OTHER_KIND && rank == 1)
        run(comm, ncclReduceScatter(p, q, count, type, ncclSum, comm, s));
    else
        run(comm, ncclAllGather(p, q, count, type, comm, s));
    (void)cudaStreamSynchronize(s);
}

static void body_wrong(unsigned rank, void *arg) {
    const struct world *w = arg;
    if (w->variant >= BLOCKING && w->variant <= SPLIT_CONFIG)
        wrong_world(w, rank);
    if (w->variant >= TWICE && w->variant <= BAD_ENVIRONMENT)
        wrong_world(w, rank);
    ncclComm_t comm = join(w, rank);
    cudaStream_t s = rank_stream();
    float *p = rank_alloc(16), *host = NULL;
    RANK_CHECK(cudaHostAlloc((void **)&host, 16, cudaHostAllocDefault) == cudaSuccess);
    if (w->variant <= OTHER_KIND)
        wrong_together(w, rank, comm, s, p);
    else if (w->variant == NO_DTYPE)
        (void)ncclAllGather(p, p, 1, ncclFloat16, comm, s);
    else if (w->variant == NO_SUM)
        (void)ncclReduceScatter(p, p, 1, ncclFloat32, ncclAvg, comm, s);
    else if (w->variant == HOST_MEMORY)
        (void)ncclAllGather(host, p, 1, ncclFloat32, comm, s);
    else if (w->variant == SHORT_MEMORY)
        (void)ncclAllGather(p, p, 5, ncclFloat32, comm, s);
    else if (w->variant == OVERLAP)
        (void)ncclAllGather(p, p + 1, 2, ncclFloat32, comm, s);
    else if (w->variant == DEFAULT_STREAM)
        (void)ncclAllGather(p, p, 1, ncclFloat32, comm, NULL);
    else if (w->variant == OTHER_STREAM || w->variant == OTHER_MEMORY) {
        RANK_CHECK(cudaSetDevice(1) == cudaSuccess);
        if (w->variant == OTHER_STREAM)
            (void)ncclAllGather(p, p, 1, ncclFloat32, comm, rank_stream());
        else
            (void)ncclAllGather(rank_alloc(4), p, 1, ncclFloat32, comm, s);
    } else
        wrong_life(w, comm, s, p);
}

static const struct {
    int variant, ranks;
    unsigned dying;
    const char *text;
} wrongs[] = {
    {OTHER_COUNT, 2, 0, "rank 1 has ncclAllGather of 1 ncclFloat32 as its collective 1"},
    {OTHER_DTYPE, 2, 0, "rank 1 has ncclAllGather of 2 ncclBfloat16"},
    {OTHER_KIND, 2, 1, "rank 0 has ncclAllGather of 2 ncclFloat32"},
    {NO_DTYPE, 1, 0, "ncclAllGather: dtype 6 is not modelled"},
    {NO_SUM, 1, 0, "ncclReduceScatter: reduction 4 is not modelled"},
    {HOST_MEMORY, 1, 0, "ncclAllGather: sendbuff"},
    {SHORT_MEMORY, 1, 0, "ncclAllGather: sendbuff"},
    {OVERLAP, 1, 0, "ncclAllGather: the buffers overlap"},
    {DEFAULT_STREAM, 1, 0, "ncclAllGather: "},
    {OTHER_STREAM, 1, 0, "a stream of device 1, a communicator of device 0"},
    {OTHER_MEMORY, 1, 0, "sendbuff is not memory of the communicator's device 0"},
    {BLOCKING, 1, 0, "blocking communicators are not modelled"},
    {NO_CONFIG, 1, 0, "blocking communicators are not modelled"},
    {BARE_CONFIG, 1, 0, "not made by NCCL_CONFIG_INITIALIZER"},
    {SPLIT_CONFIG, 1, 0, "of the config only blocking is modelled"},
    {EARLY_DESTROY, 1, 0, "ncclCommDestroy: not modelled before ncclCommFinalize is done"},
    {LATE_ABORT, 1, 0, "ncclCommAbort: this communicator was destroyed or aborted"},
    {LATE_USE, 1, 0, "ncclCommGetAsyncError: this communicator was destroyed or aborted"},
    {NO_COMM, 1, 0, "ncclAllGather: the communicator is NULL"},
    {TWICE, 2, 0, "rank 0 joined this world twice"},
    {OTHER_WORLD, 2, 0, "the world has 3 ranks, another said 2"},
    {NO_ID, 1, 0, "no id that ncclGetUniqueId made"},
    {BAD_ENVIRONMENT, 1, 0, "NCCL_DOUBLE_HANG: '1': expected RANK:N"},
    {AFTER_FINALIZE, 1, 0, "ncclAllGather: after ncclCommFinalize"},
};

static void what_is_wrong_or_not_modelled_ends_the_program(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
        struct world w = world_of(wrongs[i].ranks);
        w.variant = wrongs[i].variant;
        ranks_must_die((unsigned)wrongs[i].ranks, wrongs[i].dying, body_wrong, &w, wrongs[i].text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_gather_brings_the_parts_of_all_ranks),
        cmocka_unit_test(sums_begin_behind_the_own_rank_and_round_each_time),
        cmocka_unit_test(calls_in_place_work),
        cmocka_unit_test(collectives_of_two_streams_run_in_the_order_of_the_calls),
        cmocka_unit_test(ranks_may_be_threads),
        cmocka_unit_test(two_ranks_on_one_device_are_refused),
        cmocka_unit_test(a_call_before_the_last_is_done_is_an_error_that_stays),
        cmocka_unit_test(a_collective_is_on_its_stream_when_the_communicator_says_so),
        cmocka_unit_test(an_abort_from_another_thread_frees_who_waits),
        cmocka_unit_test(a_rank_may_never_join),
        cmocka_unit_test(an_id_ends_with_its_maker),
        cmocka_unit_test(failures_are_injected_by_name),
        cmocka_unit_test(what_is_wrong_or_not_modelled_ends_the_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
