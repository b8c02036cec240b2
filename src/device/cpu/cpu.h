/* cpu.h - inside the CPU device: the device itself and the operations of its table. */
#ifndef GFS_DEVICE_CPU_CPU_H
#define GFS_DEVICE_CPU_CPU_H

#include "device/cpu/kernels.h"
#include "device/cpu/team.h"
#include "device/device.h"

struct device {
    const struct cpu_kernels *kernels;
    struct team *team;
    float *gemm_scratch; /* for each thread, if the kernels bring a product of their own */
    size_t gemm_scratch_bytes;
};

/* Runs fn on all threads, or, where `elems` is too little to wake them for, on the caller alone. */
void cpu_run(struct device *d, size_t elems, team_fn *fn, void *arg);

/* As device_cpu.open, with kernels of the caller's choice. */
int cpu_open_with(const struct cpu_kernels *kernels, uint32_t threads, struct device **out);

/* Operations of device.h. */
int cpu_fill(struct device *d, struct dev_stream *s, float *dst, size_t elems, float value);
int cpu_copy(struct device *d, struct dev_stream *s, void *dst, const void *src, size_t bytes);
int cpu_add(struct device *d, struct dev_stream *s, float *dst, const float *src, size_t elems);
int cpu_gemm(struct device *d, struct dev_stream *s, bool trans_a, bool trans_b, size_t m, size_t n,
             size_t k, float alpha, const float *a, size_t lda, const float *b, size_t ldb,
             float beta, float *c, size_t ldc);
int cpu_embed_forward(struct device *d, struct dev_stream *s, float *out, const int32_t *tokens,
                      const float *wte, const float *wpe, size_t B, size_t T, size_t C);
int cpu_embed_backward(struct device *d, struct dev_stream *s, float *dwte, float *dwpe,
                       const float *dout, const int32_t *tokens, size_t B, size_t T, size_t C,
                       size_t V);
int cpu_layernorm_forward(struct device *d, struct dev_stream *s, float *out, float *mean,
                          float *rstd, const float *in, const float *weight, const float *bias,
                          size_t N, size_t C, float eps);
int cpu_layernorm_backward(struct device *d, struct dev_stream *s, float *din, bool accumulate,
                           float *dweight, float *dbias, const float *dout, const float *in,
                           const float *weight, const float *mean, const float *rstd, size_t N,
                           size_t C);
int cpu_bias_forward(struct device *d, struct dev_stream *s, float *inout, const float *bias,
                     size_t N, size_t C);
int cpu_bias_backward(struct device *d, struct dev_stream *s, float *dbias, const float *dout,
                      size_t N, size_t C);
int cpu_bias_gelu_forward(struct device *d, struct dev_stream *s, float *out, float *pre,
                          const float *bias, size_t N, size_t C);
int cpu_gelu_backward(struct device *d, struct dev_stream *s, float *inout, const float *pre,
                      size_t N, size_t C);
int cpu_bias_residual_forward(struct device *d, struct dev_stream *s, float *out,
                              const float *residual, const float *in, const float *bias, size_t N,
                              size_t C);
size_t cpu_attention_scratch_elems(struct device *d, size_t B, size_t T, size_t C, size_t NH);
int cpu_attention_forward(struct device *d, struct dev_stream *s, float *out, float *lse,
                          const float *qkv, float *scratch, size_t B, size_t T, size_t C,
                          size_t NH);
int cpu_attention_backward(struct device *d, struct dev_stream *s, float *dqkv, const float *dout,
                           const float *out, const float *lse, const float *qkv, float *scratch,
                           size_t B, size_t T, size_t C, size_t NH);
int cpu_softmax_xent(struct device *d, struct dev_stream *s, float *losses, float *logits,
                     const int32_t *targets, size_t N, size_t V, float scale, bool backward);
int cpu_sum(struct device *d, struct dev_stream *s, double *out, const float *in, size_t elems);
int cpu_sum_squares(struct device *d, struct dev_stream *s, double *out, const float *in,
                    size_t elems);
int cpu_adamw(struct device *d, struct dev_stream *s, float *param, float *exp_avg,
              float *exp_avg_sq, const float *grad, size_t elems, const struct dev_adamw *a);
int cpu_init_normal(struct device *d, struct dev_stream *s, float *dst, size_t elems, uint64_t seed,
                    uint64_t sequence, uint64_t first, float mean, float std);

#endif
