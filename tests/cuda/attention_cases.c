/* attention_cases.c - causal attention, and softmax with cross-entropy, on the device under test.
 *
 * A device that was opened with tensor cores takes other kernels for bf16 and heads of 64 and 128,
 * so the attention cases are worth a run on each kind of open device (`only` "attention"). */
#include <errno.h>
#include <math.h>

#include "tests/cuda/kernel_cases.h"

/* What the scores do along the sequence: the online softmax's maximum moves in every tile, or in
 * the first alone; or all are so low that exp(-lse) is beyond the range of floats. */
enum slope { FLAT, RISING, FALLING, LOW };

struct attention_case {
    size_t B, T, NH, D;
    float scale; /* of qkv */
    enum slope slope;
};

struct attention_args {
    struct kc_tensor *qkv, *dout; /* (B,T,3C), (B,T,C) */
    struct kc_tensor *out, *lse;  /* (B,T,C), (B,NH,T) */
    struct kc_tensor *dqkv;
    size_t B, T, C, NH;
    size_t before; /* sequences in front of these, on the device under test; their content is NaN */
};

static int run_forward(struct kc_side *s, const void *arg) {
    const struct attention_args *a = arg;
    void *scratch =
        kc_scratch(s, s->ops->attention_scratch_bytes(s->dev, s->t, a->B, a->T, a->C, a->NH));
    if (scratch == NULL)
        return -ENOMEM;
    return s->ops->attention_forward(s->dev, s->stream, s->t, kc_at(s, a->out), kc_at(s, a->lse),
                                     kc_at(s, a->qkv), scratch, a->B, a->T, a->C, a->NH);
}

static int run_backward(struct kc_side *s, const void *arg) {
    const struct attention_args *a = arg;
    void *scratch =
        kc_scratch(s, s->ops->attention_scratch_bytes(s->dev, s->t, a->B, a->T, a->C, a->NH));
    if (scratch == NULL)
        return -ENOMEM;
    return s->ops->attention_backward(s->dev, s->stream, s->t, kc_at(s, a->dqkv), kc_at(s, a->dout),
                                      kc_at(s, a->out), kc_at(s, a->lse), kc_at(s, a->qkv), scratch,
                                      a->B, a->T, a->C, a->NH);
}

/* q's channel 0 is 8, k's is t / 16, falling or rising: T 130 and D 64 give a range of e^8. LOW:
 * all scores are about -96. */
static void slope_set(struct kc_tensor *qkv, const struct attention_case *c) {
    size_t C = c->NH * c->D;
    float *v = kc_values(qkv), low = -12 * sqrtf((float)c->D);
    for (size_t row = 0; row < c->B * c->T && c->slope != FLAT; row++)
        for (size_t h = 0; h < c->NH; h++) {
            float x = (float)(row % c->T) / 16;
            v[row * 3 * C + h * c->D] = 8;
            v[row * 3 * C + C + h * c->D] = c->slope == RISING ? x : c->slope == FALLING ? -x : low;
        }
}

static struct kc *attention_begin(struct kc_frame *f, const char *name, struct kc_types types,
                                  const struct attention_case *c) {
    static const char *const slopes[] = {"", " rising", " falling", " low"};
    return kc_begin(f, name, types, "B %zu T %zu NH %zu D %zu%s%s", c->B, c->T, c->NH, c->D,
                    slopes[c->slope], c->scale > 1 ? " sharp" : "");
}

/* A score of 96 has fewer digits behind the point; the case is about what overflows. */
static double limit_of(struct kc_types types, const struct attention_case *c) {
    bool f32 = types.t == DTYPE_F32;
    return c->slope == LOW ? (f32 ? 1e-2 : 0.1) : (f32 ? 1e-5 : 2e-2);
}

static struct attention_args attention_args_of(struct kc *k, struct kc_types types,
                                               const struct attention_case *c) {
    size_t C = c->NH * c->D, N = c->B * c->T;
    struct attention_args a = {.B = c->B, .T = c->T, .C = C, .NH = c->NH};
    a.qkv = kc_in(k, "qkv", KC_T, N * 3 * C, c->scale);
    slope_set(a.qkv, c);
    a.out = kc_out(k, "out", KC_T, N * C);
    a.lse = kc_out(k, "lse", KC_F32, c->B * c->NH * c->T);
    kc_limit(a.lse, 1e-5); /* no rounding to bf16 precedes it */
    kc_limit(a.out, limit_of(types, c));
    return a;
}

static void forward_case(struct kc_frame *f, struct kc_types types,
                         const struct attention_case *c) {
    struct kc *k = attention_begin(f, "attention_forward", types, c);
    if (k == NULL)
        return;
    struct attention_args a = attention_args_of(k, types, c);
    kc_check(k, run_forward, &a);
}

static void backward_case(struct kc_frame *f, struct kc_types types,
                          const struct attention_case *c) {
    struct kc *k = attention_begin(f, "attention_backward", types, c);
    if (k == NULL)
        return;
    struct attention_args a = attention_args_of(k, types, c);
    kc_prepare(k, run_forward, &a);
    a.dout = kc_in(k, "dout", KC_T, a.B * a.T * a.C, 1);
    a.dqkv = kc_out(k, "dqkv", KC_T, a.B * a.T * 3 * a.C);
    kc_limit(a.dqkv, limit_of(types, c));
    kc_check(k, run_backward, &a);
}

/* Shapes around the tiles of the kernels, which are of 32, 64 and 128 tokens and of 64 and 128
 * channels. */
static const struct attention_case attention_cases[] = {
    {1, 1, 1, 8, 1, FLAT},    {2, 1, 3, 64, 1, FLAT},      {1, 1, 2, 128, 1, FLAT},
    {1, 7, 3, 8, 1, FLAT},    {2, 7, 2, 24, 1, FLAT},      {1, 7, 2, 64, 1, FLAT},
    {2, 7, 1, 128, 1, FLAT},  {1, 64, 1, 64, 1, FLAT},     {1, 32, 1, 128, 1, FLAT},
    {2, 65, 2, 8, 1, FLAT},   {1, 65, 2, 24, 1, RISING},   {1, 65, 2, 64, 1, FLAT},
    {1, 65, 1, 72, 1, FLAT},  {2, 65, 1, 128, 1, FLAT},    {1, 130, 2, 8, 4, FLAT},
    {1, 130, 1, 24, 1, FLAT}, {1, 130, 1, 64, 1, RISING},  {1, 130, 1, 64, 1, FALLING},
    {1, 128, 1, 64, 2, FLAT}, {1, 130, 1, 128, 1, RISING}, {2, 200, 1, 64, 1, FLAT},
    {1, 65, 1, 64, 1, LOW},   {1, 33, 1, 128, 1, LOW},
};
static const struct attention_case attention_large_cases[] = {
    {8, 1024, 12, 64, 1, FLAT},
    {2, 1000, 16, 128, 1, FLAT},
    {1, 4096, 4, 64, 1, RISING},
    {3, 777, 5, 40, 1, FLAT},
};

/* ---- more elements than 32 bits count ---- */

/* Bytes of the sequences in front, and of these. */
static size_t far_bytes(const struct attention_args *a, size_t elem_bytes, size_t columns) {
    return (a->before + a->B) * a->T * columns * elem_bytes;
}

/* Memory for the sequences in front and these, which are copied from x unless that is NULL. */
static unsigned char *far_place(struct kc_side *s, const struct attention_args *a,
                                const struct kc_tensor *x, size_t elem_bytes, size_t columns,
                                int *rc) {
    size_t bytes = far_bytes(a, elem_bytes, columns), own = a->B * a->T * columns * elem_bytes;
    unsigned char *p = kc_scratch(s, bytes);
    if (p == NULL)
        *rc = -ENOMEM;
    if (p != NULL && x != NULL && *rc == 0)
        *rc = s->ops->copy(s->dev, s->stream, p + bytes - own, kc_at(s, x), own);
    return p;
}

/* What lies in the memory of far_place for these sequences comes to x. */
static int far_take(struct kc_side *s, const struct attention_args *a, const struct kc_tensor *x,
                    const unsigned char *p, size_t elem_bytes, size_t columns) {
    size_t bytes = far_bytes(a, elem_bytes, columns), own = a->B * a->T * columns * elem_bytes;
    return s->ops->copy(s->dev, s->stream, kc_at(s, x), p + bytes - own, own);
}

static int run_far(struct kc_side *s, const void *arg) {
    const struct attention_args *a = arg;
    if (s->reference)
        return a->dqkv == NULL ? run_forward(s, arg) : run_backward(s, arg);
    size_t B = a->before + a->B, C = a->C, elem = dtype_bytes(s->t);
    int rc = 0;
    unsigned char *qkv = far_place(s, a, a->qkv, elem, 3 * C, &rc);
    unsigned char *out = far_place(s, a, a->dqkv == NULL ? NULL : a->out, elem, C, &rc);
    unsigned char *lse = far_place(s, a, a->dqkv == NULL ? NULL : a->lse, 4, a->NH, &rc);
    void *scratch = kc_scratch(s, s->ops->attention_scratch_bytes(s->dev, s->t, B, a->T, C, a->NH));
    if (rc != 0 || scratch == NULL)
        return rc != 0 ? rc : -ENOMEM;
    if (a->dqkv == NULL) {
        rc = s->ops->attention_forward(s->dev, s->stream, s->t, out, (float *)(void *)lse, qkv,
                                       scratch, B, a->T, C, a->NH);
        if (rc == 0)
            rc = far_take(s, a, a->out, out, elem, C);
        return rc == 0 ? far_take(s, a, a->lse, lse, 4, a->NH) : rc;
    }
    unsigned char *dout = far_place(s, a, a->dout, elem, C, &rc);
    unsigned char *dqkv = far_place(s, a, NULL, elem, 3 * C, &rc);
    if (rc == 0)
        rc = s->ops->attention_backward(s->dev, s->stream, s->t, dqkv, dout, out,
                                        (const float *)(const void *)lse, qkv, scratch, B, a->T, C,
                                        a->NH);
    return rc == 0 ? far_take(s, a, a->dqkv, dqkv, elem, 3 * C) : rc;
}

/* The last sequence of so many that qkv has more than 2^32 elements. */
static void far_case(struct kc_frame *f, bool backward) {
    static const struct attention_case c = {1, 65, 12, 64, 1, FLAT};
    struct kc_types bf16 = kc_types[1];
    size_t sequence_elems = c.T * 3 * c.NH * c.D;
    size_t before = ((size_t)1 << 32) / sequence_elems + 1;
    struct kc *k = kc_begin(f, backward ? "attention_backward" : "attention_forward", bf16,
                            "B %zu T %zu NH %zu D %zu, the last", before + 1, c.T, c.NH, c.D);
    if (k == NULL)
        return;
    struct attention_args a = attention_args_of(k, bf16, &c);
    a.before = before;
    if (kc_skip_without(k, before * sequence_elems * (backward ? 6 : 3)))
        return;
    if (backward) {
        kc_prepare(k, run_forward, &a);
        a.dout = kc_in(k, "dout", KC_T, a.B * a.T * a.C, 1);
        a.dqkv = kc_out(k, "dqkv", KC_T, a.B * a.T * 3 * a.C);
    }
    kc_check(k, run_far, &a);
}

static void attention_both(struct kc_frame *f, const struct attention_case *c, size_t count) {
    for (size_t i = 0; i < count; i++)
        for (size_t t = 0; t < KC_TYPES_OF_T; t++) {
            forward_case(f, kc_types[t], &c[i]);
            backward_case(f, kc_types[t], &c[i]);
        }
}

void kc_attention_cases(struct kc_frame *f) {
    attention_both(f, attention_cases, sizeof attention_cases / sizeof attention_cases[0]);
    if (!kc_large(f))
        return;
    attention_both(f, attention_large_cases,
                   sizeof attention_large_cases / sizeof attention_large_cases[0]);
    far_case(f, false);
    far_case(f, true);
}

/* ---- softmax with cross-entropy ---- */

struct xent_case {
    size_t N, V;
    size_t gap;   /* elements between two rows */
    size_t shift; /* elements by which the first row misses an aligned address */
    float range;  /* of the logits */
};

struct xent_args {
    struct kc_tensor *losses, *logits, *targets;
    size_t N, V, ldl;
    bool backward;
    size_t far_ldl; /* 0, or the elements from row to row on the device under test */
};

static const float xent_scale = 0.25f;

static int run_xent(struct kc_side *s, const void *arg) {
    const struct xent_args *a = arg;
    return s->ops->softmax_xent(s->dev, s->stream, s->t, kc_at(s, a->losses), kc_at(s, a->logits),
                                a->ldl, kc_at(s, a->targets), a->N, a->V, xent_scale, a->backward);
}

/* One row a tensor, or two with more than 2^32 elements from one to the next. */
static int run_xent_far(struct kc_side *s, const void *arg) {
    const struct xent_args *a = arg;
    if (s->reference)
        return run_xent(s, arg);
    size_t elem = dtype_bytes(s->t), row_bytes = a->V * elem, step = a->far_ldl * elem;
    unsigned char *p = kc_scratch(s, (a->N - 1) * step + row_bytes), *logits = kc_at(s, a->logits);
    int rc = p == NULL ? -ENOMEM : 0;
    for (size_t i = 0; i < a->N && rc == 0; i++)
        rc = s->ops->copy(s->dev, s->stream, p + i * step, logits + i * row_bytes, row_bytes);
    if (rc == 0)
        rc = s->ops->softmax_xent(s->dev, s->stream, s->t, kc_at(s, a->losses), p, a->far_ldl,
                                  kc_at(s, a->targets), a->N, a->V, xent_scale, a->backward);
    for (size_t i = 0; i < a->N && rc == 0; i++)
        rc = s->ops->copy(s->dev, s->stream, logits + i * row_bytes, p + i * step, row_bytes);
    return rc;
}

static struct xent_args xent_args_of(struct kc *k, struct kc_types types, const struct xent_case *c,
                                     bool backward) {
    struct xent_args a = {.N = c->N, .V = c->V, .ldl = c->V + c->gap, .backward = backward};
    a.losses = kc_out(k, "losses", KC_F32, c->N);
    a.logits = kc_inout(k, "logits", KC_T, c->N * a.ldl, c->range);
    a.targets = kc_indices(k, "targets", c->N, (int32_t)c->V);
    kc_limit(a.losses, 1e-5);
    /* The target's share is most of the norm of a gradient, so the limit is near the rounding. */
    kc_limit(a.logits, !backward ? 0 : types.t == DTYPE_BF16 ? 4e-3 : 1e-6);
    int32_t *targets = kc_index_values(a.targets);
    targets[0] = (int32_t)c->V - 1;
    if (c->N > 1)
        targets[1] = 0;
    float *logits = kc_values(a.logits);
    for (size_t row = 0; row < c->N; row++)
        for (size_t i = c->V; i < a.ldl; i++)
            logits[row * a.ldl + i] = NAN; /* neither read nor written */
    return a;
}

static void xent_case(struct kc_frame *f, struct kc_types types, const struct xent_case *c,
                      bool backward) {
    struct kc *k =
        kc_begin(f, "softmax_xent", types, "N %zu V %zu ldl %zu shift %zu range %g%s", c->N, c->V,
                 c->V + c->gap, c->shift, (double)c->range, backward ? "" : " forward only");
    if (k == NULL)
        return;
    struct xent_args a = xent_args_of(k, types, c, backward);
    kc_shift(k, c->shift);
    kc_check(k, run_xent, &a);
}

static void xent_far_case(struct kc_frame *f) {
    static const struct xent_case c = {2, 50257, 0, 0, 4};
    struct kc_types bf16 = kc_types[1];
    size_t far_ldl = ((size_t)1 << 32) + 3;
    struct kc *k = kc_begin(f, "softmax_xent", bf16, "N %zu V %zu ldl %zu", c.N, c.V, far_ldl);
    if (k == NULL || kc_skip_without(k, far_ldl * 2))
        return;
    struct xent_args a = xent_args_of(k, bf16, &c, true);
    a.far_ldl = far_ldl;
    kc_check(k, run_xent_far, &a);
}

/* Rows that begin at every place within a vector, rows without a whole vector, and both numbers of
 * threads a row. */
static const struct xent_case xent_cases[] = {
    {3, 1, 0, 0, 1},     {5, 3, 0, 1, 2},      {9, 7, 0, 0, 4},      {2, 8, 8, 0, 4},
    {9, 257, 0, 0, 4},   {4, 257, 7, 3, 20},   {5, 257, 255, 0, 4},  {2, 1000, 24, 0, 40},
    {3, 50257, 0, 0, 4}, {3, 50257, 47, 0, 8}, {2, 50257, 0, 5, 20},
};

void kc_softmax_xent_cases(struct kc_frame *f) {
    static const struct xent_case large = {4096, 50257, 47, 0, 8};
    for (size_t i = 0; i < sizeof xent_cases / sizeof xent_cases[0]; i++)
        for (size_t t = 0; t < KC_TYPES_OF_T; t++) {
            xent_case(f, kc_types[t], &xent_cases[i], true);
            xent_case(f, kc_types[t], &xent_cases[i], false);
        }
    if (!kc_large(f))
        return;
    for (size_t t = 0; t < KC_TYPES_OF_T; t++)
        xent_case(f, kc_types[t], &large, true);
    xent_far_case(f);
}
