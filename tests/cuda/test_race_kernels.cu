/* test_race_kernels.cu - kernels for the tests of the race detector, some of them wrong. */
#include "device/cuda/launch.h"
#include "tests/cuda/test_race.h"

static __global__ void scale_kernel(float *out, const float *in, int n, float factor) {
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n)
        out[i] = in[i] * factor;
}

void r_scale(cudaStream_t s, float *out, const float *in, int n, float factor) {
    LAUNCH((scale_kernel), (unsigned)(n + 63) / 64, 64, 0, s, out, in, n, factor);
}

template <bool barriers> static __global__ void tree_kernel(float *out, const float *in) {
    SMEM(float, part, [128]);
    int t = (int)threadIdx.x;
    part[t] = in[blockIdx.x * 128 + t];
    for (int step = 64; step > 0; step /= 2) {
        if (barriers)
            __syncthreads();
        if (t < step)
            part[t] += part[t + step];
    }
    if (t == 0)
        out[blockIdx.x] = part[0];
}

void r_tree(cudaStream_t s, float *out, const float *in, int blocks, bool barriers) {
    if (barriers)
        LAUNCH((tree_kernel<true>), (unsigned)blocks, 128, 0, s, out, in);
    else
        LAUNCH((tree_kernel<false>), (unsigned)blocks, 128, 0, s, out, in);
}

static __global__ void total_kernel(float *out, const float *in, bool atomic) {
    float v = in[blockIdx.x * 32 + threadIdx.x];
    for (int mask = 16; mask > 0; mask /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, mask);
    if (threadIdx.x != 0)
        return;
    if (atomic)
        atomicAdd(out, v);
    else
        *out += v;
}

void r_total(cudaStream_t s, float *out, const float *in, int blocks, bool atomic) {
    LAUNCH((total_kernel), (unsigned)blocks, 32, 0, s, out, in, atomic);
}

/* Neighbours within a warp, by shared memory. */
static __global__ void turn_kernel(float *out, const float *in, bool sync) {
    DYN_SMEM(float, row);
    row[threadIdx.x] = in[threadIdx.x];
    if (sync)
        __syncwarp();
    out[threadIdx.x] = row[threadIdx.x ^ 1];
}

void r_turn(cudaStream_t s, float *out, const float *in, bool sync) {
    LAUNCH((turn_kernel), 1, 64, 64 * sizeof(float), s, out, in, sync);
}

/* Each thread its own two bytes, in place; by steps: also its neighbour's, without a barrier. */
static __global__ void halves_kernel(uint16_t *data, bool neighbour) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    data[i] = (uint16_t)(data[i] + 1);
    if (neighbour && i == 6)
        data[7] = (uint16_t)(data[7] + 1);
}

void r_halves(cudaStream_t s, uint16_t *data, int blocks, bool neighbour) {
    LAUNCH((halves_kernel), (unsigned)blocks, 5, 0, s, data, neighbour);
}

/* A counter that is read plainly while others add to it. */
static __global__ void peek_kernel(int *counter, int *out, bool peek) {
    atomicAdd(counter, 1);
    if (peek && threadIdx.x == 0)
        out[blockIdx.x] = *counter;
}

void r_peek(cudaStream_t s, int *counter, int *out, bool peek) {
    LAUNCH((peek_kernel), 3, 8, 0, s, counter, out, peek);
}
