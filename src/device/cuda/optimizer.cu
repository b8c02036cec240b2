/* optimizer.cu - sums for the global norm, AdamW, and the normal numbers of a fresh model.
 *
 * What the comments say of time is bytes a second over the bandwidth of the device, an estimate
 * until a GPU has run it. */
#include <math.h>

#include "device/cuda/vec.cuh"
#include "device/device.h"

/* ---- sums ---- */

template <int E, bool SQUARES> GFS_DEVICE double sum_at(const float *in) {
    float x[E];
    vec_load<E>(in, x);
    double sum = 0;
#pragma unroll
    for (int i = 0; i < E; i++)
        sum += SQUARES ? (double)x[i] * x[i] : (double)x[i];
    return sum;
}

enum { SUM_BLOCKS_PER_SM = 8 /* all that an SM holds: partial sums are as many */ };

/* partial (gridDim.x). Which elements a thread adds depends on the grid alone, and it on the number
 * of SMs. Estimate: reads 4 bytes an element; a conversion and an addition in double each. */
template <int E, bool SQUARES>
__global__ void __launch_bounds__(FLAT_THREADS, SUM_BLOCKS_PER_SM)
    sum_kernel(double *partial, const float *in, struct flat f) {
    SMEM(double, shared, [FLAT_THREADS / WARP]);
    double sum = 0;
#pragma unroll 4
    for (size_t u = grid_first(); u < f.units; u += grid_stride())
        sum += sum_at<E, SQUARES>(in + f.head + u * E);
    for (size_t j = grid_first(); j < flat_single_count(f, E); j += grid_stride())
        sum += sum_at<1, SQUARES>(in + flat_single(f, E, j));
    sum = block_sum(sum, shared, FLAT_THREADS / WARP);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = sum;
}

/* out[0], in memory of the host, = sum of partial (parts); one block. */
__global__ void sum_finish_kernel(double *out, const double *partial, unsigned parts) {
    SMEM(double, shared, [FLAT_THREADS / WARP]);
    double sum = 0;
    for (unsigned i = threadIdx.x; i < parts; i += FLAT_THREADS)
        sum += partial[i];
    sum = block_sum(sum, shared, FLAT_THREADS / WARP);
    if (threadIdx.x == 0)
        *out = sum;
}

template <bool SQUARES>
static cudaError_t sum_of(const struct cuda_call *c, double *out, const float *in, size_t elems) {
    enum { E = vec_of<float>::elems };
    struct flat f = flat_of<E>(elems, in);
    unsigned blocks = (unsigned)size_min(flat_grid(c, f), (size_t)c->sm_count * SUM_BLOCKS_PER_SM);
    double *partial = static_cast<double *>(c->work);
    if (elems > 0) {
        LAUNCH((sum_kernel<E, SQUARES>), blocks, FLAT_THREADS, 0, c->stream, partial, in, f);
        cudaError_t e = LAUNCH_ERROR();
        if (e != cudaSuccess)
            return e;
    }
    LAUNCH((sum_finish_kernel), 1, FLAT_THREADS, 0, c->stream, out,
           static_cast<const double *>(partial), elems > 0 ? blocks : 0u);
    return LAUNCH_ERROR();
}

cudaError_t cuda_sum(const struct cuda_call *c, double *out, const float *in, size_t elems) {
    return sum_of<false>(c, out, in, elems);
}

cudaError_t cuda_sum_squares(const struct cuda_call *c, double *out, const float *in,
                             size_t elems) {
    return sum_of<true>(c, out, in, elems);
}

/* ---- AdamW ---- */

/* In the order in which they are used. */
struct adamw_factors {
    float grad_scale, rest1, beta2, rest2, inv_sqrt_correction2, eps, keep, step;
};

/* Each operation is rounded as on the CPU: the compiler may not make other fused ones of them. */
GFS_DEVICE float adamw_one(const struct adamw_factors &f, float p, float *exp_avg,
                           float *exp_avg_sq, float grad) {
    float g = __fmul_rn(grad, f.grad_scale);
    float m = fmaf(f.rest1, __fsub_rn(g, *exp_avg), *exp_avg);
    float v = fmaf(__fmul_rn(g, g), f.rest2, __fmul_rn(*exp_avg_sq, f.beta2));
    *exp_avg = m;
    *exp_avg_sq = v;
    float denominator = fmaf(__fsqrt_rn(v), f.inv_sqrt_correction2, f.eps);
    return fmaf(f.step, __fdiv_rn(m, denominator), __fmul_rn(p, f.keep));
}

/* copy is NULL where COPY is false. */
template <typename T, int E, bool COPY>
GFS_DEVICE void adamw_at(const struct adamw_factors &f, float *param, float *exp_avg,
                         float *exp_avg_sq, const float *grad, T *copy) {
    float p[E], m[E], v[E], g[E];
    vec_load<E>(grad, g);
    vec_load<E>(param, p);
    vec_load<E>(exp_avg, m);
    vec_load<E>(exp_avg_sq, v);
#pragma unroll
    for (int i = 0; i < E; i++)
        p[i] = adamw_one(f, p[i], &m[i], &v[i], g[i]);
    vec_store<E>(exp_avg, m);
    vec_store<E>(exp_avg_sq, v);
    vec_store<E>(param, p);
    if constexpr (COPY)
        vec_store<E>(copy, p);
}

/* Estimate: reads 16 and writes 12 bytes an element, and its copy; about 40 operations, less than
 * a third of what an SM does in that time. */
template <typename T, int E, bool COPY>
__global__ void adamw_kernel(float *param, float *exp_avg, float *exp_avg_sq, const float *grad,
                             T *copy, struct adamw_factors a, struct flat f) {
    for (size_t u = grid_first(); u < f.units; u += grid_stride()) {
        size_t i = f.head + u * E;
        adamw_at<T, E, COPY>(a, param + i, exp_avg + i, exp_avg_sq + i, grad + i,
                             COPY ? copy + i : copy);
    }
    for (size_t j = grid_first(); j < flat_single_count(f, E); j += grid_stride()) {
        size_t i = flat_single(f, E, j);
        adamw_at<T, 1, COPY>(a, param + i, exp_avg + i, exp_avg_sq + i, grad + i,
                             COPY ? copy + i : copy);
    }
}

template <typename T, bool COPY>
static cudaError_t adamw(const struct cuda_call *c, float *param, float *exp_avg, float *exp_avg_sq,
                         const float *grad, T *copy, size_t elems, const struct dev_adamw *a) {
    enum { E = vec_of<float>::elems };
    struct adamw_factors factors = {(float)a->grad_scale,
                                    (float)(1.0 - a->beta1),
                                    (float)a->beta2,
                                    (float)(1.0 - a->beta2),
                                    (float)(1.0 / sqrt(a->correction2)),
                                    (float)a->eps,
                                    (float)(1.0 - a->lr * a->weight_decay),
                                    (float)(-a->lr / a->correction1)};
    struct flat f = flat_of<E>(elems, param, exp_avg, exp_avg_sq, grad, copy);
    LAUNCH((adamw_kernel<T, E, COPY>), flat_grid(c, f), FLAT_THREADS, 0, c->stream, param, exp_avg,
           exp_avg_sq, grad, copy, factors, f);
    return LAUNCH_ERROR();
}

cudaError_t cuda_adamw(const struct cuda_call *c, float *param, float *exp_avg, float *exp_avg_sq,
                       const float *grad, void *copy, enum dtype copy_dtype, size_t elems,
                       const struct dev_adamw *a) {
    if (elems == 0)
        return cudaSuccess;
    float *none = NULL;
    if (copy == NULL)
        return adamw<float, false>(c, param, exp_avg, exp_avg_sq, grad, none, elems, a);
    if (copy_dtype == DTYPE_BF16)
        return adamw<bf16, true>(c, param, exp_avg, exp_avg_sq, grad, static_cast<bf16 *>(copy),
                                 elems, a);
    return adamw<float, true>(c, param, exp_avg, exp_avg_sq, grad, static_cast<float *>(copy),
                              elems, a);
}

/* ---- normal numbers ---- */

/* Philox 4x32-10 as philox.c has it (Salmon et al., 2011). */
GFS_DEVICE uint4 philox(uint4 x, uint2 key) {
    for (int i = 0; i < 10; i++) {
        uint32_t a_high = __umulhi(0xD2511F53u, x.x), a_low = 0xD2511F53u * x.x;
        uint32_t b_high = __umulhi(0xCD9E8D57u, x.z), b_low = 0xCD9E8D57u * x.z;
        x = make_uint4(b_high ^ x.y ^ key.x, b_low, a_high ^ x.w ^ key.y, a_low);
        key.x += 0x9E3779B9u;
        key.y += 0xBB67AE85u;
    }
    return x;
}

/* The angle is 2 pi b / 2^32; sincospi has no part that needs memory of its own. */
GFS_DEVICE void normal_pair(uint32_t a, uint32_t b, double *first, double *second) {
    double radius = sqrt(-2.0 * log(((double)a + 1.0) * 0x1p-32)), sine, cosine;
    sincospi((double)b * 0x1p-31, &sine, &cosine);
    *first = radius * cosine;
    *second = radius * sine;
}

/* Numbers first to first + elems - 1; a thread makes the four of a counter. Runs once in a model's
 * life: two logarithms and two sines with their cosines, in double, for four numbers. */
__global__ void init_normal_kernel(float *dst, size_t elems, uint64_t seed, uint64_t sequence,
                                   uint64_t first, float mean, float std) {
    uint64_t block = first / 4 + grid_first(), last = (first + (elems - 1)) / 4;
    for (; block <= last; block += grid_stride()) {
        uint4 counter = make_uint4((uint32_t)block, (uint32_t)(block >> 32), (uint32_t)sequence,
                                   (uint32_t)(sequence >> 32));
        uint4 words = philox(counter, make_uint2((uint32_t)seed, (uint32_t)(seed >> 32)));
        double normals[4];
        normal_pair(words.x, words.y, &normals[0], &normals[1]);
        normal_pair(words.z, words.w, &normals[2], &normals[3]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint64_t at = block * 4 + i - first; /* wraps to a large number before first */
            if (at < elems)
                dst[at] = (float)((double)mean + (double)std * normals[i]);
        }
    }
}

cudaError_t cuda_init_normal(const struct cuda_call *c, float *dst, size_t elems, uint64_t seed,
                             uint64_t sequence, uint64_t first, float mean, float std) {
    if (elems == 0)
        return cudaSuccess;
    LAUNCH((init_normal_kernel), flat_blocks(c, elems / 4 + 2), FLAT_THREADS, 0, c->stream, dst,
           elems, seed, sequence, first, mean, std);
    return LAUNCH_ERROR();
}
