/* gpu_check_bench_kernels.c - how long each operation takes at the shapes of GPT-2 124M, beside
 * what the device's memory and arithmetic allow.
 *
 * Bytes and operations are those that cannot be avoided: each tensor read or written once, and of
 * causal attention the half that is not masked. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/data.h"
#include "tests/cuda/gpu_check_rig.h"

enum buffer {
    X0, /* X*: (N, 4C) of t */
    X1,
    X2,
    X3,
    LOGITS,  /* (rows, ldl) of t */
    WEIGHTS, /* (V, C) of t */
    GRADS,   /* (V, C) of f32 */
    P0,      /* P*: (P) f32 */
    P1,
    P2,
    P3,
    STATS,   /* (2, N), (B, NH, T): f32 */
    SCRATCH, /* of attention */
    TOKENS,  /* (N) i32 */
    BUFFERS
};

struct bench {
    const struct check_options *o;
    const struct device_ops *ops;
    struct device *dev;
    struct dev_stream *stream;
    struct dev_event *event;
    struct device_properties properties;
    enum dtype t;
    bool tensor_cores;
    size_t B, T, C, NH, V, N, rows, ldl, P;
    void *memory[BUFFERS];
    size_t bytes[BUFFERS];
    double *host; /* pinned */
};

/* One operation, its arguments, and what it cannot do without. */
struct timed {
    const char *name;
    char shape[80];
    int (*run)(const struct bench *b, const struct timed *c);
    double bytes, operations;
    size_t m, n, k; /* of products */
    bool trans_a, trans_b, c_f32;
};

/* ---- memory */

static int synchronize(const struct bench *b) {
    int rc = b->ops->event_record(b->dev, b->stream, b->event);
    return rc != 0 ? rc : b->ops->event_synchronize(b->dev, b->event);
}

static int buffer_open(struct bench *b, enum buffer i, size_t bytes) {
    int rc = b->ops->alloc(b->dev, DEV_MEM_DEVICE, bytes, "benchmark", &b->memory[i]);
    if (rc == 0)
        b->bytes[i] = bytes;
    return rc;
}

/* Numbers as training has them: zeros would cost less power, and a processor that gets less power
 * is slower. */
static int buffer_fill(const struct bench *b, enum buffer i, enum dtype t) {
    size_t elems = b->bytes[i] / dtype_bytes(t), part = b->P;
    int rc = 0;
    for (size_t at = 0; at < elems && rc == 0; at += part) {
        size_t n = elems - at < part ? elems - at : part;
        char *dst = (char *)b->memory[i] + at * dtype_bytes(t);
        rc = b->ops->init_normal(b->dev, b->stream, b->memory[P0], n, 1, i, at, 0, 0.5f);
        if (rc == 0 && dst != b->memory[P0])
            rc = b->ops->cast(b->dev, b->stream, dst, t, b->memory[P0], DTYPE_F32, n);
    }
    return rc;
}

static int tokens_fill(struct bench *b) {
    void *host = NULL;
    int rc = b->ops->alloc(b->dev, DEV_MEM_HOST, b->N * sizeof(int32_t), "tokens", &host);
    struct data *d = run_data_open(b->N, b->V, 3);
    int32_t *unused = malloc(b->N * sizeof *unused);
    if (rc == 0 && (d == NULL || unused == NULL))
        rc = -ENOMEM;
    if (rc == 0)
        rc = data_sequence(d, 0, host, unused, NULL);
    if (rc == 0)
        rc = b->ops->copy(b->dev, b->stream, b->memory[TOKENS], host, b->N * sizeof(int32_t));
    if (rc == 0)
        rc = synchronize(b);
    free(unused);
    run_data_close(d);
    b->ops->free(b->dev, DEV_MEM_HOST, host, b->N * sizeof(int32_t));
    return rc;
}

static void buffers_close(struct bench *b) {
    for (size_t i = 0; i < BUFFERS; i++) {
        b->ops->free(b->dev, DEV_MEM_DEVICE, b->memory[i], b->bytes[i]);
        b->memory[i] = NULL;
    }
}

static int buffers_open(struct bench *b) {
    size_t elem = dtype_bytes(b->t), activations = b->N * 4 * b->C * elem;
    size_t scratch = b->ops->attention_scratch_bytes(b->dev, b->t, b->B, b->T, b->C, b->NH);
    const size_t bytes[BUFFERS] = {
        [X0] = activations,
        [X1] = activations,
        [X2] = activations,
        [X3] = activations,
        [LOGITS] = b->rows * b->ldl * elem,
        [WEIGHTS] = b->V * b->C * elem,
        [GRADS] = b->V * b->C * sizeof(float),
        [P0] = b->P * sizeof(float),
        [P1] = b->P * sizeof(float),
        [P2] = b->P * sizeof(float),
        [P3] = b->P * sizeof(float),
        [STATS] = (2 * b->N + b->N * b->NH) * sizeof(float),
        [SCRATCH] = scratch,
        [TOKENS] = b->N * sizeof(int32_t),
    };
    static const enum buffer floats[] = {GRADS, P1, P3, STATS, P0};
    int rc = 0;
    for (size_t i = 0; i < BUFFERS && rc == 0; i++)
        rc = buffer_open(b, (enum buffer)i, bytes[i]);
    for (size_t i = X0; i <= WEIGHTS && rc == 0; i++)
        rc = buffer_fill(b, (enum buffer)i, b->t);
    for (size_t i = 0; i < sizeof floats / sizeof *floats && rc == 0; i++)
        rc = buffer_fill(b, floats[i], DTYPE_F32);
    if (rc == 0) /* squares */
        rc = b->ops->fill(b->dev, b->stream, b->memory[P2], DTYPE_F32, b->P, 1e-4f);
    return rc == 0 ? tokens_fill(b) : rc;
}

/* ---- operations */

#define STREAM b->dev, b->stream
#define AT(i) b->memory[i]

static int run_embed_forward(const struct bench *b, const struct timed *c) {
    (void)c;
    return b->ops->embed_forward(STREAM, b->t, AT(X0), AT(TOKENS), AT(WEIGHTS), AT(X1), b->B, b->T,
                                 b->C);
}
static int run_embed_backward(const struct bench *b, const struct timed *c) {
    (void)c;
    return b->ops->embed_backward(STREAM, b->t, DTYPE_F32, AT(GRADS), AT(P1), AT(X0), AT(TOKENS),
                                  b->B, b->T, b->C, b->V);
}
static int run_layernorm_forward(const struct bench *b, const struct timed *c) {
    float *stats = AT(STATS);
    (void)c;
    return b->ops->layernorm_forward(STREAM, b->t, AT(X1), stats, stats + b->N, AT(X0), AT(WEIGHTS),
                                     AT(WEIGHTS), b->N, b->C, 1e-5f);
}
static int run_residual(const struct bench *b, const struct timed *c) {
    float *stats = AT(STATS);
    (void)c;
    return b->ops->residual_layernorm_forward(STREAM, b->t, AT(X2), AT(X3), stats, stats + b->N,
                                              AT(X0), AT(X1), AT(WEIGHTS), AT(WEIGHTS), AT(WEIGHTS),
                                              b->N, b->C, 1e-5f);
}
static int run_layernorm_backward(const struct bench *b, const struct timed *c) {
    float *stats = AT(STATS), *grads = AT(GRADS);
    (void)c;
    return b->ops->layernorm_backward(STREAM, b->t, DTYPE_F32, AT(X2), true, grads, grads + b->C,
                                      AT(X0), AT(X1), AT(WEIGHTS), stats, stats + b->N, b->N, b->C);
}
static int run_bias_forward(const struct bench *b, const struct timed *c) {
    (void)c;
    return b->ops->bias_forward(STREAM, b->t, AT(X0), AT(WEIGHTS), b->N, 3 * b->C);
}
static int run_bias_backward(const struct bench *b, const struct timed *c) {
    (void)c;
    return b->ops->bias_backward(STREAM, b->t, DTYPE_F32, AT(GRADS), AT(X0), b->N, 4 * b->C);
}
static int run_gelu_forward(const struct bench *b, const struct timed *c) {
    (void)c;
    return b->ops->bias_gelu_forward(STREAM, b->t, AT(X1), AT(X0), AT(WEIGHTS), b->N, 4 * b->C);
}
static int run_gelu_backward(const struct bench *b, const struct timed *c) {
    (void)c;
    return b->ops->gelu_backward(STREAM, b->t, AT(X1), AT(X0), b->N, 4 * b->C);
}
static int run_attention_forward(const struct bench *b, const struct timed *c) {
    (void)c;
    return b->ops->attention_forward(STREAM, b->t, AT(X1), AT(STATS), AT(X0), AT(SCRATCH), b->B,
                                     b->T, b->C, b->NH);
}
static int run_attention_backward(const struct bench *b, const struct timed *c) {
    (void)c;
    return b->ops->attention_backward(STREAM, b->t, AT(X3), AT(X2), AT(X1), AT(STATS), AT(X0),
                                      AT(SCRATCH), b->B, b->T, b->C, b->NH);
}
static int run_softmax_xent(const struct bench *b, const struct timed *c) {
    (void)c;
    return b->ops->softmax_xent(STREAM, b->t, AT(STATS), AT(LOGITS), b->ldl, AT(TOKENS), b->rows,
                                b->V, 1e-4f, true);
}
static int run_sum_squares(const struct bench *b, const struct timed *c) {
    (void)c;
    return b->ops->sum_squares(STREAM, b->host, AT(P1), b->P);
}
static int run_adamw(const struct bench *b, const struct timed *c) {
    static const struct dev_adamw a = {.lr = 1e-4,
                                       .beta1 = 0.9,
                                       .beta2 = 0.95,
                                       .eps = 1e-8,
                                       .weight_decay = 0.1,
                                       .grad_scale = 1,
                                       .correction1 = 0.1,
                                       .correction2 = 0.05};
    (void)c;
    return b->ops->adamw(STREAM, AT(P0), AT(P1), AT(P2), AT(P3), b->t == DTYPE_BF16 ? AT(X0) : NULL,
                         b->t, b->P, &a);
}
static int run_cast(const struct bench *b, const struct timed *c) {
    (void)c;
    return b->ops->cast(STREAM, AT(P1), DTYPE_BF16, AT(P0), DTYPE_F32, b->P);
}
static int run_add(const struct bench *b, const struct timed *c) {
    (void)c;
    return b->ops->add(STREAM, AT(P1), AT(P0), b->t, b->P);
}
static int run_copy(const struct bench *b, const struct timed *c) {
    (void)c;
    return b->ops->copy(STREAM, AT(P1), AT(P0), b->P * sizeof(float));
}
static int run_gemm(const struct bench *b, const struct timed *c) {
    bool logits = c->n == b->V || c->m == b->V || c->k == b->V;
    const void *a = logits && c->n != b->V ? AT(LOGITS) : AT(X0);
    const void *right = c->k == b->N || (logits && c->m == b->V) ? AT(X1) : AT(WEIGHTS);
    void *out = c->c_f32 ? AT(GRADS) : c->n == b->V ? AT(LOGITS) : AT(X2);
    size_t lda = a == AT(LOGITS) ? b->ldl : c->trans_a ? c->m : c->k;
    size_t ldc = out == AT(LOGITS) ? b->ldl : c->n;
    return b->ops->gemm(STREAM, b->t, c->c_f32 ? DTYPE_F32 : b->t, c->trans_a, c->trans_b, c->m,
                        c->n, c->k, 1, a, lda, right, c->trans_b ? c->k : c->n, 0, out, ldc);
}

/* ---- measuring */

/* Seconds of one, of `count` in a row. */
static int seconds_of(const struct bench *b, const struct timed *c, unsigned count, double *out) {
    double start = check_now();
    int rc = 0;
    for (unsigned i = 0; i < count && rc == 0; i++)
        rc = c->run(b, c);
    if (rc == 0)
        rc = synchronize(b);
    *out = (check_now() - start) / count;
    return rc;
}

/* The best of some rounds, each long enough that its beginning and end do not count. */
static int measure(const struct bench *b, const struct timed *c, double *best) {
    const double round_s = b->o->small ? 0 : b->o->quick ? 0.02 : 0.1;
    const unsigned rounds = b->o->small ? 1 : b->o->quick ? 3 : 5;
    unsigned count = 1;
    double s = 0;
    int rc = seconds_of(b, c, 1, &s); /* code is loaded, plans are made */
    if (rc == 0)
        rc = seconds_of(b, c, 2, &s);
    if (s < round_s)
        count = (unsigned)(round_s / (s > 1e-6 ? s : 1e-6)) + 1;
    *best = 1e9;
    for (unsigned i = 0; i < rounds && rc == 0; i++) {
        rc = seconds_of(b, c, count, &s);
        *best = s < *best ? s : *best;
    }
    return rc;
}

static int row(const struct bench *b, const struct timed *c, struct err *err) {
    char name[80], rate[48];
    double s = 0;
    int rc = measure(b, c, &s);
    if (rc != 0)
        return device_failed(b->ops, b->dev, rc, err, "%s", c->name);
    double by_bytes = b->properties.bandwidth > 0 ? c->bytes / b->properties.bandwidth : 0;
    double flops = b->properties.flops[b->t];
    double by_operations = flops > 0 ? c->operations / flops : 0;
    bool arithmetic = c->operations > 0 && by_operations >= by_bytes;
    if (arithmetic)
        snprintf(rate, sizeof rate, "%.1f TFLOP/s", c->operations / s / 1e12);
    else
        snprintf(rate, sizeof rate, "%.0f GB/s", c->bytes / s / 1e9);
    snprintf(name, sizeof name, "%s%s", c->name,
             b->tensor_cores ? (b->t == DTYPE_BF16 ? " (tc)" : " (tf32)") : "");
    check_kernel_row(name, c->shape, s * 1e3, rate, 1e3 * (arithmetic ? by_operations : by_bytes));
    return 0;
}

static struct timed product(const struct bench *b, const char *name, bool trans_a, bool trans_b,
                            size_t m, size_t n, size_t k) {
    double elem = (double)dtype_bytes(b->t);
    struct timed c = {.name = name,
                      .run = run_gemm,
                      .m = m,
                      .n = n,
                      .k = k,
                      .trans_a = trans_a,
                      .trans_b = trans_b,
                      .c_f32 = trans_a}; /* gradients of weights */
    c.operations = 2.0 * (double)m * (double)n * (double)k;
    c.bytes = elem * ((double)m * (double)k + (double)k * (double)n) +
              (c.c_f32 ? 4 : elem) * (double)m * (double)n;
    snprintf(c.shape, sizeof c.shape, "%s %s%s m %zu n %zu k %zu", dtype_name(b->t),
             trans_a ? "T" : "N", trans_b ? "T" : "N", m, n, k);
    return c;
}

static int rows_of_products(const struct bench *b, struct err *err) {
    const size_t N = b->N, C = b->C, R = b->rows, V = b->V;
    const struct timed all[] = {
        product(b, "gemm qkv", false, false, N, 3 * C, C),
        product(b, "gemm qkv, din", false, true, N, C, 3 * C),
        product(b, "gemm qkv, dweight", true, false, C, 3 * C, N),
        product(b, "gemm attn proj", false, false, N, C, C),
        product(b, "gemm fc", false, false, N, 4 * C, C),
        product(b, "gemm fc, din", false, true, N, C, 4 * C),
        product(b, "gemm fc, dweight", true, false, C, 4 * C, N),
        product(b, "gemm fc proj", false, false, N, C, 4 * C),
        product(b, "gemm fc proj, din", false, true, N, 4 * C, C),
        product(b, "gemm logits", false, true, R, V, C),
        product(b, "gemm logits, din", false, false, R, C, V),
        product(b, "gemm logits, dwte", true, false, V, C, R),
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all && rc == 0; i++)
        rc = row(b, &all[i], err);
    return rc;
}

static int rows_of_attention(const struct bench *b, struct err *err) {
    double NC = (double)b->N * (double)b->C, elem = (double)dtype_bytes(b->t);
    struct timed all[] = {
        {.name = "attention_forward",
         .run = run_attention_forward,
         .bytes = 4 * NC * elem,
         .operations = 2 * NC * (double)b->T},
        {.name = "attention_backward",
         .run = run_attention_backward,
         .bytes = 8 * NC * elem,
         .operations = 5 * NC * (double)b->T},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all && rc == 0; i++) {
        snprintf(all[i].shape, sizeof all[i].shape, "%s B %zu T %zu C %zu NH %zu", dtype_name(b->t),
                 b->B, b->T, b->C, b->NH);
        rc = row(b, &all[i], err);
    }
    return rc;
}

static int rows_of_activations(const struct bench *b, struct err *err) {
    double N = (double)b->N, C = (double)b->C, V = (double)b->V, T = (double)b->T;
    double e = (double)dtype_bytes(b->t), NC = N * C, touched = V < N ? V : N;
    struct timed all[] = {
        {"embed_forward", "", run_embed_forward, (2 * NC + T * C) * e, 0, .n = b->C},
        {"embed_backward", "", run_embed_backward, NC * e + 8 * (touched + T) * C, 0, .n = b->C},
        {"layernorm_forward", "", run_layernorm_forward, 2 * NC * e, 0, .n = b->C},
        {"residual_layernorm_forward", "", run_residual, 4 * NC * e, 0, .n = b->C},
        {"layernorm_backward", "", run_layernorm_backward, 4 * NC * e, 0, .n = b->C},
        {"bias_forward", "", run_bias_forward, 6 * NC * e, 0, .n = 3 * b->C},
        {"bias_backward", "", run_bias_backward, 4 * NC * e, 0, .n = 4 * b->C},
        {"bias_gelu_forward", "", run_gelu_forward, 12 * NC * e, 0, .n = 4 * b->C},
        {"gelu_backward", "", run_gelu_backward, 12 * NC * e, 0, .n = 4 * b->C},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all && rc == 0; i++) {
        snprintf(all[i].shape, sizeof all[i].shape, "%s N %zu C %zu", dtype_name(b->t), b->N,
                 all[i].n);
        rc = row(b, &all[i], err);
    }
    struct timed loss = {"softmax_xent", "", run_softmax_xent, 2 * (double)b->rows * V * e, 0,
                         .n = b->V};
    snprintf(loss.shape, sizeof loss.shape, "%s N %zu V %zu", dtype_name(b->t), b->rows, b->V);
    return rc == 0 ? row(b, &loss, err) : rc;
}

static int rows_of_parameters(const struct bench *b, struct err *err) {
    double P = (double)b->P, e = (double)dtype_bytes(b->t);
    struct timed all[] = {
        {"adamw", "", run_adamw, P * (28 + (b->t == DTYPE_BF16 ? 2 : 0)), 0, .n = 0},
        {"sum_squares", "", run_sum_squares, P * 4, 0, .n = 0},
        {"add", "", run_add, P * (8 + e), 0, .n = 0},
        {"cast f32 to bf16", "", run_cast, P * 6, 0, .n = 0},
        {"copy", "", run_copy, P * 8, 0, .n = 0},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all && rc == 0; i++) {
        snprintf(all[i].shape, sizeof all[i].shape, "%s %zu elements", dtype_name(b->t), b->P);
        rc = row(b, &all[i], err);
    }
    return rc;
}

/* ---- the table */

/* More than the caches hold, and no more than a third of the memory that is free. */
static void shapes_choose(struct bench *b) {
    struct gpt2_shape s = run_shape_124m();
    size_t free_bytes = b->properties.memory_free_bytes;
    b->T = s.context;
    b->C = s.width;
    b->NH = s.heads;
    b->V = s.vocab;
    b->B = 32;
    b->P = (size_t)32 << 20;
    b->rows = b->ops->logits_rows != 0 ? b->ops->logits_rows : 512;
    if (b->o->small) {
        b->T = 16;
        b->C = 24;
        b->NH = 3;
        b->V = 257;
        b->B = 1;
        b->P = 1000;
        b->rows = 16;
    }
    while (b->B > 4 && b->B * b->T * 4 * b->C * 4 * dtype_bytes(b->t) > free_bytes / 3)
        b->B /= 2;
    b->N = b->B * b->T;
    b->ldl = (b->V + 63) / 64 * 64;
    if (b->P > b->N * 4 * b->C) /* a copy of the parameters goes to X0 */
        b->P = b->N * 4 * b->C;
    if (b->rows > b->N)
        b->rows = b->N;
}

static int bench_rows(struct bench *b, struct err *err) {
    int rc = 0;
    if (b->tensor_cores)
        return b->t == DTYPE_BF16 ? rows_of_attention(b, err) : rows_of_products(b, err);
    rc = rows_of_products(b, err);
    if (rc == 0)
        rc = rows_of_attention(b, err);
    if (rc == 0)
        rc = rows_of_activations(b, err);
    return rc == 0 ? rows_of_parameters(b, err) : rc;
}

static int bench_with_device(struct bench *b, struct err *err) {
    void *host = NULL;
    int rc = b->ops->properties(b->dev, &b->properties);
    if (rc == 0)
        rc = b->ops->stream_open(b->dev, DEV_STREAM_COMPUTE, &b->stream);
    if (rc == 0)
        rc = b->ops->event_open(b->dev, "benchmark", &b->event);
    if (rc == 0)
        rc = b->ops->alloc(b->dev, DEV_MEM_HOST, sizeof *b->host, "benchmark", &host);
    b->host = host;
    if (rc == 0) {
        shapes_choose(b);
        rc = buffers_open(b);
    }
    if (rc != 0)
        device_failed(b->ops, b->dev, rc, err, "what the benchmark needs");
    else
        rc = bench_rows(b, err);
    buffers_close(b);
    if (host != NULL)
        b->ops->free(b->dev, DEV_MEM_HOST, host, sizeof *b->host);
    if (b->event != NULL)
        b->ops->event_close(b->dev, b->event);
    if (b->stream != NULL)
        b->ops->stream_close(b->dev, b->stream);
    return rc;
}

void bench_kernels(const struct check_test *t, const struct check_options *o) {
    struct bench b = {.o = o, .ops = check_device, .t = t->dtype, .tensor_cores = t->tensor_cores};
    struct device_args args = {.threads = 1, .tensor_cores = t->tensor_cores};
    struct err err = {0};
    int rc = b.ops->open(&args, &b.dev, &err);
    if (rc == 0) {
        rc = bench_with_device(&b, &err);
        b.ops->close(b.dev);
    }
    if (rc != 0)
        check_failed(t->name, "%s", err.text);
    else
        check_passed(t->name, "see the table of times");
}
