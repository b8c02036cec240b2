/* engine_world.c - a small layout and its patterns. */
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine_world.h"

static struct tensor_spec spec(const char *name, uint32_t ndim, uint64_t rows, uint64_t cols) {
    struct tensor_spec t = {.ndim = ndim, .shape = {rows, cols}};
    strncpy(t.name, name, sizeof(t.name) - 1);
    return t;
}

void world_open(struct world *w, uint32_t rank, uint32_t world_size, uint64_t wide_elems) {
    static const char *const names[WORLD_UNITS] = {"root", "h.0", "h.1"};
    const struct tensor_spec tensors[] = {
        spec("wte", 1, wide_elems, 0), spec("h.0.weight", 2, 10, 10), spec("h.0.bias", 1, 7, 0),
        spec("h.1.weight", 2, 3, 11),  spec("ln_f", 1, 8, 0),
    };
    const uint32_t unit_of[] = {0, 1, 1, 2, 0};
    struct err err = {0};
    *w = (struct world){.rank = rank};
    int rc = layout_build(tensors, unit_of, 5, names, WORLD_UNITS, world_size,
                          LAYOUT_SHARD_ALIGN_ELEMS, &w->layout, &err);
    if (rc != 0)
        fail_msg("%s", err.text);
    assert_int_equal(arrays_open(&w->layout, rank, &w->arrays, &err), 0);
    uint64_t elems = 0;
    for (uint32_t u = 0; u < WORLD_UNITS; u++)
        elems += ARRAY_COUNT * w->layout.units[u].shard_elems;
    w->memory = calloc(elems, sizeof(*w->memory));
    assert_non_null(w->memory);
    float *at = w->memory;
    for (uint32_t u = 0; u < WORLD_UNITS; u++) {
        for (enum array a = 0; a < ARRAY_COUNT; a++) {
            arrays_set_shard(w->arrays, a, u, at);
            at += w->layout.units[u].shard_elems;
        }
    }
}

void world_close(struct world *w) {
    arrays_close(w->arrays);
    layout_free(&w->layout);
    free(w->memory);
}

/* Whole numbers below 2^24: exact. */
float world_value(enum array array, uint32_t unit, uint64_t i, uint64_t gen) {
    return (float)((gen & 0xffff) * 256 + (i * 7 + unit * 31 + (uint64_t)array * 61) % 256);
}

void world_fill(struct world *w, enum array array, uint32_t unit, uint64_t gen) {
    float *shard = arrays_shard(w->arrays, array, unit);
    for (uint64_t i = 0; i < world_valid(w, unit); i++)
        shard[i] = world_value(array, unit, i, gen);
}

void world_write_state(struct world *w, uint32_t unit, uint64_t gen) {
    arrays_state_begin(w->arrays, unit);
    world_fill(w, ARRAY_PARAMS, unit, gen);
    world_fill(w, ARRAY_EXP_AVG, unit, gen);
    world_fill(w, ARRAY_EXP_AVG_SQ, unit, gen);
    arrays_state_end(w->arrays, unit, gen, gen - 1);
}

void world_write_grads(struct world *w, uint32_t unit, uint64_t gen) {
    arrays_grads_begin(w->arrays, unit);
    world_fill(w, ARRAY_GRADS, unit, gen);
    arrays_grads_end(w->arrays, unit, gen, gen - 1);
}

void world_write_all(struct world *w, uint64_t gen) {
    for (uint32_t u = 0; u < WORLD_UNITS; u++)
        world_write_grads(w, u, gen);
    for (uint32_t u = 0; u < WORLD_UNITS; u++)
        world_write_state(w, u, gen);
}

bool world_is(enum array array, uint32_t unit, uint64_t lo, uint64_t hi, uint64_t gen,
              const void *data) {
    const uint8_t *p = data;
    for (uint64_t i = lo; i < hi; i++) {
        float value = world_value(array, unit, i, gen);
        uint32_t is, want;
        memcpy(&is, p + (i - lo) * sizeof(is), sizeof(is));
        memcpy(&want, &value, sizeof(want));
        if (is != want)
            return false;
    }
    return true;
}

uint64_t world_valid(const struct world *w, uint32_t unit) {
    return layout_shard_valid(&w->layout, unit, w->rank);
}

bool world_is_dump(const struct world *w, uint32_t mask, uint64_t gen, uint64_t grads_gen,
                   const uint8_t *dump) {
    for (enum array a = 0; a < ARRAY_COUNT; a++) {
        for (uint32_t u = 0; u < WORLD_UNITS && (mask & ARRAY_BIT(a)) != 0; u++) {
            uint64_t hi = world_valid(w, u);
            const uint8_t *at = dump + layout_dump_offset(&w->layout, mask, w->rank, a, u);
            bool zeros = a == ARRAY_GRADS && grads_gen == 0;
            for (uint64_t i = 0; zeros && i < hi * TENSOR_ELEM_BYTES; i++)
                if (at[i] != 0)
                    return false;
            if (!zeros && !world_is(a, u, 0, hi, a == ARRAY_GRADS ? grads_gen : gen, at))
                return false;
        }
    }
    return true;
}
