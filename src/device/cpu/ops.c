/* ops.c - operations of the CPU device: each cuts its work into a part for each thread and runs a
 * kernel on it.
 *
 * Where the cuts lie changes no result: rows and elements do not depend on each other, and sums
 * over rows are cut by columns. */
#include "config.h"

#include <string.h>

#include "device/cpu/cpu.h"
#include "device/philox.h"

/* Below so many elements waking the threads costs more than it saves. */
enum { SMALL_ELEMS = 16384, CUT_ELEMS = 64 /* whole cache lines, whole vectors */ };

struct span {
    size_t first, count;
};

static struct span span_of(size_t total, size_t unit, size_t part, size_t parts) {
    size_t units = (total + unit - 1) / unit, begin = units * part / parts * unit,
           end = units * (part + 1) / parts * unit;
    begin = begin < total ? begin : total;
    end = end < total ? end : total;
    return (struct span){begin, end - begin};
}

void cpu_run(struct device *d, size_t elems, team_fn *fn, void *arg) {
    if (elems < SMALL_ELEMS)
        fn(arg, 0, 1);
    else
        team_run(d->team, fn, arg);
}

/* The arguments of an operation, whichever it needs, by their names in device.h. */
struct args {
    const struct cpu_kernels *k;
    enum dtype t, g;
    void *out, *inout, *sum, *din, *dweight, *dbias, *dst;
    const void *in, *src, *weight, *bias, *in_bias, *residual, *dout, *wte, *wpe;
    float *mean, *rstd, *losses;
    void *dwte, *dwpe;
    const float *kept_mean, *kept_rstd;
    const int32_t *tokens;
    size_t B, T, N, C, V, ldl, elems;
    float eps, value;
    bool flag;
};

/* Where element `elem` of an array of dtype t lies. */
static const void *from_elem(const void *p, enum dtype t, size_t elem) {
    return (const char *)p + elem * dtype_bytes(t);
}
static void *to_elem(void *p, enum dtype t, size_t elem) {
    return (char *)p + elem * dtype_bytes(t);
}

static void fill_part(void *arg, size_t part, size_t parts) {
    struct args *a = arg;
    struct span s = span_of(a->elems, CUT_ELEMS, part, parts);
    a->k->fill(a->t, to_elem(a->dst, a->t, s.first), s.count, a->value);
}

int cpu_fill(struct device *d, struct dev_stream *s, void *dst, enum dtype t, size_t elems,
             float value) {
    (void)s;
    struct args a = {.k = d->kernels, .t = t, .dst = dst, .elems = elems, .value = value};
    cpu_run(d, elems, fill_part, &a);
    return 0;
}

struct copy_args {
    char *dst;
    const char *src;
    size_t bytes;
};

static void copy_part(void *arg, size_t part, size_t parts) {
    struct copy_args *a = arg;
    struct span s = span_of(a->bytes, CUT_ELEMS, part, parts);
    if (s.count > 0)
        memcpy(a->dst + s.first, a->src + s.first, s.count);
}

int cpu_copy(struct device *d, struct dev_stream *s, void *dst, const void *src, size_t bytes) {
    (void)s;
    struct copy_args a = {dst, src, bytes};
    cpu_run(d, bytes / sizeof(float), copy_part, &a);
    return 0;
}

/* t is that of dst */
static void cast_part(void *arg, size_t part, size_t parts) {
    struct args *a = arg;
    struct span s = span_of(a->elems, CUT_ELEMS, part, parts);
    a->k->cast(to_elem(a->dst, a->t, s.first), a->t,
               from_elem(a->src, a->t == DTYPE_F32 ? DTYPE_BF16 : DTYPE_F32, s.first), s.count);
}

int cpu_cast(struct device *d, struct dev_stream *s, void *dst, enum dtype dst_dtype,
             const void *src, enum dtype src_dtype, size_t elems) {
    if (dst_dtype == src_dtype)
        return cpu_copy(d, s, dst, src, elems * dtype_bytes(src_dtype));
    struct args a = {.k = d->kernels, .t = dst_dtype, .dst = dst, .src = src, .elems = elems};
    cpu_run(d, elems, cast_part, &a);
    return 0;
}

static void add_part(void *arg, size_t part, size_t parts) {
    struct args *a = arg;
    struct span s = span_of(a->elems, CUT_ELEMS, part, parts);
    a->k->add(to_elem(a->dst, DTYPE_F32, s.first), from_elem(a->src, a->t, s.first), a->t, s.count);
}

int cpu_add(struct device *d, struct dev_stream *s, float *dst, const void *src,
            enum dtype src_dtype, size_t elems) {
    (void)s;
    struct args a = {.k = d->kernels, .t = src_dtype, .dst = dst, .src = src, .elems = elems};
    cpu_run(d, elems, add_part, &a);
    return 0;
}

static void embed_forward_part(void *arg, size_t part, size_t parts) {
    struct args *a = arg;
    struct span s = span_of(a->N, 1, part, parts);
    for (size_t n = s.first; n < s.first + s.count; n++)
        a->k->add_to(a->t, to_elem(a->out, a->t, n * a->C),
                     from_elem(a->wte, a->t, (size_t)a->tokens[n] * a->C),
                     from_elem(a->wpe, a->t, n % a->T * a->C), a->C);
}

int cpu_embed_forward(struct device *d, struct dev_stream *s, enum dtype t, void *out,
                      const int32_t *tokens, const void *wte, const void *wpe, size_t B, size_t T,
                      size_t C) {
    (void)s;
    struct args a = {.k = d->kernels,
                     .t = t,
                     .out = out,
                     .tokens = tokens,
                     .wte = wte,
                     .wpe = wpe,
                     .N = B * T,
                     .T = T,
                     .C = C};
    cpu_run(d, B * T * C, embed_forward_part, &a);
    return 0;
}

/* The first n in [from, end) with that token, or end. By whole blocks, which compilers turn into
 * vectors: each row looks through all tokens, and still that is nothing beside a product. */
static size_t next_token(const int32_t *tokens, int32_t token, size_t from, size_t end) {
    enum { AT_ONCE = 32 };
    for (; from + AT_ONCE <= end; from += AT_ONCE) {
        int32_t found = 0;
        for (size_t i = 0; i < AT_ONCE; i++)
            found |= tokens[from + i] == token;
        if (found)
            break;
    }
    while (from < end && tokens[from] != token)
        from++;
    return from;
}

/* A part of a row of a gradient in f32, so that what is added to it is rounded once. */
struct wide_row {
    float sum[1024];
    void *at; /* of g */
    size_t count;
};

static void wide_begin(struct wide_row *w, const struct args *a, void *gradient, size_t elem,
                       size_t count) {
    w->at = to_elem(gradient, a->g, elem);
    w->count = count;
    a->k->cast(w->sum, DTYPE_F32, w->at, count);
}

static void wide_add(struct wide_row *w, const struct args *a, size_t dout_elem) {
    a->k->add(w->sum, from_elem(a->dout, a->t, dout_elem), a->t, w->count);
}

static void wide_end(struct wide_row *w, const struct args *a) {
    a->k->cast(w->at, a->g, w->sum, w->count);
}

/* g is bf16. Columns [c, c + count) of all rows, token by token and position by position. */
static void embed_backward_wide(const struct args *a, size_t c, size_t count) {
    struct wide_row w;
    for (size_t n = 0; n < a->N; n++) {
        if (next_token(a->tokens, a->tokens[n], 0, n) < n)
            continue; /* done with the first */
        wide_begin(&w, a, a->dwte, (size_t)a->tokens[n] * a->C + c, count);
        for (size_t m = n; m < a->N; m = next_token(a->tokens, a->tokens[n], m + 1, a->N))
            wide_add(&w, a, m * a->C + c);
        wide_end(&w, a);
    }
    for (size_t t = 0; t < a->T && t < a->N; t++) {
        wide_begin(&w, a, a->dwpe, t * a->C + c, count);
        for (size_t n = t; n < a->N; n += a->T)
            wide_add(&w, a, n * a->C + c);
        wide_end(&w, a);
    }
}

/* Cut by columns: a row of dwte may belong to many tokens. */
static void embed_backward_part(void *arg, size_t part, size_t parts) {
    struct args *a = arg;
    struct span s = span_of(a->C, CUT_ELEMS, part, parts);
    if (a->g != DTYPE_F32) {
        enum { MOST = sizeof(((struct wide_row *)NULL)->sum) / sizeof(float) };
        for (size_t c = 0; c < s.count; c += MOST)
            embed_backward_wide(a, s.first + c, s.count - c < MOST ? s.count - c : MOST);
        return;
    }
    for (size_t n = 0; n < a->N && s.count > 0; n++) {
        const void *dout = from_elem(a->dout, a->t, n * a->C + s.first);
        size_t row = (size_t)a->tokens[n] * a->C, position = n % a->T * a->C;
        a->k->add(to_elem(a->dwte, DTYPE_F32, row + s.first), dout, a->t, s.count);
        a->k->add(to_elem(a->dwpe, DTYPE_F32, position + s.first), dout, a->t, s.count);
    }
}

int cpu_embed_backward(struct device *d, struct dev_stream *s, enum dtype t, enum dtype g,
                       void *dwte, void *dwpe, const void *dout, const int32_t *tokens, size_t B,
                       size_t T, size_t C, size_t V) {
    (void)s, (void)V;
    struct args a = {.k = d->kernels,
                     .t = t,
                     .g = g,
                     .dwte = dwte,
                     .dwpe = dwpe,
                     .dout = dout,
                     .tokens = tokens,
                     .N = B * T,
                     .T = T,
                     .C = C};
    cpu_run(d, B * T * C, embed_backward_part, &a);
    return 0;
}

static void layernorm_forward_part(void *arg, size_t part, size_t parts) {
    struct args *a = arg;
    struct span s = span_of(a->N, 1, part, parts);
    struct cpu_norm w = {a->weight, a->bias, a->C, a->eps};
    size_t first = s.first * a->C;
    void *out = to_elem(a->out, a->t, first);
    const void *in = from_elem(a->in, a->t, first);
    if (a->residual == NULL)
        a->k->layernorm_forward(a->t, out, a->mean + s.first, a->rstd + s.first, in, &w, s.count);
    else
        a->k->residual_layernorm_forward(a->t, to_elem(a->sum, a->t, first), out, a->mean + s.first,
                                         a->rstd + s.first, from_elem(a->residual, a->t, first), in,
                                         a->in_bias, &w, s.count);
}

int cpu_layernorm_forward(struct device *d, struct dev_stream *s, enum dtype t, void *out,
                          float *mean, float *rstd, const void *in, const void *weight,
                          const void *bias, size_t N, size_t C, float eps) {
    (void)s;
    struct args a = {.k = d->kernels,
                     .t = t,
                     .out = out,
                     .mean = mean,
                     .rstd = rstd,
                     .in = in,
                     .weight = weight,
                     .bias = bias,
                     .N = N,
                     .C = C,
                     .eps = eps};
    cpu_run(d, N * C, layernorm_forward_part, &a);
    return 0;
}

int cpu_residual_layernorm_forward(struct device *d, struct dev_stream *s, enum dtype t, void *sum,
                                   void *out, float *mean, float *rstd, const void *residual,
                                   const void *in, const void *in_bias, const void *weight,
                                   const void *bias, size_t N, size_t C, float eps) {
    (void)s;
    struct args a = {.k = d->kernels,
                     .t = t,
                     .sum = sum,
                     .out = out,
                     .mean = mean,
                     .rstd = rstd,
                     .residual = residual,
                     .in = in,
                     .in_bias = in_bias,
                     .weight = weight,
                     .bias = bias,
                     .N = N,
                     .C = C,
                     .eps = eps};
    cpu_run(d, N * C, layernorm_forward_part, &a);
    return 0;
}

static void layernorm_backward_part(void *arg, size_t part, size_t parts) {
    struct args *a = arg;
    struct span columns = span_of(a->C, CUT_ELEMS, part, parts),
                rows = span_of(a->N, 1, part, parts);
    a->k->layernorm_backward_params(a->t, a->g, a->dweight, a->dbias, a->dout, a->in, a->kept_mean,
                                    a->kept_rstd, a->N, a->C, columns.first, columns.count);
    size_t first = rows.first * a->C;
    a->k->layernorm_backward_in(a->t, to_elem(a->din, a->t, first), a->flag,
                                from_elem(a->dout, a->t, first), from_elem(a->in, a->t, first),
                                a->weight, a->kept_mean + rows.first, a->kept_rstd + rows.first,
                                rows.count, a->C);
}

int cpu_layernorm_backward(struct device *d, struct dev_stream *s, enum dtype t, enum dtype g,
                           void *din, bool accumulate, void *dweight, void *dbias, const void *dout,
                           const void *in, const void *weight, const float *mean, const float *rstd,
                           size_t N, size_t C) {
    (void)s;
    struct args a = {.k = d->kernels,
                     .t = t,
                     .g = g,
                     .din = din,
                     .flag = accumulate,
                     .dweight = dweight,
                     .dbias = dbias,
                     .dout = dout,
                     .in = in,
                     .weight = weight,
                     .kept_mean = mean,
                     .kept_rstd = rstd,
                     .N = N,
                     .C = C};
    cpu_run(d, N * C, layernorm_backward_part, &a);
    return 0;
}

static void bias_forward_part(void *arg, size_t part, size_t parts) {
    struct args *a = arg;
    struct span s = span_of(a->N, 1, part, parts);
    a->k->bias_forward(a->t, to_elem(a->inout, a->t, s.first * a->C), a->bias, s.count, a->C);
}

int cpu_bias_forward(struct device *d, struct dev_stream *s, enum dtype t, void *inout,
                     const void *bias, size_t N, size_t C) {
    (void)s;
    struct args a = {.k = d->kernels, .t = t, .inout = inout, .bias = bias, .N = N, .C = C};
    cpu_run(d, N * C, bias_forward_part, &a);
    return 0;
}

static void bias_backward_part(void *arg, size_t part, size_t parts) {
    struct args *a = arg;
    struct span s = span_of(a->C, CUT_ELEMS, part, parts);
    a->k->column_sums(a->t, a->g, a->dbias, a->dout, a->N, a->C, s.first, s.count);
}

int cpu_bias_backward(struct device *d, struct dev_stream *s, enum dtype t, enum dtype g,
                      void *dbias, const void *dout, size_t N, size_t C) {
    (void)s;
    struct args a = {.k = d->kernels, .t = t, .g = g, .dbias = dbias, .dout = dout, .N = N, .C = C};
    cpu_run(d, N * C, bias_backward_part, &a);
    return 0;
}

static void bias_gelu_part(void *arg, size_t part, size_t parts) {
    struct args *a = arg;
    struct span s = span_of(a->N, 1, part, parts);
    size_t first = s.first * a->C;
    a->k->bias_gelu_forward(a->t, to_elem(a->out, a->t, first), to_elem(a->inout, a->t, first),
                            a->bias, s.count, a->C);
}

int cpu_bias_gelu_forward(struct device *d, struct dev_stream *s, enum dtype t, void *out,
                          void *pre, const void *bias, size_t N, size_t C) {
    (void)s;
    struct args a = {
        .k = d->kernels, .t = t, .out = out, .inout = pre, .bias = bias, .N = N, .C = C};
    cpu_run(d, N * C, bias_gelu_part, &a);
    return 0;
}

static void gelu_backward_part(void *arg, size_t part, size_t parts) {
    struct args *a = arg;
    struct span s = span_of(a->elems, CUT_ELEMS, part, parts);
    a->k->gelu_backward(a->t, to_elem(a->inout, a->t, s.first), from_elem(a->in, a->t, s.first),
                        s.count);
}

int cpu_gelu_backward(struct device *d, struct dev_stream *s, enum dtype t, void *inout,
                      const void *pre, size_t N, size_t C) {
    (void)s;
    struct args a = {.k = d->kernels, .t = t, .inout = inout, .in = pre, .elems = N * C};
    cpu_run(d, N * C, gelu_backward_part, &a);
    return 0;
}

static void softmax_xent_part(void *arg, size_t part, size_t parts) {
    struct args *a = arg;
    struct span s = span_of(a->N, 1, part, parts);
    a->k->softmax_xent(a->t, a->losses + s.first, to_elem(a->inout, a->t, s.first * a->ldl), a->ldl,
                       a->tokens + s.first, s.count, a->V, a->value, a->flag);
}

int cpu_softmax_xent(struct device *d, struct dev_stream *s, enum dtype t, float *losses,
                     void *logits, size_t ldl, const int32_t *targets, size_t N, size_t V,
                     float scale, bool backward) {
    (void)s;
    struct args a = {.k = d->kernels,
                     .t = t,
                     .losses = losses,
                     .inout = logits,
                     .ldl = ldl,
                     .tokens = targets,
                     .N = N,
                     .V = V,
                     .value = scale,
                     .flag = backward};
    cpu_run(d, N * V, softmax_xent_part, &a);
    return 0;
}

/* A long sum is cut into the same pieces whoever adds them up. */
enum { SUM_PIECES = 256 };

struct sum_args {
    double (*sum)(const float *in, size_t elems);
    const float *in;
    size_t elems;
    double piece[SUM_PIECES];
};

static void sum_part(void *arg, size_t part, size_t parts) {
    struct sum_args *a = arg;
    struct span mine = span_of(SUM_PIECES, 1, part, parts);
    for (size_t i = mine.first; i < mine.first + mine.count; i++) {
        struct span s = span_of(a->elems, CUT_ELEMS, i, SUM_PIECES);
        a->piece[i] = a->sum(a->in + s.first, s.count);
    }
}

static double sum_of(struct device *d, double (*sum)(const float *, size_t), const float *in,
                     size_t elems) {
    struct sum_args a = {.sum = sum, .in = in, .elems = elems};
    cpu_run(d, elems, sum_part, &a);
    double total = 0;
    for (size_t i = 0; i < SUM_PIECES; i++)
        total += a.piece[i];
    return total;
}

int cpu_sum(struct device *d, struct dev_stream *s, double *out, const float *in, size_t elems) {
    (void)s;
    *out = sum_of(d, d->kernels->sum, in, elems);
    return 0;
}

int cpu_sum_squares(struct device *d, struct dev_stream *s, double *out, const float *in,
                    size_t elems) {
    (void)s;
    *out = sum_of(d, d->kernels->sum_squares, in, elems);
    return 0;
}

struct adamw_args {
    const struct cpu_kernels *k;
    struct cpu_adamw w;
    size_t elems;
    const struct dev_adamw *a;
};

static void adamw_part(void *arg, size_t part, size_t parts) {
    struct adamw_args *x = arg;
    struct span s = span_of(x->elems, CUT_ELEMS, part, parts);
    struct cpu_adamw w = x->w;
    w.param += s.first;
    w.exp_avg += s.first;
    w.exp_avg_sq += s.first;
    w.grad += s.first;
    if (w.copy != NULL)
        w.copy = to_elem(w.copy, w.copy_dtype, s.first);
    x->k->adamw(&w, s.count, x->a);
}

int cpu_adamw(struct device *d, struct dev_stream *s, float *param, float *exp_avg,
              float *exp_avg_sq, const float *grad, void *copy, enum dtype copy_dtype, size_t elems,
              const struct dev_adamw *a) {
    (void)s;
    struct adamw_args x = {
        d->kernels, {param, exp_avg, exp_avg_sq, grad, copy, copy_dtype}, elems, a};
    cpu_run(d, elems, adamw_part, &x);
    return 0;
}

struct normal_args {
    float *dst;
    size_t elems;
    uint64_t seed, sequence, first;
    float mean, std;
};

static void normal_part(void *arg, size_t part, size_t parts) {
    struct normal_args *a = arg;
    struct span s = span_of(a->elems, CUT_ELEMS, part, parts);
    philox_normal(a->dst + s.first, s.count, a->seed, a->sequence, a->first + s.first, a->mean,
                  a->std);
}

int cpu_init_normal(struct device *d, struct dev_stream *s, float *dst, size_t elems, uint64_t seed,
                    uint64_t sequence, uint64_t first, float mean, float std) {
    (void)s;
    struct normal_args a = {dst, elems, seed, sequence, first, mean, std};
    cpu_run(d, elems, normal_part, &a);
    return 0;
}
