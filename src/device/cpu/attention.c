/* attention.c - attention of the CPU device: heads are shared out among the threads, each with its
 * own scratch. */
#include "config.h"

#include "device/cpu/cpu.h"

struct attention_args {
    const struct cpu_kernels *k;
    const float *qkv, *dout; /* (B,T,3C), (B,T,C) */
    float *dqkv, *out, *lse, *scratch;
    size_t B, T, C, NH, scratch_elems;
    void (*head)(const struct cpu_head *h, float *scratch);
};

static void attention_part(void *arg, size_t part, size_t parts) {
    struct attention_args *a = arg;
    size_t heads = a->B * a->NH, D = a->C / a->NH, C = a->C;
    for (size_t i = heads * part / parts; i < heads * (part + 1) / parts; i++) {
        size_t first = i / a->NH * a->T, channel = i % a->NH * D; /* of the sequence, of the head */
        const float *qkv = a->qkv + first * 3 * C + channel;
        float *dqkv = a->dqkv != NULL ? a->dqkv + first * 3 * C + channel : NULL;
        struct cpu_head h = {
            .q = qkv,
            .k = qkv + C,
            .v = qkv + 2 * C,
            .dq = dqkv,
            .dk = dqkv != NULL ? dqkv + C : NULL,
            .dv = dqkv != NULL ? dqkv + 2 * C : NULL,
            .qkv_row_elems = 3 * C,
            .out = a->out + first * C + channel,
            .dout = a->dout != NULL ? a->dout + first * C + channel : NULL,
            .out_row_elems = C,
            .lse = a->lse + i * a->T,
            .T = a->T,
            .D = D,
        };
        a->head(&h, a->scratch + part * a->scratch_elems);
    }
}

size_t cpu_attention_scratch_elems(struct device *d, size_t B, size_t T, size_t C, size_t NH) {
    (void)B;
    return team_threads(d->team) * d->kernels->attention_scratch_elems(T, C / NH);
}

int cpu_attention_forward(struct device *d, struct dev_stream *s, float *out, float *lse,
                          const float *qkv, float *scratch, size_t B, size_t T, size_t C,
                          size_t NH) {
    (void)s;
    struct attention_args a = {.k = d->kernels,
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

int cpu_attention_backward(struct device *d, struct dev_stream *s, float *dqkv, const float *dout,
                           const float *out, const float *lse, const float *qkv, float *scratch,
                           size_t B, size_t T, size_t C, size_t NH) {
    (void)s;
    struct attention_args a = {.k = d->kernels,
                               .qkv = qkv,
                               .dout = dout,
                               .dqkv = dqkv,
                               .out = (float *)out, /* only read: head is the backward one */
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
