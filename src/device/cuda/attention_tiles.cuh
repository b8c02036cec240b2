/* attention_tiles.cuh - for the kernels of attention: where the rows of a head lie, and exponents
 * of base 2. */
#ifndef GFS_DEVICE_CUDA_ATTENTION_TILES_CUH
#define GFS_DEVICE_CUDA_ATTENTION_TILES_CUH

#include <math.h>

#include "device/cuda/attention.h"
#include "device/cuda/vec.cuh"

#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f

/* The first element of one head in qkv and dqkv (rows of 3C; k and v are C and 2C further on), in
 * out and dout (rows of C), and in lse and delta. */
struct head_rows {
    size_t qkv, out, lse;
};

GFS_DEVICE head_rows head_rows_of(const struct attention &a, int head) {
    const size_t b = (size_t)(head / a.NH), h = (size_t)(head % a.NH), T = (size_t)a.T;
    return {b * T * 3 * a.C + h * a.D, b * T * a.C + h * a.D, (size_t)head * T};
}

/* Scores times this are exponents of 2. */
GFS_DEVICE float score_scale(int D) { return LOG2_E * rsqrtf((float)D); }

/* Tiles of `rows` rows */
static __host__ __device__ __forceinline__ int tiles_of(int T, int rows) {
    return (T + rows - 1) / rows;
}

#endif
