/* test_bf16.c - operations of the CPU device in bf16.
 *
 * But for products, an operation in bf16 computes what the same operation computes in f32 on the
 * same numbers, and rounds it: its results are those of f32, rounded, bit for bit. So these tests
 * need no tolerance, and every number of threads passes the same ones. */
#include "config.h"

#include <dirent.h>
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
#include "device_fixture.h"

static const struct device_ops *const ops = &device_cpu;

static const enum dtype T = DTYPE_BF16, F = DTYPE_F32;

static const size_t sizes[][2] = {{1, 1},   {1, 7},  {7, 15}, {3, 16},   {2, 17},
                                  {65, 33}, {1, 64}, {5, 65}, {70, 300}, {9, 1100}};
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

static void each_size(struct device *d, void (*check)(struct device *d, size_t N, size_t C)) {
    for (size_t i = 0; i < SIZES; i++)
        check(d, sizes[i][0], sizes[i][1]);
}

/* An array in bf16, and the same numbers in f32. */
struct both {
    uint16_t *b;
    float *f;
    size_t elems;
};

static struct both both(size_t elems, float scale, uint32_t seed) {
    struct both x = {malloc(elems * sizeof(uint16_t) + 1), floats(elems, scale, seed), elems};
    assert_non_null(x.b);
    for (size_t i = 0; i < elems; i++) {
        x.b[i] = bf16_from_f32(x.f[i]);
        x.f[i] = bf16_to_f32(x.b[i]);
    }
    return x;
}

static void both_free(struct both *x, size_t count) {
    for (size_t i = 0; i < count; i++) {
        free(x[i].b);
        free(x[i].f);
    }
}

/* b is f rounded, and becomes what later operations in f32 start from. */
static void assert_rounded(const char *what, struct both *x) {
    for (size_t i = 0; i < x->elems; i++) {
        if (x->b[i] != bf16_from_f32(x->f[i]))
            fail_msg("%s [%zu of %zu]: %.9g, expected %.9g rounded", what, i, x->elems,
                     (double)bf16_to_f32(x->b[i]), (double)x->f[i]);
        x->f[i] = bf16_to_f32(x->b[i]);
    }
}

static uint32_t bits_of(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    return bits;
}

static void assert_same(const char *what, const float *got, const float *want, size_t elems) {
    for (size_t i = 0; i < elems; i++)
        if (bits_of(got[i]) != bits_of(want[i]))
            fail_msg("%s [%zu of %zu]: %.9g, expected %.9g", what, i, elems, (double)got[i],
                     (double)want[i]);
}

/* All upper halves, with lower halves at, below and above the middle. */
static void check_cast(struct device *d) {
    static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    enum { LOWS = sizeof(low) / sizeof(low[0]), ELEMS = 65536 * LOWS + 5 };
    uint32_t *bits = malloc(ELEMS * sizeof(*bits));
    uint16_t *got = malloc(ELEMS * sizeof(*got));
    float *wide = filled(ELEMS, 0), *value = filled(ELEMS, 0);
    assert_true(bits != NULL && got != NULL);
    for (size_t i = 0; i < ELEMS; i++)
        bits[i] = (uint32_t)(i / LOWS) << 16 | low[i % LOWS];
    memcpy(value, bits, ELEMS * sizeof(*bits));
    assert_int_equal(ops->cast(d, NULL, got, T, value, F, ELEMS), 0);
    for (size_t i = 0; i < ELEMS; i++)
        if (got[i] != bf16_from_f32(value[i]))
            fail_msg("%08x becomes %04x, expected %04x", bits[i], got[i], bf16_from_f32(value[i]));
    assert_int_equal(ops->cast(d, NULL, wide, F, got, T, ELEMS), 0);
    for (size_t i = 0; i < ELEMS; i++)
        assert_int_equal(bits_of(wide[i]), (uint32_t)got[i] << 16);
    ops->cast(d, NULL, wide, F, value, F, ELEMS); /* a copy */
    assert_memory_equal(wide, value, ELEMS * sizeof(float));
    for (size_t elems = 0; elems < 40; elems++) { /* nothing beyond the end */
        got[elems] = 0xabcd;
        ops->cast(d, NULL, got, T, value, F, elems);
        assert_int_equal(got[elems], 0xabcd);
    }
    free(bits), free(got), free(wide), free(value);
}

/* 2.5 x 2^-133 lies between two denormals: nothing is flushed to zero. */
static void check_fill_and_add(struct device *d, size_t N, size_t C) {
    struct both x = both(N * C, 1, 1);
    float *sum = floats(N * C, 1, 2), *want = floats(N * C, 1, 2);
    ops->add(d, NULL, sum, x.b, T, N * C);
    ops->add(d, NULL, want, x.f, F, N * C);
    assert_same("add", sum, want, N * C);
    ops->fill(d, NULL, x.b, T, N * C, 1.00390625f); /* a tie: to even */
    for (size_t i = 0; i < N * C; i++)
        assert_int_equal(x.b[i], 0x3f80);
    ops->fill(d, NULL, x.b, T, N * C, 2.5f * 0x1p-133f);
    for (size_t i = 0; i < N * C; i++)
        assert_int_equal(x.b[i], 2);
    both_free(&x, 1), free(sum), free(want);
}

static void check_bias(struct device *d, size_t N, size_t C) {
    struct both x[] = {both(N * C, 1, 1), both(C, 1, 2), both(C, 1, 3)};
    float *wide = floats(C, 1, 4), *want = floats(C, 1, 4);
    ops->bias_backward(d, NULL, T, F, wide, x[0].b, N, C);
    ops->bias_backward(d, NULL, F, F, want, x[0].f, N, C);
    assert_same("bias_backward, f32 gradient", wide, want, C);
    ops->bias_backward(d, NULL, T, T, x[2].b, x[0].b, N, C);
    ops->bias_backward(d, NULL, F, F, x[2].f, x[0].f, N, C);
    assert_rounded("bias_backward", &x[2]);
    ops->bias_forward(d, NULL, T, x[0].b, x[1].b, N, C);
    ops->bias_forward(d, NULL, F, x[0].f, x[1].f, N, C);
    assert_rounded("bias_forward", &x[0]);
    both_free(x, 3), free(wide), free(want);
}

static void check_gelu(struct device *d, size_t N, size_t C) {
    struct both pre = both(N * C, 4, 1), bias = both(C, 1, 2), out = both(N * C, 1, 3),
                grad = both(N * C, 1, 4);
    ops->bias_gelu_forward(d, NULL, T, out.b, pre.b, bias.b, N, C);
    ops->bias_forward(d, NULL, F, pre.f, bias.f, N, C);
    assert_rounded("bias_gelu_forward pre", &pre);
    ops->bias_gelu_forward(d, NULL, F, out.f, pre.f, NULL, N, C);
    assert_rounded("bias_gelu_forward", &out);
    ops->bias_gelu_forward(d, NULL, T, out.b, pre.b, NULL, N, C);
    assert_rounded("bias_gelu_forward of stored", &out);
    assert_rounded("pre is only read", &pre);
    ops->gelu_backward(d, NULL, T, grad.b, pre.b, N, C);
    ops->gelu_backward(d, NULL, F, grad.f, pre.f, N, C);
    assert_rounded("gelu_backward", &grad);
    struct both all[] = {pre, bias, out, grad};
    both_free(all, 4);
}

static void check_residual(struct device *d, size_t N, size_t C) {
    struct both res = both(N * C, 1, 1), in = both(N * C, 1, 2), in_bias = both(C, 1, 3),
                w = both(C, 1, 4), b = both(C, 1, 5), sum = both(N * C, 1, 6),
                out = both(N * C, 1, 7);
    float *kept = filled(2 * N, NAN), *want = filled(2 * N, NAN), *scrap = filled(N * C, NAN);
    ops->residual_layernorm_forward(d, NULL, T, sum.b, out.b, kept, kept + N, res.b, in.b,
                                    in_bias.b, w.b, b.b, N, C, 1e-5f);
    ops->residual_layernorm_forward(d, NULL, F, sum.f, scrap, want, want + N, res.f, in.f,
                                    in_bias.f, w.f, b.f, N, C, 1e-5f);
    assert_rounded("residual sum", &sum); /* from here on the sum is the rounded one */
    ops->layernorm_forward(d, NULL, F, out.f, want, want + N, sum.f, w.f, b.f, N, C, 1e-5f);
    assert_rounded("norm of the stored sum", &out);
    assert_same("mean, rstd", kept, want, 2 * N);
    struct both all[] = {res, in, in_bias, w, b, sum, out};
    both_free(all, 7), free(kept), free(want), free(scrap);
}

static void check_layernorm(struct device *d, size_t N, size_t C) {
    struct both in = both(N * C, 2, 1), w = both(C, 1, 2), b = both(C, 1, 3),
                out = both(N * C, 1, 4), dout = both(N * C, 1, 5), din = both(N * C, 1, 6),
                dw = both(C, 1, 7), db = both(C, 1, 8);
    float *kept = filled(2 * N, NAN), *want = filled(2 * N, NAN);
    float *wide = floats(2 * C, 1, 9), *want_wide = floats(2 * C, 1, 9);
    ops->layernorm_forward(d, NULL, T, out.b, kept, kept + N, in.b, w.b, b.b, N, C, 1e-5f);
    ops->layernorm_forward(d, NULL, F, out.f, want, want + N, in.f, w.f, b.f, N, C, 1e-5f);
    assert_rounded("layernorm_forward", &out);
    assert_same("mean, rstd", kept, want, 2 * N);
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        ops->layernorm_backward(d, NULL, T, T, din.b, accumulate, dw.b, db.b, dout.b, in.b, w.b,
                                kept, kept + N, N, C);
        ops->layernorm_backward(d, NULL, F, F, din.f, accumulate, dw.f, db.f, dout.f, in.f, w.f,
                                kept, kept + N, N, C);
        assert_rounded("layernorm_backward in", &din);
        assert_rounded("layernorm_backward weight", &dw);
        assert_rounded("layernorm_backward bias", &db);
    }
    ops->layernorm_backward(d, NULL, T, F, din.b, false, wide, wide + C, dout.b, in.b, w.b, kept,
                            kept + N, N, C);
    ops->layernorm_backward(d, NULL, F, F, din.f, false, want_wide, want_wide + C, dout.f, in.f,
                            w.f, kept, kept + N, N, C);
    assert_same("layernorm_backward, f32 gradients", wide, want_wide, 2 * C);
    struct both all[] = {in, w, b, out, dout, din, dw, db};
    both_free(all, 8), free(kept), free(want), free(wide), free(want_wide);
}

static void check_embed_of(struct device *d, size_t B, size_t tokens_each, size_t C, size_t V) {
    size_t N = B * tokens_each, P = tokens_each + 2;
    struct both wte = both(V * C, 1, 1), wpe = both(P * C, 1, 2), out = both(N * C, 1, 3),
                dout = both(N * C, 1, 4), dwte = both(V * C, 1, 5), dwpe = both(P * C, 1, 6);
    float *wide = floats((V + P) * C, 1, 7), *want = floats((V + P) * C, 1, 7);
    int32_t *tokens = calloc(N + 1, sizeof(*tokens));
    assert_non_null(tokens);
    for (size_t n = 0; n < N; n++) /* some often, some once, some never */
        tokens[n] = (int32_t)(n * n * 7 % V);
    ops->embed_forward(d, NULL, T, out.b, tokens, wte.b, wpe.b, B, tokens_each, C);
    ops->embed_forward(d, NULL, F, out.f, tokens, wte.f, wpe.f, B, tokens_each, C);
    assert_rounded("embed_forward", &out);
    ops->embed_backward(d, NULL, T, T, dwte.b, dwpe.b, dout.b, tokens, B, tokens_each, C, V);
    ops->embed_backward(d, NULL, F, F, dwte.f, dwpe.f, dout.f, tokens, B, tokens_each, C, V);
    assert_rounded("embed_backward wte", &dwte);
    assert_rounded("embed_backward wpe", &dwpe);
    ops->embed_backward(d, NULL, T, F, wide, wide + V * C, dout.b, tokens, B, tokens_each, C, V);
    ops->embed_backward(d, NULL, F, F, want, want + V * C, dout.f, tokens, B, tokens_each, C, V);
    assert_same("embed_backward, f32 gradients", wide, want, (V + P) * C);
    struct both all[] = {wte, wpe, out, dout, dwte, dwpe};
    both_free(all, 6), free(wide), free(want), free(tokens);
}

static void check_embed(struct device *d) {
    check_embed_of(d, 1, 1, 1, 1);
    check_embed_of(d, 5, 13, 291, 11);
    check_embed_of(d, 2, 65, 7, 257);
    check_embed_of(d, 3, 100, 2053, 40); /* more than one part of a row in f32 */
}

static void check_xent_of(struct device *d, size_t N, size_t V) {
    size_t ldl = V + 3;
    struct both x = both(N * ldl, 5, 1);
    float *losses = filled(N, NAN), *want = filled(N, NAN);
    int32_t targets[8];
    for (size_t r = 0; r < N; r++)
        targets[r] = (int32_t)(r == 0 ? V - 1 : r * 7919 % V);
    for (int backward = 0; backward < 2; backward++) {
        ops->softmax_xent(d, NULL, T, losses, x.b, ldl, targets, N, V, 0.125f, backward);
        ops->softmax_xent(d, NULL, F, want, x.f, ldl, targets, N, V, 0.125f, backward);
        assert_same("losses", losses, want, N);
        assert_rounded("softmax_xent", &x); /* the numbers between rows among them */
    }
    both_free(&x, 1), free(losses), free(want);
}

static void check_xent(struct device *d) {
    check_xent_of(d, 1, 1);
    check_xent_of(d, 3, 2);
    check_xent_of(d, 7, 15);
    check_xent_of(d, 5, 257);
    check_xent_of(d, 2, 50257);
    uint16_t broken[40] = {[37] = 0x7fc0};
    float loss;
    ops->softmax_xent(d, NULL, T, &loss, broken, 40, (const int32_t[]){0}, 1, 40, 1, true);
    assert_true(isnan(loss) && isnan(bf16_to_f32(broken[0])) && isnan(bf16_to_f32(broken[39])));
}

static void check_attention_of(struct device *d, size_t B, size_t tokens, size_t C, size_t NH) {
    size_t N = B * tokens;
    size_t bytes = ops->attention_scratch_bytes(d, T, B, tokens, C, NH);
    size_t wide = ops->attention_scratch_bytes(d, F, B, tokens, C, NH);
    bytes = bytes > wide ? bytes : wide;
    struct both qkv = both(3 * N * C, 1, 1), dqkv = both(3 * N * C, 1, 2), out = both(N * C, 1, 3),
                dout = both(N * C, 1, 4);
    float *lse = filled(N * NH, NAN), *want = filled(N * NH, NAN),
          *scratch = filled(bytes / sizeof(float), NAN);
    ops->attention_forward(d, NULL, T, out.b, lse, qkv.b, scratch, B, tokens, C, NH);
    ops->attention_forward(d, NULL, F, out.f, want, qkv.f, scratch, B, tokens, C, NH);
    assert_same("lse", lse, want, N * NH);
    assert_rounded("attention_forward", &out);
    ops->attention_backward(d, NULL, T, dqkv.b, dout.b, out.b, lse, qkv.b, scratch, B, tokens, C,
                            NH);
    ops->attention_backward(d, NULL, F, dqkv.f, dout.f, out.f, lse, qkv.f, scratch, B, tokens, C,
                            NH);
    assert_rounded("attention_backward", &dqkv);
    struct both all[] = {qkv, dqkv, out, dout};
    both_free(all, 4), free(lse), free(want), free(scratch);
}

static void check_attention(struct device *d) {
    check_attention_of(d, 1, 1, 8, 1);
    check_attention_of(d, 2, 7, 24, 3);
    check_attention_of(d, 3, 65, 80, 2);
    check_attention_of(d, 1, 130, 256, 2);
}

static void check_adamw(struct device *d, size_t N, size_t C) {
    size_t elems = N * C;
    float *p = floats(elems, 1, 1), *m = floats(elems, 1, 2), *v = filled(elems, 0.25f),
          *g = floats(elems, 1, 4), *want = floats(elems, 1, 1);
    struct both copy = both(elems, 1, 5);
    struct dev_adamw a = {1e-2, 0.9, 0.999, 1e-8, 0.1, 0.25, 1 - 0.9 * 0.9, 1 - 0.999 * 0.999};
    ops->adamw(d, NULL, p, m, v, g, copy.b, T, elems, &a);
    memcpy(copy.f, p, elems * sizeof(*p));
    assert_rounded("adamw's copy", &copy);
    free(m), free(v);
    m = floats(elems, 1, 2), v = filled(elems, 0.25f);
    ops->adamw(d, NULL, want, m, v, g, copy.f, F, elems, &a);
    assert_same("a copy changes nothing", p, want, elems);
    assert_same("adamw's copy in f32", copy.f, p, elems);
    both_free(&copy, 1), free(p), free(m), free(v), free(g), free(want);
}

static void check_elementwise(struct device *d) {
    each_size(d, check_fill_and_add);
    each_size(d, check_bias);
    each_size(d, check_gelu);
    each_size(d, check_adamw);
}

static void check_norms(struct device *d) {
    each_size(d, check_residual);
    each_size(d, check_layernorm);
}

static void casts_round_to_nearest_even(void **state) {
    (void)state;
    each_device(check_cast);
}
static void elementwise_operations_round_once(void **state) {
    (void)state;
    each_device(check_elementwise);
}
static void norms_round_once(void **state) {
    (void)state;
    each_device(check_norms);
}
static void embedding_rounds_once(void **state) {
    (void)state;
    each_device(check_embed);
}
static void softmax_xent_rounds_once(void **state) {
    (void)state;
    each_device(check_xent);
}
static void attention_rounds_once(void **state) {
    (void)state;
    each_device(check_attention);
}

/* Products: by a library, in an order of its own. */
static struct device *bf16_device(uint32_t threads) {
    struct device *d;
    struct err err = {0};
    assert_int_equal(ops->open(&(struct device_args){.threads = threads}, &d, &err), 0);
    if (ops->supports(d, T, &err) == 0)
        return d;
    ops->close(d);
    print_message("skipped: %s\n", err.text);
    skip();
    return NULL;
}

struct product {
    bool trans_a, trans_b;
    size_t m, n, k, lda, ldb, ldc;
    float alpha, beta;
    enum dtype c_dtype;
};

static int multiply(struct device *d, const struct product *p, const uint16_t *a, const uint16_t *b,
                    void *c) {
    return ops->gemm(d, NULL, T, p->c_dtype, p->trans_a, p->trans_b, p->m, p->n, p->k, p->alpha, a,
                     p->lda, b, p->ldb, p->beta, c, p->ldc);
}

static float c_get(const struct product *p, const void *c, size_t i) {
    return p->c_dtype == T ? bf16_to_f32(((const uint16_t *)c)[i]) : ((const float *)c)[i];
}

/* Sums in f32 are off by little of what they add up; then one rounding. */
static void assert_product(const struct product *p, const struct both *a, const struct both *b,
                           const void *got, const void *old) {
    for (size_t i = 0; i < p->m; i++)
        for (size_t j = 0; j < p->ldc; j++) {
            size_t at = i * p->ldc + j;
            double x = c_get(p, got, at), before = c_get(p, old, at), sum = 0, size = 0;
            if (j >= p->n) { /* between rows: untouched */
                assert_true(x == before);
                continue;
            }
            for (size_t l = 0; l < p->k; l++) {
                double term = (double)(p->trans_a ? a->f[l * p->lda + i] : a->f[i * p->lda + l]) *
                              (p->trans_b ? b->f[j * p->ldb + l] : b->f[l * p->ldb + j]);
                sum += p->alpha * term;
                size += fabs(p->alpha * term);
            }
            if (p->beta != 0)
                sum += p->beta * before;
            double rounding = p->c_dtype == T ? 0x1p-8 * fabs(sum) : 0;
            if (!(fabs(x - sum) <= 2e-6 * (1 + size) + rounding))
                fail_msg("product %zu x %zu x %zu [%zu, %zu]: %.9g, expected %.9g", p->m, p->n,
                         p->k, i, j, x, sum);
        }
}

static void check_product(struct device *d, struct product p) {
    p.lda += p.trans_a ? p.m : p.k;
    p.ldb += p.trans_b ? p.k : p.n;
    p.ldc += p.n;
    /* one element further: aligned to nothing */
    struct both a = both((p.trans_a ? p.k : p.m) * p.lda + 1, 1, 1),
                b = both((p.trans_b ? p.n : p.k) * p.ldb + 1, 1, 2);
    struct both a1 = {a.b + 1, a.f + 1, 0}, b1 = {b.b + 1, b.f + 1, 0};
    size_t bytes = p.m * p.ldc * dtype_bytes(p.c_dtype);
    struct both c = both(p.m * p.ldc, 1, 3);
    char *got = malloc(bytes + 4), *old = malloc(bytes + 4);
    assert_non_null(got);
    assert_non_null(old);
    memcpy(old, p.c_dtype == T ? (void *)c.b : (void *)c.f, bytes);
    if (p.beta == 0)
        memset(old, 0xff, bytes); /* NaN */
    memcpy(got, old, bytes);
    for (size_t i = 0; i < p.m * (p.ldc - p.n); i++) { /* what lies between rows is a number */
        size_t at = i / (p.ldc - p.n) * p.ldc + p.n + i % (p.ldc - p.n);
        memset(got + at * dtype_bytes(p.c_dtype), 0, dtype_bytes(p.c_dtype));
        memset(old + at * dtype_bytes(p.c_dtype), 0, dtype_bytes(p.c_dtype));
    }
    assert_int_equal(multiply(d, &p, a1.b, b1.b, got), 0);
    assert_product(&p, &a1, &b1, got, old);
    struct both all[] = {a, b, c};
    both_free(all, 3), free(got), free(old);
}

static void products_are_right_and_never_read_garbage(void **state) {
    (void)state;
    static const size_t shapes[][3] = {{1, 1, 1},  {5, 7, 3},   {65, 33, 130},  {7, 257, 65},
                                       {64, 8, 0}, {1, 768, 9}, {300, 600, 100}};
    struct device *d = bf16_device(3);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (unsigned kind = 0; kind < 32; kind++) {
            struct product p = {.trans_a = kind & 1,
                                .trans_b = kind & 2,
                                .m = shapes[i][0],
                                .n = shapes[i][1],
                                .k = shapes[i][2],
                                .lda = kind & 4 ? 0 : 3,
                                .ldb = kind & 4 ? 0 : 1,
                                .ldc = kind & 4 ? 0 : 2,
                                .alpha = 1,
                                .beta = kind & 8 ? 1 : 0,
                                .c_dtype = kind & 16 ? T : F};
            check_product(d, p);
            p.alpha = 0.5f;
            p.beta *= 0.25f;
            if (kind % 7 == 0)
                check_product(d, p);
        }
    ops->close(d);
}

/* More shapes than are kept. */
static void products_of_many_shapes_are_right(void **state) {
    (void)state;
    struct device *d = bf16_device(1);
    for (size_t round = 0; round < 2; round++)
        for (size_t n = 1; n <= 300; n++)
            check_product(d, (struct product){.m = 3, .n = n, .k = 5, .alpha = 1, .c_dtype = T});
    ops->close(d);
}

static size_t thread_count(void) {
    DIR *tasks = opendir("/proc/self/task");
    size_t count = 0;
    assert_non_null(tasks);
    for (const struct dirent *e = readdir(tasks); e != NULL; e = readdir(tasks))
        count += e->d_name[0] != '.';
    closedir(tasks);
    return count;
}

static void products_depend_on_no_number_of_threads_and_start_none(void **state) {
    (void)state;
    enum { M = 700, N = 1300, K = 900 };
    struct both a = both(M * K, 1, 1), b = both(K * N, 1, 2);
    float *want = NULL;
    for (uint32_t threads = 1; threads <= 5; threads++) {
        struct device *d = bf16_device(threads);
        size_t before = thread_count();
        for (int again = 0; again < 2; again++) {
            float *c = filled(M * N, NAN);
            struct product p = {
                .m = M, .n = N, .k = K, .lda = K, .ldb = N, .ldc = N, .alpha = 1, .c_dtype = F};
            assert_int_equal(multiply(d, &p, a.b, b.b, c), 0);
            if (want == NULL)
                want = c;
            else {
                assert_same("product", c, want, M * N);
                free(c);
            }
        }
        assert_int_equal(thread_count(), before);
        ops->close(d);
    }
    free(want), both_free(&a, 1), both_free(&b, 1);
}

static void bf16_is_refused_with_the_reason(void **state) {
    (void)state;
    struct device *d;
    struct err err = {0};
    assert_int_equal(cpu_open_with(&cpu_kernels_base, 1, &d), 0);
    assert_int_equal(ops->supports(d, F, &err), 0);
    int rc = ops->supports(d, T, &err);
    if (cpu_has_bf16() && onednn_there())
        assert_int_equal(rc, 0);
    else {
        assert_int_equal(rc, -ENOTSUP);
        assert_non_null(strstr(err.text, "use dtype = f32"));
        assert_non_null(strstr(err.text, cpu_has_bf16() ? "oneDNN" : "it has: base"));
    }
    ops->close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(casts_round_to_nearest_even),
        cmocka_unit_test(elementwise_operations_round_once),
        cmocka_unit_test(norms_round_once),
        cmocka_unit_test(embedding_rounds_once),
        cmocka_unit_test(softmax_xent_rounds_once),
        cmocka_unit_test(attention_rounds_once),
        cmocka_unit_test(products_are_right_and_never_read_garbage),
        cmocka_unit_test(products_of_many_shapes_are_right),
        cmocka_unit_test(products_depend_on_no_number_of_threads_and_start_none),
        cmocka_unit_test(bf16_is_refused_with_the_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
