/* arrays_race.h - a main thread that writes steps and a service thread that takes, serves and
 * cancels, on one table of arrays, as fast as they can. */
#ifndef GFS_TESTS_ARRAYS_RACE_H
#define GFS_TESTS_ARRAYS_RACE_H

#include <stdatomic.h>

#include "engine_world.h"

enum { READER_HOLDS = 12 };

struct race {
    struct world w;
    bool may_fail; /* the device is going to */
    atomic_bool stop;
    atomic_uint_fast64_t gen;     /* begun last */
    atomic_uint_fast64_t answers; /* the reader's, of any kind */
    /* the reader's */
    struct hold holds[READER_HOLDS];
    float *buffers[READER_HOLDS];
    uint64_t copied, passed, none, failed, waited, cancelled;
    const char *wrong;
};

/* Zeroed but for may_fail. on: NULL for memory of the host. At least so many steps, and so many
 * that a reader who got his core late has had enough answers. Fails the test if a copy is not of
 * one version, or of another than asked for. */
void race_run(struct race *r, const struct world_device *on, uint64_t wide_elems, uint64_t steps);

#endif
