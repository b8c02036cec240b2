/* trainer_memory.c - everything the trainer needs, allocated and touched once: a step allocates
 * nothing. */
#include "config.h"

#include <errno.h>
#include <stdlib.h>

#include "engine/trainer_parts.h"

enum { ALIGN_ELEMS = 16 };

static uint64_t align_elems(uint64_t elems) {
    return (elems + ALIGN_ELEMS - 1) / ALIGN_ELEMS * ALIGN_ELEMS;
}

static int block_alloc(struct trainer *t, enum dev_memory kind, size_t bytes, const char *what,
                       void **out, struct err *err) {
    if (t->block_count == TRAINER_MAX_BLOCKS)
        return err_set(err, ENOMEM, "too many blocks of memory for the trainer");
    if (bytes == 0)
        bytes = sizeof(float);
    int rc = t->ops->alloc(t->dev, kind, bytes, what, out);
    if (rc != 0)
        return device_failed(t->ops, t->dev, rc, err, "%zu bytes for %s", bytes, what);
    t->blocks[t->block_count++] =
        (struct trainer_block){.p = *out, .bytes = bytes, .kind = kind, .what = what};
    return 0;
}

/* Zeroed: the padding of shards is never written later, and every page is there before the first
 * step. */
static int elems_alloc(struct trainer *t, enum dtype dtype, uint64_t elems, const char *what,
                       void **out, struct err *err) {
    void *p = NULL;
    int rc = block_alloc(t, DEV_MEM_DEVICE, elems * dtype_bytes(dtype), what, &p, err);
    if (rc != 0)
        return rc;
    rc = elems == 0 ? 0 : t->ops->fill(t->dev, t->streams[DEV_STREAM_COMPUTE], p, dtype, elems, 0);
    if (rc != 0)
        return device_failed(t->ops, t->dev, rc, err, "clearing %s", what);
    *out = p;
    return 0;
}

/* One block holds the shards of all units; where each begins, in elements, is the sum of those
 * before it. */
static uint64_t shards_elems(const struct trainer *t, uint32_t units) {
    uint64_t elems = 0;
    for (uint32_t u = 0; u < units; u++)
        elems += align_elems(t->layout->units[u].shard_elems);
    return elems;
}

static int shards_alloc(struct trainer *t, enum array array, struct err *err) {
    void *p = NULL;
    int rc = elems_alloc(t, DTYPE_F32, shards_elems(t, t->unit_count), array_names[array], &p, err);
    for (uint32_t u = 0; u < t->unit_count && rc == 0; u++)
        arrays_set_shard(t->arrays, array, u, (float *)p + shards_elems(t, u));
    return rc;
}

/* What is gathered: the communicator's memory if it has any, else a block of copies, or with f32
 * the master. */
static int gather_shards_open(struct trainer *t, bool shared, struct err *err) {
    void *p = NULL;
    int rc = 0;
    t->gather_shards = calloc((size_t)t->unit_count + 1, sizeof *t->gather_shards);
    if (t->gather_shards == NULL)
        return err_set(err, ENOMEM, "no memory for the shards of units");
    if (!shared && t->dtype != DTYPE_F32)
        rc =
            elems_alloc(t, t->dtype, shards_elems(t, t->unit_count), "params as gathered", &p, err);
    for (uint32_t u = 0; u < t->unit_count && rc == 0; u++) {
        if (shared)
            t->gather_shards[u] = t->comm_ops->shard(t->comm, u);
        else if (p != NULL)
            t->gather_shards[u] = (uint8_t *)p + shards_elems(t, u) * dtype_bytes(t->dtype);
        else
            t->gather_shards[u] = arrays_shard(t->arrays, ARRAY_PARAMS, u);
    }
    return rc;
}

static int shards_open(struct trainer *t, struct err *err) {
    bool shared = t->unit_count > 0 && t->comm_ops->shard(t->comm, 0) != NULL;
    bool master_shared = shared && t->dtype == DTYPE_F32;
    int rc = 0;
    for (enum array a = ARRAY_PARAMS; a < ARRAY_COUNT && rc == 0; a++)
        if (!state_is_offloaded(t, a) && (a != ARRAY_PARAMS || !master_shared))
            rc = shards_alloc(t, a, err);
    if (rc == 0)
        rc = state_open(t, err);
    for (uint32_t u = 0; u < t->unit_count && rc == 0 && master_shared; u++)
        arrays_set_shard(t->arrays, ARRAY_PARAMS, u, t->comm_ops->shard(t->comm, u));
    return rc != 0 ? rc : gather_shards_open(t, shared, err);
}

/* Elements of the largest unit that uses a slot, 0 if none does. */
static uint64_t slot_elems(const struct trainer *t, uint32_t slot) {
    uint64_t largest = 0;
    for (uint32_t u = slot; u < (slot == SLOT_ROOT ? 1 : t->unit_count); u++)
        if (largest < t->layout->units[u].shard_elems)
            largest = t->layout->units[u].shard_elems;
    /* The second slot of other units is used when there are two of them, the largest among them. */
    if (slot > SLOT_FIRST_OTHER && largest != 0)
        return slot_elems(t, SLOT_FIRST_OTHER);
    return largest * t->world_size;
}

static int slots_open(struct trainer *t, struct err *err) {
    int rc = 0;
    for (uint32_t s = 0; s < SLOT_COUNT && rc == 0; s++) {
        uint64_t elems = slot_elems(t, s);
        t->gathers[s].unit = UNIT_NONE;
        if (elems == 0)
            continue;
        if (!t->comm_ops->gather_is_view)
            rc = elems_alloc(t, t->dtype, elems, "gathered units", &t->gathers[s].buffer, err);
        t->grads[s].full = t->comm_ops->grad_buffer(t->comm, s);
        if (rc == 0 && t->grads[s].full == NULL)
            rc = elems_alloc(t, t->grad_dtype, elems, "gradients of units", &t->grads[s].full, err);
    }
    return rc;
}

/* Small things lie together: a block has at least a huge page. */
static int batch_open(struct trainer *t, struct err *err) {
    size_t tokens = t->share.count * t->seq_len;
    size_t doubles = t->share.micro_count + t->unit_count;
    void *host = NULL, *device = NULL;
    int rc = block_alloc(t, DEV_MEM_HOST, doubles * sizeof(double) + 2 * tokens * sizeof(int32_t),
                         "batch", &host, err);
    if (rc == 0)
        rc = block_alloc(t, DEV_MEM_DEVICE, 2 * tokens * sizeof(int32_t), "batch", &device, err);
    if (rc != 0)
        return rc;
    t->losses = host;
    t->squares = t->losses + t->share.micro_count;
    t->host_tokens = (int32_t *)(void *)(t->squares + t->unit_count);
    t->host_targets = t->host_tokens + tokens;
    t->tokens = device;
    t->targets = t->tokens + tokens;
    size_t arena_bytes = tokens == 0 ? 0
                                     : model_arena_bytes(t->model, t->ops, t->dev, t->dtype,
                                                         t->share.micro, t->seq_len);
    return elems_alloc(t, DTYPE_F32, (arena_bytes + sizeof(float) - 1) / sizeof(float),
                       "activations", &t->arena, err);
}

/* Arguments of the module that takes most tensors. */
static int arguments_open(struct trainer *t, struct err *err) {
    uint32_t most = 1, tensor_count = model_tensor_count(t->model);
    for (uint32_t m = 0; m < model_module_count(t->model); m++) {
        const uint32_t *tensors;
        uint32_t n = model_module_tensors(t->model, m, &tensors);
        most = n > most ? n : most;
    }
    t->touched = calloc(tensor_count + 1, sizeof *t->touched);
    t->params = calloc(most, sizeof *t->params);
    t->param_grads = calloc(most, sizeof *t->param_grads);
    t->accumulate = calloc(most, sizeof *t->accumulate);
    if (t->touched == NULL || t->params == NULL || t->param_grads == NULL || t->accumulate == NULL)
        return err_set(err, ENOMEM, "no memory for the arguments of modules");
    return 0;
}

static int marks_open(struct trainer *t, struct err *err) {
    struct {
        struct mark *mark;
        const char *what;
    } marks[] = {
        {&t->updated, "updated"},
        {&t->computed, "computed"},
        {&t->normed, "normed"},
        {&t->applied[0], "applied 0"},
        {&t->applied[1], "applied 1"},
        {&t->gathers[0].gathered, "gathered 0"},
        {&t->gathers[0].released, "released 0"},
        {&t->grads[0].ready, "ready 0"},
        {&t->grads[0].reduced, "reduced 0"},
        {&t->gathers[1].gathered, "gathered 1"},
        {&t->gathers[1].released, "released 1"},
        {&t->grads[1].ready, "ready 1"},
        {&t->grads[1].reduced, "reduced 1"},
        {&t->gathers[2].gathered, "gathered 2"},
        {&t->gathers[2].released, "released 2"},
        {&t->grads[2].ready, "ready 2"},
        {&t->grads[2].reduced, "reduced 2"},
    };
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        int rc = t->ops->event_open(t->dev, marks[i].what, &marks[i].mark->event);
        if (rc != 0)
            return device_failed(t->ops, t->dev, rc, err, "an event");
    }
    return 0;
}

static void marks_close(struct trainer *t) {
    enum { OF_NO_SLOT = 5, MARK_COUNT = OF_NO_SLOT + 4 * SLOT_COUNT };
    struct mark *marks[MARK_COUNT] = {&t->updated, &t->computed, &t->normed, &t->applied[0],
                                      &t->applied[1]};
    for (uint32_t s = 0; s < SLOT_COUNT; s++) {
        struct mark **of_slot = marks + OF_NO_SLOT + 4 * s;
        of_slot[0] = &t->gathers[s].gathered;
        of_slot[1] = &t->gathers[s].released;
        of_slot[2] = &t->grads[s].ready;
        of_slot[3] = &t->grads[s].reduced;
    }
    for (size_t i = 0; i < MARK_COUNT; i++)
        if (marks[i]->event != NULL)
            t->ops->event_close(t->dev, marks[i]->event);
}

/* What readers take of the shards goes through pinned memory. */
static int stage_of_readers(struct trainer *t, struct err *err) {
    struct stage_args args = {.ops = t->ops,
                              .dev = t->dev,
                              .slot_bytes = STAGE_SLOT_BYTES,
                              .slot_count = STAGE_SLOT_COUNT,
                              .threads = STAGE_THREAD_COUNT};
    if (t->ops->host_access)
        return 0;
    int rc = stage_open(&args, &t->stage, err);
    if (rc == 0)
        arrays_set_stage(t->arrays, t->stage, t->streams[DEV_STREAM_COMPUTE],
                         t->streams[DEV_STREAM_REDUCE]);
    return rc;
}

int trainer_memory_open(struct trainer *t, struct err *err) {
    int rc = marks_open(t, err);
    if (rc == 0)
        rc = stage_of_readers(t, err);
    if (rc == 0)
        rc = shards_open(t, err);
    if (rc == 0)
        rc = slots_open(t, err);
    if (rc == 0)
        rc = batch_open(t, err);
    if (rc == 0)
        rc = arguments_open(t, err);
    if (rc != 0)
        return rc;
    /* Zeros are there before anybody else writes: a restore does, on another stream. */
    rc = mark_record(t, DEV_STREAM_COMPUTE, &t->updated);
    if (rc == 0)
        rc = mark_synchronize(t, &t->updated);
    return rc != 0 ? device_failed(t->ops, t->dev, rc, err, "clearing memory") : 0;
}

void trainer_memory(const struct trainer *t, dev_memory_fn *tell, void *ctx) {
    for (uint32_t b = 0; b < t->block_count; b++)
        tell(ctx, t->blocks[b].kind, t->blocks[b].bytes, t->blocks[b].what);
    if (t->comm_ops->memory != NULL)
        t->comm_ops->memory(t->comm, tell, ctx);
    if (t->offload != NULL)
        offload_memory(t->offload, tell, ctx);
    if (t->stage != NULL)
        stage_memory(t->stage, tell, ctx);
}

/* What is still queued uses the memory that is about to go. */
static void streams_settle(struct trainer *t) {
    for (uint32_t s = 0; s < DEV_STREAM_COUNT && t->updated.event != NULL; s++)
        if (t->streams[s] != NULL && mark_record(t, s, &t->updated) == 0)
            (void)mark_synchronize(t, &t->updated);
}

void trainer_memory_close(struct trainer *t) {
    if (t->dev != NULL) {
        streams_settle(t);
        marks_close(t);
        offload_close(t->offload);
        stage_close(t->stage);
        while (t->block_count > 0) {
            struct trainer_block *b = &t->blocks[--t->block_count];
            t->ops->free(t->dev, b->kind, b->p, b->bytes);
        }
    }
    free(t->gather_shards);
    free(t->touched);
    free(t->params);
    free(t->param_grads);
    free(t->accumulate);
}
