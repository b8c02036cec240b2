/* gpu_check_hashes.c - a run alone, and the checksums of every version of its arrays. */
#include "config.h"

#include "tests/cuda/gpu_check_hashes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Two elements at a time, each mixed in by what splitmix64 ends with. */
uint64_t hash_block(const float *p, uint64_t elems) {
    uint64_t h = elems;
    for (uint64_t i = 0; i < elems; i += 2) {
        uint64_t word = 0;
        memcpy(&word, p + i, (elems - i < 2 ? elems - i : 2) * sizeof *p);
        h ^= word;
        h = (h ^ h >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        h = (h ^ h >> 27) * UINT64_C(0x94d049bb133111eb);
        h ^= h >> 31;
    }
    return h;
}

uint64_t unit_blocks(uint64_t elems) { return (elems + HASH_BLOCK_ELEMS - 1) / HASH_BLOCK_ELEMS; }

static uint64_t *block_at(struct hashes *h, uint64_t gen, enum array a, uint32_t unit) {
    return h->blocks + ((gen - 1) * ARRAY_COUNT + a) * h->block_count + h->first_block[unit];
}

static void hash_all(const float *p, uint64_t elems, uint64_t *out) {
    for (uint64_t at = 0; at < elems; at += HASH_BLOCK_ELEMS)
        *out++ = hash_block(p + at, elems - at < HASH_BLOCK_ELEMS ? elems - at : HASH_BLOCK_ELEMS);
}

bool hashes_agree(const struct hashes *h, uint64_t gen, enum array a, uint32_t unit,
                  uint64_t from_elems, const float *p, uint64_t elems) {
    if (gen < 1 || gen > h->steps + 1)
        return false;
    const uint64_t *want = h->blocks + ((gen - 1) * ARRAY_COUNT + a) * h->block_count +
                           h->first_block[unit] + from_elems / HASH_BLOCK_ELEMS;
    for (uint64_t at = 0; at < elems; at += HASH_BLOCK_ELEMS)
        if (*want++ !=
            hash_block(p + at, elems - at < HASH_BLOCK_ELEMS ? elems - at : HASH_BLOCK_ELEMS))
            return false;
    return true;
}

struct alone {
    const struct run_spec *spec;
    struct hashes *hashes;
};

static int note_version(struct rig *r, struct hashes *h, uint64_t gen, float *scratch,
                        struct err *err) {
    int rc = 0;
    for (uint32_t u = 0; u < r->shape.layout.unit_count && rc == 0; u++)
        for (enum array a = ARRAY_PARAMS; a < ARRAY_COUNT && rc == 0; a++) {
            uint64_t elems = layout_shard_valid(&r->shape.layout, u, 0);
            if (a == ARRAY_GRADS && gen == 1)
                continue; /* there are none */
            rc = rig_read(r, a, u, 0, elems, scratch);
            if (rc == 0)
                hash_all(scratch, elems, block_at(h, gen, a, u));
            else
                err_set(err, -rc, "reading %s of %s: %s", array_names[a],
                        r->shape.layout.units[u].name, strerror(-rc));
        }
    return rc;
}

static int alone_steps(struct rig *r, struct hashes *h, struct err *err) {
    uint64_t largest = 1;
    for (uint32_t u = 0; u < r->shape.layout.unit_count; u++)
        if (largest < r->shape.layout.units[u].numel)
            largest = r->shape.layout.units[u].numel;
    float *scratch = malloc(largest * sizeof *scratch);
    if (scratch == NULL)
        return err_set(err, ENOMEM, "no memory for a unit");
    int rc = rig_init(r, err);
    if (rc == 0)
        rc = note_version(r, h, 1, scratch, err);
    for (uint64_t step = 0; step < r->spec->steps && rc == 0; step++) {
        struct step_result s;
        rc = rig_step(r, step, &s, err);
        if (rc == 0) {
            h->losses[step] = s.loss;
            rc = note_version(r, h, step + 2, scratch, err);
        }
    }
    free(scratch);
    return rc;
}

static int alone_body(uint32_t rank, void *arg, struct err *err) {
    const struct alone *a = arg;
    struct rig r;
    int rc = rig_open(&r, a->spec, rank, err);
    if (rc == 0)
        rc = alone_steps(&r, a->hashes, err);
    rig_close(&r);
    return rc;
}

/* Where the units' blocks begin; how many there are. */
static int plan_blocks(const struct run_spec *spec, uint64_t first[HASH_UNITS_MAX], uint64_t *count,
                       struct err *err) {
    struct rig_shape shape;
    int rc = rig_shape_open(&shape, spec, err);
    *count = 0;
    if (rc == 0 && shape.layout.unit_count > HASH_UNITS_MAX)
        rc = err_set(err, EOVERFLOW, "%u units", shape.layout.unit_count);
    for (uint32_t u = 0; rc == 0 && u < shape.layout.unit_count; u++) {
        first[u] = *count;
        *count += unit_blocks(shape.layout.units[u].numel);
    }
    rig_shape_close(&shape);
    return rc;
}

int hashes_of(const struct run_spec *spec, double seconds, struct hashes **out, struct err *err) {
    uint64_t first[HASH_UNITS_MAX], count = 0;
    if (spec->ranks != 1 || spec->steps > RUN_MAX_STEPS)
        return err_set(err, EINVAL, "no such run");
    int rc = plan_blocks(spec, first, &count, err);
    if (rc != 0)
        return rc;
    struct hashes *h =
        check_shared(sizeof *h + (spec->steps + 1) * ARRAY_COUNT * count * sizeof h->blocks[0]);
    h->steps = spec->steps;
    h->block_count = count;
    memcpy(h->first_block, first, sizeof first);
    struct alone a = {spec, h};
    rc = check_world_all(1, seconds, alone_body, &a, err);
    if (rc != 0)
        return err_prefix(err, "a run without readers");
    *out = h;
    return 0;
}
