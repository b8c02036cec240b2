/* test_mma.h - kernels of test_mma.c. */
#ifndef GFS_TESTS_CUDA_TEST_MMA_H
#define GFS_TESTS_CUDA_TEST_MMA_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MMA_WRONG_STEP_MAX = 8 };

/* ldmatrix of rows that are `step` times 16 bytes apart, from offset_bytes behind an aligned
 * address; out: one word a lane */
void mma_wrong_rows(cudaStream_t s, uint32_t *out, int step, int offset_bytes);

enum {
    MMA_WRONG_GROUP,    /* nothing is: the copy is complete, as another group follows it */
    MMA_WRONG_WAIT,     /* the wait allows the copy's own group to be on its way */
    MMA_WRONG_END,      /* nothing waits */
    MMA_WRONG_ALIGNMENT /* 16 bytes from an address that is a multiple of 4 */
};
/* out[0] = in[0] by way of an asynchronous copy */
void mma_wrong_copy(cudaStream_t s, uint32_t *out, const uint32_t *in, int what);

#ifdef __cplusplus
}
#endif

#endif
