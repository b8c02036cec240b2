/* test_race.h - kernels and rig of the tests of the race detector. */
#ifndef GFS_TESTS_CUDA_TEST_RACE_H
#define GFS_TESTS_CUDA_TEST_RACE_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* out (n) = in * factor */
void r_scale(cudaStream_t s, float *out, const float *in, int n, float factor);
/* out (blocks) = sums of in (blocks, 128) */
void r_tree(cudaStream_t s, float *out, const float *in, int blocks, bool barriers);
/* out[0] += the sum of in (blocks, 32) */
void r_total(cudaStream_t s, float *out, const float *in, int blocks, bool atomic);
/* out[i] = in[i ^ 1], 64 elements */
void r_turn(cudaStream_t s, float *out, const float *in, bool sync);
/* data (5 * blocks) += 1 */
void r_halves(cudaStream_t s, uint16_t *data, int blocks, bool neighbour);
void r_peek(cudaStream_t s, int *counter, int *out, bool peek);

int test_race(void);

#ifdef __cplusplus
}
#endif

#endif
