/* gemm.c - matrix products by cuBLASLt: one plan for each shape, made when it is first seen.
 *
 * cuBLASLt's matrices are column-major. A row-major matrix of (rows, columns) is the same memory as
 * a column-major one of (columns, rows), so c = op(a) op(b) is asked for as c^T = op(b)^T op(a)^T:
 * the operands change places, and nothing is transposed besides. */
#include "config.h"

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/cuda.h"

/* What the choice of an algorithm depends on. Without padding, so that it compares as bytes. */
struct gemm_key {
    uint64_t m, n, k, lda, ldb, ldc;
    uint8_t trans_a, trans_b, t, c_dtype;
    uint8_t align_a, align_b, align_c, zero;
};

struct gemm_plan {
    struct gemm_key key;
    cublasLtMatmulDesc_t product; /* NULL: the slot is empty */
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
};

enum {
    SLOTS = 512,     /* a power of 2 */
    MOST_PLANS = 256 /* then all are dropped: a model has some twenty shapes */
};
enum { MOST_ALIGNMENT = 16 }; /* of a vector load; more changes no choice */

struct cuda_gemm {
    struct device *dev;
    cublasLtHandle_t handle;
    cublasLtMatmulPreference_t preference;
    pthread_mutex_t mutex; /* of all below, and of the preference */
    size_t plan_count;
    struct gemm_plan plans[SLOTS];
};

static void plan_close(struct gemm_plan *p) {
    if (p->a != NULL)
        cublasLtMatrixLayoutDestroy(p->a);
    if (p->b != NULL)
        cublasLtMatrixLayoutDestroy(p->b);
    if (p->c != NULL)
        cublasLtMatrixLayoutDestroy(p->c);
    if (p->product != NULL)
        cublasLtMatmulDescDestroy(p->product);
    memset(p, 0, sizeof(*p));
}

static void drop_plans(struct cuda_gemm *g) {
    for (size_t i = 0; i < SLOTS; i++)
        plan_close(&g->plans[i]);
    g->plan_count = 0;
}

static int prefer(struct cuda_gemm *g, cublasLtMatmulPreferenceAttributes_t attribute,
                  const void *value, size_t bytes) {
    return cuda_blas_check(
        g->dev, cublasLtMatmulPreferenceSetAttribute(g->preference, attribute, value, bytes),
        "cublasLtMatmulPreferenceSetAttribute");
}

int cuda_gemm_open(struct device *d, struct cuda_gemm **out) {
    struct cuda_gemm *g = calloc(1, sizeof(*g));
    if (g == NULL)
        return cuda_refuse(d, ENOMEM, "no memory for the plans of products");
    g->dev = d;
    pthread_mutex_init(&g->mutex, NULL);
    const size_t work_bytes = CUDA_GEMM_WORK_BYTES;
    /* Parts of a sum along k meet in f32: the result is rounded once, and repeats. */
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    int rc = cuda_blas_check(d, cublasLtCreate(&g->handle), "cublasLtCreate");
    if (rc == 0)
        rc = cuda_blas_check(d, cublasLtMatmulPreferenceCreate(&g->preference),
                             "cublasLtMatmulPreferenceCreate");
    if (rc == 0)
        rc = prefer(g, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &work_bytes, sizeof(work_bytes));
    if (rc == 0)
        rc = prefer(g, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof(reductions));
    if (rc != 0)
        cuda_gemm_close(g);
    else
        *out = g;
    return rc;
}

void cuda_gemm_close(struct cuda_gemm *g) {
    if (g == NULL)
        return;
    drop_plans(g);
    if (g->preference != NULL)
        cublasLtMatmulPreferenceDestroy(g->preference);
    if (g->handle != NULL)
        cublasLtDestroy(g->handle);
    pthread_mutex_destroy(&g->mutex);
    free(g);
}

static uint64_t key_hash(const struct gemm_key *key) {
    uint64_t words[sizeof(*key) / sizeof(uint64_t)], h = 0xcbf29ce484222325u;
    memcpy(words, key, sizeof(words));
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        h = (h ^ words[i]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return h;
}

/* The plan of a key, or the empty slot for it: there always is one. */
static struct gemm_plan *slot_of(struct cuda_gemm *g, const struct gemm_key *key) {
    size_t i = (size_t)key_hash(key) & (SLOTS - 1);
    while (g->plans[i].product != NULL && memcmp(&g->plans[i].key, key, sizeof(*key)) != 0)
        i = (i + 1) & (SLOTS - 1);
    return &g->plans[i];
}

static cudaDataType_t type_of(enum dtype t) { return t == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_32F; }

static int layout(struct device *d, enum dtype t, uint64_t rows, uint64_t columns, uint64_t ld,
                  cublasLtMatrixLayout_t *out) {
    return cuda_blas_check(
        d, cublasLtMatrixLayoutCreate(out, type_of(t), columns, rows, (int64_t)ld),
        "cublasLtMatrixLayoutCreate of (%zu,%zu)", (size_t)rows, (size_t)columns);
}

static int set_transpose(struct device *d, cublasLtMatmulDesc_t product,
                         cublasLtMatmulDescAttributes_t attribute, bool transpose) {
    const cublasOperation_t op = transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
    return cuda_blas_check(d, cublasLtMatmulDescSetAttribute(product, attribute, &op, sizeof(op)),
                           "cublasLtMatmulDescSetAttribute");
}

/* The descriptors. In cuBLASLt's words b is the first operand and a the second. */
static int describe(struct cuda_gemm *g, struct gemm_plan *p) {
    struct device *d = g->dev;
    const struct gemm_key *q = &p->key;
    /* TF32 keeps 10 bits of the 23: only where asked for */
    cublasComputeType_t compute =
        q->t == DTYPE_F32 && d->tensor_cores ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    int rc = cuda_blas_check(d, cublasLtMatmulDescCreate(&p->product, compute, CUDA_R_32F),
                             "cublasLtMatmulDescCreate");
    if (rc == 0)
        rc = set_transpose(d, p->product, CUBLASLT_MATMUL_DESC_TRANSA, q->trans_b);
    if (rc == 0)
        rc = set_transpose(d, p->product, CUBLASLT_MATMUL_DESC_TRANSB, q->trans_a);
    if (rc == 0)
        rc = layout(d, (enum dtype)q->t, q->trans_a ? q->k : q->m, q->trans_a ? q->m : q->k, q->lda,
                    &p->a);
    if (rc == 0)
        rc = layout(d, (enum dtype)q->t, q->trans_b ? q->n : q->k, q->trans_b ? q->k : q->n, q->ldb,
                    &p->b);
    if (rc == 0)
        rc = layout(d, (enum dtype)q->c_dtype, q->m, q->n, q->ldc, &p->c);
    return rc;
}

static int choose(struct cuda_gemm *g, struct gemm_plan *p) {
    const struct gemm_key *q = &p->key;
    const uint32_t first = q->align_b, second = q->align_a, result = q->align_c;
    int rc = prefer(g, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &first, sizeof(first));
    if (rc == 0)
        rc = prefer(g, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &second, sizeof(second));
    if (rc == 0)
        rc = prefer(g, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &result, sizeof(result));
    if (rc == 0)
        rc = prefer(g, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &result, sizeof(result));
    if (rc != 0)
        return rc;
    cublasLtMatmulHeuristicResult_t found = {0};
    int count = 0;
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(g->handle, p->product, p->b, p->a, p->c,
                                                           p->c, g->preference, 1, &found, &count);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = count > 0 ? found.state : CUBLAS_STATUS_NOT_SUPPORTED;
    p->algo = found.algo;
    return cuda_blas_check(g->dev, status,
                           "cublasLtMatmulAlgoGetHeuristic of (%zu,%zu) by (%zu,%zu), %s to %s",
                           (size_t)q->m, (size_t)q->k, (size_t)q->k, (size_t)q->n,
                           dtype_name((enum dtype)q->t), dtype_name((enum dtype)q->c_dtype));
}

static int plan_of(struct cuda_gemm *g, const struct gemm_key *key, struct gemm_plan **out) {
    struct gemm_plan *p = slot_of(g, key);
    if (p->product == NULL) {
        if (g->plan_count == MOST_PLANS) {
            drop_plans(g);
            p = slot_of(g, key);
        }
        p->key = *key;
        int rc = describe(g, p);
        if (rc == 0)
            rc = choose(g, p);
        if (rc != 0) {
            plan_close(p);
            return rc;
        }
        g->plan_count++;
    }
    *out = p;
    return 0;
}

static uint8_t alignment_of(const void *p) {
    uintptr_t bit = (uintptr_t)p & (0 - (uintptr_t)p);
    return bit == 0 || bit > MOST_ALIGNMENT ? MOST_ALIGNMENT : (uint8_t)bit;
}

static int check_arguments(struct device *d, const struct dev_stream *s, enum dtype t,
                           const struct gemm_key *q) {
    if (s->gemm_work == NULL)
        return cuda_refuse(d, EINVAL, "gemm: only a compute stream has the workspace for it");
    if (q->c_dtype != t && q->c_dtype != DTYPE_F32)
        return cuda_refuse(d, EINVAL, "gemm: from %s to %s", dtype_name(t),
                           dtype_name((enum dtype)q->c_dtype));
    if (q->m > INT_MAX || q->n > INT_MAX || q->k > INT_MAX || q->lda > INT_MAX ||
        q->ldb > INT_MAX || q->ldc > INT_MAX)
        return cuda_refuse(d, EOVERFLOW, "gemm of (%zu,%zu) by (%zu,%zu): at most %d a side",
                           (size_t)q->m, (size_t)q->k, (size_t)q->k, (size_t)q->n, INT_MAX);
    return 0;
}

int cuda_gemm(struct device *d, struct dev_stream *s, enum dtype t, enum dtype c_dtype,
              bool trans_a, bool trans_b, size_t m, size_t n, size_t k, float alpha, const void *a,
              size_t lda, const void *b, size_t ldb, float beta, void *c, size_t ldc) {
    const struct gemm_key key = {m,
                                 n,
                                 k,
                                 lda,
                                 ldb,
                                 ldc,
                                 trans_a,
                                 trans_b,
                                 (uint8_t)t,
                                 (uint8_t)c_dtype,
                                 alignment_of(a),
                                 alignment_of(b),
                                 alignment_of(c),
                                 0};
    int rc = check_arguments(d, s, t, &key);
    if (rc == 0)
        rc = cuda_enter(d);
    if (rc != 0 || m == 0 || n == 0)
        return rc;
    if (k == 0) /* a sum of nothing: c = beta c */
        return beta == 1 ? 0
                         : cuda_check(d, cuda_scale(&s->call, c, c_dtype, m, n, ldc, beta),
                                      "scale of (%zu,%zu)", m, n);
    struct cuda_gemm *g = d->gemm;
    struct gemm_plan *p;
    pthread_mutex_lock(&g->mutex);
    rc = plan_of(g, &key, &p);
    if (rc == 0)
        rc = cuda_blas_check(d,
                             cublasLtMatmul(g->handle, p->product, &alpha, b, p->b, a, p->a, &beta,
                                            c, p->c, c, p->c, &p->algo, s->gemm_work,
                                            CUDA_GEMM_WORK_BYTES, s->call.stream),
                             "cublasLtMatmul of (%zu,%zu) by (%zu,%zu), %s to %s", m, k, k, n,
                             dtype_name(t), dtype_name(c_dtype));
    pthread_mutex_unlock(&g->mutex);
    return rc;
}
