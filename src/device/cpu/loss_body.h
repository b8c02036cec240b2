/* loss_body.h - softmax with cross-entropy, sums and AdamW; included by kernels_*.c after
 * kernels_body.h. */

SIMD_INLINE float row_max(enum dtype t, const void *x, size_t elems) {
    vf a = vf_set1(-INFINITY), b = a;
    size_t i = 0;
    for (; i + 2 * VL <= elems; i += 2 * VL) {
        a = vf_max(a, vf_get(t, x, i, VL));
        b = vf_max(b, vf_get(t, x, i + VL, VL));
    }
    float m = vf_max_across(vf_max(a, b));
    for (; i < elems; i++) {
        float y = one_get(t, x, i);
        m = y > m ? y : m;
    }
    return m;
}

/* The sum of exp(x - shift); out (f32) takes its terms, or is NULL. */
SIMD_INLINE double row_exp(enum dtype t, float *out, const void *x, size_t elems, float shift) {
    vf s = vf_set1(shift), a = vf_zero(), b = a;
    size_t i = 0;
    for (; i + 2 * VL <= elems; i += 2 * VL) {
        vf p = vf_exp(vf_sub(vf_get(t, x, i, VL), s));
        vf q = vf_exp(vf_sub(vf_get(t, x, i + VL, VL), s));
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
        vf_store(rest, vf_exp(vf_sub(vf_get(t, x, i, n), s)));
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
    FOR_WHOLE(i, elems) vf_store(x + i, vf_mul(vf_load(x + i), f));
    size_t rest = whole(elems);
    vf_store_part(x + rest, vf_mul(vf_load_part(x + rest, elems % VL), f), elems % VL);
}

SIMD_INLINE void exp_scaled_at(enum dtype t, void *x, vf shift, vf factor, size_t i, size_t n) {
    vf_put(t, x, i, vf_mul(vf_exp(vf_sub(vf_get(t, x, i, n), shift)), factor), n);
}

/* x = factor * exp(x - shift), less `scale` at the target. In f32 the exponentials of row_exp lie
 * in x; in bf16 they are made again, so that each is rounded once. */
SIMD_INLINE void xent_gradient(enum dtype t, void *x, size_t V, size_t target, float shift,
                               float factor, float scale) {
    if (t == DTYPE_F32) {
        row_scale(x, V, factor);
        ((float *)x)[target] -= scale;
        return;
    }
    vf s = vf_set1(shift), f = vf_set1(factor);
    float at_target[VL];
    vf_store(at_target, vf_mul(vf_exp(vf_sub(vf_set1(one_get(t, x, target)), s)), f));
    FOR_WHOLE(i, V) exp_scaled_at(t, x, s, f, i, VL);
    exp_scaled_at(t, x, s, f, whole(V), V % VL);
    one_put(t, x, target, at_target[0] - scale);
}

SIMD_INLINE void softmax_xent(enum dtype t, float *losses, void *logits, size_t ldl,
                              const int32_t *targets, size_t rows, size_t V, float scale,
                              bool backward) {
    for (size_t r = 0; r < rows; r++) {
        void *x = row_to(t, logits, r, ldl);
        size_t target = (size_t)targets[r];
        float shift = row_max(t, x, V), at_target = one_get(t, x, target);
        double sum = row_exp(t, backward && t == DTYPE_F32 ? x : NULL, x, V, shift);
        losses[r] = (float)(scale * (log(sum) + shift - at_target));
        if (backward)
            xent_gradient(t, x, V, target, shift, (float)(scale / sum), scale);
    }
}

SIMD_FN void k_softmax_xent(enum dtype t, float *losses, void *logits, size_t ldl,
                            const int32_t *targets, size_t rows, size_t V, float scale,
                            bool backward) {
    BY_DTYPE(t, softmax_xent, losses, logits, ldl, targets, rows, V, scale, backward);
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

SIMD_INLINE void adamw_at(const struct adamw_factors *f, const struct cpu_adamw *w,
                          enum dtype copy_dtype, size_t i, size_t n) {
    vf g = vf_mul(vf_get(DTYPE_F32, w->grad, i, n), f->grad_scale);
    vf m = vf_get(DTYPE_F32, w->exp_avg, i, n);
    m = vf_fma(f->rest1, vf_sub(g, m), m);
    vf v = vf_fma(vf_mul(g, g), f->rest2, vf_mul(vf_get(DTYPE_F32, w->exp_avg_sq, i, n), f->beta2));
    vf_put(DTYPE_F32, w->exp_avg, i, m, n);
    vf_put(DTYPE_F32, w->exp_avg_sq, i, v, n);
    vf denominator = vf_fma(vf_sqrt(v), f->inv_sqrt_correction2, f->eps);
    vf p = vf_mul(vf_get(DTYPE_F32, w->param, i, n), f->keep);
    p = vf_fma(f->step, vf_div(m, denominator), p);
    vf_put(DTYPE_F32, w->param, i, p, n);
    if (w->copy != NULL)
        vf_put(copy_dtype, w->copy, i, p, n);
}

SIMD_INLINE void adamw(enum dtype copy_dtype, const struct adamw_factors *f,
                       const struct cpu_adamw *w, size_t elems) {
    FOR_WHOLE(i, elems) adamw_at(f, w, copy_dtype, i, VL);
    adamw_at(f, w, copy_dtype, whole(elems), elems % VL);
}

SIMD_FN void k_adamw(const struct cpu_adamw *w, size_t elems, const struct dev_adamw *a) {
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
    struct cpu_adamw mine = *w; /* not reloaded after each store */
    BY_DTYPE(w->copy_dtype, adamw, &f, &mine, elems);
}
