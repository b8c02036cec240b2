/* ops.c - the table of the GPU: every operation that runs a kernel of ours. */
#include "config.h"

#include <errno.h>

#include "device/cuda/cuda.h"

static int ops_supports(struct device *d, enum dtype t, struct err *err) {
    (void)d;
    if (t == DTYPE_F32 || t == DTYPE_BF16)
        return 0;
    return err_set(err, ENOTSUP, CUDA_DEVICE_NAME ": no dtype %d", (int)t);
}

/* Reductions leave their partial sums in the stream's workspace. */
static int enter_reduction(struct device *d, struct dev_stream *s, const char *what) {
    if (s->call.work == NULL)
        return cuda_refuse(d, EINVAL, "%s: not on the take stream, which has no workspace", what);
    return cuda_enter(d);
}

static int ops_fill(struct device *d, struct dev_stream *s, void *dst, enum dtype t, size_t elems,
                    float value) {
    int rc = elems == 0 ? 0 : cuda_enter(d);
    if (rc != 0 || elems == 0)
        return rc;
    return cuda_check(d, cuda_fill(&s->call, dst, t, elems, value), "fill of %zu elements", elems);
}

static int ops_cast(struct device *d, struct dev_stream *s, void *dst, enum dtype dst_dtype,
                    const void *src, enum dtype src_dtype, size_t elems) {
    if (dst_dtype == src_dtype)
        return cuda_copy(d, s, dst, src, elems * dtype_bytes(src_dtype));
    int rc = elems == 0 ? 0 : cuda_enter(d);
    if (rc != 0 || elems == 0)
        return rc;
    return cuda_check(d, cuda_cast(&s->call, dst, dst_dtype, src, src_dtype, elems),
                      "cast of %zu elements", elems);
}

static int ops_add(struct device *d, struct dev_stream *s, float *dst, const void *src,
                   enum dtype src_dtype, size_t elems) {
    int rc = elems == 0 ? 0 : cuda_enter(d);
    if (rc != 0 || elems == 0)
        return rc;
    return cuda_check(d, cuda_add(&s->call, dst, src, src_dtype, elems), "add of %zu elements",
                      elems);
}

static int ops_embed_forward(struct device *d, struct dev_stream *s, enum dtype t, void *out,
                             const int32_t *tokens, const void *wte, const void *wpe, size_t B,
                             size_t T, size_t C) {
    int rc = B * T == 0 ? 0 : cuda_enter(d);
    if (rc != 0 || B * T == 0)
        return rc;
    return cuda_check(d, cuda_embed_forward(&s->call, t, out, tokens, wte, wpe, B, T, C),
                      "embed_forward of (%zu,%zu,%zu)", B, T, C);
}

static int ops_embed_backward(struct device *d, struct dev_stream *s, enum dtype t, enum dtype g,
                              void *dwte, void *dwpe, const void *dout, const int32_t *tokens,
                              size_t B, size_t T, size_t C, size_t V) {
    int rc = B * T == 0 ? 0 : enter_reduction(d, s, "embed_backward");
    if (rc != 0 || B * T == 0)
        return rc;
    return cuda_check(d, cuda_embed_backward(&s->call, t, g, dwte, dwpe, dout, tokens, B, T, C, V),
                      "embed_backward of (%zu,%zu,%zu)", B, T, C);
}

static int ops_layernorm_forward(struct device *d, struct dev_stream *s, enum dtype t, void *out,
                                 float *mean, float *rstd, const void *in, const void *weight,
                                 const void *bias, size_t N, size_t C, float eps) {
    int rc = N == 0 ? 0 : cuda_enter(d);
    if (rc != 0 || N == 0)
        return rc;
    return cuda_check(
        d, cuda_layernorm_forward(&s->call, t, out, mean, rstd, in, weight, bias, N, C, eps),
        "layernorm_forward of (%zu,%zu)", N, C);
}

static int ops_residual_layernorm_forward(struct device *d, struct dev_stream *s, enum dtype t,
                                          void *sum, void *out, float *mean, float *rstd,
                                          const void *residual, const void *in, const void *in_bias,
                                          const void *weight, const void *bias, size_t N, size_t C,
                                          float eps) {
    int rc = N == 0 ? 0 : cuda_enter(d);
    if (rc != 0 || N == 0)
        return rc;
    return cuda_check(d,
                      cuda_residual_layernorm_forward(&s->call, t, sum, out, mean, rstd, residual,
                                                      in, in_bias, weight, bias, N, C, eps),
                      "residual_layernorm_forward of (%zu,%zu)", N, C);
}

static int ops_layernorm_backward(struct device *d, struct dev_stream *s, enum dtype t,
                                  enum dtype g, void *din, bool accumulate, void *dweight,
                                  void *dbias, const void *dout, const void *in, const void *weight,
                                  const float *mean, const float *rstd, size_t N, size_t C) {
    int rc = N == 0 ? 0 : enter_reduction(d, s, "layernorm_backward");
    if (rc != 0 || N == 0)
        return rc;
    return cuda_check(d,
                      cuda_layernorm_backward(&s->call, t, g, din, accumulate, dweight, dbias, dout,
                                              in, weight, mean, rstd, N, C),
                      "layernorm_backward of (%zu,%zu)", N, C);
}

static int ops_bias_forward(struct device *d, struct dev_stream *s, enum dtype t, void *inout,
                            const void *bias, size_t N, size_t C) {
    int rc = N * C == 0 ? 0 : cuda_enter(d);
    if (rc != 0 || N * C == 0)
        return rc;
    return cuda_check(d, cuda_bias_forward(&s->call, t, inout, bias, N, C),
                      "bias_forward of (%zu,%zu)", N, C);
}

static int ops_bias_backward(struct device *d, struct dev_stream *s, enum dtype t, enum dtype g,
                             void *dbias, const void *dout, size_t N, size_t C) {
    int rc = N * C == 0 ? 0 : enter_reduction(d, s, "bias_backward");
    if (rc != 0 || N * C == 0)
        return rc;
    return cuda_check(d, cuda_bias_backward(&s->call, t, g, dbias, dout, N, C),
                      "bias_backward of (%zu,%zu)", N, C);
}

static int ops_bias_gelu_forward(struct device *d, struct dev_stream *s, enum dtype t, void *out,
                                 void *pre, const void *bias, size_t N, size_t C) {
    int rc = N * C == 0 ? 0 : cuda_enter(d);
    if (rc != 0 || N * C == 0)
        return rc;
    return cuda_check(d, cuda_bias_gelu_forward(&s->call, t, out, pre, bias, N, C),
                      "bias_gelu_forward of (%zu,%zu)", N, C);
}

static int ops_gelu_backward(struct device *d, struct dev_stream *s, enum dtype t, void *inout,
                             const void *pre, size_t N, size_t C) {
    int rc = N * C == 0 ? 0 : cuda_enter(d);
    if (rc != 0 || N * C == 0)
        return rc;
    return cuda_check(d, cuda_gelu_backward(&s->call, t, inout, pre, N, C),
                      "gelu_backward of (%zu,%zu)", N, C);
}

static size_t ops_attention_scratch_bytes(struct device *d, enum dtype t, size_t B, size_t T,
                                          size_t C, size_t NH) {
    (void)d;
    return cuda_attention_scratch_bytes(t, B, T, C, NH);
}

static int check_heads(struct device *d, size_t C, size_t NH) {
    if (NH == 0 || C % NH != 0 || C / NH % 8 != 0 || C / NH > 128)
        return cuda_refuse(d, EINVAL,
                           "attention: %zu channels in %zu heads: expected heads of a multiple of "
                           "8, at most 128",
                           C, NH);
    return 0;
}

static int ops_attention_forward(struct device *d, struct dev_stream *s, enum dtype t, void *out,
                                 float *lse, const void *qkv, void *scratch, size_t B, size_t T,
                                 size_t C, size_t NH) {
    int rc = check_heads(d, C, NH);
    if (rc == 0 && B * T != 0)
        rc = cuda_enter(d);
    if (rc != 0 || B * T == 0)
        return rc;
    return cuda_check(d, cuda_attention_forward(&s->call, t, out, lse, qkv, scratch, B, T, C, NH),
                      "attention_forward of (%zu,%zu,%zu)", B, T, C);
}

static int ops_attention_backward(struct device *d, struct dev_stream *s, enum dtype t, void *dqkv,
                                  const void *dout, const void *out, const float *lse,
                                  const void *qkv, void *scratch, size_t B, size_t T, size_t C,
                                  size_t NH) {
    int rc = check_heads(d, C, NH);
    if (rc == 0 && B * T != 0)
        rc = cuda_enter(d);
    if (rc != 0 || B * T == 0)
        return rc;
    return cuda_check(
        d, cuda_attention_backward(&s->call, t, dqkv, dout, out, lse, qkv, scratch, B, T, C, NH),
        "attention_backward of (%zu,%zu,%zu)", B, T, C);
}

static int ops_softmax_xent(struct device *d, struct dev_stream *s, enum dtype t, float *losses,
                            void *logits, size_t ldl, const int32_t *targets, size_t N, size_t V,
                            float scale, bool backward) {
    int rc = N == 0 ? 0 : cuda_enter(d);
    if (rc != 0 || N == 0)
        return rc;
    return cuda_check(
        d, cuda_softmax_xent(&s->call, t, losses, logits, ldl, targets, N, V, scale, backward),
        "softmax_xent of (%zu,%zu)", N, V);
}

/* elems 0: the sum is 0, and the kernel writes it */
static int ops_sum(struct device *d, struct dev_stream *s, double *out, const float *in,
                   size_t elems) {
    int rc = enter_reduction(d, s, "sum");
    return rc != 0
               ? rc
               : cuda_check(d, cuda_sum(&s->call, out, in, elems), "sum of %zu elements", elems);
}

static int ops_sum_squares(struct device *d, struct dev_stream *s, double *out, const float *in,
                           size_t elems) {
    int rc = enter_reduction(d, s, "sum_squares");
    return rc != 0 ? rc
                   : cuda_check(d, cuda_sum_squares(&s->call, out, in, elems),
                                "sum_squares of %zu elements", elems);
}

static int ops_adamw(struct device *d, struct dev_stream *s, float *param, float *exp_avg,
                     float *exp_avg_sq, const float *grad, void *copy, enum dtype copy_dtype,
                     size_t elems, const struct dev_adamw *a) {
    int rc = elems == 0 ? 0 : cuda_enter(d);
    if (rc != 0 || elems == 0)
        return rc;
    return cuda_check(
        d, cuda_adamw(&s->call, param, exp_avg, exp_avg_sq, grad, copy, copy_dtype, elems, a),
        "adamw of %zu elements", elems);
}

static int ops_init_normal(struct device *d, struct dev_stream *s, float *dst, size_t elems,
                           uint64_t seed, uint64_t sequence, uint64_t first, float mean,
                           float std) {
    int rc = elems == 0 ? 0 : cuda_enter(d);
    if (rc != 0 || elems == 0)
        return rc;
    return cuda_check(d, cuda_init_normal(&s->call, dst, elems, seed, sequence, first, mean, std),
                      "init_normal of %zu elements", elems);
}

/* The gradient of the vocabulary, in f32, is read and written once for so many rows, and the
 * product that gives the gradient of the rows has a tile for every multiprocessor. */
enum { LOGITS_ROWS = 4096 };

const struct device_ops device_cuda = {
    .name = CUDA_DEVICE_NAME,
    .host_access = false,
    .logits_rows = LOGITS_ROWS,
    .head_multiple = 8,
    .head_max = 128,
    .open = cuda_open,
    .close = cuda_close,
    .properties = cuda_properties,
    .supports = ops_supports,
    .why = cuda_why,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .stream_open = cuda_stream_open,
    .stream_close = cuda_stream_close,
    .event_open = cuda_event_open,
    .event_close = cuda_event_close,
    .event_record = cuda_event_record,
    .stream_wait = cuda_stream_wait,
    .event_synchronize = cuda_event_synchronize,
    .copy = cuda_copy,
    .fill = ops_fill,
    .cast = ops_cast,
    .add = ops_add,
    .gemm = cuda_gemm,
    .embed_forward = ops_embed_forward,
    .embed_backward = ops_embed_backward,
    .layernorm_forward = ops_layernorm_forward,
    .residual_layernorm_forward = ops_residual_layernorm_forward,
    .layernorm_backward = ops_layernorm_backward,
    .bias_forward = ops_bias_forward,
    .bias_backward = ops_bias_backward,
    .bias_gelu_forward = ops_bias_gelu_forward,
    .gelu_backward = ops_gelu_backward,
    .attention_scratch_bytes = ops_attention_scratch_bytes,
    .attention_forward = ops_attention_forward,
    .attention_backward = ops_attention_backward,
    .softmax_xent = ops_softmax_xent,
    .sum = ops_sum,
    .sum_squares = ops_sum_squares,
    .adamw = ops_adamw,
    .init_normal = ops_init_normal,
};
