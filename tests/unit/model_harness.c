/* model_harness.c - a model on one device, with all its parameters in one buffer. */
#include "config.h"

#include "model_harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MODULE_TENSORS_MAX = 16 };

static void must(int rc, const char *what) {
    if (rc == 0)
        return;
    fprintf(stderr, "%s: %s\n", what, strerror(-rc));
    abort();
}

static void *make(struct harness *h, enum dev_memory kind, size_t bytes, const char *what) {
    void *p = NULL;
    must(h->ops->alloc(h->dev, kind, bytes, what, &p), what);
    return p;
}

/* The host may read what was queued so far. */
static void settle(struct harness *h) {
    must(h->ops->event_record(h->dev, h->stream, h->done), "event");
    must(h->ops->event_synchronize(h->dev, h->done), "synchronize");
}

void harness_open(struct harness *h, const struct device_ops *ops, struct device *dev,
                  enum dtype dtype, const char *config_text, size_t B, size_t T) {
    struct err err = {0};
    *h = (struct harness){.ops = ops, .dev = dev, .dtype = dtype, .rows = B * T};
    int rc = model_open(config_text, &h->model, &err);
    must(rc, err.text);
    must(ops->stream_open(dev, DEV_STREAM_COMPUTE, &h->stream), "stream");
    must(ops->event_open(dev, "done", &h->done), "event");
    uint32_t count = model_tensor_count(h->model);
    h->offset = calloc(count + 1, sizeof(*h->offset));
    if (h->offset == NULL)
        abort();
    for (uint32_t i = 0; i < count; i++) {
        uint64_t numel;
        must(tensor_numel(&model_tensors(h->model)[i].spec, &numel), "numel");
        h->offset[i + 1] = h->offset[i] + numel;
    }
    h->elems = h->offset[count];
    size_t bytes = h->elems * sizeof(float);
    h->params = make(h, DEV_MEM_DEVICE, bytes, "params");
    h->grads = make(h, DEV_MEM_DEVICE, bytes, "grads");
    h->exp_avg = make(h, DEV_MEM_DEVICE, bytes, "exp_avg");
    h->exp_avg_sq = make(h, DEV_MEM_DEVICE, bytes, "exp_avg_sq");
    h->weights = dtype == DTYPE_F32
                     ? h->params
                     : make(h, DEV_MEM_DEVICE, h->elems * dtype_bytes(dtype), "weights");
    h->arena_bytes = model_arena_bytes(h->model, ops, dev, dtype, B, T);
    h->arena = make(h, DEV_MEM_DEVICE, h->arena_bytes, "arena");
    h->tokens = make(h, DEV_MEM_DEVICE, 2 * h->rows * sizeof(int32_t), "tokens");
    h->host_tokens = make(h, DEV_MEM_HOST, 2 * h->rows * sizeof(int32_t), "tokens of the host");
    if (!ops->host_access)
        h->mirror = make(h, DEV_MEM_HOST, bytes, "mirror");
    h->scalar = make(h, DEV_MEM_HOST, sizeof(double), "scalar");
}

void harness_close(struct harness *h) {
    size_t bytes = h->elems * sizeof(float);
    float *arrays[] = {h->params, h->grads, h->exp_avg, h->exp_avg_sq};
    settle(h);
    for (size_t i = 0; i < 4; i++)
        h->ops->free(h->dev, DEV_MEM_DEVICE, arrays[i], bytes);
    if (h->weights != h->params)
        h->ops->free(h->dev, DEV_MEM_DEVICE, h->weights, h->elems * dtype_bytes(h->dtype));
    h->ops->free(h->dev, DEV_MEM_DEVICE, h->arena, h->arena_bytes);
    h->ops->free(h->dev, DEV_MEM_DEVICE, h->tokens, 2 * h->rows * sizeof(int32_t));
    h->ops->free(h->dev, DEV_MEM_HOST, h->host_tokens, 2 * h->rows * sizeof(int32_t));
    if (h->mirror != NULL)
        h->ops->free(h->dev, DEV_MEM_HOST, h->mirror, bytes);
    h->ops->free(h->dev, DEV_MEM_HOST, h->scalar, sizeof(double));
    h->ops->event_close(h->dev, h->done);
    h->ops->stream_close(h->dev, h->stream);
    free(h->offset);
    model_close(h->model);
}

const float *harness_host(struct harness *h, const float *array) {
    if (h->mirror != NULL)
        must(h->ops->copy(h->dev, h->stream, h->mirror, array, h->elems * sizeof(float)), "copy");
    settle(h);
    return h->mirror != NULL ? h->mirror : array;
}

/* After params were written. */
static void weights_make(struct harness *h) {
    if (h->weights != h->params)
        must(h->ops->cast(h->dev, h->stream, h->weights, h->dtype, h->params, DTYPE_F32, h->elems),
             "cast");
}

/* The batch with its tokens on the device. */
static struct model_batch batch_put(struct harness *h, const struct model_batch *b) {
    struct model_batch there = *b;
    size_t rows = b->B * b->T, bytes = 2 * rows * sizeof(int32_t);
    if (rows == 0)
        return there;
    if (rows > h->rows)
        abort();
    settle(h); /* the last batch has been copied */
    memcpy(h->host_tokens, b->tokens, rows * sizeof(int32_t));
    memcpy(h->host_tokens + rows, b->targets, rows * sizeof(int32_t));
    must(h->ops->copy(h->dev, h->stream, h->tokens, h->host_tokens, bytes), "copy");
    there.tokens = h->tokens;
    there.targets = h->tokens + rows;
    return there;
}

void harness_init(struct harness *h, uint64_t seed) {
    for (uint32_t i = 0; i < model_tensor_count(h->model); i++) {
        const struct model_tensor *t = &model_tensors(h->model)[i];
        float *p = h->params + h->offset[i];
        size_t elems = h->offset[i + 1] - h->offset[i];
        if (t->init == INIT_NORMAL)
            must(h->ops->init_normal(h->dev, h->stream, p, elems, seed, i, 0, 0, t->init_std),
                 "init");
        else
            must(h->ops->fill(h->dev, h->stream, p, DTYPE_F32, elems, t->init == INIT_ONES ? 1 : 0),
                 "init");
    }
    must(h->ops->fill(h->dev, h->stream, h->grads, DTYPE_F32, h->elems, NAN), "init");
    must(h->ops->fill(h->dev, h->stream, h->exp_avg, DTYPE_F32, h->elems, 0), "init");
    must(h->ops->fill(h->dev, h->stream, h->exp_avg_sq, DTYPE_F32, h->elems, 0), "init");
    weights_make(h);
    h->step = 0;
}

/* Calls one module with pointers to its tensors. */
static void call(struct harness *h, uint32_t module, const struct model_batch *b, bool backward,
                 bool accumulate) {
    const void *params[MODULE_TENSORS_MAX];
    void *grads[MODULE_TENSORS_MAX];
    bool add[MODULE_TENSORS_MAX];
    const uint32_t *tensors;
    uint32_t count = model_module_tensors(h->model, module, &tensors);
    for (uint32_t i = 0; i < count; i++) {
        params[i] = (uint8_t *)h->weights + h->offset[tensors[i]] * dtype_bytes(h->dtype);
        grads[i] = h->grads + h->offset[tensors[i]];
        add[i] = accumulate;
    }
    struct module_call c = {.ops = h->ops,
                            .dev = h->dev,
                            .stream = h->stream,
                            .dtype = h->dtype,
                            .grad_dtype = DTYPE_F32,
                            .arena = h->arena,
                            .batch = b,
                            .params = params,
                            .grads = grads,
                            .accumulate = add};
    must(backward ? model_backward(h->model, module, &c) : model_forward(h->model, module, &c),
         "module");
}

static double loss_of(struct harness *h, const struct model_batch *b) {
    struct module_call c = {.ops = h->ops,
                            .dev = h->dev,
                            .stream = h->stream,
                            .dtype = h->dtype,
                            .grad_dtype = DTYPE_F32,
                            .arena = h->arena,
                            .batch = b};
    must(model_loss(h->model, &c, h->scalar), "loss");
    settle(h);
    return *h->scalar;
}

double harness_train(struct harness *h, const struct model_batch *b, bool accumulate) {
    uint32_t modules = model_module_count(h->model);
    struct model_batch there = batch_put(h, b);
    for (uint32_t i = 0; i < modules; i++)
        call(h, i, &there, false, false);
    for (uint32_t i = modules; i-- > 0;)
        call(h, i, &there, true, accumulate);
    return loss_of(h, &there);
}

double harness_loss(struct harness *h, const struct model_batch *b) {
    struct model_batch only = batch_put(h, b);
    only.loss_only = true;
    for (uint32_t i = 0; i < model_module_count(h->model); i++)
        call(h, i, &only, false, false);
    return loss_of(h, &only);
}

double harness_update(struct harness *h, double lr, double weight_decay, double clip) {
    h->step++;
    must(h->ops->sum_squares(h->dev, h->stream, h->scalar, h->grads, h->elems), "norm");
    settle(h);
    double norm = sqrt(*h->scalar);
    struct dev_adamw a = {.lr = lr,
                          .beta1 = 0.9,
                          .beta2 = 0.95,
                          .eps = 1e-8,
                          .grad_scale = norm > clip ? clip / norm : 1.0,
                          .correction1 = 1 - pow(0.9, (double)h->step),
                          .correction2 = 1 - pow(0.95, (double)h->step)};
    for (uint32_t i = 0; i < model_tensor_count(h->model); i++) {
        size_t at = h->offset[i];
        a.weight_decay = model_tensors(h->model)[i].spec.decay ? weight_decay : 0;
        void *weights =
            h->weights == h->params ? NULL : (uint8_t *)h->weights + at * dtype_bytes(h->dtype);
        must(h->ops->adamw(h->dev, h->stream, h->params + at, h->exp_avg + at, h->exp_avg_sq + at,
                           h->grads + at, weights, h->dtype, h->offset[i + 1] - at, &a),
             "adamw");
    }
    return norm;
}

void harness_tokens(int32_t *tokens, int32_t *targets, size_t B, size_t T, size_t vocab) {
    uint32_t x = 12345;
    for (size_t b = 0; b < B; b++)
        for (size_t t = 0; t <= T; t++) {
            x = x * 1664525u + 1013904223u;
            int32_t token = (int32_t)((x >> 8) % (uint32_t)vocab);
            if (t < T)
                tokens[b * T + t] = token;
            if (t > 0)
                targets[b * T + t - 1] = token;
        }
}
