/* gemm_v4.c - matrix product for AVX-512, as OpenBLAS has no kernel of that kind for all processors
 * that have AVX-512.
 *
 * The usual three blockings (Goto and van de Geijn, 2008): a block of op(A) and one of op(B) are
 * copied into panels of ROWS rows and COLUMNS columns, in the order in which the innermost loop
 * reads them; that loop keeps a tile of C in registers. Each element of C is a sum in the order of
 * k, blocks of DEPTH at a time, however the work is cut. */
#include "config.h"

#include "device/cpu/kernels.h"

#if defined(__x86_64__)

#include <string.h>

#include "device/cpu/simd_v4.h"

enum {
    ROWS = 8,         /* of a tile of C */
    TILE_VECTORS = 3, /* 24 accumulators, 3 vectors of B and one of A: 28 of 32 registers */
    COLUMNS = TILE_VECTORS * VL,
    DEPTH = 384,            /* a panel of A (12 KiB) lies in L1 */
    BLOCK_ROWS = 25 * ROWS, /* a block of A (300 KiB) in L2 */
    BLOCK_COLUMNS = 32 * COLUMNS
};

/* 16 vectors of 16, transposed in place. */
SIMD_INLINE void transpose_16x16(__m512 r[16]) {
    __m512 t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        __m512d a = _mm512_castps_pd(t[i]), b = _mm512_castps_pd(t[i + 1]);
        __m512d c = _mm512_castps_pd(t[i + 2]), d = _mm512_castps_pd(t[i + 3]);
        r[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        r[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        r[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        r[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    for (int i = 0; i < 4; i++) { /* now 4x4 blocks in 128-bit lanes */
        t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

/* Rows are far apart in memory: the processor does not guess where the next ones begin. */
enum { AHEAD_ROWS = 12, AHEAD_ELEMS = 64 };

SIMD_INLINE vf load_lanes(const float *p, size_t lanes) {
    return lanes == VL ? vf_load(p) : vf_load_part(p, lanes);
}

/* to[j * width + i] = from[i * from_row + j], i < width, j < count; zero for i >= valid. width is
 * ROWS or COLUMNS. */
SIMD_INLINE void pack_across(float *to, size_t width, const float *from, size_t from_row,
                             size_t valid, size_t count) {
    for (size_t j = 0; j < count; j += VL) {
        size_t columns = count - j < VL ? count - j : VL;
        for (size_t i = 0; i < width; i += VL) {
            size_t lanes = width - i < VL ? width - i : VL;
            __m512 r[16];
            for (size_t l = 0; l < 16; l++) {
                const float *row = from + (i + l) * from_row + j;
                bool there = i + l < valid && l < lanes;
                r[l] = there ? load_lanes(row, columns) : vf_zero();
                if (there)
                    __builtin_prefetch(row + AHEAD_ELEMS);
            }
            transpose_16x16(r);
            for (size_t l = 0; l < columns; l++)
                vf_store_part(to + (j + l) * width + i, r[l], lanes);
        }
    }
}

/* to[j * width + i] = from[j * from_row + i] likewise. */
SIMD_INLINE void pack_along(float *to, size_t width, const float *from, size_t from_row,
                            size_t valid, size_t count) {
    for (size_t j = 0; j < count; j++, to += width, from += from_row)
        for (size_t i = 0; i < width; i += VL) {
            size_t lanes = width - i < VL ? width - i : VL;
            size_t there = valid <= i ? 0 : valid - i < lanes ? valid - i : lanes;
            __builtin_prefetch(from + AHEAD_ROWS * from_row + i);
            vf_store_part(to + i, load_lanes(from + i, there), lanes);
        }
}

SIMD_FN void pack_a(float *to, const struct cpu_gemm *g, size_t row, size_t rows, size_t k,
                    size_t depth) {
    for (size_t i = 0; i < rows; i += ROWS, to += ROWS * depth) {
        size_t valid = rows - i < ROWS ? rows - i : ROWS;
        if (g->trans_a)
            pack_along(to, ROWS, g->a + k * g->lda + row + i, g->lda, valid, depth);
        else
            pack_across(to, ROWS, g->a + (row + i) * g->lda + k, g->lda, valid, depth);
    }
}

SIMD_FN void pack_b(float *to, const struct cpu_gemm *g, size_t column, size_t columns, size_t k,
                    size_t depth) {
    for (size_t j = 0; j < columns; j += COLUMNS, to += COLUMNS * depth) {
        size_t valid = columns - j < COLUMNS ? columns - j : COLUMNS;
        if (g->trans_b)
            pack_across(to, COLUMNS, g->b + (column + j) * g->ldb + k, g->ldb, valid, depth);
        else
            pack_along(to, COLUMNS, g->b + k * g->ldb + column + j, g->ldb, valid, depth);
    }
}

/* A tile's row, written out so that it is kept in registers. */
struct tile_row {
    vf x, y, z;
};

SIMD_INLINE void row_multiply(struct tile_row *r, float a, vf x, vf y, vf z) {
    vf s = vf_set1(a);
    r->x = vf_fma(s, x, r->x);
    r->y = vf_fma(s, y, r->y);
    r->z = vf_fma(s, z, r->z);
}

SIMD_INLINE void vector_finish(float *c, vf sum, vf alpha, vf beta, bool read, size_t lanes) {
    vf x = vf_mul(sum, alpha);
    if (read)
        x = vf_fma(vf_load_part(c, lanes), beta, x);
    vf_store_part(c, x, lanes);
}

SIMD_INLINE void row_finish(float *c, const struct tile_row *r, vf alpha, vf beta, bool read,
                            size_t columns) {
    vector_finish(c, r->x, alpha, beta, read, columns < VL ? columns : VL);
    if (columns > VL)
        vector_finish(c + VL, r->y, alpha, beta, read, columns < 2 * VL ? columns - VL : VL);
    if (columns > 2 * VL)
        vector_finish(c + 2 * VL, r->z, alpha, beta, read, columns - 2 * VL);
}

/* c (rows, columns) = alpha a b + beta c; a, b: one panel each; beta 0: c is not read. */
SIMD_FN void tile_multiply(size_t depth, const float *a, const float *b, float alpha, float beta,
                           float *c, size_t ldc, size_t rows, size_t columns) {
    struct tile_row r[ROWS] = {0};
    for (size_t k = 0; k < depth; k++, a += ROWS, b += COLUMNS) {
        vf x = vf_load(b), y = vf_load(b + VL), z = vf_load(b + 2 * VL);
        row_multiply(&r[0], a[0], x, y, z);
        row_multiply(&r[1], a[1], x, y, z);
        row_multiply(&r[2], a[2], x, y, z);
        row_multiply(&r[3], a[3], x, y, z);
        row_multiply(&r[4], a[4], x, y, z);
        row_multiply(&r[5], a[5], x, y, z);
        row_multiply(&r[6], a[6], x, y, z);
        row_multiply(&r[7], a[7], x, y, z);
    }
    vf va = vf_set1(alpha), vb = vf_set1(beta);
    struct tile_row sums[ROWS]; /* a copy: what is indexed by a variable lies in memory */
    memcpy(sums, r, sizeof(sums));
    for (size_t i = 0; i < rows; i++)
        row_finish(c + i * ldc, &sums[i], va, vb, beta != 0, columns);
}

/* One block of C: panels of A (rows, depth) against panels of B (depth, columns). */
SIMD_FN void block_multiply(const struct cpu_gemm *g, const float *a, const float *b, float beta,
                            size_t depth, size_t row, size_t rows, size_t column, size_t columns) {
    for (size_t j = 0; j < columns; j += COLUMNS)
        for (size_t i = 0; i < rows; i += ROWS)
            tile_multiply(depth, a + i * depth, b + j * depth, g->alpha, beta,
                          g->c + (row + i) * g->ldc + column + j, g->ldc,
                          rows - i < ROWS ? rows - i : ROWS,
                          columns - j < COLUMNS ? columns - j : COLUMNS);
}

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

static size_t gemm_scratch_elems(void) { return (BLOCK_ROWS + BLOCK_COLUMNS) * DEPTH; }

static void gemm_part(const struct cpu_gemm *g, size_t row, size_t rows, size_t column,
                      size_t columns, float *scratch) {
    float *a = scratch, *b = scratch + BLOCK_ROWS * DEPTH;
    for (size_t j = 0; j < columns; j += BLOCK_COLUMNS) {
        size_t some_columns = least(columns - j, BLOCK_COLUMNS), k = 0;
        do { /* once at least: a product of no terms is zero */
            size_t depth = least(g->k - k, DEPTH);
            pack_b(b, g, column + j, some_columns, k, depth);
            for (size_t i = 0; i < rows; i += BLOCK_ROWS) {
                size_t some_rows = least(rows - i, BLOCK_ROWS);
                pack_a(a, g, row + i, some_rows, k, depth);
                block_multiply(g, a, b, k == 0 ? g->beta : 1, depth, row + i, some_rows, column + j,
                               some_columns);
            }
            k += depth;
        } while (k < g->k);
    }
}

const struct cpu_gemm_kernel cpu_gemm_v4 = {.row_unit = ROWS,
                                            .column_unit = COLUMNS,
                                            .scratch_elems = gemm_scratch_elems,
                                            .multiply = gemm_part};

#endif
