/* simd_v3.h - the vector operations of kernels_body.h for AVX2 with FMA. */
#ifndef GFS_DEVICE_CPU_SIMD_V3_H
#define GFS_DEVICE_CPU_SIMD_V3_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define SIMD_NAME "avx2"
#define SIMD_FN static __attribute__((target("avx2,fma")))
#define SIMD_INLINE SIMD_FN inline __attribute__((always_inline, unused))

typedef __m256 vf;
typedef struct {
    __m256d lo, hi;
} vd;
enum { VL = 8, SIMD_TILE_VECTORS = 2 };

SIMD_INLINE vf vf_set1(float x) { return _mm256_set1_ps(x); }
SIMD_INLINE vf vf_zero(void) { return _mm256_setzero_ps(); }
SIMD_INLINE vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
SIMD_INLINE void vf_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
SIMD_INLINE __m256i vf_part_mask(size_t n) {
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane);
}
/* The first n <= VL elements; the others are 0 and left alone. */
SIMD_INLINE vf vf_load_part(const float *p, size_t n) {
    return _mm256_maskload_ps(p, vf_part_mask(n));
}
SIMD_INLINE void vf_store_part(float *p, vf x, size_t n) {
    _mm256_maskstore_ps(p, vf_part_mask(n), x);
}
/* bf16: as vf_load and vf_store, rounded to nearest even. */
SIMD_INLINE vf vf_load_bf16(const uint16_t *p) {
    __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}
SIMD_INLINE vf vf_load_bf16_part(const uint16_t *p, size_t n) {
    uint16_t part[VL] = {0};
    for (size_t i = 0; i < n; i++)
        part[i] = p[i];
    return vf_load_bf16(part);
}
SIMD_INLINE void vf_store_bf16(uint16_t *p, vf x) {
    __m256i bits = _mm256_castps_si256(x), upper = _mm256_srli_epi32(bits, 16);
    __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i r = _mm256_blendv_epi8(_mm256_srli_epi32(up, 16),
                                   _mm256_or_si256(upper, _mm256_set1_epi32(0x40)), nan);
    r = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08);
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_castsi256_si128(r));
}
SIMD_INLINE void vf_store_bf16_part(uint16_t *p, vf x, size_t n) {
    uint16_t part[VL];
    vf_store_bf16(part, x);
    for (size_t i = 0; i < n; i++)
        p[i] = part[i];
}
SIMD_INLINE vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
SIMD_INLINE vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
SIMD_INLINE vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
SIMD_INLINE vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
SIMD_INLINE vf vf_sqrt(vf a) { return _mm256_sqrt_ps(a); }
/* a * b + c, rounded once */
SIMD_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
/* A NaN in b is kept. */
SIMD_INLINE vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
SIMD_INLINE vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
SIMD_INLINE vf vf_round(vf a) {
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* 2^n for whole n in [-126, 127] */
SIMD_INLINE vf vf_exp2_whole(vf n) {
    __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
}
/* x < limit ? 0 : y */
SIMD_INLINE vf vf_zero_below(vf x, vf limit, vf y) {
    return _mm256_and_ps(_mm256_cmp_ps(x, limit, _CMP_NLT_UQ), y);
}
SIMD_INLINE float vf_sum(vf a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
SIMD_INLINE float vf_max_across(vf a) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

SIMD_INLINE vd vd_zero(void) { return (vd){_mm256_setzero_pd(), _mm256_setzero_pd()}; }
SIMD_INLINE __m256d vd_low(vf x) { return _mm256_cvtps_pd(_mm256_castps256_ps128(x)); }
SIMD_INLINE __m256d vd_high(vf x) { return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)); }
SIMD_INLINE vd vd_add(vd acc, vf x) {
    return (vd){_mm256_add_pd(acc.lo, vd_low(x)), _mm256_add_pd(acc.hi, vd_high(x))};
}
/* acc + x * x */
SIMD_INLINE vd vd_add_square(vd acc, vf x) {
    __m256d lo = vd_low(x), hi = vd_high(x);
    return (vd){_mm256_fmadd_pd(lo, lo, acc.lo), _mm256_fmadd_pd(hi, hi, acc.hi)};
}
SIMD_INLINE double vd_sum(vd a) {
    __m256d x = _mm256_add_pd(a.lo, a.hi);
    __m128d y = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
    return _mm_cvtsd_f64(_mm_add_sd(y, _mm_unpackhi_pd(y, y)));
}

#endif
