/* trainer_state.c - params and moments of a unit, in device memory or brought there for a while. */
#include "config.h"

#include <errno.h>

#include "engine/trainer_parts.h"

/* With dtype f32 the master is what is gathered, and stays. */
static uint32_t offload_mask(const struct trainer *t) {
    uint32_t moments = ARRAY_BIT(ARRAY_EXP_AVG) | ARRAY_BIT(ARRAY_EXP_AVG_SQ);
    return t->dtype == DTYPE_F32 ? moments : moments | ARRAY_BIT(ARRAY_PARAMS);
}

/* On a device whose memory the host reads, pinned memory is no other place. */
static int offload_chosen(const struct trainer *t, enum offload_kind *kind, const char **dir,
                          struct err *err) {
    int rc = offload_parse(t->config.offload, kind, dir, err);
    if (rc == 0 && *kind == OFFLOAD_HOST && t->ops->host_access)
        *kind = OFFLOAD_NONE;
    return rc;
}

bool state_is_offloaded(const struct trainer *t, enum array a) {
    struct err ignored;
    enum offload_kind kind;
    const char *dir;
    return offload_chosen(t, &kind, &dir, &ignored) == 0 && kind != OFFLOAD_NONE &&
           (offload_mask(t) & ARRAY_BIT(a)) != 0;
}

int state_open(struct trainer *t, struct err *err) {
    enum offload_kind kind;
    const char *dir;
    int rc = offload_chosen(t, &kind, &dir, err);
    if (rc != 0 || kind == OFFLOAD_NONE)
        return rc;
    struct offload_args args = {.kind = kind,
                                .dir = dir,
                                .array_mask = offload_mask(t),
                                .ops = t->ops,
                                .dev = t->dev,
                                .stream = t->streams[DEV_STREAM_OFFLOAD],
                                .layout = t->layout,
                                .rank = t->rank,
                                .arrays = t->arrays};
    return offload_open(&args, &t->offload, err);
}

int state_fetch(struct trainer *t, uint32_t unit) {
    return t->offload != NULL && unit < t->unit_count ? offload_fetch(t->offload, unit) : 0;
}

int state_enter(struct trainer *t, uint32_t unit, float *shards[ARRAY_COUNT]) {
    for (enum array a = ARRAY_PARAMS; a < ARRAY_COUNT; a++)
        shards[a] = arrays_shard(t->arrays, a, unit);
    return t->offload != NULL
               ? offload_enter(t->offload, unit, t->streams[DEV_STREAM_COMPUTE], shards)
               : 0;
}

int state_leave(struct trainer *t, uint32_t unit, bool written) {
    return t->offload != NULL
               ? offload_leave(t->offload, unit, t->streams[DEV_STREAM_COMPUTE], written)
               : mark_record(t, DEV_STREAM_COMPUTE, &t->applied[unit % TRAINER_APPLIED]);
}

int state_settle(struct trainer *t, uint32_t unit) {
    return t->offload != NULL ? offload_settle(t->offload, unit)
                              : mark_synchronize(t, &t->applied[unit % TRAINER_APPLIED]);
}
