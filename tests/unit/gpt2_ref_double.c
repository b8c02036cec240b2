/* gpt2_ref_double.c - GPT-2 in double precision, as plainly as it can be written. */
#include "config.h"

#include "gpt2_ref_double.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double root = 0.79788456080286535588; /* sqrt(2 / pi) */

static double *zeros(size_t elems) {
    double *p = calloc(elems + 1, sizeof(*p));
    if (p == NULL)
        abort();
    return p;
}

/* out (N, n) = in (N, k) w (k, n) + b (n) */
static void linear(double *out, const double *in, const double *w, const double *b, size_t N,
                   size_t k, size_t n) {
    for (size_t r = 0; r < N; r++)
        for (size_t j = 0; j < n; j++) {
            double sum = b[j];
            for (size_t i = 0; i < k; i++)
                sum += in[r * k + i] * w[i * n + j];
            out[r * n + j] = sum;
        }
}

/* din = ; dw, db += */
static void linear_backward(double *din, double *dw, double *db, const double *dout,
                            const double *in, const double *w, size_t N, size_t k, size_t n) {
    memset(din, 0, N * k * sizeof(*din));
    for (size_t r = 0; r < N; r++)
        for (size_t i = 0; i < k; i++)
            for (size_t j = 0; j < n; j++) {
                din[r * k + i] += dout[r * n + j] * w[i * n + j];
                dw[i * n + j] += in[r * k + i] * dout[r * n + j];
            }
    for (size_t r = 0; r < N; r++)
        for (size_t j = 0; j < n; j++)
            db[j] += dout[r * n + j];
}

static void norm(double *out, double *xhat, double *rstd, const double *in, const double *w,
                 const double *b, size_t N, size_t C, double eps) {
    for (size_t r = 0; r < N; r++, in += C, out += C, xhat += C) {
        double mean = 0, var = 0;
        for (size_t c = 0; c < C; c++)
            mean += in[c] / (double)C;
        for (size_t c = 0; c < C; c++)
            var += (in[c] - mean) * (in[c] - mean) / (double)C;
        rstd[r] = 1 / sqrt(var + eps);
        for (size_t c = 0; c < C; c++) {
            xhat[c] = (in[c] - mean) * rstd[r];
            out[c] = xhat[c] * w[c] + b[c];
        }
    }
}

/* din += ; dw, db += */
static void norm_backward(double *din, double *dw, double *db, const double *dout,
                          const double *xhat, const double *rstd, const double *w, size_t N,
                          size_t C) {
    for (size_t r = 0; r < N; r++, din += C, dout += C, xhat += C) {
        double g = 0, gx = 0;
        for (size_t c = 0; c < C; c++) {
            g += dout[c] * w[c] / (double)C;
            gx += dout[c] * w[c] * xhat[c] / (double)C;
            dw[c] += dout[c] * xhat[c];
            db[c] += dout[c];
        }
        for (size_t c = 0; c < C; c++)
            din[c] += rstd[r] * (dout[c] * w[c] - g - xhat[c] * gx);
    }
}

/* prob (B, NH, T, T) is kept for backward. */
static void attention(double *out, double *prob, const double *qkv, size_t B, size_t T, size_t C,
                      size_t NH) {
    size_t D = C / NH;
    for (size_t bh = 0; bh < B * NH; bh++) {
        const double *base = qkv + bh / NH * T * 3 * C + bh % NH * D;
        for (size_t i = 0; i < T; i++) {
            double *p = prob + (bh * T + i) * T, max = -INFINITY, sum = 0;
            for (size_t j = 0; j <= i; j++) {
                p[j] = 0;
                for (size_t d = 0; d < D; d++)
                    p[j] += base[i * 3 * C + d] * base[j * 3 * C + C + d] / sqrt((double)D);
                max = p[j] > max ? p[j] : max;
            }
            for (size_t j = 0; j <= i; j++)
                sum += p[j] = exp(p[j] - max);
            for (size_t j = 0; j <= i; j++)
                p[j] /= sum;
            for (size_t d = 0; d < D; d++) {
                double o = 0;
                for (size_t j = 0; j <= i; j++)
                    o += p[j] * base[j * 3 * C + 2 * C + d];
                out[(bh / NH * T + i) * C + bh % NH * D + d] = o;
            }
        }
    }
}

static void attention_backward(double *dqkv, const double *dout, const double *prob,
                               const double *qkv, size_t B, size_t T, size_t C, size_t NH) {
    size_t D = C / NH;
    double scale = 1 / sqrt((double)D), *dp = zeros(T);
    memset(dqkv, 0, B * T * 3 * C * sizeof(*dqkv));
    for (size_t bh = 0; bh < B * NH; bh++) {
        size_t at = bh / NH * T * 3 * C + bh % NH * D;
        const double *base = qkv + at;
        double *dbase = dqkv + at;
        for (size_t i = 0; i < T; i++) {
            const double *p = prob + (bh * T + i) * T,
                         *g = dout + (bh / NH * T + i) * C + bh % NH * D;
            double dot = 0;
            for (size_t j = 0; j <= i; j++) {
                dp[j] = 0;
                for (size_t d = 0; d < D; d++) {
                    dp[j] += g[d] * base[j * 3 * C + 2 * C + d];
                    dbase[j * 3 * C + 2 * C + d] += p[j] * g[d];
                }
                dot += p[j] * dp[j];
            }
            for (size_t j = 0; j <= i; j++)
                for (size_t d = 0; d < D; d++) {
                    double ds = p[j] * (dp[j] - dot) * scale;
                    dbase[i * 3 * C + d] += ds * base[j * 3 * C + C + d];
                    dbase[j * 3 * C + C + d] += ds * base[i * 3 * C + d];
                }
        }
    }
    free(dp);
}

/* Values of one block that its backward needs. */
struct block {
    double *x, *ln1, *xhat1, *rstd1, *qkv, *prob, *att, *mid, *ln2, *xhat2, *rstd2, *pre, *act;
};

static double gelu_slope(double x) {
    double t = tanh(root * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
}

static void block_forward(const struct ref_shape *s, struct block *b, double *const *w, double *out,
                          size_t B, size_t T) {
    size_t N = B * T, C = s->width, F = s->inner;
    norm(b->ln1, b->xhat1, b->rstd1, b->x, w[0], w[1], N, C, s->eps);
    linear(b->qkv, b->ln1, w[2], w[3], N, C, 3 * C);
    attention(b->att, b->prob, b->qkv, B, T, C, s->heads);
    linear(b->mid, b->att, w[4], w[5], N, C, C);
    for (size_t i = 0; i < N * C; i++)
        b->mid[i] += b->x[i];
    norm(b->ln2, b->xhat2, b->rstd2, b->mid, w[6], w[7], N, C, s->eps);
    linear(b->pre, b->ln2, w[8], w[9], N, C, F);
    for (size_t i = 0; i < N * F; i++) {
        double x = b->pre[i];
        b->act[i] = 0.5 * x * (1 + tanh(root * (x + 0.044715 * x * x * x)));
    }
    linear(out, b->act, w[10], w[11], N, F, C);
    for (size_t i = 0; i < N * C; i++)
        out[i] += b->mid[i];
}

/* dx (N, C): gradient of the block's output in, of its input out */
static void block_backward(const struct ref_shape *s, const struct block *b, double *const *w,
                           double *const *g, double *dx, size_t B, size_t T) {
    size_t N = B * T, C = s->width, F = s->inner, wide = F > 3 * C ? F : 3 * C;
    double *big = zeros(N * wide), *small = zeros(N * C);
    linear_backward(big, g[10], g[11], dx, b->act, w[10], N, F, C);
    for (size_t i = 0; i < N * F; i++)
        big[i] *= gelu_slope(b->pre[i]);
    linear_backward(small, g[8], g[9], big, b->ln2, w[8], N, C, F);
    norm_backward(dx, g[6], g[7], small, b->xhat2, b->rstd2, w[6], N, C);
    linear_backward(small, g[4], g[5], dx, b->att, w[4], N, C, C);
    attention_backward(big, small, b->prob, b->qkv, B, T, C, s->heads);
    linear_backward(small, g[2], g[3], big, b->ln1, w[2], N, C, 3 * C);
    norm_backward(dx, g[0], g[1], small, b->xhat1, b->rstd1, w[0], N, C);
    free(big);
    free(small);
}

static struct block block_make(const struct ref_shape *s, size_t B, size_t T) {
    size_t N = B * T, C = s->width, F = s->inner;
    return (struct block){zeros(N * C), zeros(N * C),     zeros(N * C),
                          zeros(N),     zeros(3 * N * C), zeros(N * s->heads * T),
                          zeros(N * C), zeros(N * C),     zeros(N * C),
                          zeros(N * C), zeros(N),         zeros(N * F),
                          zeros(N * F)};
}

static void block_free(struct block *b) {
    double *all[] = {b->x,   b->ln1, b->xhat1, b->rstd1, b->qkv, b->prob, b->att,
                     b->mid, b->ln2, b->xhat2, b->rstd2, b->pre, b->act};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]);
}

/* Loss of hidden (N, C) against the tied embedding; dhidden = , dwte += */
static double head(double *dhidden, double *dwte, const double *hidden, const double *wte,
                   const int32_t *targets, size_t N, size_t C, size_t V, double scale) {
    double *p = zeros(V), loss = 0;
    for (size_t r = 0; r < N; r++) {
        const double *h = hidden + r * C;
        double max = -INFINITY, sum = 0;
        for (size_t v = 0; v < V; v++) {
            p[v] = 0;
            for (size_t c = 0; c < C; c++)
                p[v] += h[c] * wte[v * C + c];
            max = p[v] > max ? p[v] : max;
        }
        double at_target = p[targets[r]];
        for (size_t v = 0; v < V; v++)
            sum += p[v] = exp(p[v] - max);
        loss += scale * (log(sum) + max - at_target);
        memset(dhidden + r * C, 0, C * sizeof(double));
        for (size_t v = 0; v < V; v++) {
            double d = scale * (p[v] / sum - (v == (size_t)targets[r]));
            for (size_t c = 0; c < C; c++) {
                dhidden[r * C + c] += d * wte[v * C + c];
                dwte[v * C + c] += d * h[c];
            }
        }
    }
    free(p);
    return loss;
}

double ref_gpt2(const struct ref_shape *s, double *const *params, double *const *grads,
                const int32_t *tokens, const int32_t *targets, size_t B, size_t T, double scale) {
    size_t N = B * T, C = s->width, F = s->inner, V = s->vocab, L = s->layers, last = 2 + 12 * L;
    const size_t block_sizes[12] = {C, C, 3 * C * C, 3 * C, C * C, C, C, C, C * F, F, F * C, C};
    memset(grads[0], 0, V * C * sizeof(double));
    memset(grads[1], 0, s->context * C * sizeof(double));
    for (size_t i = 0; i < 12 * L; i++)
        memset(grads[2 + i], 0, block_sizes[i % 12] * sizeof(double));
    memset(grads[last], 0, C * sizeof(double));
    memset(grads[last + 1], 0, C * sizeof(double));

    struct block *b = calloc(L + 1, sizeof(*b));
    if (b == NULL)
        abort();
    for (size_t l = 0; l <= L; l++) /* one more for the head: its x, and ln1 as its norm */
        b[l] = block_make(s, B, T);
    for (size_t n = 0; n < N; n++)
        for (size_t c = 0; c < C; c++)
            b[0].x[n * C + c] = params[0][(size_t)tokens[n] * C + c] + params[1][n % T * C + c];
    for (size_t l = 0; l < L; l++)
        block_forward(s, &b[l], params + 2 + 12 * l, b[l + 1].x, B, T);
    struct block *h = &b[L];
    norm(h->ln1, h->xhat1, h->rstd1, h->x, params[last], params[last + 1], N, C, s->eps);

    double *dhidden = zeros(N * C), *dx = zeros(N * C);
    double loss = head(dhidden, grads[0], h->ln1, params[0], targets, N, C, V, scale);
    norm_backward(dx, grads[last], grads[last + 1], dhidden, h->xhat1, h->rstd1, params[last], N,
                  C);
    for (size_t l = L; l-- > 0;)
        block_backward(s, &b[l], params + 2 + 12 * l, grads + 2 + 12 * l, dx, B, T);
    for (size_t n = 0; n < N; n++)
        for (size_t c = 0; c < C; c++) {
            grads[0][(size_t)tokens[n] * C + c] += dx[n * C + c];
            grads[1][n % T * C + c] += dx[n * C + c];
        }
    for (size_t l = 0; l <= L; l++)
        block_free(&b[l]);
    free(b);
    free(dhidden);
    free(dx);
    return loss;
}
