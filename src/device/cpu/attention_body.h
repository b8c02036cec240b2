/* attention_body.h - causal attention of one head, block by block, so that no (T, T) matrix exists
 * (Dao, 2022).
 *
 * Included by kernels_*.c after loss_body.h. q, k, v of the head are first copied into panels of
 * whole vectors, tokens padded to TP, channels to DP with zeros; then every product is of one form,
 * C (M, N) += A (M, K) B (K, N) with B and C in whole vectors, and what the causal mask hides is
 * skipped by blocks. Backward makes the probabilities again from lse. Panels are f32 whatever the
 * storage, which matters only where they are filled and emptied. */

enum { BLOCK = 64, PAD = 16, TILE_ROWS = 4 };

SIMD_INLINE size_t padded(size_t n) { return (n + PAD - 1) / PAD * PAD; }

/* A row of a tile is 1, 2 or 4 vectors, known when compiled. Written out, not in loops: then the
 * accumulators are registers at any level of optimization. */
SIMD_INLINE void row_load(vf *row, const float *p, size_t vectors) {
    row[0] = vf_load(p);
    if (vectors > 1)
        row[1] = vf_load(p + VL);
    if (vectors > 2) {
        row[2] = vf_load(p + 2 * VL);
        row[3] = vf_load(p + 3 * VL);
    }
}

SIMD_INLINE void row_store(const vf *row, float *p, size_t vectors) {
    vf_store(p, row[0]);
    if (vectors > 1)
        vf_store(p + VL, row[1]);
    if (vectors > 2) {
        vf_store(p + 2 * VL, row[2]);
        vf_store(p + 3 * VL, row[3]);
    }
}

SIMD_INLINE void row_fma(vf *row, float a, const vf *x, size_t vectors) {
    vf y = vf_set1(a);
    row[0] = vf_fma(y, x[0], row[0]);
    if (vectors > 1)
        row[1] = vf_fma(y, x[1], row[1]);
    if (vectors > 2) {
        row[2] = vf_fma(y, x[2], row[2]);
        row[3] = vf_fma(y, x[3], row[3]);
    }
}

SIMD_INLINE void row_clear(vf *row) { row[0] = row[1] = row[2] = row[3] = vf_zero(); }

SIMD_INLINE void tile(size_t vectors, size_t K, const float *a, size_t a_row, size_t a_col,
                      const float *b, size_t b_row, float *c, size_t c_row, bool add) {
    vf r0[4], r1[4], r2[4], r3[4], x[4];
    if (add) {
        row_load(r0, c, vectors);
        row_load(r1, c + c_row, vectors);
        row_load(r2, c + 2 * c_row, vectors);
        row_load(r3, c + 3 * c_row, vectors);
    } else {
        row_clear(r0);
        row_clear(r1);
        row_clear(r2);
        row_clear(r3);
    }
    for (size_t k = 0; k < K; k++, a += a_col, b += b_row) {
        row_load(x, b, vectors);
        row_fma(r0, a[0], x, vectors);
        row_fma(r1, a[a_row], x, vectors);
        row_fma(r2, a[2 * a_row], x, vectors);
        row_fma(r3, a[3 * a_row], x, vectors);
    }
    row_store(r0, c, vectors);
    row_store(r1, c + c_row, vectors);
    row_store(r2, c + 2 * c_row, vectors);
    row_store(r3, c + 3 * c_row, vectors);
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

SIMD_INLINE void pack_rows(enum dtype t, float *to, const void *from, size_t from_row, float scale,
                           size_t T, size_t D, size_t TP, size_t DP) {
    size_t rest = whole(D);
    vf s = vf_set1(scale);
    for (size_t r = 0; r < TP; r++, to += DP) {
        if (r >= T || rest < DP)
            fill(DTYPE_F32, to, DP, 0.0f);
        if (r >= T)
            continue;
        const void *row = row_of(t, from, r, from_row);
        FOR_WHOLE(i, D) vf_store(to + i, vf_mul(vf_get(t, row, i, VL), s));
        vf_store_part(to + rest, vf_mul(vf_get(t, row, rest, D % VL), s), D % VL);
    }
}

/* to (TP, DP) = scale * from (T, D) of t, zeros beyond */
SIMD_FN void pack(enum dtype t, float *to, const void *from, size_t from_row, float scale, size_t T,
                  size_t D, size_t TP, size_t DP) {
    BY_DTYPE(t, pack_rows, to, from, from_row, scale, T, D, TP, DP);
}

/* The rows of panel (TP, DP) transposed block by block: that of rows from t0 on is (D, rows) at to
 * + t0 * D. */
SIMD_FN void transpose(float *to, const float *panel, size_t D, size_t TP, size_t DP) {
    for (size_t t0 = 0; t0 < TP; t0 += BLOCK) {
        size_t rows = TP - t0 < BLOCK ? TP - t0 : BLOCK;
        for (size_t d = 0; d < D; d++, to += rows)
            for (size_t t = 0; t < rows; t++)
                to[t] = panel[(t0 + t) * DP + d];
    }
}

SIMD_INLINE void unpack_rows(enum dtype t, void *to, size_t to_row, const float *from, float scale,
                             size_t T, size_t D, size_t DP) {
    size_t rest = whole(D);
    vf s = vf_set1(scale);
    for (size_t r = 0; r < T; r++, from += DP) {
        void *row = row_to(t, to, r, to_row);
        FOR_WHOLE(i, D) vf_put(t, row, i, vf_mul(vf_load(from + i), s), VL);
        vf_put(t, row, rest, vf_mul(vf_load_part(from + rest, D % VL), s), D % VL);
    }
}

/* to (T, D) of t = scale * from (., DP) */
SIMD_FN void unpack(enum dtype t, void *to, size_t to_row, const float *from, float scale, size_t T,
                    size_t D, size_t DP) {
    BY_DTYPE(t, unpack_rows, to, to_row, from, scale, T, D, DP);
}

/* Panels in the scratch of a thread, in the order of their use; the forward pass needs the first
 * four only. */
struct panels {
    size_t TP, DP;
    float *q, *kt, *v, *out; /* (TP, DP), kt (D, TP) by blocks */
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
        float m = row_max(DTYPE_F32, s, valid);
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
    pack(h->t, p.q, h->q, h->qkv_row_elems, 1.0f / sqrtf((float)h->D), h->T, h->D, p.TP, p.DP);
    pack(h->t, p.k, h->k, h->qkv_row_elems, 1.0f, h->T, h->D, p.TP, p.DP);
    transpose(p.kt, p.k, h->D, p.TP, p.DP);
    pack(h->t, p.v, h->v, h->qkv_row_elems, 1.0f, h->T, h->D, p.TP, p.DP);
    for (size_t i0 = 0; i0 < p.TP; i0 += BLOCK) {
        size_t rows = block_rows(i0, p.TP);
        float *out = p.out + i0 * p.DP;
        for (size_t i = 0; i < rows; i++) {
            max[i] = -INFINITY;
            sum[i] = 0;
        }
        for (size_t j0 = 0; j0 <= i0; j0 += BLOCK) {
            size_t columns = block_rows(j0, p.TP);
            multiply(rows, columns, h->D, p.q + i0 * p.DP, p.DP, 1, p.kt + j0 * h->D, columns, p.s,
                     BLOCK, false);
            online_softmax(p.s, out, p.DP, max, sum, rows, columns, i0, j0, h->T);
            multiply(rows, p.DP, columns, p.s, BLOCK, 1, p.v + j0 * p.DP, p.DP, out, p.DP, j0 > 0);
        }
        for (size_t i = 0; i < rows && i0 + i < h->T; i++) {
            row_scale(out + i * p.DP, p.DP, 1.0f / sum[i]);
            h->lse[i0 + i] = max[i] + logf(sum[i]);
        }
    }
    unpack(h->t, h->out, h->out_row_elems, p.out, 1.0f, h->T, h->D, p.DP);
}

SIMD_INLINE void delta_rows(enum dtype t, float *delta, const struct cpu_head *h) {
    for (size_t r = 0; r < h->T; r++) {
        const void *a = row_of(t, h->dout, r, h->out_row_elems);
        const void *b = row_of(t, h->out, r, h->out_row_elems);
        vf sum = vf_zero();
        size_t rest = whole(h->D), n = h->D % VL;
        FOR_WHOLE(i, h->D) sum = vf_fma(vf_get(t, a, i, VL), vf_get(t, b, i, VL), sum);
        delta[r] = vf_sum(vf_fma(vf_get(t, a, rest, n), vf_get(t, b, rest, n), sum));
    }
}

SIMD_FN void backward_delta(const struct cpu_head *h, const struct panels *p) {
    BY_DTYPE(h->t, delta_rows, p->delta, h);
}

/* s: scores to probabilities, ds (d loss / d probabilities) to d loss / d scores = s * (ds - delta)
 */
SIMD_INLINE void backward_softmax(const struct cpu_head *h, const struct panels *p, size_t rows,
                                  size_t columns, size_t i0, size_t j0) {
    for (size_t i = 0; i < rows; i++) {
        float *s = p->s + i * BLOCK, *ds = p->ds + i * BLOCK;
        if (i0 + i >= h->T) {
            fill(DTYPE_F32, s, columns, 0.0f);
            fill(DTYPE_F32, ds, columns, 0.0f);
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
    pack(h->t, p.q, h->q, row, scale, T, D, TP, DP);
    pack(h->t, p.k, h->k, row, 1.0f, T, D, TP, DP);
    pack(h->t, p.dout, h->dout, h->out_row_elems, 1.0f, T, D, TP, DP);
    pack(h->t, p.dv, h->v, row, 1.0f, T, D, TP, DP); /* only to be transposed */
    transpose(p.kt, p.k, D, TP, DP);
    transpose(p.vt, p.dv, D, TP, DP);
    backward_delta(h, &p);
    for (size_t j0 = 0; j0 < TP; j0 += BLOCK) {
        size_t columns = block_rows(j0, TP);
        for (size_t i0 = j0; i0 < TP; i0 += BLOCK) {
            size_t rows = block_rows(i0, TP);
            float *dout = p.dout + i0 * DP, *q = p.q + i0 * DP;
            multiply(rows, columns, D, q, DP, 1, p.kt + j0 * D, columns, p.s, BLOCK, false);
            multiply(rows, columns, D, dout, DP, 1, p.vt + j0 * D, columns, p.ds, BLOCK, false);
            backward_softmax(h, &p, rows, columns, i0, j0);
            multiply(columns, DP, rows, p.s, 1, BLOCK, dout, DP, p.dv + j0 * DP, DP, i0 > j0);
            multiply(columns, DP, rows, p.ds, 1, BLOCK, q, DP, p.dk + j0 * DP, DP, i0 > j0);
            multiply(rows, DP, columns, p.ds, BLOCK, 1, p.k + j0 * DP, DP, p.dq + i0 * DP, DP,
                     j0 > 0);
        }
    }
    unpack(h->t, h->dq, row, p.dq, scale, T, D, DP);
    unpack(h->t, h->dk, row, p.dk, 1.0f, T, D, DP);
    unpack(h->t, h->dv, row, p.dv, 1.0f, T, D, DP);
}
