/* test_emu_kernels.cu - kernels of the emulation's own tests, compiled as the program's are. */
#include "device/cuda/launch.h"
#include "tests/cuda/test_emu.h"

static __global__ void index_kernel(int *out, size_t n) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = (int)i;
}

void k_index(cudaStream_t s, int *out, size_t n, int block) {
    unsigned blocks = (unsigned)((n + (size_t)block - 1) / (size_t)block);
    LAUNCH((index_kernel), blocks, (unsigned)block, 0, s, out, n);
}

template <bool barriers> static __global__ void sum_kernel(float *out, const float *in, int n) {
    SMEM(float, part, [1024]);
    int t = (int)threadIdx.x;
    part[t] = in[t];
    for (int step = n / 2; step > 0; step /= 2) {
        if (barriers)
            __syncthreads();
        if (t < step)
            part[t] += part[t + step];
    }
    if (t == 0)
        out[0] = part[0];
}

void k_sum(cudaStream_t s, float *out, const float *in, int n, int barriers) {
    if (barriers)
        LAUNCH((sum_kernel<true>), 1, (unsigned)n, 0, s, out, in, n);
    else
        LAUNCH((sum_kernel<false>), 1, (unsigned)n, 0, s, out, in, n);
}

static __global__ void shuffle_kernel(int kind, int *out, int arg, int width) {
    int v = 100 + (int)threadIdx.x;
    switch (kind) {
    case K_SHFL:
        v = __shfl_sync(0xffffffffu, v, arg, width);
        break;
    case K_UP:
        v = __shfl_up_sync(0xffffffffu, v, (unsigned)arg, width);
        break;
    case K_DOWN:
        v = __shfl_down_sync(0xffffffffu, v, (unsigned)arg, width);
        break;
    default:
        v = __shfl_xor_sync(0xffffffffu, v, arg, width);
    }
    out[threadIdx.x] = v;
}

void k_shuffle(cudaStream_t s, int kind, int *out, int block, int arg, int width) {
    LAUNCH((shuffle_kernel), 1, (unsigned)block, 0, s, kind, out, arg, width);
}

static __global__ void shuffle_double_kernel(double *out) {
    double v = 0.1 * (threadIdx.x + 1);
    for (int mask = 16; mask > 0; mask /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, mask);
    out[threadIdx.x] = v;
}

void k_shuffle_double(cudaStream_t s, double *out) {
    LAUNCH((shuffle_double_kernel), 1, 32, 0, s, out);
}

static __global__ void vote_kernel(unsigned *out) {
    unsigned odd = __ballot_sync(0xffffffffu, threadIdx.x % 2 == 1);
    int any = __any_sync(0xffffffffu, threadIdx.x == 31);
    int all = __all_sync(0xffffffffu, threadIdx.x < 31);
    unsigned match = __match_any_sync(0xffffffffu, threadIdx.x / 4);
    if (threadIdx.x == 5) {
        out[0] = odd;
        out[1] = (unsigned)any;
        out[2] = (unsigned)all;
        out[3] = match;
    }
}

void k_vote(cudaStream_t s, unsigned *out) { LAUNCH((vote_kernel), 1, 32, 0, s, out); }

static __global__ void halves_kernel(int *out) {
    int v = (int)threadIdx.x;
    if (threadIdx.x < 16)
        v = __shfl_sync(0x0000ffffu, v, 3);
    else
        v = __shfl_sync(0xffff0000u, v, 20);
    out[threadIdx.x] = v;
}

void k_halves(cudaStream_t s, int *out) { LAUNCH((halves_kernel), 1, 32, 0, s, out); }

static __global__ void shuffle_from_ended_kernel(float *out) {
    if (threadIdx.x >= 8)
        return;
    out[threadIdx.x] = __shfl_sync(0xffffffffu, 1.0f, (int)threadIdx.x + 4);
}

void k_shuffle_from_ended(cudaStream_t s, float *out) {
    LAUNCH((shuffle_from_ended_kernel), 1, 20, 0, s, out);
}

static __global__ void count_kernel(int *out, int atomic) {
    if (atomic)
        atomicAdd(out, 1);
    else
        *out += 1;
}

void k_count(cudaStream_t s, int *out, int blocks, int atomic) {
    LAUNCH((count_kernel), (unsigned)blocks, 32, 0, s, out, atomic);
}

static __global__ void atomics_kernel(int *i, unsigned *u, unsigned long long *l, float *f,
                                      double *d) {
    int t = (int)threadIdx.x;
    atomicAdd(&i[0], t);
    atomicSub(&i[1], t);
    atomicMax(&i[2], t);
    atomicMin(&i[3], -t);
    atomicCAS(&i[4], 7, t == 9 ? 70 : 7);
    atomicOr(&u[0], 1u << (t % 32));
    atomicAnd(&u[1], ~(1u << (t % 8)));
    atomicXor(&u[2], 1u << (t % 32));
    atomicExch(&u[3], 5u);
    atomicAdd(&l[0], 1ull << 40);
    atomicMax(&l[1], (unsigned long long)t << 33);
    atomicAdd(&f[0], 0.5f);
    atomicAdd(&d[0], 0.25);
}

void k_atomics(cudaStream_t s, int *i, unsigned *u, unsigned long long *l, float *f, double *d) {
    LAUNCH((atomics_kernel), 1, 64, 0, s, i, u, l, f, d);
}

static __global__ void fresh_kernel(float *out) {
    SMEM(float, fixed, [8]);
    DYN_SMEM(float, dynamic);
    if (blockIdx.x == 1 && threadIdx.x == 0) {
        out[0] = fixed[3];
        out[1] = dynamic[3];
    }
    __syncthreads();
    if (threadIdx.x < 8)
        fixed[threadIdx.x] = dynamic[threadIdx.x] = 1.0f;
}

void k_fresh(cudaStream_t s, float *out) { LAUNCH((fresh_kernel), 3, 32, 32, s, out); }

static __global__ void order_kernel(int *out, int *counter) {
    out[blockIdx.x] = atomicAdd(counter, 1);
}
void k_order(cudaStream_t s, int *out, int *counter, int blocks) {
    LAUNCH((order_kernel), (unsigned)blocks, 1, 0, s, out, counter);
}

static __global__ void thread_order_kernel(int *out, int *counter) {
    out[threadIdx.x] = atomicAdd(counter, 1);
}
void k_thread_order(cudaStream_t s, int *out, int *counter, int threads) {
    LAUNCH((thread_order_kernel), 1, (unsigned)threads, 0, s, out, counter);
}

static __global__ void count_or_and_kernel(int *out) {
    int count = __syncthreads_count(threadIdx.x < 10);
    int any = __syncthreads_or(threadIdx.x == 3);
    int none = __syncthreads_or(0);
    int all = __syncthreads_and(1);
    int most = __syncthreads_and(threadIdx.x != 3);
    if (threadIdx.x == 40) {
        out[0] = count;
        out[1] = any;
        out[2] = none;
        out[3] = all;
        out[4] = most;
    }
}
void k_count_or_and(cudaStream_t s, int *out) { LAUNCH((count_or_and_kernel), 1, 50, 0, s, out); }

struct fill_args {
    int n;
    float *dst;
    float value;
};
static __global__ void fill_struct_kernel(fill_args a) {
    if ((int)threadIdx.x < a.n)
        a.dst[threadIdx.x] = a.value;
}
void k_fill_struct(cudaStream_t s, float *dst, int n, float value) {
    fill_args a = {n, dst, value};
    LAUNCH((fill_struct_kernel), 1, 256, 0, s, a);
}

static __global__ void scale_kernel(float *out, const float *in, size_t n, float factor) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = in[i] * factor;
}
void k_scale(cudaStream_t s, float *out, const float *in, size_t n, float factor) {
    LAUNCH((scale_kernel), (unsigned)((n + 255) / 256), 256, 0, s, out, in, n, factor);
}

static __global__ void bf16_kernel(__nv_bfloat16 *out, const float *in, int n) {
    int i = (int)threadIdx.x;
    if (i < n)
        out[i] = __float2bfloat16(__bfloat162float(__float2bfloat16(in[i])) + 1.0f);
}
void k_bf16(cudaStream_t s, uint16_t *out, const float *in, int n) {
    LAUNCH((bf16_kernel), 1, 64, 0, s, reinterpret_cast<__nv_bfloat16 *>(out), in, n);
}

static __global__ void math_kernel(float *out) {
    out[0] = rsqrtf(4.0f);
    out[1] = __expf(0.0f);
    out[2] = (float)__clz(1);
    out[3] = (float)__popc(0xf0f0u);
    out[4] = (float)__ffs(8);
    out[5] = (float)__umulhi(0x80000000u, 6u);
    out[6] = __uint_as_float(__float_as_uint(1.5f));
    out[7] = max(1.0f, min(3.0f, 2.0f));
    out[8] = cospif(1.0f);
    out[9] = (float)(__umul64hi(1ull << 63, 10ull));
    out[10] = __saturatef(7.0f);
    out[11] = (float)__float2int_rn(2.5f);
    out[12] = (float)(__brev(1u) >> 31);
}
void k_math(cudaStream_t s, float *out) { LAUNCH((math_kernel), 1, 1, 0, s, out); }

/* ---- wrong ---- */

static __attribute__((noinline)) float deep(float *p, int n) {
    volatile float local[4096];
    for (int i = 0; i < 4096; i++)
        local[i] = p[0] + (float)i;
    return n == 0 ? local[7] : local[3] + deep(p, n - 1);
}

static __global__ void wrong_kernel(int what, float *p) {
    SMEM(float, fixed, [32]);
    DYN_SMEM(float, dynamic);
    volatile float *beyond = fixed + 32, *before = dynamic - 1;
    bool lower = threadIdx.y % 2 == 0;
    switch (what) {
    case W_BARRIER_IN_BRANCH:
        if (lower)
            __syncthreads();
        break;
    case W_TWO_BARRIERS:
        if (lower)
            __syncthreads();
        else
            __syncthreads();
        break;
    case W_ENDED:
        if (threadIdx.x == 3)
            return;
        __syncthreads();
        break;
    case W_WARP_PARTS:
        if (lower)
            p[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
        else
            __syncthreads();
        break;
    case W_WARP_MASK:
        __syncwarp(0x0000ffffu);
        break;
    case W_BEYOND_SHARED:
        *beyond = 1.0f;
        break;
    case W_BEFORE_SHARED:
        *before = 1.0f;
        break;
    case W_BEYOND_DYNAMIC:
        p[0] = dynamic[16];
        break;
    case W_BEYOND_DEVICE:
        p[80 + threadIdx.x] = 1.0f;
        break;
    case W_DEEP:
        p[0] = deep(p, 100);
        break;
    case W_TRAP:
        __trap();
    case W_WIDTH:
        __shfl_sync(0xffffffffu, 1, 0, 5);
        break;
    }
}

static __global__ void static_too_large_kernel(float *p) {
    SMEM(float, large, [12289]);
    large[threadIdx.x] = 1.0f;
    p[0] = large[0];
}

void k_wrong(cudaStream_t s, int what, float *p) {
    if (what == W_STATIC_TOO_LARGE)
        LAUNCH((static_too_large_kernel), 1, 64, 0, s, p);
    else
        LAUNCH((wrong_kernel), dim3(2, 1, 1), dim3(16, 4, 1), 16 * sizeof(float), s, what, p);
}

static __global__ void empty_kernel(const void *p) { (void)p; }

void k_launch(cudaStream_t s, dim3 grid, dim3 block, size_t dynamic_bytes, const void *p) {
    LAUNCH((empty_kernel), grid, block, dynamic_bytes, s, p);
}

cudaError_t k_allow(size_t dynamic_bytes) {
    return cudaFuncSetAttribute(empty_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)dynamic_bytes);
}
