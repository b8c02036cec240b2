/* columns.cuh - sums over the rows of a matrix in two stages, for the gradients of biases and
 * norms.
 *
 * Stage one leaves `parts` partial sums (parts, width) in call->work, each over the rows of one row
 * of blocks; stage two adds them in order. No atomics: the grid, and with it the order, depends on
 * the shape and the number of SMs alone. With one part stage one adds to the gradient itself, so
 * that any width fits into call->work. */
#ifndef GFS_DEVICE_CUDA_COLUMNS_CUH
#define GFS_DEVICE_CUDA_COLUMNS_CUH

#include "device/cuda/vec.cuh"

/* Rows of blocks for sums of `sums` values a column: as many as the GPU runs at once, or partial
 * sums would be many, and no more than call->work takes. Each thread gets some rows, or stage two
 * would have most of the work. */
static inline unsigned column_parts(const struct cuda_call *c, size_t N, size_t C, int E,
                                    size_t sums) {
    enum { ROWS_A_THREAD = 4, BLOCKS_AT_ONCE = 4 /* with up to 64 registers */ };
    size_t tiles = ceil_div(C, (size_t)COLUMN_LANES * E);
    size_t parts = size_min(ceil_div((size_t)c->sm_count * BLOCKS_AT_ONCE, tiles),
                            ceil_div(N, (size_t)COLUMN_ROWS * ROWS_A_THREAD));
    size_t fit = CUDA_WORK_BYTES / (sums * C * sizeof(float));
    return (unsigned)size_max(1, size_min(parts, fit));
}

/* sum (E) of a thread becomes that of its column over the rows of the block, in the threads of row
 * 0. tile is free again after the next barrier. */
template <int E>
GFS_DEVICE void column_block_sum(float (&sum)[E],
                                 float (&tile)[COLUMN_ROWS][COLUMN_LANES * E + 1]) {
#pragma unroll
    for (int i = 0; i < E; i++) /* neighbours in a warp are neighbours in a bank */
        tile[threadIdx.y][i * COLUMN_LANES + threadIdx.x] = sum[i];
    __syncthreads();
    if (threadIdx.y != 0)
        return;
#pragma unroll
    for (int i = 0; i < E; i++)
        for (int y = 1; y < COLUMN_ROWS; y++)
            sum[i] += tile[y][i * COLUMN_LANES + threadIdx.x];
}

/* Where E sums of stage one go: the partial sums, or with one part the gradient. */
template <typename G, int E>
GFS_DEVICE void column_leave(G *grad, float *partial, const float (&sum)[E]) {
    if (gridDim.y > 1) {
        vec_store<E>(partial, sum);
        return;
    }
    float old[E];
    vec_load<E>(grad, old);
#pragma unroll
    for (int i = 0; i < E; i++)
        old[i] += sum[i];
    vec_store<E>(grad, old);
}

/* first (C), then second (width - C) += the column sums of partial (parts, width). Blocks of 32 x
 * blockDim.y threads. */
template <typename G>
__global__ void column_finish_kernel(G *first, G *second, const float *partial, size_t C,
                                     size_t width, unsigned parts) {
    SMEM(float, tile, [32][COLUMN_LANES + 1]);
    size_t column = (size_t)blockIdx.x * COLUMN_LANES + threadIdx.x;
    float sum = 0;
    if (column < width)
#pragma unroll 4
        for (unsigned p = threadIdx.y; p < parts; p += blockDim.y)
            sum += partial[p * width + column];
    tile[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || column >= width)
        return;
    for (unsigned y = 1; y < blockDim.y; y++)
        sum += tile[y][threadIdx.x];
    G *grad = column < C ? first + column : second + (column - C);
    float old[1];
    vec_load<1>(grad, old);
    old[0] += sum;
    vec_store<1>(grad, old);
}

template <typename G>
static inline cudaError_t column_finish(const struct cuda_call *c, G *first, G *second, size_t C,
                                        size_t width, unsigned parts) {
    unsigned rows = 1;
    while (rows < 32 && rows < parts)
        rows *= 2;
    LAUNCH((column_finish_kernel<G>), dim3((unsigned)ceil_div(width, COLUMN_LANES)),
           dim3(COLUMN_LANES, rows), 0, c->stream, first, second,
           static_cast<const float *>(c->work), C, width, parts);
    return LAUNCH_ERROR();
}

#endif
