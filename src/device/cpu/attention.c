/* attention.c - attention of the CPU device: heads are shared out among the threads, each with its
 * own scratch. */
#include "config.h"

#include "device/cpu/cpu.h"

struct attention_args {
    enum dtype t;
    const void *qkv, *dout; /* (B,T,3C), (B,T,C) */
    void *dqkv, *out;
    float *lse, *scratch;
    size_t B, T, C, NH, scratch_elems;
    void (*head)(const struct cpu_head *h, float *scratch);
};

/* NULL stays NULL. */
static void *past(void *p, enum dtype t, size_t elems) {
    return p == NULL ? NULL : (char *)p + elems * dtype_bytes(t);
}
static const void *past_const(const void *p, enum dtype t, size_t elems) {
    return p == NULL ? NULL : (const char *)p + elems * dtype_bytes(t);
}

static void attention_part(void *arg, size_t part, size_t parts) {
    struct attention_args *a = arg;
    size_t heads = a->B * a->NH, D = a->C / a->NH, C = a->C;
    for (size_t i = heads * part / parts; i < heads * (part + 1) / parts; i++) {
        size_t first = i / a->NH * a->T, channel = i % a->NH * D; /* of the sequence, of the head */
        size_t at = first * 3 * C + channel, out_at = first * C + channel;
        struct cpu_head h = {
            .t = a->t,
            .q = past_const(a->qkv, a->t, at),
            .k = past_const(a->qkv, a->t, at + C),
            .v = past_const(a->qkv, a->t, at + 2 * C),
            .dq = past(a->dqkv, a->t, at),
            .dk = past(a->dqkv, a->t, at + C),
            .dv = past(a->dqkv, a->t, at + 2 * C),
            .qkv_row_elems = 3 * C,
            .out = past(a->out, a->t, out_at),
            .dout = past_const(a->dout, a->t, out_at),
            .out_row_elems = C,
            .lse = a->lse + i * a->T,
            .T = a->T,
            .D = D,
        };
        a->head(&h, a->scratch + part * a->scratch_elems);
    }
}

size_t cpu_attention_scratch_bytes(struct device *d, enum dtype t, size_t B, size_t T, size_t C,
                                   size_t NH) {
    (void)t, (void)B;
    return team_threads(d->team) * d->kernels->attention_scratch_elems(T, C / NH) * sizeof(float);
}

int cpu_attention_forward(struct device *d, struct dev_stream *s, enum dtype t, void *out,
                          float *lse, const void *qkv, void *scratch, size_t B, size_t T, size_t C,
                          size_t NH) {
    (void)s;
    struct attention_args a = {.t = t,
                               .qkv = qkv,
                               .out = out,
                               .lse = lse,
                               .scratch = scratch,
                               .B = B,
                               .T = T,
                               .C = C,
                               .NH = NH,
                               .scratch_elems = d->kernels->attention_scratch_elems(T, C / NH),
                               .head = d->kernels->attention_forward};
    cpu_run(d, B * T * T / 16 * C, attention_part, &a);
    return 0;
}

int cpu_attention_backward(struct device *d, struct dev_stream *s, enum dtype t, void *dqkv,
                           const void *dout, const void *out, const float *lse, const void *qkv,
                           void *scratch, size_t B, size_t T, size_t C, size_t NH) {
    (void)s;
    struct attention_args a = {.t = t,
                               .qkv = qkv,
                               .dout = dout,
                               .dqkv = dqkv,
                               .out = (void *)out, /* only read: head is the backward one */
                               .lse = (float *)lse,
                               .scratch = scratch,
                               .B = B,
                               .T = T,
                               .C = C,
                               .NH = NH,
                               .scratch_elems = d->kernels->attention_scratch_elems(T, C / NH),
                               .head = d->kernels->attention_backward};
    cpu_run(d, B * T * T / 16 * C, attention_part, &a);
    return 0;
}
