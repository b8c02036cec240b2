/* kernel_cases.h - a device under test against the reference: every operation of the table at odd
 * sizes, in f32 and bf16.
 *
 * Plain C11 and no library but libm: the tests of the emulation and tools/gpu-check on a real GPU
 * both run it. What a case shows:
 *   - each output agrees with the reference in the norm of its tensor, and no element is far off;
 *   - nothing but the outputs was written: not the inputs, not the memory around any tensor;
 *   - every element of an output was written, and no result depends on what lies beyond an input
 *     (what is not given is NaN);
 *   - a second run, on tensors that end where their allocation ends, gives the same bits.
 *
 * A bf16 input is rounded first, and the reference gets the rounded values in f32. */
#ifndef GFS_TESTS_CUDA_KERNEL_CASES_H
#define GFS_TESTS_CUDA_KERNEL_CASES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/device.h"

struct kernel_report {
    const char *name;  /* "layernorm_backward" */
    const char *shape; /* "bf16 g f32, N 65 C 768" */
    const char *worst; /* the output that is nearest to its limit, or beyond */
    double error;      /* its norm(a - b) / norm(b) */
    double limit;      /* and how large that may be */
    bool ok;
    const char *what;    /* ok: ""; else the first thing that is wrong */
    const char *skipped; /* NULL, or why the case was not run; ok is true then */
};

struct kernel_cases {
    const struct device_ops *reference_ops; /* f32; host_access */
    struct device *reference;               /* open, borrowed */
    const struct device_ops *ops;
    struct device *device; /* open, borrowed. With tensor_cores its f32 products may be by TF32, and
                              then farther off than their cases allow. */
    const char *only;      /* cases whose name begins so; "" is all */
    bool large; /* also the sizes of a training step, and more elements than 32 bits count: for a
                 * real device with memory of that size */
    void (*report)(void *arg, const struct kernel_report *r); /* after each case */
    void *arg;
};

/* Runs the cases. 0, and how many ran and failed; -errno when a stream, an event or the staging
 * memory can't be had. Cases in bf16 are left out where the device under test does not support it.
 * Ends the program with 99 where the host has no memory. */
int kernel_cases_run(const struct kernel_cases *k, size_t *run_count, size_t *failed_count);

/* ---- For those who write cases ----
 *
 *   struct bias_args { struct kc_tensor *dbias, *dout; size_t N, C; };
 *
 *   static int run_bias_backward(struct kc_side *s, const void *arg) {
 *       const struct bias_args *a = arg;
 *       return s->ops->bias_backward(s->dev, s->stream, s->t, s->g, kc_at(s, a->dbias),
 *                                    kc_at(s, a->dout), a->N, a->C);
 *   }
 *   ...
 *       struct kc *k = kc_begin(f, "bias_backward", types, "N %zu C %zu", N, C);
 *       if (k == NULL)
 *           return;
 *       struct bias_args a = {kc_inout(k, "dbias", KC_G, C, 1), kc_in(k, "dout", KC_T, N * C, 1),
 *                             N, C};
 *       kc_check(k, run_bias_backward, &a);
 */

struct kc_frame;  /* both devices, open */
struct kc;        /* the case in progress */
struct kc_tensor; /* of the case, until kc_check */

/* One of the two devices, as an operation sees it. The reference has f32 for t and g. */
struct kc_side {
    const struct device_ops *ops;
    struct device *dev;
    struct dev_stream *stream;
    enum dtype t, g;
    bool reference;           /* may go a shorter way to what the other must come to */
    struct kc_memory *memory; /* of the frame */
};

struct kc_types {
    enum dtype t, g;
};
/* f32 f32, bf16 bf16, bf16 f32: the first two are enough for an operation without g. */
extern const struct kc_types kc_types[3];
enum { KC_TYPES_OF_T = 2, KC_TYPES = 3 };

/* How a tensor is stored on the device under test; the reference has f32 for T, G and BF16. */
enum kc_type {
    KC_T,
    KC_G,
    KC_F32,
    KC_BF16,
    KC_I32,
    KC_F64_HOST /* double in DEV_MEM_HOST */
};

/* NULL: the case is not to be run. The text is for people: "B %zu T %zu". */
struct kc *kc_begin(struct kc_frame *f, const char *name, struct kc_types types, const char *shape,
                    ...) __attribute__((format(printf, 4, 5)));
/* Whether cases of the sizes of a training step are to be run too. */
bool kc_large(const struct kc_frame *f);

/* Tensors of floats; at most 16 a case. in and inout: uniform in (-scale, scale), the same numbers
 * in every run. elems 0 is allowed, and kc_at is then a pointer to no memory. */
struct kc_tensor *kc_in(struct kc *k, const char *name, enum kc_type type, size_t elems,
                        float scale);
struct kc_tensor *kc_inout(struct kc *k, const char *name, enum kc_type type, size_t elems,
                           float scale);
struct kc_tensor *kc_out(struct kc *k, const char *name, enum kc_type type, size_t elems);
/* i32 in [0, bound) */
struct kc_tensor *kc_indices(struct kc *k, const char *name, size_t elems, int32_t bound);

/* The initial values (elems), which may be changed until kc_check; rounded to the dtype then. */
float *kc_values(struct kc_tensor *x);
int32_t *kc_index_values(struct kc_tensor *x);
/* An output's own limit on norm(a - b) / norm(b), in place of the one of the case's t (1e-5 for
 * f32, 2e-2 for bf16): an f32 output that no rounding to bf16 precedes deserves 1e-5. 0: the
 * reference's value, rounded to the dtype, bit for bit. */
void kc_limit(struct kc_tensor *x, double limit);
/* Begins every tensor of floats this many of its elements behind an aligned address. */
void kc_shift(struct kc *k, size_t elems);

/* One operation, or several, on a side; 0 or -errno. */
typedef int kc_run_fn(struct kc_side *s, const void *arg);
/* Where a tensor is on this side. */
void *kc_at(const struct kc_side *s, const struct kc_tensor *x);
/* Memory for this run with undefined content (NaN), aligned to 256, its surroundings watched; NULL
 * when there is none, then return -ENOMEM. bytes 0: no memory, but not NULL. */
void *kc_scratch(struct kc_side *s, size_t bytes);

/* Runs the reference alone; what it wrote to outputs and inouts becomes their value, and they
 * inputs, for an operation that needs what another one left. */
void kc_prepare(struct kc *k, kc_run_fn *run, const void *arg);
/* Runs both sides, compares, reports; k and its tensors are gone. */
void kc_check(struct kc *k, kc_run_fn *run, const void *arg);
/* In place of kc_check, where the device under test has less free memory than these bytes and 1 GiB
 * to spare: reports that, and k is gone. false: there is enough, or nobody knows. */
bool kc_skip_without(struct kc *k, uint64_t bytes);

/* basic_cases.c, wide_cases.c, attention_cases.c */
void kc_basic_cases(struct kc_frame *f);
void kc_wide_cases(struct kc_frame *f);
void kc_attention_cases(struct kc_frame *f);
void kc_softmax_xent_cases(struct kc_frame *f);

#endif
