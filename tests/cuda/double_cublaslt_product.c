/* double_cublaslt_product.c - a matrix product by plain loops, in panels that a compiler can keep
 * in registers. */
#include "config.h"

#include "tests/cuda/double_cublaslt_product.h"

#include <stdlib.h>
#include <string.h>

#include "tensor/dtype.h"

enum { PANEL = 16 /* rows of d at a time */, PART = 256 /* of a sum along k */ };

static float load(const void *p, bool bf16, size_t i) {
    return bf16 ? bf16_to_f32(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

static void store(void *p, bool bf16, size_t i, float value) {
    if (bf16)
        ((uint16_t *)p)[i] = bf16_from_f32(value);
    else
        ((float *)p)[i] = value;
}

/* To the 10 bits of TF32, ties to even; NaN and infinity stay. */
static float round_tf32(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7f800000u) == 0x7f800000u)
        return f;
    bits = (bits + 0xfffu + ((bits >> 13) & 1u)) & ~0x1fffu;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static float operand(const struct product_shape *s, const void *p, size_t i) {
    float f = load(p, s->ab_bf16, i);
    return s->tf32 ? round_tf32(f) : f;
}

/* out (k, PANEL): rows first to first + PANEL of op(a), zeros beyond the last. */
static void pack_a(const struct product *p, size_t first, float *out) {
    const struct product_shape *s = &p->shape;
    for (size_t q = 0; q < s->k; q++)
        for (size_t r = 0; r < PANEL; r++) {
            size_t i = first + r;
            size_t at = s->trans_a ? q + i * s->lda : i + q * s->lda;
            out[q * PANEL + r] = i < s->m ? operand(s, p->a, at) : 0;
        }
}

/* out (n, k): the columns of op(b). */
static void pack_b(const struct product *p, float *out) {
    const struct product_shape *s = &p->shape;
    for (size_t j = 0; j < s->n; j++)
        for (size_t q = 0; q < s->k; q++)
            out[j * s->k + q] = operand(s, p->b, s->trans_b ? j + q * s->ldb : q + j * s->ldb);
}

/* sum (PANEL) = panel (k, PANEL)^T column (k) */
static void dot(size_t k, const float *panel, const float *column, float *sum) {
    memset(sum, 0, PANEL * sizeof *sum);
    for (size_t from = 0; from < k; from += PART) {
        size_t to = k - from < PART ? k : from + PART;
        float part[PANEL] = {0};
        for (size_t q = from; q < to; q++)
            for (size_t r = 0; r < PANEL; r++)
                part[r] += panel[q * PANEL + r] * column[q];
        for (size_t r = 0; r < PANEL; r++)
            sum[r] += part[r];
    }
}

bool product_run(const struct product *p) {
    const struct product_shape *s = &p->shape;
    float *panel = malloc(s->k * PANEL * sizeof *panel);
    float *columns = malloc(s->n * s->k * sizeof *columns);
    bool done = panel != NULL && columns != NULL;
    if (done)
        pack_b(p, columns);
    for (size_t first = 0; done && first < s->m; first += PANEL) {
        size_t rows = s->m - first < PANEL ? s->m - first : PANEL;
        pack_a(p, first, panel);
        for (size_t j = 0; j < s->n; j++) {
            float sum[PANEL];
            dot(s->k, panel, columns + j * s->k, sum);
            for (size_t r = 0; r < rows; r++) {
                float value = p->alpha * sum[r];
                if (p->beta != 0)
                    value += p->beta * load(p->c, s->cd_bf16, first + r + j * s->ldc);
                store(p->d, s->cd_bf16, first + r + j * s->ldd, value);
            }
        }
    }
    free(panel);
    free(columns);
    return done;
}
