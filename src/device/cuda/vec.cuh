/* vec.cuh - what the kernels share: vectors of 16 bytes of f32 and bf16, ranges cut into such
 * vectors, sums over warps and blocks, grids.
 *
 * A vector of E elements is unpacked to floats, E = 1 is a scalar: one source serves both the rows
 * that are aligned and those that are not. */
#ifndef GFS_DEVICE_CUDA_VEC_CUH
#define GFS_DEVICE_CUDA_VEC_CUH

#include <stddef.h>
#include <stdint.h>

#include "device/cuda/kernels.h"
#include "device/cuda/launch.h"

typedef __nv_bfloat16 bf16;

#define GFS_DEVICE static __device__ __forceinline__

enum { WARP = 32, VEC_BYTES = 16 };

/* ---- vectors ---- */

/* Elements of a vector of 16 bytes. */
template <typename T> struct vec_of {
    enum { elems = VEC_BYTES / sizeof(T) };
};

/* 16 bytes as they lie in memory: half the registers of the floats in it, for bf16. */
template <typename T> struct vec_raw { uint4 words; };

GFS_DEVICE float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
GFS_DEVICE float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
GFS_DEVICE uint32_t bf16_pair(float low, float high) {
    uint32_t a = __bfloat16_as_ushort(__float2bfloat16_rn(low));
    uint32_t b = __bfloat16_as_ushort(__float2bfloat16_rn(high));
    return a | b << 16;
}

GFS_DEVICE void vec_unpack(const vec_raw<float> &v, float (&x)[4]) {
    x[0] = __uint_as_float(v.words.x);
    x[1] = __uint_as_float(v.words.y);
    x[2] = __uint_as_float(v.words.z);
    x[3] = __uint_as_float(v.words.w);
}
GFS_DEVICE void vec_unpack(const vec_raw<bf16> &v, float (&x)[8]) {
    x[0] = bf16_low(v.words.x), x[1] = bf16_high(v.words.x);
    x[2] = bf16_low(v.words.y), x[3] = bf16_high(v.words.y);
    x[4] = bf16_low(v.words.z), x[5] = bf16_high(v.words.z);
    x[6] = bf16_low(v.words.w), x[7] = bf16_high(v.words.w);
}
template <typename T> GFS_DEVICE vec_raw<T> vec_fetch(const T *p) {
    vec_raw<T> v;
    v.words = *reinterpret_cast<const uint4 *>(p);
    return v;
}

/* x[i] = p[i], i < E; p is aligned to E elements or to 16 bytes, whichever is less. */
template <int E> GFS_DEVICE void vec_load(const float *p, float (&x)[E]) {
    if constexpr (E == 1) {
        x[0] = *p;
    } else {
        static_assert(E % 4 == 0, "whole vectors");
#pragma unroll
        for (int i = 0; i < E; i += 4) {
            float4 v = *reinterpret_cast<const float4 *>(p + i);
            x[i] = v.x, x[i + 1] = v.y, x[i + 2] = v.z, x[i + 3] = v.w;
        }
    }
}
template <int E> GFS_DEVICE void vec_load(const bf16 *p, float (&x)[E]) {
    if constexpr (E == 1) {
        x[0] = __bfloat162float(*p);
    } else if constexpr (E == 4) {
        uint2 v = *reinterpret_cast<const uint2 *>(p);
        x[0] = bf16_low(v.x), x[1] = bf16_high(v.x);
        x[2] = bf16_low(v.y), x[3] = bf16_high(v.y);
    } else {
        static_assert(E == 8, "one vector");
        vec_unpack(vec_fetch(p), x);
    }
}

/* p[i] = x[i], rounded to nearest even. */
template <int E> GFS_DEVICE void vec_store(float *p, const float (&x)[E]) {
    if constexpr (E == 1) {
        *p = x[0];
    } else {
        static_assert(E % 4 == 0, "whole vectors");
#pragma unroll
        for (int i = 0; i < E; i += 4)
            *reinterpret_cast<float4 *>(p + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
    }
}
template <int E> GFS_DEVICE void vec_store(bf16 *p, const float (&x)[E]) {
    if constexpr (E == 1) {
        *p = __float2bfloat16_rn(x[0]);
    } else if constexpr (E == 4) {
        *reinterpret_cast<uint2 *>(p) = make_uint2(bf16_pair(x[0], x[1]), bf16_pair(x[2], x[3]));
    } else {
        static_assert(E == 8, "one vector");
        *reinterpret_cast<uint4 *>(p) = make_uint4(bf16_pair(x[0], x[1]), bf16_pair(x[2], x[3]),
                                                   bf16_pair(x[4], x[5]), bf16_pair(x[6], x[7]));
    }
}

/* x as it is after a store to T. */
template <typename T> GFS_DEVICE float rounded(float x) {
    if constexpr (sizeof(T) == sizeof(bf16))
        return __bfloat162float(__float2bfloat16_rn(x));
    else
        return x;
}

/* ---- ranges ---- */

/* A range of elems elements: `head` single ones up to an address where vectors begin, units vectors
 * of E, and single ones up to the end. */
struct flat {
    size_t head, units, elems;
};

template <typename T> static inline bool vec_aligned(const T *p, size_t first, int E) {
    size_t vec = VEC_BYTES, whole = E * sizeof(T), bytes = whole < vec ? whole : vec;
    return p == NULL || reinterpret_cast<uintptr_t>(p + first) % bytes == 0;
}

/* All pointers have to meet the alignment at the same element; where they never do there are no
 * vectors. NULL goes with anything. */
template <int E, typename... P> static inline struct flat flat_of(size_t elems, const P *...p) {
    for (size_t head = 0; head < E && head < elems; head++)
        if ((vec_aligned(p, head, E) && ...))
            return {head, (elems - head) / E, elems};
    return {elems, 0, elems};
}

GFS_DEVICE size_t flat_single_count(const struct flat &f, int E) {
    return f.elems - f.units * (size_t)E;
}
/* The index of the j-th of those elements that are in no vector. */
GFS_DEVICE size_t flat_single(const struct flat &f, int E, size_t j) {
    return j < f.head ? j : j + f.units * (size_t)E;
}

/* All threads of the grid go over a range together: for (i = grid_first(); i < n; i +=
 * grid_stride()). */
GFS_DEVICE size_t grid_first(void) { return (size_t)blockIdx.x * blockDim.x + threadIdx.x; }
GFS_DEVICE size_t grid_stride(void) { return (size_t)gridDim.x * blockDim.x; }

static inline size_t ceil_div(size_t a, size_t b) { return a / b + (a % b != 0); }
static inline size_t size_min(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t size_max(size_t a, size_t b) { return a > b ? a : b; }

/* More blocks than an SM holds at once, so that no SM waits long for another at the end, and few
 * enough that what a thread does beside its vectors does not count. */
enum { FLAT_THREADS = 256, FLAT_BLOCKS_PER_SM = 64 };

/* Blocks of FLAT_THREADS for so many threads' worth of work, at least one. */
static inline unsigned flat_blocks(const struct cuda_call *c, size_t work) {
    size_t most = (size_t)c->sm_count * FLAT_BLOCKS_PER_SM;
    return (unsigned)size_max(1, size_min(ceil_div(work, FLAT_THREADS), most));
}
static inline unsigned flat_grid(const struct cuda_call *c, const struct flat &f) {
    return flat_blocks(c, size_max(f.units, f.units == 0 ? f.elems : 1));
}

/* A matrix (N, C) by blocks of COLUMN_LANES x COLUMN_ROWS threads: a thread has the same E columns
 * in every row that it goes through. */
enum { COLUMN_LANES = 32, COLUMN_ROWS = 8 };

static inline dim3 column_grid(const struct cuda_call *c, size_t N, size_t C, int E) {
    size_t tiles = ceil_div(C, (size_t)COLUMN_LANES * E);
    size_t most = ceil_div((size_t)c->sm_count * FLAT_BLOCKS_PER_SM, tiles);
    return dim3((unsigned)tiles, (unsigned)size_min(ceil_div(N, COLUMN_ROWS), most));
}

/* ---- sums ---- */

/* Of the values of a warp, the same in every lane; all lanes take part. */
template <typename F> GFS_DEVICE F warp_sum(F x) {
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

/* Of the values of a block of warps * 32 threads, the same in every thread. shared holds a value a
 * warp and is free again at the next barrier. */
template <typename F> GFS_DEVICE F block_sum(F x, F *shared, int warps) {
    x = warp_sum(x);
    if (threadIdx.x % WARP == 0)
        shared[threadIdx.x / WARP] = x;
    __syncthreads();
    F sum = shared[0];
    for (int w = 1; w < warps; w++)
        sum += shared[w];
    return sum;
}

#endif
