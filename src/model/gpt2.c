/* gpt2.c - GPT-2 (Radford et al., 2019) as Hugging Face stores it: its tensors and its modules. */
#include "config.h"

#include "model/gpt2.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Linear layers are stored [in, out] (Conv1D); columns of c_attn: q, k, v. */
struct tensor_form {
    const char *name;
    uint64_t shape[2]; /* the second 0: a vector */
    enum init_kind init;
    float std;
};

static void add_tensor(struct gpt2 *g, uint32_t module, const char *prefix,
                       const struct tensor_form *f) {
    struct model *m = &g->base;
    struct model_tensor *t = &m->tensors[m->tensor_count];
    *t = (struct model_tensor){.init = f->init, .init_std = f->std};
    snprintf(t->spec.name, sizeof(t->spec.name), "%s.%s", prefix, f->name);
    t->spec.ndim = f->shape[1] != 0 ? 2 : 1;
    t->spec.shape[0] = f->shape[0];
    t->spec.shape[1] = f->shape[1];
    t->spec.module = module;
    t->spec.decay = t->spec.ndim >= 2; /* the embeddings too, as in nanoGPT */
    m->reads[m->first_read[module + 1]++] = m->tensor_count++;
}

static void add_module(struct gpt2 *g, int32_t block, const char *prefix, const char *name,
                       const struct tensor_form *forms, size_t count) {
    struct model *m = &g->base;
    uint32_t module = m->module_count++;
    struct wrap_module *w = &m->modules[module];
    snprintf(w->name, sizeof(w->name), "%s.%s", prefix, name);
    w->block = block;
    m->first_read[module + 1] = m->first_read[module];
    for (size_t i = 0; i < count; i++)
        add_tensor(g, module, prefix, &forms[i]);
}

static void add_block(struct gpt2 *g, size_t layer) {
    const struct gpt2_shape *s = &g->shape;
    uint64_t C = s->width, F = s->inner;
    float residual_std = (float)(s->init_std / sqrt(2.0 * (double)s->layers));
    const struct tensor_form attn[] = {
        {"ln_1.weight", {C, 0}, INIT_ONES, 0},
        {"ln_1.bias", {C, 0}, INIT_ZEROS, 0},
        {"attn.c_attn.weight", {C, 3 * C}, INIT_NORMAL, s->init_std},
        {"attn.c_attn.bias", {3 * C, 0}, INIT_ZEROS, 0},
        {"attn.c_proj.weight", {C, C}, INIT_NORMAL, residual_std},
        {"attn.c_proj.bias", {C, 0}, INIT_ZEROS, 0},
    };
    const struct tensor_form mlp[] = {
        {"ln_2.weight", {C, 0}, INIT_ONES, 0},
        {"ln_2.bias", {C, 0}, INIT_ZEROS, 0},
        {"mlp.c_fc.weight", {C, F}, INIT_NORMAL, s->init_std},
        {"mlp.c_fc.bias", {F, 0}, INIT_ZEROS, 0},
        {"mlp.c_proj.weight", {F, C}, INIT_NORMAL, residual_std},
        {"mlp.c_proj.bias", {C, 0}, INIT_ZEROS, 0},
    };
    char prefix[64];
    snprintf(prefix, sizeof(prefix), "transformer.h.%zu", layer);
    add_module(g, (int32_t)layer, prefix, "attn", attn, sizeof(attn) / sizeof(attn[0]));
    add_module(g, (int32_t)layer, prefix, "mlp", mlp, sizeof(mlp) / sizeof(mlp[0]));
}

static void add_all(struct gpt2 *g) {
    const struct gpt2_shape *s = &g->shape;
    struct model *m = &g->base;
    const struct tensor_form embedding[] = {
        {"wte.weight", {s->vocab, s->width}, INIT_NORMAL, s->init_std},
        {"wpe.weight", {s->context, s->width}, INIT_NORMAL, s->init_std},
    };
    const struct tensor_form head[] = {
        {"ln_f.weight", {s->width, 0}, INIT_ONES, 0},
        {"ln_f.bias", {s->width, 0}, INIT_ZEROS, 0},
    };
    add_module(g, -1, "transformer", "wte+wpe", embedding, 2);
    for (size_t i = 0; i < s->layers; i++)
        add_block(g, i);
    add_module(g, -1, "transformer", "ln_f+head", head, 2);
    m->reads[m->first_read[m->module_count]++] = GPT2_WTE; /* the tied embedding */
}

static void gpt2_close(struct model *m) { free(m); }

int gpt2_open(const struct gpt2_shape *shape, struct model **out, struct err *err) {
    struct gpt2 *g = calloc(1, sizeof(*g));
    if (g == NULL)
        return err_set(err, ENOMEM, "out of memory");
    g->base.kind = &model_kind_gpt2;
    g->shape = *shape;
    size_t modules = g->shape.layers * GPT2_BLOCK_MODULES + 2;
    size_t tensors = g->shape.layers * GPT2_BLOCK_TENSORS + GPT2_ROOT_TENSORS;
    g->base.vocab = g->shape.vocab;
    g->base.context = g->shape.context;
    g->base.tensors = calloc(tensors, sizeof(*g->base.tensors));
    g->base.modules = calloc(modules, sizeof(*g->base.modules));
    g->base.reads = calloc(tensors + 1, sizeof(*g->base.reads));
    g->base.first_read = calloc(modules + 1, sizeof(*g->base.first_read));
    if (g->base.tensors == NULL || g->base.modules == NULL || g->base.reads == NULL ||
        g->base.first_read == NULL) {
        model_close(&g->base);
        return err_set(err, ENOMEM, "out of memory for %zu tensors", tensors);
    }
    add_all(g);
    *out = &g->base;
    return 0;
}

/* 2 forward, 4 backward for each parameter that a product reads, and for the attention's two
 * products of T x C a layer (counted as if nothing were masked, as is the custom). */
static double gpt2_flops_per_token(const struct model *m, size_t T) {
    const struct gpt2_shape *s = &((const struct gpt2 *)m)->shape;
    double C = (double)s->width, block = 4 * C * C + 2 * C * (double)s->inner;
    double params = (double)s->layers * block + (double)s->vocab * C;
    return 6 * params + 12 * (double)s->layers * C * (double)T;
}

static int gpt2_supported(const struct model *m, const struct device_ops *ops, struct err *err) {
    const struct gpt2_shape *s = &((const struct gpt2 *)m)->shape;
    size_t head = s->width / s->heads;
    if ((ops->head_multiple != 0 && head % ops->head_multiple != 0) ||
        (ops->head_max != 0 && head > ops->head_max))
        return err_set(err, ENOTSUP,
                       "attention heads of %zu channels (n_embd / n_head): device %s computes "
                       "multiples of %zu up to %zu; use device = cpu",
                       head, ops->name, ops->head_multiple, ops->head_max);
    return 0;
}

const struct model_kind model_kind_gpt2 = {
    .name = "gpt2",
    .close = gpt2_close,
    .flops_per_token = gpt2_flops_per_token,
    .supported = gpt2_supported,
    .arena_bytes = gpt2_arena_bytes,
    .forward = gpt2_forward,
    .backward = gpt2_backward,
    .loss = gpt2_loss,
};
