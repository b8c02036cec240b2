/* trainer_optimizer.c - global norm and AdamW, each rank on its shards. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "engine/trainer_parts.h"

/* Appends a piece of a tensor to the runs of its unit; pieces with the same decay that touch are
 * one. */
static void run_add(struct trainer *t, uint32_t unit, uint64_t first, uint64_t elems, bool decay) {
    struct decay_run *last = t->run_count > 0 ? &t->runs[t->run_count - 1] : NULL;
    if (elems == 0)
        return;
    if (last != NULL && last->unit == unit && last->decay == decay &&
        last->first + last->elems == first) {
        last->elems += elems;
        return;
    }
    t->runs[t->run_count++] =
        (struct decay_run){.unit = unit, .first = first, .elems = elems, .decay = decay};
}

int optimizer_plan(struct trainer *t, struct err *err) {
    const struct layout *l = t->layout;
    t->runs = calloc((size_t)l->tensor_count + 1, sizeof *t->runs);
    if (t->runs == NULL)
        return err_set(err, ENOMEM, "no memory for the plan of the optimizer");
    /* Within a unit tensors lie in the order of their indices. */
    for (uint32_t unit = 0; unit < l->unit_count; unit++)
        for (uint32_t i = 0; i < l->tensor_count; i++) {
            if (l->tensors[i].unit != unit)
                continue;
            struct layout_piece p = layout_tensor_piece(l, i, t->rank);
            run_add(t, unit, p.shard_offset_elems, p.elems, l->tensors[i].spec.decay);
        }
    return 0;
}

int optimizer_norm(struct trainer *t) {
    int rc = 0;
    for (uint32_t u = 0; u < t->unit_count && rc == 0; u++) {
        uint64_t valid = layout_shard_valid(t->layout, u, t->rank);
        trainer_doing(t, "summing squares of the gradients of unit", t->layout->units[u].name);
        t->squares[u] = 0;
        if (valid > 0)
            rc = t->ops->sum_squares(t->dev, t->streams[DEV_STREAM_REDUCE], &t->squares[u],
                                     arrays_shard(t->arrays, ARRAY_GRADS, u), valid);
    }
    return rc != 0 ? rc : mark_record(t, DEV_STREAM_REDUCE, &t->normed);
}

static int update_unit(struct trainer *t, uint32_t unit, uint32_t *run,
                       const struct dev_adamw *with_decay) {
    uint8_t *copy = t->dtype == DTYPE_F32 ? NULL : t->gather_shards[unit];
    float *at[ARRAY_COUNT];
    trainer_doing(t, "updating unit", t->layout->units[unit].name);
    int rc = state_enter(t, unit, at);
    if (rc == 0)
        rc = state_fetch(t, unit + 1);
    for (; *run < t->run_count && t->runs[*run].unit == unit && rc == 0; (*run)++) {
        const struct decay_run *r = &t->runs[*run];
        struct dev_adamw a = *with_decay;
        if (!r->decay)
            a.weight_decay = 0;
        rc = t->ops->adamw(t->dev, t->streams[DEV_STREAM_COMPUTE], at[ARRAY_PARAMS] + r->first,
                           at[ARRAY_EXP_AVG] + r->first, at[ARRAY_EXP_AVG_SQ] + r->first,
                           at[ARRAY_GRADS] + r->first,
                           copy != NULL ? copy + r->first * dtype_bytes(t->dtype) : NULL, t->dtype,
                           r->elems, &a);
    }
    return rc != 0 ? rc : state_leave(t, unit, true);
}

/* Readers may have a unit once it is updated, where it rests. */
static int publish_unit(struct trainer *t, uint32_t unit, uint64_t gen, uint64_t step) {
    int rc = state_settle(t, unit);
    if (rc == 0)
        arrays_state_end(t->arrays, unit, gen, step);
    return rc;
}

int optimizer_update(struct trainer *t, uint64_t step, uint64_t gen, const struct config *live,
                     const struct step_result *r) {
    double count = (double)step + 1;
    struct dev_adamw a = {
        .lr = (float)r->lr,
        .beta1 = (float)t->config.beta1,
        .beta2 = (float)t->config.beta2,
        .eps = (float)t->config.eps,
        .weight_decay = (float)live->weight_decay,
        .grad_scale = (float)r->clip_factor,
        .correction1 = (float)(1 - pow(t->config.beta1, count)),
        .correction2 = (float)(1 - pow(t->config.beta2, count)),
    };
    uint32_t run = 0;
    int rc = mark_wait(t, DEV_STREAM_COMPUTE, &t->normed);
    /* The device has the next unit to do while the host waits for one. A unit whose update failed
     * is between two versions: it stays locked, and the world ends. */
    for (uint32_t u = 0; u < t->unit_count && rc == 0; u++) {
        arrays_state_begin(t->arrays, u);
        rc = update_unit(t, u, &run, &a);
        if (rc == 0 && u > 0)
            rc = publish_unit(t, u - 1, gen, step + 1);
    }
    if (rc == 0)
        rc = mark_record(t, DEV_STREAM_COMPUTE, &t->updated);
    if (rc == 0 && t->unit_count > 0)
        rc = publish_unit(t, t->unit_count - 1, gen, step + 1);
    return rc;
}
