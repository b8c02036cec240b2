/* mma_check.cu - a warp that uses each instruction of device/cuda/mma.cuh once. Fragments are taken
 * apart and put together element by element, by the formulas of the PTX ISA, not by the kernels'
 * ways. */
#include "device/cuda/mma.cuh"
#include "tests/cuda/mma_check.h"

/* Element i of a fragment of m16n8k16; group = lane / 4, member = lane % 4. */
static __device__ int a_row(int i, int group) { return i % 4 < 2 ? group : group + 8; }
static __device__ int a_column(int i, int member) { return member * 2 + i % 2 + (i < 4 ? 0 : 8); }
static __device__ int b_row(int i, int member) { return member * 2 + i % 2 + (i < 2 ? 0 : 8); }
static __device__ int c_row(int i, int group) { return i < 2 ? group : group + 8; }
static __device__ int c_column(int i, int member) { return member * 2 + i % 2; }

static __device__ void check_product(struct mma_check *m, int lane) {
    const int group = lane / 4, member = lane % 4;
    uint32_t a[4] = {0, 0, 0, 0}, b[2] = {0, 0};
    float c[4];
    for (int i = 0; i < 8; i++)
        a[i / 2] |= (uint32_t)m->a[a_row(i, group)][a_column(i, member)] << i % 2 * 16;
    for (int i = 0; i < 4; i++)
        b[i / 2] |= (uint32_t)m->b[b_row(i, member)][group] << i % 2 * 16;
    for (int i = 0; i < 4; i++)
        c[i] = m->c[c_row(i, group)][c_column(i, member)];
    mma_bf16(c, a, b[0], b[1]);
    for (int i = 0; i < 4; i++)
        m->product[c_row(i, group)][c_column(i, member)] = c[i];
}

/* The rows lie in another order, 5 apart, so that the address of each lane counts. */
static __device__ void check_ldmatrix(struct mma_check *m, int lane) {
    SMEM(uint4, rows, [MMA_LANES]);
    uint32_t to[4];
    uint4 *row = &rows[lane * 5 % MMA_LANES];
    memcpy(row, m->rows[lane], sizeof *row);
    __syncwarp();
    ldmatrix(to, row);
    for (int i = 0; i < 4; i++)
        m->loaded[lane][i] = to[i];
    ldmatrix_transposed(to, row);
    for (int i = 0; i < 4; i++)
        m->transposed[lane][i] = to[i];
}

static __device__ void check_copies(struct mma_check *m, int lane) {
    SMEM(uint4, first, [MMA_LANES]);
    SMEM(uint4, invalid, [MMA_LANES]);
    SMEM(uint32_t, last, [MMA_LANES]);
    invalid[lane] = make_uint4(1, 2, 3, 4);
    __syncwarp();
    async_copy<16>(&first[lane], m->copies[lane], true);
    async_commit();
    async_copy<16>(&invalid[lane], m->copies[lane], false);
    async_commit();
    async_copy<4>(&last[lane], m->copies[lane] + 2, true);
    async_commit();
    async_wait<1>();
    __syncwarp();
    const int other = (lane + 1) % MMA_LANES; /* copied by another thread */
    memcpy(m->first_copies[other], &first[other], sizeof first[other]);
    memcpy(m->invalid_copies[other], &invalid[other], sizeof invalid[other]);
    async_wait<0>();
    __syncwarp();
    memcpy(m->last_copies[other], &last[other], sizeof last[other]);
}

static __global__ void mma_check_kernel(struct mma_check *m) {
    const int lane = threadIdx.x;
    check_product(m, lane);
    check_ldmatrix(m, lane);
    check_copies(m, lane);
    m->packed[lane] = pack_bf16(m->numbers[lane], m->numbers[MMA_LANES - 1 - lane]);
    m->powers[lane] = fast_exp2(m->numbers[lane]);
}

extern "C" cudaError_t mma_check_launch(cudaStream_t stream, struct mma_check *on_device) {
    LAUNCH((mma_check_kernel), 1, MMA_LANES, 0, stream, on_device);
    return LAUNCH_ERROR();
}
