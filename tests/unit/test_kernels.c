/* test_kernels.c - every operation of the CPU device but attention, against double precision and
 * finite differences. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/cpu/cpu.h"
#include "device/philox.h"
#include "device_fixture.h"

static const struct device_ops *const ops = &device_cpu;

/* Rows and columns: less than a vector, around whole ones, and enough to be shared out among
 * threads. */
static const size_t sizes[][2] = {{1, 1},  {1, 3},  {7, 15},  {3, 16},  {2, 17},
                                  {5, 33}, {1, 64}, {3, 100}, {70, 300}};
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

struct norm_case {
    size_t N, C;
    const double *dout, *in, *weight, *bias;
};

static double norm_loss(const struct norm_case *c, const double *in, const double *weight,
                        const double *bias, double *out) {
    double loss = 0;
    for (size_t r = 0; r < c->N; r++) {
        const double *x = in + r * c->C;
        double mean = 0, var = 0;
        for (size_t i = 0; i < c->C; i++)
            mean += x[i] / (double)c->C;
        for (size_t i = 0; i < c->C; i++)
            var += (x[i] - mean) * (x[i] - mean) / (double)c->C;
        for (size_t i = 0; i < c->C; i++) {
            double y = (x[i] - mean) / sqrt(var + 1e-2) * weight[i] + bias[i];
            loss += c->dout[r * c->C + i] * y;
            if (out != NULL)
                out[r * c->C + i] = y;
        }
    }
    return loss;
}

static double norm_of_in(const double *x, void *arg) {
    const struct norm_case *c = arg;
    return norm_loss(c, x, c->weight, c->bias, NULL);
}

static double norm_of_weight(const double *x, void *arg) {
    const struct norm_case *c = arg;
    return norm_loss(c, c->in, x, c->bias, NULL);
}

static double norm_of_bias(const double *x, void *arg) {
    const struct norm_case *c = arg;
    return norm_loss(c, c->in, c->weight, x, NULL);
}

static void check_layernorm_of(struct device *d, size_t N, size_t C) {
    float *in = floats(N * C, 2, 1), *w = floats(C, 1, 2), *b = floats(C, 1, 3),
          *dout = floats(N * C, 1, 4);
    float *out = filled(N * C, NAN), *mean = filled(N, NAN), *rstd = filled(N, NAN);
    float *din = filled(N * C, NAN), *dw = filled(C, 0), *db = filled(C, 0);
    double *in_d = doubles(in, N * C), *w_d = doubles(w, C), *b_d = doubles(b, C),
           *dout_d = doubles(dout, N * C);
    double *want = doubles(in, N * C);
    struct norm_case c = {N, C, dout_d, in_d, w_d, b_d};
    size_t stride = N * C / 300 + 1;

    assert_int_equal(
        ops->layernorm_forward(d, NULL, DTYPE_F32, out, mean, rstd, in, w, b, N, C, 1e-2f), 0);
    norm_loss(&c, in_d, w_d, b_d, want);
    assert_close("layernorm_forward", out, want, N * C, 3e-6);

    ops->layernorm_backward(d, NULL, DTYPE_F32, DTYPE_F32, din, false, dw, db, dout, in, w, mean,
                            rstd, N, C);
    assert_gradient("layernorm in", din, norm_of_in, &c, in_d, N * C, stride, 2e-5);
    assert_gradient("layernorm weight", dw, norm_of_weight, &c, w_d, C, C / 20 + 1, 2e-5);
    assert_gradient("layernorm bias", db, norm_of_bias, &c, b_d, C, C / 20 + 1, 2e-5);
    double *first = doubles(din, N * C), *first_w = doubles(dw, C);
    ops->layernorm_backward(d, NULL, DTYPE_F32, DTYPE_F32, din, true, dw, db, dout, in, w, mean,
                            rstd, N, C);
    for (size_t i = 0; i < N * C; i++)
        first[i] *= 2;
    for (size_t i = 0; i < C; i++)
        first_w[i] *= 2;
    assert_close("layernorm in, accumulated", din, first, N * C, 1e-6);
    assert_close("layernorm weight, accumulated", dw, first_w, C, 1e-6);

    float *f[] = {in, w, b, dout, out, mean, rstd, din, dw, db};
    double *g[] = {in_d, w_d, b_d, dout_d, want, first, first_w};
    for (size_t i = 0; i < sizeof(f) / sizeof(f[0]); i++)
        free(f[i]);
    for (size_t i = 0; i < sizeof(g) / sizeof(g[0]); i++)
        free(g[i]);
}

/* The same as a sum and a norm of it, bit for bit. */
static void check_residual_layernorm_of(struct device *d, size_t N, size_t C) {
    size_t elems = N * C;
    float *in = floats(elems, 1, 1), *res = floats(elems, 1, 2), *in_bias = floats(C, 1, 3),
          *w = floats(C, 1, 4), *b = floats(C, 1, 5);
    float *sum = filled(elems, NAN), *out = filled(elems, NAN), *kept = filled(2 * N, NAN),
          *want_out = filled(elems, NAN), *want_kept = filled(2 * N, NAN);
    double *want = doubles(in, elems);
    for (size_t i = 0; i < elems; i++)
        want[i] += (double)res[i] + in_bias[i % C];
    assert_int_equal(ops->residual_layernorm_forward(d, NULL, DTYPE_F32, sum, out, kept, kept + N,
                                                     res, in, in_bias, w, b, N, C, 1e-5f),
                     0);
    assert_close("residual sum", sum, want, elems, 3e-7);
    ops->layernorm_forward(d, NULL, DTYPE_F32, want_out, want_kept, want_kept + N, sum, w, b, N, C,
                           1e-5f);
    assert_memory_equal(out, want_out, elems * sizeof(float));
    assert_memory_equal(kept, want_kept, 2 * N * sizeof(float));
    free(in), free(res), free(in_bias), free(w), free(b), free(sum), free(out), free(kept);
    free(want_out), free(want_kept), free(want);
}

static void check_layernorm(struct device *d) {
    for (size_t i = 0; i < SIZES; i++) {
        check_layernorm_of(d, sizes[i][0], sizes[i][1]);
        check_residual_layernorm_of(d, sizes[i][0], sizes[i][1]);
    }
}

static double gelu(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x) {
    double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

static double gelu_sum(const double *x, void *arg) {
    const size_t *elems = arg;
    double sum = 0;
    for (size_t i = 0; i < *elems; i++)
        sum += gelu(x[i]);
    return sum;
}

static void check_gelu_of(struct device *d, size_t N, size_t C) {
    size_t elems = N * C;
    float *pre = floats(elems, 4, 5), *b = floats(C, 1, 6), *out = filled(elems, NAN),
          *dout = filled(elems, 1);
    double *want = doubles(pre, elems);
    for (size_t i = 0; i < elems; i++)
        want[i] = gelu((double)(pre[i] + b[i % C]));
    ops->bias_gelu_forward(d, NULL, DTYPE_F32, out, pre, b, N, C);
    assert_close("bias_gelu_forward", out, want, elems, 5e-7);
    float *again = filled(elems, NAN);
    ops->bias_gelu_forward(d, NULL, DTYPE_F32, again, pre, NULL, N, C);
    assert_memory_equal(again, out, elems * sizeof(float));
    ops->gelu_backward(d, NULL, DTYPE_F32, dout, pre, N, C);
    double *x = doubles(pre, elems);
    assert_gradient("gelu", dout, gelu_sum, &elems, x, elems, elems / 200 + 1, 2e-5);
    for (size_t i = 0; i < elems; i++)
        want[i] = gelu_slope(x[i]);
    assert_close("gelu_backward", dout, want, elems, 1e-6);
    free(pre), free(b), free(out), free(dout), free(again), free(want), free(x);
}

static void check_gelu(struct device *d) {
    for (size_t i = 0; i < SIZES; i++)
        check_gelu_of(d, sizes[i][0], sizes[i][1]);
    /* far out: no overflow, no NaN, and what is not finite stays visible */
    float x[] = {-1e30f, -40, -10, 0, 10, 40, 1e18f, NAN}, y[8], g[] = {1, 1, 1, 1, 1, 1, 1, 1};
    ops->bias_gelu_forward(d, NULL, DTYPE_F32, y, x, NULL, 1, 8);
    ops->gelu_backward(d, NULL, DTYPE_F32, g, x, 1, 8);
    assert_true(fabsf(y[1]) < 1e-30f && fabsf(y[2]) < 1e-20f && y[3] == 0 && y[4] == 10 &&
                y[5] == 40 && y[6] == 1e18f);
    assert_true(fabsf(g[1]) < 1e-30f && g[3] == 0.5f && g[4] == 1 && g[5] == 1);
    assert_true(isnan(y[7]) && isnan(g[7]));
}

static void check_bias_of(struct device *d, size_t N, size_t C) {
    size_t elems = N * C;
    float *in = floats(elems, 1, 1), *res = floats(elems, 1, 2), *b = floats(C, 1, 3),
          *out = filled(elems, NAN);
    float *db = filled(C, 1);
    double *want = doubles(in, elems), *sums = doubles(db, C);
    for (size_t i = 0; i < elems; i++) {
        want[i] = (double)in[i] + b[i % C];
        sums[i % C] += in[i];
    }
    ops->bias_backward(d, NULL, DTYPE_F32, DTYPE_F32, db, in, N, C);
    assert_close("bias_backward", db, sums, C, 2e-6);
    ops->bias_forward(d, NULL, DTYPE_F32, in, b, N, C);
    assert_close("bias_forward", in, want, elems, 3e-7);
    ops->add(d, NULL, in, res, DTYPE_F32, elems);
    for (size_t i = 0; i < elems; i++)
        want[i] += res[i];
    assert_close("add", in, want, elems, 3e-7);
    ops->copy(d, NULL, out, in, elems * sizeof(float));
    assert_memory_equal(out, in, elems * sizeof(float));
    ops->fill(d, NULL, out, DTYPE_F32, elems, 2.5f);
    for (size_t i = 0; i < elems; i++)
        assert_true(out[i] == 2.5f);
    free(in), free(res), free(b), free(out), free(db), free(want), free(sums);
}

static void check_bias(struct device *d) {
    for (size_t i = 0; i < SIZES; i++)
        check_bias_of(d, sizes[i][0], sizes[i][1]);
}

struct xent_case {
    size_t N, V;
    const int32_t *targets;
    double scale;
};

static double xent_loss(const double *logits, void *arg) {
    const struct xent_case *c = arg;
    double loss = 0;
    for (size_t r = 0; r < c->N; r++) {
        const double *x = logits + r * c->V;
        double max = -INFINITY, sum = 0;
        for (size_t v = 0; v < c->V; v++)
            max = fmax(max, x[v]);
        for (size_t v = 0; v < c->V; v++)
            sum += exp(x[v] - max);
        loss += c->scale * (log(sum) + max - x[c->targets[r]]);
    }
    return loss;
}

static void check_xent_of(struct device *d, size_t N, size_t V) {
    const size_t ldl = V + 3; /* what lies between rows is kept */
    float *dense = floats(N * V, 5, 9), *logits = filled(N * ldl, 1), *losses = filled(N, NAN),
          *kept = filled(N * ldl, 1);
    double *x = doubles(dense, N * V);
    for (size_t i = 0; i < N * V; i++)
        kept[i / V * ldl + i % V] = logits[i / V * ldl + i % V] = dense[i];
    int32_t targets[8];
    for (size_t r = 0; r < N; r++)
        targets[r] = (int32_t)(r == 0 ? V - 1 : r * 7919 % V);
    struct xent_case c = {N, V, targets, 0.125};
    double want = xent_loss(x, &c), got = 0;
    ops->softmax_xent(d, NULL, DTYPE_F32, losses, logits, ldl, targets, N, V, 0.125f, false);
    assert_memory_equal(logits, kept, N * ldl * sizeof(float));
    for (size_t r = 0; r < N; r++)
        got += losses[r];
    assert_float_equal(got, want, 1e-6 * (1 + want));
    float *again = filled(N, NAN);
    ops->softmax_xent(d, NULL, DTYPE_F32, again, logits, ldl, targets, N, V, 0.125f, true);
    assert_memory_equal(again, losses, N * sizeof(float));
    for (size_t i = 0; i < N * V; i++)
        dense[i] = logits[i / V * ldl + i % V];
    for (size_t i = 0; i < N * ldl; i++)
        assert_true(i % ldl < V || logits[i] == 1);
    assert_gradient("softmax_xent", dense, xent_loss, &c, x, N * V, N * V / 40 + 1, 1e-6);
    double sum = 0; /* of the gradient: nothing */
    for (size_t i = 0; i < N * V; i++)
        sum += dense[i];
    assert_float_equal(sum, 0, 1e-6);
    free(dense), free(logits), free(losses), free(kept), free(again), free(x);
}

static void check_xent(struct device *d) {
    check_xent_of(d, 1, 1);
    check_xent_of(d, 3, 2);
    check_xent_of(d, 7, 15);
    check_xent_of(d, 5, 257);
    check_xent_of(d, 2, 50257);
    float far[] = {1e4f, -1e4f, 0}, losses[1];
    const int32_t target[] = {0};
    ops->softmax_xent(d, NULL, DTYPE_F32, losses, far, 3, target, 1, 3, 1, true);
    assert_true(losses[0] == 0 && far[0] == 0 && far[1] == 0 && far[2] == 0);
    float broken[40] = {[37] = NAN};
    ops->softmax_xent(d, NULL, DTYPE_F32, losses, broken, 40, target, 1, 40, 1, true);
    assert_true(isnan(losses[0]) && isnan(broken[0]) && isnan(broken[39]));
}

static void check_embed(struct device *d) {
    enum { B = 5, T = 13, C = 291, V = 11, P = 17 };
    float *wte = floats(V * C, 1, 1), *wpe = floats(P * C, 1, 2), *out = filled(B * T * C, NAN),
          *dout = floats(B * T * C, 1, 3);
    float *dwte = filled(V * C, 0.5f), *dwpe = filled(P * C, 0.5f);
    double *want_e = doubles(dwte, V * C), *want_p = doubles(dwpe, P * C);
    int32_t tokens[B * T];
    for (size_t n = 0; n < B * T; n++)
        tokens[n] = (int32_t)(n * n % V);
    ops->embed_forward(d, NULL, DTYPE_F32, out, tokens, wte, wpe, B, T, C);
    ops->embed_backward(d, NULL, DTYPE_F32, DTYPE_F32, dwte, dwpe, dout, tokens, B, T, C, V);
    for (size_t n = 0; n < B * T; n++)
        for (size_t c = 0; c < C; c++) {
            assert_true(out[n * C + c] == wte[(size_t)tokens[n] * C + c] + wpe[n % T * C + c]);
            want_e[(size_t)tokens[n] * C + c] += dout[n * C + c];
            want_p[n % T * C + c] += dout[n * C + c];
        }
    assert_close("embed_backward wte", dwte, want_e, V * C, 1e-6);
    assert_close("embed_backward wpe", dwpe, want_p, P * C, 1e-6);
    free(wte), free(wpe), free(out), free(dout), free(dwte), free(dwpe), free(want_e), free(want_p);
}

static void check_gemm_of(struct device *d, bool trans_a, bool trans_b, size_t m, size_t n,
                          size_t k, float beta) {
    size_t lda = (trans_a ? m : k) + 3, ldb = (trans_b ? k : n) + 1, ldc = n + 2;
    float *a = floats((trans_a ? k : m) * lda, 1, 1), *b = floats((trans_b ? n : k) * ldb, 1, 2);
    float *c = beta == 0 ? filled(m * ldc, NAN) : floats(m * ldc, 1, 3), *old = filled(m * ldc, 0);
    memcpy(old, c, m * ldc * sizeof(float));
    assert_int_equal(ops->gemm(d, NULL, DTYPE_F32, DTYPE_F32, trans_a, trans_b, m, n, k, 0.5f, a,
                               lda, b, ldb, beta, c, ldc),
                     0);
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < ldc; j++) {
            double want = beta == 0 ? 0 : beta * old[i * ldc + j];
            for (size_t l = 0; l < k; l++)
                want += j < n ? 0.5 * (trans_a ? a[l * lda + i] : a[i * lda + l]) *
                                    (trans_b ? b[j * ldb + l] : b[l * ldb + j])
                              : 0;
            if (j >= n) /* between rows: untouched */
                assert_memory_equal(&c[i * ldc + j], &old[i * ldc + j], sizeof(float));
            else
                assert_close("gemm", &c[i * ldc + j], &want, 1, 1e-5);
        }
    free(a), free(b), free(c), free(old);
}

static void check_gemm(struct device *d) {
    for (int i = 0; i < 8; i++) {
        check_gemm_of(d, i & 1, i & 2, 5, 7, 3, i & 4 ? 1 : 0);
        check_gemm_of(d, i & 1, i & 2, 1, 1, 1, i & 4 ? 1 : 0);
        check_gemm_of(d, i & 1, i & 2, 65, 33, 130, i & 4 ? 0.5f : 0);
    }
    for (int i = 0; i < 4; i++) { /* more than a block in each direction */
        check_gemm_of(d, i & 1, i & 2, 9, 1601, 391, 1);
        check_gemm_of(d, i & 1, i & 2, 203, 50, 391, 0);
    }
    check_gemm_of(d, false, false, 4, 4, 0, 0); /* no terms: zero */
}

static void check_sums(struct device *d) {
    for (size_t elems = 0; elems < 70000; elems = elems * 3 + 1) {
        float *x = floats(elems, 1, 1);
        double sum = 0, squares = 0, got;
        for (size_t i = 0; i < elems; i++) {
            sum += x[i];
            squares += (double)x[i] * x[i];
        }
        ops->sum(d, NULL, &got, x, elems);
        assert_float_equal(got, sum, 1e-10 * (1 + fabs(sum)));
        ops->sum_squares(d, NULL, &got, x, elems);
        assert_float_equal(got, squares, 1e-12 * (1 + squares));
        free(x);
    }
}

static void check_adamw_of(struct device *d, size_t elems) {
    float *p = floats(elems, 1, 1), *m = floats(elems, 1, 2), *v = floats(elems, 1, 3),
          *g = floats(elems, 1, 4);
    for (size_t i = 0; i < elems; i++)
        v[i] *= v[i];
    double *want = doubles(p, elems), *want_m = doubles(m, elems), *want_v = doubles(v, elems);
    struct dev_adamw a = {1e-2, 0.9, 0.999, 1e-8, 0.1, 0.25, 1 - 0.9 * 0.9, 1 - 0.999 * 0.999};
    for (size_t i = 0; i < elems; i++) {
        double grad = 0.25 * g[i];
        want_m[i] = 0.9 * want_m[i] + (1 - 0.9) * grad;
        want_v[i] = 0.999 * want_v[i] + (1 - 0.999) * grad * grad;
        want[i] -= 1e-2 * 0.1 * want[i];
        want[i] -= 1e-2 * (want_m[i] / a.correction1) / (sqrt(want_v[i] / a.correction2) + 1e-8);
    }
    ops->adamw(d, NULL, p, m, v, g, NULL, DTYPE_F32, elems, &a);
    assert_close("adamw exp_avg", m, want_m, elems, 2e-7);
    assert_close("adamw exp_avg_sq", v, want_v, elems, 2e-7);
    assert_close("adamw param", p, want, elems, 5e-7);
    free(p), free(m), free(v), free(g), free(want), free(want_m), free(want_v);
}

static void check_adamw(struct device *d) {
    check_adamw_of(d, 0);
    check_adamw_of(d, 1);
    check_adamw_of(d, 37);
    check_adamw_of(d, 20011);
    float p = 1, m = 0, v = 0, g = 0; /* a gradient of zero moves nothing, NaN shows */
    struct dev_adamw a = {1e-2, 0.9, 0.95, 1e-8, 0, 1, 0.1, 0.05};
    ops->adamw(d, NULL, &p, &m, &v, &g, NULL, DTYPE_F32, 1, &a);
    assert_true(p == 1 && m == 0 && v == 0);
    g = NAN;
    ops->adamw(d, NULL, &p, &m, &v, &g, NULL, DTYPE_F32, 1, &a);
    assert_true(isnan(p) && isnan(m) && isnan(v));
}

static void check_normal(struct device *d) {
    enum { ELEMS = 20001 };
    float *all = filled(ELEMS, NAN), *part = filled(ELEMS, NAN), *other = filled(ELEMS, NAN);
    double mean = 0, var = 0;
    ops->init_normal(d, NULL, all, ELEMS, 5, 6, 0, 0.5f, 2);
    for (size_t first = 0; first < ELEMS; first += 777) { /* any cut gives the same numbers */
        size_t elems = ELEMS - first < 777 ? ELEMS - first : 777;
        ops->init_normal(d, NULL, part + first, elems, 5, 6, first, 0.5f, 2);
    }
    assert_memory_equal(all, part, ELEMS * sizeof(float));
    for (size_t i = 0; i < ELEMS; i++)
        mean += all[i] / ELEMS;
    for (size_t i = 0; i < ELEMS; i++)
        var += (all[i] - mean) * (all[i] - mean) / ELEMS;
    assert_float_equal(mean, 0.5, 0.05);
    assert_float_equal(var, 4, 0.2);
    ops->init_normal(d, NULL, other, ELEMS, 5, 7, 0, 0.5f, 2);
    assert_memory_not_equal(all, other, 64);
    free(all), free(part), free(other);
}

static void layernorm_is_right(void **state) {
    (void)state;
    each_device(check_layernorm);
}
static void gelu_is_right(void **state) {
    (void)state;
    each_device(check_gelu);
}
static void bias_add_copy_fill_are_right(void **state) {
    (void)state;
    each_device(check_bias);
}
static void softmax_xent_is_right(void **state) {
    (void)state;
    each_device(check_xent);
}
static void embedding_is_right(void **state) {
    (void)state;
    each_device(check_embed);
}
static void gemm_is_right_and_never_reads_garbage(void **state) {
    (void)state;
    each_device(check_gemm);
}
/* The product of builds without BLAS, of each kind of kernels. */
static void plain_gemm_is_right(void **state) {
    (void)state;
    for (size_t i = 0; cpu_kernels_all[i] != NULL; i++) {
        struct cpu_kernels k = *cpu_kernels_all[i];
        struct device *d;
        if (!k.usable())
            continue;
        k.gemm = k.gemm_plain;
        assert_int_equal(cpu_open_with(&k, 3, &d), 0);
        check_gemm(d);
        ops->close(d);
    }
}
static void sums_are_right(void **state) {
    (void)state;
    each_device(check_sums);
}
static void adamw_is_right(void **state) {
    (void)state;
    each_device(check_adamw);
}
static void normal_numbers_depend_on_their_index_alone(void **state) {
    (void)state;
    each_device(check_normal);
}

/* Known answers of Random123. */
static void philox_gives_the_published_numbers(void **state) {
    (void)state;
    static const uint32_t tests[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
         0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1},
    };
    for (size_t i = 0; i < 3; i++) {
        uint32_t out[4];
        philox_4x32(tests[i], tests[i] + 4, out);
        assert_memory_equal(out, tests[i] + 6, sizeof(out));
    }
}

/* What a sum or a row gives must not depend on how many threads share the work. */
static void results_do_not_depend_on_the_threads(void **state) {
    (void)state;
    enum { N = 200, C = 411, MOST = 5 };
    float *in = floats(N * C, 1, 1), *dout = floats(N * C, 1, 2), *w = floats(C, 1, 3),
          *b = floats(C, 1, 4);
    float *want = NULL;
    for (uint32_t threads = 1; threads <= MOST; threads++) {
        struct device *d;
        assert_int_equal(ops->open(&(struct device_args){.threads = threads}, &d, NULL), 0);
        float *out = filled(2 * N * C + 2 * N + 3 * C + 4, 0), *rest = out + 2 * N * C;
        ops->layernorm_forward(d, NULL, DTYPE_F32, out, rest, rest + N, in, w, b, N, C, 1e-5f);
        ops->layernorm_backward(d, NULL, DTYPE_F32, DTYPE_F32, out + N * C, false, rest + 2 * N,
                                rest + 2 * N + C, dout, in, w, rest, rest + N, N, C);
        ops->bias_backward(d, NULL, DTYPE_F32, DTYPE_F32, rest + 2 * N + 2 * C, dout, N, C);
        double sums[2];
        ops->sum(d, NULL, &sums[0], in, N * C);
        ops->sum_squares(d, NULL, &sums[1], in, N * C);
        memcpy(rest + 2 * N + 3 * C, sums, sizeof(sums));
        if (threads == 1)
            want = out;
        else {
            assert_memory_equal(out, want, (2 * N * C + 2 * N + 3 * C + 4) * sizeof(float));
            free(out);
        }
        ops->close(d);
    }
    free(in), free(dout), free(w), free(b), free(want);
}

static void devices_are_found_by_name(void **state) {
    (void)state;
    const struct device_ops *found;
    struct device *d;
    struct err err = {0};
    assert_int_equal(device_find("cpu", &found, NULL, 0, &err), 0);
    assert_ptr_equal(found, &device_cpu);
    assert_int_equal(device_find("abacus", &found, NULL, 0, &err), -ENOENT);
    assert_non_null(strstr(err.text, "abacus"));
    err = (struct err){0};
    assert_int_equal(device_cpu.open(&(struct device_args){.threads = 0}, &d, &err), -EINVAL);
    assert_non_null(strstr(err.text, "threads"));
}

static void a_failure_can_be_asked_about(void **state) {
    (void)state;
    struct device *d;
    void *p = NULL;
    char why[200];
    assert_int_equal(ops->open(&(struct device_args){.threads = 1}, &d, NULL), 0);
    ops->why(d, why, sizeof(why));
    assert_string_equal(why, "");
    assert_int_equal(ops->alloc(d, DEV_MEM_DEVICE, SIZE_MAX / 4, "the arena", &p), -ENOMEM);
    assert_null(p);
    ops->why(d, why, sizeof(why));
    assert_non_null(strstr(why, "the arena"));
    ops->why(d, why, 4);
    assert_string_equal(why, "the");
    ops->close(d);
}

static void a_device_knows_its_properties(void **state) {
    (void)state;
    struct device *d;
    struct device_properties p;
    assert_int_equal(ops->open(&(struct device_args){.threads = 1}, &d, NULL), 0);
    memset(&p, 0xff, sizeof(p));
    assert_int_equal(ops->properties(d, &p), 0);
    assert_true(memchr(p.name, 0, sizeof(p.name)) != NULL && p.name[0] != '\0');
    assert_string_equal(p.id, "");
    assert_true(p.memory_bytes > 0 && p.memory_free_bytes <= p.memory_bytes);
    assert_true(ops->host_access);
    ops->close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layernorm_is_right),
        cmocka_unit_test(gelu_is_right),
        cmocka_unit_test(bias_add_copy_fill_are_right),
        cmocka_unit_test(softmax_xent_is_right),
        cmocka_unit_test(embedding_is_right),
        cmocka_unit_test(gemm_is_right_and_never_reads_garbage),
        cmocka_unit_test(plain_gemm_is_right),
        cmocka_unit_test(sums_are_right),
        cmocka_unit_test(adamw_is_right),
        cmocka_unit_test(normal_numbers_depend_on_their_index_alone),
        cmocka_unit_test(philox_gives_the_published_numbers),
        cmocka_unit_test(results_do_not_depend_on_the_threads),
        cmocka_unit_test(devices_are_found_by_name),
        cmocka_unit_test(a_failure_can_be_asked_about),
        cmocka_unit_test(a_device_knows_its_properties),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
