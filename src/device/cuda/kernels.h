/* kernels.h - the launchers of the CUDA kernels: one for each operation of device.h that runs code
 * of ours, with its arguments and its contract.
 *
 * They queue and return the error of the launch. Grids come from the shapes and the properties in
 * struct cuda_call; nothing is allocated; what a reduction leaves between two kernels goes to
 * `work`, which belongs to the stream, so two calls on one stream may use it one after the other.
 */
#ifndef GFS_DEVICE_CUDA_KERNELS_H
#define GFS_DEVICE_CUDA_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

struct dev_adamw;

enum { CUDA_WORK_BYTES = 8 << 20 }; /* of each stream that runs kernels */

struct cuda_call {
    cudaStream_t stream;
    void *work; /* CUDA_WORK_BYTES of device memory, aligned to 256 */
    int sm_count;
    int arch;          /* 80, 90, 100: compute capability times ten */
    bool tensor_cores; /* paths by tensor cores may be taken */
};

/* kernels_basic.cu */
cudaError_t cuda_fill(const struct cuda_call *c, void *dst, enum dtype t, size_t elems,
                      float value);
cudaError_t cuda_cast(const struct cuda_call *c, void *dst, enum dtype dst_dtype, const void *src,
                      enum dtype src_dtype, size_t elems);
cudaError_t cuda_add(const struct cuda_call *c, float *dst, const void *src, enum dtype src_dtype,
                     size_t elems);
cudaError_t cuda_bias_forward(const struct cuda_call *c, enum dtype t, void *inout,
                              const void *bias, size_t N, size_t C);
cudaError_t cuda_bias_backward(const struct cuda_call *c, enum dtype t, enum dtype g, void *dbias,
                               const void *dout, size_t N, size_t C);
cudaError_t cuda_bias_gelu_forward(const struct cuda_call *c, enum dtype t, void *out, void *pre,
                                   const void *bias, size_t N, size_t C);
cudaError_t cuda_gelu_backward(const struct cuda_call *c, enum dtype t, void *inout,
                               const void *pre, size_t N, size_t C);

/* embed.cu */
cudaError_t cuda_embed_forward(const struct cuda_call *c, enum dtype t, void *out,
                               const int32_t *tokens, const void *wte, const void *wpe, size_t B,
                               size_t T, size_t C);
cudaError_t cuda_embed_backward(const struct cuda_call *c, enum dtype t, enum dtype g, void *dwte,
                                void *dwpe, const void *dout, const int32_t *tokens, size_t B,
                                size_t T, size_t C, size_t V);

/* layernorm.cu */
cudaError_t cuda_layernorm_forward(const struct cuda_call *c, enum dtype t, void *out, float *mean,
                                   float *rstd, const void *in, const void *weight,
                                   const void *bias, size_t N, size_t C, float eps);
cudaError_t cuda_residual_layernorm_forward(const struct cuda_call *c, enum dtype t, void *sum,
                                            void *out, float *mean, float *rstd,
                                            const void *residual, const void *in,
                                            const void *in_bias, const void *weight,
                                            const void *bias, size_t N, size_t C, float eps);
cudaError_t cuda_layernorm_backward(const struct cuda_call *c, enum dtype t, enum dtype g,
                                    void *din, bool accumulate, void *dweight, void *dbias,
                                    const void *dout, const void *in, const void *weight,
                                    const float *mean, const float *rstd, size_t N, size_t C);

/* attention.cu */
size_t cuda_attention_scratch_bytes(enum dtype t, size_t B, size_t T, size_t C, size_t NH);
cudaError_t cuda_attention_forward(const struct cuda_call *c, enum dtype t, void *out, float *lse,
                                   const void *qkv, void *scratch, size_t B, size_t T, size_t C,
                                   size_t NH);
cudaError_t cuda_attention_backward(const struct cuda_call *c, enum dtype t, void *dqkv,
                                    const void *dout, const void *out, const float *lse,
                                    const void *qkv, void *scratch, size_t B, size_t T, size_t C,
                                    size_t NH);

/* softmax_xent.cu */
cudaError_t cuda_softmax_xent(const struct cuda_call *c, enum dtype t, float *losses, void *logits,
                              size_t ldl, const int32_t *targets, size_t N, size_t V, float scale,
                              bool backward);

/* optimizer.cu. out: pinned host memory, written by the kernel */
cudaError_t cuda_sum(const struct cuda_call *c, double *out, const float *in, size_t elems);
cudaError_t cuda_sum_squares(const struct cuda_call *c, double *out, const float *in, size_t elems);
cudaError_t cuda_adamw(const struct cuda_call *c, float *param, float *exp_avg, float *exp_avg_sq,
                       const float *grad, void *copy, enum dtype copy_dtype, size_t elems,
                       const struct dev_adamw *a);
cudaError_t cuda_init_normal(const struct cuda_call *c, float *dst, size_t elems, uint64_t seed,
                             uint64_t sequence, uint64_t first, float mean, float std);

/* scale.cu: c (m,n) = beta c, for a product with k = 0; beta 0: c is not read */
cudaError_t cuda_scale(const struct cuda_call *c, void *dst, enum dtype t, size_t m, size_t n,
                       size_t ldc, float beta);

#ifdef __cplusplus
}
#endif

#endif
