/* comm_mpi.c - collectives by MPI messages, between ranks that share nothing. */
#include "config.h"

#include <mpi.h>

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/segment.h"
#include "comm/comm.h"
#include "comm/fold.h"
#include "comm/mpi_error.h"
#include "comm/world.h"

/* The largest count of one MPI call; the tests build this file with a smaller one. */
#ifndef COMM_MPI_MAX_ELEMS
#define COMM_MPI_MAX_ELEMS INT_MAX
#endif

enum {
    STAGE_ELEMS =
        1 << 18,      /* of a gradient received at once: 1 MiB, added while still in the cache */
    SMALL_COUNT = 64, /* values a rank in one small all-reduce */
    TAG_REDUCE = 1,
};

struct comm {
    uint32_t rank, world_size;
    uint32_t unit_count;
    enum dtype param_dtype, reduce_dtype;
    uint64_t *shard_elems; /* by unit */
    float *stage;          /* STAGE_ELEMS of reduce_dtype */
    uint64_t *small;       /* world_size * SMALL_COUNT: doubles or u64 of all ranks */
};

/* What is only moved: MPI knows no bf16, and needs not. */
static MPI_Datatype mpi_type(enum dtype t) { return t == DTYPE_BF16 ? MPI_UINT16_T : MPI_FLOAT; }

static size_t min_size(size_t a, size_t b) { return a < b ? a : b; }

static void mpi_close(struct comm *c) {
    if (c == NULL)
        return;
    segment_private_free(c->stage, STAGE_ELEMS * sizeof *c->stage);
    free(c->small);
    free(c->shard_elems);
    free(c);
}

static int mpi_open(const struct comm_args *args, struct comm **out, struct err *err) {
    uint32_t unit_count = args->unit_count;
    int rc = world_start(err);
    if (rc != 0)
        return rc;
    struct comm *c = calloc(1, sizeof *c);
    if (c != NULL) {
        c->rank = args->rank;
        c->world_size = args->world_size;
        c->unit_count = unit_count;
        c->param_dtype = args->param_dtype;
        c->reduce_dtype = args->reduce_dtype;
        c->shard_elems = calloc((size_t)unit_count + 1, sizeof *c->shard_elems);
        c->stage = segment_private_alloc(STAGE_ELEMS * sizeof *c->stage);
        c->small = calloc((size_t)args->world_size * SMALL_COUNT, sizeof *c->small);
    }
    int ok = c != NULL && c->shard_elems != NULL && c->stage != NULL && c->small != NULL;
    rc = mpi_check_err(MPI_Allreduce(MPI_IN_PLACE, &ok, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD),
                       "MPI_Allreduce", err);
    if (rc == 0 && !ok)
        rc = err_set(err, ENOMEM, "no memory for the communicator");
    if (rc != 0 || c == NULL || c->shard_elems == NULL) {
        mpi_close(c);
        return rc;
    }
    for (uint32_t u = 0; u < unit_count; u++)
        c->shard_elems[u] = args->shard_elems[u];
    *out = c;
    return 0;
}

static void *mpi_shard(struct comm *c, uint32_t unit) {
    (void)c;
    (void)unit;
    return NULL;
}

static void *mpi_grad_buffer(struct comm *c, uint32_t slot) {
    (void)c;
    (void)slot;
    return NULL;
}

static int all_gather(const void *shard, int count, enum dtype t, void *buffer, int recv_count,
                      MPI_Datatype recv_type) {
    MPI_Request request = MPI_REQUEST_NULL;
    int rc = mpi_check(MPI_Iallgather(shard, count, mpi_type(t), buffer, recv_count, recv_type,
                                      MPI_COMM_WORLD, &request),
                       "MPI_Iallgather");
    return rc != 0 ? rc : mpi_wait_busy(&request, "MPI_Iallgather");
}

/* Elements [at, at + n) of every shard: received as one element of a type that is n numbers long
 * and as far from the next as a shard, so that no displacement is an int. */
static int all_gather_part(const uint8_t *shard, uint8_t *buffer, enum dtype t, size_t shard_elems,
                           size_t at, size_t n) {
    MPI_Datatype part = MPI_DATATYPE_NULL, spaced = MPI_DATATYPE_NULL;
    size_t elem_bytes = dtype_bytes(t);
    int rc = mpi_check(MPI_Type_contiguous((int)n, mpi_type(t), &part), "MPI_Type_contiguous");
    if (rc != 0)
        return rc;
    rc = mpi_check(MPI_Type_create_resized(part, 0, (MPI_Aint)(shard_elems * elem_bytes), &spaced),
                   "MPI_Type_create_resized");
    if (rc != 0)
        goto free_part;
    rc = mpi_check(MPI_Type_commit(&spaced), "MPI_Type_commit");
    if (rc == 0)
        rc = all_gather(shard + at * elem_bytes, (int)n, t, buffer + at * elem_bytes, 1, spaced);
    (void)MPI_Type_free(&spaced);
free_part:
    (void)MPI_Type_free(&part);
    return rc;
}

static int mpi_all_gather(struct comm *c, struct dev_stream *s, uint32_t unit, const void *shard,
                          void *buffer, const void **view) {
    (void)s;
    if (unit >= c->unit_count)
        return -EINVAL;
    size_t elems = c->shard_elems[unit];
    enum dtype t = c->param_dtype;
    int rc = 0;
    if (elems > 0 && elems <= COMM_MPI_MAX_ELEMS) {
        rc = all_gather(shard, (int)elems, t, buffer, (int)elems, mpi_type(t));
    } else {
        for (size_t at = 0; at < elems && rc == 0; at += COMM_MPI_MAX_ELEMS)
            rc = all_gather_part(shard, buffer, t, elems, at,
                                 min_size(elems - at, COMM_MPI_MAX_ELEMS));
    }
    if (rc == 0)
        *view = buffer;
    return rc;
}

/* Sends n elements to one rank and receives as many from another. */
static int exchange(const void *send, uint32_t to, void *recv, uint32_t from, enum dtype t,
                    size_t n) {
    MPI_Request in = MPI_REQUEST_NULL, out = MPI_REQUEST_NULL;
    int rc =
        mpi_check(MPI_Irecv(recv, (int)n, mpi_type(t), (int)from, TAG_REDUCE, MPI_COMM_WORLD, &in),
                  "MPI_Irecv");
    if (rc == 0)
        rc = mpi_check(
            MPI_Isend(send, (int)n, mpi_type(t), (int)to, TAG_REDUCE, MPI_COMM_WORLD, &out),
            "MPI_Isend");
    if (rc == 0)
        rc = mpi_wait_busy(&in, "MPI_Irecv");
    return rc != 0 ? rc : mpi_wait_busy(&out, "MPI_Isend");
}

/* Adds what the rank `distance` before this one has for this shard, and sends the rank as far
 * behind its part. Pairs of messages rather than MPI_Reduce_scatter_block: the order of the sum is
 * ours and always the same, there is no hidden temporary as large as the unit, and on one host it
 * takes a third of the time. */
static int reduce_exchange(struct comm *c, uint32_t distance, size_t elems, const uint8_t *full,
                           float *shard) {
    enum dtype t = c->reduce_dtype;
    uint32_t to = (c->rank + distance) % c->world_size;
    uint32_t from = (c->rank + c->world_size - distance) % c->world_size;
    size_t step = min_size(STAGE_ELEMS, COMM_MPI_MAX_ELEMS);
    for (size_t at = 0; at < elems; at += step) {
        size_t n = min_size(elems - at, step);
        int rc = exchange(full + (to * elems + at) * dtype_bytes(t), to, c->stage, from, t, n);
        if (rc != 0)
            return rc;
        fold_sum(shard + at, (const void *const[]){c->stage}, t, 1, n, true);
    }
    return 0;
}

static int mpi_reduce_scatter(struct comm *c, struct dev_stream *s, uint32_t unit, void *full,
                              float *shard, bool accumulate) {
    (void)s;
    if (unit >= c->unit_count)
        return -EINVAL;
    size_t elems = c->shard_elems[unit];
    const uint8_t *own = (const uint8_t *)full + c->rank * elems * dtype_bytes(c->reduce_dtype);
    fold_sum(shard, (const void *const[]){own}, c->reduce_dtype, 1, elems, accumulate);
    for (uint32_t distance = 1; distance < c->world_size; distance++) {
        int rc = reduce_exchange(c, distance, elems, full, shard);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* Everybody gets everybody's values and folds them itself: the sum has the same bits on all ranks,
 * whatever algorithm MPI would choose. */
static int gather_small(struct comm *c, const void *values, size_t count) {
    MPI_Request request = MPI_REQUEST_NULL;
    int rc = mpi_check(MPI_Iallgather(values, (int)count, MPI_UINT64_T, c->small, (int)count,
                                      MPI_UINT64_T, MPI_COMM_WORLD, &request),
                       "MPI_Iallgather");
    return rc != 0 ? rc : mpi_wait_idle(&request, "MPI_Iallgather");
}

static int mpi_all_reduce_f64(struct comm *c, double *inout, size_t count, enum comm_op op) {
    for (size_t at = 0; at < count; at += SMALL_COUNT) {
        size_t n = min_size(count - at, SMALL_COUNT);
        int rc = gather_small(c, inout + at, n);
        if (rc != 0)
            return rc;
        fold_f64(inout + at, c->small, n * sizeof *inout, c->world_size, n, op);
    }
    return 0;
}

static int mpi_all_reduce_u64(struct comm *c, uint64_t *inout, size_t count, enum comm_op op) {
    for (size_t at = 0; at < count; at += SMALL_COUNT) {
        size_t n = min_size(count - at, SMALL_COUNT);
        int rc = gather_small(c, inout + at, n);
        if (rc != 0)
            return rc;
        fold_u64(inout + at, c->small, n * sizeof *inout, c->world_size, n, op);
    }
    return 0;
}

static int mpi_broadcast(struct comm *c, void *data, size_t bytes, uint32_t root) {
    if (root >= c->world_size)
        return -EINVAL;
    for (size_t at = 0; at < bytes; at += COMM_MPI_MAX_ELEMS) {
        MPI_Request request = MPI_REQUEST_NULL;
        int rc = mpi_check(MPI_Ibcast((uint8_t *)data + at,
                                      (int)min_size(bytes - at, COMM_MPI_MAX_ELEMS), MPI_BYTE,
                                      (int)root, MPI_COMM_WORLD, &request),
                           "MPI_Ibcast");
        if (rc == 0)
            rc = mpi_wait_idle(&request, "MPI_Ibcast");
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int mpi_barrier(struct comm *c) {
    (void)c;
    MPI_Request request = MPI_REQUEST_NULL;
    int rc = mpi_check(MPI_Ibarrier(MPI_COMM_WORLD, &request), "MPI_Ibarrier");
    return rc != 0 ? rc : mpi_wait_idle(&request, "MPI_Ibarrier");
}

const struct comm_ops comm_mpi = {
    .name = "mpi",
    .open = mpi_open,
    .close = mpi_close,
    .shard = mpi_shard,
    .all_gather = mpi_all_gather,
    .gather_is_view = false,
    .grad_buffer = mpi_grad_buffer,
    .reduce_scatter = mpi_reduce_scatter,
    .all_reduce_f64 = mpi_all_reduce_f64,
    .all_reduce_u64 = mpi_all_reduce_u64,
    .broadcast = mpi_broadcast,
    .barrier = mpi_barrier,
};
