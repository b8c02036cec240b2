/* simd_base.h - the vector operations of kernels_body.h in plain C, for any processor. */
#ifndef GFS_DEVICE_CPU_SIMD_BASE_H
#define GFS_DEVICE_CPU_SIMD_BASE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tensor/dtype.h"

#define SIMD_NAME "base"
#define SIMD_FN static
#define SIMD_INLINE static inline __attribute__((always_inline, unused))

typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
typedef struct {
    double v[4];
} vd;
enum { VL = 4, SIMD_TILE_VECTORS = 2 };

SIMD_INLINE vf vf_set1(float x) { return (vf){x, x, x, x}; }
SIMD_INLINE vf vf_zero(void) { return vf_set1(0); }
SIMD_INLINE vf vf_load(const float *p) {
    vf x;
    memcpy(&x, p, sizeof(x));
    return x;
}
SIMD_INLINE void vf_store(float *p, vf x) { memcpy(p, &x, sizeof(x)); }
/* The first n <= VL elements; the others are 0 and left alone. */
SIMD_INLINE vf vf_load_part(const float *p, size_t n) {
    vf x = vf_zero();
    for (size_t i = 0; i < n; i++)
        x[i] = p[i];
    return x;
}
SIMD_INLINE void vf_store_part(float *p, vf x, size_t n) {
    for (size_t i = 0; i < n; i++)
        p[i] = x[i];
}
/* bf16: as vf_load and vf_store, rounded to nearest even. */
SIMD_INLINE vf vf_load_bf16_part(const uint16_t *p, size_t n) {
    vf x = vf_zero();
    for (size_t i = 0; i < n; i++)
        x[i] = bf16_to_f32(p[i]);
    return x;
}
SIMD_INLINE vf vf_load_bf16(const uint16_t *p) { return vf_load_bf16_part(p, VL); }
SIMD_INLINE void vf_store_bf16_part(uint16_t *p, vf x, size_t n) {
    for (size_t i = 0; i < n; i++)
        p[i] = bf16_from_f32(x[i]);
}
SIMD_INLINE void vf_store_bf16(uint16_t *p, vf x) { vf_store_bf16_part(p, x, VL); }
SIMD_INLINE vf vf_add(vf a, vf b) { return a + b; }
SIMD_INLINE vf vf_sub(vf a, vf b) { return a - b; }
SIMD_INLINE vf vf_mul(vf a, vf b) { return a * b; }
SIMD_INLINE vf vf_div(vf a, vf b) { return a / b; }
SIMD_INLINE vf vf_sqrt(vf a) { return (vf){sqrtf(a[0]), sqrtf(a[1]), sqrtf(a[2]), sqrtf(a[3])}; }
/* a * b + c: rounded twice, as a processor without FMA would take ages to round once */
SIMD_INLINE vf vf_fma(vf a, vf b, vf c) { return a * b + c; }
SIMD_INLINE vf vf_choose(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }
/* A NaN in b is kept. */
SIMD_INLINE vf vf_max(vf a, vf b) { return vf_choose((vi)(a > b), a, b); }
SIMD_INLINE vf vf_min(vf a, vf b) { return vf_choose((vi)(a < b), a, b); }
/* Adding 1.5 * 2^23 leaves no bits for a fraction; right for |a| < 2^22. */
SIMD_INLINE vf vf_round(vf a) {
    vf big = vf_set1(12582912.0f), sum = a + big;
    return sum - big;
}
/* 2^n for whole n in [-126, 127] */
SIMD_INLINE vf vf_exp2_whole(vf n) {
    vi bits = (vi)(n + vf_set1(12582912.0f)); /* n stands in the low bits */
    return (vf)((bits + 127) << 23);
}
/* x < limit ? 0 : y */
SIMD_INLINE vf vf_zero_below(vf x, vf limit, vf y) { return (vf)(~(vi)(x < limit) & (vi)y); }
SIMD_INLINE float vf_sum(vf a) { return (a[0] + a[2]) + (a[1] + a[3]); }
SIMD_INLINE float vf_max_across(vf a) {
    float x = a[0] > a[1] ? a[0] : a[1], y = a[2] > a[3] ? a[2] : a[3];
    return x > y ? x : y;
}

SIMD_INLINE vd vd_zero(void) { return (vd){{0, 0, 0, 0}}; }
SIMD_INLINE vd vd_add(vd acc, vf x) {
    for (size_t i = 0; i < VL; i++)
        acc.v[i] += x[i];
    return acc;
}
/* acc + x * x */
SIMD_INLINE vd vd_add_square(vd acc, vf x) {
    for (size_t i = 0; i < VL; i++)
        acc.v[i] += (double)x[i] * x[i];
    return acc;
}
SIMD_INLINE double vd_sum(vd a) { return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]); }

#endif
