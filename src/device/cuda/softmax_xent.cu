/* softmax_xent.cu - softmax, cross-entropy and their gradient in one kernel, in place.
 *
 * A block per row. The first pass over the row finds maximum and sum together (Milakov and
 * Gimelshein, 2018), the second one writes the gradient. Rows of odd length begin at any element:
 * what lies before and behind the vectors of 16 bytes is done one by one.
 *
 * Estimate (not measured): 2 reads and 1 write of N V elements, the second read out of the L2 cache
 * as a row of 50257 is at most 200 KB and goes backwards, so 4 bytes of HBM an element in bf16 and
 * 8 in f32; some 15 operations an element, below the time of memory. */
#include "device/cuda/vec.cuh"

#include <float.h>
#include <math.h>

enum { XENT_THREADS_MAX = 1024, XENT_THREADS_MIN = 256 };

#define LOG2_E 1.4426950408889634f

/* exp(x - max) summed up to here; max is finite, so that nothing is NaN but by a NaN in the input
 */
struct online {
    float max, sum;
};

GFS_DEVICE float exp_of(float x, float max) { return exp2f((x - max) * LOG2_E); }

template <int E> GFS_DEVICE void online_add(struct online &o, const float (&x)[E]) {
    float max = o.max, sum = 0;
#pragma unroll
    for (int e = 0; e < E; e++)
        max = fmaxf(max, x[e]);
#pragma unroll
    for (int e = 0; e < E; e++)
        sum += exp_of(x[e], max);
    o.sum = fmaf(o.sum, exp_of(o.max, max), sum);
    o.max = max;
}

GFS_DEVICE struct online online_merge(struct online a, struct online b) {
    const float max = fmaxf(a.max, b.max);
    return {max, a.sum * exp_of(a.max, max) + b.sum * exp_of(b.max, max)};
}

/* The same in every lane: each step adds the same two numbers on either side. */
GFS_DEVICE struct online online_warp(struct online o) {
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        const struct online other = {__shfl_xor_sync(0xffffffffu, o.max, offset),
                                     __shfl_xor_sync(0xffffffffu, o.sum, offset)};
        o = online_merge(o, other);
    }
    return o;
}

GFS_DEVICE struct online online_block(struct online o) {
    SMEM(float, maxima, [WARP]);
    SMEM(float, sums, [WARP]);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    o = online_warp(o);
    if (lane == 0) {
        maxima[warp] = o.max;
        sums[warp] = o.sum;
    }
    __syncthreads();
    o.max = lane < warps ? maxima[lane] : -FLT_MAX;
    o.sum = lane < warps ? sums[lane] : 0;
    return online_warp(o);
}

/* x to its share of the gradient, but for the target's */
template <int E> GFS_DEVICE void to_gradient(float (&x)[E], float max, float factor) {
#pragma unroll
    for (int e = 0; e < E; e++)
        x[e] = exp_of(x[e], max) * factor;
}

/* A row of V elements: `head` single ones, `units` vectors, and single ones to the end. */
struct row_parts {
    int head, units, singles;
};

template <typename T> GFS_DEVICE struct row_parts row_parts_of(const T *row, int V) {
    constexpr int E = vec_of<T>::elems;
    const int before =
        (int)((VEC_BYTES - reinterpret_cast<uintptr_t>(row) % VEC_BYTES) % VEC_BYTES / sizeof(T));
    const int head = min(before, V), units = (V - head) / E;
    return {head, units, V - units * E};
}

/* The j-th single element */
template <typename T> GFS_DEVICE T *single_at(T *row, const struct row_parts &p, int j) {
    return row + (j < p.head ? j : j + p.units * vec_of<T>::elems);
}

template <typename T> GFS_DEVICE struct online row_online(const T *row, const struct row_parts &p) {
    struct online o = {-FLT_MAX, 0};
#pragma unroll 2
    for (int u = threadIdx.x; u < p.units; u += blockDim.x) {
        float x[vec_of<T>::elems];
        vec_load(row + p.head + u * vec_of<T>::elems, x);
        online_add(o, x);
    }
    for (int j = threadIdx.x; j < p.singles; j += blockDim.x) {
        float x[1];
        vec_load(single_at(row, p, j), x);
        online_add(o, x);
    }
    return online_block(o);
}

/* Each thread goes over what it has read before, from the end: the caches hold that best. */
template <typename T>
GFS_DEVICE void row_gradient(T *row, const struct row_parts &p, float max, float factor) {
    for (int j = threadIdx.x; j < p.singles; j += blockDim.x) {
        float x[1];
        vec_load(single_at(row, p, j), x);
        to_gradient(x, max, factor);
        vec_store(single_at(row, p, j), x);
    }
    const int threads = blockDim.x, thread = threadIdx.x;
    for (int n = (p.units - thread + threads - 1) / threads - 1; n >= 0; n--) {
        T *at = row + p.head + (n * threads + thread) * vec_of<T>::elems;
        float x[vec_of<T>::elems];
        vec_load(at, x);
        to_gradient(x, max, factor);
        vec_store(at, x);
    }
}

/* losses (N), logits (N,V) in rows of ldl, targets (N); a block per row */
template <typename T>
static __global__ void __launch_bounds__(XENT_THREADS_MAX)
    softmax_xent(float *losses, T *logits, size_t ldl, const int32_t *targets, int V, float scale,
                 bool backward) {
    T *row = logits + blockIdx.x * ldl;
    const struct row_parts p = row_parts_of(row, V);
    float target[1] = {0};
    if (threadIdx.x == 0)
        vec_load(row + targets[blockIdx.x], target);
    const struct online o = row_online(row, p);
    if (threadIdx.x == 0)
        losses[blockIdx.x] = scale * (logf(o.sum) + (o.max - target[0]));
    if (!backward)
        return;
    row_gradient(row, p, o.max, scale / o.sum);
    __syncthreads();
    if (threadIdx.x == 0) {
        to_gradient(target, o.max, scale / o.sum);
        target[0] -= scale;
        vec_store(row + targets[blockIdx.x], target);
    }
}

template <typename T>
static cudaError_t queue(const struct cuda_call *c, float *losses, T *logits, size_t ldl,
                         const int32_t *targets, size_t N, size_t V, float scale, bool backward) {
    const size_t units = V / vec_of<T>::elems;
    const int threads = units >= 2 * XENT_THREADS_MAX ? XENT_THREADS_MAX : XENT_THREADS_MIN;
    LAUNCH((softmax_xent<T>), (unsigned)N, threads, 0, c->stream, losses, logits, ldl, targets,
           (int)V, scale, backward);
    return LAUNCH_ERROR();
}

extern "C" cudaError_t cuda_softmax_xent(const struct cuda_call *c, enum dtype t, float *losses,
                                         void *logits, size_t ldl, const int32_t *targets, size_t N,
                                         size_t V, float scale, bool backward) {
    if (N > INT32_MAX || V == 0 || V > INT32_MAX / 2)
        return cudaErrorInvalidValue;
    if (t == DTYPE_BF16)
        return queue(c, losses, static_cast<bf16 *>(logits), ldl, targets, N, V, scale, backward);
    return queue(c, losses, static_cast<float *>(logits), ldl, targets, N, V, scale, backward);
}
