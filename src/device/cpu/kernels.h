/* kernels.h - the inner loops of the CPU device, one table for each kind of processor.
 *
 * A kernel works on a range that one thread was given; how the work is cut never changes a result.
 * The tables are made of one source, *_body.h, over the vector operations of simd_*.h. t and g are
 * the dtypes of void * arguments, letters as in device.h; D = C / NH. */
#ifndef GFS_DEVICE_CPU_KERNELS_H
#define GFS_DEVICE_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/device.h"

/* What one head of one sequence is made of: pointers to its first token, row_elems elements between
 * tokens. */
struct cpu_head {
    enum dtype t;
    const void *q, *k, *v;
    void *dq, *dk, *dv; /* backward only */
    size_t qkv_row_elems;
    void *out;        /* forward writes it */
    const void *dout; /* backward only */
    size_t out_row_elems;
    float *lse; /* (T) forward writes it, backward reads it */
    size_t T, D;
};

/* c (m, n) = alpha op(a) op(b) + beta c, as device_ops.gemm in f32. */
struct cpu_gemm {
    bool trans_a, trans_b;
    size_t m, n, k;
    float alpha, beta;
    const float *a, *b;
    float *c;
    size_t lda, ldb, ldc;
};

struct cpu_gemm_kernel {
    size_t row_unit, column_unit; /* cuts between threads should be multiples of these */
    size_t (*scratch_elems)(void);
    /* The part of c from (row, column) on, rows and columns large. */
    void (*multiply)(const struct cpu_gemm *g, size_t row, size_t rows, size_t column,
                     size_t columns, float *scratch);
};

/* What a layer norm is made of. */
struct cpu_norm {
    const void *weight, *bias; /* (C) */
    size_t C;
    float eps;
};

/* AdamW's arrays; copy may be NULL. */
struct cpu_adamw {
    float *param, *exp_avg, *exp_avg_sq;
    const float *grad;
    void *copy;
    enum dtype copy_dtype;
};

struct cpu_kernels {
    const char *name;
    bool (*usable)(void);
    const struct cpu_gemm_kernel *gemm;       /* NULL: BLAS has a good one */
    const struct cpu_gemm_kernel *gemm_plain; /* where there is no BLAS */

    void (*fill)(enum dtype t, void *dst, size_t elems, float value);
    /* f32 to bf16 or bf16 to f32, whichever dst_dtype says */
    void (*cast)(void *dst, enum dtype dst_dtype, const void *src, size_t elems);
    void (*add)(float *dst, const void *src, enum dtype t, size_t elems);
    /* out = a + b */
    void (*add_to)(enum dtype t, void *out, const void *a, const void *b, size_t elems);

    void (*layernorm_forward)(enum dtype t, void *out, float *mean, float *rstd, const void *in,
                              const struct cpu_norm *w, size_t rows);
    void (*residual_layernorm_forward)(enum dtype t, void *sum, void *out, float *mean, float *rstd,
                                       const void *residual, const void *in, const void *in_bias,
                                       const struct cpu_norm *w, size_t rows);
    void (*layernorm_backward_in)(enum dtype t, void *din, bool accumulate, const void *dout,
                                  const void *in, const void *weight, const float *mean,
                                  const float *rstd, size_t rows, size_t C);
    /* columns [first, first + count) of dweight and dbias, over all rows in their order */
    void (*layernorm_backward_params)(enum dtype t, enum dtype g, void *dweight, void *dbias,
                                      const void *dout, const void *in, const float *mean,
                                      const float *rstd, size_t rows, size_t C, size_t first,
                                      size_t count);
    /* sums[first ...] += column sums of in (rows, C) */
    void (*column_sums)(enum dtype t, enum dtype g, void *sums, const void *in, size_t rows,
                        size_t C, size_t first, size_t count);

    void (*bias_forward)(enum dtype t, void *inout, const void *bias, size_t rows, size_t C);
    /* bias NULL: pre includes it already */
    void (*bias_gelu_forward)(enum dtype t, void *out, void *pre, const void *bias, size_t rows,
                              size_t C);
    void (*gelu_backward)(enum dtype t, void *inout, const void *pre, size_t elems);

    void (*softmax_xent)(enum dtype t, float *losses, void *logits, size_t ldl,
                         const int32_t *targets, size_t rows, size_t V, float scale, bool backward);
    double (*sum)(const float *in, size_t elems);
    double (*sum_squares)(const float *in, size_t elems);
    void (*adamw)(const struct cpu_adamw *w, size_t elems, const struct dev_adamw *a);

    size_t (*attention_scratch_elems)(size_t T, size_t D); /* floats, a thread */
    void (*attention_forward)(const struct cpu_head *h, float *scratch);
    void (*attention_backward)(const struct cpu_head *h, float *scratch);
};

extern const struct cpu_kernels cpu_kernels_base;
/* Best first, NULL last; those that this processor has no instructions for are not usable. */
extern const struct cpu_kernels *const cpu_kernels_all[];
const struct cpu_kernels *cpu_kernels_best(void);
/* Whether this processor multiplies bf16 itself (AVX512_BF16). */
bool cpu_has_bf16(void);

#endif
