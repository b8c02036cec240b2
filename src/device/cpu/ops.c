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
    float *out, *inout, *din, *dweight, *dbias, *losses, *dst;
    const float *in, *src, *weight, *bias, *residual, *dout, *wte, *wpe;
    float *mean, *rstd, *dwte, *dwpe;
    const float *kept_mean, *kept_rstd;
    const int32_t *tokens;
    size_t B, T, N, C, V, elems;
    float eps, value;
    bool flag;
};

static void fill_part(void *arg, size_t part, size_t parts) {
    struct args *a = arg;
    struct span s = span_of(a->elems, CUT_ELEMS, part, parts);
    a->k->fill(a->dst + s.first, s.count, a->value);
}

int cpu_fill(struct device *d, struct dev_stream *s, float *dst, size_t elems, float value) {
    (void)s;
    struct args a = {.k = d->kernels, .dst = dst, .elems = elems, .value = value};
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

static void add_part(void *arg, size_t part, size_t parts) {
    struct args *a = arg;
    struct span s = span_of(a->elems, CUT_ELEMS, part, parts);
    a->k->add(a->dst + s.first, a->src + s.first, s.count);
}

int cpu_add(struct device *d, struct dev_stream *s, float *dst, const float *src, size_t elems) {
    (void)s;
    struct args a = {.k = d->kernels, .dst = dst, .src = src, .elems = elems};
    cpu_run(d, elems, add_part, &a);
    return 0;
}

static void embed_forward_part(void *arg, size_t part, size_t parts) {
    struct args *a = arg;
    struct span s = span_of(a->N, 1, part, parts);
    for (size_t n = s.first; n < s.first + s.count; n++)
        a->k->add_to(a->out + n * a->C, a->wte + (size_t)a->tokens[n] * a->C,
                     a->wpe + n % a->T * a->C, a->C);
}

int cpu_embed_forward(struct device *d, struct dev_stream *s, float *out, const int32_t *tokens,
                      const float *wte, const float *wpe, size_t B, size_t T, size_t C) {
    (void)s;
    struct args a = {.k = d->kernels,
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

/* Cut by columns: a row of dwte may belong to many tokens. */
static void embed_backward_part(void *arg, size_t part, size_t parts) {
    struct args *a = arg;
    struct span s = span_of(a->C, CUT_ELEMS, part, parts);
    for (size_t n = 0; n < a->N && s.count > 0; n++) {
        const float *dout = a->dout + n * a->C + s.first;
        a->k->add(a->dwte + (size_t)a->tokens[n] * a->C + s.first, dout, s.count);
        a->k->add(a->dwpe + n % a->T * a->C + s.first, dout, s.count);
    }
}

int cpu_embed_backward(struct device *d, struct dev_stream *s, float *dwte, float *dwpe,
                       const float *dout, const int32_t *tokens, size_t B, size_t T, size_t C,
                       size_t V) {
    (void)s, (void)V;
    struct args a = {.k = d->kernels,
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
    a->k->layernorm_forward(a->out + s.first * a->C, a->mean + s.first, a->rstd + s.first,
                            a->in + s.first * a->C, a->weight, a->bias, s.count, a->C, a->eps);
}

int cpu_layernorm_forward(struct device *d, struct dev_stream *s, float *out, float *mean,
                          float *rstd, const float *in, const float *weight, const float *bias,
                          size_t N, size_t C, float eps) {
    (void)s;
    struct args a = {.k = d->kernels,
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

static void layernorm_backward_part(void *arg, size_t part, size_t parts) {
    struct args *a = arg;
    struct span columns = span_of(a->C, CUT_ELEMS, part, parts),
                rows = span_of(a->N, 1, part, parts);
    a->k->layernorm_backward_params(a->dweight, a->dbias, a->dout, a->in, a->kept_mean,
                                    a->kept_rstd, a->N, a->C, columns.first, columns.count);
    size_t first = rows.first * a->C;
    a->k->layernorm_backward_in(a->din + first, a->flag, a->dout + first, a->in + first, a->weight,
                                a->kept_mean + rows.first, a->kept_rstd + rows.first, rows.count,
                                a->C);
}

int cpu_layernorm_backward(struct device *d, struct dev_stream *s, float *din, bool accumulate,
                           float *dweight, float *dbias, const float *dout, const float *in,
                           const float *weight, const float *mean, const float *rstd, size_t N,
                           size_t C) {
    (void)s;
    struct args a = {.k = d->kernels,
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
    a->k->bias_forward(a->inout + s.first * a->C, a->bias, s.count, a->C);
}

int cpu_bias_forward(struct device *d, struct dev_stream *s, float *inout, const float *bias,
                     size_t N, size_t C) {
    (void)s;
    struct args a = {.k = d->kernels, .inout = inout, .bias = bias, .N = N, .C = C};
    cpu_run(d, N * C, bias_forward_part, &a);
    return 0;
}

static void bias_backward_part(void *arg, size_t part, size_t parts) {
    struct args *a = arg;
    struct span s = span_of(a->C, CUT_ELEMS, part, parts);
    a->k->column_sums(a->dbias, a->dout, a->N, a->C, s.first, s.count);
}

int cpu_bias_backward(struct device *d, struct dev_stream *s, float *dbias, const float *dout,
                      size_t N, size_t C) {
    (void)s;
    struct args a = {.k = d->kernels, .dbias = dbias, .dout = dout, .N = N, .C = C};
    cpu_run(d, N * C, bias_backward_part, &a);
    return 0;
}

static void bias_gelu_part(void *arg, size_t part, size_t parts) {
    struct args *a = arg;
    struct span s = span_of(a->N, 1, part, parts);
    a->k->bias_gelu_forward(a->out + s.first * a->C, a->inout + s.first * a->C, a->bias, s.count,
                            a->C);
}

int cpu_bias_gelu_forward(struct device *d, struct dev_stream *s, float *out, float *pre,
                          const float *bias, size_t N, size_t C) {
    (void)s;
    struct args a = {.k = d->kernels, .out = out, .inout = pre, .bias = bias, .N = N, .C = C};
    cpu_run(d, N * C, bias_gelu_part, &a);
    return 0;
}

static void gelu_backward_part(void *arg, size_t part, size_t parts) {
    struct args *a = arg;
    struct span s = span_of(a->elems, CUT_ELEMS, part, parts);
    a->k->gelu_backward(a->inout + s.first, a->in + s.first, s.count);
}

int cpu_gelu_backward(struct device *d, struct dev_stream *s, float *inout, const float *pre,
                      size_t N, size_t C) {
    (void)s;
    struct args a = {.k = d->kernels, .inout = inout, .in = pre, .elems = N * C};
    cpu_run(d, N * C, gelu_backward_part, &a);
    return 0;
}

static void bias_residual_part(void *arg, size_t part, size_t parts) {
    struct args *a = arg;
    struct span s = span_of(a->N, 1, part, parts);
    size_t first = s.first * a->C;
    a->k->bias_residual_forward(a->out + first, a->residual + first, a->in + first, a->bias,
                                s.count, a->C);
}

int cpu_bias_residual_forward(struct device *d, struct dev_stream *s, float *out,
                              const float *residual, const float *in, const float *bias, size_t N,
                              size_t C) {
    (void)s;
    struct args a = {
        .k = d->kernels, .out = out, .residual = residual, .in = in, .bias = bias, .N = N, .C = C};
    cpu_run(d, N * C, bias_residual_part, &a);
    return 0;
}

static void softmax_xent_part(void *arg, size_t part, size_t parts) {
    struct args *a = arg;
    struct span s = span_of(a->N, 1, part, parts);
    a->k->softmax_xent(a->losses + s.first, a->inout + s.first * a->V, a->tokens + s.first, s.count,
                       a->V, a->value, a->flag);
}

int cpu_softmax_xent(struct device *d, struct dev_stream *s, float *losses, float *logits,
                     const int32_t *targets, size_t N, size_t V, float scale, bool backward) {
    (void)s;
    struct args a = {.k = d->kernels,
                     .losses = losses,
                     .inout = logits,
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
    float *param, *exp_avg, *exp_avg_sq;
    const float *grad;
    size_t elems;
    const struct dev_adamw *a;
};

static void adamw_part(void *arg, size_t part, size_t parts) {
    struct adamw_args *w = arg;
    struct span s = span_of(w->elems, CUT_ELEMS, part, parts);
    w->k->adamw(w->param + s.first, w->exp_avg + s.first, w->exp_avg_sq + s.first,
                w->grad + s.first, s.count, w->a);
}

int cpu_adamw(struct device *d, struct dev_stream *s, float *param, float *exp_avg,
              float *exp_avg_sq, const float *grad, size_t elems, const struct dev_adamw *a) {
    (void)s;
    struct adamw_args w = {d->kernels, param, exp_avg, exp_avg_sq, grad, elems, a};
    cpu_run(d, elems, adamw_part, &w);
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
