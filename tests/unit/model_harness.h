/* model_harness.h - a whole model on one device without an engine: every tensor is there, nothing
 * is sharded. */
#ifndef GFS_TESTS_MODEL_HARNESS_H
#define GFS_TESTS_MODEL_HARNESS_H

#include "device/device.h"
#include "model/model.h"

struct harness {
    const struct device_ops *ops;
    struct device *dev; /* borrowed */
    struct dev_stream *stream;
    struct dev_event *done;
    enum dtype dtype;
    struct model *model;
    size_t elems;                                 /* of all tensors */
    size_t *offset;                               /* of each tensor; [tensor_count + 1] */
    float *params, *grads, *exp_avg, *exp_avg_sq; /* (elems), device memory */
    void *weights;                                /* params as modules read them, of dtype */
    void *arena;
    size_t arena_bytes, rows; /* rows: B * T planned for */
    int32_t *tokens;          /* device memory: tokens, then targets */
    int32_t *host_tokens;     /* pinned */
    float *mirror;            /* pinned, (elems), where the host can't read the device */
    double *scalar;           /* pinned */
    uint64_t step;            /* updates done */
};

/* Planned for B x T, activations and weights of dtype, gradients in f32. Aborts on failure: it is
 * for tests. */
void harness_open(struct harness *h, const struct device_ops *ops, struct device *dev,
                  enum dtype dtype, const char *config_text, size_t B, size_t T);
void harness_close(struct harness *h);
/* One of the arrays (elems) as the host may read it, until the next call. */
const float *harness_host(struct harness *h, const float *array);
/* Parameters as the engine makes them; gradients are set to NaN. */
void harness_init(struct harness *h, uint64_t seed);

/* Tokens and targets of a batch are in host memory here.
 *
 * Forward and backward of all modules; returns the loss. accumulate: add to the gradients. */
double harness_train(struct harness *h, const struct model_batch *b, bool accumulate);
/* Forward alone. */
double harness_loss(struct harness *h, const struct model_batch *b);
/* AdamW with betas 0.9, 0.95 and eps 1e-8, gradients clipped to the norm clip; returns the norm
 * before. */
double harness_update(struct harness *h, double lr, double weight_decay, double clip);

/* tokens and targets (B, T) of a fixed sequence: a linear congruence, so that any language can make
 * them again. */
void harness_tokens(int32_t *tokens, int32_t *targets, size_t B, size_t T, size_t vocab);

#endif
