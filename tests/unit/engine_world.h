/* engine_world.h - arrays of one rank of a small model, whose every element says of which array,
 * place and version it is. */
#ifndef GFS_TESTS_ENGINE_WORLD_H
#define GFS_TESTS_ENGINE_WORLD_H

#include "async_device.h"
#include "engine/arrays.h"

enum { WORLD_UNITS = 3, WORLD_DEADLINE_SECONDS = 120 };

/* The ring of a world in device memory. */
struct world_device {
    enum async_order order;
    uint64_t seed;
    size_t slot_bytes;
    uint32_t slot_count, threads;
    /* of race_run: async_device_fail once the first version is there; 0: it never fails */
    uint64_t fail_at;
    bool dead;
};

struct world {
    struct layout layout;
    struct arrays *arrays;
    uint32_t rank;
    float *memory; /* all shards */
    size_t memory_bytes;
    /* of a world in device memory; else NULL */
    struct device *dev;
    struct stage *stage;
    struct dev_stream *writers[2]; /* of state, of gradients */
    struct dev_event *written[2];
};

/* wide_elems: elements of the largest tensor, in unit 0. */
void world_open(struct world *w, uint32_t rank, uint32_t world_size, uint64_t wide_elems);
/* on NULL: memory of the host. */
void world_open_on(struct world *w, uint32_t rank, uint32_t world_size, uint64_t wide_elems,
                   const struct world_device *on);
void world_close(struct world *w);

/* What element i of the shard is at gen. */
float world_value(enum array array, uint32_t unit, uint64_t i, uint64_t gen);
/* On a device it is queued; world_wait returns when what was queued for this array is complete. */
void world_fill(struct world *w, enum array array, uint32_t unit, uint64_t gen);
void world_wait(struct world *w, enum array array);
/* begin, all elements, end; the step is gen - 1. */
void world_write_state(struct world *w, uint32_t unit, uint64_t gen);
void world_write_grads(struct world *w, uint32_t unit, uint64_t gen);
/* A whole step: gradients, then parameters and moments of all units. */
void world_write_all(struct world *w, uint64_t gen);

/* data holds elements [lo, hi), all of gen. */
bool world_is(enum array array, uint32_t unit, uint64_t lo, uint64_t hi, uint64_t gen,
              const void *data);
/* Elements of this rank's shard. */
uint64_t world_valid(const struct world *w, uint32_t unit);
/* dump holds everything in the mask; grads_gen 0: gradients are zeros. */
bool world_is_dump(const struct world *w, uint32_t mask, uint64_t gen, uint64_t grads_gen,
                   const uint8_t *dump);

#endif
