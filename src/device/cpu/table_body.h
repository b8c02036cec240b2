/* table_body.h - the table of one kind of processor; included last by kernels_*.c. */

static const struct cpu_gemm_kernel k_gemm_plain = {.row_unit = PAD,
                                                    .column_unit = PAD,
                                                    .scratch_elems = k_gemm_scratch_elems,
                                                    .multiply = k_gemm_multiply};

#define CPU_KERNELS_TABLE(check, product)                                                          \
    {                                                                                              \
        .name = SIMD_NAME, .usable = (check), .gemm = (product), .gemm_plain = &k_gemm_plain,      \
        .fill = k_fill, .cast = k_cast, .add = k_add, .add_to = k_add_to,                          \
        .layernorm_forward = k_layernorm_forward,                                                  \
        .residual_layernorm_forward = k_residual_layernorm_forward,                                \
        .layernorm_backward_in = k_layernorm_backward_in,                                          \
        .layernorm_backward_params = k_layernorm_backward_params, .column_sums = k_column_sums,    \
        .bias_forward = k_bias_forward, .bias_gelu_forward = k_bias_gelu_forward,                  \
        .gelu_backward = k_gelu_backward, .softmax_xent = k_softmax_xent, .sum = k_sum,            \
        .sum_squares = k_sum_squares, .adamw = k_adamw,                                            \
        .attention_scratch_elems = k_attention_scratch_elems,                                      \
        .attention_forward = k_attention_forward, .attention_backward = k_attention_backward,      \
    }
