/* comm_self.c - the communicator of a world of one rank: every shard is its whole unit. */
#include "config.h"

#include <errno.h>
#include <stdlib.h>

#include "comm/comm.h"

struct comm {
    const struct device_ops *ops;
    struct device *dev;
    enum dtype reduce_dtype;
    uint64_t *shard_elems; /* by unit */
};

static void self_close(struct comm *c) {
    if (c == NULL)
        return;
    free(c->shard_elems);
    free(c);
}

static int self_open(const struct comm_args *args, struct comm **out, struct err *err) {
    uint32_t unit_count = args->unit_count;
    if (args->rank != 0 || args->world_size != 1)
        return err_set(err, EINVAL, "comm = self is for one rank, and there are %u",
                       args->world_size);
    struct comm *c = calloc(1, sizeof *c);
    if (c == NULL)
        return err_set(err, ENOMEM, "no memory for the communicator");
    c->ops = args->ops;
    c->dev = args->dev;
    c->reduce_dtype = args->reduce_dtype;
    c->shard_elems = calloc((size_t)unit_count + 1, sizeof *c->shard_elems);
    if (c->shard_elems == NULL) {
        self_close(c);
        return err_set(err, ENOMEM, "no memory for the communicator");
    }
    for (uint32_t u = 0; u < unit_count; u++)
        c->shard_elems[u] = args->shard_elems[u];
    *out = c;
    return 0;
}

static void *self_shard(struct comm *c, uint32_t unit) {
    (void)c;
    (void)unit;
    return NULL;
}

static int self_all_gather(struct comm *c, struct dev_stream *s, uint32_t unit, const void *shard,
                           void *buffer, const void **view) {
    (void)c;
    (void)s;
    (void)unit;
    (void)buffer;
    *view = shard;
    return 0;
}

static void *self_grad_buffer(struct comm *c, uint32_t slot) {
    (void)c;
    (void)slot;
    return NULL;
}

static int self_reduce_scatter(struct comm *c, struct dev_stream *s, uint32_t unit, void *full,
                               float *shard, bool accumulate) {
    size_t elems = c->shard_elems[unit];
    if (accumulate)
        return c->ops->add(c->dev, s, shard, full, c->reduce_dtype, elems);
    return c->ops->cast(c->dev, s, shard, DTYPE_F32, full, c->reduce_dtype, elems);
}

static int self_all_reduce_f64(struct comm *c, double *inout, size_t count, enum comm_op op) {
    (void)c;
    (void)inout;
    (void)count;
    (void)op;
    return 0;
}

static int self_all_reduce_u64(struct comm *c, uint64_t *inout, size_t count, enum comm_op op) {
    (void)c;
    (void)inout;
    (void)count;
    (void)op;
    return 0;
}

static int self_broadcast(struct comm *c, void *data, size_t bytes, uint32_t root) {
    (void)c;
    (void)data;
    (void)bytes;
    return root == 0 ? 0 : -EINVAL;
}

static int self_barrier(struct comm *c) {
    (void)c;
    return 0;
}

const struct comm_ops comm_self = {
    .name = "self",
    .open = self_open,
    .close = self_close,
    .shard = self_shard,
    .all_gather = self_all_gather,
    .gather_is_view = true,
    .grad_buffer = self_grad_buffer,
    .reduce_scatter = self_reduce_scatter,
    .all_reduce_f64 = self_all_reduce_f64,
    .all_reduce_u64 = self_all_reduce_u64,
    .broadcast = self_broadcast,
    .barrier = self_barrier,
};
