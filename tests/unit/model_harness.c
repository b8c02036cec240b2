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

void harness_open(struct harness *h, const struct device_ops *ops, struct device *dev,
                  const char *config_text, size_t B, size_t T) {
    struct err err = {0};
    *h = (struct harness){.ops = ops, .dev = dev};
    int rc = model_open(config_text, &h->model, &err);
    must(rc, err.text);
    must(ops->stream_open(dev, DEV_STREAM_COMPUTE, &h->stream), "stream");
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
    h->arena_bytes = model_arena_bytes(h->model, ops, dev, B, T);
    h->arena = make(h, DEV_MEM_DEVICE, h->arena_bytes, "arena");
    h->scalar = make(h, DEV_MEM_HOST, sizeof(double), "scalar");
}

void harness_close(struct harness *h) {
    size_t bytes = h->elems * sizeof(float);
    float *arrays[] = {h->params, h->grads, h->exp_avg, h->exp_avg_sq};
    for (size_t i = 0; i < 4; i++)
        h->ops->free(h->dev, DEV_MEM_DEVICE, arrays[i], bytes);
    h->ops->free(h->dev, DEV_MEM_DEVICE, h->arena, h->arena_bytes);
    h->ops->free(h->dev, DEV_MEM_HOST, h->scalar, sizeof(double));
    h->ops->stream_close(h->dev, h->stream);
    free(h->offset);
    model_close(h->model);
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
            must(h->ops->fill(h->dev, h->stream, p, elems, t->init == INIT_ONES ? 1 : 0), "init");
    }
    must(h->ops->fill(h->dev, h->stream, h->grads, h->elems, NAN), "init");
    must(h->ops->fill(h->dev, h->stream, h->exp_avg, h->elems, 0), "init");
    must(h->ops->fill(h->dev, h->stream, h->exp_avg_sq, h->elems, 0), "init");
    h->step = 0;
}

/* Calls one module with pointers to its tensors. */
static void call(struct harness *h, uint32_t module, const struct model_batch *b, bool backward,
                 bool accumulate) {
    const float *params[MODULE_TENSORS_MAX];
    float *grads[MODULE_TENSORS_MAX];
    bool add[MODULE_TENSORS_MAX];
    const uint32_t *tensors;
    uint32_t count = model_module_tensors(h->model, module, &tensors);
    for (uint32_t i = 0; i < count; i++) {
        params[i] = h->params + h->offset[tensors[i]];
        grads[i] = h->grads + h->offset[tensors[i]];
        add[i] = accumulate;
    }
    struct module_call c = {.ops = h->ops,
                            .dev = h->dev,
                            .stream = h->stream,
                            .arena = h->arena,
                            .batch = b,
                            .params = params,
                            .grads = grads,
                            .accumulate = add};
    must(backward ? model_backward(h->model, module, &c) : model_forward(h->model, module, &c),
         "module");
}

static double loss_of(struct harness *h, const struct model_batch *b) {
    struct module_call c = {
        .ops = h->ops, .dev = h->dev, .stream = h->stream, .arena = h->arena, .batch = b};
    must(model_loss(h->model, &c, h->scalar), "loss");
    return *h->scalar;
}

double harness_train(struct harness *h, const struct model_batch *b, bool accumulate) {
    uint32_t modules = model_module_count(h->model);
    for (uint32_t i = 0; i < modules; i++)
        call(h, i, b, false, false);
    for (uint32_t i = modules; i-- > 0;)
        call(h, i, b, true, accumulate);
    return loss_of(h, b);
}

double harness_loss(struct harness *h, const struct model_batch *b) {
    struct model_batch only = *b;
    only.loss_only = true;
    for (uint32_t i = 0; i < model_module_count(h->model); i++)
        call(h, i, &only, false, false);
    return loss_of(h, &only);
}

double harness_update(struct harness *h, double lr, double weight_decay, double clip) {
    h->step++;
    must(h->ops->sum_squares(h->dev, h->stream, h->scalar, h->grads, h->elems), "norm");
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
        must(h->ops->adamw(h->dev, h->stream, h->params + at, h->exp_avg + at, h->exp_avg_sq + at,
                           h->grads + at, h->offset[i + 1] - at, &a),
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
