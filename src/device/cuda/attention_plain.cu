/* attention_plain.cu - causal attention in f32 arithmetic without tensor cores, f32 or bf16
 * storage.
 *
 * Panels in shared memory are f32, rows of LD = HD + 4 floats. A thread (ty, tx) of ROWS / 4 x 16
 * has 4 rows of the block's tile; of the other tile it has the rows tx, tx + 16, ..., and of a row
 * of HD channels the floats 4 tx, 4 tx + 64, ... So every read of a panel is of 16 bytes without a
 * bank conflict: a warp reads two rows of its own side (broadcast, 4 rows apart: 16 banks), and of
 * the other side 16 rows in steps of LD or 256 bytes in a row. P and dS pass through shared memory
 * within a half warp, which owns its rows.
 *
 * Estimate (not measured), of one head of T tokens and D channels: forward makes T^2 D
 * multiply-adds, as the mask hides half, and backward 3.5 T^2 D, since both of its kernels make the
 * scores and dP. The limit is f32 arithmetic with shared memory close behind: for 64 multiply-adds
 * of a thread its warp reads shared memory for 12 to 16 cycles, and 4 warps share 16 cycles of
 * arithmetic. Global memory: the panels of the own tile once, and k and v (q and dout) T / (2 ROWS)
 * times, out of the L2 cache. */
#include "device/cuda/attention_tiles.cuh"

namespace {

enum { TX = 16, PER = 4 /* rows of a thread */ };

/* ROWS: the tile that a block owns; COLS: the one that passes by. */
template <int HD_, int ROWS_, int COLS_> struct tiling {
    static constexpr int HD = HD_, ROWS = ROWS_, COLS = COLS_;
    static constexpr int LD = HD + 4, P_LD = COLS + 4;
    static constexpr int THREADS = ROWS / PER * TX;
    static constexpr int N = COLS / TX;     /* scores of a thread in a row */
    static constexpr int M = HD / (4 * TX); /* float4 of a thread in a row of channels */
    static constexpr int P_FLOATS = ROWS * P_LD;
};

using forward_64 = tiling<64, 64, 64>;
using forward_128 = tiling<128, 64, 32>;
using backward_64 = tiling<64, 64, 64>;
using backward_128 = tiling<128, 32, 32>;

/* 16 bytes of global memory to floats in shared memory; lane: of the thread, which orders two
 * stores such that eight threads in a row meet all banks */
GFS_DEVICE void move_chunk(float *to, const float *from, int lane) {
    (void)lane;
    *reinterpret_cast<float4 *>(to) = *reinterpret_cast<const float4 *>(from);
}

GFS_DEVICE void move_chunk(float *to, const bf16 *from, int lane) {
    const uint4 v = *reinterpret_cast<const uint4 *>(from);
    const float4 a = make_float4(bf16_low(v.x), bf16_high(v.x), bf16_low(v.y), bf16_high(v.y));
    const float4 b = make_float4(bf16_low(v.z), bf16_high(v.z), bf16_low(v.w), bf16_high(v.w));
    const bool second = (lane & 4) != 0;
    *reinterpret_cast<float4 *>(to + (second ? 4 : 0)) = second ? b : a;
    *reinterpret_cast<float4 *>(to + (second ? 0 : 4)) = second ? a : b;
}

/* panel (ROWS, LD) = rows (valid, D) in steps of row_elems, zeros beyond */
template <int ROWS, int HD, int THREADS, typename S>
GFS_DEVICE void load_panel(float *panel, const S *from, int row_elems, int valid, int D) {
    constexpr int ELEMS = 16 / sizeof(S), CHUNKS = HD / ELEMS, LD = HD + 4;
    static_assert(ROWS * CHUNKS % THREADS == 0, "each thread has as many chunks");
    for (int i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
        const int row = i / CHUNKS, column = i % CHUNKS * ELEMS;
        float *to = panel + row * LD + column;
        if (row < valid && column < D)
            move_chunk(to, from + row * row_elems + column, i);
        else
#pragma unroll
            for (int k = 0; k < ELEMS; k += 4)
                *reinterpret_cast<float4 *>(to + k) = make_float4(0, 0, 0, 0);
    }
}

/* s (4, N): row i of a with row 16 j of b, over D channels. a, b: at the first row of the thread */
template <class Q>
GFS_DEVICE void dot(float (&s)[PER][Q::N], const float *a, const float *b, int D) {
#pragma unroll
    for (int i = 0; i < PER; i++)
#pragma unroll
        for (int j = 0; j < Q::N; j++)
            s[i][j] = 0;
#pragma unroll 1
    for (int c = 0; c < D; c += 4) {
        float x[PER][4], y[4];
#pragma unroll
        for (int i = 0; i < PER; i++)
            vec_load(a + i * Q::LD + c, x[i]);
#pragma unroll
        for (int j = 0; j < Q::N; j++) {
            vec_load(b + j * TX * Q::LD + c, y);
#pragma unroll
            for (int i = 0; i < PER; i++)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    s[i][j] = fmaf(x[i][k], y[k], s[i][j]);
        }
    }
}

/* out (4, M, 4) += p (4, K) b (K, HD), K a multiple of 4. p: at the first row of the thread; b: at
 * its first column, where the columns beyond the head are left to nobody */
template <class Q>
GFS_DEVICE void accumulate(float (&out)[PER][Q::M][4], const float *p, const float *b, int K) {
#pragma unroll 1
    for (int k = 0; k < K; k += 4) {
        float x[PER][4], y[4];
#pragma unroll
        for (int i = 0; i < PER; i++)
            vec_load(p + i * Q::P_LD + k, x[i]);
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int m = 0; m < Q::M; m++) {
                vec_load(b + (k + e) * Q::LD + m * 4 * TX, y);
#pragma unroll
                for (int i = 0; i < PER; i++)
#pragma unroll
                    for (int c = 0; c < 4; c++)
                        out[i][m][c] = fmaf(x[i][e], y[c], out[i][m][c]);
            }
    }
}

template <class Q> GFS_DEVICE void put_tile(float *p, const float (&s)[PER][Q::N], int tx) {
#pragma unroll
    for (int i = 0; i < PER; i++)
#pragma unroll
        for (int j = 0; j < Q::N; j++)
            p[i * Q::P_LD + j * TX + tx] = s[i][j];
}

template <typename S> GFS_DEVICE void store4(S *to, const float (&v)[4], float scale) {
    const float x[4] = {v[0] * scale, v[1] * scale, v[2] * scale, v[3] * scale};
    vec_store(to, x);
}

/* The rows of a thread, row i at to + i * row_elems, times scale[i] */
template <class Q, typename S>
GFS_DEVICE void store_rows(S *to, int row_elems, const float (&out)[PER][Q::M][4],
                           const float (&scale)[PER], int valid, int tx, int D) {
#pragma unroll
    for (int i = 0; i < PER; i++)
#pragma unroll
        for (int m = 0; m < Q::M; m++) {
            const int column = m * 4 * TX + 4 * tx;
            if (i < valid && column < D)
                store4(to + i * row_elems + column, out[i][m], scale[i]);
        }
}

template <class Q> GFS_DEVICE void clear(float (&out)[PER][Q::M][4]) {
#pragma unroll
    for (int i = 0; i < PER; i++)
#pragma unroll
        for (int m = 0; m < Q::M; m++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                out[i][m][c] = 0;
}

/* Among the 16 threads that share rows */
GFS_DEVICE float row_max(float v) {
#pragma unroll
    for (int step = TX / 2; step > 0; step /= 2)
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, step));
    return v;
}

GFS_DEVICE float row_sum(float v) {
#pragma unroll
    for (int step = TX / 2; step > 0; step /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

/* Columns of a tile that begins at `first`, as accumulate wants them */
template <class Q> GFS_DEVICE int columns_of(int first, int T) {
    return min(Q::COLS, (T - first + 3) & ~3);
}

/* Scores s of the keys from column0 on in steps of 16 to probabilities, relative to a new maximum,
 * in base 2; sum and out follow it. sum is of this thread's columns alone. Key 0 is in the first
 * tile and no query's mask hides it, so the maximum is finite. */
template <class Q>
GFS_DEVICE void online_softmax(float (&s)[PER][Q::N], float (&out)[PER][Q::M][4], float (&max)[PER],
                               float (&sum)[PER], float scale, int row0, int column0) {
#pragma unroll
    for (int i = 0; i < PER; i++) {
        float m = max[i];
#pragma unroll
        for (int j = 0; j < Q::N; j++) {
            s[i][j] = column0 + j * TX > row0 + i ? -INFINITY : s[i][j] * scale;
            m = fmaxf(m, s[i][j]);
        }
        m = row_max(m);
        const float factor = exp2f(max[i] - m);
        max[i] = m;
        sum[i] *= factor;
#pragma unroll
        for (int j = 0; j < Q::N; j++) {
            s[i][j] = exp2f(s[i][j] - m);
            sum[i] += s[i][j];
        }
#pragma unroll
        for (int k = 0; k < Q::M; k++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                out[i][k][c] *= factor;
    }
}

/* A block: ROWS queries of one head; those with the most keys are the first blocks. */
template <typename S, class Q>
__global__ void __launch_bounds__(Q::THREADS, 2) attention_plain_forward(struct attention a) {
    DYN_SMEM(float, smem);
    float *q = smem, *k = q + Q::ROWS * Q::LD, *v = k + Q::COLS * Q::LD;
    const int tx = threadIdx.x % TX, first = threadIdx.x / TX * PER;
    const int i0 = (tiles_of(a.T, Q::ROWS) - 1 - (int)blockIdx.x / a.heads) * Q::ROWS;
    const head_rows at = head_rows_of(a, blockIdx.x % a.heads);
    const int step = 3 * a.C;
    const S *qkv = static_cast<const S *>(a.qkv) + at.qkv;
    float *p = v + Q::COLS * Q::LD + first * Q::P_LD;
    const float scale = score_scale(a.D);
    float out[PER][Q::M][4], s[PER][Q::N], max[PER], sum[PER];

    clear<Q>(out);
#pragma unroll
    for (int i = 0; i < PER; i++) {
        max[i] = -INFINITY;
        sum[i] = 0;
    }
    load_panel<Q::ROWS, Q::HD, Q::THREADS>(q, qkv + (size_t)i0 * step, step, a.T - i0, a.D);
    for (int j0 = 0; j0 < min(i0 + Q::ROWS, a.T); j0 += Q::COLS) {
        __syncthreads();
        load_panel<Q::COLS, Q::HD, Q::THREADS>(k, qkv + (size_t)j0 * step + a.C, step, a.T - j0,
                                               a.D);
        load_panel<Q::COLS, Q::HD, Q::THREADS>(v, qkv + (size_t)j0 * step + 2 * a.C, step, a.T - j0,
                                               a.D);
        __syncthreads();
        dot<Q>(s, q + first * Q::LD, k + tx * Q::LD, a.D);
        online_softmax<Q>(s, out, max, sum, scale, i0 + first, j0 + tx);
        put_tile<Q>(p, s, tx);
        __syncwarp();
        if (4 * tx < a.D)
            accumulate<Q>(out, p, v + 4 * tx, columns_of<Q>(j0, a.T));
    }
#pragma unroll
    for (int i = 0; i < PER; i++) {
        sum[i] = row_sum(sum[i]);
        if (tx == 0 && i0 + first + i < a.T)
            a.lse[at.lse + i0 + first + i] = (max[i] + log2f(sum[i])) * LN_2;
        sum[i] = 1.0f / sum[i];
    }
    store_rows<Q>(static_cast<S *>(a.out) + at.out + (size_t)(i0 + first) * a.C, a.C, out, sum,
                  a.T - i0 - first, tx, a.D);
}

/* lse (in base 2) and delta of a query; beyond the last one the probabilities become 0. */
GFS_DEVICE void load_query(float *lse, float *delta, const struct attention &a, const head_rows &at,
                           int query) {
    *lse = query < a.T ? a.lse[at.lse + query] * LOG2_E : INFINITY;
    *delta = query < a.T ? a.delta[at.lse + query] : 0;
}

/* A block: ROWS keys of one head; tiles of queries pass by, from the keys on. */
template <typename S, class Q>
__global__ void __launch_bounds__(Q::THREADS, 2) attention_plain_dkdv(struct attention a) {
    DYN_SMEM(float, smem);
    float *k = smem, *v = k + Q::ROWS * Q::LD, *q = v + Q::ROWS * Q::LD;
    float *dout = q + Q::COLS * Q::LD;
    const int tx = threadIdx.x % TX, first = threadIdx.x / TX * PER;
    const int j0 = (int)blockIdx.x / a.heads * Q::ROWS;
    const head_rows at = head_rows_of(a, blockIdx.x % a.heads);
    const int step = 3 * a.C;
    const S *qkv = static_cast<const S *>(a.qkv) + at.qkv;
    float *lse = dout + Q::COLS * Q::LD, *delta = lse + Q::COLS;
    float *p = delta + Q::COLS + first * Q::P_LD;
    const float scale = score_scale(a.D);
    float dk[PER][Q::M][4], dv[PER][Q::M][4], s[PER][Q::N], dp[PER][Q::N];
    static_assert(Q::ROWS % Q::COLS == 0, "the first tile of queries begins with the keys");

    clear<Q>(dk);
    clear<Q>(dv);
    load_panel<Q::ROWS, Q::HD, Q::THREADS>(k, qkv + (size_t)j0 * step + a.C, step, a.T - j0, a.D);
    load_panel<Q::ROWS, Q::HD, Q::THREADS>(v, qkv + (size_t)j0 * step + 2 * a.C, step, a.T - j0,
                                           a.D);
    for (int i0 = j0; i0 < a.T; i0 += Q::COLS) {
        __syncthreads();
        load_panel<Q::COLS, Q::HD, Q::THREADS>(q, qkv + (size_t)i0 * step, step, a.T - i0, a.D);
        load_panel<Q::COLS, Q::HD, Q::THREADS>(
            dout, static_cast<const S *>(a.dout) + at.out + (size_t)i0 * a.C, a.C, a.T - i0, a.D);
        for (int j = threadIdx.x; j < Q::COLS; j += Q::THREADS)
            load_query(&lse[j], &delta[j], a, at, i0 + j);
        __syncthreads();
        dot<Q>(s, k + first * Q::LD, q + tx * Q::LD, a.D);
        dot<Q>(dp, v + first * Q::LD, dout + tx * Q::LD, a.D);
#pragma unroll
        for (int i = 0; i < PER; i++)
#pragma unroll
            for (int j = 0; j < Q::N; j++) {
                const bool hidden = j0 + first + i > i0 + j * TX + tx;
                s[i][j] = hidden ? 0 : exp2f(s[i][j] * scale - lse[j * TX + tx]);
                dp[i][j] = s[i][j] * (dp[i][j] - delta[j * TX + tx]);
            }
        put_tile<Q>(p, s, tx);
        __syncwarp();
        if (4 * tx < a.D)
            accumulate<Q>(dv, p, dout + 4 * tx, columns_of<Q>(i0, a.T));
        __syncwarp();
        put_tile<Q>(p, dp, tx);
        __syncwarp();
        if (4 * tx < a.D)
            accumulate<Q>(dk, p, q + 4 * tx, columns_of<Q>(i0, a.T));
    }
    S *to = static_cast<S *>(a.dqkv) + at.qkv + (size_t)(j0 + first) * step;
    const float one[PER] = {1, 1, 1, 1}, r = rsqrtf((float)a.D), scales[PER] = {r, r, r, r};
    store_rows<Q>(to + a.C, step, dk, scales, a.T - j0 - first, tx, a.D);
    store_rows<Q>(to + 2 * a.C, step, dv, one, a.T - j0 - first, tx, a.D);
}

/* A block: ROWS queries of one head; tiles of keys pass by, to the queries. */
template <typename S, class Q>
__global__ void __launch_bounds__(Q::THREADS, 2) attention_plain_dq(struct attention a) {
    DYN_SMEM(float, smem);
    float *q = smem, *dout = q + Q::ROWS * Q::LD, *k = dout + Q::ROWS * Q::LD;
    float *v = k + Q::COLS * Q::LD;
    const int tx = threadIdx.x % TX, first = threadIdx.x / TX * PER;
    const int i0 = (tiles_of(a.T, Q::ROWS) - 1 - (int)blockIdx.x / a.heads) * Q::ROWS;
    const head_rows at = head_rows_of(a, blockIdx.x % a.heads);
    const int step = 3 * a.C;
    const S *qkv = static_cast<const S *>(a.qkv) + at.qkv;
    float *p = v + Q::COLS * Q::LD + first * Q::P_LD;
    const float scale = score_scale(a.D);
    float dq[PER][Q::M][4], s[PER][Q::N], dp[PER][Q::N], lse[PER], delta[PER];

    clear<Q>(dq);
    load_panel<Q::ROWS, Q::HD, Q::THREADS>(q, qkv + (size_t)i0 * step, step, a.T - i0, a.D);
    load_panel<Q::ROWS, Q::HD, Q::THREADS>(
        dout, static_cast<const S *>(a.dout) + at.out + (size_t)i0 * a.C, a.C, a.T - i0, a.D);
#pragma unroll
    for (int i = 0; i < PER; i++)
        load_query(&lse[i], &delta[i], a, at, i0 + first + i);
    for (int j0 = 0; j0 < min(i0 + Q::ROWS, a.T); j0 += Q::COLS) {
        __syncthreads();
        load_panel<Q::COLS, Q::HD, Q::THREADS>(k, qkv + (size_t)j0 * step + a.C, step, a.T - j0,
                                               a.D);
        load_panel<Q::COLS, Q::HD, Q::THREADS>(v, qkv + (size_t)j0 * step + 2 * a.C, step, a.T - j0,
                                               a.D);
        __syncthreads();
        dot<Q>(s, q + first * Q::LD, k + tx * Q::LD, a.D);
        dot<Q>(dp, dout + first * Q::LD, v + tx * Q::LD, a.D);
#pragma unroll
        for (int i = 0; i < PER; i++)
#pragma unroll
            for (int j = 0; j < Q::N; j++) {
                const bool hidden = j0 + j * TX + tx > i0 + first + i;
                s[i][j] = hidden ? 0 : exp2f(s[i][j] * scale - lse[i]);
                dp[i][j] = s[i][j] * (dp[i][j] - delta[i]);
            }
        put_tile<Q>(p, dp, tx);
        __syncwarp();
        if (4 * tx < a.D)
            accumulate<Q>(dq, p, k + 4 * tx, columns_of<Q>(j0, a.T));
    }
    const float r = rsqrtf((float)a.D), scales[PER] = {r, r, r, r};
    store_rows<Q>(static_cast<S *>(a.dqkv) + at.qkv + (size_t)(i0 + first) * step, step, dq, scales,
                  a.T - i0 - first, tx, a.D);
}

/* Shared memory for so many panels of the block's own and of the passing tile */
template <class Q> constexpr int smem_bytes(int own, int passing) {
    return ((own * Q::ROWS + passing * Q::COLS) * Q::LD + 2 * Q::COLS + Q::P_FLOATS) * 4;
}

template <class Q> int grid(const struct attention *a) {
    return tiles_of(a->T, Q::ROWS) * a->heads;
}

template <typename S, class Q>
cudaError_t forward(const struct cuda_call *c, const struct attention *a) {
    const int bytes = smem_bytes<Q>(1, 2);
    cudaError_t rc = cudaFuncSetAttribute(attention_plain_forward<S, Q>,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (rc != cudaSuccess)
        return rc;
    LAUNCH((attention_plain_forward<S, Q>), grid<Q>(a), Q::THREADS, bytes, c->stream, *a);
    return LAUNCH_ERROR();
}

template <typename S, class Q>
cudaError_t backward(const struct cuda_call *c, const struct attention *a) {
    const int bytes = smem_bytes<Q>(2, 2);
    cudaError_t rc = cudaFuncSetAttribute(attention_plain_dkdv<S, Q>,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (rc == cudaSuccess)
        rc = cudaFuncSetAttribute(attention_plain_dq<S, Q>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (rc != cudaSuccess)
        return rc;
    LAUNCH((attention_plain_dkdv<S, Q>), grid<Q>(a), Q::THREADS, bytes, c->stream, *a);
    rc = LAUNCH_ERROR();
    if (rc != cudaSuccess)
        return rc;
    LAUNCH((attention_plain_dq<S, Q>), grid<Q>(a), Q::THREADS, bytes, c->stream, *a);
    return LAUNCH_ERROR();
}

} // namespace

cudaError_t cuda_attention_plain_forward(const struct cuda_call *c, enum dtype t,
                                         const struct attention *a) {
    if (t == DTYPE_BF16)
        return a->D <= 64 ? forward<bf16, forward_64>(c, a) : forward<bf16, forward_128>(c, a);
    return a->D <= 64 ? forward<float, forward_64>(c, a) : forward<float, forward_128>(c, a);
}

cudaError_t cuda_attention_plain_backward(const struct cuda_call *c, enum dtype t,
                                          const struct attention *a) {
    if (t == DTYPE_BF16)
        return a->D <= 64 ? backward<bf16, backward_64>(c, a) : backward<bf16, backward_128>(c, a);
    return a->D <= 64 ? backward<float, backward_64>(c, a) : backward<float, backward_128>(c, a);
}
