/* restore.c - verify, agree, overwrite. */
#include "config.h"

#include "engine/restore.h"

#include <errno.h>
#include <string.h>

#include "store/snapshot.h"

/* The snapshot must hold every tensor of this model, in the same shape; it may hold it in other
 * units on other ranks. */
static int restore_compare(const struct layout *mine, const struct layout *its, const char *dir,
                           struct err *err) {
    if (its->tensor_count != mine->tensor_count)
        return err_set(err, EINVAL, "%s: it has %u tensors, this model has %u", dir,
                       its->tensor_count, mine->tensor_count);
    for (uint32_t i = 0; i < mine->tensor_count; i++) {
        const struct tensor_spec *t = &mine->tensors[i].spec;
        int found = layout_find_tensor(its, t->name);
        if (found < 0)
            return err_set(err, EINVAL, "%s: it has no tensor %s", dir, t->name);
        const struct tensor_spec *s = &its->tensors[found].spec;
        if (s->ndim != t->ndim || memcmp(s->shape, t->shape, t->ndim * sizeof(t->shape[0])) != 0)
            return err_set(err, EINVAL, "%s: tensor %s has another shape than in this model", dir,
                           t->name);
    }
    return 0;
}

static int restore_verify(const struct restore_args *r, struct snapshot *s, const char *dir,
                          struct err *err) {
    const struct snapshot_info *info = snapshot_get_info(s);
    if ((info->array_mask & ARRAY_MASK_STATE) != ARRAY_MASK_STATE)
        return err_set(err, EINVAL, "%s: it lacks optimizer state, training can't go on from it",
                       dir);
    int rc = restore_compare(r->layout, snapshot_get_layout(s), dir, err);
    for (uint32_t q = r->rank; q < info->world_size && rc == 0; q += r->world_size)
        rc = snapshot_verify_rank(s, q, NULL, err);
    return rc;
}

/* A snapshot that can't be read is broken, whatever the reason: the supervisor then tries an older
 * one. */
static int restore_open(const struct restore_args *r, const char *dir, struct snapshot **s,
                        struct err *err) {
    int rc = snapshot_open_dir(dir, s, err);
    if (rc == 0)
        rc = restore_verify(r, *s, dir, err);
    if (rc == 0 || rc == -EINVAL || rc == -ENOMEM)
        return rc;
    err->code = EBADMSG;
    return -EBADMSG;
}

/* A tensor's piece in one array of this rank, as the shard sees it. */
struct restore_source {
    struct snapshot *snapshot;
    enum array array;
    const char *name;
    struct layout_piece piece;
    struct err *err;
};

static int restore_fill(void *ctx, uint64_t from, uint64_t elems, float *to) {
    const struct restore_source *s = ctx;
    uint64_t lo = s->piece.tensor_offset_elems + (from - s->piece.shard_offset_elems);
    return snapshot_read_tensor(s->snapshot, s->array, s->name, lo, lo + elems, to, s->err);
}

static int restore_unit(const struct restore_args *r, struct snapshot *s, uint32_t unit,
                        struct err *err) {
    static const enum array arrays[] = {ARRAY_PARAMS, ARRAY_EXP_AVG, ARRAY_EXP_AVG_SQ};
    const struct layout *l = r->layout;
    for (uint32_t t = 0; t < l->tensor_count; t++) {
        if (l->tensors[t].unit != unit)
            continue;
        struct restore_source from = {.snapshot = s,
                                      .name = l->tensors[t].spec.name,
                                      .piece = layout_tensor_piece(l, t, r->rank),
                                      .err = err};
        uint64_t lo = from.piece.shard_offset_elems, hi = lo + from.piece.elems;
        for (size_t a = 0; a < sizeof(arrays) / sizeof(arrays[0]) && hi > lo; a++) {
            from.array = arrays[a];
            int rc = arrays_load(r->arrays, arrays[a], unit, lo, hi, restore_fill, &from, err);
            if (rc != 0)
                return rc;
        }
    }
    return 0;
}

/* All ranks learn whether all succeeded, and if not, the first failing rank's reason. */
static int restore_agree(const struct restore_args *r, int rc, struct err *err) {
    uint64_t failing = rc != 0 ? r->rank : UINT64_MAX;
    int agreed = r->comm_ops->all_reduce_u64(r->comm, &failing, 1, COMM_MIN);
    if (agreed == 0 && failing == UINT64_MAX)
        return 0;
    struct err why = {0};
    if (agreed == 0 && failing == r->rank)
        why = *err;
    if (agreed == 0)
        agreed = r->comm_ops->broadcast(r->comm, &why, sizeof(why), (uint32_t)failing);
    if (agreed != 0)
        return err_set(err, -agreed, "the ranks could not agree on the restore: %s",
                       err_name(-agreed));
    why.text[sizeof(why.text) - 1] = '\0';
    *err = why;
    return -why.code;
}

int restore_load(const struct restore_args *r, const char *dir, uint64_t *step, bool *changed,
                 struct err *err) {
    struct snapshot *s = NULL;
    *changed = false;
    int rc = restore_agree(r, restore_open(r, dir, &s, err), err);
    if (rc != 0)
        goto out;
    *changed = true;
    uint64_t at_step = snapshot_get_info(s)->step;
    for (uint32_t u = 0; u < r->layout->unit_count && rc == 0; u++) {
        arrays_state_begin(r->arrays, u);
        rc = restore_unit(r, s, u, err);
        if (rc == 0)
            arrays_state_end(r->arrays, u, r->gen, at_step);
    }
    if (rc == 0)
        arrays_grads_none(r->arrays);
    rc = restore_agree(r, rc, err);
    if (rc == 0)
        *step = at_step;
out:
    snapshot_close(s);
    return rc;
}
