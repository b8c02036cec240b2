/* cpu.h - inside the CPU device: the device itself and the operations of its table. */
#ifndef GFS_DEVICE_CPU_CPU_H
#define GFS_DEVICE_CPU_CPU_H

#include <pthread.h>

#include "device/cpu/kernels.h"
#include "device/cpu/onednn.h"
#include "device/cpu/team.h"
#include "device/device.h"

struct device {
    const struct cpu_kernels *kernels;
    struct team *team;
    const struct cpu_gemm_kernel *gemm; /* NULL: BLAS */
    float *gemm_scratch;                /* for each thread, if there is a gemm */
    size_t gemm_scratch_bytes;
    struct onednn *onednn; /* of bf16 products, from the first on */
    pthread_mutex_t why_lock;
    char why[160];
};

/* Runs fn on all threads, or, where `elems` is too little to wake them for, on the caller alone. */
void cpu_run(struct device *d, size_t elems, team_fn *fn, void *arg);

/* As device_cpu.open, with kernels of the caller's choice. */
int cpu_open_with(const struct cpu_kernels *kernels, uint32_t threads, struct device **out);

/* Keeps the sentence for why() and returns -code. */
int cpu_fail(struct device *d, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* blas.c: whether products may go to BLAS, and one that does; sizes fit an int. */
bool cpu_blas_there(void);
void cpu_blas_multiply(const struct cpu_gemm *g, uint32_t threads);

/* Operations of device.h. */
int cpu_fill(struct device *d, struct dev_stream *s, void *dst, enum dtype t, size_t elems,
             float value);
int cpu_copy(struct device *d, struct dev_stream *s, void *dst, const void *src, size_t bytes);
int cpu_cast(struct device *d, struct dev_stream *s, void *dst, enum dtype dst_dtype,
             const void *src, enum dtype src_dtype, size_t elems);
int cpu_add(struct device *d, struct dev_stream *s, float *dst, const void *src,
            enum dtype src_dtype, size_t elems);
int cpu_gemm(struct device *d, struct dev_stream *s, enum dtype t, enum dtype c_dtype, bool trans_a,
             bool trans_b, size_t m, size_t n, size_t k, float alpha, const void *a, size_t lda,
             const void *b, size_t ldb, float beta, void *c, size_t ldc);
int cpu_embed_forward(struct device *d, struct dev_stream *s, enum dtype t, void *out,
                      const int32_t *tokens, const void *wte, const void *wpe, size_t B, size_t T,
                      size_t C);
int cpu_embed_backward(struct device *d, struct dev_stream *s, enum dtype t, enum dtype g,
                       void *dwte, void *dwpe, const void *dout, const int32_t *tokens, size_t B,
                       size_t T, size_t C, size_t V);
int cpu_layernorm_forward(struct device *d, struct dev_stream *s, enum dtype t, void *out,
                          float *mean, float *rstd, const void *in, const void *weight,
                          const void *bias, size_t N, size_t C, float eps);
int cpu_residual_layernorm_forward(struct device *d, struct dev_stream *s, enum dtype t, void *sum,
                                   void *out, float *mean, float *rstd, const void *residual,
                                   const void *in, const void *in_bias, const void *weight,
                                   const void *bias, size_t N, size_t C, float eps);
int cpu_layernorm_backward(struct device *d, struct dev_stream *s, enum dtype t, enum dtype g,
                           void *din, bool accumulate, void *dweight, void *dbias, const void *dout,
                           const void *in, const void *weight, const float *mean, const float *rstd,
                           size_t N, size_t C);
int cpu_bias_forward(struct device *d, struct dev_stream *s, enum dtype t, void *inout,
                     const void *bias, size_t N, size_t C);
int cpu_bias_backward(struct device *d, struct dev_stream *s, enum dtype t, enum dtype g,
                      void *dbias, const void *dout, size_t N, size_t C);
int cpu_bias_gelu_forward(struct device *d, struct dev_stream *s, enum dtype t, void *out,
                          void *pre, const void *bias, size_t N, size_t C);
int cpu_gelu_backward(struct device *d, struct dev_stream *s, enum dtype t, void *inout,
                      const void *pre, size_t N, size_t C);
size_t cpu_attention_scratch_bytes(struct device *d, enum dtype t, size_t B, size_t T, size_t C,
                                   size_t NH);
int cpu_attention_forward(struct device *d, struct dev_stream *s, enum dtype t, void *out,
                          float *lse, const void *qkv, void *scratch, size_t B, size_t T, size_t C,
                          size_t NH);
int cpu_attention_backward(struct device *d, struct dev_stream *s, enum dtype t, void *dqkv,
                           const void *dout, const void *out, const float *lse, const void *qkv,
                           void *scratch, size_t B, size_t T, size_t C, size_t NH);
int cpu_softmax_xent(struct device *d, struct dev_stream *s, enum dtype t, float *losses,
                     void *logits, size_t ldl, const int32_t *targets, size_t N, size_t V,
                     float scale, bool backward);
int cpu_sum(struct device *d, struct dev_stream *s, double *out, const float *in, size_t elems);
int cpu_sum_squares(struct device *d, struct dev_stream *s, double *out, const float *in,
                    size_t elems);
int cpu_adamw(struct device *d, struct dev_stream *s, float *param, float *exp_avg,
              float *exp_avg_sq, const float *grad, void *copy, enum dtype copy_dtype, size_t elems,
              const struct dev_adamw *a);
int cpu_init_normal(struct device *d, struct dev_stream *s, float *dst, size_t elems, uint64_t seed,
                    uint64_t sequence, uint64_t first, float mean, float std);

#endif
