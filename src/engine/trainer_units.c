/* trainer_units.c - units gathered ahead of their use and dropped after; gradients reduced behind
 * it.
 *
 * A slot keeps its unit until another one needs it. So the unit that forward used last is still
 * there when backward begins with it, and at most the root and two others are gathered at any time.
 */
#include "config.h"

#include <errno.h>

#include "engine/trainer_parts.h"

static uint32_t slot_of(const struct trainer *t, uint32_t unit) {
    for (uint32_t s = 0; s < SLOT_COUNT; s++)
        if (t->gathers[s].unit == unit)
            return s;
    return SLOT_COUNT;
}

/* Where to gather a unit: of the two slots of other units the one that is free, or else the one
 * that was released. Only one of them can be in use. */
static uint32_t slot_for(const struct trainer *t, uint32_t unit) {
    if (unit == 0)
        return SLOT_ROOT;
    const struct gather_slot *first = &t->gathers[SLOT_FIRST_OTHER];
    if (first->unit == UNIT_NONE || first->released.set)
        return SLOT_FIRST_OTHER;
    return SLOT_FIRST_OTHER + 1;
}

int units_gather(struct trainer *t, uint32_t unit) {
    if (slot_of(t, unit) != SLOT_COUNT)
        return 0;
    struct gather_slot *g = &t->gathers[slot_for(t, unit)];
    trainer_doing(t, "gathering unit", t->layout->units[unit].name);
    int rc = mark_wait(t, DEV_STREAM_GATHER, &g->released);
    if (rc == 0)
        rc = mark_wait(t, DEV_STREAM_GATHER, &t->updated);
    if (rc == 0)
        rc = t->comm_ops->all_gather(t->comm, t->streams[DEV_STREAM_GATHER], unit,
                                     t->gather_shards[unit], g->buffer, &g->view);
    if (rc == 0)
        rc = mark_record(t, DEV_STREAM_GATHER, &g->gathered);
    if (rc != 0)
        return rc;
    g->unit = unit;
    g->released.set = false;
    return 0;
}

int units_use(struct trainer *t, uint32_t unit) {
    struct gather_slot *g = &t->gathers[slot_of(t, unit)];
    g->released.set = false;
    return mark_wait(t, DEV_STREAM_COMPUTE, &g->gathered);
}

int units_release(struct trainer *t, uint32_t unit) {
    return mark_record(t, DEV_STREAM_COMPUTE, &t->gathers[slot_of(t, unit)].released);
}

const void *units_view(const struct trainer *t, uint32_t unit) {
    return t->gathers[slot_of(t, unit)].view;
}

/* After an initialisation or a restore. Others may gather as soon as this rank says that it is
 * ready, so all wait for each other. */
static int copies_make(struct trainer *t) {
    int rc = 0;
    trainer_doing(t, "casting the", "parameters");
    for (uint32_t u = 0; u < t->unit_count && rc == 0; u++) {
        float *at[ARRAY_COUNT];
        rc = state_fetch(t, u);
        if (rc == 0)
            rc = state_enter(t, u, at);
        if (rc == 0)
            rc = t->ops->cast(t->dev, t->streams[DEV_STREAM_COMPUTE], t->gather_shards[u], t->dtype,
                              at[ARRAY_PARAMS], DTYPE_F32, t->layout->units[u].shard_elems);
        if (rc == 0)
            rc = state_leave(t, u, false);
    }
    if (rc == 0)
        rc = mark_record(t, DEV_STREAM_COMPUTE, &t->updated);
    if (rc == 0)
        rc = mark_synchronize(t, &t->updated);
    return rc != 0 ? rc : t->comm_ops->barrier(t->comm);
}

int units_refresh(struct trainer *t, uint64_t gen) {
    for (uint32_t s = 0; s < SLOT_COUNT; s++)
        t->gathers[s].unit = UNIT_NONE;
    if (t->comm_ops->shards_changed != NULL)
        t->comm_ops->shards_changed(t->comm);
    int rc = t->dtype != DTYPE_F32 && t->copied_gen != gen ? copies_make(t) : 0;
    if (rc == 0)
        t->copied_gen = gen;
    return rc;
}

/* Fills what no module will write: the padding, or all of it on a rank that has no sequences left.
 */
static int grads_clear(struct trainer *t, uint32_t unit, struct grad_slot *g, bool empty) {
    const struct layout_unit *u = &t->layout->units[unit];
    uint64_t from = empty ? 0 : u->numel;
    uint64_t count = u->shard_elems * t->world_size - from;
    if (count == 0)
        return 0;
    uint8_t *start = (uint8_t *)g->full + from * dtype_bytes(t->grad_dtype);
    return t->ops->fill(t->dev, t->streams[DEV_STREAM_COMPUTE], start, t->grad_dtype, count, 0);
}

int grads_begin(struct trainer *t, uint32_t unit, bool empty, uint32_t *slot) {
    uint32_t chosen = SLOT_ROOT;
    if (unit != 0) {
        /* In turn, if there are two such units: one is filled while the other is reduced. */
        chosen = SLOT_FIRST_OTHER + t->next_grad_slot;
        t->next_grad_slot = t->unit_count > 2 ? 1 - t->next_grad_slot : 0;
    }
    struct grad_slot *g = &t->grads[chosen];
    trainer_doing(t, "clearing gradients of unit", t->layout->units[unit].name);
    int rc = mark_wait(t, DEV_STREAM_COMPUTE, &g->reduced);
    if (rc == 0)
        rc = grads_clear(t, unit, g, empty);
    if (rc == 0)
        *slot = chosen;
    return rc;
}

int grads_reduce(struct trainer *t, uint32_t unit, uint32_t slot, bool first_micro) {
    struct grad_slot *g = &t->grads[slot];
    trainer_doing(t, "reducing gradients of unit", t->layout->units[unit].name);
    int rc = mark_record(t, DEV_STREAM_COMPUTE, &g->ready);
    if (rc == 0)
        rc = mark_wait(t, DEV_STREAM_REDUCE, &g->ready);
    if (rc == 0 && first_micro) {
        rc = mark_wait(t, DEV_STREAM_REDUCE, &t->updated);
        arrays_grads_begin(t->arrays, unit);
    }
    if (rc == 0)
        rc = t->comm_ops->reduce_scatter(t->comm, t->streams[DEV_STREAM_REDUCE], unit, g->full,
                                         arrays_shard(t->arrays, ARRAY_GRADS, unit), !first_micro);
    if (rc == 0)
        rc = mark_record(t, DEV_STREAM_REDUCE, &g->reduced);
    return rc;
}
