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

static void world_memory(struct world *w, const struct world_device *on) {
    struct err err = {0};
    void *memory = NULL;
    if (on == NULL) {
        w->memory = calloc(1, w->memory_bytes);
        assert_non_null(w->memory);
        return;
    }
    const struct device_ops *ops = &async_device_ops;
    w->dev = async_device_open(on->order, on->seed);
    assert_int_equal(ops->alloc(w->dev, DEV_MEM_DEVICE, w->memory_bytes, "shards", &memory), 0);
    w->memory = memory;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ops->stream_open(w->dev, i == 0 ? DEV_STREAM_COMPUTE : DEV_STREAM_REDUCE,
                                          &w->writers[i]),
                         0);
        assert_int_equal(ops->event_open(w->dev, "written", &w->written[i]), 0);
    }
    struct stage_args args = {.ops = ops,
                              .dev = w->dev,
                              .slot_bytes = on->slot_bytes,
                              .slot_count = on->slot_count,
                              .threads = on->threads};
    assert_int_equal(stage_open(&args, &w->stage, &err), 0);
    arrays_set_stage(w->arrays, w->stage, w->writers[0], w->writers[1]);
}

void world_open(struct world *w, uint32_t rank, uint32_t world_size, uint64_t wide_elems) {
    world_open_on(w, rank, world_size, wide_elems, NULL);
}

void world_open_on(struct world *w, uint32_t rank, uint32_t world_size, uint64_t wide_elems,
                   const struct world_device *on) {
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
    for (uint32_t u = 0; u < WORLD_UNITS; u++)
        w->memory_bytes += ARRAY_COUNT * w->layout.units[u].shard_elems * sizeof(float);
    world_memory(w, on);
    float *at = w->memory;
    for (uint32_t u = 0; u < WORLD_UNITS; u++) {
        for (enum array a = 0; a < ARRAY_COUNT; a++) {
            arrays_set_shard(w->arrays, a, u, at);
            at += w->layout.units[u].shard_elems;
        }
    }
}

void world_close(struct world *w) {
    const struct device_ops *ops = &async_device_ops;
    stage_close(w->stage);
    arrays_close(w->arrays);
    layout_free(&w->layout);
    if (w->dev == NULL) {
        free(w->memory);
        return;
    }
    for (int i = 0; i < 2; i++) {
        world_wait(w, i == 0 ? ARRAY_PARAMS : ARRAY_GRADS);
        ops->event_close(w->dev, w->written[i]);
        ops->stream_close(w->dev, w->writers[i]);
    }
    ops->free(w->dev, DEV_MEM_DEVICE, w->memory, w->memory_bytes);
    ops->close(w->dev);
}

/* Whole numbers below 2^24: exact. */
float world_value(enum array array, uint32_t unit, uint64_t i, uint64_t gen) {
    return (float)((gen & 0xffff) * 256 + (i * 7 + unit * 31 + (uint64_t)array * 61) % 256);
}

void world_fill(struct world *w, enum array array, uint32_t unit, uint64_t gen) {
    uint64_t elems = world_valid(w, unit);
    float *shard = arrays_shard(w->arrays, array, unit);
    float *to = w->dev == NULL ? shard : malloc((elems + 1) * sizeof(*to));
    for (uint64_t i = 0; i < elems; i++)
        to[i] = world_value(array, unit, i, gen);
    if (w->dev == NULL)
        return;
    async_device_write(w->dev, w->writers[array == ARRAY_GRADS], shard, to, elems * sizeof(*to));
    free(to);
}

void world_wait(struct world *w, enum array array) {
    const struct device_ops *ops = &async_device_ops;
    int i = array == ARRAY_GRADS;
    if (w->dev == NULL)
        return;
    assert_int_equal(ops->event_record(w->dev, w->writers[i], w->written[i]), 0);
    assert_int_equal(ops->event_synchronize(w->dev, w->written[i]), 0);
}

void world_write_state(struct world *w, uint32_t unit, uint64_t gen) {
    arrays_state_begin(w->arrays, unit);
    world_fill(w, ARRAY_PARAMS, unit, gen);
    world_fill(w, ARRAY_EXP_AVG, unit, gen);
    world_fill(w, ARRAY_EXP_AVG_SQ, unit, gen);
    world_wait(w, ARRAY_PARAMS);
    arrays_state_end(w->arrays, unit, gen, gen - 1);
}

void world_write_grads(struct world *w, uint32_t unit, uint64_t gen) {
    arrays_grads_begin(w->arrays, unit);
    world_fill(w, ARRAY_GRADS, unit, gen);
    world_wait(w, ARRAY_GRADS);
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
