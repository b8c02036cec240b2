/* kernels.h - the inner loops of the CPU device, one table for each kind of processor.
 *
 * A kernel works on a range that one thread was given; how the work is cut never changes a result.
 * The tables are made of one source, kernels_body.h, over the vector operations of simd_*.h.
 * Letters as in device.h; D = C / NH. */
#ifndef GFS_DEVICE_CPU_KERNELS_H
#define GFS_DEVICE_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/device.h"

/* What one head of one sequence is made of: pointers to its first token, row_elems floats between
 * tokens. */
struct cpu_head {
    const float *q, *k, *v;
    float *dq, *dk, *dv; /* backward only */
    size_t qkv_row_elems;
    float *out;        /* forward writes it */
    const float *dout; /* backward only */
    size_t out_row_elems;
    float *lse; /* (T) forward writes it, backward reads it */
    size_t T, D;
};

/* c (m, n) = alpha op(a) op(b) + beta c, as device_ops.gemm. */
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

struct cpu_kernels {
    const char *name;
    bool (*usable)(void);
    const struct cpu_gemm_kernel *gemm; /* NULL: BLAS has a good one */

    void (*fill)(float *dst, size_t elems, float value);
    void (*add)(float *dst, const float *src, size_t elems);
    void (*add_to)(float *out, const float *a, const float *b, size_t elems); /* out = a + b */

    void (*layernorm_forward)(float *out, float *mean, float *rstd, const float *in,
                              const float *weight, const float *bias, size_t rows, size_t C,
                              float eps);
    void (*layernorm_backward_in)(float *din, bool accumulate, const float *dout, const float *in,
                                  const float *weight, const float *mean, const float *rstd,
                                  size_t rows, size_t C);
    /* columns [first, first + count) of dweight and dbias, over all rows in their order */
    void (*layernorm_backward_params)(float *dweight, float *dbias, const float *dout,
                                      const float *in, const float *mean, const float *rstd,
                                      size_t rows, size_t C, size_t first, size_t count);
    /* sums[first ...] += column sums of in (rows, C) */
    void (*column_sums)(float *sums, const float *in, size_t rows, size_t C, size_t first,
                        size_t count);

    void (*bias_forward)(float *inout, const float *bias, size_t rows, size_t C);
    /* bias NULL: pre includes it already */
    void (*bias_gelu_forward)(float *out, float *pre, const float *bias, size_t rows, size_t C);
    void (*gelu_backward)(float *inout, const float *pre, size_t elems);
    void (*bias_residual_forward)(float *out, const float *residual, const float *in,
                                  const float *bias, size_t rows, size_t C);

    void (*softmax_xent)(float *losses, float *logits, const int32_t *targets, size_t rows,
                         size_t V, float scale, bool backward);
    double (*sum)(const float *in, size_t elems);
    double (*sum_squares)(const float *in, size_t elems);
    void (*adamw)(float *param, float *exp_avg, float *exp_avg_sq, const float *grad, size_t elems,
                  const struct dev_adamw *a);

    size_t (*attention_scratch_elems)(size_t T, size_t D); /* a thread */
    void (*attention_forward)(const struct cpu_head *h, float *scratch);
    void (*attention_backward)(const struct cpu_head *h, float *scratch);
};

extern const struct cpu_kernels cpu_kernels_base;
/* Best first, NULL last; those that this processor has no instructions for are not usable. */
extern const struct cpu_kernels *const cpu_kernels_all[];
const struct cpu_kernels *cpu_kernels_best(void);

#endif
