/* gpt2_run.c - forward and backward of GPT-2's modules, as sequences of device operations over one
 * arena.
 *
 * Kept from forward for backward: the residual stream between modules, q|k|v, the attention's
 * output and log-sum-exp, and the MLP before its activation: 2 + 3 + 1 + F/C times (N, C) a block.
 * Layer norms and activations are made again in backward, which costs less than to write and read
 * them. What a module adds to the residual stream, and the bias of its projection, are left to the
 * next one, which adds them in the same pass as its layer norm: so the last words of forward of one
 * module are said by the next. N = B * T rows, C width, F inner, V vocabulary, L layers. */
#include "config.h"

#include <errno.h>

#include "model/gpt2.h"

/* Logits of so many rows exist at a time: enough for the products to run at full speed. */
enum { LOGITS_ROWS = 512, ALIGN_BYTES = 256, LOGITS_ALIGN_ELEMS = 64 };

/* Offsets in bytes into the arena. What has no dtype in its comment is of t. */
struct plan {
    size_t B, T, N, C, F, V, NH;
    size_t elem_bytes; /* of t */
    size_t x;          /* (2L + 1, N, C): before each attention and MLP, and before the head */
    size_t mean, rstd; /* (2L + 1, N) f32 of the layer norm that reads x */
    size_t qkv;        /* (L, N, 3C) */
    size_t att;        /* (L, N, C) */
    size_t lse;        /* (L, B, NH, T) f32 */
    size_t pre;        /* (L, N, F) */
    size_t losses;     /* (N) f32 */
    size_t norm;       /* (N, C) output of a layer norm */
    size_t dx;         /* (N, C) gradient of the residual stream */
    size_t tmp;        /* (N, C) what a module adds to x; gradient of a layer norm's output */
    size_t tmp_bias;   /* (C) the bias that comes with it */
    /* Working memory of one module; the head's logits lie over that of the blocks. */
    size_t act, dact;                /* (N, F) */
    size_t dqkv, datt, attn_scratch; /* (N, 3C), (N, C) */
    size_t logits;                   /* (logits_rows, V), a row every ldl */
    size_t x_bytes, qkv_bytes, att_bytes, lse_bytes, pre_bytes,
        rows_bytes; /* of one layer, aligned */
    size_t logits_rows, ldl;
    size_t bytes;
};

static size_t aligned(size_t bytes) {
    return (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

static size_t take(size_t *at, size_t bytes) {
    size_t offset = *at;
    *at += aligned(bytes);
    return offset;
}

static size_t largest(size_t a, size_t b, size_t c) {
    size_t ab = a > b ? a : b;
    return ab > c ? ab : c;
}

static struct plan plan_of(const struct gpt2 *g, const struct device_ops *ops, struct device *d,
                           enum dtype t, size_t B, size_t T) {
    const struct gpt2_shape *s = &g->shape;
    size_t L = s->layers, N = B * T, C = s->width, F = s->inner, at = 0, e = dtype_bytes(t);
    struct plan p = {
        .B = B, .T = T, .N = N, .C = C, .F = F, .V = s->vocab, .NH = s->heads, .elem_bytes = e};
    p.x_bytes = aligned(N * C * e);
    p.rows_bytes = aligned(N * sizeof(float));
    p.qkv_bytes = aligned(3 * N * C * e);
    p.att_bytes = aligned(N * C * e);
    p.lse_bytes = aligned(N * s->heads * sizeof(float));
    p.pre_bytes = aligned(N * F * e);
    p.logits_rows = ops->logits_rows != 0 ? ops->logits_rows : LOGITS_ROWS;
    p.logits_rows = N < p.logits_rows ? N : p.logits_rows;
    /* Products are slow where rows are not aligned, and a vocabulary is often odd. */
    p.ldl = (s->vocab + LOGITS_ALIGN_ELEMS - 1) / LOGITS_ALIGN_ELEMS * LOGITS_ALIGN_ELEMS;
    p.x = take(&at, (2 * L + 1) * p.x_bytes);
    p.mean = take(&at, (2 * L + 1) * p.rows_bytes);
    p.rstd = take(&at, (2 * L + 1) * p.rows_bytes);
    p.qkv = take(&at, L * p.qkv_bytes);
    p.att = take(&at, L * p.att_bytes);
    p.lse = take(&at, L * p.lse_bytes);
    p.pre = take(&at, L * p.pre_bytes);
    p.losses = take(&at, N * sizeof(float));
    p.norm = take(&at, N * C * e);
    p.dx = take(&at, N * C * e);
    p.tmp = take(&at, N * C * e);
    p.tmp_bias = take(&at, C * e);

    size_t attn = at, mlp = at, head = at;
    p.dqkv = take(&attn, 3 * N * C * e);
    p.datt = take(&attn, N * C * e);
    p.attn_scratch = take(&attn, ops->attention_scratch_bytes(d, t, B, T, C, s->heads));
    p.act = take(&mlp, N * F * e);
    p.dact = take(&mlp, N * F * e);
    p.logits = take(&head, p.logits_rows * p.ldl * e);
    p.bytes = largest(attn, mlp, head);
    return p;
}

size_t gpt2_arena_bytes(const struct model *m, const struct device_ops *ops, struct device *d,
                        enum dtype t, size_t B, size_t T) {
    return plan_of((const struct gpt2 *)m, ops, d, t, B, T).bytes;
}

/* A module under way. */
struct work {
    const struct module_call *c;
    const struct device_ops *ops;
    struct device *dev;
    struct dev_stream *s;
    enum dtype t, g;
    struct plan p;
    float eps;
    uint8_t *a; /* arena */
};

static struct work work_of(const struct model *m, const struct module_call *c) {
    const struct gpt2 *g = (const struct gpt2 *)m;
    return (struct work){.c = c,
                         .ops = c->ops,
                         .dev = c->dev,
                         .s = c->stream,
                         .t = c->dtype,
                         .g = c->grad_dtype,
                         .p = plan_of(g, c->ops, c->dev, c->dtype, c->batch->B, c->batch->T),
                         .eps = g->shape.norm_eps,
                         .a = c->arena};
}

static void *x_at(const struct work *w, size_t i) { return w->a + w->p.x + i * w->p.x_bytes; }
static float *mean_at(const struct work *w, size_t i) {
    return (float *)(void *)(w->a + w->p.mean + i * w->p.rows_bytes);
}
static float *rstd_at(const struct work *w, size_t i) {
    return (float *)(void *)(w->a + w->p.rstd + i * w->p.rows_bytes);
}
static void *qkv_at(const struct work *w, size_t layer) {
    return w->a + w->p.qkv + layer * w->p.qkv_bytes;
}
static void *att_at(const struct work *w, size_t layer) {
    return w->a + w->p.att + layer * w->p.att_bytes;
}
static float *lse_at(const struct work *w, size_t layer) {
    return (float *)(void *)(w->a + w->p.lse + layer * w->p.lse_bytes);
}
static void *pre_at(const struct work *w, size_t layer) {
    return w->a + w->p.pre + layer * w->p.pre_bytes;
}
static float *losses_at(const struct work *w, size_t row) {
    return (float *)(void *)(w->a + w->p.losses) + row;
}

/* out (rows, n) = in (rows, k) weight (k, n) */
static int linear(const struct work *w, void *out, const void *in, const void *weight, size_t rows,
                  size_t n, size_t k) {
    return w->ops->gemm(w->dev, w->s, w->t, w->t, false, false, rows, n, k, 1, in, k, weight, n, 0,
                        out, n);
}

/* din (rows, k) = dout (rows, n) weight (k, n) transposed */
static int linear_backward_in(const struct work *w, void *din, const void *dout, const void *weight,
                              size_t n, size_t k) {
    return w->ops->gemm(w->dev, w->s, w->t, w->t, false, true, w->p.N, k, n, 1, dout, n, weight, n,
                        0, din, k);
}

/* Gradients that are sums over rows are added by their operation: whoever wants them new clears
 * them first. */
static int clear_unless(const struct work *w, bool accumulate, void *grad, size_t elems) {
    return accumulate ? 0 : w->ops->fill(w->dev, w->s, grad, w->g, elems, 0);
}

/* Weight (k, n) and bias (n) of tensors weight and weight + 1: in (N, k) transposed times dout (N,
 * n); column sums of dout. */
static int linear_backward_params(const struct work *w, size_t weight, const void *in,
                                  const void *dout, size_t n, size_t k) {
    const struct module_call *c = w->c;
    size_t bias = weight + 1;
    int rc = w->ops->gemm(w->dev, w->s, w->t, w->g, true, false, k, n, w->p.N, 1, in, k, dout, n,
                          c->accumulate[weight] ? 1 : 0, c->grads[weight], n);
    if (rc == 0)
        rc = clear_unless(w, c->accumulate[bias], c->grads[bias], n);
    if (rc == 0)
        rc = w->ops->bias_backward(w->dev, w->s, w->t, w->g, c->grads[bias], dout, w->p.N, n);
    return rc;
}

/* norm = layer norm of x_at(i), by the tensors GPT2_LN_* of the module */
static int norm_forward(const struct work *w, size_t i) {
    return w->ops->layernorm_forward(w->dev, w->s, w->t, w->a + w->p.norm, mean_at(w, i),
                                     rstd_at(w, i), x_at(w, i), w->c->params[GPT2_LN_W],
                                     w->c->params[GPT2_LN_B], w->p.N, w->p.C, w->eps);
}

/* The beginning of a module: what the one before left in tmp is added to the residual stream. */
static int enter(const struct work *w, size_t i) {
    if (i == 0)
        return norm_forward(w, 0);
    return w->ops->residual_layernorm_forward(
        w->dev, w->s, w->t, x_at(w, i), w->a + w->p.norm, mean_at(w, i), rstd_at(w, i),
        x_at(w, i - 1), w->a + w->p.tmp, w->a + w->p.tmp_bias, w->c->params[GPT2_LN_W],
        w->c->params[GPT2_LN_B], w->p.N, w->p.C, w->eps);
}

/* dx = or += what tmp (gradient of the norm's output) gives for x_at(i) */
static int norm_backward(const struct work *w, size_t i, bool accumulate) {
    const struct module_call *c = w->c;
    int rc = clear_unless(w, c->accumulate[GPT2_LN_W], c->grads[GPT2_LN_W], w->p.C);
    if (rc == 0)
        rc = clear_unless(w, c->accumulate[GPT2_LN_B], c->grads[GPT2_LN_B], w->p.C);
    if (rc == 0)
        rc = w->ops->layernorm_backward(w->dev, w->s, w->t, w->g, w->a + w->p.dx, accumulate,
                                        c->grads[GPT2_LN_W], c->grads[GPT2_LN_B], w->a + w->p.tmp,
                                        x_at(w, i), c->params[GPT2_LN_W], mean_at(w, i),
                                        rstd_at(w, i), w->p.N, w->p.C);
    return rc;
}

/* in (N, k) times the projection, and its bias, for the next module to add: the unit may be gone
 * then. */
static int project(const struct work *w, const void *in, size_t k) {
    int rc = linear(w, w->a + w->p.tmp, in, w->c->params[GPT2_PROJ_W], w->p.N, w->p.C, k);
    if (rc == 0)
        rc = w->ops->copy(w->dev, w->s, w->a + w->p.tmp_bias, w->c->params[GPT2_PROJ_B],
                          w->p.C * w->p.elem_bytes);
    return rc;
}

/* dx is the gradient of x_at(i + 1); din (N, k) that of the projection's input */
static int project_backward(const struct work *w, void *din, const void *in, size_t k) {
    const void *dx = w->a + w->p.dx;
    int rc = linear_backward_params(w, GPT2_PROJ_W, in, dx, w->p.C, k);
    if (rc == 0)
        rc = linear_backward_in(w, din, dx, w->c->params[GPT2_PROJ_W], w->p.C, k);
    return rc;
}

/* The first linear layer of attention and MLP, whose output (N, n) has the gradient dout; and the
 * norm before it. */
static int enter_backward(const struct work *w, size_t i, const void *dout, size_t n) {
    int rc = norm_forward(w, i);
    if (rc == 0)
        rc = linear_backward_params(w, GPT2_IN_W, w->a + w->p.norm, dout, n, w->p.C);
    if (rc == 0)
        rc = linear_backward_in(w, w->a + w->p.tmp, dout, w->c->params[GPT2_IN_W], n, w->p.C);
    if (rc == 0)
        rc = norm_backward(w, i, true);
    return rc;
}

static int embed_forward(const struct work *w) {
    return w->ops->embed_forward(w->dev, w->s, w->t, x_at(w, 0), w->c->batch->tokens,
                                 w->c->params[GPT2_WTE], w->c->params[GPT2_WPE], w->p.B, w->p.T,
                                 w->p.C);
}

/* The head's backward has written the tied wte's gradient already. */
static int embed_backward(const struct work *w, size_t context) {
    const struct module_call *c = w->c;
    int rc = clear_unless(w, c->accumulate[GPT2_WPE], c->grads[GPT2_WPE], context * w->p.C);
    if (rc == 0)
        rc = w->ops->embed_backward(w->dev, w->s, w->t, w->g, c->grads[GPT2_WTE],
                                    c->grads[GPT2_WPE], w->a + w->p.dx, c->batch->tokens, w->p.B,
                                    w->p.T, w->p.C, w->p.V);
    return rc;
}

static int attn_forward(const struct work *w, size_t layer) {
    const struct plan *p = &w->p;
    void *qkv = qkv_at(w, layer);
    int rc = enter(w, 2 * layer);
    if (rc == 0)
        rc = linear(w, qkv, w->a + p->norm, w->c->params[GPT2_IN_W], p->N, 3 * p->C, p->C);
    if (rc == 0)
        rc = w->ops->bias_forward(w->dev, w->s, w->t, qkv, w->c->params[GPT2_IN_B], p->N, 3 * p->C);
    if (rc == 0)
        rc = w->ops->attention_forward(w->dev, w->s, w->t, att_at(w, layer), lse_at(w, layer), qkv,
                                       w->a + p->attn_scratch, p->B, p->T, p->C, p->NH);
    if (rc == 0)
        rc = project(w, att_at(w, layer), p->C);
    return rc;
}

static int attn_backward(const struct work *w, size_t layer) {
    const struct plan *p = &w->p;
    uint8_t *datt = w->a + p->datt, *dqkv = w->a + p->dqkv;
    int rc = project_backward(w, datt, att_at(w, layer), p->C);
    if (rc == 0)
        rc = w->ops->attention_backward(w->dev, w->s, w->t, dqkv, datt, att_at(w, layer),
                                        lse_at(w, layer), qkv_at(w, layer), w->a + p->attn_scratch,
                                        p->B, p->T, p->C, p->NH);
    if (rc == 0)
        rc = enter_backward(w, 2 * layer, dqkv, 3 * p->C);
    return rc;
}

static int mlp_forward(const struct work *w, size_t layer) {
    const struct plan *p = &w->p;
    void *pre = pre_at(w, layer), *act = w->a + p->act;
    int rc = enter(w, 2 * layer + 1);
    if (rc == 0)
        rc = linear(w, pre, w->a + p->norm, w->c->params[GPT2_IN_W], p->N, p->F, p->C);
    if (rc == 0)
        rc = w->ops->bias_gelu_forward(w->dev, w->s, w->t, act, pre, w->c->params[GPT2_IN_B], p->N,
                                       p->F);
    if (rc == 0)
        rc = project(w, act, p->F);
    return rc;
}

static int mlp_backward(const struct work *w, size_t layer) {
    const struct plan *p = &w->p;
    void *pre = pre_at(w, layer), *act = w->a + p->act, *dact = w->a + p->dact;
    int rc = w->ops->bias_gelu_forward(w->dev, w->s, w->t, act, pre, NULL, p->N, p->F);
    if (rc == 0)
        rc = project_backward(w, dact, act, p->F);
    if (rc == 0)
        rc = w->ops->gelu_backward(w->dev, w->s, w->t, dact, pre, p->N, p->F);
    if (rc == 0)
        rc = enter_backward(w, 2 * layer + 1, dact, p->F);
    return rc;
}

/* Losses, and when backward the gradients of rows [first, first + rows) of the head's product. */
static int head_rows(const struct work *w, size_t first, size_t rows, bool backward) {
    const struct module_call *c = w->c;
    const struct plan *p = &w->p;
    size_t row_bytes = p->C * p->elem_bytes;
    const void *wte = c->params[GPT2_HEAD_WTE], *norm = w->a + p->norm + first * row_bytes;
    void *logits = w->a + p->logits;
    int rc = w->ops->gemm(w->dev, w->s, w->t, w->t, false, true, rows, p->V, p->C, 1, norm, p->C,
                          wte, p->C, 0, logits, p->ldl);
    if (rc == 0)
        rc = w->ops->softmax_xent(w->dev, w->s, w->t, losses_at(w, first), logits, p->ldl,
                                  c->batch->targets + first, rows, p->V, c->batch->loss_scale,
                                  backward);
    if (rc != 0 || !backward)
        return rc;
    bool add = first > 0 || c->accumulate[GPT2_HEAD_WTE];
    rc = w->ops->gemm(w->dev, w->s, w->t, w->g, true, false, p->V, p->C, rows, 1, logits, p->ldl,
                      norm, p->C, add ? 1 : 0, c->grads[GPT2_HEAD_WTE], p->C);
    if (rc == 0)
        rc = w->ops->gemm(w->dev, w->s, w->t, w->t, false, false, rows, p->C, p->V, 1, logits,
                          p->ldl, wte, p->C, 0, w->a + p->tmp + first * row_bytes, p->C);
    return rc;
}

static int head_all(const struct work *w, bool backward) {
    const struct plan *p = &w->p;
    int rc = 0;
    if (p->N == 0 && backward) /* nothing writes the gradient below */
        rc = clear_unless(w, w->c->accumulate[GPT2_HEAD_WTE], w->c->grads[GPT2_HEAD_WTE],
                          p->V * p->C);
    for (size_t first = 0; rc == 0 && first < p->N; first += p->logits_rows) {
        size_t rows = p->N - first < p->logits_rows ? p->N - first : p->logits_rows;
        rc = head_rows(w, first, rows, backward);
    }
    return rc;
}

static int head_forward(const struct work *w, size_t layers) {
    int rc = enter(w, 2 * layers);
    if (rc == 0 && w->c->batch->loss_only)
        rc = head_all(w, false);
    return rc;
}

static int head_backward(const struct work *w, size_t layers) {
    int rc = head_all(w, true);
    if (rc == 0)
        rc = norm_backward(w, 2 * layers, false);
    return rc;
}

int gpt2_forward(const struct model *m, uint32_t module, const struct module_call *c) {
    if (c->batch->T > m->context)
        return -EINVAL;
    struct work w = work_of(m, c);
    size_t layers = ((const struct gpt2 *)m)->shape.layers,
           layer = (module - 1) / GPT2_BLOCK_MODULES;
    if (module == 0)
        return embed_forward(&w);
    if (module == m->module_count - 1)
        return head_forward(&w, layers);
    return (module - 1) % GPT2_BLOCK_MODULES == 0 ? attn_forward(&w, layer)
                                                  : mlp_forward(&w, layer);
}

int gpt2_backward(const struct model *m, uint32_t module, const struct module_call *c) {
    struct work w = work_of(m, c);
    size_t layers = ((const struct gpt2 *)m)->shape.layers,
           layer = (module - 1) / GPT2_BLOCK_MODULES;
    if (module == 0)
        return embed_backward(&w, m->context);
    if (module == m->module_count - 1)
        return head_backward(&w, layers);
    return (module - 1) % GPT2_BLOCK_MODULES == 0 ? attn_backward(&w, layer)
                                                  : mlp_backward(&w, layer);
}

int gpt2_loss(const struct model *m, const struct module_call *c, double *out) {
    struct work w = work_of(m, c);
    return w.ops->sum(w.dev, w.s, out, losses_at(&w, 0), w.p.N);
}
