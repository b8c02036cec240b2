/* layernorm.cu - layer norm of rows (Ba, Kiros and Hinton, 2016), with and without the residual sum
 * before it.
 *
 * xhat = (x - mean) * rstd, variance over C. A row of whole vectors is held in registers by one or
 * more warps, so that it is read once. A row that is not (C is no multiple of a vector, or a row
 * is longer than GROUP_WARPS hold) is read again by its block, out of the cache.
 *
 * What the comments say of time is bytes a second over the bandwidth of the device, an estimate
 * until a GPU has run it. */
#include "device/cuda/columns.cuh"

enum {
    ROW_THREADS = 256, /* of a block, unless a row needs more */
    GROUP_WARPS = 16,  /* of one row, at most */
    GROUP_THREADS = GROUP_WARPS * WARP,
    BLOCKS_PER_SM = FLAT_BLOCKS_PER_SM
};

/* ---- groups of warps that hold a row ---- */

/* A block of `groups` groups; each has `warps` warps and takes a row of up to warps * 32 * K
 * vectors. */
struct row_shape {
    int warps, groups, vectors; /* K */
};

/* Few warps with some vectors each: less to wait for, and more rows at a time. */
static struct row_shape row_shape_of(size_t units, int most_vectors) {
    struct row_shape s;
    s.warps = 1;
    while (s.warps < GROUP_WARPS && (size_t)s.warps * WARP * most_vectors < units)
        s.warps *= 2;
    s.vectors = (int)ceil_div(units, (size_t)s.warps * WARP);
    s.groups = s.warps * WARP < ROW_THREADS ? ROW_THREADS / (s.warps * WARP) : 1;
    return s;
}

/* Sums of x and y over a group. shared is (2, GROUP_WARPS) pairs, of which two calls in a row use
 * one each: `turn` is 0 and 1 by turns. All threads of the block call. */
GFS_DEVICE float2 group_sum(float2 v, float2 (*shared)[GROUP_WARPS], int turn, int warps) {
    v.x = warp_sum(v.x);
    v.y = warp_sum(v.y);
    if (warps == 1)
        return v;
    int warp = (int)threadIdx.x / WARP, first = warp / warps * warps;
    if (threadIdx.x % WARP == 0)
        shared[turn][warp] = v;
    __syncthreads();
    float2 sum = shared[turn][first];
    for (int w = 1; w < warps; w++) {
        sum.x += shared[turn][first + w].x;
        sum.y += shared[turn][first + w].y;
    }
    return sum;
}

/* x = in or, with a residual, residual + in + in_bias as it is stored. */
template <typename T, int E, bool RESIDUAL>
GFS_DEVICE void row_input(float (&x)[E], const T *in, const T *residual, const T *in_bias) {
    vec_load<E>(in, x);
    if constexpr (RESIDUAL) {
        float r[E], b[E];
        vec_load<E>(residual, r);
        vec_load<E>(in_bias, b);
#pragma unroll
        for (int i = 0; i < E; i++)
            x[i] = rounded<T>(r[i] + (x[i] + b[i]));
    }
}

template <typename T, int E>
GFS_DEVICE void row_output(T *out, const float (&x)[E], const T *weight, const T *bias, float mean,
                           float rstd) {
    float w[E], b[E], y[E];
    vec_load<E>(weight, w);
    vec_load<E>(bias, b);
#pragma unroll
    for (int i = 0; i < E; i++)
        y[i] = fmaf((x[i] - mean) * rstd, w[i], b[i]);
    vec_store<E>(out, y);
}

/* Estimate: reads S and writes S bytes an element; with a residual twice that. */
template <typename T, int K, bool RESIDUAL>
__global__ void __launch_bounds__(GROUP_THREADS)
    norm_forward_kernel(T *sum, T *out, float *mean, float *rstd, const T *residual, const T *in,
                        const T *in_bias, const T *weight, const T *bias, size_t N, size_t C,
                        float eps, int warps) {
    enum { E = vec_of<T>::elems };
    SMEM(float2, shared, [2][GROUP_WARPS]);
    int lanes = warps * WARP, group = (int)threadIdx.x / lanes, groups = (int)blockDim.x / lanes;
    size_t first = (size_t)(threadIdx.x % lanes) * E;
    for (size_t r = (size_t)blockIdx.x * groups; r < N; r += (size_t)gridDim.x * groups) {
        size_t row = r + group, at = row * C;
        size_t end = row < N ? C : 0; /* no element is in a row that is not there */
        float x[K][E] = {};
        float2 s = make_float2(0, 0);
#pragma unroll
        for (int k = 0; k < K; k++) {
            size_t i = first + (size_t)k * lanes * E;
            if (i < end)
                row_input<T, E, RESIDUAL>(x[k], in + at + i, RESIDUAL ? residual + at + i : NULL,
                                          RESIDUAL ? in_bias + i : NULL);
#pragma unroll
            for (int j = 0; j < E; j++)
                s.x += x[k][j];
        }
        float m = group_sum(s, shared, 0, warps).x / (float)C;
        s.x = 0;
#pragma unroll
        for (int k = 0; k < K; k++)
            if (first + (size_t)k * lanes * E < end)
#pragma unroll
                for (int j = 0; j < E; j++)
                    s.x = fmaf(x[k][j] - m, x[k][j] - m, s.x);
        float rs = 1.0f / sqrtf(group_sum(s, shared, 1, warps).x / (float)C + eps);
#pragma unroll
        for (int k = 0; k < K; k++) {
            size_t i = first + (size_t)k * lanes * E;
            if (i >= end)
                break;
            if constexpr (RESIDUAL)
                vec_store<E>(sum + at + i, x[k]);
            row_output<T, E>(out + at + i, x[k], weight + i, bias + i, m, rs);
        }
        if (first == 0 && row < N) {
            mean[row] = m;
            rstd[row] = rs;
        }
    }
}

/* A block for a row of any length, E = 1 for any alignment. With a residual the row is read again
 * from sum, where the same thread wrote it. */
template <typename T, int E, bool RESIDUAL>
__global__ void norm_forward_any_kernel(T *sum, T *out, float *mean, float *rstd, const T *residual,
                                        const T *in, const T *in_bias, const T *weight,
                                        const T *bias, size_t N, size_t C, float eps) {
    enum { WARPS = ROW_THREADS / WARP };
    SMEM(float, shared, [2][WARPS]);
    for (size_t row = blockIdx.x; row < N; row += gridDim.x) {
        const T *kept = (RESIDUAL ? sum : in) + row * C;
        float x[E], s = 0;
        for (size_t i = (size_t)threadIdx.x * E; i < C; i += ROW_THREADS * E) {
            size_t at = row * C + i;
            row_input<T, E, RESIDUAL>(x, in + at, RESIDUAL ? residual + at : NULL,
                                      RESIDUAL ? in_bias + i : NULL);
            if constexpr (RESIDUAL)
                vec_store<E>(sum + at, x);
#pragma unroll
            for (int j = 0; j < E; j++)
                s += x[j];
        }
        float m = block_sum(s, shared[0], WARPS) / (float)C;
        s = 0;
        for (size_t i = (size_t)threadIdx.x * E; i < C; i += ROW_THREADS * E) {
            vec_load<E>(kept + i, x);
#pragma unroll
            for (int j = 0; j < E; j++)
                s = fmaf(x[j] - m, x[j] - m, s);
        }
        float rs = 1.0f / sqrtf(block_sum(s, shared[1], WARPS) / (float)C + eps);
        for (size_t i = (size_t)threadIdx.x * E; i < C; i += ROW_THREADS * E) {
            vec_load<E>(kept + i, x);
            row_output<T, E>(out + row * C + i, x, weight + i, bias + i, m, rs);
        }
        if (threadIdx.x == 0) {
            mean[row] = m;
            rstd[row] = rs;
        }
    }
}

/* The arguments of a launch, as the kernels name them. */
template <typename T> struct norm_forward_args {
    T *sum, *out;
    float *mean, *rstd;
    const T *residual, *in, *in_bias, *weight, *bias;
    size_t N, C;
    float eps;
};

template <typename T, int K, bool RESIDUAL>
static cudaError_t norm_forward_rows(const struct cuda_call *c, const norm_forward_args<T> &a,
                                     const struct row_shape &s) {
    unsigned blocks =
        (unsigned)size_min(ceil_div(a.N, (size_t)s.groups), (size_t)c->sm_count * BLOCKS_PER_SM);
    LAUNCH((norm_forward_kernel<T, K, RESIDUAL>), blocks, s.groups * s.warps * WARP, 0, c->stream,
           a.sum, a.out, a.mean, a.rstd, a.residual, a.in, a.in_bias, a.weight, a.bias, a.N, a.C,
           a.eps, s.warps);
    return LAUNCH_ERROR();
}

template <typename T, int E, bool RESIDUAL>
static cudaError_t norm_forward_any(const struct cuda_call *c, const norm_forward_args<T> &a) {
    unsigned blocks = (unsigned)size_min(a.N, (size_t)c->sm_count * BLOCKS_PER_SM);
    LAUNCH((norm_forward_any_kernel<T, E, RESIDUAL>), blocks, ROW_THREADS, 0, c->stream, a.sum,
           a.out, a.mean, a.rstd, a.residual, a.in, a.in_bias, a.weight, a.bias, a.N, a.C, a.eps);
    return LAUNCH_ERROR();
}

template <typename T, bool RESIDUAL>
static cudaError_t norm_forward(const struct cuda_call *c, const norm_forward_args<T> &a) {
    enum { E = vec_of<T>::elems, K = 4 };
    if (a.N * a.C == 0)
        return cudaSuccess;
    bool whole = a.C % E == 0 && vec_aligned(a.sum, 0, E) && vec_aligned(a.out, 0, E) &&
                 vec_aligned(a.residual, 0, E) && vec_aligned(a.in, 0, E) &&
                 vec_aligned(a.in_bias, 0, E) && vec_aligned(a.weight, 0, E) &&
                 vec_aligned(a.bias, 0, E);
    if (!whole)
        return norm_forward_any<T, 1, RESIDUAL>(c, a);
    if (a.C / E > (size_t)GROUP_THREADS * K)
        return norm_forward_any<T, E, RESIDUAL>(c, a);
    struct row_shape s = row_shape_of(a.C / E, K);
    switch (s.vectors) {
    case 1:
        return norm_forward_rows<T, 1, RESIDUAL>(c, a, s);
    case 2:
        return norm_forward_rows<T, 2, RESIDUAL>(c, a, s);
    case 3:
        return norm_forward_rows<T, 3, RESIDUAL>(c, a, s);
    default:
        return norm_forward_rows<T, K, RESIDUAL>(c, a, s);
    }
}

template <typename T>
static cudaError_t layernorm_forward(const struct cuda_call *c, void *out, float *mean, float *rstd,
                                     const void *in, const void *weight, const void *bias, size_t N,
                                     size_t C, float eps) {
    norm_forward_args<T> a = {NULL,
                              static_cast<T *>(out),
                              mean,
                              rstd,
                              NULL,
                              static_cast<const T *>(in),
                              NULL,
                              static_cast<const T *>(weight),
                              static_cast<const T *>(bias),
                              N,
                              C,
                              eps};
    return norm_forward<T, false>(c, a);
}

cudaError_t cuda_layernorm_forward(const struct cuda_call *c, enum dtype t, void *out, float *mean,
                                   float *rstd, const void *in, const void *weight,
                                   const void *bias, size_t N, size_t C, float eps) {
    if (t == DTYPE_BF16)
        return layernorm_forward<bf16>(c, out, mean, rstd, in, weight, bias, N, C, eps);
    return layernorm_forward<float>(c, out, mean, rstd, in, weight, bias, N, C, eps);
}

template <typename T>
static cudaError_t
residual_layernorm_forward(const struct cuda_call *c, void *sum, void *out, float *mean,
                           float *rstd, const void *residual, const void *in, const void *in_bias,
                           const void *weight, const void *bias, size_t N, size_t C, float eps) {
    norm_forward_args<T> a = {static_cast<T *>(sum),
                              static_cast<T *>(out),
                              mean,
                              rstd,
                              static_cast<const T *>(residual),
                              static_cast<const T *>(in),
                              static_cast<const T *>(in_bias),
                              static_cast<const T *>(weight),
                              static_cast<const T *>(bias),
                              N,
                              C,
                              eps};
    return norm_forward<T, true>(c, a);
}

cudaError_t cuda_residual_layernorm_forward(const struct cuda_call *c, enum dtype t, void *sum,
                                            void *out, float *mean, float *rstd,
                                            const void *residual, const void *in,
                                            const void *in_bias, const void *weight,
                                            const void *bias, size_t N, size_t C, float eps) {
    if (t == DTYPE_BF16)
        return residual_layernorm_forward<bf16>(c, sum, out, mean, rstd, residual, in, in_bias,
                                                weight, bias, N, C, eps);
    return residual_layernorm_forward<float>(c, sum, out, mean, rstd, residual, in, in_bias, weight,
                                             bias, N, C, eps);
}

/* ---- backward ----
 *
 * g = dout * weight; din = rstd * (g - mean(g) - xhat * mean(g * xhat)); dweight = sum over rows of
 * dout * xhat, dbias = sum of dout. */

/* What the two means of a row are made of: (sum of g, sum of g * xhat) of E elements, in xhat as
 * they came, which then are xhat. */
template <int E>
GFS_DEVICE void norm_sums(float2 *sums, float (&xhat)[E], const float (&dout)[E],
                          const float (&weight)[E], float mean, float rstd) {
#pragma unroll
    for (int j = 0; j < E; j++) {
        float g = dout[j] * weight[j];
        xhat[j] = (xhat[j] - mean) * rstd;
        sums->x += g;
        sums->y = fmaf(g, xhat[j], sums->y);
    }
}

/* means: of g and of g * xhat */
template <typename T, int E>
GFS_DEVICE void norm_din(T *din, bool accumulate, const float (&in)[E], const float (&dout)[E],
                         const float (&weight)[E], float mean, float rstd, float2 means) {
    float d[E] = {};
    if (accumulate)
        vec_load<E>(din, d);
#pragma unroll
    for (int j = 0; j < E; j++) {
        float xhat = (in[j] - mean) * rstd;
        d[j] += rstd * (dout[j] * weight[j] - means.x - xhat * means.y);
    }
    vec_store<E>(din, d);
}

/* The sums of a block to partial (2, C): those of its groups one after the other, by way of shared
 * sums (2, C). */
template <int K, int E>
GFS_DEVICE void norm_leave(float *partial, float *sums, const float (&dweight)[K][E],
                           const float (&dbias)[K][E], int group, int groups, size_t first,
                           int lanes, size_t C) {
    for (int turn = 0; turn < groups; turn++) {
        bool last = turn == groups - 1;
        if (turn > 0)
            __syncthreads();
        if (turn != group)
            continue;
#pragma unroll
        for (int k = 0; k < K; k++) {
            size_t i = first + (size_t)k * lanes * E;
            if (i >= C)
                break;
            float w[E], b[E];
#pragma unroll
            for (int j = 0; j < E; j++) {
                w[j] = dweight[k][j] + (turn > 0 ? sums[i + j] : 0);
                b[j] = dbias[k][j] + (turn > 0 ? sums[C + i + j] : 0);
            }
            vec_store<E>((last ? partial : sums) + i, w);
            vec_store<E>((last ? partial : sums) + C + i, b);
        }
    }
}

/* partial (gridDim.x, 2, C): dweight and dbias over the rows of a block. A thread has the same
 * columns in all of its rows. Estimate: reads 2 S and writes S bytes an element, reads 3 S when it
 * accumulates. */
template <typename T, int K>
__global__ void __launch_bounds__(GROUP_THREADS)
    norm_backward_kernel(T *din, bool accumulate, float *partial, const T *dout, const T *in,
                         const T *weight, const float *mean, const float *rstd, size_t N, size_t C,
                         int warps) {
    enum { E = vec_of<T>::elems };
    SMEM(float2, shared, [2][GROUP_WARPS]);
    DYN_SMEM(float, sums); /* (2, C) where there are several groups */
    int lanes = warps * WARP, group = (int)threadIdx.x / lanes, groups = (int)blockDim.x / lanes;
    size_t first = (size_t)(threadIdx.x % lanes) * E;
    float dweight[K][E] = {}, dbias[K][E] = {};
    int turn = 0;
    for (size_t r = (size_t)blockIdx.x * groups; r < N; r += (size_t)gridDim.x * groups) {
        size_t row = r + group, at = row * C, end = row < N ? C : 0;
        float m = row < N ? mean[row] : 0, rs = row < N ? rstd[row] : 0;
        vec_raw<T> x_raw[K] = {}, d_raw[K] = {};
#pragma unroll
        for (int k = 0; k < K; k++) {
            size_t i = first + (size_t)k * lanes * E;
            if (i < end) {
                x_raw[k] = vec_fetch(in + at + i);
                d_raw[k] = vec_fetch(dout + at + i);
            }
        }
        float2 s = make_float2(0, 0);
#pragma unroll
        for (int k = 0; k < K; k++) {
            size_t i = first + (size_t)k * lanes * E;
            if (i >= end)
                break;
            float x[E], d[E], w[E];
            vec_unpack(x_raw[k], x);
            vec_unpack(d_raw[k], d);
            vec_load<E>(weight + i, w);
            norm_sums<E>(&s, x, d, w, m, rs);
#pragma unroll
            for (int j = 0; j < E; j++) {
                dweight[k][j] = fmaf(d[j], x[j], dweight[k][j]);
                dbias[k][j] += d[j];
            }
        }
        s = group_sum(s, shared, turn, warps);
        turn ^= 1;
        s.x /= (float)C;
        s.y /= (float)C;
#pragma unroll
        for (int k = 0; k < K; k++) {
            size_t i = first + (size_t)k * lanes * E;
            if (i >= end)
                break;
            float x[E], d[E], w[E];
            vec_unpack(x_raw[k], x);
            vec_unpack(d_raw[k], d);
            vec_load<E>(weight + i, w);
            norm_din<T, E>(din + at + i, accumulate, x, d, w, m, rs, s);
        }
    }
    norm_leave<K, E>(partial + blockIdx.x * 2 * C, sums, dweight, dbias, group, groups, first,
                     lanes, C);
}

/* din alone, a block for a row of any length, E = 1 for any alignment. Estimate: reads 2 S and
 * writes S bytes an element, and reads 2 S out of the cache. */
template <typename T, int E>
__global__ void norm_din_kernel(T *din, bool accumulate, const T *dout, const T *in,
                                const T *weight, const float *mean, const float *rstd, size_t N,
                                size_t C) {
    enum { WARPS = ROW_THREADS / WARP };
    SMEM(float2, shared, [2][GROUP_WARPS]);
    int turn = 0;
    for (size_t row = blockIdx.x; row < N; row += gridDim.x) {
        float m = mean[row], rs = rstd[row], x[E], d[E], w[E];
        float2 s = make_float2(0, 0);
        for (size_t i = (size_t)threadIdx.x * E; i < C; i += ROW_THREADS * E) {
            vec_load<E>(in + row * C + i, x);
            vec_load<E>(dout + row * C + i, d);
            vec_load<E>(weight + i, w);
            norm_sums<E>(&s, x, d, w, m, rs);
        }
        s = group_sum(s, shared, turn, WARPS);
        turn ^= 1;
        s.x /= (float)C;
        s.y /= (float)C;
        for (size_t i = (size_t)threadIdx.x * E; i < C; i += ROW_THREADS * E) {
            vec_load<E>(in + row * C + i, x);
            vec_load<E>(dout + row * C + i, d);
            vec_load<E>(weight + i, w);
            norm_din<T, E>(din + row * C + i, accumulate, x, d, w, m, rs, s);
        }
    }
}

/* dweight and dbias alone, as columns.cuh has it: partial (gridDim.y, 2, C). Estimate: reads 2 S
 * bytes an element. */
template <typename T, typename G, int E>
__global__ void norm_params_kernel(G *dweight, G *dbias, float *partial, const T *dout, const T *in,
                                   const float *mean, const float *rstd, size_t N, size_t C) {
    SMEM(float, tile, [COLUMN_ROWS][COLUMN_LANES * E + 1]);
    size_t column = ((size_t)blockIdx.x * COLUMN_LANES + threadIdx.x) * E;
    size_t stride = (size_t)gridDim.y * COLUMN_ROWS;
    float dw[E] = {}, db[E] = {};
    if (column < C)
        for (size_t row = (size_t)blockIdx.y * COLUMN_ROWS + threadIdx.y; row < N; row += stride) {
            float x[E], d[E], m = mean[row], rs = rstd[row];
            vec_load<E>(in + row * C + column, x);
            vec_load<E>(dout + row * C + column, d);
#pragma unroll
            for (int j = 0; j < E; j++) {
                dw[j] = fmaf(d[j], (x[j] - m) * rs, dw[j]);
                db[j] += d[j];
            }
        }
    column_block_sum<E>(dw, tile);
    __syncthreads();
    column_block_sum<E>(db, tile);
    if (threadIdx.y != 0 || column >= C)
        return;
    float *p = partial + blockIdx.y * 2 * C + column;
    column_leave<G, E>(dweight + column, p, dw);
    column_leave<G, E>(dbias + column, p + C, db);
}

template <typename T, typename G> struct norm_backward_args {
    T *din;
    bool accumulate;
    G *dweight, *dbias;
    const T *dout, *in, *weight;
    const float *mean, *rstd;
    size_t N, C;
};

/* Two passes over the rows, for what the registers don't hold. */
template <typename T, typename G, int E>
static cudaError_t norm_backward_any(const struct cuda_call *c, const norm_backward_args<T, G> &a) {
    unsigned blocks = (unsigned)size_min(a.N, (size_t)c->sm_count * BLOCKS_PER_SM);
    LAUNCH((norm_din_kernel<T, E>), blocks, ROW_THREADS, 0, c->stream, a.din, a.accumulate, a.dout,
           a.in, a.weight, a.mean, a.rstd, a.N, a.C);
    cudaError_t e = LAUNCH_ERROR();
    if (e != cudaSuccess)
        return e;
    unsigned parts = column_parts(c, a.N, a.C, E, 2);
    dim3 grid(column_grid(c, a.N, a.C, E).x, parts);
    LAUNCH((norm_params_kernel<T, G, E>), grid, dim3(COLUMN_LANES, COLUMN_ROWS), 0, c->stream,
           a.dweight, a.dbias, static_cast<float *>(c->work), a.dout, a.in, a.mean, a.rstd, a.N,
           a.C);
    e = LAUNCH_ERROR();
    if (e != cudaSuccess || parts == 1)
        return e;
    return column_finish<G>(c, a.dweight, a.dbias, a.C, 2 * a.C, parts);
}

/* Two blocks fit an SM beside each other, and their partial sums should be few. */
enum { NORM_BLOCKS_PER_SM = 2, NORM_VECTORS = 3 };

template <typename T, typename G, int K>
static cudaError_t norm_backward_rows(const struct cuda_call *c, const norm_backward_args<T, G> &a,
                                      const struct row_shape &s, unsigned parts) {
    size_t smem_bytes = s.groups > 1 ? 2 * a.C * sizeof(float) : 0;
    LAUNCH((norm_backward_kernel<T, K>), parts, s.groups * s.warps * WARP, smem_bytes, c->stream,
           a.din, a.accumulate, static_cast<float *>(c->work), a.dout, a.in, a.weight, a.mean,
           a.rstd, a.N, a.C, s.warps);
    cudaError_t e = LAUNCH_ERROR();
    if (e != cudaSuccess)
        return e;
    return column_finish<G>(c, a.dweight, a.dbias, a.C, 2 * a.C, parts);
}

template <typename T, typename G>
static cudaError_t norm_backward(const struct cuda_call *c, const norm_backward_args<T, G> &a) {
    enum { E = vec_of<T>::elems, K = NORM_VECTORS };
    bool whole = a.C % E == 0 && vec_aligned(a.din, 0, E) && vec_aligned(a.dout, 0, E) &&
                 vec_aligned(a.in, 0, E) && vec_aligned(a.weight, 0, E);
    if (whole && a.C / E <= (size_t)GROUP_THREADS * K) {
        struct row_shape s = row_shape_of(a.C / E, K);
        size_t rows = ceil_div(a.N, (size_t)s.groups), sms = (size_t)c->sm_count;
        size_t fit = CUDA_WORK_BYTES / (2 * a.C * sizeof(float));
        size_t parts = size_min(size_min(rows, sms * NORM_BLOCKS_PER_SM), fit);
        if (parts >= size_min(rows, sms)) { /* else there is no work for some SMs */
            if (s.vectors == 1)
                return norm_backward_rows<T, G, 1>(c, a, s, (unsigned)parts);
            if (s.vectors == 2)
                return norm_backward_rows<T, G, 2>(c, a, s, (unsigned)parts);
            return norm_backward_rows<T, G, K>(c, a, s, (unsigned)parts);
        }
    }
    if (whole && vec_aligned(a.dweight, 0, E) && vec_aligned(a.dbias, 0, E))
        return norm_backward_any<T, G, E>(c, a);
    return norm_backward_any<T, G, 1>(c, a);
}

template <typename T, typename G>
static cudaError_t layernorm_backward(const struct cuda_call *c, void *din, bool accumulate,
                                      void *dweight, void *dbias, const void *dout, const void *in,
                                      const void *weight, const float *mean, const float *rstd,
                                      size_t N, size_t C) {
    norm_backward_args<T, G> a = {static_cast<T *>(din),
                                  accumulate,
                                  static_cast<G *>(dweight),
                                  static_cast<G *>(dbias),
                                  static_cast<const T *>(dout),
                                  static_cast<const T *>(in),
                                  static_cast<const T *>(weight),
                                  mean,
                                  rstd,
                                  N,
                                  C};
    return norm_backward<T, G>(c, a);
}

cudaError_t cuda_layernorm_backward(const struct cuda_call *c, enum dtype t, enum dtype g,
                                    void *din, bool accumulate, void *dweight, void *dbias,
                                    const void *dout, const void *in, const void *weight,
                                    const float *mean, const float *rstd, size_t N, size_t C) {
    if (N * C == 0)
        return cudaSuccess;
    if (t != DTYPE_BF16)
        return layernorm_backward<float, float>(c, din, accumulate, dweight, dbias, dout, in,
                                                weight, mean, rstd, N, C);
    if (g == DTYPE_BF16)
        return layernorm_backward<bf16, bf16>(c, din, accumulate, dweight, dbias, dout, in, weight,
                                              mean, rstd, N, C);
    return layernorm_backward<bf16, float>(c, din, accumulate, dweight, dbias, dout, in, weight,
                                           mean, rstd, N, C);
}
