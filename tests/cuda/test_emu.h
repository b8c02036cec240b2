/* test_emu.h - the tests of the emulation itself: kernels that do one thing each, some of them
 * wrong, and what the test files share. */
#ifndef GFS_TESTS_CUDA_TEST_EMU_H
#define GFS_TESTS_CUDA_TEST_EMU_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- kernels, test_emu_kernels.cu ---- */

/* out[i] = i, by blocks of `block` threads; n elements */
void k_index(cudaStream_t s, int *out, size_t n, int block);
/* out[0] = sum of in (n), n <= 1024 a multiple of 32: tree in shared memory. barriers false:
 * without the barriers that it needs */
void k_sum(cudaStream_t s, float *out, const float *in, int n, int barriers);
/* out[thread] for one block of `block` threads, by a shuffle of the kind with arg and width; the
 * value is 100 + thread */
enum { K_SHFL, K_UP, K_DOWN, K_XOR };
void k_shuffle(cudaStream_t s, int kind, int *out, int block, int arg, int width);
void k_shuffle_double(cudaStream_t s, double *out);
/* out[0..3]: ballot of odd threads, any, all, match of thread / 4; by thread 5 of 32 */
void k_vote(cudaStream_t s, unsigned *out);
/* Lower and upper half of a warp exchange by themselves, in two branches. */
void k_halves(cudaStream_t s, int *out);
/* A lane reads from one that has ended, or never was. */
void k_shuffle_from_ended(cudaStream_t s, float *out);
/* out[0] += 1 in each of the threads of `blocks` blocks; atomic 0: without an atomic, in a way that
 * loses updates only on a GPU */
void k_count(cudaStream_t s, int *out, int blocks, int atomic);
/* atomics of every type, one block of 64 threads: see the test */
void k_atomics(cudaStream_t s, int *i, unsigned *u, unsigned long long *l, float *f, double *d);
/* What fresh shared memory holds: out[0] static, out[1] dynamic, of block 1 after block 0 wrote. */
void k_fresh(cudaStream_t s, float *out);
/* out[block] = how often a block ran before this thread's block: counter in global memory */
void k_order(cudaStream_t s, int *out, int *counter, int blocks);
void k_thread_order(cudaStream_t s, int *out, int *counter, int threads);
void k_count_or_and(cudaStream_t s, int *out);
/* A struct that holds a pointer. */
void k_fill_struct(cudaStream_t s, float *dst, int n, float value);
void k_scale(cudaStream_t s, float *out, const float *in, size_t n, float factor);
/* bf16 as the headers of the toolkit have it: out = (bf16)in + 1 */
void k_bf16(cudaStream_t s, uint16_t *out, const float *in, int n);
void k_math(cudaStream_t s, float *out);

/* ---- kernels that are wrong ---- */

enum {
    W_BARRIER_IN_BRANCH, /* half of the threads skip a barrier */
    W_TWO_BARRIERS,      /* halves of the block wait at different ones */
    W_ENDED,             /* one thread returned before the barrier */
    W_WARP_PARTS,        /* a full mask in a branch that half of the warp takes */
    W_WARP_MASK,         /* mask without the own lane */
    W_BEYOND_SHARED,     /* static array, one element behind the end */
    W_BEFORE_SHARED,     /* dynamic, one before the start */
    W_BEYOND_DYNAMIC,    /* a page behind the end */
    W_BEYOND_DEVICE,     /* 64 elements behind an allocation of 16 */
    W_DEEP,              /* too much local memory */
    W_TRAP,
    W_WIDTH,
    W_STATIC_TOO_LARGE
};
void k_wrong(cudaStream_t s, int what, float *p);
/* Launches with these sizes a kernel that does nothing. */
void k_launch(cudaStream_t s, dim3 grid, dim3 block, size_t dynamic_bytes, const void *p);
cudaError_t k_allow(size_t dynamic_bytes);

/* ---- test_emu_rig.c ---- */

void *device_memory(size_t bytes);
void *pinned_memory(size_t bytes);
cudaStream_t stream_open(void);
cudaEvent_t event_open(void);
/* Ends the test if e is not cudaSuccess. */
void must(cudaError_t e);
/* The settings of a new process; frees nothing. */
void settings_reset(void);

/* Runs fn(arg) in a child: it must end by abort() and say `text` on stderr, within 20 seconds. */
void dies(void (*fn)(void *arg), void *arg, const char *text);
/* Runs fn(arg) in a child: it must end with status 0. */
void lives(void (*fn)(void *arg), void *arg);

int test_emu_blocks(void);
int test_emu_queues(void);
int test_emu_refusals(void);

#ifdef __cplusplus
}
#endif

#endif
