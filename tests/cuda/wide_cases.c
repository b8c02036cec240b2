/* wide_cases.c - kernel cases of more elements than 32 bits count, for real devices: only the end
 * of each tensor is looked at, and the reference makes that alone. */
#include "tests/cuda/kernel_cases.h"

#include <errno.h>

struct wide_args {
    struct kc_tensor *out, *in, *extra, *mean; /* the last rows */
    size_t N, C, rows;
};

enum { WIDE_C = 1032, WIDE_ROWS = 5 };
#define WIDE_EPS 1e-5f
static const size_t wide_N = (((size_t)1 << 32) / WIDE_C) + 77;

/* Scratch for the whole tensor, with the last rows of x at its end; NULL: no memory. */
static char *wide_of(struct kc_side *s, const struct wide_args *a, const struct kc_tensor *x,
                     size_t elem_bytes, char **last) {
    size_t end = a->rows * a->C * elem_bytes, bytes = a->N * a->C * elem_bytes;
    char *p = kc_scratch(s, bytes);
    if (p == NULL)
        return NULL;
    *last = p + bytes - end;
    if (x != NULL && s->ops->copy(s->dev, s->stream, *last, kc_at(s, x), end) != 0)
        return NULL;
    return p;
}

static int wide_leave(struct kc_side *s, const struct wide_args *a, const char *last,
                      size_t elem_bytes) {
    return s->ops->copy(s->dev, s->stream, kc_at(s, a->out), last, a->rows * a->C * elem_bytes);
}

static int run_wide_bias(struct kc_side *s, const void *arg) {
    const struct wide_args *a = arg;
    size_t elem = dtype_bytes(s->t);
    char *last;
    if (s->reference) {
        int rc = s->ops->copy(s->dev, s->stream, kc_at(s, a->out), kc_at(s, a->in),
                              a->rows * a->C * elem);
        return rc != 0 ? rc
                       : s->ops->bias_forward(s->dev, s->stream, s->t, kc_at(s, a->out),
                                              kc_at(s, a->extra), a->rows, a->C);
    }
    char *p = wide_of(s, a, a->in, elem, &last);
    if (p == NULL)
        return -ENOMEM;
    int rc = s->ops->bias_forward(s->dev, s->stream, s->t, p, kc_at(s, a->extra), a->N, a->C);
    return rc != 0 ? rc : wide_leave(s, a, last, elem);
}

static int run_wide_cast(struct kc_side *s, const void *arg) {
    const struct wide_args *a = arg;
    char *last_in, *last_out;
    if (s->reference)
        return s->ops->cast(s->dev, s->stream, kc_at(s, a->out), DTYPE_F32, kc_at(s, a->in),
                            DTYPE_F32, a->rows * a->C);
    char *in = wide_of(s, a, a->in, 4, &last_in), *out = wide_of(s, a, NULL, 2, &last_out);
    if (in == NULL || out == NULL)
        return -ENOMEM;
    int rc = s->ops->cast(s->dev, s->stream, out, DTYPE_BF16, in, DTYPE_F32, a->N * a->C);
    return rc != 0 ? rc : wide_leave(s, a, last_out, 2);
}

static int run_wide_norm(struct kc_side *s, const void *arg) {
    const struct wide_args *a = arg;
    size_t elem = dtype_bytes(s->t);
    char *in, *out, *last_in, *last_out;
    float *mean, *rstd;
    if (s->reference) {
        mean = kc_at(s, a->mean);
        return s->ops->layernorm_forward(s->dev, s->stream, s->t, kc_at(s, a->out), mean,
                                         mean + a->rows, kc_at(s, a->in), kc_at(s, a->extra),
                                         kc_at(s, a->extra), a->rows, a->C, WIDE_EPS);
    }
    in = wide_of(s, a, a->in, elem, &last_in);
    out = wide_of(s, a, NULL, elem, &last_out);
    mean = kc_scratch(s, a->N * sizeof(float));
    rstd = kc_scratch(s, a->N * sizeof(float));
    if (in == NULL || out == NULL || mean == NULL || rstd == NULL)
        return -ENOMEM;
    int rc =
        s->ops->layernorm_forward(s->dev, s->stream, s->t, out, mean, rstd, in, kc_at(s, a->extra),
                                  kc_at(s, a->extra), a->N, a->C, WIDE_EPS);
    size_t bytes = a->rows * sizeof(float);
    float *kept = kc_at(s, a->mean);
    if (rc == 0)
        rc = s->ops->copy(s->dev, s->stream, kept, mean + a->N - a->rows, bytes);
    if (rc == 0)
        rc = s->ops->copy(s->dev, s->stream, kept + a->rows, rstd + a->N - a->rows, bytes);
    return rc != 0 ? rc : wide_leave(s, a, last_out, elem);
}

/* As many ones as there are elements, and the last rows. */
static int run_wide_sum(struct kc_side *s, const void *arg) {
    const struct wide_args *a = arg;
    size_t elems = a->N * a->C, end = a->rows * a->C;
    if (s->reference) {
        double *out = kc_at(s, a->out);
        int rc = s->ops->sum(s->dev, s->stream, out, kc_at(s, a->in), end);
        *out += (double)(elems - end); /* host_access */
        return rc;
    }
    float *p = kc_scratch(s, elems * sizeof(float));
    if (p == NULL)
        return -ENOMEM;
    int rc = s->ops->fill(s->dev, s->stream, p, DTYPE_F32, elems, 1);
    if (rc == 0)
        rc = s->ops->copy(s->dev, s->stream, p + (elems - end), kc_at(s, a->in), end * 4);
    return rc != 0 ? rc : s->ops->sum(s->dev, s->stream, kc_at(s, a->out), p, elems);
}

static void wide_case(struct kc_frame *f, const char *name, struct kc_types types, kc_run_fn *run,
                      size_t bytes_an_element, double limit) {
    struct wide_args a = {.N = wide_N, .C = WIDE_C, .rows = WIDE_ROWS};
    struct kc *k = kc_begin(f, name, types, "N %zu C %zu, its last rows", a.N, a.C);
    if (k == NULL)
        return;
    size_t end = a.rows * a.C;
    if (run == run_wide_sum)
        a.out = kc_out(k, "out", KC_F64_HOST, 1);
    else
        a.out = kc_out(k, "out", run == run_wide_cast ? KC_BF16 : KC_T, end);
    a.in = kc_in(k, "in", run == run_wide_cast ? KC_F32 : KC_T, end, 1);
    a.extra = kc_in(k, "weight", KC_T, a.C, 1);
    if (run == run_wide_norm) {
        a.mean = kc_out(k, "mean and rstd", KC_F32, 2 * a.rows);
        kc_limit(a.mean, 1e-5);
    }
    kc_limit(a.out, limit);
    if (!kc_skip_without(k, a.N * a.C * bytes_an_element))
        kc_check(k, run, &a);
}

void kc_wide_cases(struct kc_frame *f) {
    wide_case(f, "bias_forward", kc_types[1], run_wide_bias, 2, 0);
    wide_case(f, "cast", kc_types[2], run_wide_cast, 6, 0);
    wide_case(f, "layernorm_forward", kc_types[1], run_wide_norm, 4, 4e-3);
    wide_case(f, "sum", kc_types[0], run_wide_sum, 4, 1e-12);
}
