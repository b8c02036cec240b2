/* layout.c - the arithmetic of shards: sums, minima, and nothing else. */
#include "config.h"

#include "shard/layout.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const char *const array_names[ARRAY_COUNT] = {"params", "grads", "exp_avg", "exp_avg_sq"};

/* Most elements of all units together: bytes of all four arrays stay far below 2^63. */
#define LAYOUT_MAX_ELEMS (UINT64_C(1) << 56)

void layout_free(struct layout *l) {
    free(l->tensors);
    free(l->units);
    *l = (struct layout){0};
}

static int layout_place(struct layout *l, const uint32_t *unit_of, struct err *err) {
    uint64_t total = 0;
    uint32_t last = 0; /* unit other than the root */
    for (uint32_t i = 0; i < l->tensor_count; i++) {
        struct layout_tensor *t = &l->tensors[i];
        int rc = tensor_numel(&t->spec, &t->numel);
        if (rc != 0)
            return err_set(err, -rc, "tensor %s: its shape is too large", t->spec.name);
        if (unit_of[i] >= l->unit_count)
            return err_set(err, EINVAL, "tensor %s: unit %u of %u", t->spec.name, unit_of[i],
                           l->unit_count);
        if (unit_of[i] != 0 && unit_of[i] != last && unit_of[i] != last + 1)
            return err_set(err, EINVAL, "tensor %s: unit %u after unit %u", t->spec.name,
                           unit_of[i], last);
        if (unit_of[i] != 0)
            last = unit_of[i];
        struct layout_unit *u = &l->units[unit_of[i]];
        t->unit = unit_of[i];
        t->offset_elems = u->numel;
        if (u->tensor_count == 0)
            u->first_tensor = i;
        u->tensor_count++;
        if (t->numel > LAYOUT_MAX_ELEMS - total)
            return err_set(err, EOVERFLOW, "tensor %s makes the model too large", t->spec.name);
        total += t->numel;
        u->numel += t->numel;
    }
    return 0;
}

int layout_build(const struct tensor_spec *tensors, const uint32_t *unit_of, uint32_t tensor_count,
                 const char *const *unit_names, uint32_t unit_count, uint32_t world_size,
                 uint32_t align_elems, struct layout *out, struct err *err) {
    if (world_size == 0 || world_size > LAYOUT_MAX_RANKS)
        return err_set(err, EINVAL, "world size %u: 1 to %d ranks are possible", world_size,
                       LAYOUT_MAX_RANKS);
    if (tensor_count > LAYOUT_MAX_TENSORS || unit_count > LAYOUT_MAX_TENSORS || align_elems == 0)
        return err_set(err, EINVAL, "%u tensors in %u units: too many", tensor_count, unit_count);
    struct layout l = {
        .world_size = world_size, .tensor_count = tensor_count, .unit_count = unit_count};
    l.tensors = calloc((size_t)tensor_count + 1, sizeof(*l.tensors));
    l.units = calloc((size_t)unit_count + 1, sizeof(*l.units));
    int rc = -ENOMEM;
    if (l.tensors == NULL || l.units == NULL) {
        err_set(err, ENOMEM, "no memory for the layout");
        goto failed;
    }
    for (uint32_t i = 0; i < tensor_count; i++)
        l.tensors[i].spec = tensors[i];
    for (uint32_t u = 0; u < unit_count; u++)
        strncpy(l.units[u].name, unit_names[u], sizeof(l.units[u].name) - 1);
    rc = layout_place(&l, unit_of, err);
    if (rc != 0)
        goto failed;
    for (uint32_t u = 0; u < unit_count; u++) {
        uint64_t shard = (l.units[u].numel + world_size - 1) / world_size;
        l.units[u].shard_elems = (shard + align_elems - 1) / align_elems * align_elems;
    }
    *out = l;
    return 0;
failed:
    layout_free(&l);
    return rc;
}

uint64_t layout_shard_valid(const struct layout *l, uint32_t unit, uint32_t rank) {
    const struct layout_unit *u = &l->units[unit];
    uint64_t first = rank * u->shard_elems;
    if (first >= u->numel)
        return 0;
    uint64_t left = u->numel - first;
    return left < u->shard_elems ? left : u->shard_elems;
}

struct layout_piece layout_tensor_piece(const struct layout *l, uint32_t tensor, uint32_t rank) {
    const struct layout_tensor *t = &l->tensors[tensor];
    uint64_t shard = l->units[t->unit].shard_elems;
    uint64_t lo = rank * shard, hi = lo + shard;
    uint64_t end = t->offset_elems + t->numel;
    struct layout_piece p = {.rank = rank};
    if (lo < t->offset_elems)
        lo = t->offset_elems;
    if (hi > end)
        hi = end;
    if (lo >= hi)
        return p;
    p.shard_offset_elems = lo - rank * shard;
    p.tensor_offset_elems = lo - t->offset_elems;
    p.elems = hi - lo;
    return p;
}

void layout_tensor_pieces(const struct layout *l, uint32_t tensor, struct layout_piece *pieces,
                          uint32_t cap, uint32_t *count) {
    const struct layout_tensor *t = &l->tensors[tensor];
    uint64_t shard = l->units[t->unit].shard_elems;
    *count = 0;
    if (t->numel == 0)
        return;
    uint32_t first = (uint32_t)(t->offset_elems / shard);
    uint32_t last = (uint32_t)((t->offset_elems + t->numel - 1) / shard);
    for (uint32_t r = first; r <= last; r++) {
        if (*count < cap)
            pieces[*count] = layout_tensor_piece(l, tensor, r);
        (*count)++;
    }
}

uint64_t layout_dump_offset(const struct layout *l, uint32_t array_mask, uint32_t rank,
                            enum array a, uint32_t unit) {
    uint64_t per_array = 0, before = 0;
    for (uint32_t u = 0; u < l->unit_count; u++) {
        uint64_t valid = layout_shard_valid(l, u, rank);
        per_array += valid;
        if (u < unit)
            before += valid;
    }
    uint64_t arrays_before = 0;
    for (uint32_t i = 0; i < (uint32_t)a; i++)
        arrays_before += (array_mask >> i) & 1;
    return (arrays_before * per_array + before) * TENSOR_ELEM_BYTES;
}

uint64_t layout_dump_bytes(const struct layout *l, uint32_t array_mask, uint32_t rank) {
    return layout_dump_offset(l, array_mask, rank, ARRAY_COUNT, 0);
}

int layout_find_tensor(const struct layout *l, const char *name) {
    for (uint32_t i = 0; i < l->tensor_count; i++)
        if (strcmp(l->tensors[i].spec.name, name) == 0)
            return (int)i;
    return -ENOENT;
}

uint64_t layout_numel(const struct layout *l) {
    uint64_t n = 0;
    for (uint32_t u = 0; u < l->unit_count; u++)
        n += l->units[u].numel;
    return n;
}

void layout_encode(const struct layout *l, struct enc *out) {
    enc_u32(out, l->world_size);
    enc_u32(out, l->unit_count);
    for (uint32_t u = 0; u < l->unit_count; u++) {
        enc_str(out, l->units[u].name);
        enc_u64(out, l->units[u].shard_elems);
    }
    enc_u32(out, l->tensor_count);
    for (uint32_t i = 0; i < l->tensor_count; i++) {
        const struct layout_tensor *t = &l->tensors[i];
        enc_str(out, t->spec.name);
        enc_u32(out, t->unit);
        enc_u32(out, t->spec.module);
        enc_u8(out, t->spec.decay);
        enc_u8(out, (uint8_t)t->spec.ndim);
        for (uint32_t d = 0; d < t->spec.ndim; d++)
            enc_u64(out, t->spec.shape[d]);
    }
}

/* What layout_decode reads before it builds: the shard sizes must agree with the arithmetic. */
struct layout_input {
    uint32_t world_size, unit_count, tensor_count;
    char (*names)[TENSOR_NAME_BYTES];
    const char **name_ptrs;
    uint64_t *shard_elems;
    uint32_t *unit_of;
    struct tensor_spec *specs;
};

static void layout_input_free(struct layout_input *in) {
    free(in->names);
    free(in->name_ptrs);
    free(in->shard_elems);
    free(in->unit_of);
    free(in->specs);
}

/* Encoded, without the bytes of names and shapes: counts are held against the input before memory
 * is asked for. */
enum { LAYOUT_UNIT_MIN_BYTES = 12, LAYOUT_TENSOR_MIN_BYTES = 14 };

static bool layout_count_ok(const struct dec *d, uint32_t count, size_t min_bytes) {
    return !d->bad && count <= LAYOUT_MAX_TENSORS && count <= (size_t)(d->end - d->p) / min_bytes;
}

static int layout_input_read(struct dec *d, struct layout_input *in) {
    in->world_size = dec_u32(d);
    in->unit_count = dec_u32(d);
    if (!layout_count_ok(d, in->unit_count, LAYOUT_UNIT_MIN_BYTES))
        return -EPROTO;
    in->names = calloc((size_t)in->unit_count + 1, sizeof(*in->names));
    in->name_ptrs = calloc((size_t)in->unit_count + 1, sizeof(*in->name_ptrs));
    in->shard_elems = calloc((size_t)in->unit_count + 1, sizeof(*in->shard_elems));
    if (in->names == NULL || in->name_ptrs == NULL || in->shard_elems == NULL)
        return -ENOMEM;
    for (uint32_t u = 0; u < in->unit_count; u++) {
        dec_str(d, in->names[u], sizeof(in->names[u]));
        in->name_ptrs[u] = in->names[u];
        in->shard_elems[u] = dec_u64(d);
    }
    in->tensor_count = dec_u32(d);
    if (!layout_count_ok(d, in->tensor_count, LAYOUT_TENSOR_MIN_BYTES))
        return -EPROTO;
    in->specs = calloc((size_t)in->tensor_count + 1, sizeof(*in->specs));
    in->unit_of = calloc((size_t)in->tensor_count + 1, sizeof(*in->unit_of));
    if (in->specs == NULL || in->unit_of == NULL)
        return -ENOMEM;
    for (uint32_t i = 0; i < in->tensor_count; i++) {
        struct tensor_spec *t = &in->specs[i];
        dec_str(d, t->name, sizeof(t->name));
        in->unit_of[i] = dec_u32(d);
        t->module = dec_u32(d);
        uint8_t decay = dec_u8(d);
        t->decay = decay != 0;
        t->ndim = dec_u8(d);
        if (decay > 1 || t->ndim > TENSOR_MAX_DIMS)
            return -EPROTO;
        for (uint32_t k = 0; k < t->ndim; k++)
            t->shape[k] = dec_u64(d);
    }
    return d->bad ? -EPROTO : 0;
}

int layout_decode(struct dec *d, struct layout *out, struct err *err) {
    struct layout_input in = {0};
    struct layout l = {0};
    int rc = layout_input_read(d, &in);
    if (rc != 0) {
        err_set(err, -rc, rc == -ENOMEM ? "no memory for the layout" : "the layout is malformed");
        goto out;
    }
    rc = layout_build(in.specs, in.unit_of, in.tensor_count, in.name_ptrs, in.unit_count,
                      in.world_size, 1, &l, err);
    if (rc != 0)
        goto out;
    for (uint32_t u = 0; u < l.unit_count; u++) {
        uint64_t least = l.units[u].shard_elems;
        if (in.shard_elems[u] < least || in.shard_elems[u] > least + 65536) {
            rc = err_set(err, EPROTO, "unit %s: a shard of %llu elements does not fit its tensors",
                         l.units[u].name, (unsigned long long)in.shard_elems[u]);
            layout_free(&l);
            goto out;
        }
        l.units[u].shard_elems = in.shard_elems[u];
    }
    *out = l;
out:
    layout_input_free(&in);
    return rc;
}
