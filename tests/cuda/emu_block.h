/* emu_block.h - runs the blocks of a kernel on the CPU: every thread of a block is a fiber.
 *
 * One kernel runs at a time in a process (the lock of emu_stream.h is held), block after block.
 * Within a block the threads run one at a time, each until it waits or ends, in the order that
 * EMU_THREADS says: asc, desc, or random, drawn again after each barrier. What a kernel may not do
 * ends the program with the kernel's name, the block and the thread. */
#ifndef GFS_TESTS_CUDA_EMU_BLOCK_H
#define GFS_TESTS_CUDA_EMU_BLOCK_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    EMU_WARP = 32,
    EMU_THREADS_MAX = 1024,
    EMU_SHARED_BYTES = 48 << 10,        /* of a block, static and dynamic, without asking */
    EMU_SHARED_OPTIN_BYTES = 227 << 10, /* after cudaFuncSetAttribute */
    EMU_STATIC_SHARED_MAX = 32          /* arrays of SMEM in one kernel */
};

/* A launch: name is for people and lives as long as the program; run calls the kernel with the
 * arguments in args. */
struct emu_kernel {
    const char *name;
    const void *function; /* what cudaFuncSetAttribute names */
    void (*run)(const void *args);
    dim3 grid, block;
    size_t dynamic_bytes;
};

/* An argument that is a pointer, for the checks of emu_launch. */
struct emu_argument {
    const void *pointer;
    uint32_t index; /* among all arguments */
};

/* Queues the kernel on a stream; args are copied. A launch that a GPU would refuse ends the program
 * (a grid, a block or shared memory beyond the limits), as does a pointer argument that is neither
 * NULL nor in a live allocation. An error that was injected is left for cudaGetLastError. */
void emu_launch(const struct emu_kernel *k, cudaStream_t stream, const void *args,
                size_t args_bytes, const struct emu_argument *pointers, size_t pointer_count);

/* Runs all blocks now. Used by the queue, and by tests of the emulation itself. */
void emu_block_run_grid(const struct emu_kernel *k, const void *args);

/* The name of the kernel that runs, NULL outside of one. */
const char *emu_block_kernel(void);
/* Static shared memory that the kernel was seen to use, 0 before its first block. */
size_t emu_block_static_bytes(const void *function);

/* ---- called by kernels, through emu.h ---- */

/* Of the thread that runs. */
extern uint3 emu_thread_idx, emu_block_idx;
extern dim3 emu_block_dim, emu_grid_dim;

/* A barrier: all threads of the block must come to this place. Returns how many of them had a
 * value other than 0. */
int emu_syncthreads(int value, const char *file, int line);

enum emu_warp_op {
    EMU_SYNCWARP,
    EMU_SHFL, /* arg: lane */
    EMU_SHFL_UP,
    EMU_SHFL_DOWN,
    EMU_SHFL_XOR, /* arg: lane mask */
    EMU_BALLOT,
    EMU_MATCH_ANY
};
/* All threads of `mask` that have not ended must come to this place with the same mask. A lane that
 * reads from one that does not take part gets NaN. bytes: of a shuffled value, 4 or 8. */
uint64_t emu_warp(enum emu_warp_op op, uint32_t mask, uint64_t value, uint32_t arg, uint32_t width,
                  const char *file, int line);
/* Threads of this warp that have not ended; that is more than a GPU would say in divergent code. */
uint32_t emu_activemask(void);

/* Shared memory of the block; key tells one SMEM from another. Filled with 0xff, which is a NaN in
 * every float format and -1 in integers, when the block begins. */
void *emu_static_shared(const void *key, const char *name, size_t bytes, size_t align);
void *emu_dynamic_shared(void);

/* Ends the program with the place in the kernel. */
void emu_trap(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

#ifdef __cplusplus
}
#endif

#endif
