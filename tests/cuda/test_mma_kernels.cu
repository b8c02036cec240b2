/* test_mma_kernels.cu - warps that use the instructions of device/cuda/mma.cuh wrongly, or a
 * barrier too few. */
#include "device/cuda/mma.cuh"
#include "tests/cuda/test_mma.h"

/* Rows of 16 bytes; `step` of them from one row of a matrix to the next. */
static __global__ void rows_kernel(uint32_t *out, int step, int offset_bytes) {
    SMEM(uint4, rows, [32 * MMA_WRONG_STEP_MAX]);
    uint32_t to[4];
    rows[threadIdx.x] = make_uint4(0, 0, 0, 0);
    __syncwarp();
    ldmatrix(to, reinterpret_cast<unsigned char *>(&rows[threadIdx.x * step]) + offset_bytes);
    out[threadIdx.x] = to[0];
}

static __global__ void copy_kernel(uint32_t *out, const uint32_t *in, int what) {
    SMEM(uint4, word, [1]);
    uint32_t *to = reinterpret_cast<uint32_t *>(word);
    async_copy<4>(to, in, true);
    if (what == MMA_WRONG_ALIGNMENT)
        async_copy<16>(to, in + 1, true);
    async_commit();
    if (what == MMA_WRONG_GROUP) {
        async_commit(); /* a newer group, so the copy's must be complete */
        async_wait<1>();
    } else if (what == MMA_WRONG_WAIT) {
        async_wait<1>();
    }
    if (what != MMA_WRONG_END)
        out[0] = to[0];
    if (what != MMA_WRONG_END)
        async_wait<0>();
}

void mma_wrong_rows(cudaStream_t s, uint32_t *out, int step, int offset_bytes) {
    LAUNCH((rows_kernel), 1, 32, 0, s, out, step, offset_bytes);
}

void mma_wrong_copy(cudaStream_t s, uint32_t *out, const uint32_t *in, int what) {
    LAUNCH((copy_kernel), what == MMA_WRONG_END ? 2 : 1, 1, 0, s, out, in, what);
}
