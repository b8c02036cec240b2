/* embed.cu - embeddings of tokens and positions.
 *
 * What the comments say of time is bytes a second over the bandwidth of the device, an estimate
 * until a GPU has run it. */
#include <limits.h>

#include "device/cuda/vec.cuh"

enum { ROWS = 8 }; /* of a block of WARP x ROWS threads */

/* A warp makes a row. Estimate: reads 2 S and writes S bytes an element, of which wpe and the rows
 * of frequent tokens come out of the cache. */
template <typename T, int E>
__global__ void embed_forward_kernel(T *out, const int32_t *tokens, const T *wte, const T *wpe,
                                     size_t N, size_t T_, size_t C) {
    size_t stride = (size_t)gridDim.x * ROWS;
    for (size_t n = (size_t)blockIdx.x * ROWS + threadIdx.y; n < N; n += stride) {
        const T *token = wte + (size_t)tokens[n] * C, *position = wpe + n % T_ * C;
        for (size_t i = (size_t)threadIdx.x * E; i < C; i += WARP * E) {
            float x[E], y[E];
            vec_load<E>(token + i, x);
            vec_load<E>(position + i, y);
#pragma unroll
            for (int j = 0; j < E; j++)
                x[j] += y[j];
            vec_store<E>(out + n * C + i, x);
        }
    }
}

template <typename T, int E>
static cudaError_t embed_forward_by(const struct cuda_call *c, T *out, const int32_t *tokens,
                                    const T *wte, const T *wpe, size_t N, size_t T_, size_t C) {
    size_t most = (size_t)c->sm_count * FLAT_BLOCKS_PER_SM;
    unsigned blocks = (unsigned)size_min(ceil_div(N, ROWS), most);
    LAUNCH((embed_forward_kernel<T, E>), blocks, dim3(WARP, ROWS), 0, c->stream, out, tokens, wte,
           wpe, N, T_, C);
    return LAUNCH_ERROR();
}

template <typename T>
static cudaError_t embed_forward(const struct cuda_call *c, void *out, const int32_t *tokens,
                                 const void *wte, const void *wpe, size_t N, size_t T_, size_t C) {
    enum { E = vec_of<T>::elems };
    T *o = static_cast<T *>(out);
    const T *te = static_cast<const T *>(wte), *pe = static_cast<const T *>(wpe);
    if (C % E == 0 && vec_aligned(o, 0, E) && vec_aligned(te, 0, E) && vec_aligned(pe, 0, E))
        return embed_forward_by<T, E>(c, o, tokens, te, pe, N, T_, C);
    return embed_forward_by<T, 1>(c, o, tokens, te, pe, N, T_, C);
}

cudaError_t cuda_embed_forward(const struct cuda_call *c, enum dtype t, void *out,
                               const int32_t *tokens, const void *wte, const void *wpe, size_t B,
                               size_t T, size_t C) {
    if (B * T * C == 0)
        return cudaSuccess;
    if (t == DTYPE_BF16)
        return embed_forward<bf16>(c, out, tokens, wte, wpe, B * T, T, C);
    return embed_forward<float>(c, out, tokens, wte, wpe, B * T, T, C);
}

/* ---- backward ----
 *
 * A block sums all rows of dout that belong to one token, in a fixed order, and adds them to its
 * row of dwte: no atomics on floats, one rounding. Blocks go over the positions; the one at a
 * token's first occurrence does the work, the others end at once. Where a token occurs first and
 * last is found beforehand, by integer maxima, whose order changes nothing. */

/* Of a token v, with N positions: N - first[v] and last[v] + 1, 0 where there is none. */
struct token_index {
    int *first, *last;
};

__global__ void token_index_clear_kernel(int *index, size_t count) {
    for (size_t i = grid_first(); i < count; i += grid_stride())
        index[i] = 0;
}

__global__ void token_index_kernel(int *first, int *last, const int32_t *tokens, int N) {
    for (size_t n = grid_first(); n < (size_t)N; n += grid_stride()) {
        atomicMax(&first[tokens[n]], N - (int)n);
        atomicMax(&last[tokens[n]], (int)n + 1);
    }
}

/* A vocabulary that call->work can't hold has no index: both NULL. */
static cudaError_t token_index_make(const struct cuda_call *c, struct token_index *out,
                                    const int32_t *tokens, size_t N, size_t V) {
    int *index = static_cast<int *>(c->work);
    *out = {NULL, NULL};
    if (V > CUDA_WORK_BYTES / (2 * sizeof(int)) || N > INT_MAX)
        return cudaSuccess;
    LAUNCH((token_index_clear_kernel), flat_blocks(c, 2 * V), FLAT_THREADS, 0, c->stream, index,
           2 * V);
    cudaError_t e = LAUNCH_ERROR();
    if (e != cudaSuccess)
        return e;
    LAUNCH((token_index_kernel), flat_blocks(c, N), FLAT_THREADS, 0, c->stream, index, index + V,
           tokens, (int)N);
    *out = {index, index + V};
    return LAUNCH_ERROR();
}

/* The threads of a block: `lanes` over columns, SUM_ROWS of those over the rows that are summed. */
enum {
    SUM_ROWS = 4,
    SUM_LANES = 128, /* at most */
    SUM_WARPS = SUM_ROWS * SUM_LANES / WARP,
    LOOKS = 8, /* tokens that a thread looks at in one go */
    SPAN = SUM_ROWS * SUM_LANES * LOOKS
};

GFS_DEVICE int block_thread(void) { return (int)(threadIdx.y * blockDim.x + threadIdx.x); }

/* found[0 ... return value) = positions of `token` among those from begin on, as many as the block
 * looks at in one go and below end, in ascending order. found and counts are free again after the
 * next barrier; the first of these barriers also ends the use of what was found before. */
GFS_DEVICE int find_tokens(int *found, int *counts, const int32_t *tokens, int32_t token,
                           size_t begin, size_t end) {
    int lane = block_thread() % WARP, warp = block_thread() / WARP,
        warps = (int)(blockDim.x * blockDim.y) / WARP;
    unsigned hits[LOOKS];
    int count = 0;
#pragma unroll
    for (int j = 0; j < LOOKS; j++) {
        size_t at = begin + (size_t)(warp * LOOKS + j) * WARP + lane;
        hits[j] = __ballot_sync(0xffffffffu, at < end && tokens[at] == token);
        count += __popc(hits[j]);
    }
    if (lane == 0)
        counts[warp] = count;
    __syncthreads();
    int place = 0, all = 0;
    for (int w = 0; w < warps; w++) {
        place += w < warp ? counts[w] : 0;
        all += counts[w];
    }
#pragma unroll
    for (int j = 0; j < LOOKS; j++) {
        if (hits[j] >> lane & 1)
            found[place + __popc(hits[j] & ((1u << lane) - 1))] = (warp * LOOKS + j) * WARP + lane;
        place += __popc(hits[j]);
    }
    __syncthreads();
    return all;
}

/* Whether no position before n has the token of n; the same in all threads of the block. */
GFS_DEVICE bool is_first(const int *first, const int32_t *tokens, size_t n, size_t N) {
    if (first != NULL)
        return first[tokens[n]] == (int)(N - n);
    int before = 0;
    for (size_t i = (size_t)block_thread(); i < n && !before; i += blockDim.x * blockDim.y)
        before = tokens[i] == tokens[n];
    return __syncthreads_or(before) == 0;
}

/* Estimate: reads S bytes an element of dout, and reads and writes a row of dwte for each token
 * that occurs; beside that the tokens from its first to its last occurrence out of the cache, for
 * each that occurs twice or more. A token that is most of the batch is one block's work. */
template <typename T, typename G, int E>
__global__ void __launch_bounds__(SUM_ROWS *SUM_LANES)
    embed_token_kernel(G *dwte, const T *dout, const int32_t *tokens, const int *first,
                       const int *last, size_t N, size_t C) {
    SMEM(int, found, [SPAN]);
    SMEM(int, counts, [SUM_WARPS]);
    SMEM(float, tile, [SUM_ROWS - 1][SUM_LANES * E]);
    size_t column = ((size_t)blockIdx.y * blockDim.x + threadIdx.x) * E;
    size_t span = (size_t)blockDim.x * blockDim.y * LOOKS;
    for (size_t n = blockIdx.x; n < N; n += gridDim.x) {
        if (!is_first(first, tokens, n, N))
            continue;
        int32_t token = tokens[n];
        size_t end = last != NULL ? (size_t)last[token] : N;
        float sum[E] = {};
        for (size_t begin = n; begin < end; begin += span) {
            int count = find_tokens(found, counts, tokens, token, begin, end);
            if (column < C)
#pragma unroll 4
                for (int i = (int)threadIdx.y; i < count; i += SUM_ROWS) {
                    float x[E];
                    vec_load<E>(dout + (begin + found[i]) * C + column, x);
#pragma unroll
                    for (int j = 0; j < E; j++)
                        sum[j] += x[j];
                }
        }
#pragma unroll
        for (int j = 0; j < E && threadIdx.y > 0; j++)
            tile[threadIdx.y - 1][j * SUM_LANES + threadIdx.x] = sum[j];
        __syncthreads();
        if (threadIdx.y == 0 && column < C) {
            float x[E];
            vec_load<E>(dwte + (size_t)token * C + column, x);
#pragma unroll
            for (int j = 0; j < E; j++) {
                for (int y = 0; y < SUM_ROWS - 1; y++)
                    sum[j] += tile[y][j * SUM_LANES + threadIdx.x];
                x[j] += sum[j];
            }
            vec_store<E>(dwte + (size_t)token * C + column, x);
        }
        __syncthreads();
    }
}

/* dwpe[t] += sum over b of dout[b, t], in that order. Estimate: reads S bytes an element, and reads
 * and writes T rows. */
template <typename T, typename G, int E>
__global__ void embed_position_kernel(G *dwpe, const T *dout, size_t B, size_t T_, size_t C) {
    size_t stride = (size_t)gridDim.y * ROWS;
    size_t column = ((size_t)blockIdx.x * WARP + threadIdx.x) * E;
    if (column >= C)
        return;
    for (size_t t = (size_t)blockIdx.y * ROWS + threadIdx.y; t < T_; t += stride) {
        float sum[E] = {}, x[E];
#pragma unroll 4
        for (size_t b = 0; b < B; b++) {
            vec_load<E>(dout + (b * T_ + t) * C + column, x);
#pragma unroll
            for (int j = 0; j < E; j++)
                sum[j] += x[j];
        }
        vec_load<E>(dwpe + t * C + column, x);
#pragma unroll
        for (int j = 0; j < E; j++)
            x[j] += sum[j];
        vec_store<E>(dwpe + t * C + column, x);
    }
}

template <typename T, typename G, int E>
static cudaError_t embed_backward_by(const struct cuda_call *c, G *dwte, G *dwpe, const T *dout,
                                     const int32_t *tokens, size_t B, size_t T_, size_t C,
                                     size_t V) {
    enum { BLOCKS_MAX = 1 << 20, GRID_Y_MAX = 65535 };
    struct token_index index;
    size_t N = B * T_, units = ceil_div(C, E);
    cudaError_t e = token_index_make(c, &index, tokens, N, V);
    if (e != cudaSuccess)
        return e;
    unsigned lanes = (unsigned)size_min(ceil_div(units, WARP) * WARP, SUM_LANES);
    dim3 grid((unsigned)size_min(N, BLOCKS_MAX), (unsigned)ceil_div(units, lanes));
    LAUNCH((embed_token_kernel<T, G, E>), grid, dim3(lanes, SUM_ROWS), 0, c->stream, dwte, dout,
           tokens, static_cast<const int *>(index.first), static_cast<const int *>(index.last), N,
           C);
    e = LAUNCH_ERROR();
    if (e != cudaSuccess)
        return e;
    grid =
        dim3((unsigned)ceil_div(units, WARP), (unsigned)size_min(ceil_div(T_, ROWS), GRID_Y_MAX));
    LAUNCH((embed_position_kernel<T, G, E>), grid, dim3(WARP, ROWS), 0, c->stream, dwpe, dout, B,
           T_, C);
    return LAUNCH_ERROR();
}

template <typename T, typename G>
static cudaError_t embed_backward(const struct cuda_call *c, void *dwte, void *dwpe,
                                  const void *dout, const int32_t *tokens, size_t B, size_t T_,
                                  size_t C, size_t V) {
    enum { E = vec_of<T>::elems };
    G *te = static_cast<G *>(dwte), *pe = static_cast<G *>(dwpe);
    const T *d = static_cast<const T *>(dout);
    if (C % E == 0 && vec_aligned(te, 0, E) && vec_aligned(pe, 0, E) && vec_aligned(d, 0, E))
        return embed_backward_by<T, G, E>(c, te, pe, d, tokens, B, T_, C, V);
    return embed_backward_by<T, G, 1>(c, te, pe, d, tokens, B, T_, C, V);
}

cudaError_t cuda_embed_backward(const struct cuda_call *c, enum dtype t, enum dtype g, void *dwte,
                                void *dwpe, const void *dout, const int32_t *tokens, size_t B,
                                size_t T, size_t C, size_t V) {
    if (B * T * C == 0)
        return cudaSuccess;
    if (t != DTYPE_BF16)
        return embed_backward<float, float>(c, dwte, dwpe, dout, tokens, B, T, C, V);
    if (g == DTYPE_BF16)
        return embed_backward<bf16, bf16>(c, dwte, dwpe, dout, tokens, B, T, C, V);
    return embed_backward<bf16, float>(c, dwte, dwpe, dout, tokens, B, T, C, V);
}
