/* launch.h - the few words that kernels use beside plain CUDA C++, so that one source is compiled
 * by nvcc for a GPU and by g++ for the emulation of tests/cuda.
 *
 *   LAUNCH((kernel<4>), grid, block, smem_bytes, stream, args...);   then LAUNCH_ERROR()
 *   SMEM(float, tile, [32][33]);    static shared memory
 *   DYN_SMEM(float, row);           dynamic shared memory
 *
 * What kernels may use is what the emulation has: __syncthreads, __syncwarp, the __shfl_*_sync and
 * __ballot/__any/__all_sync family, atomicAdd/Max/CAS on 32 and 64 bits, __threadfence,
 * threadIdx/blockIdx/blockDim/gridDim, vector types, __ldg, the usual float intrinsics (expf,
 * __expf, tanhf, rsqrtf, fmaf, log1pf), cuda_bf16.h for storage, and nothing with inline PTX
 * outside of CUDA_ONLY sections. */
#ifndef GFS_DEVICE_CUDA_LAUNCH_H
#define GFS_DEVICE_CUDA_LAUNCH_H

#ifdef GFS_EMULATION
#include "tests/cuda/emu.h"
#else
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#define GFS_UNWRAP(...) __VA_ARGS__
#define LAUNCH(kernel, grid, block, smem_bytes, stream, ...)                                       \
    (GFS_UNWRAP kernel<<<(grid), (block), (smem_bytes), (stream)>>>(__VA_ARGS__))
#define LAUNCH_ERROR() cudaGetLastError()
#define SMEM(type, name, dims) __shared__ type name dims
#define DYN_SMEM(type, name)                                                                       \
    extern __shared__ __align__(16) unsigned char gfs_dyn_smem[];                                  \
    type *name = reinterpret_cast<type *>(gfs_dyn_smem)
#define CUDA_ONLY 1
#endif

#endif
