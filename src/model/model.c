/* model.c - what is the same for every kind of model. */
#include "config.h"

#include "model/model.h"

#include <stdlib.h>

#include "model/kind.h"

void model_close(struct model *m) {
    if (m == NULL)
        return;
    free(m->tensors);
    free(m->modules);
    free(m->reads);
    free(m->first_read);
    m->kind->close(m);
}

const char *model_kind(const struct model *m) { return m->kind->name; }
size_t model_vocab(const struct model *m) { return m->vocab; }
size_t model_context(const struct model *m) { return m->context; }
uint32_t model_tensor_count(const struct model *m) { return m->tensor_count; }
const struct model_tensor *model_tensors(const struct model *m) { return m->tensors; }
uint32_t model_module_count(const struct model *m) { return m->module_count; }
const struct wrap_module *model_modules(const struct model *m) { return m->modules; }

uint32_t model_module_tensors(const struct model *m, uint32_t module, const uint32_t **tensors) {
    *tensors = m->reads + m->first_read[module];
    return m->first_read[module + 1] - m->first_read[module];
}

double model_flops_per_token(const struct model *m, size_t T) {
    return m->kind->flops_per_token(m, T);
}

int model_supported(const struct model *m, const struct device_ops *ops, struct err *err) {
    return m->kind->supported(m, ops, err);
}

size_t model_arena_bytes(const struct model *m, const struct device_ops *ops, struct device *d,
                         enum dtype t, size_t B, size_t T) {
    return m->kind->arena_bytes(m, ops, d, t, B, T);
}

int model_forward(struct model *m, uint32_t module, const struct module_call *c) {
    return m->kind->forward(m, module, c);
}
int model_backward(struct model *m, uint32_t module, const struct module_call *c) {
    return m->kind->backward(m, module, c);
}
int model_loss(struct model *m, const struct module_call *c, double *out) {
    return m->kind->loss(m, c, out);
}
