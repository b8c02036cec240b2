/* device.h - the table of device operations: memory, streams, events and the kernels of a training
 * step.
 *
 * Every operation is queued on a stream and may run later; the CPU device runs it at once. Pointers
 * are device memory unless said otherwise. All matrices are row-major. No operation allocates or
 * waits, but for those that say so. An operation returns 0 or -errno, and why() tells the failed
 * call; errors of execution surface at the next synchronize. The CPU kernels are the reference for
 * every other device.
 *
 * Storage: arguments of type void * are of the dtype that the comment names: t for activations and
 * the parameters of a gathered unit, g for its gradients. Where t is f32 g is f32; where t is bf16
 * g is bf16 or f32. Arithmetic and sums are in f32 at least, and a result is rounded once.
 * Pointers are aligned to an element only, since a tensor begins anywhere in its unit; where widths
 * are multiples of 8 they are aligned to 16 bytes.
 *
 * Letters: B sequences, T tokens, C channels, NH heads, V vocabulary, N = B * T rows.
 *
 * Any thread may call; each stream is used by one thread at a time. Not so on the CPU: there only
 * the thread that opened the device calls, and host_access lets others read its memory. */
#ifndef GFS_DEVICE_DEVICE_H
#define GFS_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "tensor/dtype.h"

struct device;
struct dev_stream;
struct dev_event;

enum dev_memory {
    DEV_MEM_DEVICE,
    DEV_MEM_HOST /* pinned: the host may use it, and the device reads and writes it too */
};
enum dev_stream_kind {
    DEV_STREAM_COMPUTE, /* modules and optimizer */
    DEV_STREAM_GATHER,  /* units come */
    DEV_STREAM_REDUCE,  /* gradients go */
    DEV_STREAM_OFFLOAD, /* optimizer state comes and goes */
    DEV_STREAM_TAKE,    /* copies for readers and snapshots */
    DEV_STREAM_COUNT
};

/* AdamW of n elements: decoupled decay, bias correction (Loshchilov and Hutter, 2019). */
struct dev_adamw {
    double lr, beta1, beta2, eps, weight_decay; /* double: 1 - 0.999f is off by 1e-5 */
    double grad_scale;                          /* clip factor: applied as the gradient is read */
    double correction1, correction2;            /* 1 - beta^step */
};

struct device_args {
    uint32_t threads;                /* of the CPU device, >= 1 */
    uint32_t local_rank, local_size; /* among the ranks of this host: which GPU; size 0 is 1 */
    bool tensor_cores;               /* our own kernels may use paths not yet confirmed there */
};

struct device_properties {
    char name[128];             /* "NVIDIA H200" */
    char id[40];                /* the same for two ranks only if they share the device; "" */
    uint64_t memory_bytes;      /* of the whole device, 0 unknown */
    uint64_t memory_free_bytes; /* now */
    double flops[DTYPE_COUNT];  /* peak of dense products by dtype, per second; 0 unknown */
    double bandwidth;           /* of its memory, bytes a second; 0 unknown */
};

/* Hears of a block of memory: what it is for, in the words of alloc. */
typedef void dev_memory_fn(void *ctx, enum dev_memory kind, uint64_t bytes, const char *what);

struct device_ops {
    const char *name;
    /* The host may read DEV_MEM_DEVICE itself, once what wrote it is complete. */
    bool host_access;
    /* Rows of logits that are worth computing at once; 0: 512. */
    size_t logits_rows;
    /* Attention heads are of a multiple of the first many channels, at most the second; 0: any. */
    size_t head_multiple, head_max;

    /* *out is closed by close. -ENODEV: there is no such device here, and err says why. */
    int (*open)(const struct device_args *args, struct device **out, struct err *err);
    void (*close)(struct device *d);
    int (*properties)(struct device *d, struct device_properties *out);
    /* 0 if this dtype can be used for t and g; else -ENOTSUP and the reason. */
    int (*supports)(struct device *d, enum dtype t, struct err *err);
    /* The sentence of the last failure on this device ("cudaMalloc: out of memory"), "" if there
     * was none. Any thread; cap_bytes >= 1. */
    void (*why)(struct device *d, char *out, size_t cap_bytes);

    /* Aligned to 256 bytes at least; content undefined. May wait. */
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

    /* Between device and host memory in any direction; host memory is DEV_MEM_HOST. */
    int (*copy)(struct device *d, struct dev_stream *s, void *dst, const void *src, size_t bytes);
    int (*fill)(struct device *d, struct dev_stream *s, void *dst, enum dtype t, size_t elems,
                float value);
    /* dst = src in another dtype, rounded to nearest even; equal dtypes: a copy */
    int (*cast)(struct device *d, struct dev_stream *s, void *dst, enum dtype dst_dtype,
                const void *src, enum dtype src_dtype, size_t elems);
    /* dst += src, which is of src_dtype */
    int (*add)(struct device *d, struct dev_stream *s, float *dst, const void *src,
               enum dtype src_dtype, size_t elems);

    /* c (m,n) = alpha op(a) op(b) + beta c; op(a) (m,k), op(b) (k,n) of t; c of c_dtype, t or f32;
     * ld*: row strides in elements. beta 0: c is not read. */
    int (*gemm)(struct device *d, struct dev_stream *s, enum dtype t, enum dtype c_dtype,
                bool trans_a, bool trans_b, size_t m, size_t n, size_t k, float alpha,
                const void *a, size_t lda, const void *b, size_t ldb, float beta, void *c,
                size_t ldc);

    /* out (B,T,C) of t = wte[tokens] + wpe[position]; tokens (B,T) i32 */
    int (*embed_forward)(struct device *d, struct dev_stream *s, enum dtype t, void *out,
                         const int32_t *tokens, const void *wte, const void *wpe, size_t B,
                         size_t T, size_t C);
    /* dwte (V,C), dwpe (P,C) of g, += ; dout of t; deterministic */
    int (*embed_backward)(struct device *d, struct dev_stream *s, enum dtype t, enum dtype g,
                          void *dwte, void *dwpe, const void *dout, const int32_t *tokens, size_t B,
                          size_t T, size_t C, size_t V);

    /* out = norm of in (N,C), all of t but mean, rstd (N), which are kept for backward. */
    int (*layernorm_forward)(struct device *d, struct dev_stream *s, enum dtype t, void *out,
                             float *mean, float *rstd, const void *in, const void *weight,
                             const void *bias, size_t N, size_t C, float eps);
    /* sum (N,C) = residual + in + in_bias (C), rounded to t; out = norm of that sum. */
    int (*residual_layernorm_forward)(struct device *d, struct dev_stream *s, enum dtype t,
                                      void *sum, void *out, float *mean, float *rstd,
                                      const void *residual, const void *in, const void *in_bias,
                                      const void *weight, const void *bias, size_t N, size_t C,
                                      float eps);
    /* din (N,C) of t = or += (accumulate); dweight, dbias (C) of g, += ; deterministic */
    int (*layernorm_backward)(struct device *d, struct dev_stream *s, enum dtype t, enum dtype g,
                              void *din, bool accumulate, void *dweight, void *dbias,
                              const void *dout, const void *in, const void *weight,
                              const float *mean, const float *rstd, size_t N, size_t C);

    /* inout (N,C) += bias (C) */
    int (*bias_forward)(struct device *d, struct dev_stream *s, enum dtype t, void *inout,
                        const void *bias, size_t N, size_t C);
    /* dbias (C) of g, += column sums of dout (N,C) of t; deterministic */
    int (*bias_backward)(struct device *d, struct dev_stream *s, enum dtype t, enum dtype g,
                         void *dbias, const void *dout, size_t N, size_t C);

    /* pre (N,C) += bias in place, out = gelu_tanh(pre as stored); bias NULL: pre includes it
     * already and is only read */
    int (*bias_gelu_forward)(struct device *d, struct dev_stream *s, enum dtype t, void *out,
                             void *pre, const void *bias, size_t N, size_t C);
    /* inout (N,C): dout in, dpre out; pre includes the bias */
    int (*gelu_backward)(struct device *d, struct dev_stream *s, enum dtype t, void *inout,
                         const void *pre, size_t N, size_t C);

    /* causal attention. qkv (B,T,3C) with biases added; out (B,T,C); lse (B,NH,T) log-sum-exp kept
     * for backward. scratch: attention_scratch_bytes. C / NH as head_multiple and head_max say. */
    size_t (*attention_scratch_bytes)(struct device *d, enum dtype t, size_t B, size_t T, size_t C,
                                      size_t NH);
    int (*attention_forward)(struct device *d, struct dev_stream *s, enum dtype t, void *out,
                             float *lse, const void *qkv, void *scratch, size_t B, size_t T,
                             size_t C, size_t NH);
    /* dqkv (B,T,3C) = ; out and lse from forward; deterministic */
    int (*attention_backward)(struct device *d, struct dev_stream *s, enum dtype t, void *dqkv,
                              const void *dout, const void *out, const float *lse, const void *qkv,
                              void *scratch, size_t B, size_t T, size_t C, size_t NH);

    /* losses (N) = -scale * log softmax(logits)[target]; logits (N,V) of t, a row every ldl >= V
     * elements: becomes the gradient of sum(losses) in place when backward, else is kept; between
     * rows nothing is written. 0 <= target < V. */
    int (*softmax_xent)(struct device *d, struct dev_stream *s, enum dtype t, float *losses,
                        void *logits, size_t ldl, const int32_t *targets, size_t N, size_t V,
                        float scale, bool backward);
    /* out[0] (double, DEV_MEM_HOST) = sum of n floats; deterministic */
    int (*sum)(struct device *d, struct dev_stream *s, double *out, const float *in, size_t elems);
    /* out[0] (double, DEV_MEM_HOST) = sum of squares; deterministic, accumulated in double */
    int (*sum_squares)(struct device *d, struct dev_stream *s, double *out, const float *in,
                       size_t elems);

    /* param, exp_avg, exp_avg_sq, grad: f32. copy: the new param in copy_dtype as well, or NULL */
    int (*adamw)(struct device *d, struct dev_stream *s, float *param, float *exp_avg,
                 float *exp_avg_sq, const float *grad, void *copy, enum dtype copy_dtype,
                 size_t elems, const struct dev_adamw *a);
    /* dst[i] = mean + std * normal(seed, stream, first + i): counter-based (Philox 4x32-10,
     * Box-Muller) */
    int (*init_normal)(struct device *d, struct dev_stream *s, float *dst, size_t elems,
                       uint64_t seed, uint64_t sequence, uint64_t first, float mean, float std);
};

extern const struct device_ops device_cpu;
/* Runs nothing on data: lists operations with the ranges they read and write (device/recording.h).
 */
extern const struct device_ops device_recording;

/* Sets err to "WHAT on device NAME: REASON", with what the device says of its last failure. Returns
 * rc, which is negative. */
int device_failed(const struct device_ops *ops, struct device *d, int rc, struct err *err,
                  const char *format, ...) __attribute__((format(printf, 5, 6)));

/* The table of a name: "cpu"; "cuda", opened as a plugin; "auto": cuda if it can be used, else cpu.
 * -ENOENT with what there is, -ENODEV with why a GPU can't be used. note (may be NULL, cap_bytes):
 * with auto, the line that says why it is not cuda. The table is valid until the process ends. */
int device_find(const char *name, const struct device_ops **out, char *note, size_t note_bytes,
                struct err *err);

#endif
