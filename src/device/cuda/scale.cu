/* scale.cu - a matrix product whose sum has no terms: c = beta c. */
#include "device/cuda/kernels.h"
#include "device/cuda/launch.h"

enum { SCALE_THREADS = 256 };

static __device__ float load(const float *p) { return *p; }
static __device__ float load(const __nv_bfloat16 *p) { return __bfloat162float(*p); }
static __device__ void store(float *p, float v) { *p = v; }
static __device__ void store(__nv_bfloat16 *p, float v) { *p = __float2bfloat16(v); }

/* beta 0: c is not read */
template <typename T>
static __global__ void scale_kernel(T *c, size_t m, size_t n, size_t ldc, float beta) {
    size_t column = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (column >= n)
        return;
    for (size_t row = blockIdx.y; row < m; row += gridDim.y) {
        T *p = c + row * ldc + column;
        store(p, beta == 0.0f ? 0.0f : beta * load(p));
    }
}

extern "C" cudaError_t cuda_scale(const struct cuda_call *c, void *dst, enum dtype t, size_t m,
                                  size_t n, size_t ldc, float beta) {
    size_t rows = m < 1024 ? m : 1024;
    dim3 grid((unsigned)((n + SCALE_THREADS - 1) / SCALE_THREADS), (unsigned)rows);
    if (t == DTYPE_BF16)
        LAUNCH((scale_kernel<__nv_bfloat16>), grid, SCALE_THREADS, 0, c->stream,
               static_cast<__nv_bfloat16 *>(dst), m, n, ldc, beta);
    else
        LAUNCH((scale_kernel<float>), grid, SCALE_THREADS, 0, c->stream, static_cast<float *>(dst),
               m, n, ldc, beta);
    return LAUNCH_ERROR();
}
