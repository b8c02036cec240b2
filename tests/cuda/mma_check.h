/* mma_check.h - whether the instructions of device/cuda/mma.cuh do what the PTX ISA says: layouts
 * of fragments, ldmatrix, asynchronous copies. One warp, one launch.
 *
 * Runs on the emulation, which it holds to the documents, and on a GPU of sm_80 or later, which
 * shows that the kernels' reading of the documents is right. */
#ifndef GFS_TESTS_CUDA_MMA_CHECK_H
#define GFS_TESTS_CUDA_MMA_CHECK_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MMA_LANES = 32 };

/* In device memory, aligned to 16. bf16 are bits. */
struct mma_check {
    /* given */
    uint16_t a[16][16], b[16][8];
    float c[16][8];
    uint16_t rows[MMA_LANES][8]; /* row r of matrix m is rows[8 m + r] */
    uint16_t copies[MMA_LANES][8];
    float numbers[MMA_LANES];
    /* left by the kernel */
    float product[16][8];                  /* c + a b */
    uint32_t loaded[MMA_LANES][4];         /* by ldmatrix, registers of each lane */
    uint32_t transposed[MMA_LANES][4];     /* by ldmatrix_transposed */
    uint16_t first_copies[MMA_LANES][8];   /* of the first two groups of copies, when the third */
    uint16_t invalid_copies[MMA_LANES][8]; /* was still allowed to be on its way */
    uint16_t last_copies[MMA_LANES][2];    /* the third: 4 bytes a lane */
    uint32_t packed[MMA_LANES];            /* numbers[lane] low, numbers[31 - lane] high */
    float powers[MMA_LANES];               /* 2^numbers[lane] */
};

/* mma_check.cu: queues the kernel. */
cudaError_t mma_check_launch(cudaStream_t stream, struct mma_check *on_device);

/* mma_check.c: 0, or -EIO and the first thing that is not as documented; a CUDA call that fails is
 * -EIO too. Needs no library but cudart. */
int mma_check_run(char *why, size_t cap_bytes);

#ifdef __cplusplus
}
#endif

#endif
