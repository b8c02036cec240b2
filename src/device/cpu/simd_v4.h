/* simd_v4.h - the vector operations of kernels_body.h for AVX-512. */
#ifndef GFS_DEVICE_CPU_SIMD_V4_H
#define GFS_DEVICE_CPU_SIMD_V4_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define SIMD_NAME "avx512"
#define SIMD_FN static __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma")))
#define SIMD_INLINE SIMD_FN inline __attribute__((always_inline, unused))

typedef __m512 vf;
typedef struct {
    __m512d lo, hi;
} vd;
enum { VL = 16, SIMD_TILE_VECTORS = 4 };

SIMD_INLINE vf vf_set1(float x) { return _mm512_set1_ps(x); }
SIMD_INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
SIMD_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
SIMD_INLINE void vf_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
SIMD_INLINE __mmask16 vf_part_mask(size_t n) { return (__mmask16)((1u << n) - 1); }
/* The first n <= VL elements; the others are 0 and left alone. */
SIMD_INLINE vf vf_load_part(const float *p, size_t n) {
    return _mm512_maskz_loadu_ps(vf_part_mask(n), p);
}
SIMD_INLINE void vf_store_part(float *p, vf x, size_t n) {
    _mm512_mask_storeu_ps(p, vf_part_mask(n), x);
}
/* bf16: as vf_load and vf_store, rounded to nearest even; not by the instruction for it, which
 * takes denormals for zeros. */
SIMD_INLINE vf vf_widen_bf16(__m256i x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
SIMD_INLINE __m256i vf_narrow_bf16(vf x) {
    __m512i bits = _mm512_castps_si512(x), upper = _mm512_srli_epi32(bits, 16);
    __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __m512i r =
        _mm512_mask_or_epi32(_mm512_srli_epi32(up, 16), _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q),
                             upper, _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(r);
}
SIMD_INLINE vf vf_load_bf16(const uint16_t *p) {
    return vf_widen_bf16(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
SIMD_INLINE vf vf_load_bf16_part(const uint16_t *p, size_t n) {
    return vf_widen_bf16(_mm256_maskz_loadu_epi16(vf_part_mask(n), p));
}
SIMD_INLINE void vf_store_bf16(uint16_t *p, vf x) {
    _mm256_storeu_si256((__m256i *)(void *)p, vf_narrow_bf16(x));
}
SIMD_INLINE void vf_store_bf16_part(uint16_t *p, vf x, size_t n) {
    _mm256_mask_storeu_epi16(p, vf_part_mask(n), vf_narrow_bf16(x));
}
SIMD_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
SIMD_INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
SIMD_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
SIMD_INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
SIMD_INLINE vf vf_sqrt(vf a) { return _mm512_sqrt_ps(a); }
/* a * b + c, rounded once */
SIMD_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
/* A NaN in b is kept. */
SIMD_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
SIMD_INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
SIMD_INLINE vf vf_round(vf a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* 2^n for whole n in [-126, 127] */
SIMD_INLINE vf vf_exp2_whole(vf n) {
    __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(e, 23));
}
/* x < limit ? 0 : y */
SIMD_INLINE vf vf_zero_below(vf x, vf limit, vf y) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), y);
}
SIMD_INLINE float vf_sum(vf a) { return _mm512_reduce_add_ps(a); }
SIMD_INLINE float vf_max_across(vf a) { return _mm512_reduce_max_ps(a); }

SIMD_INLINE vd vd_zero(void) { return (vd){_mm512_setzero_pd(), _mm512_setzero_pd()}; }
SIMD_INLINE __m512d vd_low(vf x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x)); }
SIMD_INLINE __m512d vd_high(vf x) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)); }
SIMD_INLINE vd vd_add(vd acc, vf x) {
    return (vd){_mm512_add_pd(acc.lo, vd_low(x)), _mm512_add_pd(acc.hi, vd_high(x))};
}
/* acc + x * x */
SIMD_INLINE vd vd_add_square(vd acc, vf x) {
    __m512d lo = vd_low(x), hi = vd_high(x);
    return (vd){_mm512_fmadd_pd(lo, lo, acc.lo), _mm512_fmadd_pd(hi, hi, acc.hi)};
}
SIMD_INLINE double vd_sum(vd a) { return _mm512_reduce_add_pd(_mm512_add_pd(a.lo, a.hi)); }

#endif
