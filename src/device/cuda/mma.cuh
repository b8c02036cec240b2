/* mma.cuh - the tensor-core and asynchronous-copy instructions that kernels use, for sm_80 and
 * later.
 *
 * Every lane of the warp must call the warp's instructions (mma_*, ldmatrix_*) together. Registers
 * hold two bf16, the one of the lower column or row in the low half. With g = lane / 4, t = lane %
 * 4 (PTX ISA, "Matrix fragments for mma.m16n8k16"): A (16,16): a[0] (g, 2t), a[1] (g+8, 2t), a[2]
 * (g, 2t+8), a[3] (g+8, 2t+8), each with column + 1 B (16,8):  b0 (2t, g), b1 (2t+8, g), each with
 * row + 1 C (16,8):  c[0], c[1] (g, 2t), (g, 2t+1); c[2], c[3] (g+8, 2t), (g+8, 2t+1) */
#ifndef GFS_DEVICE_CUDA_MMA_CUH
#define GFS_DEVICE_CUDA_MMA_CUH

#include "device/cuda/launch.h"

#include <cuda_bf16.h>
#include <stdint.h>
#include <string.h>

/* Two floats to bf16, rounded to nearest even; `low` in the low half. */
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}

#ifdef CUDA_ONLY

__device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* c += a b */
__device__ __forceinline__ void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four (8,8) matrices in shared memory; lane 8 i + r names row r of matrix i, 16 bytes aligned.
 * to[i]: of matrix i the elements (g, 2t), (g, 2t+1); transposed: (2t, g), (2t+1, g). */
__device__ __forceinline__ void ldmatrix(uint32_t (&to)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_transposed(uint32_t (&to)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* BYTES (4, 8 or 16, both sides aligned to that) from global to shared memory, zeros where not
 * valid; `from` is a valid address even then. Complete for this thread after async_wait, for the
 * block after a barrier behind it. */
template <int BYTES>
__device__ __forceinline__ void async_copy(void *to, const void *from, bool valid) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "what cp.async moves");
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :
                     : "r"(shared_address(to)), "l"(__cvta_generic_to_global(from)),
                       "r"(valid ? 16 : 0)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                     :
                     : "r"(shared_address(to)), "l"(__cvta_generic_to_global(from)), "n"(BYTES),
                       "r"(valid ? BYTES : 0)
                     : "memory");
}
/* Closes the group of copies since the last one. */
__device__ __forceinline__ void async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Waits for all groups of this thread but the newest `but`. */
template <int but> __device__ __forceinline__ void async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(but) : "memory");
}

/* 2^x, 0 for -infinity; error about 2^-22 */
__device__ __forceinline__ float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#else
#include "tests/cuda/emu_mma.h"
#endif

#endif
