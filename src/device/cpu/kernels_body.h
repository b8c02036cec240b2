/* kernels_body.h - the kernels, over the vector operations that the including file has chosen.
 *
 * Included once by each kernels_*.c, after its simd_*.h. Sums run in an order that the vector
 * length alone decides. A NaN or an infinity that comes in shows in what goes out: a step with a
 * broken gradient must be seen. Denormals are left as they are: the flag that flushes them would
 * have to be set in threads of BLAS too, which are not ours. */

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

/* n elements of a vector: all VL, known when compiled, or what is left at the end of a row. */
SIMD_INLINE vf vf_get(const float *p, size_t n) {
    return n == VL ? vf_load(p) : vf_load_part(p, n);
}
SIMD_INLINE void vf_put(float *p, vf x, size_t n) {
    if (n == VL)
        vf_store(p, x);
    else
        vf_store_part(p, x, n);
}
/* Whole vectors from 0; `rest` of them begins at whole(elems). */
#define FOR_WHOLE(i, elems) for (size_t i = 0; (i) + VL <= (elems); (i) += VL)
SIMD_INLINE size_t whole(size_t elems) { return elems / VL * VL; }

SIMD_FN void k_fill(float *dst, size_t elems, float value) {
    vf x = vf_set1(value);
    FOR_WHOLE(i, elems) vf_store(dst + i, x);
    vf_store_part(dst + whole(elems), x, elems % VL);
}

SIMD_INLINE void add_at(float *out, const float *a, const float *b, size_t n) {
    vf_put(out, vf_add(vf_get(a, n), vf_get(b, n)), n);
}

SIMD_FN void k_add_to(float *out, const float *a, const float *b, size_t elems) {
    size_t rest = whole(elems);
    FOR_WHOLE(i, elems) add_at(out + i, a + i, b + i, VL);
    add_at(out + rest, a + rest, b + rest, elems % VL);
}

SIMD_FN void k_add(float *dst, const float *src, size_t elems) { k_add_to(dst, dst, src, elems); }

SIMD_FN void k_bias_forward(float *inout, const float *bias, size_t rows, size_t C) {
    for (size_t r = 0; r < rows; r++)
        k_add_to(inout + r * C, inout + r * C, bias, C);
}

SIMD_INLINE void bias_residual_at(float *out, const float *residual, const float *in,
                                  const float *bias, size_t n) {
    vf_put(out, vf_add(vf_get(residual, n), vf_add(vf_get(in, n), vf_get(bias, n))), n);
}

SIMD_FN void k_bias_residual_forward(float *out, const float *residual, const float *in,
                                     const float *bias, size_t rows, size_t C) {
    size_t rest = whole(C);
    for (size_t r = 0; r < rows; r++, out += C, residual += C, in += C) {
        FOR_WHOLE(i, C) bias_residual_at(out + i, residual + i, in + i, bias + i, VL);
        bias_residual_at(out + rest, residual + rest, in + rest, bias + rest, C % VL);
    }
}

/* Layer norm of a row x (C): xhat * weight + bias, xhat = (x - mean) * rstd, variance over C (Ba,
 * Kiros and Hinton, 2016). */
SIMD_INLINE float row_mean(const float *x, size_t C) {
    vf a = vf_zero(), b = vf_zero();
    size_t i = 0;
    for (; i + 2 * VL <= C; i += 2 * VL) {
        a = vf_add(a, vf_load(x + i));
        b = vf_add(b, vf_load(x + i + VL));
    }
    for (; i + VL <= C; i += VL)
        a = vf_add(a, vf_load(x + i));
    return vf_sum(vf_add(vf_add(a, b), vf_load_part(x + i, C - i))) / (float)C;
}

SIMD_INLINE float row_variance(const float *x, float mean, size_t C) {
    vf a = vf_zero(), b = vf_zero(), m = vf_set1(mean);
    size_t i = 0;
    for (; i + 2 * VL <= C; i += 2 * VL) {
        vf d = vf_sub(vf_load(x + i), m), e = vf_sub(vf_load(x + i + VL), m);
        a = vf_fma(d, d, a);
        b = vf_fma(e, e, b);
    }
    for (; i + VL <= C; i += VL) {
        vf d = vf_sub(vf_load(x + i), m);
        a = vf_fma(d, d, a);
    }
    float sum = vf_sum(vf_add(a, b));
    for (; i < C; i++)
        sum += (x[i] - mean) * (x[i] - mean);
    return sum / (float)C;
}

SIMD_INLINE void layernorm_at(float *out, const float *in, const float *weight, const float *bias,
                              vf mean, vf rstd, size_t n) {
    vf xhat = vf_mul(vf_sub(vf_get(in, n), mean), rstd);
    vf_put(out, vf_fma(xhat, vf_get(weight, n), vf_get(bias, n)), n);
}

SIMD_FN void k_layernorm_forward(float *out, float *mean, float *rstd, const float *in,
                                 const float *weight, const float *bias, size_t rows, size_t C,
                                 float eps) {
    size_t rest = whole(C);
    for (size_t r = 0; r < rows; r++, in += C, out += C) {
        mean[r] = row_mean(in, C);
        rstd[r] = 1.0f / sqrtf(row_variance(in, mean[r], C) + eps);
        vf m = vf_set1(mean[r]), s = vf_set1(rstd[r]);
        FOR_WHOLE(i, C) layernorm_at(out + i, in + i, weight + i, bias + i, m, s, VL);
        layernorm_at(out + rest, in + rest, weight + rest, bias + rest, m, s, C % VL);
    }
}

/* A row of layer norm's backward: g = dout * weight; din = rstd * (g - mean(g) - xhat * mean(g *
 * xhat)). */
struct norm_row {
    vf mean, rstd, sum_g, sum_gx, mean_g, mean_gx;
};

SIMD_INLINE void norm_sums_at(struct norm_row *r, const float *dout, const float *in,
                              const float *weight, size_t n) {
    vf g = vf_mul(vf_get(dout, n), vf_get(weight, n)); /* 0 beyond the row */
    r->sum_g = vf_add(r->sum_g, g);
    r->sum_gx = vf_fma(g, vf_mul(vf_sub(vf_get(in, n), r->mean), r->rstd), r->sum_gx);
}

SIMD_INLINE void norm_din_at(const struct norm_row *r, float *din, bool accumulate,
                             const float *dout, const float *in, const float *weight, size_t n) {
    vf g = vf_mul(vf_get(dout, n), vf_get(weight, n));
    vf xhat = vf_mul(vf_sub(vf_get(in, n), r->mean), r->rstd);
    vf d = vf_mul(r->rstd, vf_sub(vf_sub(g, r->mean_g), vf_mul(xhat, r->mean_gx)));
    vf_put(din, accumulate ? vf_add(vf_get(din, n), d) : d, n);
}

SIMD_FN void k_layernorm_backward_in(float *din, bool accumulate, const float *dout,
                                     const float *in, const float *weight, const float *mean,
                                     const float *rstd, size_t rows, size_t C) {
    size_t rest = whole(C), n = C % VL;
    for (size_t r = 0; r < rows; r++, din += C, dout += C, in += C) {
        struct norm_row row = {.mean = vf_set1(mean[r]),
                               .rstd = vf_set1(rstd[r]),
                               .sum_g = vf_zero(),
                               .sum_gx = vf_zero()};
        FOR_WHOLE(i, C) norm_sums_at(&row, dout + i, in + i, weight + i, VL);
        norm_sums_at(&row, dout + rest, in + rest, weight + rest, n);
        row.mean_g = vf_set1(vf_sum(row.sum_g) / (float)C);
        row.mean_gx = vf_set1(vf_sum(row.sum_gx) / (float)C);
        FOR_WHOLE(i, C) norm_din_at(&row, din + i, accumulate, dout + i, in + i, weight + i, VL);
        norm_din_at(&row, din + rest, accumulate, dout + rest, in + rest, weight + rest, n);
    }
}

SIMD_INLINE void norm_params_at(float *dweight, float *dbias, const float *dout, const float *in,
                                const float *mean, const float *rstd, size_t rows, size_t C,
                                size_t n) {
    vf dw = vf_zero(), db = vf_zero();
    for (size_t r = 0; r < rows; r++) {
        vf g = vf_get(dout + r * C, n), x = vf_get(in + r * C, n);
        dw = vf_fma(g, vf_mul(vf_sub(x, vf_set1(mean[r])), vf_set1(rstd[r])), dw);
        db = vf_add(db, g);
    }
    vf_put(dweight, vf_add(vf_get(dweight, n), dw), n);
    vf_put(dbias, vf_add(vf_get(dbias, n), db), n);
}

SIMD_FN void k_layernorm_backward_params(float *dweight, float *dbias, const float *dout,
                                         const float *in, const float *mean, const float *rstd,
                                         size_t rows, size_t C, size_t first, size_t count) {
    size_t c = first, end = first + count;
    for (; c + VL <= end; c += VL)
        norm_params_at(dweight + c, dbias + c, dout + c, in + c, mean, rstd, rows, C, VL);
    if (c < end)
        norm_params_at(dweight + c, dbias + c, dout + c, in + c, mean, rstd, rows, C, end - c);
}

SIMD_INLINE void column_sums_at(float *sums, const float *in, size_t rows, size_t C, size_t n) {
    vf acc = vf_zero();
    for (size_t r = 0; r < rows; r++)
        acc = vf_add(acc, vf_get(in + r * C, n));
    vf_put(sums, vf_add(vf_get(sums, n), acc), n);
}

SIMD_FN void k_column_sums(float *sums, const float *in, size_t rows, size_t C, size_t first,
                           size_t count) {
    size_t c = first, end = first + count;
    for (; c + 4 * VL <= end; c += 4 * VL) { /* several chains, whole cache lines */
        vf acc[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
        for (size_t r = 0; r < rows; r++)
            for (size_t j = 0; j < 4; j++)
                acc[j] = vf_add(acc[j], vf_load(in + r * C + c + j * VL));
        for (size_t j = 0; j < 4; j++)
            vf_store(sums + c + j * VL, vf_add(vf_load(sums + c + j * VL), acc[j]));
    }
    for (; c + VL <= end; c += VL)
        column_sums_at(sums + c, in + c, rows, C, VL);
    if (c < end)
        column_sums_at(sums + c, in + c, rows, C, end - c);
}

/* gelu_new: x * (1 + tanh(u)) / 2 = x / (1 + exp(-2u)), u = sqrt(2 / pi) * (x + 0.044715 x^3)
 * (Hendrycks and Gimpel, 2016). The second form has no cancellation. exp(-2u) of x. */
SIMD_INLINE vf gelu_exp(vf x) {
    vf x2 = vf_mul(x, x);
    vf k = vf_fma(x2, vf_set1(-2.0f * 0.7978845608028654f * 0.044715f),
                  vf_set1(-2.0f * 0.7978845608028654f));
    return vf_exp(vf_mul(x, k));
}

SIMD_INLINE void gelu_at(float *out, const float *pre, size_t n) {
    vf x = vf_get(pre, n);
    vf_put(out, vf_div(x, vf_add(vf_set1(1.0f), gelu_exp(x))), n);
}

SIMD_INLINE void bias_gelu_at(float *out, float *pre, const float *bias, size_t n) {
    vf x = vf_add(vf_get(pre, n), vf_get(bias, n));
    vf_put(pre, x, n);
    vf_put(out, vf_div(x, vf_add(vf_set1(1.0f), gelu_exp(x))), n);
}

SIMD_FN void k_bias_gelu_forward(float *out, float *pre, const float *bias, size_t rows, size_t C) {
    size_t rest = whole(C), n = C % VL;
    for (size_t r = 0; r < rows; r++, out += C, pre += C) {
        if (bias != NULL) {
            FOR_WHOLE(i, C) bias_gelu_at(out + i, pre + i, bias + i, VL);
            bias_gelu_at(out + rest, pre + rest, bias + rest, n);
        } else {
            FOR_WHOLE(i, C) gelu_at(out + i, pre + i, VL);
            gelu_at(out + rest, pre + rest, n);
        }
    }
}

/* d/dx (x s) = s + x s (1 - s) 2 du/dx, s = 1 / (1 + e), 1 - s = e s, e = exp(-2u) */
SIMD_INLINE void gelu_backward_at(float *inout, const float *pre, size_t n) {
    vf x = vf_get(pre, n), one = vf_set1(1.0f);
    vf e = gelu_exp(x), s = vf_div(one, vf_add(one, e));
    vf two_du = vf_fma(vf_mul(x, x), vf_set1(6.0f * 0.7978845608028654f * 0.044715f),
                       vf_set1(2.0f * 0.7978845608028654f));
    vf slope = vf_mul(s, vf_fma(vf_mul(x, two_du), vf_mul(e, s), one));
    vf_put(inout, vf_mul(vf_get(inout, n), slope), n);
}

SIMD_FN void k_gelu_backward(float *inout, const float *pre, size_t elems) {
    size_t rest = whole(elems);
    FOR_WHOLE(i, elems) gelu_backward_at(inout + i, pre + i, VL);
    gelu_backward_at(inout + rest, pre + rest, elems % VL);
}

SIMD_INLINE float row_max(const float *x, size_t elems) {
    vf a = vf_set1(-INFINITY), b = a;
    size_t i = 0;
    for (; i + 2 * VL <= elems; i += 2 * VL) {
        a = vf_max(a, vf_load(x + i));
        b = vf_max(b, vf_load(x + i + VL));
    }
    float m = vf_max_across(vf_max(a, b));
    for (; i < elems; i++)
        m = x[i] > m ? x[i] : m;
    return m;
}

/* out = exp(x - shift), returns its sum; out NULL: the sum alone */
SIMD_INLINE double row_exp(float *out, const float *x, size_t elems, float shift) {
    vf s = vf_set1(shift), a = vf_zero(), b = a;
    size_t i = 0;
    for (; i + 2 * VL <= elems; i += 2 * VL) {
        vf p = vf_exp(vf_sub(vf_load(x + i), s)), q = vf_exp(vf_sub(vf_load(x + i + VL), s));
        a = vf_add(a, p);
        b = vf_add(b, q);
        if (out != NULL) {
            vf_store(out + i, p);
            vf_store(out + i + VL, q);
        }
    }
    double sum = (double)vf_sum(a) + (double)vf_sum(b);
    for (; i < elems; i += VL) {
        size_t n = elems - i < VL ? elems - i : VL;
        float rest[VL] = {0};
        vf_store(rest, vf_exp(vf_sub(vf_load_part(x + i, n), s)));
        for (size_t j = 0; j < n; j++) {
            sum += rest[j];
            if (out != NULL)
                out[i + j] = rest[j];
        }
    }
    return sum;
}

SIMD_INLINE void row_scale(float *x, size_t elems, float factor) {
    vf f = vf_set1(factor);
    size_t rest = whole(elems);
    FOR_WHOLE(i, elems) vf_store(x + i, vf_mul(vf_load(x + i), f));
    vf_put(x + rest, vf_mul(vf_get(x + rest, elems % VL), f), elems % VL);
}

SIMD_FN void k_softmax_xent(float *losses, float *logits, const int32_t *targets, size_t rows,
                            size_t V, float scale, bool backward) {
    for (size_t r = 0; r < rows; r++, logits += V) {
        size_t target = (size_t)targets[r];
        float shift = row_max(logits, V), at_target = logits[target];
        double sum = row_exp(backward ? logits : NULL, logits, V, shift);
        losses[r] = (float)(scale * (log(sum) + shift - at_target));
        if (!backward)
            continue;
        row_scale(logits, V, (float)(scale / sum));
        logits[target] -= scale;
    }
}

SIMD_FN double k_sum(const float *in, size_t elems) {
    vd a = vd_zero(), b = vd_zero();
    size_t i = 0;
    for (; i + 2 * VL <= elems; i += 2 * VL) {
        a = vd_add(a, vf_load(in + i));
        b = vd_add(b, vf_load(in + i + VL));
    }
    double sum = vd_sum(a) + vd_sum(b);
    for (; i < elems; i++)
        sum += in[i];
    return sum;
}

SIMD_FN double k_sum_squares(const float *in, size_t elems) {
    vd a = vd_zero(), b = vd_zero();
    size_t i = 0;
    for (; i + 2 * VL <= elems; i += 2 * VL) {
        a = vd_add_square(a, vf_load(in + i));
        b = vd_add_square(b, vf_load(in + i + VL));
    }
    double sum = vd_sum(a) + vd_sum(b);
    for (; i < elems; i++)
        sum += (double)in[i] * in[i];
    return sum;
}

/* The factors of AdamW, in the order in which they are used. */
struct adamw_factors {
    vf grad_scale, rest1, beta2, rest2, inv_sqrt_correction2, eps, keep, step;
};

SIMD_INLINE void adamw_at(const struct adamw_factors *f, float *param, float *exp_avg,
                          float *exp_avg_sq, const float *grad, size_t n) {
    vf g = vf_mul(vf_get(grad, n), f->grad_scale);
    vf m = vf_get(exp_avg, n);
    m = vf_fma(f->rest1, vf_sub(g, m), m);
    vf v = vf_fma(vf_mul(g, g), f->rest2, vf_mul(vf_get(exp_avg_sq, n), f->beta2));
    vf_put(exp_avg, m, n);
    vf_put(exp_avg_sq, v, n);
    vf denominator = vf_fma(vf_sqrt(v), f->inv_sqrt_correction2, f->eps);
    vf p = vf_mul(vf_get(param, n), f->keep);
    vf_put(param, vf_fma(f->step, vf_div(m, denominator), p), n);
}

SIMD_FN void k_adamw(float *param, float *exp_avg, float *exp_avg_sq, const float *grad,
                     size_t elems, const struct dev_adamw *a) {
    struct adamw_factors f = {
        .grad_scale = vf_set1((float)a->grad_scale),
        .rest1 = vf_set1((float)(1.0 - a->beta1)),
        .beta2 = vf_set1((float)a->beta2),
        .rest2 = vf_set1((float)(1.0 - a->beta2)),
        .inv_sqrt_correction2 = vf_set1((float)(1.0 / sqrt(a->correction2))),
        .eps = vf_set1((float)a->eps),
        .keep = vf_set1((float)(1.0 - a->lr * a->weight_decay)),
        .step = vf_set1((float)(-a->lr / a->correction1)),
    };
    size_t rest = whole(elems);
    FOR_WHOLE(i, elems) adamw_at(&f, param + i, exp_avg + i, exp_avg_sq + i, grad + i, VL);
    adamw_at(&f, param + rest, exp_avg + rest, exp_avg_sq + rest, grad + rest, elems % VL);
}
