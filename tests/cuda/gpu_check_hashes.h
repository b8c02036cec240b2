/* gpu_check_hashes.h - what the arrays of a run were in each version: checksums of blocks, so that
 * a copy of any range can be told from that of another version.
 *
 * For runs of one rank, whose shards are the units. */
#ifndef GFS_TESTS_CUDA_GPU_CHECK_HASHES_H
#define GFS_TESTS_CUDA_GPU_CHECK_HASHES_H

#include "tests/cuda/gpu_check_rig.h"

enum { HASH_BLOCK_ELEMS = 256, HASH_UNITS_MAX = 64 };

/* Lies in shared memory: a run in one process fills it, one in another compares. */
struct hashes {
    uint64_t steps;
    uint64_t block_count; /* of all units */
    double losses[RUN_MAX_STEPS];
    uint64_t first_block[HASH_UNITS_MAX]; /* by unit */
    uint64_t blocks[]; /* [gen - 1][ARRAY_COUNT][block_count]; gen 1 is before the first step */
};

/* Trains alone, in a process of its own, and notes every version. *out is shared, and stays. */
int hashes_of(const struct run_spec *spec, double seconds, struct hashes **out, struct err *err);
uint64_t hash_block(const float *p, uint64_t elems);
uint64_t unit_blocks(uint64_t elems);
/* Whether blocks [from, from + elems of them) of a unit's array are of that version; from is a
 * multiple of a block, and so is elems unless it goes to the unit's end. */
bool hashes_agree(const struct hashes *h, uint64_t gen, enum array a, uint32_t unit,
                  uint64_t from_elems, const float *p, uint64_t elems);

#endif
