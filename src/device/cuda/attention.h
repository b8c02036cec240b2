/* attention.h - what the kernels of attention share: where a head lies, the two sets of kernels,
 * and the last step of the softmax.
 *
 * Both sets have one structure (Dao, 2023, FlashAttention-2). A block owns a tile of queries or of
 * keys of one head and goes over the tiles of the other kind that the causal mask leaves; scores
 * live in registers only. Backward makes the probabilities again from lse, in two kernels, one for
 * dk and dv and one for dq, so that each gradient has one writer and one order of additions. */
#ifndef GFS_DEVICE_CUDA_ATTENTION_H
#define GFS_DEVICE_CUDA_ATTENTION_H

#include "device/cuda/kernels.h"

enum { ATTENTION_HEAD_MAX = 128 };

/* qkv, dqkv (B,T,3C); out, dout (B,T,C); lse, delta (B,NH,T). C = NH * D. What a pass does not use
 * is NULL. delta[i] = sum over the head's channels of dout * out. */
struct attention {
    const void *qkv, *dout;
    void *out, *dqkv;
    float *lse;
    const float *delta;
    int T, C, NH, D;
    int heads; /* B * NH, the fast index of blocks */
};

/* attention_plain.cu: any D, both dtypes. */
cudaError_t cuda_attention_plain_forward(const struct cuda_call *c, enum dtype t,
                                         const struct attention *a);
cudaError_t cuda_attention_plain_backward(const struct cuda_call *c, enum dtype t,
                                          const struct attention *a);

/* attention_mma.cu: bf16, D 64 or 128, on sm_80 and later. */
cudaError_t cuda_attention_mma_forward(const struct cuda_call *c, const struct attention *a);
cudaError_t cuda_attention_mma_backward(const struct cuda_call *c, const struct attention *a);

#endif
