/* test_attention.c - causal attention of the CPU device against double precision and finite
 * differences. */
#include "config.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device_fixture.h"

static const struct device_ops *const ops = &device_cpu;

struct attention_case {
    size_t B, T, C, NH;
    const double *dout;
    double *out, *lse; /* may be NULL */
};

/* Softmax of one query's scores in place, hidden keys left out; returns the log-sum-exp. */
static double softmax(double *p, size_t count) {
    double max = -INFINITY, sum = 0;
    for (size_t j = 0; j < count; j++)
        max = fmax(max, p[j]);
    for (size_t j = 0; j < count; j++)
        sum += p[j] = exp(p[j] - max);
    for (size_t j = 0; j < count; j++)
        p[j] /= sum;
    return max + log(sum);
}

static double attention_loss(const double *qkv, void *arg) {
    const struct attention_case *c = arg;
    size_t D = c->C / c->NH, row = 3 * c->C;
    double loss = 0, p[512];
    for (size_t bh = 0; bh < c->B * c->NH; bh++) {
        size_t first = bh / c->NH * c->T, channel = bh % c->NH * D;
        const double *q = qkv + first * row + channel, *k = q + c->C, *v = k + c->C;
        for (size_t i = 0; i < c->T; i++) {
            for (size_t j = 0; j <= i; j++) {
                p[j] = 0;
                for (size_t d = 0; d < D; d++)
                    p[j] += q[i * row + d] * k[j * row + d] / sqrt((double)D);
            }
            double lse = softmax(p, i + 1);
            if (c->lse != NULL)
                c->lse[bh * c->T + i] = lse;
            for (size_t d = 0; d < D; d++) {
                double o = 0;
                for (size_t j = 0; j <= i; j++)
                    o += p[j] * v[j * row + d];
                size_t at = (first + i) * c->C + channel + d;
                loss += o * c->dout[at];
                if (c->out != NULL)
                    c->out[at] = o;
            }
        }
    }
    return loss;
}

static void check_attention_of(struct device *d, size_t B, size_t T, size_t C, size_t NH,
                               float scale) {
    size_t N = B * T,
           scratch_elems = ops->attention_scratch_bytes(d, DTYPE_F32, B, T, C, NH) / sizeof(float);
    float *qkv = floats(3 * N * C, scale, 1), *dout = floats(N * C, 1, 2),
          *out = filled(N * C, NAN);
    float *lse = filled(N * NH, NAN), *dqkv = filled(3 * N * C, NAN),
          *scratch = filled(scratch_elems, NAN);
    double *x = doubles(qkv, 3 * N * C), *dout_d = doubles(dout, N * C),
           *want = doubles(out, N * C);
    double *want_lse = doubles(lse, N * NH);
    struct attention_case c = {B, T, C, NH, dout_d, want, want_lse};
    attention_loss(x, &c);
    c.out = c.lse = NULL;

    ops->attention_forward(d, NULL, DTYPE_F32, out, lse, qkv, scratch, B, T, C, NH);
    assert_close("attention_forward", out, want, N * C, 3e-6 * scale);
    assert_close("attention_forward lse", lse, want_lse, N * NH, 2e-6 * scale);
    for (size_t i = 0; i < scratch_elems; i++)
        scratch[i] = NAN;
    ops->attention_backward(d, NULL, DTYPE_F32, dqkv, dout, out, lse, qkv, scratch, B, T, C, NH);
    for (size_t i = 0; i < 3 * N * C; i++)
        assert_false(isnan(dqkv[i]));
    assert_gradient("attention", dqkv, attention_loss, &c, x, 3 * N * C, N * C / 20 + 1,
                    2e-5 * scale);
    free(qkv), free(dout), free(out), free(lse), free(dqkv), free(scratch);
    free(x), free(dout_d), free(want), free(want_lse);
}

static void check_attention(struct device *d) {
    check_attention_of(d, 1, 1, 1, 1, 1);
    check_attention_of(d, 1, 1, 4, 2, 1);
    check_attention_of(d, 2, 7, 15, 3, 1);
    check_attention_of(d, 1, 16, 16, 1, 1);
    check_attention_of(d, 1, 64, 64, 1, 1);
    check_attention_of(d, 3, 65, 34, 2, 1);
    check_attention_of(d, 1, 130, 160, 2, 1);
    check_attention_of(d, 1, 200, 12, 3, 8); /* sharp: most probabilities are 0 */
}

static void attention_is_right(void **state) {
    (void)state;
    each_device(check_attention);
}

/* A token sees nothing of later ones, not even that they are broken. */
static void check_causal(struct device *d) {
    enum { T = 70, C = 32, NH = 2 };
    float *qkv = floats(T * 3 * C, 1, 1),
          *scratch =
              filled(ops->attention_scratch_bytes(d, DTYPE_F32, 1, T, C, NH) / sizeof(float), NAN);
    float out[T * C], again[T * C], lse[NH * T];
    ops->attention_forward(d, NULL, DTYPE_F32, out, lse, qkv, scratch, 1, T, C, NH);
    for (size_t i = 66 * 3 * C; i < T * 3 * C; i++)
        qkv[i] = 1e3f;
    ops->attention_forward(d, NULL, DTYPE_F32, again, lse, qkv, scratch, 1, T, C, NH);
    assert_memory_equal(out, again, 66 * C * sizeof(float));
    assert_memory_not_equal(out + 66 * C, again + 66 * C, C * sizeof(float));
    free(qkv), free(scratch);
}

static void attention_does_not_look_ahead(void **state) {
    (void)state;
    each_device(check_causal);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_is_right),
        cmocka_unit_test(attention_does_not_look_ahead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
