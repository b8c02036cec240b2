/* device.h - the table of device operations: memory, streams, events and the kernels of a training
 * step.
 *
 * Every operation is queued on a stream and may run later; the CPU device runs it at once. Pointers
 * are device memory unless said otherwise. All matrices are row-major f32. No operation allocates.
 * An operation returns 0 or -errno; on an asynchronous device errors of execution surface at the
 * next synchronize. The CPU kernels are the reference for every other device. Letters: B sequences,
 * T tokens, C channels, NH heads, V vocabulary. */
#ifndef GFS_DEVICE_DEVICE_H
#define GFS_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct device;
struct dev_stream;
struct dev_event;

enum dev_memory {
    DEV_MEM_DEVICE,
    DEV_MEM_HOST /* pinned, the host may read it after a synchronize */
};
enum dev_stream_kind {
    DEV_STREAM_COMPUTE,
    DEV_STREAM_GATHER,
    DEV_STREAM_REDUCE,
    DEV_STREAM_TAKE,
    DEV_STREAM_COUNT
};

/* AdamW of n elements: decoupled decay, bias correction (Loshchilov and Hutter, 2019). */
struct dev_adamw {
    double lr, beta1, beta2, eps, weight_decay; /* double: 1 - 0.999f is off by 1e-5 */
    double grad_scale;                          /* clip factor: applied as the gradient is read */
    double correction1, correction2;            /* 1 - beta^step */
};

struct device_ops {
    const char *name;
    /* threads: of the CPU device. *out is closed by close. */
    int (*open)(uint32_t threads, struct device **out, struct err *err);
    void (*close)(struct device *d);

    int (*alloc)(struct device *d, enum dev_memory kind, size_t bytes, const char *what,
                 void **out);
    void (*free)(struct device *d, enum dev_memory kind, void *p, size_t bytes);

    int (*stream_open)(struct device *d, enum dev_stream_kind kind, struct dev_stream **out);
    void (*stream_close)(struct device *d, struct dev_stream *s);
    int (*event_open)(struct device *d, const char *what, struct dev_event **out);
    void (*event_close)(struct device *d, struct dev_event *e);
    int (*event_record)(struct device *d, struct dev_stream *s, struct dev_event *e);
    int (*stream_wait)(struct device *d, struct dev_stream *s, struct dev_event *e);
    int (*event_synchronize)(struct device *d, struct dev_event *e); /* the host waits */

    int (*copy)(struct device *d, struct dev_stream *s, void *dst, const void *src, size_t bytes);
    int (*fill)(struct device *d, struct dev_stream *s, float *dst, size_t elems, float value);
    int (*add)(struct device *d, struct dev_stream *s, float *dst, const float *src,
               size_t elems); /* dst += src */

    /* c (m,n) = alpha op(a) op(b) + beta c; op(a) (m,k), op(b) (k,n); ld*: row strides. */
    int (*gemm)(struct device *d, struct dev_stream *s, bool trans_a, bool trans_b, size_t m,
                size_t n, size_t k, float alpha, const float *a, size_t lda, const float *b,
                size_t ldb, float beta, float *c, size_t ldc);

    /* out (B,T,C) = wte[tokens] + wpe[position]; tokens (B,T) i32 */
    int (*embed_forward)(struct device *d, struct dev_stream *s, float *out, const int32_t *tokens,
                         const float *wte, const float *wpe, size_t B, size_t T, size_t C);
    /* dwte (V,C), dwpe (P,C) += ; deterministic */
    int (*embed_backward)(struct device *d, struct dev_stream *s, float *dwte, float *dwpe,
                          const float *dout, const int32_t *tokens, size_t B, size_t T, size_t C,
                          size_t V);

    /* rows N = B*T. mean, rstd (N) are kept for backward. */
    int (*layernorm_forward)(struct device *d, struct dev_stream *s, float *out, float *mean,
                             float *rstd, const float *in, const float *weight, const float *bias,
                             size_t N, size_t C, float eps);
    /* din (N,C) = or += (accumulate); dweight, dbias (C) += */
    int (*layernorm_backward)(struct device *d, struct dev_stream *s, float *din, bool accumulate,
                              float *dweight, float *dbias, const float *dout, const float *in,
                              const float *weight, const float *mean, const float *rstd, size_t N,
                              size_t C);

    /* inout (N,C) += bias (C) */
    int (*bias_forward)(struct device *d, struct dev_stream *s, float *inout, const float *bias,
                        size_t N, size_t C);
    /* dbias (C) += column sums of dout (N,C) */
    int (*bias_backward)(struct device *d, struct dev_stream *s, float *dbias, const float *dout,
                         size_t N, size_t C);

    /* pre (N,C) += bias in place, out = gelu_tanh(pre); bias NULL: pre includes it already and is
     * only read */
    int (*bias_gelu_forward)(struct device *d, struct dev_stream *s, float *out, float *pre,
                             const float *bias, size_t N, size_t C);
    /* inout (N,C): dout in, dpre out; pre includes the bias */
    int (*gelu_backward)(struct device *d, struct dev_stream *s, float *inout, const float *pre,
                         size_t N, size_t C);

    /* out (N,C) = residual + in + bias (C) */
    int (*bias_residual_forward)(struct device *d, struct dev_stream *s, float *out,
                                 const float *residual, const float *in, const float *bias,
                                 size_t N, size_t C);

    /* causal attention. qkv (B,T,3C) with biases added; out (B,T,C); lse (B,NH,T) log-sum-exp kept
     * for backward. scratch: attention_scratch_elems floats. */
    size_t (*attention_scratch_elems)(struct device *d, size_t B, size_t T, size_t C, size_t NH);
    int (*attention_forward)(struct device *d, struct dev_stream *s, float *out, float *lse,
                             const float *qkv, float *scratch, size_t B, size_t T, size_t C,
                             size_t NH);
    /* dqkv (B,T,3C) = ; out and lse from forward */
    int (*attention_backward)(struct device *d, struct dev_stream *s, float *dqkv,
                              const float *dout, const float *out, const float *lse,
                              const float *qkv, float *scratch, size_t B, size_t T, size_t C,
                              size_t NH);

    /* losses (N) = -scale * log softmax(logits)[target]; logits (N,V): becomes the gradient of
     * sum(losses) in place when backward, else is kept. 0 <= target < V. */
    int (*softmax_xent)(struct device *d, struct dev_stream *s, float *losses, float *logits,
                        const int32_t *targets, size_t N, size_t V, float scale, bool backward);
    /* out[0] (double, DEV_MEM_HOST) = sum of n floats; deterministic */
    int (*sum)(struct device *d, struct dev_stream *s, double *out, const float *in, size_t elems);
    /* out[0] (double, DEV_MEM_HOST) = sum of squares; deterministic, accumulated in double */
    int (*sum_squares)(struct device *d, struct dev_stream *s, double *out, const float *in,
                       size_t elems);

    int (*adamw)(struct device *d, struct dev_stream *s, float *param, float *exp_avg,
                 float *exp_avg_sq, const float *grad, size_t elems, const struct dev_adamw *a);
    /* dst[i] = mean + std * normal(seed, stream, first + i): counter-based (Philox 4x32-10,
     * Box-Muller) */
    int (*init_normal)(struct device *d, struct dev_stream *s, float *dst, size_t elems,
                       uint64_t seed, uint64_t sequence, uint64_t first, float mean, float std);
};

extern const struct device_ops device_cpu;
/* Runs nothing on data: lists operations with the ranges they read and write (device/recording.h).
 */
extern const struct device_ops device_recording;

/* The table of a name ("cpu"), or -ENOENT with what there is. */
int device_find(const char *name, const struct device_ops **out, struct err *err);

#endif
