/* test_nccl.c - the collectives of the plugin, on the doubles: ranks are processes with an emulated
 * device each. */
#include "config.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <pthread.h>

#include "comm/nccl/nccl.h"
#include "device/cuda/cuda.h"
#include "tests/cuda/double_cublaslt.h"
#include "tests/cuda/double_nccl.h"
#include "tests/cuda/emu_control.h"
#include "tests/cuda/emu_stream.h"
#include "tests/cuda/ranks.h"

enum { WITHIN_S = 30 };

struct world {
    uint8_t id[COLLECTIVE_ID_BYTES];
    unsigned ranks;
    bool one_device;
    double timeout_s;
    enum emu_order order;
    int variant; /* of the test */
};

static struct world world_of(unsigned ranks, double timeout_s) {
    struct world w = {.ranks = ranks, .timeout_s = timeout_s};
    struct err err = {0};
    assert_int_equal(collective_nccl.unique_id(w.id, &err), 0);
    return w;
}

/* ---- in a rank ---- */

struct gpu {
    struct device *dev;
    struct dev_stream *gather, *reduce;
    struct collective *c;
};

/* Small workspaces are not to be had: the streams of kernels bring theirs, and the memory of a
 * device of the emulation is only as large as what was touched. */
static void open_device(struct gpu *g, const struct world *w, unsigned rank) {
    struct device_args args = {.local_rank = w->one_device ? 0 : rank, .local_size = w->ranks};
    struct err err = {0};
    struct emu_settings s = emu_get_settings();
    s.devices = RANKS_MOST;
    s.order = w->order;
    emu_set_settings(&s);
    RANK_CHECK(cuda_open(&args, &g->dev, &err) == 0);
    RANK_CHECK(cuda_stream_open(g->dev, DEV_STREAM_GATHER, &g->gather) == 0);
    RANK_CHECK(cuda_stream_open(g->dev, DEV_STREAM_REDUCE, &g->reduce) == 0);
}

static void open_world(struct gpu *g, const struct world *w, unsigned rank) {
    struct err err = {0};
    open_device(g, w, rank);
    int rc = collective_nccl.open(w->id, rank, w->ranks, g->dev, w->timeout_s, &g->c, &err);
    rank_check(rc == 0, err.text, __FILE__, __LINE__);
}

static void close_device(struct gpu *g) {
    cuda_stream_close(g->dev, g->reduce);
    cuda_stream_close(g->dev, g->gather);
    cuda_close(g->dev);
}

/* All is given back: no event, no communicator. */
static void close_world(struct gpu *g) {
    collective_nccl.close(g->c);
    RANK_CHECK(double_nccl_open_count() == 0);
}

static void close_all(struct gpu *g) {
    close_world(g);
    close_device(g);
    RANK_CHECK(emu_leaks(true) == 0);
    RANK_CHECK(double_cublaslt_open_count() == 0);
}

/* Small whole numbers: exact in bf16, and so are their sums. */
static float value(unsigned rank, size_t i) { return (float)((rank * 7 + i) % 13) - 4; }

static void *host_values(enum dtype t, size_t elems, unsigned rank) {
    void *p = malloc(elems * dtype_bytes(t));
    RANK_CHECK(p != NULL);
    for (size_t i = 0; i < elems; i++)
        if (t == DTYPE_BF16)
            ((uint16_t *)p)[i] = bf16_from_f32(value(rank, i));
        else
            ((float *)p)[i] = value(rank, i);
    return p;
}

static float at(const void *p, enum dtype t, size_t i) {
    return t == DTYPE_BF16 ? bf16_to_f32(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

static void gather_once(struct gpu *g, const struct world *w, unsigned rank, enum dtype t,
                        size_t elems) {
    size_t bytes = elems * dtype_bytes(t);
    cudaStream_t s = g->gather->call.stream;
    void *part = host_values(t, elems, rank), *all = malloc(w->ranks * bytes);
    RANK_CHECK(all != NULL);
    void *send = rank_put(s, part, bytes), *recv = rank_alloc(w->ranks * bytes);
    RANK_CHECK(collective_nccl.all_gather(g->c, g->gather, send, recv, t, elems) == 0);
    rank_get(s, recv, all, w->ranks * bytes);
    for (unsigned r = 0; r < w->ranks; r++)
        for (size_t i = 0; i < elems; i++)
            RANK_CHECK(at(all, t, r * elems + i) == value(r, i));
    RANK_CHECK(collective_nccl.check(g->c, NULL) == 0);
    RANK_CHECK(cudaFree(send) == cudaSuccess && cudaFree(recv) == cudaSuccess);
    free(part);
    free(all);
}

static void reduce_once(struct gpu *g, const struct world *w, unsigned rank, enum dtype t,
                        size_t elems) {
    size_t bytes = elems * dtype_bytes(t);
    cudaStream_t s = g->reduce->call.stream;
    void *whole = host_values(t, w->ranks * elems, rank), *part = malloc(bytes);
    RANK_CHECK(part != NULL);
    void *send = rank_put(s, whole, w->ranks * bytes), *recv = rank_alloc(bytes);
    RANK_CHECK(collective_nccl.reduce_scatter(g->c, g->reduce, send, recv, t, elems) == 0);
    rank_get(s, recv, part, bytes);
    for (size_t i = 0; i < elems; i++) {
        float sum = 0;
        for (unsigned r = 0; r < w->ranks; r++)
            sum += value(r, rank * elems + i);
        RANK_CHECK(at(part, t, i) == sum);
    }
    RANK_CHECK(collective_nccl.check(g->c, NULL) == 0);
    RANK_CHECK(cudaFree(send) == cudaSuccess && cudaFree(recv) == cudaSuccess);
    free(whole);
    free(part);
}

static void body_moves(unsigned rank, void *arg) {
    static const size_t counts[] = {1, 7, 1023, 100003};
    const struct world *w = arg;
    struct gpu g;
    open_world(&g, w, rank);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int t = 0; t < DTYPE_COUNT; t++) {
            gather_once(&g, w, rank, (enum dtype)t, counts[i]);
            reduce_once(&g, w, rank, (enum dtype)t, counts[i]);
        }
    close_all(&g);
}

static void parts_are_gathered_and_sums_scattered_in_both_dtypes(void **state) {
    (void)state;
    for (unsigned ranks = 1; ranks <= 3; ranks++)
        for (int order = EMU_LAZY; order <= EMU_RANDOM; order++) {
            struct world w = world_of(ranks, 10);
            w.order = (enum emu_order)order;
            ranks_must_pass(ranks, WITHIN_S, body_moves, &w);
        }
}

static void body_in_place(unsigned rank, void *arg) {
    enum { N = 50 };
    const struct world *w = arg;
    struct gpu g;
    float host[2 * N] = {0};
    open_world(&g, w, rank);
    for (size_t i = 0; i < N; i++)
        host[rank * N + i] = value(rank, i);
    float *both = rank_put(g.gather->call.stream, host, sizeof host);
    RANK_CHECK(collective_nccl.all_gather(g.c, g.gather, both + rank * N, both, DTYPE_F32, N) == 0);
    RANK_CHECK(collective_nccl.reduce_scatter(g.c, g.reduce, both, both + rank * N, DTYPE_F32, N) ==
               0);
    rank_get(g.reduce->call.stream, both, host, sizeof host);
    for (size_t i = 0; i < N; i++)
        RANK_CHECK(host[rank * N + i] == 2 * value(rank, i));
    RANK_CHECK(collective_nccl.all_gather(g.c, g.gather, both, both, DTYPE_F32, 0) == 0);
    close_world(&g);
}

static void buffers_may_be_in_place_and_nothing_may_be_moved(void **state) {
    (void)state;
    struct world w = world_of(2, 10);
    ranks_must_pass(2, WITHIN_S, body_in_place, &w);
}

/* Far more than there is room for at first; on two streams, not waited for in between. */
static void body_many(unsigned rank, void *arg) {
    enum { MANY = 150 };
    const struct world *w = arg;
    struct gpu g;
    open_world(&g, w, rank);
    float one = 1, all[2] = {0, 0};
    float *part = rank_put(g.gather->call.stream, &one, sizeof one);
    float *both = rank_put(g.gather->call.stream, all, sizeof all);
    for (int i = 0; i < MANY; i++) {
        RANK_CHECK(collective_nccl.all_gather(g.c, g.gather, part, both, DTYPE_F32, 1) == 0);
        RANK_CHECK(collective_nccl.reduce_scatter(g.c, g.reduce, both, part, DTYPE_F32, 1) == 0);
        if (i % 40 == 30) /* keep it from infinity */
            RANK_CHECK(cudaMemsetAsync(part, 0, sizeof one, g.gather->call.stream) == cudaSuccess);
    }
    RANK_CHECK(cudaStreamSynchronize(g.gather->call.stream) == cudaSuccess);
    RANK_CHECK(cudaStreamSynchronize(g.reduce->call.stream) == cudaSuccess);
    RANK_CHECK(collective_nccl.check(g.c, NULL) == 0);
    RANK_CHECK(cudaFree(part) == cudaSuccess && cudaFree(both) == cudaSuccess);
    close_all(&g);
}

static void any_number_may_be_in_flight(void **state) {
    (void)state;
    struct world w = world_of(2, 10);
    ranks_must_pass(2, WITHIN_S, body_many, &w);
}

/* NCCL does not suffer two threads in one communicator, and the watchdog comes by while a call
 * takes its time. */
static void body_slow_calls(unsigned rank, void *arg) {
    const struct world *w = arg;
    struct gpu g;
    struct err err = {0};
    open_world(&g, w, rank);
    float *p = rank_alloc(4);
    double_nccl_slow_calls(150);
    for (int i = 0; i < 4; i++)
        RANK_CHECK(collective_nccl.all_gather(g.c, g.gather, p, p, DTYPE_F32, 1) == 0);
    double_nccl_slow_calls(0);
    RANK_CHECK(cudaStreamSynchronize(g.gather->call.stream) == cudaSuccess);
    int rc = collective_nccl.check(g.c, &err);
    rank_check(rc == 0, err.text, __FILE__, __LINE__);
    close_world(&g);
}

static void one_thread_at_a_time_is_in_nccl(void **state) {
    (void)state;
    struct world w = world_of(1, 0.4);
    ranks_must_pass(1, WITHIN_S, body_slow_calls, &w);
}

/* ---- opening ---- */

static void open_fails(unsigned rank, const struct world *w, int code, const char *text) {
    struct gpu g = {0};
    struct err err = {0};
    open_device(&g, w, rank);
    int rc = collective_nccl.open(w->id, rank, w->ranks, g.dev, w->timeout_s, &g.c, &err);
    RANK_CHECK_TEXT(err.text, text);
    RANK_CHECK(rc == -code && err.code == code && g.c == NULL);
    RANK_CHECK(double_nccl_open_count() == 0);
    close_device(&g);
    RANK_CHECK(emu_leaks(true) == 0);
}

static void body_share(unsigned rank, void *arg) {
    open_fails(rank, arg, ENOTSUP, "use comm = node or comm = mpi");
}

static void two_ranks_on_one_gpu_are_refused_with_what_to_do(void **state) {
    (void)state;
    struct world w = world_of(2, 10);
    w.one_device = true;
    ranks_must_pass(2, WITHIN_S, body_share, &w);
}

static void body_alone(unsigned rank, void *arg) {
    double start = rank_now();
    open_fails(rank, arg, ETIMEDOUT, "ncclCommInitRankConfig: the peers did not come within 0.3 s");
    RANK_CHECK(rank_now() - start >= 0.3 && rank_now() - start < 3);
}

static void peers_that_do_not_come_are_not_waited_for(void **state) {
    (void)state;
    struct world w = world_of(2, 0.3);
    ranks_must_pass(1, WITHIN_S, body_alone, &w);
}

static void body_impossible(unsigned rank, void *arg) {
    struct world w = *(const struct world *)arg;
    open_fails(3, &w, EINVAL, "rank 3 of 2");
    w.timeout_s = 0;
    open_fails(rank, &w, EINVAL, "a timeout of 0 s");
    w.timeout_s = 5;
    emu_fail_at(0, NULL);
    struct gpu g;
    struct err err = {0};
    open_device(&g, &w, rank);
    emu_fail_at(1, "ncclSystemError");
    RANK_CHECK(collective_nccl.unique_id(w.id, &err) == -EIO);
    RANK_CHECK_TEXT(err.text, "ncclGetUniqueId: unhandled system error");
    RANK_CHECK_TEXT(err.text, "(injected into ncclGetUniqueId)");
}

static void what_can_not_be_is_refused(void **state) {
    (void)state;
    struct world w = world_of(2, 1);
    ranks_must_pass(1, WITHIN_S, body_impossible, &w);
}

/* ---- failures while it runs ---- */

enum lost { LOST_KILLED, LOST_HANGS, LOST_ERROR, LOST_DEVICE };

/* Two gathers; rank 1 is lost in the second. */
static void body_lost(unsigned rank, void *arg) {
    const struct world *w = arg;
    struct gpu g;
    struct err err = {0};
    float all[2] = {0, 0};
    open_world(&g, w, rank);
    cudaStream_t s = g.gather->call.stream;
    float *p = rank_put(s, all, sizeof all);
    if (w->variant == LOST_HANGS)
        double_nccl_hang(1, 2);
    if (w->variant == LOST_ERROR)
        double_nccl_async_error(1, 2);
    RANK_CHECK(collective_nccl.all_gather(g.c, g.gather, p + rank, p, DTYPE_F32, 1) == 0);
    RANK_CHECK(cudaStreamSynchronize(s) == cudaSuccess);
    RANK_CHECK(collective_nccl.check(g.c, &err) == 0);
    if (rank == 1 && w->variant == LOST_KILLED)
        (void)raise(SIGKILL);
    if (rank == 1 && w->variant == LOST_DEVICE)
        emu_fail_at(1, "cudaErrorIllegalAddress");
    double start = rank_now();
    int rc = collective_nccl.all_gather(g.c, g.gather, p + rank, p, DTYPE_F32, 1);
    cudaError_t e = cudaStreamSynchronize(s);
    double took = rank_now() - start;
    RANK_CHECK(took < w->timeout_s + 5);
    int checked = collective_nccl.check(g.c, &err);
    if (rank == 1 && w->variant == LOST_DEVICE) {
        RANK_CHECK(rc != 0 && e == cudaErrorIllegalAddress);
        RANK_CHECK_TEXT(err.text, "cudaErrorIllegalAddress");
    } else if (rank == 1 && w->variant == LOST_ERROR) {
        RANK_CHECK(rc == 0);
        RANK_CHECK_TEXT(err.text, "ncclAllGather: remote process exited");
        RANK_CHECK_TEXT(err.text, "NET/Socket : peer has closed its connection");
    } else {
        RANK_CHECK(rc == 0 && took >= w->timeout_s / 2);
        RANK_CHECK_TEXT(err.text, "ncclAllGather: no progress for 1 s in collective 2 of rank ");
        RANK_CHECK_TEXT(err.text, "(1 f32 elements): a peer is gone or does not answer");
    }
    RANK_CHECK(checked == -ECOMM && err.code == ECOMM);
    /* it stays, nothing more is queued, and closing waits for nobody */
    struct err again = {0};
    RANK_CHECK(collective_nccl.reduce_scatter(g.c, g.reduce, p, p + rank, DTYPE_F32, 1) == -ECOMM);
    RANK_CHECK(collective_nccl.check(g.c, &again) == -ECOMM && strcmp(again.text, err.text) == 0);
    start = rank_now();
    close_world(&g);
    RANK_CHECK(rank_now() - start < 0.9);
}

static void a_lost_peer_is_an_error_that_names_the_call(void **state) {
    (void)state;
    for (int lost = LOST_KILLED; lost <= LOST_DEVICE; lost++)
        for (int order = EMU_LAZY; order <= (lost == LOST_HANGS ? EMU_RANDOM : EMU_LAZY); order++) {
            struct world w = world_of(2, 1);
            struct rank_end ends[2];
            w.variant = lost;
            w.order = (enum emu_order)order;
            if (lost != LOST_KILLED) {
                ranks_must_pass(2, WITHIN_S, body_lost, &w);
                continue;
            }
            ranks_run(2, WITHIN_S, body_lost, &w, ends);
            assert_string_equal(ends[0].text, "");
            assert_int_equal(ends[0].status, 0);
            assert_int_equal(ends[1].status, SIGKILL);
        }
}

/* The one that hangs is found when the ring has gone round and then grown, too. */
static void body_hang_among_many(unsigned rank, void *arg) {
    const struct world *w = arg;
    struct gpu g;
    struct err err = {0};
    open_world(&g, w, rank);
    float *p = rank_alloc(8);
    double_nccl_hang(1, 6);
    for (int i = 1; i <= 25; i++) {
        RANK_CHECK(collective_nccl.all_gather(g.c, g.gather, p + rank, p, DTYPE_F32, 1) == 0);
        if (i != 5)
            continue;
        RANK_CHECK(cudaStreamSynchronize(g.gather->call.stream) == cudaSuccess);
        (void)usleep(400000); /* for the watchdog to have seen these */
    }
    RANK_CHECK(cudaStreamSynchronize(g.gather->call.stream) == cudaSuccess);
    RANK_CHECK(collective_nccl.check(g.c, &err) == -ECOMM);
    RANK_CHECK_TEXT(err.text, "in collective 6 of rank ");
    close_world(&g);
}

static void the_first_that_hangs_is_found_among_many(void **state) {
    (void)state;
    struct world w = world_of(2, 1);
    ranks_must_pass(2, WITHIN_S, body_hang_among_many, &w);
}

/* Rank 0 has all queued at once, and each waits for rank 1 a while: never as long as the timeout,
 * all together far longer. */
static void body_slow_peer(unsigned rank, void *arg) {
    const struct world *w = arg;
    struct gpu g;
    struct err err = {0};
    open_world(&g, w, rank);
    float *p = rank_alloc(8);
    for (int i = 0; i < 20; i++) {
        if (rank == 1)
            (void)usleep(100000);
        RANK_CHECK(collective_nccl.all_gather(g.c, g.gather, p + rank, p, DTYPE_F32, 1) == 0);
        if (rank == 1)
            RANK_CHECK(cudaStreamSynchronize(g.gather->call.stream) == cudaSuccess);
    }
    RANK_CHECK(cudaStreamSynchronize(g.gather->call.stream) == cudaSuccess);
    int rc = collective_nccl.check(g.c, &err);
    rank_check(rc == 0, err.text, __FILE__, __LINE__);
    close_world(&g);
}

static void each_collective_has_the_time_for_itself(void **state) {
    (void)state;
    struct world w = world_of(2, 0.8);
    ranks_must_pass(2, WITHIN_S, body_slow_peer, &w);
}

static bool gate_is_open(void *arg) { return *(const volatile bool *)arg; }

/* What holds its stream up before a collective begins is not the collective's slowness. */
static void body_slow_compute(unsigned rank, void *arg) {
    static volatile bool open;
    const struct world *w = arg;
    struct gpu g;
    struct err err = {0};
    open_world(&g, w, rank);
    float *p = rank_alloc(4);
    struct emu_op gate = {.name = "a gate", .poll = gate_is_open, .arg = (void *)&open};
    emu_queue(g.gather->call.stream, &gate);
    RANK_CHECK(collective_nccl.all_gather(g.c, g.gather, p, p, DTYPE_F32, 1) == 0);
    (void)usleep(800000);
    RANK_CHECK(collective_nccl.check(g.c, &err) == 0);
    open = true;
    RANK_CHECK(cudaStreamSynchronize(g.gather->call.stream) == cudaSuccess);
    RANK_CHECK(collective_nccl.check(g.c, &err) == 0);
    close_world(&g);
}

static void a_collective_that_has_not_begun_has_all_the_time(void **state) {
    (void)state;
    struct world w = world_of(1, 0.3);
    ranks_must_pass(1, WITHIN_S, body_slow_compute, &w);
}

/* Unfinished work, no failure yet: a short time is given, and no more. */
static void body_close_early(unsigned rank, void *arg) {
    const struct world *w = arg;
    struct gpu g;
    open_world(&g, w, rank);
    float *p = rank_alloc(8);
    if (rank == 0) {
        RANK_CHECK(collective_nccl.all_gather(g.c, g.gather, p, p, DTYPE_F32, 1) == 0);
        double start = rank_now();
        close_world(&g);
        RANK_CHECK(rank_now() - start < 3);
        RANK_CHECK(cudaStreamSynchronize(g.gather->call.stream) == cudaSuccess);
    } else {
        (void)usleep(300000);
        close_world(&g); /* has nothing queued */
    }
}

static void closing_does_not_wait_for_a_peer(void **state) {
    (void)state;
    struct world w = world_of(2, 30);
    ranks_must_pass(2, WITHIN_S, body_close_early, &w);
}

/* ---- every call that can fail, failing ---- */

/* A rank's whole life. Whether anything was reported, and its text; seen: the call that was made to
 * fail, "" if there are not as many. */
static bool live(const struct world *w, unsigned rank, struct err *err, char seen[64]) {
    struct gpu g = {0};
    bool failed = false;
    float *p = NULL, *q = NULL;
    open_device(&g, w, rank);
    p = rank_alloc(64);
    q = rank_alloc(64);
    uint64_t nth = w->variant > 0 && rank == w->ranks - 1 ? (uint64_t)w->variant : 0;
    emu_fail_at(nth, NULL);
    uint8_t id[COLLECTIVE_ID_BYTES];
    memcpy(id, w->id, sizeof id);
    if (w->ranks == 1)
        failed = collective_nccl.unique_id(id, err) != 0;
    if (!failed)
        failed = collective_nccl.open(id, rank, w->ranks, g.dev, w->timeout_s, &g.c, err) != 0;
    if (!failed) {
        struct err later = {0};
        int rc = collective_nccl.all_gather(g.c, g.gather, p, q, DTYPE_F32, 4);
        if (rc == 0)
            rc = collective_nccl.reduce_scatter(g.c, g.reduce, q, p, DTYPE_BF16, 8);
        cudaError_t e = cudaStreamSynchronize(g.gather->call.stream);
        if (e == cudaSuccess)
            e = cudaStreamSynchronize(g.reduce->call.stream);
        int checked = collective_nccl.check(g.c, &later);
        RANK_CHECK(rc == 0 || (checked == -ECOMM && *later.text != '\0'));
        failed = rc != 0 || e != cudaSuccess || checked != 0;
        *err = later;
        close_world(&g);
    }
    RANK_CHECK(double_nccl_open_count() == 0);
    (void)snprintf(seen, 64, "%s", emu_failed_call());
    emu_fail_at(0, NULL);
    RANK_CHECK(cudaFree(p) == cudaSuccess && cudaFree(q) == cudaSuccess);
    close_device(&g);
    RANK_CHECK(emu_leaks(true) == 0);
    return failed;
}

/* What a release returns, and what the watchdog looks at again, is not reported by anyone. */
static bool may_go_unseen(const char *call) {
    return strcmp(call, "") == 0 || strcmp(call, "ncclCommFinalize") == 0 ||
           strcmp(call, "ncclCommDestroy") == 0 || strcmp(call, "ncclCommAbort") == 0 ||
           strcmp(call, "cudaEventDestroy") == 0 || strcmp(call, "cudaEventQuery") == 0;
}

static void body_each_failure(unsigned rank, void *arg) {
    struct world *w = arg;
    char seen[64] = "";
    struct err err = {0};
    RANK_CHECK(!live(w, rank, &err, seen));
    uint64_t calls = 0;
    for (int nth = 1; nth < 1000; nth++) {
        err = (struct err){0};
        w->variant = nth;
        bool failed = live(w, rank, &err, seen);
        if (*seen == '\0')
            break;
        calls = (uint64_t)nth;
        if (!failed && !may_go_unseen(seen)) {
            (void)fprintf(stderr, "call %d, %s, failed and nobody said so\n", nth, seen);
            _exit(1);
        }
    }
    RANK_CHECK(calls > 20 && *seen == '\0');
}

static void every_call_may_fail_and_is_reported(void **state) {
    (void)state;
    struct world w = world_of(1, 5);
    ranks_must_pass(1, WITHIN_S, body_each_failure, &w);
}

static void body_one_of_two(unsigned rank, void *arg) {
    struct err err = {0};
    char seen[64];
    (void)live(arg, rank, &err, seen);
}

/* A failure of one rank is not the hang of the other. */
static void a_failure_of_one_rank_ends_the_other(void **state) {
    (void)state;
    for (int nth = 1; nth <= 46; nth += 3) {
        struct world w = world_of(2, 0.3);
        w.variant = nth;
        ranks_must_pass(2, WITHIN_S, body_one_of_two, &w);
    }
}

/* An argument is a pattern of names: those tests alone. */
int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_gathered_and_sums_scattered_in_both_dtypes),
        cmocka_unit_test(buffers_may_be_in_place_and_nothing_may_be_moved),
        cmocka_unit_test(any_number_may_be_in_flight),
        cmocka_unit_test(one_thread_at_a_time_is_in_nccl),
        cmocka_unit_test(two_ranks_on_one_gpu_are_refused_with_what_to_do),
        cmocka_unit_test(peers_that_do_not_come_are_not_waited_for),
        cmocka_unit_test(what_can_not_be_is_refused),
        cmocka_unit_test(a_lost_peer_is_an_error_that_names_the_call),
        cmocka_unit_test(the_first_that_hangs_is_found_among_many),
        cmocka_unit_test(each_collective_has_the_time_for_itself),
        cmocka_unit_test(a_collective_that_has_not_begun_has_all_the_time),
        cmocka_unit_test(closing_does_not_wait_for_a_peer),
        cmocka_unit_test(every_call_may_fail_and_is_reported),
        cmocka_unit_test(a_failure_of_one_rank_ends_the_other),
    };
    cmocka_set_test_filter(argc > 1 ? argv[1] : NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
