/* gemm_body.h - a plain blocked matrix product, for builds without BLAS; included by kernels_*.c
 * after attention_body.h, whose tiles it is made of.
 *
 * A block of C is summed in the scratch, so that each element is a sum in the order of k, blocks of
 * GEMM_DEPTH at a time, however the work is cut. */

enum { GEMM_ROWS = 192, GEMM_COLUMNS = 192, GEMM_DEPTH = 256 };

/* to (., DP) = rows [row, row + rows) and columns [column, column + columns) of op(from), zeros up
 * to TP and DP. */
SIMD_FN void gemm_pack(float *to, const float *from, bool trans, size_t ld, size_t row, size_t rows,
                       size_t column, size_t columns, size_t TP, size_t DP) {
    if (!trans) {
        pack(DTYPE_F32, to, from + row * ld + column, ld, 1.0f, rows, columns, TP, DP);
        return;
    }
    fill(DTYPE_F32, to, TP * DP, 0.0f);
    for (size_t j = 0; j < columns; j++)
        for (size_t i = 0; i < rows; i++)
            to[i * DP + j] = from[(column + j) * ld + row + i];
}

SIMD_FN size_t k_gemm_scratch_elems(void) {
    return (GEMM_ROWS + GEMM_COLUMNS) * GEMM_DEPTH + GEMM_ROWS * GEMM_COLUMNS;
}

/* c (rows, columns) = alpha sums + beta c; beta 0: c is not read */
SIMD_FN void gemm_finish(const struct cpu_gemm *g, const float *sums, size_t row, size_t rows,
                         size_t column, size_t columns, size_t DP) {
    vf alpha = vf_set1(g->alpha), beta = vf_set1(g->beta);
    for (size_t i = 0; i < rows; i++) {
        float *c = g->c + (row + i) * g->ldc + column;
        for (size_t j = 0; j < columns; j += VL) {
            size_t n = columns - j < VL ? columns - j : VL;
            vf x = vf_mul(vf_load(sums + i * DP + j), alpha);
            if (g->beta != 0)
                x = vf_fma(vf_load_part(c + j, n), beta, x);
            vf_store_part(c + j, x, n);
        }
    }
}

SIMD_FN void gemm_block(const struct cpu_gemm *g, size_t row, size_t rows, size_t column,
                        size_t columns, float *scratch) {
    float *a = scratch, *b = a + GEMM_ROWS * GEMM_DEPTH, *sums = b + GEMM_COLUMNS * GEMM_DEPTH;
    size_t RP = padded(rows), CP = padded(columns);
    fill(DTYPE_F32, sums, RP * CP, 0.0f);
    for (size_t k = 0; k < g->k; k += GEMM_DEPTH) {
        size_t depth = g->k - k < GEMM_DEPTH ? g->k - k : GEMM_DEPTH, KP = padded(depth);
        gemm_pack(a, g->a, g->trans_a, g->lda, row, rows, k, depth, RP, KP);
        gemm_pack(b, g->b, g->trans_b, g->ldb, k, depth, column, columns, KP, CP);
        multiply(RP, CP, depth, a, KP, 1, b, CP, sums, CP, true);
    }
    gemm_finish(g, sums, row, rows, column, columns, CP);
}

SIMD_FN void k_gemm_multiply(const struct cpu_gemm *g, size_t row, size_t rows, size_t column,
                             size_t columns, float *scratch) {
    for (size_t i = 0; i < rows; i += GEMM_ROWS)
        for (size_t j = 0; j < columns; j += GEMM_COLUMNS)
            gemm_block(g, row + i, rows - i < GEMM_ROWS ? rows - i : GEMM_ROWS, column + j,
                       columns - j < GEMM_COLUMNS ? columns - j : GEMM_COLUMNS, scratch);
}
