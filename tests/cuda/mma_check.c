/* mma_check.c - the numbers that mma_check.cu works on, and what it must have left. */
#include "tests/cuda/mma_check.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "tensor/dtype.h"

/* Small whole numbers, different at each place: exact in bf16 and in sums. */
static int a_at(int row, int k) { return (row * 7 + k * 3) % 23 - 11; }
static int b_at(int k, int column) { return (k * 5 + column * 11) % 19 - 9; }
static int c_at(int row, int column) { return row * 8 + column; }
/* Any different bits. */
static uint16_t row_at(int row, int column) { return (uint16_t)(row * 8 + column + 0x4000); }

/* 0, minus infinity, powers that are denormal or beyond the range, and what lies between. */
static float number_at(int lane) {
    static const float special[] = {0, -INFINITY, -0.5f, 10.25f, -126, -140, 127.5f, 200};
    return lane < 8 ? special[lane] : -(float)(lane * lane) / 64;
}

static void given(struct mma_check *m) {
    memset(m, 0xff, sizeof *m);
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            m->a[i][k] = bf16_from_f32((float)a_at(i, k));
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++) {
            m->b[i][j] = bf16_from_f32((float)b_at(i, j));
            m->c[i][j] = (float)c_at(i, j);
        }
    for (int lane = 0; lane < MMA_LANES; lane++) {
        for (int j = 0; j < 8; j++) {
            m->rows[lane][j] = row_at(lane, j);
            m->copies[lane][j] = row_at(j, lane);
        }
        m->numbers[lane] = number_at(lane);
    }
}

static int wrong(char *why, size_t cap_bytes, const char *what, int lane, int i) {
    snprintf(why, cap_bytes, "%s: wrong in lane or row %d, register or column %d", what, lane, i);
    return -EIO;
}

static int check_product(const struct mma_check *m, char *why, size_t cap_bytes) {
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++) {
            int want = c_at(i, j);
            for (int k = 0; k < 16; k++)
                want += a_at(i, k) * b_at(k, j);
            if (m->product[i][j] != (float)want)
                return wrong(why, cap_bytes, "mma.m16n8k16", i, j);
        }
    return 0;
}

static uint32_t pair(uint16_t low, uint16_t high) { return low | (uint32_t)high << 16; }

static int check_ldmatrix(const struct mma_check *m, char *why, size_t cap_bytes) {
    for (int lane = 0; lane < MMA_LANES; lane++)
        for (int i = 0; i < 4; i++) {
            int row = 8 * i + lane / 4, column = lane % 4 * 2;
            if (m->loaded[lane][i] != pair(row_at(row, column), row_at(row, column + 1)))
                return wrong(why, cap_bytes, "ldmatrix", lane, i);
            row = 8 * i + lane % 4 * 2;
            column = lane / 4;
            if (m->transposed[lane][i] != pair(row_at(row, column), row_at(row + 1, column)))
                return wrong(why, cap_bytes, "ldmatrix.trans", lane, i);
        }
    return 0;
}

static int check_copies(const struct mma_check *m, char *why, size_t cap_bytes) {
    for (int lane = 0; lane < MMA_LANES; lane++)
        for (int j = 0; j < 8; j++) {
            if (m->first_copies[lane][j] != row_at(j, lane))
                return wrong(why, cap_bytes, "cp.async", lane, j);
            if (m->invalid_copies[lane][j] != 0)
                return wrong(why, cap_bytes, "cp.async of nothing", lane, j);
            if (j < 2 && m->last_copies[lane][j] != row_at(j + 2, lane))
                return wrong(why, cap_bytes, "cp.async of the last group", lane, j);
        }
    return 0;
}

static int check_numbers(const struct mma_check *m, char *why, size_t cap_bytes) {
    for (int lane = 0; lane < MMA_LANES; lane++) {
        float low = number_at(lane), high = number_at(MMA_LANES - 1 - lane);
        if (m->packed[lane] != pair(bf16_from_f32(low), bf16_from_f32(high)))
            return wrong(why, cap_bytes, "cvt.bf16x2", lane, 0);
        float want = exp2f(low), got = m->powers[lane];
        bool same = got == want || fabsf(got - want) <= 1e-6f * want ||
                    (want < 1.1754944e-38f && got == 0); /* denormals may be flushed */
        if (!same)
            return wrong(why, cap_bytes, "ex2", lane, 0);
    }
    return 0;
}

static int compare(const struct mma_check *m, char *why, size_t cap_bytes) {
    int rc = check_product(m, why, cap_bytes);
    if (rc == 0)
        rc = check_ldmatrix(m, why, cap_bytes);
    if (rc == 0)
        rc = check_copies(m, why, cap_bytes);
    return rc == 0 ? check_numbers(m, why, cap_bytes) : rc;
}

int mma_check_run(char *why, size_t cap_bytes) {
    struct mma_check *host = NULL, *device = NULL;
    cudaStream_t stream = NULL;
    int rc = -EIO;
    cudaError_t e = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (e == cudaSuccess)
        e = cudaMallocHost((void **)&host, sizeof *host);
    if (e == cudaSuccess)
        e = cudaMalloc((void **)&device, sizeof *device);
    if (e == cudaSuccess) {
        given(host);
        e = cudaMemcpyAsync(device, host, sizeof *host, cudaMemcpyDefault, stream);
    }
    if (e == cudaSuccess)
        e = mma_check_launch(stream, device);
    if (e == cudaSuccess)
        e = cudaMemcpyAsync(host, device, sizeof *host, cudaMemcpyDefault, stream);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(stream);
    if (e == cudaSuccess)
        rc = compare(host, why, cap_bytes);
    else
        snprintf(why, cap_bytes, "mma_check: %s", cudaGetErrorName(e));
    if (device != NULL)
        cudaFree(device);
    if (host != NULL)
        cudaFreeHost(host);
    if (stream != NULL)
        cudaStreamDestroy(stream);
    return rc;
}
