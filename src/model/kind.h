/* kind.h - inside src/model: what every kind of model has, and what it must offer. */
#ifndef GFS_MODEL_KIND_H
#define GFS_MODEL_KIND_H

#include "model/model.h"

struct model_kind {
    const char *name; /* "model_type" of config.json */
    void (*close)(struct model *m);
    double (*flops_per_token)(const struct model *m, size_t T);
    int (*supported)(const struct model *m, const struct device_ops *ops, struct err *err);
    size_t (*arena_bytes)(const struct model *m, const struct device_ops *ops, struct device *d,
                          enum dtype t, size_t B, size_t T);
    int (*forward)(const struct model *m, uint32_t module, const struct module_call *c);
    int (*backward)(const struct model *m, uint32_t module, const struct module_call *c);
    int (*loss)(const struct model *m, const struct module_call *c, double *out);
};

extern const struct model_kind model_kind_gpt2;

/* The first member of each kind's own struct. */
struct model {
    const struct model_kind *kind;
    size_t vocab, context;
    uint32_t tensor_count, module_count;
    struct model_tensor *tensors; /* owned, [tensor_count] */
    struct wrap_module *modules;  /* owned, [module_count] */
    uint32_t *reads;              /* owned: indices of tensors, module after module */
    uint32_t *first_read;         /* owned, [module_count + 1]: into reads */
};

#endif
