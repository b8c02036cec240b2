/* attention_body.h - causal attention of one head, block by block, so that no (T, T) matrix exists
 * (Dao, 2022).
 *
 * Included by kernels_*.c after kernels_body.h. q, k, v of the head are first copied into panels of
 * whole vectors, tokens padded to TP, channels to DP with zeros; then every product is of one form,
 * C (M, N) += A (M, K) B (K, N) with B and C in whole vectors, and what the causal mask hides is
 * skipped by blocks. Backward makes the probabilities again from lse. */

enum { BLOCK = 64, PAD = 16, TILE_ROWS = 4 };

SIMD_INLINE size_t padded(size_t n) { return (n + PAD - 1) / PAD * PAD; }

SIMD_INLINE void tile(size_t vectors, size_t K, const float *a, size_t a_row, size_t a_col,
                      const float *b, size_t b_row, float *c, size_t c_row, bool add) {
    vf acc[TILE_ROWS][SIMD_TILE_VECTORS];
    for (size_t i = 0; i < TILE_ROWS; i++)
        for (size_t j = 0; j < vectors; j++)
            acc[i][j] = add ? vf_load(c + i * c_row + j * VL) : vf_zero();
    for (size_t k = 0; k < K; k++, a += a_col, b += b_row) {
        vf x[SIMD_TILE_VECTORS];
        for (size_t j = 0; j < vectors; j++)
            x[j] = vf_load(b + j * VL);
        for (size_t i = 0; i < TILE_ROWS; i++) {
            vf y = vf_set1(a[i * a_row]);
            for (size_t j = 0; j < vectors; j++)
                acc[i][j] = vf_fma(y, x[j], acc[i][j]);
        }
    }
    for (size_t i = 0; i < TILE_ROWS; i++)
        for (size_t j = 0; j < vectors; j++)
            vf_store(c + i * c_row + j * VL, acc[i][j]);
}

/* C (M, N) = or += A (M, K) B (K, N). M and N are multiples of PAD; A(i, k) = a[i * a_row + k *
 * a_col]. */
SIMD_FN void multiply(size_t M, size_t N, size_t K, const float *a, size_t a_row, size_t a_col,
                      const float *b, size_t b_row, float *c, size_t c_row, bool add) {
    const size_t wide = SIMD_TILE_VECTORS * VL;
    size_t j = 0;
    for (; j + wide <= N; j += wide)
        for (size_t i = 0; i < M; i += TILE_ROWS)
            tile(SIMD_TILE_VECTORS, K, a + i * a_row, a_row, a_col, b + j, b_row, c + i * c_row + j,
                 c_row, add);
    for (; j < N; j += VL)
        for (size_t i = 0; i < M; i += TILE_ROWS)
            tile(1, K, a + i * a_row, a_row, a_col, b + j, b_row, c + i * c_row + j, c_row, add);
}

/* to (TP, DP) = scale * from (T, D), zeros beyond */
SIMD_FN void pack(float *to, const float *from, size_t from_row, float scale, size_t T, size_t D,
                  size_t TP, size_t DP) {
    size_t rest = whole(D);
    vf s = vf_set1(scale);
    for (size_t t = 0; t < TP; t++, to += DP) {
        if (t >= T || rest < DP)
            k_fill(to, DP, 0.0f);
        if (t >= T)
            continue;
        const float *row = from + t * from_row;
        FOR_WHOLE(i, D) vf_store(to + i, vf_mul(vf_load(row + i), s));
        vf_store_part(to + rest, vf_mul(vf_load_part(row + rest, D % VL), s), D % VL);
    }
}

/* to (D, TP) = from (T, D) transposed */
SIMD_FN void pack_transposed(float *to, const float *from, size_t from_row, size_t T, size_t D,
                             size_t TP) {
    for (size_t t0 = 0; t0 < TP; t0 += PAD)
        for (size_t d = 0; d < D; d++)
            for (size_t t = t0; t < t0 + PAD; t++)
                to[d * TP + t] = t < T ? from[t * from_row + d] : 0.0f;
}

/* to (T, D) = scale * from (., DP) */
SIMD_FN void unpack(float *to, size_t to_row, const float *from, float scale, size_t T, size_t D,
                    size_t DP) {
    size_t rest = whole(D);
    vf s = vf_set1(scale);
    for (size_t t = 0; t < T; t++, from += DP, to += to_row) {
        FOR_WHOLE(i, D) vf_store(to + i, vf_mul(vf_load(from + i), s));
        vf_store_part(to + rest, vf_mul(vf_load_part(from + rest, D % VL), s), D % VL);
    }
}

/* Panels in the scratch of a thread, in the order of their use; the forward pass needs the first
 * four only. */
struct panels {
    size_t TP, DP;
    float *q, *kt, *v, *out; /* (TP, DP), kt (D, TP) */
    float *k, *vt, *dout, *dq, *dk, *dv;
    float *s, *ds; /* (BLOCK, BLOCK) */
    float *delta;  /* (TP) sum over D of dout * out */
};

SIMD_FN size_t k_attention_scratch_elems(size_t T, size_t D) {
    return 10 * padded(T) * padded(D) + 2 * BLOCK * BLOCK + padded(T);
}

SIMD_INLINE struct panels panels_of(float *scratch, size_t T, size_t D) {
    struct panels p = {.TP = padded(T), .DP = padded(D)};
    float **panel[] = {&p.q, &p.kt, &p.v, &p.out, &p.k, &p.vt, &p.dout, &p.dq, &p.dk, &p.dv};
    p.s = scratch;
    p.ds = p.s + BLOCK * BLOCK;
    p.delta = p.ds + BLOCK * BLOCK;
    scratch = p.delta + p.TP;
    for (size_t i = 0; i < sizeof(panel) / sizeof(panel[0]); i++, scratch += p.TP * p.DP)
        *panel[i] = scratch;
    return p;
}

SIMD_INLINE size_t block_rows(size_t first, size_t end) {
    return end - first < BLOCK ? end - first : BLOCK;
}

/* x (columns) of one row: the columns from `valid` on are hidden by the mask. In place x = exp(x -
 * shift), 0 where hidden. */
SIMD_INLINE float masked_exp(float *x, size_t columns, size_t valid, float shift) {
    vf sum = vf_zero(), s = vf_set1(shift);
    for (size_t j = 0; j < columns; j += VL) {
        size_t n = valid <= j ? 0 : valid - j < VL ? valid - j : VL;
        vf p = vf_exp(vf_sub(vf_load(x + j), s));
        vf_store(x + j, p);
        if (n < VL) {
            vf_store(x + j, vf_zero());
            vf_store_part(x + j, p, n);
            p = vf_load(x + j);
        }
        sum = vf_add(sum, p);
    }
    return vf_sum(sum);
}

/* One block of scores s (rows, columns) of queries i0.. and keys j0..: the running maximum and sum
 * of each row, and what there is of the output, are brought up to date. */
SIMD_INLINE void online_softmax(float *s, float *out, size_t DP, float *max, float *sum,
                                size_t rows, size_t columns, size_t i0, size_t j0, size_t T) {
    for (size_t i = 0; i < rows && i0 + i < T; i++, s += BLOCK, out += DP) {
        size_t valid = i0 + i + 1 - j0 < columns ? i0 + i + 1 - j0 : columns;
        float m = row_max(s, valid);
        m = m > max[i] ? m : max[i];
        float factor = expf(max[i] - m);
        sum[i] = sum[i] * factor + masked_exp(s, columns, valid, m);
        if (factor != 1.0f && j0 > 0)
            row_scale(out, DP, factor);
        max[i] = m;
    }
}

SIMD_FN void k_attention_forward(const struct cpu_head *h, float *scratch) {
    struct panels p = panels_of(scratch, h->T, h->D);
    float max[BLOCK], sum[BLOCK];
    pack(p.q, h->q, h->qkv_row_elems, 1.0f / sqrtf((float)h->D), h->T, h->D, p.TP, p.DP);
    pack_transposed(p.kt, h->k, h->qkv_row_elems, h->T, h->D, p.TP);
    pack(p.v, h->v, h->qkv_row_elems, 1.0f, h->T, h->D, p.TP, p.DP);
    for (size_t i0 = 0; i0 < p.TP; i0 += BLOCK) {
        size_t rows = block_rows(i0, p.TP);
        float *out = p.out + i0 * p.DP;
        for (size_t i = 0; i < rows; i++) {
            max[i] = -INFINITY;
            sum[i] = 0;
        }
        for (size_t j0 = 0; j0 <= i0; j0 += BLOCK) {
            size_t columns = block_rows(j0, p.TP);
            multiply(rows, columns, h->D, p.q + i0 * p.DP, p.DP, 1, p.kt + j0, p.TP, p.s, BLOCK,
                     false);
            online_softmax(p.s, out, p.DP, max, sum, rows, columns, i0, j0, h->T);
            multiply(rows, p.DP, columns, p.s, BLOCK, 1, p.v + j0 * p.DP, p.DP, out, p.DP, j0 > 0);
        }
        for (size_t i = 0; i < rows && i0 + i < h->T; i++) {
            row_scale(out + i * p.DP, p.DP, 1.0f / sum[i]);
            h->lse[i0 + i] = max[i] + logf(sum[i]);
        }
    }
    unpack(h->out, h->out_row_elems, p.out, 1.0f, h->T, h->D, p.DP);
}

SIMD_FN void backward_delta(const struct cpu_head *h, const struct panels *p) {
    for (size_t t = 0; t < h->T; t++) {
        const float *a = h->dout + t * h->out_row_elems, *b = h->out + t * h->out_row_elems;
        vf sum = vf_zero();
        size_t rest = whole(h->D);
        FOR_WHOLE(i, h->D) sum = vf_fma(vf_load(a + i), vf_load(b + i), sum);
        sum = vf_fma(vf_load_part(a + rest, h->D % VL), vf_load_part(b + rest, h->D % VL), sum);
        p->delta[t] = vf_sum(sum);
    }
}

/* s: scores to probabilities, ds (d loss / d probabilities) to d loss / d scores = s * (ds - delta)
 */
SIMD_INLINE void backward_softmax(const struct cpu_head *h, const struct panels *p, size_t rows,
                                  size_t columns, size_t i0, size_t j0) {
    for (size_t i = 0; i < rows; i++) {
        float *s = p->s + i * BLOCK, *ds = p->ds + i * BLOCK;
        if (i0 + i >= h->T) {
            k_fill(s, columns, 0.0f);
            k_fill(ds, columns, 0.0f);
            continue;
        }
        size_t valid = i0 + i + 1 - j0 < columns ? i0 + i + 1 - j0 : columns;
        vf delta = vf_set1(p->delta[i0 + i]);
        masked_exp(s, columns, valid, h->lse[i0 + i]);
        for (size_t j = 0; j < columns; j += VL)
            vf_store(ds + j, vf_mul(vf_load(s + j), vf_sub(vf_load(ds + j), delta)));
    }
}

SIMD_FN void k_attention_backward(const struct cpu_head *h, float *scratch) {
    struct panels p = panels_of(scratch, h->T, h->D);
    size_t T = h->T, D = h->D, TP = p.TP, DP = p.DP, row = h->qkv_row_elems;
    float scale = 1.0f / sqrtf((float)D);
    pack(p.q, h->q, row, scale, T, D, TP, DP);
    pack(p.k, h->k, row, 1.0f, T, D, TP, DP);
    pack(p.dout, h->dout, h->out_row_elems, 1.0f, T, D, TP, DP);
    pack_transposed(p.kt, h->k, row, T, D, TP);
    pack_transposed(p.vt, h->v, row, T, D, TP);
    backward_delta(h, &p);
    for (size_t j0 = 0; j0 < TP; j0 += BLOCK) {
        size_t columns = block_rows(j0, TP);
        for (size_t i0 = j0; i0 < TP; i0 += BLOCK) {
            size_t rows = block_rows(i0, TP);
            float *dout = p.dout + i0 * DP, *q = p.q + i0 * DP;
            multiply(rows, columns, D, q, DP, 1, p.kt + j0, TP, p.s, BLOCK, false);
            multiply(rows, columns, D, dout, DP, 1, p.vt + j0, TP, p.ds, BLOCK, false);
            backward_softmax(h, &p, rows, columns, i0, j0);
            multiply(columns, DP, rows, p.s, 1, BLOCK, dout, DP, p.dv + j0 * DP, DP, i0 > j0);
            multiply(columns, DP, rows, p.ds, 1, BLOCK, q, DP, p.dk + j0 * DP, DP, i0 > j0);
            multiply(rows, DP, columns, p.ds, BLOCK, 1, p.k + j0 * DP, DP, p.dq + i0 * DP, DP,
                     j0 > 0);
        }
    }
    unpack(h->dq, row, p.dq, scale, T, D, DP);
    unpack(h->dk, row, p.dk, 1.0f, T, D, DP);
    unpack(h->dv, row, p.dv, 1.0f, T, D, DP);
}
