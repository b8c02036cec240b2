/* basic_cases.c - kernel cases of every operation but attention and the classifier's loss. */
#include "tests/cuda/kernel_cases.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* bf16 rounded once is off by at most 2^-8, of a value that was right to f32. */
static double once(enum dtype t) { return t == DTYPE_BF16 ? 4e-3 : 1e-5; }

/* Where an operation goes on from what it has stored as t, so does the reference: its tensor is
 * rounded in place. */
static int round_as_stored(struct kc_side *s, struct kc_tensor *x, size_t elems, enum dtype t) {
    void *rounded = kc_scratch(s, elems * dtype_bytes(t));
    if (rounded == NULL)
        return -ENOMEM;
    int rc = s->ops->cast(s->dev, s->stream, rounded, t, kc_at(s, x), DTYPE_F32, elems);
    return rc != 0 ? rc
                   : s->ops->cast(s->dev, s->stream, kc_at(s, x), DTYPE_F32, rounded, t, elems);
}

/* Ranges of elements: around whole vectors, more than a block, more than all blocks at once. */
static const size_t ranges[] = {0, 1, 7, 8, 65, 1000, 20003};
/* How far from an aligned address they begin; short ones need no more than one place. */
static const size_t shifts[] = {0, 1, 6};
static size_t shifts_of(size_t elems) { return elems < 65 ? 1 : COUNT(shifts); }

/* ---- fill, cast, add, copy ---- */

struct range_args {
    struct kc_tensor *dst, *src;
    enum dtype dst_dtype, src_dtype; /* on the device under test */
    size_t elems, skew;              /* dst begins at its element `skew` */
    float value;
};

static enum dtype dtype_on(const struct kc_side *s, enum dtype t) {
    return s->reference ? DTYPE_F32 : t;
}

static char *skewed(const struct kc_side *s, const struct range_args *a) {
    return (char *)kc_at(s, a->dst) + a->skew * dtype_bytes(dtype_on(s, a->dst_dtype));
}

static int run_fill(struct kc_side *s, const void *arg) {
    const struct range_args *a = arg;
    return s->ops->fill(s->dev, s->stream, kc_at(s, a->dst), s->t, a->elems, a->value);
}

static void fill_cases(struct kc_frame *f) {
    for (size_t t = 0; t < KC_TYPES_OF_T; t++)
        for (size_t i = 0; i < COUNT(ranges); i++)
            for (size_t j = 0; j < shifts_of(ranges[i]); j++) {
                struct kc *k = kc_begin(f, "fill", kc_types[t], "%zu elements, shift %zu",
                                        ranges[i], shifts[j]);
                if (k == NULL)
                    continue;
                kc_shift(k, shifts[j]);
                struct range_args a = {.dst = kc_out(k, "dst", KC_T, ranges[i]),
                                       .elems = ranges[i],
                                       .value = 1.2345678f};
                kc_limit(a.dst, 0);
                kc_check(k, run_fill, &a);
            }
}

static int run_cast(struct kc_side *s, const void *arg) {
    const struct range_args *a = arg;
    return s->ops->cast(s->dev, s->stream, skewed(s, a), dtype_on(s, a->dst_dtype),
                        kc_at(s, a->src), dtype_on(s, a->src_dtype), a->elems);
}

/* Ties of rounding both ways, the largest finite values, and what is not finite. */
static void hard_values(float *v, size_t elems) {
    static const float hard[] = {1.00390625f, 1.01171875f, -1.00390625f, 3.4028235e38f, -3.39e38f,
                                 1e-40f,      -0.0f,       INFINITY,     -INFINITY,     NAN};
    for (size_t i = 0; i < elems && i < COUNT(hard); i++)
        v[i * (elems / COUNT(hard) > 0 ? elems / COUNT(hard) : 1)] = hard[i];
}

static enum kc_type type_of(enum dtype t) { return t == DTYPE_BF16 ? KC_BF16 : KC_F32; }

static void cast_case(struct kc_frame *f, enum dtype to, enum dtype from, size_t elems,
                      size_t shift, size_t skew) {
    struct kc_types types = {to == DTYPE_BF16 ? to : from, to == DTYPE_BF16 ? to : from};
    struct kc *k = kc_begin(f, "cast", types, "%s to %s, %zu elements, shift %zu, skew %zu",
                            dtype_name(from), dtype_name(to), elems, shift, skew);
    if (k == NULL)
        return;
    kc_shift(k, shift);
    struct range_args a = {.dst = kc_inout(k, "dst", type_of(to), elems + skew, 1),
                           .src = kc_in(k, "src", type_of(from), elems, 3),
                           .dst_dtype = to,
                           .src_dtype = from,
                           .elems = elems,
                           .skew = skew};
    hard_values(kc_values(a.src), elems);
    kc_limit(a.dst, 0);
    kc_check(k, run_cast, &a);
}

static void cast_cases(struct kc_frame *f) {
    for (int pair = 0; pair < 4; pair++)
        for (size_t i = 0; i < COUNT(ranges); i++) {
            enum dtype to = pair & 1 ? DTYPE_BF16 : DTYPE_F32;
            enum dtype from = pair & 2 ? DTYPE_BF16 : DTYPE_F32;
            for (size_t j = 0; j < shifts_of(ranges[i]); j++)
                cast_case(f, to, from, ranges[i], shifts[j], 0);
            cast_case(f, to, from, ranges[i], 0, 3);
        }
}

static int run_add(struct kc_side *s, const void *arg) {
    const struct range_args *a = arg;
    return s->ops->add(s->dev, s->stream, kc_at(s, a->dst), kc_at(s, a->src), s->t, a->elems);
}

static void add_cases(struct kc_frame *f) {
    for (size_t t = 0; t < KC_TYPES_OF_T; t++)
        for (size_t i = 0; i < COUNT(ranges); i++)
            for (size_t j = 0; j < shifts_of(ranges[i]); j++) {
                struct kc *k = kc_begin(f, "add", kc_types[t], "%zu elements, shift %zu", ranges[i],
                                        shifts[j]);
                if (k == NULL)
                    continue;
                kc_shift(k, shifts[j]);
                struct range_args a = {.dst = kc_inout(k, "dst", KC_F32, ranges[i], 1),
                                       .src = kc_in(k, "src", KC_T, ranges[i], 1),
                                       .elems = ranges[i]};
                kc_limit(a.dst, 0);
                kc_check(k, run_add, &a);
            }
}

static int run_copy(struct kc_side *s, const void *arg) {
    const struct range_args *a = arg;
    return s->ops->copy(s->dev, s->stream, kc_at(s, a->dst), kc_at(s, a->src),
                        a->elems * dtype_bytes(s->t));
}

static void copy_cases(struct kc_frame *f) {
    for (size_t t = 0; t < KC_TYPES_OF_T; t++)
        for (size_t i = 0; i < COUNT(ranges); i++) {
            struct kc *k = kc_begin(f, "copy", kc_types[t], "%zu elements", ranges[i]);
            if (k == NULL)
                continue;
            struct range_args a = {.dst = kc_out(k, "dst", KC_T, ranges[i]),
                                   .src = kc_in(k, "src", KC_T, ranges[i], 1),
                                   .elems = ranges[i]};
            kc_limit(a.dst, 0);
            kc_check(k, run_copy, &a);
        }
}

/* ---- products ---- */

struct gemm_args {
    struct kc_tensor *a, *b, *c;
    bool trans_a, trans_b, c_f32;
    size_t m, n, k, lda, ldb, ldc;
    float alpha, beta;
};

static int run_gemm(struct kc_side *s, const void *arg) {
    const struct gemm_args *g = arg;
    return s->ops->gemm(s->dev, s->stream, s->t, g->c_f32 ? DTYPE_F32 : s->t, g->trans_a,
                        g->trans_b, g->m, g->n, g->k, g->alpha, kc_at(s, g->a), g->lda,
                        kc_at(s, g->b), g->ldb, g->beta, kc_at(s, g->c), g->ldc);
}

static void gemm_case(struct kc_frame *f, struct kc_types types, bool c_f32, size_t m, size_t n,
                      size_t kk, size_t more, unsigned how) {
    struct gemm_args g = {.trans_a = how & 1,
                          .trans_b = (how & 2) != 0,
                          .c_f32 = c_f32,
                          .m = m,
                          .n = n,
                          .k = kk,
                          .alpha = how & 4 ? 0.5f : 1,
                          .beta = how & 4 ? 1 : 0};
    g.lda = (g.trans_a ? m : kk) + more;
    g.ldb = (g.trans_b ? kk : n) + more;
    g.ldc = n + more;
    struct kc *k = kc_begin(f, "gemm", types, "%s%s m %zu n %zu k %zu, ld + %zu, beta %g%s",
                            g.trans_a ? "T" : "N", g.trans_b ? "T" : "N", m, n, kk, more,
                            (double)g.beta, c_f32 ? ", c f32" : "");
    if (k == NULL)
        return;
    g.a = kc_in(k, "a", KC_T, (g.trans_a ? kk : m) * g.lda, 1);
    g.b = kc_in(k, "b", KC_T, (g.trans_b ? n : kk) * g.ldb, 1);
    g.c = kc_inout(k, "c", c_f32 ? KC_F32 : KC_T, m * g.ldc, 1);
    if (c_f32)
        kc_limit(g.c, 1e-5);
    kc_check(k, run_gemm, &g);
}

static void gemm_cases(struct kc_frame *f) {
    static const size_t sizes[][4] = {
        {1, 1, 1, 0}, {7, 5, 3, 0}, {16, 24, 8, 8}, {65, 48, 40, 0}, {33, 257, 65, 5}};
    for (size_t t = 0; t < KC_TYPES_OF_T; t++)
        for (size_t i = 0; i < COUNT(sizes); i++)
            for (unsigned how = 0; how < 8; how++)
                for (int c_f32 = 0; c_f32 < (kc_types[t].t == DTYPE_BF16 ? 2 : 1); c_f32++)
                    gemm_case(f, kc_types[t], c_f32, sizes[i][0], sizes[i][1], sizes[i][2],
                              sizes[i][3], how);
    if (kc_large(f))
        for (size_t t = 0; t < KC_TYPES_OF_T; t++)
            for (unsigned how = 0; how < 4; how++)
                gemm_case(f, kc_types[t], false, 1024, 2304, 768, 0, how);
}

/* ---- embeddings ---- */

struct embed_args {
    struct kc_tensor *out, *wte, *wpe, *tokens;
    size_t B, T, C, V;
};

static int run_embed_forward(struct kc_side *s, const void *arg) {
    const struct embed_args *a = arg;
    return s->ops->embed_forward(s->dev, s->stream, s->t, kc_at(s, a->out), kc_at(s, a->tokens),
                                 kc_at(s, a->wte), kc_at(s, a->wpe), a->B, a->T, a->C);
}

static int run_embed_backward(struct kc_side *s, const void *arg) {
    const struct embed_args *a = arg;
    return s->ops->embed_backward(s->dev, s->stream, s->t, s->g, kc_at(s, a->wte), kc_at(s, a->wpe),
                                  kc_at(s, a->out), kc_at(s, a->tokens), a->B, a->T, a->C, a->V);
}

/* The context may be longer than T: the rest of wpe is not touched. */
enum { MORE_POSITIONS = 3 };

static void embed_forward_case(struct kc_frame *f, struct kc_types types, size_t B, size_t T,
                               size_t C, size_t V) {
    struct kc *k = kc_begin(f, "embed_forward", types, "B %zu T %zu C %zu V %zu", B, T, C, V);
    if (k == NULL)
        return;
    struct embed_args a = {kc_out(k, "out", KC_T, B * T * C),
                           kc_in(k, "wte", KC_T, V * C, 1),
                           kc_in(k, "wpe", KC_T, (T + MORE_POSITIONS) * C, 1),
                           kc_indices(k, "tokens", B * T, (int32_t)V),
                           B,
                           T,
                           C,
                           V};
    kc_limit(a.out, 0);
    kc_check(k, run_embed_forward, &a);
}

/* few: tokens are drawn from so many, so that they repeat. */
static void embed_backward_case(struct kc_frame *f, struct kc_types types, size_t B, size_t T,
                                size_t C, size_t V, size_t few) {
    struct kc *k = kc_begin(f, "embed_backward", types, "B %zu T %zu C %zu V %zu, %zu tokens", B, T,
                            C, V, few);
    if (k == NULL)
        return;
    struct embed_args a = {kc_in(k, "dout", KC_T, B * T * C, 1),
                           kc_inout(k, "dwte", KC_G, V * C, 1),
                           kc_inout(k, "dwpe", KC_G, (T + MORE_POSITIONS) * C, 1),
                           kc_indices(k, "tokens", B * T, (int32_t)few),
                           B,
                           T,
                           C,
                           V};
    int32_t *tokens = kc_index_values(a.tokens);
    for (size_t i = 0; i < B * T; i++) /* the last of the vocabulary among them */
        tokens[i] = (int32_t)(V - 1) - tokens[i];
    kc_limit(a.wte, once(types.g));
    kc_limit(a.wpe, once(types.g));
    kc_check(k, run_embed_backward, &a);
}

static void embed_cases(struct kc_frame *f) {
    static const size_t shapes[][5] = {
        /* B, T, C, V, tokens that occur */
        {1, 1, 8, 257, 257},   {1, 7, 7, 257, 3},   {3, 65, 12, 257, 257},
        {2, 65, 768, 257, 40}, {1, 7, 770, 257, 5}, {2, 65, 8, 50257, 50257},
        {1, 65, 7, 50257, 20}, {2, 550, 8, 257, 2}, {2, 33, 1, 1100000, 7},
        {1, 9, 4104, 20, 4},   {0, 65, 8, 257, 257}};
    for (size_t t = 0; t < KC_TYPES; t++)
        for (size_t i = 0; i < COUNT(shapes); i++) {
            const size_t *s = shapes[i];
            if (t < KC_TYPES_OF_T)
                embed_forward_case(f, kc_types[t], s[0], s[1], s[2], s[3]);
            embed_backward_case(f, kc_types[t], s[0], s[1], s[2], s[3], s[4]);
        }
    for (size_t t = 0; t < KC_TYPES && kc_large(f); t++) {
        embed_forward_case(f, kc_types[t], 8, 1024, 768, 50257);
        embed_backward_case(f, kc_types[t], 8, 1024, 768, 50257, 50257);
        embed_backward_case(f, kc_types[t], 8, 1024, 768, 50257, 300);
    }
}

/* ---- layer norm ---- */

struct norm_args {
    struct kc_tensor *sum, *out, *mean, *rstd, *residual, *in, *in_bias, *weight, *bias;
    struct kc_tensor *din, *dweight, *dbias, *dout;
    size_t N, C;
    bool accumulate;
    enum dtype t; /* of the device under test */
};

static const float norm_eps = 1e-5f;

static int run_layernorm_forward(struct kc_side *s, const void *arg) {
    const struct norm_args *a = arg;
    return s->ops->layernorm_forward(s->dev, s->stream, s->t, kc_at(s, a->out), kc_at(s, a->mean),
                                     kc_at(s, a->rstd), kc_at(s, a->in), kc_at(s, a->weight),
                                     kc_at(s, a->bias), a->N, a->C, norm_eps);
}

static int run_residual_layernorm_forward(struct kc_side *s, const void *arg) {
    const struct norm_args *a = arg;
    int rc = s->ops->residual_layernorm_forward(
        s->dev, s->stream, s->t, kc_at(s, a->sum), kc_at(s, a->out), kc_at(s, a->mean),
        kc_at(s, a->rstd), kc_at(s, a->residual), kc_at(s, a->in), kc_at(s, a->in_bias),
        kc_at(s, a->weight), kc_at(s, a->bias), a->N, a->C, norm_eps);
    if (rc == 0 && s->reference && a->t == DTYPE_BF16) {
        rc = round_as_stored(s, a->sum, a->N * a->C, a->t);
        if (rc == 0)
            rc = s->ops->layernorm_forward(
                s->dev, s->stream, s->t, kc_at(s, a->out), kc_at(s, a->mean), kc_at(s, a->rstd),
                kc_at(s, a->sum), kc_at(s, a->weight), kc_at(s, a->bias), a->N, a->C, norm_eps);
    }
    return rc;
}

static int run_layernorm_backward(struct kc_side *s, const void *arg) {
    const struct norm_args *a = arg;
    return s->ops->layernorm_backward(s->dev, s->stream, s->t, s->g, kc_at(s, a->din),
                                      a->accumulate, kc_at(s, a->dweight), kc_at(s, a->dbias),
                                      kc_at(s, a->dout), kc_at(s, a->in), kc_at(s, a->weight),
                                      kc_at(s, a->mean), kc_at(s, a->rstd), a->N, a->C);
}

static void norm_tensors(struct kc *k, struct norm_args *a, size_t N, size_t C) {
    a->N = N;
    a->C = C;
    a->out = kc_out(k, "out", KC_T, N * C);
    a->mean = kc_out(k, "mean", KC_F32, N);
    a->rstd = kc_out(k, "rstd", KC_F32, N);
    a->in = kc_in(k, "in", KC_T, N * C, 2);
    a->weight = kc_in(k, "weight", KC_T, C, 1);
    a->bias = kc_in(k, "bias", KC_T, C, 1);
}

/* broken: a row has a NaN, which must show in that row and in no other. */
static void layernorm_forward_case(struct kc_frame *f, struct kc_types types, size_t N, size_t C,
                                   size_t shift, bool broken) {
    struct kc *k = kc_begin(f, "layernorm_forward", types, "N %zu C %zu, shift %zu%s", N, C, shift,
                            broken ? ", a NaN" : "");
    if (k == NULL)
        return;
    struct norm_args a = {.N = 0};
    kc_shift(k, shift);
    norm_tensors(k, &a, N, C);
    kc_limit(a.out, once(types.t));
    kc_limit(a.mean, 1e-5);
    kc_limit(a.rstd, 1e-5);
    if (broken)
        kc_values(a.in)[N / 2 * C + C / 2] = NAN;
    kc_check(k, run_layernorm_forward, &a);
}

static void residual_case(struct kc_frame *f, struct kc_types types, size_t N, size_t C,
                          size_t shift) {
    struct kc *k =
        kc_begin(f, "residual_layernorm_forward", types, "N %zu C %zu, shift %zu", N, C, shift);
    if (k == NULL)
        return;
    struct norm_args a = {.t = types.t};
    kc_shift(k, shift);
    norm_tensors(k, &a, N, C);
    a.sum = kc_out(k, "sum", KC_T, N * C);
    a.residual = kc_in(k, "residual", KC_T, N * C, 2);
    a.in_bias = kc_in(k, "in_bias", KC_T, C, 1);
    kc_limit(a.sum, 0);
    kc_limit(a.out, once(types.t));
    kc_limit(a.mean, 1e-5);
    kc_limit(a.rstd, 1e-5);
    kc_check(k, run_residual_layernorm_forward, &a);
}

static void layernorm_backward_case(struct kc_frame *f, struct kc_types types, size_t N, size_t C,
                                    size_t shift, bool accumulate) {
    struct kc *k = kc_begin(f, "layernorm_backward", types, "N %zu C %zu, shift %zu%s", N, C, shift,
                            accumulate ? ", accumulates" : "");
    if (k == NULL)
        return;
    struct norm_args a = {.accumulate = accumulate};
    kc_shift(k, shift);
    norm_tensors(k, &a, N, C);
    kc_prepare(k, run_layernorm_forward, &a);
    a.dout = kc_in(k, "dout", KC_T, N * C, 1);
    a.din = accumulate ? kc_inout(k, "din", KC_T, N * C, 1) : kc_out(k, "din", KC_T, N * C);
    a.dweight = kc_inout(k, "dweight", KC_G, C, 1);
    a.dbias = kc_inout(k, "dbias", KC_G, C, 1);
    kc_limit(a.din, once(types.t));
    kc_limit(a.dweight, once(types.g));
    kc_limit(a.dbias, once(types.g));
    kc_check(k, run_layernorm_backward, &a);
}

static void norm_cases_of(struct kc_frame *f, size_t t, size_t N, size_t C, size_t shift) {
    if (t < KC_TYPES_OF_T) {
        layernorm_forward_case(f, kc_types[t], N, C, shift, false);
        residual_case(f, kc_types[t], N, C, shift);
        layernorm_backward_case(f, kc_types[t], N, C, shift, true);
    }
    layernorm_backward_case(f, kc_types[t], N, C, shift, false);
}

static void norm_cases(struct kc_frame *f) {
    /* one warp a row and several, one vector a thread and several, rows that no registers hold */
    static const size_t shapes[][2] = {
        {1, 1},    {1, 8},    {7, 7},    {65, 24},  {7, 100},  {65, 257},  {7, 256}, {7, 384},
        {65, 768}, {7, 1600}, {3, 3080}, {3, 6152}, {2, 8200}, {2, 16400}, {0, 768}, {300, 40}};
    for (size_t t = 0; t < KC_TYPES; t++) {
        for (size_t i = 0; i < COUNT(shapes); i++)
            norm_cases_of(f, t, shapes[i][0], shapes[i][1], 0);
        norm_cases_of(f, t, 7, 768, 1);
        if (kc_large(f)) {
            norm_cases_of(f, t, 8192, 768, 0);
            norm_cases_of(f, t, 3001, 1601, 0);
            norm_cases_of(f, t, 1000, 4096, 0);
        }
    }
    for (size_t t = 0; t < KC_TYPES_OF_T; t++) {
        layernorm_forward_case(f, kc_types[t], 7, 768, 0, true);
        layernorm_forward_case(f, kc_types[t], 7, 257, 0, true);
    }
}

/* ---- biases, GELU ---- */

struct bias_args {
    struct kc_tensor *inout, *out, *bias;
    size_t N, C;
    enum dtype t; /* of the device under test */
};

static int run_bias_forward(struct kc_side *s, const void *arg) {
    const struct bias_args *a = arg;
    return s->ops->bias_forward(s->dev, s->stream, s->t, kc_at(s, a->inout), kc_at(s, a->bias),
                                a->N, a->C);
}

static int run_bias_backward(struct kc_side *s, const void *arg) {
    const struct bias_args *a = arg;
    return s->ops->bias_backward(s->dev, s->stream, s->t, s->g, kc_at(s, a->bias), kc_at(s, a->out),
                                 a->N, a->C);
}

static int run_bias_gelu_forward(struct kc_side *s, const void *arg) {
    const struct bias_args *a = arg;
    void *out = kc_at(s, a->out), *pre = kc_at(s, a->inout);
    int rc = s->ops->bias_gelu_forward(s->dev, s->stream, s->t, out, pre,
                                       a->bias != NULL ? kc_at(s, a->bias) : NULL, a->N, a->C);
    if (rc == 0 && s->reference && a->t == DTYPE_BF16 && a->bias != NULL) {
        rc = round_as_stored(s, a->inout, a->N * a->C, a->t);
        if (rc == 0)
            rc = s->ops->bias_gelu_forward(s->dev, s->stream, s->t, out, pre, NULL, a->N, a->C);
    }
    return rc;
}

static int run_gelu_backward(struct kc_side *s, const void *arg) {
    const struct bias_args *a = arg;
    return s->ops->gelu_backward(s->dev, s->stream, s->t, kc_at(s, a->inout), kc_at(s, a->out),
                                 a->N, a->C);
}

static void bias_forward_case(struct kc_frame *f, struct kc_types types, size_t N, size_t C,
                              size_t shift) {
    struct kc *k = kc_begin(f, "bias_forward", types, "N %zu C %zu, shift %zu", N, C, shift);
    if (k == NULL)
        return;
    kc_shift(k, shift);
    struct bias_args a = {.inout = kc_inout(k, "inout", KC_T, N * C, 1),
                          .bias = kc_in(k, "bias", KC_T, C, 1),
                          .N = N,
                          .C = C};
    kc_limit(a.inout, 0);
    kc_check(k, run_bias_forward, &a);
}

static void bias_backward_case(struct kc_frame *f, struct kc_types types, size_t N, size_t C,
                               size_t shift) {
    struct kc *k = kc_begin(f, "bias_backward", types, "N %zu C %zu, shift %zu", N, C, shift);
    if (k == NULL)
        return;
    kc_shift(k, shift);
    struct bias_args a = {.bias = kc_inout(k, "dbias", KC_G, C, 1),
                          .out = kc_in(k, "dout", KC_T, N * C, 1),
                          .N = N,
                          .C = C};
    kc_limit(a.bias, once(types.g));
    kc_check(k, run_bias_backward, &a);
}

/* Far out on both sides, where exp overflows or is 0, and at 0. */
static void far_values(float *v, size_t elems) {
    static const float far[] = {-40, -10, -6, 0, 10, 40};
    for (size_t i = 0; i < COUNT(far) && elems > 64; i++)
        v[i * 11] = far[i];
}

static void gelu_forward_case(struct kc_frame *f, struct kc_types types, size_t N, size_t C,
                              size_t shift, bool with_bias) {
    struct kc *k = kc_begin(f, "bias_gelu_forward", types, "N %zu C %zu, shift %zu%s", N, C, shift,
                            with_bias ? "" : ", no bias");
    if (k == NULL)
        return;
    kc_shift(k, shift);
    struct bias_args a = {.out = kc_out(k, "out", KC_T, N * C), .N = N, .C = C, .t = types.t};
    kc_limit(a.out, once(types.t));
    a.inout = with_bias ? kc_inout(k, "pre", KC_T, N * C, 4) : kc_in(k, "pre", KC_T, N * C, 4);
    if (with_bias) {
        a.bias = kc_in(k, "bias", KC_T, C, 1);
        kc_limit(a.inout, 0);
    }
    kc_check(k, run_bias_gelu_forward, &a);
}

static void gelu_backward_case(struct kc_frame *f, struct kc_types types, size_t N, size_t C,
                               size_t shift, bool far) {
    struct kc *k = kc_begin(f, "gelu_backward", types, "N %zu C %zu, shift %zu%s", N, C, shift,
                            far ? ", far out" : "");
    if (k == NULL)
        return;
    kc_shift(k, shift);
    struct bias_args a = {.inout = kc_inout(k, "inout", KC_T, N * C, 1),
                          .out = kc_in(k, "pre", KC_T, N * C, 4),
                          .N = N,
                          .C = C};
    if (far)
        far_values(kc_values(a.out), N * C);
    kc_limit(a.inout, once(types.t));
    kc_check(k, run_gelu_backward, &a);
}

/* What is far out has exact results; a NaN stays one. The largest input would blur the limit. */
static void gelu_far_case(struct kc_frame *f, struct kc_types types) {
    struct kc *k = kc_begin(f, "bias_gelu_forward", types, "NaN, 0, 10, 40, 1e18");
    if (k == NULL)
        return;
    static const float x[] = {NAN, 0, 10, 40, 1e18f, NAN, 0, 10, 40, 1e18f, 10};
    struct bias_args a = {.out = kc_out(k, "out", KC_T, COUNT(x)),
                          .inout = kc_in(k, "pre", KC_T, COUNT(x), 1),
                          .N = 1,
                          .C = COUNT(x)};
    memcpy(kc_values(a.inout), x, sizeof x);
    kc_limit(a.out, 0);
    kc_check(k, run_bias_gelu_forward, &a);
}

static void bias_cases_of(struct kc_frame *f, size_t t, size_t N, size_t C, size_t shift) {
    if (t < KC_TYPES_OF_T) {
        bias_forward_case(f, kc_types[t], N, C, shift);
        gelu_forward_case(f, kc_types[t], N, C, shift, true);
        gelu_forward_case(f, kc_types[t], N, C, shift, false);
        gelu_backward_case(f, kc_types[t], N, C, shift, false);
    }
    bias_backward_case(f, kc_types[t], N, C, shift);
}

static void bias_cases(struct kc_frame *f) {
    static const size_t shapes[][2] = {{1, 1},    {7, 15},    {1, 768},  {65, 768},
                                       {65, 257}, {7, 12},    {300, 40}, {0, 24},
                                       {7, 3072}, {2, 50257}, {513, 8},  {1000, 3}};
    for (size_t t = 0; t < KC_TYPES; t++) {
        for (size_t i = 0; i < COUNT(shapes); i++)
            bias_cases_of(f, t, shapes[i][0], shapes[i][1], 0);
        bias_cases_of(f, t, 7, 768, 1);
        if (kc_large(f)) {
            bias_cases_of(f, t, 8192, 3072, 0);
            bias_cases_of(f, t, 4001, 769, 0);
        }
    }
    for (size_t t = 0; t < KC_TYPES_OF_T; t++) {
        gelu_backward_case(f, kc_types[t], 7, 24, 0, true);
        gelu_far_case(f, kc_types[t]);
    }
}

/* ---- sums, the optimizer, random numbers ---- */

struct sum_args {
    struct kc_tensor *out, *in;
    size_t elems;
};

static int run_sum(struct kc_side *s, const void *arg) {
    const struct sum_args *a = arg;
    return s->ops->sum(s->dev, s->stream, kc_at(s, a->out), kc_at(s, a->in), a->elems);
}

static int run_sum_squares(struct kc_side *s, const void *arg) {
    const struct sum_args *a = arg;
    return s->ops->sum_squares(s->dev, s->stream, kc_at(s, a->out), kc_at(s, a->in), a->elems);
}

static void sum_case(struct kc_frame *f, bool squares, size_t elems, size_t shift, bool broken) {
    struct kc *k = kc_begin(f, squares ? "sum_squares" : "sum", kc_types[0],
                            "%zu elements, shift %zu%s", elems, shift, broken ? ", a NaN" : "");
    if (k == NULL)
        return;
    kc_shift(k, shift);
    struct sum_args a = {kc_out(k, "out", KC_F64_HOST, 1), kc_in(k, "in", KC_F32, elems, 1), elems};
    if (broken)
        kc_values(a.in)[elems / 2] = NAN;
    kc_limit(a.out, 1e-12);
    kc_check(k, squares ? run_sum_squares : run_sum, &a);
}

static void sum_cases(struct kc_frame *f) {
    for (int squares = 0; squares < 2; squares++) {
        for (size_t i = 0; i < COUNT(ranges); i++)
            for (size_t j = 0; j < shifts_of(ranges[i]); j++)
                sum_case(f, squares, ranges[i], shifts[j], false);
        sum_case(f, squares, 1000, 0, true);
        if (kc_large(f))
            sum_case(f, squares, 30000001, 0, false);
    }
}

enum copy { COPY_NONE, COPY_F32, COPY_BF16, COPIES };

struct adamw_args {
    struct kc_tensor *param, *exp_avg, *exp_avg_sq, *grad, *copy;
    enum copy kind;
    size_t elems, skew; /* the copy begins at its element `skew` */
    struct dev_adamw a;
};

static int run_adamw(struct kc_side *s, const void *arg) {
    const struct adamw_args *a = arg;
    enum dtype t = dtype_on(s, a->kind == COPY_BF16 ? DTYPE_BF16 : DTYPE_F32);
    void *copy = a->copy != NULL ? (char *)kc_at(s, a->copy) + a->skew * dtype_bytes(t) : NULL;
    return s->ops->adamw(s->dev, s->stream, kc_at(s, a->param), kc_at(s, a->exp_avg),
                         kc_at(s, a->exp_avg_sq), kc_at(s, a->grad), copy, t, a->elems, &a->a);
}

static void adamw_case(struct kc_frame *f, enum copy kind, size_t elems, size_t shift, size_t skew,
                       bool broken) {
    static const char *const copies[] = {"no copy", "f32 copy", "bf16 copy"};
    struct kc *k = kc_begin(f, "adamw", kc_types[kind == COPY_BF16 ? 2 : 0],
                            "%zu elements, shift %zu, %s, skew %zu%s", elems, shift, copies[kind],
                            skew, broken ? ", a NaN" : "");
    if (k == NULL)
        return;
    kc_shift(k, shift);
    struct adamw_args a = {
        .param = kc_inout(k, "param", KC_F32, elems, 1),
        .exp_avg = kc_inout(k, "exp_avg", KC_F32, elems, 0.1f),
        .exp_avg_sq = kc_inout(k, "exp_avg_sq", KC_F32, elems, 0.01f),
        .grad = kc_in(k, "grad", KC_F32, elems, 1),
        .kind = kind,
        .elems = elems,
        .skew = skew,
        .a = {.lr = 3e-2,
              .beta1 = 0.9,
              .beta2 = 0.95,
              .eps = 1e-3,
              .weight_decay = 0.1,
              .grad_scale = 0.37,
              .correction1 = 1 - 0.9 * 0.9 * 0.9,
              .correction2 = 1 - 0.95 * 0.95 * 0.95},
    };
    for (size_t i = 0; i < elems; i++)
        kc_values(a.exp_avg_sq)[i] = fabsf(kc_values(a.exp_avg_sq)[i]);
    if (kind != COPY_NONE)
        a.copy = kc_inout(k, "copy", kind == COPY_BF16 ? KC_BF16 : KC_F32, elems + skew, 1);
    if (broken)
        kc_values(a.grad)[elems / 2] = NAN;
    kc_limit(a.param, 1e-6);
    kc_limit(a.exp_avg, 1e-6);
    kc_limit(a.exp_avg_sq, 1e-6);
    if (a.copy != NULL)
        kc_limit(a.copy, kind == COPY_BF16 ? once(DTYPE_BF16) : 1e-6);
    kc_check(k, run_adamw, &a);
}

static void adamw_cases(struct kc_frame *f) {
    for (enum copy kind = COPY_NONE; kind < COPIES; kind++) {
        for (size_t i = 0; i < COUNT(ranges); i++)
            for (size_t j = 0; j < shifts_of(ranges[i]); j++)
                adamw_case(f, kind, ranges[i], shifts[j], 0, false);
        if (kind != COPY_NONE)
            adamw_case(f, kind, 1000, 0, 3, false);
        if (kc_large(f))
            adamw_case(f, kind, 10000003, 1, 0, false);
    }
    adamw_case(f, COPY_BF16, 65, 0, 0, true);
}

struct init_args {
    struct kc_tensor *dst;
    size_t elems;
    uint64_t seed, sequence, first;
};

static int run_init_normal(struct kc_side *s, const void *arg) {
    const struct init_args *a = arg;
    return s->ops->init_normal(s->dev, s->stream, kc_at(s, a->dst), a->elems, a->seed, a->sequence,
                               a->first, 0.5f, 2.0f);
}

static void init_case(struct kc_frame *f, size_t elems, uint64_t first) {
    struct kc *k = kc_begin(f, "init_normal", kc_types[0], "%zu elements from %llu on", elems,
                            (unsigned long long)first);
    if (k == NULL)
        return;
    struct init_args a = {kc_out(k, "dst", KC_F32, elems), elems, UINT64_C(0x123456789abcdef0),
                          UINT64_C(0xfedcba9876543210), first};
    kc_limit(a.dst, 1e-6);
    kc_check(k, run_init_normal, &a);
}

static void init_cases(struct kc_frame *f) {
    static const uint64_t firsts[] = {0, 1, 2, 3, 6, (UINT64_C(1) << 34) - 5};
    for (size_t i = 0; i < COUNT(ranges); i++)
        for (size_t j = 0; j < COUNT(firsts); j++)
            init_case(f, ranges[i], firsts[j]);
}

void kc_basic_cases(struct kc_frame *f) {
    fill_cases(f);
    cast_cases(f);
    add_cases(f);
    copy_cases(f);
    gemm_cases(f);
    embed_cases(f);
    norm_cases(f);
    bias_cases(f);
    sum_cases(f);
    adamw_cases(f);
    init_cases(f);
}
