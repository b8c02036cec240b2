/* trainer_init.c - initial values, made on each shard alone: no process ever holds the whole model.
 */
#include "config.h"

#include "engine/trainer_parts.h"

/* A tensor's values depend on the seed, its place in the model's list and the element: not on the
 * shards. */
static int init_piece(struct trainer *t, uint32_t tensor, const struct layout_piece *p,
                      float *params) {
    const struct model_tensor *m = &model_tensors(t->model)[tensor];
    struct dev_stream *s = t->streams[DEV_STREAM_COMPUTE];
    float *dst = params + p->shard_offset_elems;
    trainer_doing(t, "initialising", m->spec.name);
    switch (m->init) {
    case INIT_ZEROS:
        return t->ops->fill(t->dev, s, dst, DTYPE_F32, p->elems, 0);
    case INIT_ONES:
        return t->ops->fill(t->dev, s, dst, DTYPE_F32, p->elems, 1);
    case INIT_NORMAL:
        break;
    }
    return t->ops->init_normal(t->dev, s, dst, p->elems, t->config.seed, tensor,
                               p->tensor_offset_elems, 0, m->init_std);
}

static int init_unit(struct trainer *t, uint32_t unit) {
    uint64_t elems = t->layout->units[unit].shard_elems;
    float *at[ARRAY_COUNT];
    trainer_doing(t, "initialising unit", t->layout->units[unit].name);
    int rc = state_fetch(t, unit);
    if (rc == 0)
        rc = state_enter(t, unit, at);
    for (uint32_t i = 0; i < t->layout->tensor_count && rc == 0; i++) {
        if (t->layout->tensors[i].unit != unit)
            continue;
        struct layout_piece p = layout_tensor_piece(t->layout, i, t->rank);
        if (p.elems > 0)
            rc = init_piece(t, i, &p, at[ARRAY_PARAMS]);
    }
    for (enum array a = ARRAY_EXP_AVG; a <= ARRAY_EXP_AVG_SQ && rc == 0 && elems > 0; a++)
        rc = t->ops->fill(t->dev, t->streams[DEV_STREAM_COMPUTE], at[a], DTYPE_F32, elems, 0);
    if (rc == 0)
        rc = mark_record(t, DEV_STREAM_COMPUTE, &t->updated);
    if (rc == 0)
        rc = state_leave(t, unit, true);
    return rc != 0 ? rc : state_settle(t, unit);
}

int trainer_init(struct trainer *t, uint64_t gen, struct err *err) {
    for (uint32_t u = 0; u < t->unit_count; u++) {
        arrays_state_begin(t->arrays, u);
        int rc = init_unit(t, u);
        if (rc != 0)
            return trainer_failed(t, rc, err);
        arrays_state_end(t->arrays, u, gen, 0);
    }
    arrays_grads_none(t->arrays);
    return 0;
}
