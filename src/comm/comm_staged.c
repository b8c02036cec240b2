/* comm_staged.c - a host communicator behind a device with memory of its own, by way of pinned
 * memory.
 *
 * For ranks that share a GPU, which NCCL refuses, and where there is no NCCL. The host takes part
 * in each collective: it waits until the stream has brought the data, and what the stream gets back
 * it gets in order. So the other streams go on, but the host queues nothing meanwhile. */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "comm/host_part.h"

struct comm {
    struct host_part host; /* first */
    struct comm_args args; /* shard_elems is not used after open */
    uint64_t *shard_elems; /* by unit */
    bool *changed;      /* by unit: the host's window has an older version of this rank's shard */
    size_t unit_bytes;  /* of the largest unit, in the larger dtype */
    size_t sum_bytes;   /* of the largest shard in f32 */
    uint8_t *up, *down; /* pinned, unit_bytes each: to the device, from the device */
    float *sum;         /* pinned, sum_bytes */
    float *sum_device;  /* the same in device memory */
    struct dev_event *arrived, *up_read, *sum_read;
    bool up_queued, sum_queued;
};

static size_t largest_shard(const struct comm_args *a) {
    size_t largest = 1;
    for (uint32_t u = 0; u < a->unit_count; u++)
        if (largest < a->shard_elems[u])
            largest = a->shard_elems[u];
    return largest;
}

static void pinned_free(struct comm *c, enum dev_memory kind, void *p, size_t bytes) {
    if (p != NULL)
        c->args.ops->free(c->args.dev, kind, p, bytes);
}

static void staged_close(struct comm *c) {
    if (c == NULL)
        return;
    struct dev_event *events[] = {c->arrived, c->up_read, c->sum_read};
    /* What was queued reads this memory. */
    if (c->up_queued)
        (void)c->args.ops->event_synchronize(c->args.dev, c->up_read);
    if (c->sum_queued)
        (void)c->args.ops->event_synchronize(c->args.dev, c->sum_read);
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i] != NULL)
            c->args.ops->event_close(c->args.dev, events[i]);
    pinned_free(c, DEV_MEM_HOST, c->up, c->unit_bytes);
    pinned_free(c, DEV_MEM_HOST, c->down, c->unit_bytes);
    pinned_free(c, DEV_MEM_HOST, c->sum, c->sum_bytes);
    pinned_free(c, DEV_MEM_DEVICE, c->sum_device, c->sum_bytes);
    if (c->host.comm != NULL)
        c->host.ops->close(c->host.comm);
    free(c->changed);
    free(c->shard_elems);
    free(c);
}

static int staged_alloc(struct comm *c, enum dev_memory kind, size_t bytes, const char *what,
                        void **out, struct err *err) {
    int rc = c->args.ops->alloc(c->args.dev, kind, bytes, what, out);
    return rc != 0
               ? device_failed(c->args.ops, c->args.dev, rc, err, "%zu bytes for %s", bytes, what)
               : 0;
}

static int staged_memory(struct comm *c, struct err *err) {
    void *up = NULL, *down = NULL, *sum = NULL, *sum_device = NULL;
    const struct device_ops *ops = c->args.ops;
    int rc = staged_alloc(c, DEV_MEM_HOST, c->unit_bytes, "staging to the device", &up, err);
    c->up = up;
    if (rc == 0)
        rc = staged_alloc(c, DEV_MEM_HOST, c->unit_bytes, "staging from the device", &down, err);
    c->down = down;
    if (rc == 0)
        rc = staged_alloc(c, DEV_MEM_HOST, c->sum_bytes, "staging of reduced gradients", &sum, err);
    c->sum = sum;
    if (rc == 0)
        rc = staged_alloc(c, DEV_MEM_DEVICE, c->sum_bytes, "reduced gradients", &sum_device, err);
    c->sum_device = sum_device;
    if (rc == 0 && (ops->event_open(c->args.dev, "staging arrived", &c->arrived) != 0 ||
                    ops->event_open(c->args.dev, "staging read", &c->up_read) != 0 ||
                    ops->event_open(c->args.dev, "reduced gradients read", &c->sum_read) != 0))
        rc = device_failed(ops, c->args.dev, -ENOMEM, err, "an event");
    return rc;
}

static struct comm *staged_new(const struct comm_args *args) {
    struct comm *c = calloc(1, sizeof *c);
    if (c == NULL)
        return NULL;
    c->args = *args;
    c->args.shard_elems = NULL;
    c->shard_elems = calloc((size_t)args->unit_count + 1, sizeof *c->shard_elems);
    c->changed = calloc((size_t)args->unit_count + 1, sizeof *c->changed);
    if (c->shard_elems == NULL || c->changed == NULL) {
        staged_close(c);
        return NULL;
    }
    for (uint32_t u = 0; u < args->unit_count; u++) {
        c->shard_elems[u] = args->shard_elems[u];
        c->changed[u] = true;
    }
    bool wide = args->param_dtype == DTYPE_F32 || args->reduce_dtype == DTYPE_F32;
    c->sum_bytes = largest_shard(args) * sizeof *c->sum;
    c->unit_bytes =
        largest_shard(args) * args->world_size * dtype_bytes(wide ? DTYPE_F32 : DTYPE_BF16);
    return c;
}

static int staged_open(const struct comm_args *args, struct comm **out, struct err *err) {
    struct comm *host = NULL;
    int rc = args->host->open(args, &host, err);
    if (rc != 0)
        return rc;
    struct comm *c = staged_new(args);
    rc = c != NULL ? staged_memory(c, err) : err_set(err, ENOMEM, "no memory for the communicator");
    rc = comm_agree(args->host, host, args->rank, rc, err);
    if (c == NULL) {
        args->host->close(host);
        return rc;
    }
    c->host.comm = host;
    c->host.ops = args->host;
    if (rc != 0) {
        staged_close(c);
        return rc;
    }
    *out = c;
    return 0;
}

static void staged_shards_changed(struct comm *c) {
    for (uint32_t u = 0; u < c->args.unit_count; u++)
        c->changed[u] = true;
}

/* The host waits until dst has the bytes. */
static int bring(struct comm *c, struct dev_stream *s, void *dst, const void *src, size_t bytes) {
    const struct device_ops *ops = c->args.ops;
    int rc = bytes == 0 ? 0 : ops->copy(c->args.dev, s, dst, src, bytes);
    if (rc == 0)
        rc = ops->event_record(c->args.dev, s, c->arrived);
    return rc != 0 ? rc : ops->event_synchronize(c->args.dev, c->arrived);
}

/* The pinned block may be written again once the stream has read what was last put there. */
static int reuse(struct comm *c, bool *queued, struct dev_event *read) {
    if (!*queued)
        return 0;
    *queued = false;
    return c->args.ops->event_synchronize(c->args.dev, read);
}

static int send_off(struct comm *c, struct dev_stream *s, void *dst, const void *src, size_t bytes,
                    bool *queued, struct dev_event *read) {
    const struct device_ops *ops = c->args.ops;
    if (bytes == 0)
        return 0;
    int rc = ops->copy(c->args.dev, s, dst, src, bytes);
    if (rc == 0)
        rc = ops->event_record(c->args.dev, s, read);
    *queued = rc == 0;
    return rc;
}

/* node: this rank's part of the window gets the new version, and all wait for each other. */
static int gather_window(struct comm *c, struct dev_stream *s, uint32_t unit, const void *shard,
                         void *window, const void **view) {
    size_t bytes = c->shard_elems[unit] * dtype_bytes(c->args.param_dtype);
    int rc = 0;
    if (c->changed[unit]) {
        rc = bring(c, s, c->down, shard, bytes);
        if (rc == 0)
            memcpy(window, c->down, bytes);
        if (rc == 0)
            rc = c->host.ops->barrier(c->host.comm);
        c->changed[unit] = rc != 0;
    }
    if (rc == 0)
        rc = c->host.ops->all_gather(c->host.comm, s, unit, window, NULL, view);
    if (rc == 0)
        memcpy(c->up, *view, bytes * c->args.world_size);
    return rc;
}

static int staged_all_gather(struct comm *c, struct dev_stream *s, uint32_t unit, const void *shard,
                             void *buffer, const void **view) {
    if (unit >= c->args.unit_count)
        return -EINVAL;
    size_t bytes = c->shard_elems[unit] * dtype_bytes(c->args.param_dtype);
    void *window = c->host.ops->shard(c->host.comm, unit);
    const void *gathered = NULL;
    int rc = reuse(c, &c->up_queued, c->up_read);
    if (rc == 0 && window != NULL)
        rc = gather_window(c, s, unit, shard, window, &gathered);
    if (rc == 0 && window == NULL)
        rc = bring(c, s, c->down, shard, bytes);
    if (rc == 0 && window == NULL)
        rc = c->host.ops->all_gather(c->host.comm, s, unit, c->down, c->up, &gathered);
    if (rc == 0)
        rc = send_off(c, s, buffer, c->up, bytes * c->args.world_size, &c->up_queued, c->up_read);
    if (rc == 0)
        *view = buffer;
    return rc;
}

static int staged_reduce_scatter(struct comm *c, struct dev_stream *s, uint32_t unit, void *full,
                                 float *shard, bool accumulate) {
    if (unit >= c->args.unit_count)
        return -EINVAL;
    const struct device_ops *ops = c->args.ops;
    size_t elems = c->shard_elems[unit];
    size_t bytes = elems * c->args.world_size * dtype_bytes(c->args.reduce_dtype);
    void *window = c->host.ops->grad_buffer(c->host.comm, unit == 0 ? 0 : 1), *source = c->down;
    int rc = bring(c, s, c->down, full, bytes);
    if (rc == 0)
        rc = reuse(c, &c->sum_queued, c->sum_read);
    if (rc == 0 && window != NULL) {
        memcpy(window, c->down, bytes);
        source = window;
    }
    if (rc == 0)
        rc = c->host.ops->reduce_scatter(c->host.comm, s, unit, source, c->sum, false);
    if (rc != 0 || elems == 0)
        return rc;
    rc = send_off(c, s, accumulate ? c->sum_device : shard, c->sum, elems * sizeof *shard,
                  &c->sum_queued, c->sum_read);
    if (rc == 0 && accumulate)
        rc = ops->add(c->args.dev, s, shard, c->sum_device, DTYPE_F32, elems);
    return rc;
}

struct listener {
    dev_memory_fn *tell;
    void *ctx;
};

/* What the host's communicator has is here only a way. */
static void tell_host(void *ctx, enum dev_memory kind, uint64_t bytes, const char *what) {
    const struct listener *l = ctx;
    (void)what;
    l->tell(l->ctx, kind, bytes, "staging between ranks");
}

static void staged_tell(const struct comm *c, dev_memory_fn *tell, void *ctx) {
    struct listener l = {tell, ctx};
    tell(ctx, DEV_MEM_HOST, c->unit_bytes, "staging to the device");
    tell(ctx, DEV_MEM_HOST, c->unit_bytes, "staging from the device");
    tell(ctx, DEV_MEM_HOST, c->sum_bytes, "staging of reduced gradients");
    tell(ctx, DEV_MEM_DEVICE, c->sum_bytes, "reduced gradients");
    if (c->host.ops->memory != NULL)
        c->host.ops->memory(c->host.comm, tell_host, &l);
}

const struct comm_ops comm_staged = {
    .name = "staged",
    .open = staged_open,
    .close = staged_close,
    .shard = host_no_memory,
    .shards_changed = staged_shards_changed,
    .all_gather = staged_all_gather,
    .gather_is_view = false,
    .grad_buffer = host_no_memory,
    .reduce_scatter = staged_reduce_scatter,
    .memory = staged_tell,
    .all_reduce_f64 = host_all_reduce_f64,
    .all_reduce_u64 = host_all_reduce_u64,
    .broadcast = host_broadcast,
    .barrier = host_barrier,
};
