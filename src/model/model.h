/* model.h - a model as a list of modules, each with its tensors, forward and backward; shapes only,
 * no weights.
 *
 * The engine gathers the unit a module belongs to and passes pointers to its tensors. Forward of
 * module 0..n-1 in order, then backward n-1..0, on one stream. Activations live in one arena the
 * model plans and the engine allocates. Gradients: a module's backward overwrites (accumulate
 * false: the buffer may hold garbage) or adds. Of a tensor that several modules read (the tied
 * embedding) the last module is the first in backward and obeys accumulate; those before it always
 * add, whatever accumulate says.
 *
 * Logits of a whole batch never exist. In training the head's forward is its norm only; its
 * backward makes logits, losses and gradients for some rows at a time. So the loss is known after
 * the head's *backward*; for a loss without gradients see loss_only. */
#ifndef GFS_MODEL_MODEL_H
#define GFS_MODEL_MODEL_H

#include "base/buf.h"
#include "base/err.h"
#include "device/device.h"
#include "shard/layout.h"
#include "shard/wrap.h"

struct model;

enum init_kind { INIT_NORMAL, INIT_ZEROS, INIT_ONES };
struct model_tensor {
    struct tensor_spec spec;
    enum init_kind init;
    float init_std; /* INIT_NORMAL: device_ops.init_normal with mean 0; sequence is the tensor's
                       index, first counts its elements */
};

/* Shapes of a batch on this rank; buffers are planned for the largest. */
struct model_batch {
    const int32_t *tokens, *targets; /* (B,T), device memory */
    size_t B, T;                     /* B may be 0: no loss, and gradients of zero */
    float loss_scale;                /* 1 / tokens of the global batch */
    bool loss_only;                  /* the head's forward makes the losses; there is no backward */
};

/* what is a preset ("gpt2:tiny|10M|124M") or a path of a Hugging Face config.json. A directory is
 * refused by name (loading weights is not offered yet). *text (caller frees) is the config.json as
 * Hugging Face reads it. */
int model_config_text(const char *what, char **text, struct err *err);
/* From config.json text: "model_type" chooses. */
int model_open(const char *config_text, struct model **out, struct err *err);
void model_close(struct model *m);

const char *model_kind(const struct model *m); /* "gpt2" */
size_t model_vocab(const struct model *m), model_context(const struct model *m);
uint32_t model_tensor_count(const struct model *m);
const struct model_tensor *
model_tensors(const struct model *m); /* [tensor_count] in module order */
uint32_t model_module_count(const struct model *m);
const struct wrap_module *model_modules(const struct model *m); /* [module_count] */
/* Tensors a module reads: its own, and for the head the tied embedding: indices into model_tensors.
 */
uint32_t model_module_tensors(const struct model *m, uint32_t module, const uint32_t **tensors);
/* Floating point operations of forward and backward for one token at context T (6N + attention). */
double model_flops_per_token(const struct model *m, size_t T);

/* 0 if this device can compute it; else -ENOTSUP and the reason. */
int model_supported(const struct model *m, const struct device_ops *ops, struct err *err);
/* Bytes of activations of dtype t (one arena) for a microbatch of B x T. The arena is aligned to
 * 256 bytes. */
size_t model_arena_bytes(const struct model *m, const struct device_ops *ops, struct device *d,
                         enum dtype t, size_t B, size_t T);

/* params[i], grads[i]: the tensors of model_module_tensors, in that order. accumulate[i]: add to
 * grads[i], else overwrite. */
struct module_call {
    const struct device_ops *ops;
    struct device *dev;
    struct dev_stream *stream;
    enum dtype dtype;      /* of activations and params */
    enum dtype grad_dtype; /* of grads */
    void *arena;
    const struct model_batch *batch;
    const void *const *params;
    void *const *grads;     /* backward only */
    const bool *accumulate; /* backward only */
};
int model_forward(struct model *m, uint32_t module, const struct module_call *c);
int model_backward(struct model *m, uint32_t module, const struct module_call *c);
/* The sum of the losses of the batch times loss_scale into out[0] (DEV_MEM_HOST, valid after the
 * stream is synchronized): after the head's backward, or its forward when loss_only. The next
 * forward overwrites the losses. */
int model_loss(struct model *m, const struct module_call *c, double *out);

#endif
