/* bench_kernels.c - what a training step of one rank spends beside its matrix products.
 *
 * Usage: bench_kernels [--serve] [--dtype f32|bf16] [PRESET [B [T [THREADS [STEPS [KERNELS]]]]]]
 * (f32, gpt2:124M 4 256 1 3, the best kernels). Times the step's products alone, then whole steps
 * (forward, backward, norm, AdamW) through a table of operations that takes the time of each. The
 * best of STEPS counts. In bf16 parameters and activations are bf16, gradients f32.
 *
 * --serve: for tools/bench, which measures what several processes take at once. One step; then each
 * line of standard input, "own" or "blas" (the step's products), "copy BYTES" or "step", is done
 * once and answered with seconds of the clock and seconds of processor time; before the answer to
 * "step" come its operations. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/cpu/cpu.h"
#include "model_harness.h"

enum { OP_MAX = 32, GEMM_MAX = 4096 };

struct op_time {
    const char *name;
    double seconds;
    unsigned calls;
};

struct gemm_call {
    size_t m, n, k;
    float beta;
    bool trans_a, trans_b;
    enum dtype t, c_dtype;
};

static struct op_time op_times[OP_MAX];
static struct gemm_call gemm_calls[GEMM_MAX];
static size_t gemm_count;

/* With one thread its CPU time: others on this machine do not count. */
static clockid_t the_clock = CLOCK_THREAD_CPUTIME_ID;

static double clock_seconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double now(void) { return clock_seconds(the_clock); }

static void count(const char *name, double since) {
    double seconds = now() - since;
    for (size_t i = 0; i < OP_MAX; i++) {
        struct op_time *o = &op_times[i];
        if (o->name != NULL && strcmp(o->name, name) != 0)
            continue;
        o->name = name;
        o->seconds += seconds;
        o->calls++;
        return;
    }
}

/* Wraps device operation `name`: same parameters, timed. */
#define TIMED(name, params, ...)                                                                   \
    static int timed_##name params {                                                               \
        double since = now();                                                                      \
        int rc = device_cpu.name(__VA_ARGS__);                                                     \
        count(#name, since);                                                                       \
        return rc;                                                                                 \
    }

TIMED(fill,
      (struct device * d, struct dev_stream *s, void *dst, enum dtype t, size_t elems, float value),
      d, s, dst, t, elems, value)
TIMED(embed_forward,
      (struct device * d, struct dev_stream *s, enum dtype t, void *out, const int32_t *tokens,
       const void *wte, const void *wpe, size_t B, size_t T, size_t C),
      d, s, t, out, tokens, wte, wpe, B, T, C)
TIMED(embed_backward,
      (struct device * d, struct dev_stream *s, enum dtype t, enum dtype g, void *dwte, void *dwpe,
       const void *dout, const int32_t *tokens, size_t B, size_t T, size_t C, size_t V),
      d, s, t, g, dwte, dwpe, dout, tokens, B, T, C, V)
TIMED(layernorm_forward,
      (struct device * d, struct dev_stream *s, enum dtype t, void *out, float *mean, float *rstd,
       const void *in, const void *weight, const void *bias, size_t N, size_t C, float eps),
      d, s, t, out, mean, rstd, in, weight, bias, N, C, eps)
TIMED(residual_layernorm_forward,
      (struct device * d, struct dev_stream *s, enum dtype t, void *sum, void *out, float *mean,
       float *rstd, const void *residual, const void *in, const void *in_bias, const void *weight,
       const void *bias, size_t N, size_t C, float eps),
      d, s, t, sum, out, mean, rstd, residual, in, in_bias, weight, bias, N, C, eps)
TIMED(layernorm_backward,
      (struct device * d, struct dev_stream *s, enum dtype t, enum dtype g, void *din,
       bool accumulate, void *dweight, void *dbias, const void *dout, const void *in,
       const void *weight, const float *mean, const float *rstd, size_t N, size_t C),
      d, s, t, g, din, accumulate, dweight, dbias, dout, in, weight, mean, rstd, N, C)
TIMED(bias_forward,
      (struct device * d, struct dev_stream *s, enum dtype t, void *inout, const void *bias,
       size_t N, size_t C),
      d, s, t, inout, bias, N, C)
TIMED(bias_backward,
      (struct device * d, struct dev_stream *s, enum dtype t, enum dtype g, void *dbias,
       const void *dout, size_t N, size_t C),
      d, s, t, g, dbias, dout, N, C)
TIMED(bias_gelu_forward,
      (struct device * d, struct dev_stream *s, enum dtype t, void *out, void *pre,
       const void *bias, size_t N, size_t C),
      d, s, t, out, pre, bias, N, C)
TIMED(gelu_backward,
      (struct device * d, struct dev_stream *s, enum dtype t, void *inout, const void *pre,
       size_t N, size_t C),
      d, s, t, inout, pre, N, C)
TIMED(attention_forward,
      (struct device * d, struct dev_stream *s, enum dtype t, void *out, float *lse,
       const void *qkv, void *scratch, size_t B, size_t T, size_t C, size_t NH),
      d, s, t, out, lse, qkv, scratch, B, T, C, NH)
TIMED(attention_backward,
      (struct device * d, struct dev_stream *s, enum dtype t, void *dqkv, const void *dout,
       const void *out, const float *lse, const void *qkv, void *scratch, size_t B, size_t T,
       size_t C, size_t NH),
      d, s, t, dqkv, dout, out, lse, qkv, scratch, B, T, C, NH)
TIMED(softmax_xent,
      (struct device * d, struct dev_stream *s, enum dtype t, float *losses, void *logits,
       size_t ldl, const int32_t *targets, size_t N, size_t V, float scale, bool backward),
      d, s, t, losses, logits, ldl, targets, N, V, scale, backward)
TIMED(sum_squares,
      (struct device * d, struct dev_stream *s, double *out, const float *in, size_t elems), d, s,
      out, in, elems)
TIMED(adamw,
      (struct device * d, struct dev_stream *s, float *param, float *exp_avg, float *exp_avg_sq,
       const float *grad, void *copy, enum dtype copy_dtype, size_t elems,
       const struct dev_adamw *a),
      d, s, param, exp_avg, exp_avg_sq, grad, copy, copy_dtype, elems, a)

static int timed_gemm(struct device *d, struct dev_stream *s, enum dtype t, enum dtype c_dtype,
                      bool trans_a, bool trans_b, size_t m, size_t n, size_t k, float alpha,
                      const void *a, size_t lda, const void *b, size_t ldb, float beta, void *c,
                      size_t ldc) {
    if (gemm_count < GEMM_MAX)
        gemm_calls[gemm_count++] = (struct gemm_call){m, n, k, beta, trans_a, trans_b, t, c_dtype};
    double since = now();
    int rc = device_cpu.gemm(d, s, t, c_dtype, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb,
                             beta, c, ldc);
    count("gemm", since);
    return rc;
}

static struct device_ops timed_ops(void) {
    struct device_ops ops = device_cpu;
    ops.fill = timed_fill;
    ops.gemm = timed_gemm;
    ops.embed_forward = timed_embed_forward;
    ops.embed_backward = timed_embed_backward;
    ops.layernorm_forward = timed_layernorm_forward;
    ops.layernorm_backward = timed_layernorm_backward;
    ops.bias_forward = timed_bias_forward;
    ops.bias_backward = timed_bias_backward;
    ops.bias_gelu_forward = timed_bias_gelu_forward;
    ops.gelu_backward = timed_gelu_backward;
    ops.residual_layernorm_forward = timed_residual_layernorm_forward;
    ops.attention_forward = timed_attention_forward;
    ops.attention_backward = timed_attention_backward;
    ops.softmax_xent = timed_softmax_xent;
    ops.sum_squares = timed_sum_squares;
    ops.adamw = timed_adamw;
    return ops;
}

/* The recorded products on memory of the step's own size, so that operands come from where they
 * would come from. */
static double gemms_alone(struct harness *h, struct device *dev) {
    double since = now();
    size_t at = 0, spare = h->elems / 2;
    for (size_t i = 0; i < gemm_count; i++) {
        const struct gemm_call *g = &gemm_calls[i];
        size_t lda = g->trans_a ? g->m : g->k, ldb = g->trans_b ? g->k : g->n, c = g->m * g->n,
               b = g->k * g->n, bytes = dtype_bytes(g->t), c_bytes = dtype_bytes(g->c_dtype);
        if (at + c > spare || at + b > spare)
            at = 0;
        bool large = b * bytes > h->arena_bytes / 2, large_c = c * c_bytes > h->arena_bytes / 2;
        const char *operand = (const char *)h->weights + (large ? 0 : at * bytes);
        char *result = (char *)h->grads + (large_c ? 0 : at * c_bytes);
        device_cpu.gemm(dev, h->stream, g->t, g->c_dtype, g->trans_a, g->trans_b, g->m, g->n, g->k,
                        1, h->arena, lda, operand, ldb, g->beta, result, g->n);
        at += b;
    }
    return now() - since;
}

static size_t argument(int argc, char **argv, int i, size_t otherwise) {
    return i < argc ? (size_t)strtoul(argv[i], NULL, 10) : otherwise;
}

static const struct cpu_kernels *kernels_of(const char *name) {
    for (size_t i = 0; cpu_kernels_all[i] != NULL; i++)
        if (strcmp(cpu_kernels_all[i]->name, name) == 0 && cpu_kernels_all[i]->usable())
            return cpu_kernels_all[i];
    fprintf(stderr, "bench_kernels: no kernels %s here\n", name);
    exit(2);
}

static void print_ops(double step) {
    for (size_t i = 0; i < OP_MAX && op_times[i].name != NULL; i++)
        printf("  %-24s %5u calls %9.1f ms  %5.1f%%\n", op_times[i].name, op_times[i].calls,
               1e3 * op_times[i].seconds, 100 * op_times[i].seconds / step);
}

static void print_times(double step, double gemms, double blas_gemms) {
    print_ops(step);
    printf("step %.3f s; its products alone %.3f s, ratio %.3f", step, gemms, step / gemms);
    if (blas_gemms > 0)
        printf("; by BLAS %.3f s, ratio %.3f", blas_gemms, step / blas_gemms);
    printf("\n");
}

/* Memory of this size is in no cache. */
static void copy_alone(struct harness *h, size_t bytes) {
    size_t whole = h->elems * sizeof(float);
    for (size_t done = 0; done < bytes; done += whole)
        memcpy(h->grads, h->params, bytes - done < whole ? bytes - done : whole);
}

static void step_alone(struct harness *h, const struct model_batch *batch) {
    memset(op_times, 0, sizeof(op_times));
    gemm_count = 0;
    double since = now();
    harness_train(h, batch, false);
    harness_update(h, 1e-4, 0.1, 1.0);
    print_ops(now() - since);
}

static void serve(struct harness *h, const struct model_batch *batch, struct device *own,
                  struct device *blas) {
    char line[64];
    harness_train(h, batch, false);
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin) != NULL) {
        double wall = clock_seconds(CLOCK_MONOTONIC), cpu = clock_seconds(CLOCK_PROCESS_CPUTIME_ID);
        if (strncmp(line, "copy ", 5) == 0)
            copy_alone(h, (size_t)strtoull(line + 5, NULL, 10));
        else if (strcmp(line, "step\n") == 0)
            step_alone(h, batch);
        else
            gemms_alone(h, strcmp(line, "blas\n") == 0 ? blas : own);
        printf("%.6f %.6f\n", clock_seconds(CLOCK_MONOTONIC) - wall,
               clock_seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu);
        fflush(stdout);
    }
}

static double smaller(double best, double x) { return best == 0 || x < best ? x : best; }

/* Options are taken out of the arguments. */
struct options {
    bool serves;
    enum dtype dtype;
};

static struct options options_take(int *argc, char ***argv) {
    struct options o = {false, DTYPE_F32};
    for (; *argc > 1 && strncmp((*argv)[1], "--", 2) == 0; (*argc)--, (*argv)++)
        if (strcmp((*argv)[1], "--serve") == 0)
            o.serves = true;
        else if (strcmp((*argv)[1], "--dtype") == 0 && *argc > 2) {
            o.dtype = strcmp((*argv)[2], "bf16") == 0 ? DTYPE_BF16 : DTYPE_F32;
            (*argc)--, (*argv)++;
        } else {
            fprintf(stderr, "bench_kernels: no option %s\n", (*argv)[1]);
            exit(2);
        }
    return o;
}

/* Best of `steps`, after one that touches the memory. */
static void measure(struct harness *h, const struct model_batch *batch, struct device *own,
                    struct device *blas, size_t steps) {
    double best = 0, best_gemms = 0, best_blas = 0;
    struct op_time best_times[OP_MAX] = {0};
    for (size_t i = 0; i <= steps; i++) {
        memset(op_times, 0, sizeof(op_times));
        gemm_count = 0;
        double since = now();
        double loss = harness_train(h, batch, false);
        double norm = harness_update(h, 1e-4, 0.1, 1.0);
        double step = now() - since, gemms = gemms_alone(h, own),
               blas_gemms = blas != NULL ? gemms_alone(h, blas) : 0;
        printf("step %zu: loss %.4f norm %.4f, %.3f s, products alone %.3f s\n", i, loss, norm,
               step, gemms);
        if (i > 0 && (best == 0 || step < best)) {
            best = step;
            memcpy(best_times, op_times, sizeof(op_times));
        }
        if (i > 0) {
            best_gemms = smaller(best_gemms, gemms);
            best_blas = smaller(best_blas, blas_gemms);
        }
    }
    memcpy(op_times, best_times, sizeof(op_times));
    print_times(best, best_gemms, best_blas);
}

int main(int argc, char **argv) {
    struct options options = options_take(&argc, &argv);
    size_t B = argument(argc, argv, 2, 4), T = argument(argc, argv, 3, 256),
           threads = argument(argc, argv, 4, 1), steps = argument(argc, argv, 5, 3);
    struct device_ops ops = timed_ops();
    the_clock = threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
    const struct cpu_kernels *kernels = argc > 6 ? kernels_of(argv[6]) : cpu_kernels_best();
    struct cpu_kernels without_gemm = *kernels;
    struct device *dev, *blas = NULL;
    struct harness h;
    struct err err = {0};
    without_gemm.gemm = NULL;
    char *config;
    if (model_config_text(argc > 1 ? argv[1] : "gpt2:124M", &config, &err) != 0 ||
        cpu_open_with(kernels, (uint32_t)threads, &dev) != 0 ||
        device_cpu.supports(dev, options.dtype, &err) != 0 ||
        (options.dtype == DTYPE_F32 &&
         cpu_open_with(&without_gemm, (uint32_t)threads, &blas) != 0)) {
        fprintf(stderr, "bench_kernels: %s\n", err.text);
        return 2;
    }
    harness_open(&h, &ops, dev, options.dtype, config, B, T);
    harness_init(&h, 1);
    int32_t *tokens = calloc(B * T, sizeof(*tokens)), *targets = calloc(B * T, sizeof(*targets));
    if (tokens == NULL || targets == NULL)
        abort();
    harness_tokens(tokens, targets, B, T, model_vocab(h.model));
    struct model_batch batch = {
        .tokens = tokens, .targets = targets, .B = B, .T = T, .loss_scale = 1.0f / (float)(B * T)};
    printf("%s in %s, B=%zu T=%zu, %zu threads, kernels %s, %.1f M parameters, arena %.1f MB\n",
           model_kind(h.model), dtype_name(options.dtype), B, T, threads, kernels->name,
           (double)h.elems / 1e6, (double)h.arena_bytes / 1e6);

    if (options.serves)
        serve(&h, &batch, dev, blas != NULL ? blas : dev);
    else
        measure(&h, &batch, dev, blas, steps);
    free(tokens);
    free(targets);
    free(config);
    harness_close(&h);
    device_cpu.close(blas);
    device_cpu.close(dev);
    return 0;
}
