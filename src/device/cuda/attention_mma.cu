/* attention_mma.cu - causal attention in bf16 on tensor cores, head sizes 64 and 128.
 *
 * Panels in shared memory are bf16, rows of HD in chunks of 16 bytes; chunk c of row r lies at c ^
 * (r % 8), so the eight rows of an ldmatrix meet all banks. A block has four warps, and a warp owns
 * 16 MT rows of the block's tile. The other tile passes by in two stages, the next one copied while
 * this one is computed with. Scores leave the tensor cores in the layout that the next product
 * wants of its left operand, so P and dS never leave the registers.
 *
 * Estimate (not measured), of one head of T tokens and D channels: T^2 D multiply-adds forward and
 * 3.5 T^2 D backward, as in attention_plain.cu. A block of 16 x 16 of the right operand is 4 cycles
 * of shared memory and serves 4096 MT multiply-adds, 4 MT cycles of an SM of sm_80. So with MT 1
 * the tensor cores wait for shared memory half of the time at worst, with MT 2 they are the limit.
 * At D 64 the exponentials (T^2 / 2 forward, 16 a cycle) take half as long as the products, beside
 * them. Global memory: out of the L2 cache, T / (2 ROWS) times. */
#include "device/cuda/attention_tiles.cuh"
#include "device/cuda/mma.cuh"

namespace {

enum { WARPS = 4, THREADS = 32 * WARPS };

/* A block owns ROWS queries or keys, COLS of the other kind pass by. */
template <int HD_, int MT_, int COLS_> struct shape {
    static constexpr int HD = HD_, MT = MT_, COLS = COLS_;
    static constexpr int OWN = 16 * MT;      /* rows of a warp */
    static constexpr int ROWS = WARPS * OWN; /* of the block */
    static constexpr int NT = COLS / 8;      /* score tiles of a warp, side by side */
    static constexpr int CT = HD / 8;        /* tiles of channels */
    static constexpr int PANEL = COLS * HD;  /* bf16 of a panel that passes by */
    static constexpr int OWN_PANEL = ROWS * HD;
};

/* Where chunk `chunk` (8 channels) of a row is in a panel */
template <int HD> GFS_DEVICE int chunk_at(int row, int chunk) {
    return row * HD + ((chunk ^ (row & 7)) << 3);
}

/* panel (ROWS, HD) = rows (valid, HD) in steps of `step`, zeros beyond; not complete before
 * async_wait. At least one row is valid. */
template <int ROWS, int HD>
GFS_DEVICE void copy_panel(bf16 *panel, const bf16 *from, int step, int valid) {
    constexpr int CHUNKS = HD / 8;
    static_assert(ROWS * CHUNKS % THREADS == 0, "each thread has as many chunks");
#pragma unroll
    for (int n = 0; n < ROWS * CHUNKS / THREADS; n++) {
        const int i = n * THREADS + threadIdx.x, row = i / CHUNKS, chunk = i % CHUNKS;
        const bool ok = row < valid;
        async_copy<16>(panel + chunk_at<HD>(row, chunk), from + (ok ? row * step : 0) + chunk * 8,
                       ok);
    }
}

/* s (OWN, COLS) = a (OWN, HD) times b (COLS, HD) transposed. a: at the first row of the warp */
template <class Q>
GFS_DEVICE void dot(float (&s)[Q::MT][Q::NT][4], const bf16 *a, const bf16 *b, int lane) {
#pragma unroll
    for (int m = 0; m < Q::MT; m++)
#pragma unroll
        for (int n = 0; n < Q::NT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[m][n][e] = 0;
#pragma unroll
    for (int k = 0; k < Q::HD / 16; k++) {
        uint32_t x[Q::MT][4], y[4];
#pragma unroll
        for (int m = 0; m < Q::MT; m++)
            ldmatrix(x[m], a + chunk_at<Q::HD>(16 * m + (lane & 15), 2 * k + (lane >> 4)));
#pragma unroll
        for (int n = 0; n < Q::NT; n += 2) {
            ldmatrix(y, b + chunk_at<Q::HD>(8 * n + (lane & 7) + (lane >> 4) * 8,
                                            2 * k + ((lane >> 3) & 1)));
#pragma unroll
            for (int m = 0; m < Q::MT; m++) {
                mma_bf16(s[m][n], x[m], y[0], y[1]);
                mma_bf16(s[m][n + 1], x[m], y[2], y[3]);
            }
        }
    }
}

/* out (OWN, HD) += p (OWN, COLS), rounded to bf16, times b (COLS, HD) */
template <class Q>
GFS_DEVICE void accumulate(float (&out)[Q::MT][Q::CT][4], const float (&p)[Q::MT][Q::NT][4],
                           const bf16 *b, int lane) {
#pragma unroll
    for (int k = 0; k < Q::COLS / 16; k++) {
        uint32_t x[Q::MT][4], y[4];
#pragma unroll
        for (int m = 0; m < Q::MT; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) /* columns 8 (e / 2), rows 8 (e % 2) */
                x[m][e] =
                    pack_bf16(p[m][2 * k + e / 2][e % 2 * 2], p[m][2 * k + e / 2][e % 2 * 2 + 1]);
#pragma unroll
        for (int n = 0; n < Q::CT; n += 2) {
            ldmatrix_transposed(y, b + chunk_at<Q::HD>(16 * k + (lane & 15), n + (lane >> 4)));
#pragma unroll
            for (int m = 0; m < Q::MT; m++) {
                mma_bf16(out[m][n], x[m], y[0], y[1]);
                mma_bf16(out[m][n + 1], x[m], y[2], y[3]);
            }
        }
    }
}

template <class Q> GFS_DEVICE void clear(float (&out)[Q::MT][Q::CT][4]) {
#pragma unroll
    for (int m = 0; m < Q::MT; m++)
#pragma unroll
        for (int n = 0; n < Q::CT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                out[m][n][e] = 0;
}

/* The warp's rows, those of half r of tile m times scale[m][r], in whole chunks by way of `panel`:
 * rows of the warp (OWN, HD) that no other warp reads. */
template <class Q>
GFS_DEVICE void store_rows(bf16 *to, int step, const float (&out)[Q::MT][Q::CT][4],
                           const float (&scale)[Q::MT][2], int valid, bf16 *panel, int lane) {
#pragma unroll
    for (int m = 0; m < Q::MT; m++)
#pragma unroll
        for (int n = 0; n < Q::CT; n++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                *reinterpret_cast<uint32_t *>(
                    panel + chunk_at<Q::HD>(16 * m + 8 * r + lane / 4, n) + lane % 4 * 2) =
                    pack_bf16(out[m][n][2 * r] * scale[m][r], out[m][n][2 * r + 1] * scale[m][r]);
    __syncwarp();
#pragma unroll
    for (int i = lane; i < Q::OWN * Q::CT; i += 32) {
        const int row = i / Q::CT, chunk = i % Q::CT;
        if (row < valid)
            *reinterpret_cast<uint4 *>(to + row * step + chunk * 8) =
                *reinterpret_cast<const uint4 *>(panel + chunk_at<Q::HD>(row, chunk));
    }
}

/* Among the four lanes that share rows */
GFS_DEVICE float row_max(float v) {
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
    return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
}
GFS_DEVICE float row_sum(float v) {
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

/* s: what the mask hides becomes -infinity. row0: the query of this lane's first row, column0: the
 * key of its first column */
template <class Q> GFS_DEVICE void mask(float (&s)[Q::MT][Q::NT][4], int row0, int column0) {
#pragma unroll
    for (int m = 0; m < Q::MT; m++)
#pragma unroll
        for (int n = 0; n < Q::NT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (column0 + 8 * n + e % 2 > row0 + 16 * m + e / 2 * 8)
                    s[m][n][e] = -INFINITY;
}

/* Masked scores to probabilities relative to a new maximum; sum (of this lane's columns) and out
 * follow it. max is of scores not yet scaled. Key 0 is in the first tile and no query's mask hides
 * it, so the maximum is finite. */
template <class Q>
GFS_DEVICE void online_softmax(float (&s)[Q::MT][Q::NT][4], float (&out)[Q::MT][Q::CT][4],
                               float (&max)[Q::MT][2], float (&sum)[Q::MT][2], float scale) {
#pragma unroll
    for (int m = 0; m < Q::MT; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float top = max[m][r];
#pragma unroll
            for (int n = 0; n < Q::NT; n++)
                top = fmaxf(top, fmaxf(s[m][n][2 * r], s[m][n][2 * r + 1]));
            top = row_max(top);
            const float factor = fast_exp2((max[m][r] - top) * scale), shift = top * scale;
            max[m][r] = top;
            sum[m][r] *= factor;
#pragma unroll
            for (int n = 0; n < Q::NT; n++)
#pragma unroll
                for (int e = 2 * r; e < 2 * r + 2; e++) {
                    s[m][n][e] = fast_exp2(fmaf(s[m][n][e], scale, -shift));
                    sum[m][r] += s[m][n][e];
                }
#pragma unroll
            for (int n = 0; n < Q::CT; n++) {
                out[m][n][2 * r] *= factor;
                out[m][n][2 * r + 1] *= factor;
            }
        }
}

/* A block: ROWS queries of one head; those with the most keys are the first blocks. */
template <class Q>
__global__ void __launch_bounds__(THREADS) attention_mma_forward(struct attention a) {
    DYN_SMEM(bf16, smem);
    bf16 *q = smem, *stages = q + Q::OWN_PANEL;
    const int lane = threadIdx.x % 32, first = (int)threadIdx.x / 32 * Q::OWN;
    const int i0 = (tiles_of(a.T, Q::ROWS) - 1 - (int)blockIdx.x / a.heads) * Q::ROWS;
    const int tiles = tiles_of(min(i0 + Q::ROWS, a.T), Q::COLS), step = 3 * a.C;
    const head_rows at = head_rows_of(a, blockIdx.x % a.heads);
    const bf16 *qkv = static_cast<const bf16 *>(a.qkv) + at.qkv;
    const float scale = score_scale(a.D);
    float out[Q::MT][Q::CT][4], s[Q::MT][Q::NT][4], max[Q::MT][2], sum[Q::MT][2];

    const auto copy_stage = [&](int tile) {
        bf16 *k = stages + tile % 2 * 2 * Q::PANEL;
        const bf16 *from = qkv + (size_t)tile * Q::COLS * step;
        copy_panel<Q::COLS, Q::HD>(k, from + a.C, step, a.T - tile * Q::COLS);
        copy_panel<Q::COLS, Q::HD>(k + Q::PANEL, from + 2 * a.C, step, a.T - tile * Q::COLS);
    };
    clear<Q>(out);
#pragma unroll
    for (int m = 0; m < Q::MT; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            max[m][r] = -INFINITY;
            sum[m][r] = 0;
        }
    copy_panel<Q::ROWS, Q::HD>(q, qkv + (size_t)i0 * step, step, a.T - i0);
    copy_stage(0);
    async_commit();
    for (int tile = 0; tile < tiles; tile++) {
        const bf16 *k = stages + tile % 2 * 2 * Q::PANEL;
        const int j0 = tile * Q::COLS;
        if (tile + 1 < tiles)
            copy_stage(tile + 1);
        async_commit();
        async_wait<1>();
        __syncthreads();
        if (j0 < i0 + first + Q::OWN) {
            dot<Q>(s, q + first * Q::HD, k, lane);
            if (j0 + Q::COLS > i0 + first + 1)
                mask<Q>(s, i0 + first + lane / 4, j0 + lane % 4 * 2);
            online_softmax<Q>(s, out, max, sum, scale);
            accumulate<Q>(out, s, k + Q::PANEL, lane);
        }
        __syncthreads();
    }
#pragma unroll
    for (int m = 0; m < Q::MT; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = i0 + first + 16 * m + 8 * r + lane / 4;
            sum[m][r] = row_sum(sum[m][r]);
            if (lane % 4 == 0 && row < a.T)
                a.lse[at.lse + row] = (max[m][r] * scale + log2f(sum[m][r])) * LN_2;
            sum[m][r] = 1.0f / sum[m][r];
        }
    store_rows<Q>(static_cast<bf16 *>(a.out) + at.out + (size_t)(i0 + first) * a.C, a.C, out, sum,
                  a.T - i0 - first, q + first * Q::HD, lane);
}

template <class Q> GFS_DEVICE void fill(float (&v)[Q::MT][2], float value) {
#pragma unroll
    for (int m = 0; m < Q::MT; m++)
        v[m][0] = v[m][1] = value;
}

/* A block: ROWS keys of one head; tiles of queries pass by, from the keys on. Scores are keys by
 * queries here, so that a warp owns rows of dk and dv. */
template <class Q>
__global__ void __launch_bounds__(THREADS) attention_mma_dkdv(struct attention a) {
    DYN_SMEM(bf16, smem);
    bf16 *k = smem, *v = k + Q::OWN_PANEL, *stages = v + Q::OWN_PANEL;
    float *queries = reinterpret_cast<float *>(stages + 4 * Q::PANEL); /* 2 stages of lse, delta */
    const int lane = threadIdx.x % 32, first = (int)threadIdx.x / 32 * Q::OWN;
    const int j0 = (int)blockIdx.x / a.heads * Q::ROWS, step = 3 * a.C;
    const int tiles = tiles_of(a.T - j0, Q::COLS);
    const head_rows at = head_rows_of(a, blockIdx.x % a.heads);
    const bf16 *qkv = static_cast<const bf16 *>(a.qkv) + at.qkv;
    const bf16 *douts = static_cast<const bf16 *>(a.dout) + at.out;
    const float scale = score_scale(a.D);
    float dk[Q::MT][Q::CT][4], dv[Q::MT][Q::CT][4], s[Q::MT][Q::NT][4], dp[Q::MT][Q::NT][4];
    static_assert(Q::COLS <= THREADS, "a thread copies the numbers of one query");

    const auto copy_stage = [&](int tile) {
        bf16 *q = stages + tile % 2 * 2 * Q::PANEL;
        float *lse = queries + tile % 2 * 2 * Q::COLS;
        const int i0 = j0 + tile * Q::COLS, i = threadIdx.x;
        copy_panel<Q::COLS, Q::HD>(q, qkv + (size_t)i0 * step, step, a.T - i0);
        copy_panel<Q::COLS, Q::HD>(q + Q::PANEL, douts + (size_t)i0 * a.C, a.C, a.T - i0);
        if (i < Q::COLS) {
            const size_t query = at.lse + min(i0 + i, a.T - 1);
            async_copy<4>(lse + i, a.lse + query, true);
            async_copy<4>(lse + Q::COLS + i, a.delta + query, true);
        }
    };
    clear<Q>(dk);
    clear<Q>(dv);
    copy_panel<Q::ROWS, Q::HD>(k, qkv + (size_t)j0 * step + a.C, step, a.T - j0);
    copy_panel<Q::ROWS, Q::HD>(v, qkv + (size_t)j0 * step + 2 * a.C, step, a.T - j0);
    copy_stage(0);
    async_commit();
    for (int tile = 0; tile < tiles; tile++) {
        const bf16 *q = stages + tile % 2 * 2 * Q::PANEL, *dout = q + Q::PANEL;
        const float *lse = queries + tile % 2 * 2 * Q::COLS + lane % 4 * 2;
        const int i0 = j0 + tile * Q::COLS;
        if (tile + 1 < tiles)
            copy_stage(tile + 1);
        async_commit();
        async_wait<1>();
        __syncthreads();
        if (i0 + Q::COLS > j0 + first) {
            dot<Q>(s, k + first * Q::HD, q, lane);
            dot<Q>(dp, v + first * Q::HD, dout, lane);
#pragma unroll
            for (int n = 0; n < Q::NT; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int column = 8 * n + e % 2, query = i0 + lane % 4 * 2 + column;
                    const float shift = lse[column] * LOG2_E, delta = lse[Q::COLS + column];
#pragma unroll
                    for (int m = 0; m < Q::MT; m++) {
                        const int key = j0 + first + 16 * m + e / 2 * 8 + lane / 4;
                        const float p = fast_exp2(fmaf(s[m][n][e], scale, -shift));
                        s[m][n][e] = key > query || query >= a.T ? 0 : p;
                        dp[m][n][e] = s[m][n][e] * (dp[m][n][e] - delta);
                    }
                }
            accumulate<Q>(dv, s, dout, lane);
            accumulate<Q>(dk, dp, q, lane);
        }
        __syncthreads();
    }
    bf16 *to = static_cast<bf16 *>(a.dqkv) + at.qkv + (size_t)(j0 + first) * step;
    float factor[Q::MT][2];
    fill<Q>(factor, rsqrtf((float)a.D));
    store_rows<Q>(to + a.C, step, dk, factor, a.T - j0 - first, k + first * Q::HD, lane);
    fill<Q>(factor, 1);
    store_rows<Q>(to + 2 * a.C, step, dv, factor, a.T - j0 - first, v + first * Q::HD, lane);
}

/* A block: ROWS queries of one head; tiles of keys pass by, to the queries. */
template <class Q> __global__ void __launch_bounds__(THREADS) attention_mma_dq(struct attention a) {
    DYN_SMEM(bf16, smem);
    bf16 *q = smem, *dout = q + Q::OWN_PANEL, *stages = dout + Q::OWN_PANEL;
    const int lane = threadIdx.x % 32, first = (int)threadIdx.x / 32 * Q::OWN;
    const int i0 = (tiles_of(a.T, Q::ROWS) - 1 - (int)blockIdx.x / a.heads) * Q::ROWS;
    const int tiles = tiles_of(min(i0 + Q::ROWS, a.T), Q::COLS), step = 3 * a.C;
    const head_rows at = head_rows_of(a, blockIdx.x % a.heads);
    const bf16 *qkv = static_cast<const bf16 *>(a.qkv) + at.qkv;
    const float scale = score_scale(a.D);
    float dq[Q::MT][Q::CT][4], s[Q::MT][Q::NT][4], dp[Q::MT][Q::NT][4];
    float shift[Q::MT][2], delta[Q::MT][2];

    const auto copy_stage = [&](int tile) {
        bf16 *k = stages + tile % 2 * 2 * Q::PANEL;
        const bf16 *from = qkv + (size_t)tile * Q::COLS * step;
        copy_panel<Q::COLS, Q::HD>(k, from + a.C, step, a.T - tile * Q::COLS);
        copy_panel<Q::COLS, Q::HD>(k + Q::PANEL, from + 2 * a.C, step, a.T - tile * Q::COLS);
    };
    clear<Q>(dq);
    copy_panel<Q::ROWS, Q::HD>(q, qkv + (size_t)i0 * step, step, a.T - i0);
    copy_panel<Q::ROWS, Q::HD>(dout, static_cast<const bf16 *>(a.dout) + at.out + (size_t)i0 * a.C,
                               a.C, a.T - i0);
    copy_stage(0);
    async_commit();
#pragma unroll
    for (int m = 0; m < Q::MT; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = i0 + first + 16 * m + 8 * r + lane / 4;
            shift[m][r] = row < a.T ? a.lse[at.lse + row] * LOG2_E : INFINITY;
            delta[m][r] = row < a.T ? a.delta[at.lse + row] : 0;
        }
    for (int tile = 0; tile < tiles; tile++) {
        const bf16 *k = stages + tile % 2 * 2 * Q::PANEL;
        const int j0 = tile * Q::COLS;
        if (tile + 1 < tiles)
            copy_stage(tile + 1);
        async_commit();
        async_wait<1>();
        __syncthreads();
        if (j0 < i0 + first + Q::OWN) {
            dot<Q>(s, q + first * Q::HD, k, lane);
            dot<Q>(dp, dout + first * Q::HD, k + Q::PANEL, lane);
            if (j0 + Q::COLS > i0 + first + 1)
                mask<Q>(s, i0 + first + lane / 4, j0 + lane % 4 * 2);
#pragma unroll
            for (int m = 0; m < Q::MT; m++)
#pragma unroll
                for (int n = 0; n < Q::NT; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        s[m][n][e] = fast_exp2(fmaf(s[m][n][e], scale, -shift[m][e / 2])) *
                                     (dp[m][n][e] - delta[m][e / 2]);
            accumulate<Q>(dq, s, k, lane);
        }
        __syncthreads();
    }
    float factor[Q::MT][2];
    fill<Q>(factor, rsqrtf((float)a.D));
    store_rows<Q>(static_cast<bf16 *>(a.dqkv) + at.qkv + (size_t)(i0 + first) * step, step, dq,
                  factor, a.T - i0 - first, q + first * Q::HD, lane);
}

/* Shared memory for so many panels of the block's own tile */
template <class Q> constexpr int smem_bytes(int own) {
    return (own * Q::OWN_PANEL + 4 * Q::PANEL) * (int)sizeof(bf16);
}

template <class Q> int grid(const struct attention *a) {
    return tiles_of(a->T, Q::ROWS) * a->heads;
}

template <class Q> cudaError_t forward(const struct cuda_call *c, const struct attention *a) {
    const int bytes = smem_bytes<Q>(1);
    cudaError_t rc = cudaFuncSetAttribute(attention_mma_forward<Q>,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (rc != cudaSuccess)
        return rc;
    LAUNCH((attention_mma_forward<Q>), grid<Q>(a), THREADS, bytes, c->stream, *a);
    return LAUNCH_ERROR();
}

template <class Q> cudaError_t backward(const struct cuda_call *c, const struct attention *a) {
    const int bytes = smem_bytes<Q>(2), dkdv_bytes = bytes + 4 * Q::COLS * (int)sizeof(float);
    cudaError_t rc = cudaFuncSetAttribute(attention_mma_dkdv<Q>,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize, dkdv_bytes);
    if (rc == cudaSuccess)
        rc = cudaFuncSetAttribute(attention_mma_dq<Q>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  bytes);
    if (rc != cudaSuccess)
        return rc;
    LAUNCH((attention_mma_dkdv<Q>), grid<Q>(a), THREADS, dkdv_bytes, c->stream, *a);
    rc = LAUNCH_ERROR();
    if (rc != cudaSuccess)
        return rc;
    LAUNCH((attention_mma_dq<Q>), grid<Q>(a), THREADS, bytes, c->stream, *a);
    return LAUNCH_ERROR();
}

} // namespace

cudaError_t cuda_attention_mma_forward(const struct cuda_call *c, const struct attention *a) {
    return a->D == 64 ? forward<shape<64, 2, 64>>(c, a) : forward<shape<128, 1, 64>>(c, a);
}

cudaError_t cuda_attention_mma_backward(const struct cuda_call *c, const struct attention *a) {
    return a->D == 64 ? backward<shape<64, 1, 64>>(c, a) : backward<shape<128, 1, 32>>(c, a);
}
