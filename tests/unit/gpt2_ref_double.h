/* gpt2_ref_double.h - GPT-2's loss and gradients in double precision, in plain loops written from
 * the formulas alone. */
#ifndef GFS_TESTS_GPT2_REF_DOUBLE_H
#define GFS_TESTS_GPT2_REF_DOUBLE_H

#include <stddef.h>
#include <stdint.h>

struct ref_shape {
    size_t layers, heads, width, inner, context, vocab;
    double eps;
};

/* params[i] and grads[i] are the tensors in the order wte, wpe, per block ln_1, c_attn, c_proj,
 * ln_2, c_fc, c_proj (weight, bias each), ln_f. grads are overwritten. Returns scale * sum of the
 * losses. */
double ref_gpt2(const struct ref_shape *s, double *const *params, double *const *grads,
                const int32_t *tokens, const int32_t *targets, size_t B, size_t T, double scale);

#endif
