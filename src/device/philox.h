/* philox.h - counter-based random numbers: value i is a function of (seed, sequence, i) alone.
 *
 * Philox 4x32 with 10 rounds (Salmon et al., 2011); normals by Box and Muller, in double, rounded
 * once to float. */
#ifndef GFS_DEVICE_PHILOX_H
#define GFS_DEVICE_PHILOX_H

#include <stddef.h>
#include <stdint.h>

/* counter and out are (4), key is (2); out may be counter. */
void philox_4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* out[j] = mean + std * normal number first + j of (seed, sequence), j < elems. Numbers 4b..4b+3
 * come from counter {b, b >> 32, sequence, sequence >> 32} with key {seed, seed >> 32}: pairs (r
 * cos a, r sin a) of its words (0, 1) and (2, 3), r = sqrt(-2 ln((w + 1) / 2^32)), a = 2 pi w' /
 * 2^32. */
void philox_normal(float *out, size_t elems, uint64_t seed, uint64_t sequence, uint64_t first,
                   float mean, float std);

#endif
