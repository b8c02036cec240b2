/* recording_ops.c - the table of the recording device: what each operation reads and writes. */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device/recording_list.h"

static int rec_open(const struct device_args *args, struct device **out, struct err *err) {
    (void)args;
    struct device *d = calloc(1, sizeof(*d));
    if (d == NULL)
        return err_set(err, ENOMEM, "out of memory");
    pthread_mutex_init(&d->lock, NULL);
    *out = d;
    return 0;
}

static void rec_close(struct device *d) {
    if (d == NULL)
        return;
    for (size_t i = 0; i < d->memory_count; i++) {
        munmap(d->memory[i].start, d->memory[i].mapped_bytes);
        free(d->memory[i].what);
    }
    for (size_t i = 0; i < d->event_count; i++)
        free(d->event_names[i]);
    free(d->event_names);
    free(d->memory);
    free(d->entries);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

static int rec_properties(struct device *d, struct device_properties *out) {
    (void)d;
    *out = (struct device_properties){.name = "recording"};
    return 0;
}

static int rec_supports(struct device *d, enum dtype t, struct err *err) {
    (void)d, (void)t, (void)err;
    return 0;
}

static void rec_why(struct device *d, char *out, size_t cap_bytes) {
    (void)d, (void)cap_bytes;
    out[0] = '\0';
}

static int rec_alloc(struct device *d, enum dev_memory kind, size_t bytes, const char *what,
                     void **out) {
    (void)kind;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), mapped = (bytes / page + 1) * page;
    int rc =
        recording_grow((void **)&d->memory, d->memory_count, &d->memory_cap, sizeof(*d->memory));
    if (rc != 0)
        return rc;
    char *name = strdup(what);
    void *p = mmap(NULL, mapped, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (name == NULL || p == MAP_FAILED) {
        free(name);
        if (p != MAP_FAILED)
            munmap(p, mapped);
        return -ENOMEM;
    }
    d->memory[d->memory_count++] = (struct recording_memory){name, p, bytes, mapped};
    *out = p;
    return 0;
}

/* The address stays taken; see recording.h. */
static void rec_free(struct device *d, enum dev_memory kind, void *p, size_t bytes) {
    (void)d, (void)kind;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (p != NULL)
        madvise(p, (bytes / page + 1) * page, MADV_DONTNEED);
}

static int rec_stream_open(struct device *d, enum dev_stream_kind kind, struct dev_stream **out) {
    struct dev_stream *s = malloc(sizeof(*s));
    if (s == NULL)
        return -ENOMEM;
    *s = (struct dev_stream){kind, d->stream_count++};
    *out = s;
    return 0;
}

static void rec_stream_close(struct device *d, struct dev_stream *s) {
    (void)d;
    free(s);
}

static int rec_event_open(struct device *d, const char *what, struct dev_event **out) {
    int rc = recording_grow((void **)&d->event_names, d->event_count, &d->event_cap,
                            sizeof(*d->event_names));
    if (rc != 0)
        return rc;
    struct dev_event *e = malloc(sizeof(*e));
    char *name = strdup(what);
    if (e == NULL || name == NULL) {
        free(e);
        free(name);
        return -ENOMEM;
    }
    *e = (struct dev_event){name, d->event_count};
    d->event_names[d->event_count++] = name;
    *out = e;
    return 0;
}

static void rec_event_close(struct device *d, struct dev_event *e) {
    (void)d;
    free(e);
}

static int add_event(struct device *d, enum recording_kind kind, const struct dev_stream *s,
                     const struct dev_event *e) {
    struct recording_entry entry = {.kind = kind,
                                    .name = e->what,
                                    .stream = s != NULL ? s->index : RECORDING_NONE,
                                    .event = e->index};
    return recording_add(d, &entry);
}

static int rec_event_record(struct device *d, struct dev_stream *s, struct dev_event *e) {
    return add_event(d, RECORDING_EVENT, s, e);
}

static int rec_stream_wait(struct device *d, struct dev_stream *s, struct dev_event *e) {
    return add_event(d, RECORDING_WAIT, s, e);
}

static int rec_event_synchronize(struct device *d, struct dev_event *e) {
    return add_event(d, RECORDING_SYNC, NULL, e);
}

/* An array of ranges and its length, as two arguments. */
#define RANGES(...)                                                                                \
    (const struct recording_range[]){__VA_ARGS__},                                                 \
        sizeof((const struct recording_range[]){__VA_ARGS__}) / sizeof(struct recording_range)
#define FLOATS(p, elems)                                                                           \
    { (p), (elems) * sizeof(float) }
#define ELEMS(p, t, elems)                                                                         \
    { (p), (elems)*dtype_bytes(t) }
#define TOKENS(p, elems)                                                                           \
    { (p), (elems) * sizeof(int32_t) }

static int rec_copy(struct device *d, struct dev_stream *s, void *dst, const void *src,
                    size_t bytes) {
    return recording_note(d, s, "copy", RANGES({src, bytes}), RANGES({dst, bytes}));
}

static int rec_fill(struct device *d, struct dev_stream *s, void *dst, enum dtype t, size_t elems,
                    float value) {
    (void)value;
    return recording_note(d, s, "fill", NULL, 0, RANGES(ELEMS(dst, t, elems)));
}

static int rec_cast(struct device *d, struct dev_stream *s, void *dst, enum dtype dst_dtype,
                    const void *src, enum dtype src_dtype, size_t elems) {
    return recording_note(d, s, "cast", RANGES(ELEMS(src, src_dtype, elems)),
                          RANGES(ELEMS(dst, dst_dtype, elems)));
}

static int rec_add(struct device *d, struct dev_stream *s, float *dst, const void *src,
                   enum dtype src_dtype, size_t elems) {
    return recording_note(d, s, "add", RANGES(FLOATS(dst, elems), ELEMS(src, src_dtype, elems)),
                          RANGES(FLOATS(dst, elems)));
}

/* From the first to the last element: what lies between rows is taken for touched. */
static size_t matrix_elems(size_t rows, size_t columns, size_t row_elems) {
    return rows == 0 || columns == 0 ? 0 : (rows - 1) * row_elems + columns;
}

static int rec_gemm(struct device *d, struct dev_stream *s, enum dtype t, enum dtype c_dtype,
                    bool trans_a, bool trans_b, size_t m, size_t n, size_t k, float alpha,
                    const void *a, size_t lda, const void *b, size_t ldb, float beta, void *c,
                    size_t ldc) {
    (void)alpha;
    size_t a_elems = trans_a ? matrix_elems(k, m, lda) : matrix_elems(m, k, lda);
    size_t b_elems = trans_b ? matrix_elems(n, k, ldb) : matrix_elems(k, n, ldb);
    size_t c_elems = matrix_elems(m, n, ldc);
    return recording_note(d, s, "gemm",
                          RANGES(ELEMS(a, t, a_elems), ELEMS(b, t, b_elems),
                                 ELEMS(c, c_dtype, beta != 0 ? c_elems : 0)),
                          RANGES(ELEMS(c, c_dtype, c_elems)));
}

static int rec_embed_forward(struct device *d, struct dev_stream *s, enum dtype t, void *out,
                             const int32_t *tokens, const void *wte, const void *wpe, size_t B,
                             size_t T, size_t C) {
    /* Which rows of wte: the tokens say; its first one stands for all. */
    return recording_note(d, s, "embed_forward",
                          RANGES(TOKENS(tokens, B * T), ELEMS(wte, t, C), ELEMS(wpe, t, T * C)),
                          RANGES(ELEMS(out, t, B * T * C)));
}

static int rec_embed_backward(struct device *d, struct dev_stream *s, enum dtype t, enum dtype g,
                              void *dwte, void *dwpe, const void *dout, const int32_t *tokens,
                              size_t B, size_t T, size_t C, size_t V) {
    return recording_note(d, s, "embed_backward",
                          RANGES(TOKENS(tokens, B * T), ELEMS(dout, t, B * T * C),
                                 ELEMS(dwte, g, V * C), ELEMS(dwpe, g, T * C)),
                          RANGES(ELEMS(dwte, g, V * C), ELEMS(dwpe, g, T * C)));
}

static int rec_layernorm_forward(struct device *d, struct dev_stream *s, enum dtype t, void *out,
                                 float *mean, float *rstd, const void *in, const void *weight,
                                 const void *bias, size_t N, size_t C, float eps) {
    (void)eps;
    return recording_note(d, s, "layernorm_forward",
                          RANGES(ELEMS(in, t, N * C), ELEMS(weight, t, C), ELEMS(bias, t, C)),
                          RANGES(ELEMS(out, t, N * C), FLOATS(mean, N), FLOATS(rstd, N)));
}

static int rec_residual_layernorm_forward(struct device *d, struct dev_stream *s, enum dtype t,
                                          void *sum, void *out, float *mean, float *rstd,
                                          const void *residual, const void *in, const void *in_bias,
                                          const void *weight, const void *bias, size_t N, size_t C,
                                          float eps) {
    (void)eps;
    return recording_note(
        d, s, "residual_layernorm_forward",
        RANGES(ELEMS(residual, t, N * C), ELEMS(in, t, N * C), ELEMS(in_bias, t, C),
               ELEMS(weight, t, C), ELEMS(bias, t, C)),
        RANGES(ELEMS(sum, t, N * C), ELEMS(out, t, N * C), FLOATS(mean, N), FLOATS(rstd, N)));
}

static int rec_layernorm_backward(struct device *d, struct dev_stream *s, enum dtype t,
                                  enum dtype g, void *din, bool accumulate, void *dweight,
                                  void *dbias, const void *dout, const void *in, const void *weight,
                                  const float *mean, const float *rstd, size_t N, size_t C) {
    return recording_note(d, s, "layernorm_backward",
                          RANGES(ELEMS(din, t, accumulate ? N * C : 0), ELEMS(dweight, g, C),
                                 ELEMS(dbias, g, C), ELEMS(dout, t, N * C), ELEMS(in, t, N * C),
                                 ELEMS(weight, t, C), FLOATS(mean, N), FLOATS(rstd, N)),
                          RANGES(ELEMS(din, t, N * C), ELEMS(dweight, g, C), ELEMS(dbias, g, C)));
}

static int rec_bias_forward(struct device *d, struct dev_stream *s, enum dtype t, void *inout,
                            const void *bias, size_t N, size_t C) {
    return recording_note(d, s, "bias_forward", RANGES(ELEMS(inout, t, N * C), ELEMS(bias, t, C)),
                          RANGES(ELEMS(inout, t, N * C)));
}

static int rec_bias_backward(struct device *d, struct dev_stream *s, enum dtype t, enum dtype g,
                             void *dbias, const void *dout, size_t N, size_t C) {
    return recording_note(d, s, "bias_backward", RANGES(ELEMS(dbias, g, C), ELEMS(dout, t, N * C)),
                          RANGES(ELEMS(dbias, g, C)));
}

static int rec_bias_gelu_forward(struct device *d, struct dev_stream *s, enum dtype t, void *out,
                                 void *pre, const void *bias, size_t N, size_t C) {
    return recording_note(d, s, "bias_gelu_forward",
                          RANGES(ELEMS(pre, t, N * C), ELEMS(bias, t, C)),
                          RANGES(ELEMS(out, t, N * C), ELEMS(pre, t, bias != NULL ? N * C : 0)));
}

static int rec_gelu_backward(struct device *d, struct dev_stream *s, enum dtype t, void *inout,
                             const void *pre, size_t N, size_t C) {
    return recording_note(d, s, "gelu_backward",
                          RANGES(ELEMS(inout, t, N * C), ELEMS(pre, t, N * C)),
                          RANGES(ELEMS(inout, t, N * C)));
}

/* Any size will do, as long as somebody else's memory is seen to be touched. */
static size_t rec_attention_scratch_bytes(struct device *d, enum dtype t, size_t B, size_t T,
                                          size_t C, size_t NH) {
    (void)d, (void)B, (void)NH;
    return T * C * dtype_bytes(t);
}

static int rec_attention_forward(struct device *d, struct dev_stream *s, enum dtype t, void *out,
                                 float *lse, const void *qkv, void *scratch, size_t B, size_t T,
                                 size_t C, size_t NH) {
    size_t N = B * T;
    return recording_note(
        d, s, "attention_forward", RANGES(ELEMS(qkv, t, 3 * N * C)),
        RANGES(ELEMS(out, t, N * C), FLOATS(lse, N * NH), ELEMS(scratch, t, T * C)));
}

static int rec_attention_backward(struct device *d, struct dev_stream *s, enum dtype t, void *dqkv,
                                  const void *dout, const void *out, const float *lse,
                                  const void *qkv, void *scratch, size_t B, size_t T, size_t C,
                                  size_t NH) {
    size_t N = B * T;
    return recording_note(d, s, "attention_backward",
                          RANGES(ELEMS(dout, t, N * C), ELEMS(out, t, N * C), FLOATS(lse, N * NH),
                                 ELEMS(qkv, t, 3 * N * C)),
                          RANGES(ELEMS(dqkv, t, 3 * N * C), ELEMS(scratch, t, T * C)));
}

static int rec_softmax_xent(struct device *d, struct dev_stream *s, enum dtype t, float *losses,
                            void *logits, size_t ldl, const int32_t *targets, size_t N, size_t V,
                            float scale, bool backward) {
    (void)scale;
    size_t elems = matrix_elems(N, V, ldl);
    return recording_note(d, s, "softmax_xent", RANGES(ELEMS(logits, t, elems), TOKENS(targets, N)),
                          RANGES(FLOATS(losses, N), ELEMS(logits, t, backward ? elems : 0)));
}

static int rec_sum(struct device *d, struct dev_stream *s, double *out, const float *in,
                   size_t elems) {
    return recording_note(d, s, "sum", RANGES(FLOATS(in, elems)), RANGES({out, sizeof(*out)}));
}

static int rec_sum_squares(struct device *d, struct dev_stream *s, double *out, const float *in,
                           size_t elems) {
    return recording_note(d, s, "sum_squares", RANGES(FLOATS(in, elems)),
                          RANGES({out, sizeof(*out)}));
}

static int rec_adamw(struct device *d, struct dev_stream *s, float *param, float *exp_avg,
                     float *exp_avg_sq, const float *grad, void *copy, enum dtype copy_dtype,
                     size_t elems, const struct dev_adamw *a) {
    (void)a;
    return recording_note(d, s, "adamw",
                          RANGES(FLOATS(param, elems), FLOATS(exp_avg, elems),
                                 FLOATS(exp_avg_sq, elems), FLOATS(grad, elems)),
                          RANGES(FLOATS(param, elems), FLOATS(exp_avg, elems),
                                 FLOATS(exp_avg_sq, elems), ELEMS(copy, copy_dtype, elems)));
}

static int rec_init_normal(struct device *d, struct dev_stream *s, float *dst, size_t elems,
                           uint64_t seed, uint64_t sequence, uint64_t first, float mean,
                           float std) {
    (void)seed, (void)sequence, (void)first, (void)mean, (void)std;
    return recording_note(d, s, "init_normal", NULL, 0, RANGES(FLOATS(dst, elems)));
}

const struct device_ops device_recording = {
    .name = "recording",
    .host_access = true,
    .open = rec_open,
    .close = rec_close,
    .properties = rec_properties,
    .supports = rec_supports,
    .why = rec_why,
    .alloc = rec_alloc,
    .free = rec_free,
    .stream_open = rec_stream_open,
    .stream_close = rec_stream_close,
    .event_open = rec_event_open,
    .event_close = rec_event_close,
    .event_record = rec_event_record,
    .stream_wait = rec_stream_wait,
    .event_synchronize = rec_event_synchronize,
    .copy = rec_copy,
    .fill = rec_fill,
    .cast = rec_cast,
    .add = rec_add,
    .gemm = rec_gemm,
    .embed_forward = rec_embed_forward,
    .embed_backward = rec_embed_backward,
    .layernorm_forward = rec_layernorm_forward,
    .residual_layernorm_forward = rec_residual_layernorm_forward,
    .layernorm_backward = rec_layernorm_backward,
    .bias_forward = rec_bias_forward,
    .bias_backward = rec_bias_backward,
    .bias_gelu_forward = rec_bias_gelu_forward,
    .gelu_backward = rec_gelu_backward,
    .attention_scratch_bytes = rec_attention_scratch_bytes,
    .attention_forward = rec_attention_forward,
    .attention_backward = rec_attention_backward,
    .softmax_xent = rec_softmax_xent,
    .sum = rec_sum,
    .sum_squares = rec_sum_squares,
    .adamw = rec_adamw,
    .init_normal = rec_init_normal,
};
