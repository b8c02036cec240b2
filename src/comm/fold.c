/* fold.c - reductions over what ranks contribute, in rank order. */
#include "config.h"

#include "comm/fold.h"

#include <string.h>

static double fold2_f64(double a, double b, enum comm_op op) {
    switch (op) {
    case COMM_MIN:
        return b < a ? b : a;
    case COMM_MAX:
        return b > a ? b : a;
    case COMM_SUM:
        break;
    }
    return a + b;
}

static uint64_t fold2_u64(uint64_t a, uint64_t b, enum comm_op op) {
    switch (op) {
    case COMM_MIN:
        return b < a ? b : a;
    case COMM_MAX:
        return b > a ? b : a;
    case COMM_SUM:
        break;
    }
    return a + b;
}

void fold_f64(double *inout, const void *parts, size_t stride_bytes, uint32_t rank_count,
              size_t count, enum comm_op op) {
    const uint8_t *base = parts;
    for (size_t i = 0; i < count; i++) {
        double sum, v;
        memcpy(&sum, base + i * sizeof sum, sizeof sum);
        for (uint32_t r = 1; r < rank_count; r++) {
            memcpy(&v, base + r * stride_bytes + i * sizeof v, sizeof v);
            sum = fold2_f64(sum, v, op);
        }
        inout[i] = sum;
    }
}

void fold_u64(uint64_t *inout, const void *parts, size_t stride_bytes, uint32_t rank_count,
              size_t count, enum comm_op op) {
    const uint8_t *base = parts;
    for (size_t i = 0; i < count; i++) {
        uint64_t sum, v;
        memcpy(&sum, base + i * sizeof sum, sizeof sum);
        for (uint32_t r = 1; r < rank_count; r++) {
            memcpy(&v, base + r * stride_bytes + i * sizeof v, sizeof v);
            sum = fold2_u64(sum, v, op);
        }
        inout[i] = sum;
    }
}

/* A block stays in the first cache while all parts are added to it: memory is passed over once. */
enum { FOLD_BLOCK_ELEMS = 2048 };

static void block_add(float *restrict acc, const float *restrict part, size_t n) {
    for (size_t i = 0; i < n; i++)
        acc[i] += part[i];
}

static void block_add_bf16(float *restrict acc, const uint16_t *restrict part, size_t n) {
    for (size_t i = 0; i < n; i++)
        acc[i] += bf16_to_f32(part[i]);
}

static void block_load_bf16(float *restrict acc, const uint16_t *restrict part, size_t n) {
    for (size_t i = 0; i < n; i++)
        acc[i] = bf16_to_f32(part[i]);
}

static void block_sum(float *acc, const void *const *parts, enum dtype t, uint32_t part_count,
                      size_t at, size_t n) {
    if (t == DTYPE_F32) {
        memcpy(acc, (const float *)parts[0] + at, n * sizeof *acc);
        for (uint32_t p = 1; p < part_count; p++)
            block_add(acc, (const float *)parts[p] + at, n);
        return;
    }
    block_load_bf16(acc, (const uint16_t *)parts[0] + at, n);
    for (uint32_t p = 1; p < part_count; p++)
        block_add_bf16(acc, (const uint16_t *)parts[p] + at, n);
}

void fold_sum(float *dst, const void *const *parts, enum dtype t, uint32_t part_count, size_t elems,
              bool accumulate) {
    float acc[FOLD_BLOCK_ELEMS];
    for (size_t at = 0; at < elems; at += FOLD_BLOCK_ELEMS) {
        size_t n = elems - at < FOLD_BLOCK_ELEMS ? elems - at : FOLD_BLOCK_ELEMS;
        block_sum(acc, parts, t, part_count, at, n);
        if (accumulate)
            block_add(dst + at, acc, n);
        else
            memcpy(dst + at, acc, n * sizeof *acc);
    }
}
