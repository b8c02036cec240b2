/* kernels_basic.cu - fill, cast, add, biases and GELU: all are limited by the bandwidth of memory.
 *
 * What the comments say of time is bytes a second over the bandwidth of the device (4.8 TB/s on an
 * H200), an estimate until a GPU has run it. */
#include "device/cuda/columns.cuh"

/* ---- flat ranges ---- */

/* Estimate: writes S bytes an element, S = 4 or 2. */
template <typename T, int E> __global__ void fill_kernel(T *dst, float value, struct flat f) {
    float x[E];
#pragma unroll
    for (int i = 0; i < E; i++)
        x[i] = value;
    for (size_t u = grid_first(); u < f.units; u += grid_stride())
        vec_store<E>(dst + f.head + u * E, x);
    const float one[1] = {value};
    for (size_t j = grid_first(); j < flat_single_count(f, E); j += grid_stride())
        vec_store<1>(dst + flat_single(f, E, j), one);
}

template <typename T>
static cudaError_t fill(const struct cuda_call *c, T *dst, size_t elems, float value) {
    enum { E = vec_of<T>::elems };
    struct flat f = flat_of<E>(elems, dst);
    LAUNCH((fill_kernel<T, E>), flat_grid(c, f), FLAT_THREADS, 0, c->stream, dst, value, f);
    return LAUNCH_ERROR();
}

cudaError_t cuda_fill(const struct cuda_call *c, void *dst, enum dtype t, size_t elems,
                      float value) {
    if (elems == 0)
        return cudaSuccess;
    if (t == DTYPE_BF16)
        return fill(c, static_cast<bf16 *>(dst), elems, value);
    return fill(c, static_cast<float *>(dst), elems, value);
}

template <typename D, typename S, int E> GFS_DEVICE void cast_at(D *dst, const S *src) {
    float x[E];
    vec_load<E>(src, x);
    vec_store<E>(dst, x);
}

/* Estimate: reads 4 and writes 2 bytes an element, or the reverse. */
template <typename D, typename S, int E>
__global__ void cast_kernel(D *dst, const S *src, struct flat f) {
    for (size_t u = grid_first(); u < f.units; u += grid_stride())
        cast_at<D, S, E>(dst + f.head + u * E, src + f.head + u * E);
    for (size_t j = grid_first(); j < flat_single_count(f, E); j += grid_stride())
        cast_at<D, S, 1>(dst + flat_single(f, E, j), src + flat_single(f, E, j));
}

template <typename D, typename S>
static cudaError_t cast(const struct cuda_call *c, void *dst, const void *src, size_t elems) {
    enum { E = vec_of<bf16>::elems };
    D *d = static_cast<D *>(dst);
    const S *s = static_cast<const S *>(src);
    struct flat f = flat_of<E>(elems, d, s);
    LAUNCH((cast_kernel<D, S, E>), flat_grid(c, f), FLAT_THREADS, 0, c->stream, d, s, f);
    return LAUNCH_ERROR();
}

cudaError_t cuda_cast(const struct cuda_call *c, void *dst, enum dtype dst_dtype, const void *src,
                      enum dtype src_dtype, size_t elems) {
    if (elems == 0)
        return cudaSuccess;
    if (dst_dtype == src_dtype)
        return cudaMemcpyAsync(dst, src, elems * dtype_bytes(src_dtype), cudaMemcpyDefault,
                               c->stream);
    if (dst_dtype == DTYPE_BF16)
        return cast<bf16, float>(c, dst, src, elems);
    return cast<float, bf16>(c, dst, src, elems);
}

template <typename S, int E> GFS_DEVICE void add_at(float *dst, const S *src) {
    float x[E], y[E];
    vec_load<E>(dst, x);
    vec_load<E>(src, y);
#pragma unroll
    for (int i = 0; i < E; i++)
        x[i] += y[i];
    vec_store<E>(dst, x);
}

/* Estimate: reads 4 + S and writes 4 bytes an element. */
template <typename S, int E> __global__ void add_kernel(float *dst, const S *src, struct flat f) {
    for (size_t u = grid_first(); u < f.units; u += grid_stride())
        add_at<S, E>(dst + f.head + u * E, src + f.head + u * E);
    for (size_t j = grid_first(); j < flat_single_count(f, E); j += grid_stride())
        add_at<S, 1>(dst + flat_single(f, E, j), src + flat_single(f, E, j));
}

template <typename S>
static cudaError_t add(const struct cuda_call *c, float *dst, const S *src, size_t elems) {
    enum { E = vec_of<float>::elems }; /* bf16: 8 bytes of it beside 16 of f32 */
    struct flat f = flat_of<E>(elems, dst, src);
    LAUNCH((add_kernel<S, E>), flat_grid(c, f), FLAT_THREADS, 0, c->stream, dst, src, f);
    return LAUNCH_ERROR();
}

cudaError_t cuda_add(const struct cuda_call *c, float *dst, const void *src, enum dtype src_dtype,
                     size_t elems) {
    if (elems == 0)
        return cudaSuccess;
    if (src_dtype == DTYPE_BF16)
        return add(c, dst, static_cast<const bf16 *>(src), elems);
    return add(c, dst, static_cast<const float *>(src), elems);
}

/* ---- GELU ---- */

/* gelu_new: x * (1 + tanh(u)) / 2 = x / (1 + exp(-2u)), u = sqrt(2 / pi) * (x + 0.044715 x^3)
 * (Hendrycks and Gimpel, 2016). exp(-2u) of x, at most exp(87): the backward multiplies it by what
 * goes to 0, and 1 + exp(87) is still below 2^126, up to which __fdividef is right. */
GFS_DEVICE float gelu_exp(float x) {
    const float slope = -2.0f * 0.7978845608028654f;
    return __expf(fminf(x * fmaf(x * x, slope * 0.044715f, slope), 87.0f));
}

GFS_DEVICE float gelu_of(float x) { return __fdividef(x, 1.0f + gelu_exp(x)); }

/* d/dx (x s) = s + x s (1 - s) 2 du/dx, s = 1 / (1 + e), 1 - s = e s, e = exp(-2u) */
GFS_DEVICE float gelu_slope(float x) {
    const float slope = 2.0f * 0.7978845608028654f;
    float e = gelu_exp(x), s = __fdividef(1.0f, 1.0f + e);
    float two_du = fmaf(x * x, 3.0f * slope * 0.044715f, slope);
    return s * fmaf(x * two_du, e * s, 1.0f);
}

template <typename T, int E> GFS_DEVICE void gelu_at(T *out, const T *pre) {
    float x[E];
    vec_load<E>(pre, x);
#pragma unroll
    for (int i = 0; i < E; i++)
        x[i] = gelu_of(x[i]);
    vec_store<E>(out, x);
}

/* Estimate: reads S and writes S bytes an element; about 15 operations each, which is a third of
 * what an SM does in that time. */
template <typename T, int E> __global__ void gelu_kernel(T *out, const T *pre, struct flat f) {
    for (size_t u = grid_first(); u < f.units; u += grid_stride())
        gelu_at<T, E>(out + f.head + u * E, pre + f.head + u * E);
    for (size_t j = grid_first(); j < flat_single_count(f, E); j += grid_stride())
        gelu_at<T, 1>(out + flat_single(f, E, j), pre + flat_single(f, E, j));
}

template <typename T, int E> GFS_DEVICE void gelu_backward_at(T *inout, const T *pre) {
    float x[E], y[E];
    vec_load<E>(pre, x);
    vec_load<E>(inout, y);
#pragma unroll
    for (int i = 0; i < E; i++)
        y[i] *= gelu_slope(x[i]);
    vec_store<E>(inout, y);
}

/* Estimate: reads 2 S and writes S bytes an element; about 20 operations each. */
template <typename T, int E>
__global__ void gelu_backward_kernel(T *inout, const T *pre, struct flat f) {
    for (size_t u = grid_first(); u < f.units; u += grid_stride())
        gelu_backward_at<T, E>(inout + f.head + u * E, pre + f.head + u * E);
    for (size_t j = grid_first(); j < flat_single_count(f, E); j += grid_stride())
        gelu_backward_at<T, 1>(inout + flat_single(f, E, j), pre + flat_single(f, E, j));
}

template <typename T>
static cudaError_t gelu_backward(const struct cuda_call *c, T *inout, const T *pre, size_t elems) {
    enum { E = vec_of<T>::elems };
    struct flat f = flat_of<E>(elems, inout, pre);
    LAUNCH((gelu_backward_kernel<T, E>), flat_grid(c, f), FLAT_THREADS, 0, c->stream, inout, pre,
           f);
    return LAUNCH_ERROR();
}

cudaError_t cuda_gelu_backward(const struct cuda_call *c, enum dtype t, void *inout,
                               const void *pre, size_t N, size_t C) {
    if (N * C == 0)
        return cudaSuccess;
    if (t == DTYPE_BF16)
        return gelu_backward(c, static_cast<bf16 *>(inout), static_cast<const bf16 *>(pre), N * C);
    return gelu_backward(c, static_cast<float *>(inout), static_cast<const float *>(pre), N * C);
}

/* ---- biases, by columns ---- */

/* inout (N,C) += bias; with out, out = gelu of that as stored. A thread keeps its part of the bias.
 * Estimate: reads S and writes S bytes an element, 2 S with out. */
template <typename T, int E, bool GELU>
__global__ void bias_kernel(T *out, T *inout, const T *bias, size_t N, size_t C) {
    size_t column = ((size_t)blockIdx.x * COLUMN_LANES + threadIdx.x) * E;
    if (column >= C)
        return;
    float b[E];
    vec_load<E>(bias + column, b);
    size_t stride = (size_t)gridDim.y * COLUMN_ROWS;
    for (size_t row = (size_t)blockIdx.y * COLUMN_ROWS + threadIdx.y; row < N; row += stride) {
        float x[E];
        vec_load<E>(inout + row * C + column, x);
#pragma unroll
        for (int i = 0; i < E; i++)
            x[i] += b[i];
        vec_store<E>(inout + row * C + column, x);
        if constexpr (GELU) {
#pragma unroll
            for (int i = 0; i < E; i++)
                x[i] = gelu_of(rounded<T>(x[i]));
            vec_store<E>(out + row * C + column, x);
        }
    }
}

template <typename T, int E, bool GELU>
static cudaError_t bias_by(const struct cuda_call *c, T *out, T *inout, const T *bias, size_t N,
                           size_t C) {
    LAUNCH((bias_kernel<T, E, GELU>), column_grid(c, N, C, E), dim3(COLUMN_LANES, COLUMN_ROWS), 0,
           c->stream, out, inout, bias, N, C);
    return LAUNCH_ERROR();
}

template <typename T, bool GELU>
static cudaError_t bias_forward(const struct cuda_call *c, T *out, T *inout, const T *bias,
                                size_t N, size_t C) {
    enum { E = vec_of<T>::elems };
    if (C % E == 0 && vec_aligned(out, 0, E) && vec_aligned(inout, 0, E) && vec_aligned(bias, 0, E))
        return bias_by<T, E, GELU>(c, out, inout, bias, N, C);
    return bias_by<T, 1, GELU>(c, out, inout, bias, N, C);
}

cudaError_t cuda_bias_forward(const struct cuda_call *c, enum dtype t, void *inout,
                              const void *bias, size_t N, size_t C) {
    if (N * C == 0)
        return cudaSuccess;
    if (t == DTYPE_BF16)
        return bias_forward<bf16, false>(c, NULL, static_cast<bf16 *>(inout),
                                         static_cast<const bf16 *>(bias), N, C);
    return bias_forward<float, false>(c, NULL, static_cast<float *>(inout),
                                      static_cast<const float *>(bias), N, C);
}

template <typename T>
static cudaError_t bias_gelu_forward(const struct cuda_call *c, T *out, T *pre, const T *bias,
                                     size_t N, size_t C) {
    enum { E = vec_of<T>::elems };
    if (bias != NULL)
        return bias_forward<T, true>(c, out, pre, bias, N, C);
    struct flat f = flat_of<E>(N * C, out, pre);
    LAUNCH((gelu_kernel<T, E>), flat_grid(c, f), FLAT_THREADS, 0, c->stream, out,
           static_cast<const T *>(pre), f);
    return LAUNCH_ERROR();
}

cudaError_t cuda_bias_gelu_forward(const struct cuda_call *c, enum dtype t, void *out, void *pre,
                                   const void *bias, size_t N, size_t C) {
    if (N * C == 0)
        return cudaSuccess;
    if (t == DTYPE_BF16)
        return bias_gelu_forward(c, static_cast<bf16 *>(out), static_cast<bf16 *>(pre),
                                 static_cast<const bf16 *>(bias), N, C);
    return bias_gelu_forward(c, static_cast<float *>(out), static_cast<float *>(pre),
                             static_cast<const float *>(bias), N, C);
}

/* Estimate: reads S bytes an element, and the partial sums twice. */
template <typename T, typename G, int E>
__global__ void bias_backward_kernel(G *dbias, float *partial, const T *dout, size_t N, size_t C) {
    SMEM(float, tile, [COLUMN_ROWS][COLUMN_LANES * E + 1]);
    size_t column = ((size_t)blockIdx.x * COLUMN_LANES + threadIdx.x) * E;
    float sum[E] = {};
    size_t stride = (size_t)gridDim.y * COLUMN_ROWS;
    if (column < C)
#pragma unroll 4
        for (size_t row = (size_t)blockIdx.y * COLUMN_ROWS + threadIdx.y; row < N; row += stride) {
            float x[E];
            vec_load<E>(dout + row * C + column, x);
#pragma unroll
            for (int i = 0; i < E; i++)
                sum[i] += x[i];
        }
    column_block_sum<E>(sum, tile);
    if (threadIdx.y == 0 && column < C)
        column_leave<G, E>(dbias + column, partial + blockIdx.y * C + column, sum);
}

template <typename T, typename G, int E>
static cudaError_t bias_backward_by(const struct cuda_call *c, G *dbias, const T *dout, size_t N,
                                    size_t C) {
    unsigned parts = column_parts(c, N, C, E, 1);
    dim3 grid(column_grid(c, N, C, E).x, parts);
    LAUNCH((bias_backward_kernel<T, G, E>), grid, dim3(COLUMN_LANES, COLUMN_ROWS), 0, c->stream,
           dbias, static_cast<float *>(c->work), dout, N, C);
    cudaError_t e = LAUNCH_ERROR();
    if (e != cudaSuccess || parts == 1)
        return e;
    return column_finish<G>(c, dbias, NULL, C, C, parts);
}

template <typename T, typename G>
static cudaError_t bias_backward(const struct cuda_call *c, void *dbias, const void *dout, size_t N,
                                 size_t C) {
    enum { E = vec_of<T>::elems };
    G *grad = static_cast<G *>(dbias);
    const T *d = static_cast<const T *>(dout);
    if (C % E == 0 && vec_aligned(d, 0, E) && vec_aligned(grad, 0, E))
        return bias_backward_by<T, G, E>(c, grad, d, N, C);
    return bias_backward_by<T, G, 1>(c, grad, d, N, C);
}

cudaError_t cuda_bias_backward(const struct cuda_call *c, enum dtype t, enum dtype g, void *dbias,
                               const void *dout, size_t N, size_t C) {
    if (N * C == 0)
        return cudaSuccess;
    if (t != DTYPE_BF16)
        return bias_backward<float, float>(c, dbias, dout, N, C);
    if (g == DTYPE_BF16)
        return bias_backward<bf16, bf16>(c, dbias, dout, N, C);
    return bias_backward<bf16, float>(c, dbias, dout, N, C);
}
