/* comm_nccl.c - units and gradients go from device to device by the collectives of the device's
 * plugin; what ranks say to each other on the host goes by a host communicator.
 *
 * A reduction is in the dtype of the gradients and in NCCL's order, then added to the f32 shard. */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "comm/collective.h"
#include "comm/comm.h"
#include "comm/host_part.h"

struct comm {
    struct host_part host; /* first */
    struct comm_args args; /* shard_elems is not used after open */
    uint64_t *shard_elems; /* by unit */
    struct collective *world;
    void *sum; /* a shard of reduce_dtype, in device memory */
    size_t sum_bytes;
};

static void nccl_close(struct comm *c) {
    if (c == NULL)
        return;
    if (c->world != NULL)
        c->args.collectives->close(c->world);
    if (c->sum != NULL)
        c->args.ops->free(c->args.dev, DEV_MEM_DEVICE, c->sum, c->sum_bytes);
    if (c->host.comm != NULL)
        c->host.ops->close(c->host.comm);
    free(c->shard_elems);
    free(c);
}

static struct comm *nccl_new(const struct comm_args *args, struct comm *host) {
    struct comm *c = calloc(1, sizeof *c);
    if (c == NULL)
        return NULL;
    c->args = *args;
    c->args.shard_elems = NULL;
    c->shard_elems = calloc((size_t)args->unit_count + 1, sizeof *c->shard_elems);
    if (c->shard_elems == NULL) {
        free(c);
        return NULL;
    }
    size_t largest = 1;
    for (uint32_t u = 0; u < args->unit_count; u++) {
        c->shard_elems[u] = args->shard_elems[u];
        largest = largest < args->shard_elems[u] ? args->shard_elems[u] : largest;
    }
    c->sum_bytes = largest * dtype_bytes(args->reduce_dtype);
    c->host.ops = args->host;
    c->host.comm = host;
    return c;
}

/* The id goes round with the reason why there is none. */
static int nccl_id(struct comm *c, uint8_t id[COLLECTIVE_ID_BYTES], struct err *err) {
    struct {
        struct err why;
        uint8_t id[COLLECTIVE_ID_BYTES];
    } news = {0};
    if (c->args.rank == 0)
        (void)c->args.collectives->unique_id(news.id, &news.why);
    int rc = c->host.ops->broadcast(c->host.comm, &news, sizeof news, 0);
    if (rc != 0)
        return err_set(err, -rc, "the id of the communicator could not be spread");
    news.why.text[sizeof news.why.text - 1] = '\0';
    if (news.why.code != 0) {
        *err = news.why;
        return -err->code;
    }
    memcpy(id, news.id, COLLECTIVE_ID_BYTES);
    return 0;
}

static int nccl_open(const struct comm_args *args, struct comm **out, struct err *err) {
    struct comm_args host_args = *args;
    struct comm *host = NULL;
    uint8_t id[COLLECTIVE_ID_BYTES] = {0};
    host_args.unit_count = 0; /* the bulk does not go that way */
    int rc = args->host->open(&host_args, &host, err);
    if (rc != 0)
        return rc;
    struct comm *c = nccl_new(args, host);
    if (c == NULL)
        rc = err_set(err, ENOMEM, "no memory for the communicator");
    else if ((rc = args->ops->alloc(args->dev, DEV_MEM_DEVICE, c->sum_bytes, "reduced gradients",
                                    &c->sum)) != 0)
        rc = device_failed(args->ops, args->dev, rc, err, "%zu bytes for reduced gradients",
                           c->sum_bytes);
    rc = comm_agree(args->host, host, args->rank, rc, err);
    if (rc == 0 && c != NULL)
        rc = nccl_id(c, id, err);
    if (rc == 0 && c != NULL) {
        rc = args->collectives->open(id, args->rank, args->world_size, args->dev, args->timeout_s,
                                     &c->world, err);
        rc = comm_agree(args->host, host, args->rank, rc, err);
    }
    if (c == NULL) {
        args->host->close(host);
        return rc;
    }
    if (rc != 0) {
        nccl_close(c);
        return rc;
    }
    *out = c;
    return 0;
}

static int nccl_all_gather(struct comm *c, struct dev_stream *s, uint32_t unit, const void *shard,
                           void *buffer, const void **view) {
    if (unit >= c->args.unit_count)
        return -EINVAL;
    int rc = 0;
    if (c->shard_elems[unit] > 0)
        rc = c->args.collectives->all_gather(c->world, s, shard, buffer, c->args.param_dtype,
                                             c->shard_elems[unit]);
    if (rc == 0)
        *view = buffer;
    return rc;
}

static int nccl_reduce_scatter(struct comm *c, struct dev_stream *s, uint32_t unit, void *full,
                               float *shard, bool accumulate) {
    if (unit >= c->args.unit_count)
        return -EINVAL;
    const struct device_ops *ops = c->args.ops;
    enum dtype g = c->args.reduce_dtype;
    size_t elems = c->shard_elems[unit];
    if (elems == 0)
        return 0;
    bool direct = g == DTYPE_F32 && !accumulate;
    int rc =
        c->args.collectives->reduce_scatter(c->world, s, full, direct ? shard : c->sum, g, elems);
    if (rc != 0 || direct)
        return rc;
    return accumulate ? ops->add(c->args.dev, s, shard, c->sum, g, elems)
                      : ops->cast(c->args.dev, s, shard, DTYPE_F32, c->sum, g, elems);
}

static int nccl_check(struct comm *c, struct err *err) {
    return c->args.collectives->check(c->world, err);
}

static void nccl_tell(const struct comm *c, dev_memory_fn *tell, void *ctx) {
    tell(ctx, DEV_MEM_DEVICE, c->sum_bytes, "reduced gradients");
}

const struct comm_ops comm_nccl = {
    .name = "nccl",
    .open = nccl_open,
    .close = nccl_close,
    .shard = host_no_memory,
    .all_gather = nccl_all_gather,
    .gather_is_view = false,
    .grad_buffer = host_no_memory,
    .reduce_scatter = nccl_reduce_scatter,
    .check = nccl_check,
    .memory = nccl_tell,
    .all_reduce_f64 = host_all_reduce_f64,
    .all_reduce_u64 = host_all_reduce_u64,
    .broadcast = host_broadcast,
    .barrier = host_barrier,
};
