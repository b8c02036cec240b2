/* kernels_body.h - the kernels, over the vector operations that the including file has chosen.
 *
 * Included once by each kernels_*.c, after its simd_*.h. Sums run in an order that the vector
 * length alone decides. A NaN or an infinity that comes in shows in what goes out: a step with a
 * broken gradient must be seen. Denormals are left as they are: the flag that flushes them would
 * have to be set in threads of BLAS too, which are not ours.
 *
 * Storage is chosen once, outside of the loops: every loop stands in a function whose dtypes are
 * constants where it is inlined. */

/* fn with the constant that t is. */
#define BY_DTYPE(t, fn, ...)                                                                       \
    do {                                                                                           \
        if ((t) == DTYPE_BF16)                                                                     \
            fn(DTYPE_BF16, __VA_ARGS__);                                                           \
        else                                                                                       \
            fn(DTYPE_F32, __VA_ARGS__);                                                            \
    } while (0)

/* 1 ulp on [-87, 87]; 0 below -87, exp(87) above: neither denormals nor infinities are made. */
SIMD_INLINE vf vf_exp(vf x) {
    vf lowest = vf_set1(-87.0f);
    vf y = vf_min(vf_set1(87.0f), vf_max(lowest, x));
    vf n = vf_round(vf_mul(y, vf_set1(1.44269504088896341f)));
    vf r = vf_fma(n, vf_set1(-0.693359375f), y); /* ln 2 in two parts */
    r = vf_fma(n, vf_set1(2.12194440e-4f), r);
    vf p = vf_set1(1.9875691500e-4f); /* Cephes, expf */
    p = vf_fma(p, r, vf_set1(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set1(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set1(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set1(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set1(5.0000001201e-1f));
    p = vf_add(vf_fma(p, vf_mul(r, r), r), vf_set1(1.0f));
    return vf_zero_below(x, lowest, vf_mul(p, vf_exp2_whole(n)));
}

/* n elements from p[i] on: all VL, known when compiled, or what is left at the end of a row. */
SIMD_INLINE vf vf_get(enum dtype t, const void *p, size_t i, size_t n) {
    if (t == DTYPE_BF16) {
        const uint16_t *q = (const uint16_t *)p + i;
        return n == VL ? vf_load_bf16(q) : vf_load_bf16_part(q, n);
    }
    const float *q = (const float *)p + i;
    return n == VL ? vf_load(q) : vf_load_part(q, n);
}
SIMD_INLINE void vf_put(enum dtype t, void *p, size_t i, vf x, size_t n) {
    if (t == DTYPE_BF16) {
        uint16_t *q = (uint16_t *)p + i;
        if (n == VL)
            vf_store_bf16(q, x);
        else
            vf_store_bf16_part(q, x, n);
        return;
    }
    float *q = (float *)p + i;
    if (n == VL)
        vf_store(q, x);
    else
        vf_store_part(q, x, n);
}
SIMD_INLINE float one_get(enum dtype t, const void *p, size_t i) {
    return t == DTYPE_BF16 ? bf16_to_f32(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}
SIMD_INLINE void one_put(enum dtype t, void *p, size_t i, float x) {
    if (t == DTYPE_BF16)
        ((uint16_t *)p)[i] = bf16_from_f32(x);
    else
        ((float *)p)[i] = x;
}
/* Whole vectors from 0; `rest` of them begins at whole(elems). */
#define FOR_WHOLE(i, elems) for (size_t i = 0; (i) + VL <= (elems); (i) += VL)
SIMD_INLINE size_t whole(size_t elems) { return elems / VL * VL; }

SIMD_INLINE void fill(enum dtype t, void *dst, size_t elems, float value) {
    vf x = vf_set1(value);
    FOR_WHOLE(i, elems) vf_put(t, dst, i, x, VL);
    vf_put(t, dst, whole(elems), x, elems % VL);
}

SIMD_FN void k_fill(enum dtype t, void *dst, size_t elems, float value) {
    BY_DTYPE(t, fill, dst, elems, value);
}

SIMD_INLINE void convert(enum dtype to, enum dtype from, void *dst, const void *src, size_t elems) {
    FOR_WHOLE(i, elems) vf_put(to, dst, i, vf_get(from, src, i, VL), VL);
    vf_put(to, dst, whole(elems), vf_get(from, src, whole(elems), elems % VL), elems % VL);
}

SIMD_FN void k_cast(void *dst, enum dtype dst_dtype, const void *src, size_t elems) {
    if (dst_dtype == DTYPE_BF16)
        convert(DTYPE_BF16, DTYPE_F32, dst, src, elems);
    else
        convert(DTYPE_F32, DTYPE_BF16, dst, src, elems);
}

/* out of o = a of o + b of t */
SIMD_INLINE void add_at(enum dtype o, enum dtype t, void *out, const void *a, const void *b,
                        size_t i, size_t n) {
    vf_put(o, out, i, vf_add(vf_get(o, a, i, n), vf_get(t, b, i, n)), n);
}

SIMD_INLINE void add_to(enum dtype o, enum dtype t, void *out, const void *a, const void *b,
                        size_t elems) {
    FOR_WHOLE(i, elems) add_at(o, t, out, a, b, i, VL);
    add_at(o, t, out, a, b, whole(elems), elems % VL);
}

SIMD_FN void k_add(float *dst, const void *src, enum dtype t, size_t elems) {
    if (t == DTYPE_BF16)
        add_to(DTYPE_F32, DTYPE_BF16, dst, dst, src, elems);
    else
        add_to(DTYPE_F32, DTYPE_F32, dst, dst, src, elems);
}

SIMD_FN void k_add_to(enum dtype t, void *out, const void *a, const void *b, size_t elems) {
    if (t == DTYPE_BF16)
        add_to(DTYPE_BF16, DTYPE_BF16, out, a, b, elems);
    else
        add_to(DTYPE_F32, DTYPE_F32, out, a, b, elems);
}

SIMD_INLINE const void *row_of(enum dtype t, const void *p, size_t row, size_t row_elems) {
    return (const char *)p + row * row_elems * dtype_bytes(t);
}
SIMD_INLINE void *row_to(enum dtype t, void *p, size_t row, size_t row_elems) {
    return (char *)p + row * row_elems * dtype_bytes(t);
}

SIMD_FN void k_bias_forward(enum dtype t, void *inout, const void *bias, size_t rows, size_t C) {
    for (size_t r = 0; r < rows; r++) {
        void *row = row_to(t, inout, r, C);
        k_add_to(t, row, row, bias, C);
    }
}

/* Layer norm of a row x (C): xhat * weight + bias, xhat = (x - mean) * rstd, variance over C (Ba,
 * Kiros and Hinton, 2016). */
SIMD_INLINE float row_mean(enum dtype t, const void *x, size_t C) {
    vf a = vf_zero(), b = vf_zero();
    size_t i = 0;
    for (; i + 2 * VL <= C; i += 2 * VL) {
        a = vf_add(a, vf_get(t, x, i, VL));
        b = vf_add(b, vf_get(t, x, i + VL, VL));
    }
    for (; i + VL <= C; i += VL)
        a = vf_add(a, vf_get(t, x, i, VL));
    return vf_sum(vf_add(vf_add(a, b), vf_get(t, x, i, C - i))) / (float)C;
}

SIMD_INLINE float row_variance(enum dtype t, const void *x, float mean, size_t C) {
    vf a = vf_zero(), b = vf_zero(), m = vf_set1(mean);
    size_t i = 0;
    for (; i + 2 * VL <= C; i += 2 * VL) {
        vf d = vf_sub(vf_get(t, x, i, VL), m), e = vf_sub(vf_get(t, x, i + VL, VL), m);
        a = vf_fma(d, d, a);
        b = vf_fma(e, e, b);
    }
    for (; i + VL <= C; i += VL) {
        vf d = vf_sub(vf_get(t, x, i, VL), m);
        a = vf_fma(d, d, a);
    }
    float sum = vf_sum(vf_add(a, b));
    for (; i < C; i++) {
        float d = one_get(t, x, i) - mean;
        sum += d * d;
    }
    return sum / (float)C;
}

SIMD_INLINE void layernorm_at(enum dtype t, void *out, const void *in, const struct cpu_norm *w,
                              vf mean, vf rstd, size_t i, size_t n) {
    vf xhat = vf_mul(vf_sub(vf_get(t, in, i, n), mean), rstd);
    vf_put(t, out, i, vf_fma(xhat, vf_get(t, w->weight, i, n), vf_get(t, w->bias, i, n)), n);
}

SIMD_INLINE void layernorm_row(enum dtype t, void *out, float *mean, float *rstd, const void *in,
                               const struct cpu_norm *w) {
    *mean = row_mean(t, in, w->C);
    *rstd = 1.0f / sqrtf(row_variance(t, in, *mean, w->C) + w->eps);
    vf m = vf_set1(*mean), s = vf_set1(*rstd);
    FOR_WHOLE(i, w->C) layernorm_at(t, out, in, w, m, s, i, VL);
    layernorm_at(t, out, in, w, m, s, whole(w->C), w->C % VL);
}

SIMD_INLINE void layernorm_rows(enum dtype t, void *out, float *mean, float *rstd, const void *in,
                                const struct cpu_norm *w, size_t rows) {
    for (size_t r = 0; r < rows; r++)
        layernorm_row(t, row_to(t, out, r, w->C), mean + r, rstd + r, row_of(t, in, r, w->C), w);
}

SIMD_FN void k_layernorm_forward(enum dtype t, void *out, float *mean, float *rstd, const void *in,
                                 const struct cpu_norm *w, size_t rows) {
    BY_DTYPE(t, layernorm_rows, out, mean, rstd, in, w, rows);
}

SIMD_INLINE void bias_residual_at(enum dtype t, void *sum, const void *residual, const void *in,
                                  const void *bias, size_t i, size_t n) {
    vf x = vf_add(vf_get(t, in, i, n), vf_get(t, bias, i, n));
    vf_put(t, sum, i, vf_add(vf_get(t, residual, i, n), x), n);
}

/* The norm is that of the sum as it is stored, which lies in the cache. */
SIMD_INLINE void residual_rows(enum dtype t, void *sum, void *out, float *mean, float *rstd,
                               const void *residual, const void *in, const void *in_bias,
                               const struct cpu_norm *w, size_t rows) {
    size_t C = w->C;
    for (size_t r = 0; r < rows; r++) {
        void *s = row_to(t, sum, r, C);
        const void *x = row_of(t, residual, r, C), *y = row_of(t, in, r, C);
        FOR_WHOLE(i, C) bias_residual_at(t, s, x, y, in_bias, i, VL);
        bias_residual_at(t, s, x, y, in_bias, whole(C), C % VL);
        layernorm_row(t, row_to(t, out, r, C), mean + r, rstd + r, s, w);
    }
}

SIMD_FN void k_residual_layernorm_forward(enum dtype t, void *sum, void *out, float *mean,
                                          float *rstd, const void *residual, const void *in,
                                          const void *in_bias, const struct cpu_norm *w,
                                          size_t rows) {
    BY_DTYPE(t, residual_rows, sum, out, mean, rstd, residual, in, in_bias, w, rows);
}

/* A row of layer norm's backward: g = dout * weight; din = rstd * (g - mean(g) - xhat * mean(g *
 * xhat)). */
struct norm_row {
    const void *dout, *in, *weight;
    vf mean, rstd, sum_g, sum_gx, mean_g, mean_gx;
};

SIMD_INLINE void norm_sums_at(enum dtype t, struct norm_row *r, size_t i, size_t n) {
    vf g = vf_mul(vf_get(t, r->dout, i, n), vf_get(t, r->weight, i, n)); /* 0 beyond the row */
    r->sum_g = vf_add(r->sum_g, g);
    r->sum_gx = vf_fma(g, vf_mul(vf_sub(vf_get(t, r->in, i, n), r->mean), r->rstd), r->sum_gx);
}

SIMD_INLINE void norm_din_at(enum dtype t, const struct norm_row *r, void *din, bool accumulate,
                             size_t i, size_t n) {
    vf g = vf_mul(vf_get(t, r->dout, i, n), vf_get(t, r->weight, i, n));
    vf xhat = vf_mul(vf_sub(vf_get(t, r->in, i, n), r->mean), r->rstd);
    vf d = vf_mul(r->rstd, vf_sub(vf_sub(g, r->mean_g), vf_mul(xhat, r->mean_gx)));
    vf_put(t, din, i, accumulate ? vf_add(vf_get(t, din, i, n), d) : d, n);
}

SIMD_INLINE void norm_in_rows(enum dtype t, void *din, bool accumulate, const void *dout,
                              const void *in, const void *weight, const float *mean,
                              const float *rstd, size_t rows, size_t C) {
    size_t rest = whole(C), n = C % VL;
    for (size_t r = 0; r < rows; r++) {
        void *to = row_to(t, din, r, C);
        struct norm_row row = {.dout = row_of(t, dout, r, C),
                               .in = row_of(t, in, r, C),
                               .weight = weight,
                               .mean = vf_set1(mean[r]),
                               .rstd = vf_set1(rstd[r]),
                               .sum_g = vf_zero(),
                               .sum_gx = vf_zero()};
        FOR_WHOLE(i, C) norm_sums_at(t, &row, i, VL);
        norm_sums_at(t, &row, rest, n);
        row.mean_g = vf_set1(vf_sum(row.sum_g) / (float)C);
        row.mean_gx = vf_set1(vf_sum(row.sum_gx) / (float)C);
        FOR_WHOLE(i, C) norm_din_at(t, &row, to, accumulate, i, VL);
        norm_din_at(t, &row, to, accumulate, rest, n);
    }
}

SIMD_FN void k_layernorm_backward_in(enum dtype t, void *din, bool accumulate, const void *dout,
                                     const void *in, const void *weight, const float *mean,
                                     const float *rstd, size_t rows, size_t C) {
    BY_DTYPE(t, norm_in_rows, din, accumulate, dout, in, weight, mean, rstd, rows, C);
}

/* p[i ...] of g += x, which is rounded once: the sums of a whole column come here. */
SIMD_INLINE void grad_add(enum dtype g, void *p, size_t i, vf x, size_t n) {
    vf_put(g, p, i, vf_add(vf_get(g, p, i, n), x), n);
}

/* Sums over rows go by columns, STRIPE vectors at once: several chains, whole cache lines. */
enum { STRIPE = 4 };

SIMD_INLINE void norm_params_at(enum dtype t, enum dtype g, void *dweight, void *dbias,
                                const void *dout, const void *in, const float *mean,
                                const float *rstd, size_t rows, size_t C, size_t c, size_t vectors,
                                size_t n) {
    vf dw[STRIPE] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()}, db[STRIPE];
    for (size_t j = 0; j < STRIPE; j++)
        db[j] = vf_zero();
    for (size_t r = 0; r < rows; r++) {
        vf m = vf_set1(mean[r]), s = vf_set1(rstd[r]);
        for (size_t j = 0; j < vectors; j++) {
            size_t at = r * C + c + j * VL;
            vf d = vf_get(t, dout, at, n), x = vf_get(t, in, at, n);
            dw[j] = vf_fma(d, vf_mul(vf_sub(x, m), s), dw[j]);
            db[j] = vf_add(db[j], d);
        }
    }
    for (size_t j = 0; j < vectors; j++) {
        grad_add(g, dweight, c + j * VL, dw[j], n);
        grad_add(g, dbias, c + j * VL, db[j], n);
    }
}

SIMD_INLINE void norm_params(enum dtype t, enum dtype g, void *dweight, void *dbias,
                             const void *dout, const void *in, const float *mean, const float *rstd,
                             size_t rows, size_t C, size_t first, size_t count) {
    size_t c = first, end = first + count;
    for (; c + STRIPE * VL <= end; c += STRIPE * VL)
        norm_params_at(t, g, dweight, dbias, dout, in, mean, rstd, rows, C, c, STRIPE, VL);
    for (; c + VL <= end; c += VL)
        norm_params_at(t, g, dweight, dbias, dout, in, mean, rstd, rows, C, c, 1, VL);
    if (c < end)
        norm_params_at(t, g, dweight, dbias, dout, in, mean, rstd, rows, C, c, 1, end - c);
}

SIMD_FN void k_layernorm_backward_params(enum dtype t, enum dtype g, void *dweight, void *dbias,
                                         const void *dout, const void *in, const float *mean,
                                         const float *rstd, size_t rows, size_t C, size_t first,
                                         size_t count) {
    BY_DTYPE(t, norm_params, g, dweight, dbias, dout, in, mean, rstd, rows, C, first, count);
}

SIMD_INLINE void column_sums_at(enum dtype t, enum dtype g, void *sums, const void *in, size_t rows,
                                size_t C, size_t c, size_t vectors, size_t n) {
    vf acc[STRIPE] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    for (size_t r = 0; r < rows; r++)
        for (size_t j = 0; j < vectors; j++)
            acc[j] = vf_add(acc[j], vf_get(t, in, r * C + c + j * VL, n));
    for (size_t j = 0; j < vectors; j++)
        grad_add(g, sums, c + j * VL, acc[j], n);
}

SIMD_INLINE void column_sums(enum dtype t, enum dtype g, void *sums, const void *in, size_t rows,
                             size_t C, size_t first, size_t count) {
    size_t c = first, end = first + count;
    for (; c + STRIPE * VL <= end; c += STRIPE * VL)
        column_sums_at(t, g, sums, in, rows, C, c, STRIPE, VL);
    for (; c + VL <= end; c += VL)
        column_sums_at(t, g, sums, in, rows, C, c, 1, VL);
    if (c < end)
        column_sums_at(t, g, sums, in, rows, C, c, 1, end - c);
}

SIMD_FN void k_column_sums(enum dtype t, enum dtype g, void *sums, const void *in, size_t rows,
                           size_t C, size_t first, size_t count) {
    BY_DTYPE(t, column_sums, g, sums, in, rows, C, first, count);
}

/* gelu_new: x * (1 + tanh(u)) / 2 = x / (1 + exp(-2u)), u = sqrt(2 / pi) * (x + 0.044715 x^3)
 * (Hendrycks and Gimpel, 2016). The second form has no cancellation. exp(-2u) of x. */
SIMD_INLINE vf gelu_exp(vf x) {
    vf x2 = vf_mul(x, x);
    vf k = vf_fma(x2, vf_set1(-2.0f * 0.7978845608028654f * 0.044715f),
                  vf_set1(-2.0f * 0.7978845608028654f));
    return vf_exp(vf_mul(x, k));
}

SIMD_INLINE void gelu_at(enum dtype t, void *out, const void *pre, size_t i, size_t n) {
    vf x = vf_get(t, pre, i, n);
    vf_put(t, out, i, vf_div(x, vf_add(vf_set1(1.0f), gelu_exp(x))), n);
}

SIMD_INLINE void bias_gelu_at(enum dtype t, void *out, void *pre, const void *bias, size_t i,
                              size_t n) {
    vf x = vf_add(vf_get(t, pre, i, n), vf_get(t, bias, i, n));
    vf_put(t, pre, i, x, n);
    if (t != DTYPE_F32)
        x = vf_get(t, pre, i, n);
    vf_put(t, out, i, vf_div(x, vf_add(vf_set1(1.0f), gelu_exp(x))), n);
}

SIMD_INLINE void bias_gelu_rows(enum dtype t, void *out, void *pre, const void *bias, size_t rows,
                                size_t C) {
    size_t rest = whole(C), n = C % VL;
    for (size_t r = 0; r < rows; r++) {
        void *to = row_to(t, out, r, C), *x = row_to(t, pre, r, C);
        if (bias != NULL) {
            FOR_WHOLE(i, C) bias_gelu_at(t, to, x, bias, i, VL);
            bias_gelu_at(t, to, x, bias, rest, n);
        } else {
            FOR_WHOLE(i, C) gelu_at(t, to, x, i, VL);
            gelu_at(t, to, x, rest, n);
        }
    }
}

SIMD_FN void k_bias_gelu_forward(enum dtype t, void *out, void *pre, const void *bias, size_t rows,
                                 size_t C) {
    BY_DTYPE(t, bias_gelu_rows, out, pre, bias, rows, C);
}

/* d/dx (x s) = s + x s (1 - s) 2 du/dx, s = 1 / (1 + e), 1 - s = e s, e = exp(-2u) */
SIMD_INLINE void gelu_backward_at(enum dtype t, void *inout, const void *pre, size_t i, size_t n) {
    vf x = vf_get(t, pre, i, n), one = vf_set1(1.0f);
    vf e = gelu_exp(x), s = vf_div(one, vf_add(one, e));
    vf two_du = vf_fma(vf_mul(x, x), vf_set1(6.0f * 0.7978845608028654f * 0.044715f),
                       vf_set1(2.0f * 0.7978845608028654f));
    vf slope = vf_mul(s, vf_fma(vf_mul(x, two_du), vf_mul(e, s), one));
    vf_put(t, inout, i, vf_mul(vf_get(t, inout, i, n), slope), n);
}

SIMD_INLINE void gelu_backward(enum dtype t, void *inout, const void *pre, size_t elems) {
    FOR_WHOLE(i, elems) gelu_backward_at(t, inout, pre, i, VL);
    gelu_backward_at(t, inout, pre, whole(elems), elems % VL);
}

SIMD_FN void k_gelu_backward(enum dtype t, void *inout, const void *pre, size_t elems) {
    BY_DTYPE(t, gelu_backward, inout, pre, elems);
}
