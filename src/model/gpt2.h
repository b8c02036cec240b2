/* gpt2.h - inside GPT-2: its shape, and how its modules are numbered. */
#ifndef GFS_MODEL_GPT2_H
#define GFS_MODEL_GPT2_H

#include "model/kind.h"

struct gpt2_shape {
    size_t layers, heads, width, inner, context, vocab;
    float norm_eps, init_std;
};

struct gpt2 {
    struct model base;
    struct gpt2_shape shape;
};

/* Module 0 is the embedding, 1 + 2l and 2 + 2l are attention and MLP of block l, the last is the
 * head. */
enum { GPT2_BLOCK_MODULES = 2, GPT2_BLOCK_TENSORS = 12, GPT2_ROOT_TENSORS = 4 };
enum { GPT2_WTE, GPT2_WPE }; /* tensors of the embedding */
enum {
    GPT2_LN_W,
    GPT2_LN_B,
    GPT2_IN_W,
    GPT2_IN_B,
    GPT2_PROJ_W,
    GPT2_PROJ_B
};                                                      /* of attention and of MLP */
enum { GPT2_HEAD_LN_W, GPT2_HEAD_LN_B, GPT2_HEAD_WTE }; /* of the head; wte is tied */

/* A model of this shape: all sizes at least 1, width a multiple of heads, and no product of two
 * sizes near an overflow. -ENOMEM. */
int gpt2_open(const struct gpt2_shape *shape, struct model **out, struct err *err);

/* As in model.h. */
size_t gpt2_arena_bytes(const struct model *m, const struct device_ops *ops, struct device *d,
                        enum dtype t, size_t B, size_t T);
int gpt2_forward(const struct model *m, uint32_t module, const struct module_call *c);
int gpt2_backward(const struct model *m, uint32_t module, const struct module_call *c);
int gpt2_loss(const struct model *m, const struct module_call *c, double *out);

#endif
