/* gemm.c - matrix products of the CPU device: which code makes them, and how the threads share
 * them. */
#include "config.h"

#include <errno.h>
#include <limits.h>

#include "device/cpu/cpu.h"

struct gemm_args {
    const struct cpu_gemm_kernel *kernel;
    struct cpu_gemm g;
    float *scratch;
};

/* The longer side of c is shared out, in whole panels. */
static void gemm_part(void *arg, size_t part, size_t parts) {
    struct gemm_args *a = arg;
    const struct cpu_gemm *g = &a->g;
    size_t rows = (g->m + a->kernel->row_unit - 1) / a->kernel->row_unit;
    size_t columns = (g->n + a->kernel->column_unit - 1) / a->kernel->column_unit;
    bool by_rows = g->m > g->n;
    size_t units = by_rows ? rows : columns,
           unit = by_rows ? a->kernel->row_unit : a->kernel->column_unit;
    size_t whole = by_rows ? g->m : g->n, first = units * part / parts * unit,
           end = units * (part + 1) / parts * unit;
    float *scratch = a->scratch + part * a->kernel->scratch_elems();
    end = end < whole ? end : whole;
    if (first >= end)
        return;
    if (by_rows)
        a->kernel->multiply(g, first, end - first, 0, g->n, scratch);
    else
        a->kernel->multiply(g, 0, g->m, first, end - first, scratch);
}

/* c (m, n) of dtype t = beta c: a product without terms. */
static void scale(struct device *d, enum dtype t, size_t m, size_t n, float beta, void *c,
                  size_t ldc) {
    for (size_t i = 0; i < m; i++) {
        char *row = (char *)c + i * ldc * dtype_bytes(t);
        if (beta == 0) {
            d->kernels->fill(t, row, n, 0);
            continue;
        }
        for (size_t j = 0; j < n; j++)
            if (t == DTYPE_BF16)
                ((uint16_t *)row)[j] = bf16_from_f32(beta * bf16_to_f32(((uint16_t *)row)[j]));
            else
                ((float *)row)[j] *= beta;
    }
}

static int multiply_bf16(struct device *d, const struct onednn_shape *s, const void *a,
                         const void *b, void *c) {
    const char *what = "oneDNN";
    if (s->k == 0) {
        scale(d, s->c_dtype, s->m, s->n, s->beta, c, s->ldc);
        return 0;
    }
    int rc = d->onednn != NULL ? 0 : onednn_open(team_threads(d->team), &d->onednn);
    if (rc == 0)
        rc = onednn_multiply(d->onednn, d->team, s, a, b, c, &what);
    if (rc != 0)
        return cpu_fail(d, -rc, "%s: product of bf16, %zu x %zu x %zu", what, s->m, s->n, s->k);
    return 0;
}

int cpu_gemm(struct device *d, struct dev_stream *s, enum dtype t, enum dtype c_dtype, bool trans_a,
             bool trans_b, size_t m, size_t n, size_t k, float alpha, const void *a, size_t lda,
             const void *b, size_t ldb, float beta, void *c, size_t ldc) {
    (void)s;
    if (m > INT_MAX || n > INT_MAX || k > INT_MAX || lda > INT_MAX || ldb > INT_MAX ||
        ldc > INT_MAX)
        return cpu_fail(d, EOVERFLOW, "product of %zu x %zu x %zu: too large", m, n, k);
    if (m == 0 || n == 0)
        return 0;
    if (t == DTYPE_BF16) {
        struct onednn_shape shape = {m,     n,    k,       lda,     ldb,    ldc,
                                     alpha, beta, c_dtype, trans_a, trans_b};
        return multiply_bf16(d, &shape, a, b, c);
    }
    struct gemm_args g = {
        d->gemm, {trans_a, trans_b, m, n, k, alpha, beta, a, b, c, lda, ldb, ldc}, d->gemm_scratch};
    if (d->gemm == NULL)
        cpu_blas_multiply(&g.g, team_threads(d->team));
    else /* 64 products cost as much as an element elsewhere */
        cpu_run(d, m * n / 64 * k, gemm_part, &g);
    return 0;
}
