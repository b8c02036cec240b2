/* cpu.c - the CPU device: every operation is done when it returns, so streams and events are only
 * names. */
#include "config.h"

#include "device/cpu/cpu.h"

#include <cblas.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#include "base/segment.h"

struct dev_stream {
    enum dev_stream_kind kind;
};

struct dev_event {
    const char *what;
};

int cpu_open_with(const struct cpu_kernels *kernels, uint32_t threads, struct device **out) {
    struct device *d = calloc(1, sizeof(*d));
    if (d == NULL)
        return -ENOMEM;
    d->kernels = kernels;
    int rc = team_open(threads, &d->team);
    if (rc != 0)
        goto no_team;
    if (kernels->gemm != NULL) {
        d->gemm_scratch_bytes =
            team_threads(d->team) * kernels->gemm->scratch_elems() * sizeof(float);
        d->gemm_scratch = segment_private_alloc(d->gemm_scratch_bytes);
        rc = d->gemm_scratch != NULL ? 0 : -ENOMEM;
        if (rc != 0)
            goto no_scratch;
    }
    *out = d;
    return 0;
no_scratch:
    team_close(d->team);
no_team:
    free(d);
    return rc;
}

static int cpu_open(uint32_t threads, struct device **out, struct err *err) {
    enum { MOST_THREADS = 4096 };
    if (threads < 1 || threads > MOST_THREADS)
        return err_set(err, EINVAL, "%u threads: expected 1 to %d", threads, MOST_THREADS);
    int rc = cpu_open_with(cpu_kernels_best(), threads, out);
    if (rc != 0)
        return err_set(err, -rc, "cannot start %u threads", threads);
    return 0;
}

static void cpu_close(struct device *d) {
    if (d == NULL)
        return;
    team_close(d->team);
    free(d);
}

static int cpu_alloc(struct device *d, enum dev_memory kind, size_t bytes, const char *what,
                     void **out) {
    (void)d, (void)kind, (void)what;
    void *p = segment_private_alloc(bytes);
    if (p == NULL)
        return -ENOMEM;
    *out = p;
    return 0;
}

static void cpu_free(struct device *d, enum dev_memory kind, void *p, size_t bytes) {
    (void)d, (void)kind;
    if (p != NULL)
        segment_private_free(p, bytes);
}

static int cpu_stream_open(struct device *d, enum dev_stream_kind kind, struct dev_stream **out) {
    (void)d;
    struct dev_stream *s = malloc(sizeof(*s));
    if (s == NULL)
        return -ENOMEM;
    s->kind = kind;
    *out = s;
    return 0;
}

static void cpu_stream_close(struct device *d, struct dev_stream *s) {
    (void)d;
    free(s);
}

static int cpu_event_open(struct device *d, const char *what, struct dev_event **out) {
    (void)d;
    struct dev_event *e = malloc(sizeof(*e));
    if (e == NULL)
        return -ENOMEM;
    e->what = what;
    *out = e;
    return 0;
}

static void cpu_event_close(struct device *d, struct dev_event *e) {
    (void)d;
    free(e);
}

static int cpu_event_record(struct device *d, struct dev_stream *s, struct dev_event *e) {
    (void)d, (void)s, (void)e;
    return 0;
}

static int cpu_stream_wait(struct device *d, struct dev_stream *s, struct dev_event *e) {
    (void)d, (void)s, (void)e;
    return 0;
}

static int cpu_event_synchronize(struct device *d, struct dev_event *e) {
    (void)d, (void)e;
    return 0;
}

struct gemm_args {
    const struct cpu_gemm_kernel *kernel;
    struct cpu_gemm g;
    float *scratch;
};

/* The longer side of c is shared out, in whole panels. */
static void gemm_part(void *arg, size_t part, size_t parts) {
    struct gemm_args *a = arg;
    const struct cpu_gemm *g = &a->g;
    size_t rows = (g->m + a->kernel->row_unit - 1) / a->kernel->row_unit;
    size_t columns = (g->n + a->kernel->column_unit - 1) / a->kernel->column_unit;
    bool by_rows = g->m > g->n;
    size_t units = by_rows ? rows : columns,
           unit = by_rows ? a->kernel->row_unit : a->kernel->column_unit;
    size_t whole = by_rows ? g->m : g->n, first = units * part / parts * unit,
           end = units * (part + 1) / parts * unit;
    float *scratch = a->scratch + part * a->kernel->scratch_elems();
    end = end < whole ? end : whole;
    if (first >= end)
        return;
    if (by_rows)
        a->kernel->multiply(g, first, end - first, 0, g->n, scratch);
    else
        a->kernel->multiply(g, 0, g->m, first, end - first, scratch);
}

int cpu_gemm(struct device *d, struct dev_stream *s, bool trans_a, bool trans_b, size_t m, size_t n,
             size_t k, float alpha, const float *a, size_t lda, const float *b, size_t ldb,
             float beta, float *c, size_t ldc) {
    (void)s;
    if (m > INT_MAX || n > INT_MAX || k > INT_MAX || lda > INT_MAX || ldb > INT_MAX ||
        ldc > INT_MAX)
        return -EOVERFLOW;
    if (m == 0 || n == 0)
        return 0;
    if (d->kernels->gemm != NULL) {
        struct gemm_args g = {d->kernels->gemm,
                              {trans_a, trans_b, m, n, k, alpha, beta, a, b, c, lda, ldb, ldc},
                              d->gemm_scratch};
        cpu_run(d, m * n / 64 * k, gemm_part,
                &g); /* 64 products cost as much as an element elsewhere */
        return 0;
    }
    int threads = (int)team_threads(d->team);
    if (openblas_get_num_threads() != threads) /* it belongs to the process */
        openblas_set_num_threads(threads);
    cblas_sgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans,
                trans_b ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k, alpha, a, (int)lda, b,
                (int)ldb, beta, c, (int)ldc);
    return 0;
}

const struct device_ops device_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .stream_open = cpu_stream_open,
    .stream_close = cpu_stream_close,
    .event_open = cpu_event_open,
    .event_close = cpu_event_close,
    .event_record = cpu_event_record,
    .stream_wait = cpu_stream_wait,
    .event_synchronize = cpu_event_synchronize,
    .copy = cpu_copy,
    .fill = cpu_fill,
    .add = cpu_add,
    .gemm = cpu_gemm,
    .embed_forward = cpu_embed_forward,
    .embed_backward = cpu_embed_backward,
    .layernorm_forward = cpu_layernorm_forward,
    .layernorm_backward = cpu_layernorm_backward,
    .bias_forward = cpu_bias_forward,
    .bias_backward = cpu_bias_backward,
    .bias_gelu_forward = cpu_bias_gelu_forward,
    .gelu_backward = cpu_gelu_backward,
    .bias_residual_forward = cpu_bias_residual_forward,
    .attention_scratch_elems = cpu_attention_scratch_elems,
    .attention_forward = cpu_attention_forward,
    .attention_backward = cpu_attention_backward,
    .softmax_xent = cpu_softmax_xent,
    .sum = cpu_sum,
    .sum_squares = cpu_sum_squares,
    .adamw = cpu_adamw,
    .init_normal = cpu_init_normal,
};
