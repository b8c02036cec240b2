/* comm_cases.c - the collectives of one communicator held against simple expectations.
 *
 *   LAUNCHER -n N comm_cases N COMM      prints "ok - NAME" or "not ok - NAME" by rank 0
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "comm/comm.h"

/* Odd, none at all, more than a block of a sum, more than a message of a gradient. */
static const uint64_t shard_elems[] = {33, 0, 1, 5000, 300001};
enum { UNIT_COUNT = sizeof shard_elems / sizeof *shard_elems, LARGEST_UNIT = UNIT_COUNT - 1 };

struct fixture {
    uint32_t rank, world_size;
    const struct comm_ops *ops;
    const struct device_ops *device;
    struct device *dev;
    struct dev_stream *stream;
    struct comm *comm;
    float *shards[UNIT_COUNT];
    float *gathered; /* as large as the largest unit */
    float *full[COMM_GRAD_SLOTS];
    float *reduced; /* a shard of gradients */
};

static float *floats_new(size_t elems) {
    float *p = calloc(elems + 1, sizeof *p);
    if (p == NULL)
        abort();
    return p;
}

static uint32_t slot_of_unit(uint32_t unit, uint32_t turn) { return unit == 0 ? 0 : 1 + turn % 2; }

static void fixture_open(struct fixture *f, const char *name, struct err *err) {
    size_t largest = shard_elems[LARGEST_UNIT];
    struct device_args device_args = {.threads = 1};
    struct comm_args args = {.rank = f->rank,
                             .world_size = f->world_size,
                             .shard_elems = shard_elems,
                             .unit_count = UNIT_COUNT};
    if (device_find("cpu", &f->device, NULL, 0, err) != 0 ||
        f->device->open(&device_args, &f->dev, err) != 0 ||
        f->device->stream_open(f->dev, DEV_STREAM_COMPUTE, &f->stream) != 0)
        return;
    args.ops = f->device;
    args.dev = f->dev;
    if (comm_find(name, &args, &f->ops, err) != 0 || f->ops->open(&args, &f->comm, err) != 0)
        return;
    f->gathered = floats_new(largest * f->world_size);
    f->reduced = floats_new(largest);
    for (uint32_t u = 0; u < UNIT_COUNT; u++) {
        f->shards[u] = f->ops->shard(f->comm, u);
        if (f->shards[u] == NULL)
            f->shards[u] = floats_new(shard_elems[u]);
    }
    for (uint32_t s = 0; s < COMM_GRAD_SLOTS; s++) {
        f->full[s] = f->ops->grad_buffer(f->comm, s);
        if (f->full[s] == NULL)
            f->full[s] = floats_new((s == 0 ? shard_elems[0] : largest) * f->world_size);
    }
}

static void fixture_close(struct fixture *f) {
    for (uint32_t u = 0; u < UNIT_COUNT; u++)
        if (f->ops->shard(f->comm, u) == NULL)
            free(f->shards[u]);
    for (uint32_t s = 0; s < COMM_GRAD_SLOTS; s++)
        if (f->ops->grad_buffer(f->comm, s) == NULL)
            free(f->full[s]);
    free(f->gathered);
    free(f->reduced);
    f->ops->close(f->comm);
    f->device->stream_close(f->dev, f->stream);
    f->device->close(f->dev);
}

/* Small whole numbers: every sum of them is exact. */
static float value(uint32_t rank, uint32_t unit, uint64_t i, uint32_t turn) {
    return (float)((rank * 7 + unit * 31 + i % 1009 + turn * 3) % 8191);
}

/* What all ranks should find after a reduce_scatter of value(rank, ...). */
static float value_sum(const struct fixture *f, uint32_t unit, uint64_t i, uint32_t turn) {
    float sum = 0;
    for (uint32_t r = 0; r < f->world_size; r++)
        sum += value(r, unit, i, turn);
    return sum;
}

/* ---- cases: true if as expected on this rank */

static bool barrier_passes(struct fixture *f) {
    bool ok = true;
    for (int i = 0; i < 1000; i++)
        ok = ok && f->ops->barrier(f->comm) == 0;
    return ok;
}

static bool gather_shows_all_shards(struct fixture *f) {
    bool ok = true;
    for (uint32_t turn = 0; turn < 5; turn++) {
        for (uint32_t u = 0; u < UNIT_COUNT; u++)
            for (uint64_t i = 0; i < shard_elems[u]; i++)
                f->shards[u][i] = value(f->rank, u, i, turn);
        ok = f->ops->barrier(f->comm) == 0 && ok;
        for (uint32_t u = 0; u < UNIT_COUNT; u++) {
            const void *view = NULL;
            ok = f->ops->all_gather(f->comm, f->stream, u, f->shards[u],
                                    f->ops->gather_is_view ? NULL : f->gathered, &view) == 0 &&
                 ok;
            for (uint32_t r = 0; r < f->world_size && ok; r++)
                for (uint64_t i = 0; i < shard_elems[u]; i++)
                    ok =
                        ok && ((const float *)view)[r * shard_elems[u] + i] == value(r, u, i, turn);
        }
        ok = f->ops->barrier(f->comm) == 0 && ok;
    }
    return ok;
}

static void full_fill(struct fixture *f, uint32_t unit, uint32_t turn) {
    float *full = f->full[slot_of_unit(unit, turn)];
    for (uint64_t i = 0; i < shard_elems[unit] * f->world_size; i++)
        full[i] = value(f->rank, unit, i, turn);
}

static bool reduce_scatter_sums_over_ranks(struct fixture *f) {
    bool ok = true;
    for (uint32_t u = 0; u < UNIT_COUNT; u++) {
        uint64_t n = shard_elems[u];
        for (uint64_t i = 0; i < n; i++)
            f->reduced[i] = NAN; /* overwritten, not added to */
        full_fill(f, u, 0);
        ok = f->ops->reduce_scatter(f->comm, f->stream, u, f->full[slot_of_unit(u, 0)], f->reduced,
                                    false) == 0 &&
             ok;
        for (uint64_t i = 0; i < n && ok; i++)
            ok = f->reduced[i] == value_sum(f, u, f->rank * n + i, 0);
    }
    return ok;
}

static bool reduce_scatter_accumulates(struct fixture *f) {
    enum { TURNS = 4 };
    uint32_t u = LARGEST_UNIT;
    uint64_t n = shard_elems[u];
    bool ok = true;
    /* The buffer is written again at once: a peer that still read it would see the next turn. */
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        full_fill(f, u, turn);
        ok = f->ops->reduce_scatter(f->comm, f->stream, u, f->full[slot_of_unit(u, turn)],
                                    f->reduced, turn > 0) == 0 &&
             ok;
    }
    for (uint64_t i = 0; i < n && ok; i++) {
        float sum = 0;
        for (uint32_t turn = 0; turn < TURNS; turn++)
            sum += value_sum(f, u, f->rank * n + i, turn);
        ok = f->reduced[i] == sum;
    }
    return ok;
}

static bool one_slot_may_be_reused_at_once(struct fixture *f) {
    bool ok = true;
    for (uint32_t turn = 0; turn < 200 && ok; turn++) {
        full_fill(f, 0, turn);
        ok = f->ops->reduce_scatter(f->comm, f->stream, 0, f->full[0], f->reduced, false) == 0;
        for (uint64_t i = 0; i < shard_elems[0] && ok; i++)
            ok = f->reduced[i] == value_sum(f, 0, f->rank * shard_elems[0] + i, turn);
    }
    return ok;
}

static bool reduce_scatter_passes_nonfinite_on(struct fixture *f) {
    uint64_t n = shard_elems[0];
    full_fill(f, 0, 0);
    if (f->rank == f->world_size - 1)
        f->full[0][0] = INFINITY; /* in the part of rank 0 */
    if (f->ops->reduce_scatter(f->comm, f->stream, 0, f->full[0], f->reduced, false) != 0 || n == 0)
        return false;
    return f->rank == 0 ? isinf(f->reduced[0]) : isfinite(f->reduced[0]);
}

static bool all_reduce_f64_folds(struct fixture *f) {
    enum { COUNT = 1300 }; /* more than goes at once */
    double v[COUNT], n = f->world_size;
    bool ok = true;
    for (enum comm_op op = COMM_SUM; op <= COMM_MAX; op++) {
        for (int i = 0; i < COUNT; i++)
            v[i] = i + 0.5 * f->rank;
        ok = f->ops->all_reduce_f64(f->comm, v, COUNT, op) == 0 && ok;
        for (int i = 0; i < COUNT; i++) {
            double sum = n * i + 0.5 * n * (n - 1) / 2;
            double want = op == COMM_SUM ? sum : op == COMM_MIN ? i : i + 0.5 * (n - 1);
            ok = ok && v[i] == want;
        }
    }
    return ok;
}

static bool all_reduce_u64_folds(struct fixture *f) {
    enum { COUNT = 3 };
    bool ok = true;
    uint64_t n = f->world_size, big = (uint64_t)1 << 60;
    for (enum comm_op op = COMM_SUM; op <= COMM_MAX; op++) {
        uint64_t v[COUNT];
        for (uint64_t i = 0; i < COUNT; i++)
            v[i] = big + i + f->rank;
        ok = f->ops->all_reduce_u64(f->comm, v, COUNT, op) == 0 && ok;
        for (uint64_t i = 0; i < COUNT; i++) {
            uint64_t sum = n * (big + i) + n * (n - 1) / 2;
            uint64_t want = op == COMM_SUM ? sum : op == COMM_MIN ? big + i : big + i + n - 1;
            ok = ok && v[i] == want;
        }
    }
    return ok;
}

/* The sum of these depends on the order; the bits must not depend on the rank. */
static bool all_reduce_gives_all_ranks_the_same_bits(struct fixture *f) {
    double v = f->rank == 0 ? 1e16 : f->rank % 2 != 0 ? 1.0 + f->rank : -1e16 / 3;
    if (f->ops->all_reduce_f64(f->comm, &v, 1, COMM_SUM) != 0)
        return false;
    uint64_t bits, lowest, highest;
    memcpy(&bits, &v, sizeof bits);
    lowest = highest = bits;
    return f->ops->all_reduce_u64(f->comm, &lowest, 1, COMM_MIN) == 0 &&
           f->ops->all_reduce_u64(f->comm, &highest, 1, COMM_MAX) == 0 && lowest == highest;
}

static bool broadcast_reaches_all(struct fixture *f) {
    enum { BYTES = 10007 };
    static uint8_t data[BYTES];
    bool ok = true;
    for (uint32_t root = 0; root < f->world_size; root++) {
        for (int i = 0; i < BYTES; i++)
            data[i] = f->rank == root ? (uint8_t)(i * 7 + (int)root) : 0;
        ok = f->ops->broadcast(f->comm, data, BYTES, root) == 0 && ok;
        for (int i = 0; i < BYTES; i++)
            ok = ok && data[i] == (uint8_t)(i * 7 + (int)root);
    }
    return f->ops->broadcast(f->comm, data, 0, 0) == 0 && ok;
}

static double thread_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static bool waiting_for_a_late_rank_burns_no_core(struct fixture *f) {
    double before = thread_seconds(), v = 1;
    if (f->rank == 0)
        usleep(400 * 1000);
    bool ok = f->ops->barrier(f->comm) == 0;
    if (f->rank == 0)
        usleep(400 * 1000);
    ok = f->ops->all_reduce_f64(f->comm, &v, 1, COMM_SUM) == 0 && ok;
    return ok && thread_seconds() - before < 0.16;
}

static bool wrong_arguments_are_refused(struct fixture *f) {
    const void *view = NULL;
    uint8_t byte = 0;
    if (f->world_size == 1)
        return f->ops->broadcast(f->comm, &byte, 1, 1) == -EINVAL;
    return f->ops->broadcast(f->comm, &byte, 1, f->world_size) == -EINVAL &&
           f->ops->all_gather(f->comm, f->stream, UNIT_COUNT, f->shards[0], f->gathered, &view) ==
               -EINVAL;
}

#define CASE(f)                                                                                    \
    { #f, f }
static const struct {
    const char *name;
    bool (*run)(struct fixture *f);
} cases[] = {
    CASE(barrier_passes),
    CASE(gather_shows_all_shards),
    CASE(reduce_scatter_sums_over_ranks),
    CASE(reduce_scatter_accumulates),
    CASE(one_slot_may_be_reused_at_once),
    CASE(reduce_scatter_passes_nonfinite_on),
    CASE(all_reduce_f64_folds),
    CASE(all_reduce_u64_folds),
    CASE(all_reduce_gives_all_ranks_the_same_bits),
    CASE(broadcast_reaches_all),
    CASE(waiting_for_a_late_rank_burns_no_core),
    CASE(wrong_arguments_are_refused),
};

int main(int argc, char **argv) {
    struct fixture f = {0};
    struct err err = {0};
    int failed = 0;
    if (argc != 3)
        return 2;
    log_open("comm_cases", LEVEL_WARN);
    if (comm_world_init((uint32_t)strtoul(argv[1], NULL, 10), &f.rank, &f.world_size, &err) == 0)
        fixture_open(&f, argv[2], &err);
    if (err.code != 0) {
        fprintf(stderr, "comm_cases: rank %u: %s\n", f.rank, err.text);
        comm_world_abort(1);
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t ok = cases[i].run(&f);
        if (!ok)
            fprintf(stderr, "# rank %u: %s\n", f.rank, cases[i].name);
        if (f.ops->all_reduce_u64(f.comm, &ok, 1, COMM_MIN) != 0)
            ok = 0;
        failed += ok ? 0 : 1;
        if (f.rank == 0)
            printf("%sok - %s, %u ranks: %s\n", ok ? "" : "not ", f.ops->name, f.world_size,
                   cases[i].name);
        fflush(stdout);
    }
    fixture_close(&f);
    comm_world_finalize();
    return failed > 0;
}
