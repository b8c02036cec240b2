/* attention.cu - attention by the kernels that the call allows, and delta, which both kinds need.
 *
 * Estimate for delta (not measured): reads out and dout once, 8 N C bytes in f32; bound by memory.
 */
#include "device/cuda/attention_tiles.cuh"

#include <limits.h>

enum { DELTA_LANES = 8 /* threads of one row of one head */ };

/* delta (B,NH,T) = row sums of dout * out (B,T,NH,D); rows = B * T * NH */
template <typename S>
static __global__ void __launch_bounds__(FLAT_THREADS)
    attention_delta(float *delta, const S *dout, const S *out, size_t rows, int T, int NH, int D) {
    constexpr int E = vec_of<S>::elems;
    const size_t row = grid_first() / DELTA_LANES;
    const int lane = threadIdx.x % DELTA_LANES;
    float sum = 0;
    for (int c = lane * E; row < rows && c < D; c += DELTA_LANES * E) {
        float x[E], y[E];
        vec_load(dout + row * D + c, x);
        vec_load(out + row * D + c, y);
#pragma unroll
        for (int e = 0; e < E; e++)
            sum = fmaf(x[e], y[e], sum);
    }
#pragma unroll
    for (int step = DELTA_LANES / 2; step > 0; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0 && row < rows) {
        const size_t h = row % NH, t = row / NH % T, b = row / NH / T;
        delta[(b * NH + h) * T + t] = sum;
    }
}

template <typename S>
static cudaError_t queue_delta(const struct cuda_call *c, float *delta, const struct attention *a) {
    const size_t rows = (size_t)a->heads * a->T;
    LAUNCH((attention_delta<S>), (unsigned)ceil_div(rows * DELTA_LANES, FLAT_THREADS), FLAT_THREADS,
           0, c->stream, delta, static_cast<const S *>(a->dout), static_cast<const S *>(a->out),
           rows, a->T, a->NH, a->D);
    return LAUNCH_ERROR();
}

static bool by_tensor_cores(const struct cuda_call *c, enum dtype t, int D) {
    return c->tensor_cores && c->arch >= 80 && t == DTYPE_BF16 && (D == 64 || D == 128);
}

/* Indices within a sequence and numbers of blocks are int in the kernels. */
static bool fits(size_t B, size_t T, size_t C, size_t NH) {
    return NH > 0 && C % NH == 0 && C / NH % 8 == 0 && C / NH <= ATTENTION_HEAD_MAX &&
           T <= INT_MAX / 2 && C <= INT_MAX / 512 && B * NH <= INT_MAX && T * B * NH <= INT_MAX;
}

static struct attention attention_of(size_t B, size_t T, size_t C, size_t NH) {
    struct attention a = {};
    a.T = (int)T;
    a.C = (int)C;
    a.NH = (int)NH;
    a.D = (int)(C / NH);
    a.heads = (int)(B * NH);
    return a;
}

extern "C" size_t cuda_attention_scratch_bytes(enum dtype t, size_t B, size_t T, size_t C,
                                               size_t NH) {
    (void)t;
    (void)C;
    return B * T * NH * sizeof(float); /* delta */
}

extern "C" cudaError_t cuda_attention_forward(const struct cuda_call *c, enum dtype t, void *out,
                                              float *lse, const void *qkv, void *scratch, size_t B,
                                              size_t T, size_t C, size_t NH) {
    (void)scratch;
    if (!fits(B, T, C, NH))
        return cudaErrorInvalidValue;
    struct attention a = attention_of(B, T, C, NH);
    a.qkv = qkv;
    a.out = out;
    a.lse = lse;
    return by_tensor_cores(c, t, a.D) ? cuda_attention_mma_forward(c, &a)
                                      : cuda_attention_plain_forward(c, t, &a);
}

extern "C" cudaError_t cuda_attention_backward(const struct cuda_call *c, enum dtype t, void *dqkv,
                                               const void *dout, const void *out, const float *lse,
                                               const void *qkv, void *scratch, size_t B, size_t T,
                                               size_t C, size_t NH) {
    if (!fits(B, T, C, NH))
        return cudaErrorInvalidValue;
    float *delta = static_cast<float *>(scratch);
    struct attention a = attention_of(B, T, C, NH);
    a.qkv = qkv;
    a.dout = dout;
    a.out = const_cast<void *>(out); /* backward only reads these two */
    a.lse = const_cast<float *>(lse);
    a.dqkv = dqkv;
    a.delta = delta;
    cudaError_t rc =
        t == DTYPE_BF16 ? queue_delta<bf16>(c, delta, &a) : queue_delta<float>(c, delta, &a);
    if (rc != cudaSuccess)
        return rc;
    return by_tensor_cores(c, t, a.D) ? cuda_attention_mma_backward(c, &a)
                                      : cuda_attention_plain_backward(c, t, &a);
}
