/* comm_node.c - collectives of ranks on one host, through memory that they share.
 *
 * One memfd holds, in this order: the barrier; a small box a rank; the parameters, where the shards
 * of a unit lie side by side, so that a gathered unit is nothing but a view; and a rank's gradient
 * buffers, so that the owner of a shard sums the others' parts where they were computed. */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "comm/fold.h"
#include "comm/node_barrier.h"
#include "comm/node_memory.h"
#include "comm/world.h"

enum { BOX_BYTES = 4096, BOX_COUNT = 2, PAGE_BYTES = 4096 };

struct comm {
    uint32_t rank, world_size;
    uint32_t unit_count;
    enum dtype param_dtype, reduce_dtype;
    bool may_spin;
    uint32_t box; /* which of the boxes the next small collective uses */
    struct node_memory memory;
    uint64_t *shard_elems; /* by unit */
    size_t *unit_offset;   /* by unit, bytes */
    size_t box_offset, grad_offset;
    size_t slot_offset[COMM_GRAD_SLOTS]; /* in the gradients of a rank */
    size_t grad_bytes;                   /* of all slots of a rank */
    size_t bytes;                        /* of everything */
    const void **parts;                  /* world_size pointers */
};

static size_t page_up(size_t bytes) { return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES; }

static struct node_barrier *node_barrier_of(struct comm *c) {
    return (struct node_barrier *)(void *)c->memory.base;
}

static uint8_t *box_of(struct comm *c, uint32_t rank) {
    return c->memory.base + c->box_offset + (c->box * c->world_size + rank) * (size_t)BOX_BYTES;
}

static uint8_t *grad_of(const struct comm *c, uint32_t rank, size_t offset) {
    return c->memory.base + c->grad_offset + rank * c->grad_bytes + offset;
}

static size_t shard_bytes(const struct comm *c, uint32_t unit) {
    return c->shard_elems[unit] * dtype_bytes(c->param_dtype);
}

static size_t unit_grad_bytes(const struct comm *c, uint32_t unit) {
    return c->shard_elems[unit] * c->world_size * dtype_bytes(c->reduce_dtype);
}

/* Where everything lies. */
static void node_plan(struct comm *c) {
    size_t slot_bytes[COMM_GRAD_SLOTS] = {0};
    c->box_offset = page_up(sizeof(struct node_barrier));
    c->bytes = c->box_offset + (size_t)BOX_COUNT * c->world_size * BOX_BYTES;
    for (uint32_t u = 0; u < c->unit_count; u++) {
        c->unit_offset[u] = c->bytes;
        c->bytes += page_up(shard_bytes(c, u) * c->world_size);
        if (slot_bytes[u > 0] < unit_grad_bytes(c, u))
            slot_bytes[u > 0] = unit_grad_bytes(c, u);
    }
    if (c->unit_count > 2)
        slot_bytes[2] = slot_bytes[1];
    c->grad_offset = c->bytes;
    for (uint32_t slot = 0; slot < COMM_GRAD_SLOTS; slot++) {
        c->slot_offset[slot] = c->grad_bytes;
        c->grad_bytes += page_up(slot_bytes[slot]);
    }
    c->bytes += c->grad_bytes * c->world_size;
}

/* Every rank gets the pages that it will write: all at once, and each near its owner. */
static int node_claim(struct comm *c, struct err *err) {
    const struct node_memory *m = &c->memory;
    int rc = 0;
    if (c->rank == 0)
        rc = node_memory_claim(m, 0, c->unit_count > 0 ? c->unit_offset[0] : c->bytes, err);
    for (uint32_t u = 0; u < c->unit_count && rc == 0; u++) {
        size_t bytes = shard_bytes(c, u);
        rc = node_memory_claim(m, c->unit_offset[u] + c->rank * bytes, bytes, err);
    }
    if (rc == 0)
        rc = node_memory_claim(m, c->grad_offset + c->rank * c->grad_bytes, c->grad_bytes, err);
    return node_memory_agree(rc, err);
}

static void node_close(struct comm *c) {
    if (c == NULL)
        return;
    node_memory_close(&c->memory);
    free(c->parts);
    free(c->unit_offset);
    free(c->shard_elems);
    free(c);
}

static struct comm *node_new(const struct comm_args *args) {
    struct comm *c = calloc(1, sizeof *c);
    if (c == NULL)
        return NULL;
    c->memory.fd = -1;
    c->rank = args->rank;
    c->world_size = args->world_size;
    c->unit_count = args->unit_count;
    c->param_dtype = args->param_dtype;
    c->reduce_dtype = args->reduce_dtype;
    c->may_spin = node_barrier_may_spin(c->world_size);
    c->shard_elems = calloc((size_t)c->unit_count + 1, sizeof *c->shard_elems);
    c->unit_offset = calloc((size_t)c->unit_count + 1, sizeof *c->unit_offset);
    c->parts = calloc(c->world_size, sizeof *c->parts);
    if (c->shard_elems == NULL || c->unit_offset == NULL || c->parts == NULL) {
        node_close(c);
        return NULL;
    }
    for (uint32_t u = 0; u < c->unit_count; u++)
        c->shard_elems[u] = args->shard_elems[u];
    node_plan(c);
    return c;
}

static int node_open(const struct comm_args *args, struct comm **out, struct err *err) {
    int rc = world_start(err);
    if (rc != 0)
        return rc;
    struct comm *c = node_new(args);
    rc = c == NULL ? err_set(err, ENOMEM, "no memory for the communicator") : 0;
    rc = node_memory_agree(rc, err);
    if (rc == 0 && c != NULL)
        rc = node_memory_open(c->rank, c->bytes, &c->memory, err);
    if (rc == 0 && c != NULL)
        rc = node_claim(c, err);
    if (rc != 0) {
        node_close(c);
        return rc;
    }
    *out = c;
    return 0;
}

static void *node_shard(struct comm *c, uint32_t unit) {
    return c->memory.base + c->unit_offset[unit] + c->rank * shard_bytes(c, unit);
}

static int node_all_gather(struct comm *c, struct dev_stream *s, uint32_t unit, const void *shard,
                           void *buffer, const void **view) {
    (void)s;
    (void)buffer;
    if (unit >= c->unit_count || shard != node_shard(c, unit))
        return -EINVAL;
    *view = c->memory.base + c->unit_offset[unit];
    return 0;
}

static void *node_grad_buffer(struct comm *c, uint32_t slot) {
    return slot < COMM_GRAD_SLOTS ? grad_of(c, c->rank, c->slot_offset[slot]) : NULL;
}

static int node_barrier(struct comm *c) {
    node_barrier_wait(node_barrier_of(c), c->world_size, c->may_spin);
    return 0;
}

static int node_reduce_scatter(struct comm *c, struct dev_stream *s, uint32_t unit, void *full,
                               float *shard, bool accumulate) {
    (void)s;
    uint32_t slot = 0;
    while (slot < COMM_GRAD_SLOTS && full != node_grad_buffer(c, slot))
        slot++;
    if (unit >= c->unit_count || slot == COMM_GRAD_SLOTS)
        return -EINVAL;
    size_t elems = c->shard_elems[unit];
    for (uint32_t r = 0; r < c->world_size; r++)
        c->parts[r] =
            grad_of(c, r, c->slot_offset[slot]) + c->rank * elems * dtype_bytes(c->reduce_dtype);
    node_barrier(c); /* all buffers are written */
    fold_sum(shard, c->parts, c->reduce_dtype, c->world_size, elems, accumulate);
    node_barrier(c); /* and read */
    return 0;
}

/* Shares `bytes` of each rank; after it box_of(c, r) holds those of r. One barrier is enough: a box
 * is written again two collectives later, and in the one between all ranks showed that they had
 * read. */
static void box_share(struct comm *c, const void *mine, size_t bytes) {
    if (mine != NULL)
        memcpy(box_of(c, c->rank), mine, bytes);
    node_barrier(c);
}

static void box_next(struct comm *c) { c->box = (c->box + 1) % BOX_COUNT; }

static int node_all_reduce_f64(struct comm *c, double *inout, size_t count, enum comm_op op) {
    enum { PER_BOX = BOX_BYTES / sizeof(double) };
    for (size_t at = 0; at < count; at += PER_BOX) {
        size_t n = count - at < PER_BOX ? count - at : PER_BOX;
        box_share(c, inout + at, n * sizeof *inout);
        fold_f64(inout + at, box_of(c, 0), BOX_BYTES, c->world_size, n, op);
        box_next(c);
    }
    return 0;
}

static int node_all_reduce_u64(struct comm *c, uint64_t *inout, size_t count, enum comm_op op) {
    enum { PER_BOX = BOX_BYTES / sizeof(uint64_t) };
    for (size_t at = 0; at < count; at += PER_BOX) {
        size_t n = count - at < PER_BOX ? count - at : PER_BOX;
        box_share(c, inout + at, n * sizeof *inout);
        fold_u64(inout + at, box_of(c, 0), BOX_BYTES, c->world_size, n, op);
        box_next(c);
    }
    return 0;
}

static int node_broadcast(struct comm *c, void *data, size_t bytes, uint32_t root) {
    if (root >= c->world_size)
        return -EINVAL;
    for (size_t at = 0; at < bytes; at += BOX_BYTES) {
        size_t n = bytes - at < BOX_BYTES ? bytes - at : BOX_BYTES;
        uint8_t *part = (uint8_t *)data + at;
        box_share(c, c->rank == root ? part : NULL, n);
        if (c->rank != root)
            memcpy(part, box_of(c, root), n);
        box_next(c);
    }
    return 0;
}

/* Of the shared memory what this rank claimed, but for some pages. */
static void node_tell(const struct comm *c, dev_memory_fn *tell, void *ctx) {
    uint64_t bytes = 0;
    for (uint32_t u = 0; u < c->unit_count; u++)
        bytes += shard_bytes(c, u);
    tell(ctx, DEV_MEM_HOST, bytes, c->param_dtype == DTYPE_F32 ? "params" : "params as gathered");
    tell(ctx, DEV_MEM_HOST, c->grad_bytes, "gradients of units");
}

const struct comm_ops comm_node = {
    .name = "node",
    .open = node_open,
    .close = node_close,
    .shard = node_shard,
    .all_gather = node_all_gather,
    .gather_is_view = true,
    .grad_buffer = node_grad_buffer,
    .reduce_scatter = node_reduce_scatter,
    .memory = node_tell,
    .all_reduce_f64 = node_all_reduce_f64,
    .all_reduce_u64 = node_all_reduce_u64,
    .broadcast = node_broadcast,
    .barrier = node_barrier,
};
