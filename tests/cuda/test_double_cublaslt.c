/* test_double_cublaslt.c - the double of cuBLASLt by itself: products against plain sums, what it
 * answers and what it refuses. */
#include "config.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <cublasLt.h>

#include "tensor/dtype.h"
#include "tests/cuda/double_cublaslt.h"
#include "tests/cuda/emu_control.h"
#include "tests/cuda/ranks.h"

enum { WITHIN_S = 20, WORK_BYTES = 16384 };

/* A product as a test asks for it, and all that it needs. */
struct asked {
    size_t m, n, k, extra; /* extra: of each leading dimension */
    bool trans_a, trans_b, bf16, out_bf16;
    cublasComputeType_t compute;
    float alpha, beta;
};
struct gemm {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulAlgo_t algo;
    size_t work_bytes; /* that the algorithm needs */
    cudaStream_t stream;
    unsigned char *work;
    void *at_a, *at_b, *at_c;
    size_t a_bytes, b_bytes, c_bytes;
};

static const struct asked plain = {
    .m = 5, .n = 4, .k = 3, .compute = CUBLAS_COMPUTE_32F, .alpha = 1};

#define OK(call) RANK_CHECK((call) == CUBLAS_STATUS_SUCCESS)

static cudaDataType type_of(bool bf16) { return bf16 ? CUDA_R_16BF : CUDA_R_32F; }

static void prefer(struct gemm *g, cublasLtMatmulPreferenceAttributes_t attribute, uint32_t value) {
    OK(cublasLtMatmulPreferenceSetAttribute(g->preference, attribute, &value, sizeof value));
}

static void describe(struct gemm *g, const struct asked *q) {
    const cublasOperation_t op_a = q->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t op_b = q->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const uint64_t most = WORK_BYTES;
    size_t a_rows = q->trans_a ? q->k : q->m, b_rows = q->trans_b ? q->n : q->k;
    OK(cublasLtCreate(&g->handle));
    OK(cublasLtMatmulDescCreate(&g->product, q->compute, CUDA_R_32F));
    OK(cublasLtMatmulDescSetAttribute(g->product, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a));
    OK(cublasLtMatmulDescSetAttribute(g->product, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b));
    OK(cublasLtMatrixLayoutCreate(&g->a, type_of(q->bf16), a_rows, q->m + q->k - a_rows,
                                  (int64_t)(a_rows + q->extra)));
    OK(cublasLtMatrixLayoutCreate(&g->b, type_of(q->bf16), b_rows, q->k + q->n - b_rows,
                                  (int64_t)(b_rows + q->extra)));
    OK(cublasLtMatrixLayoutCreate(&g->c, type_of(q->out_bf16), q->m, q->n,
                                  (int64_t)(q->m + q->extra)));
    OK(cublasLtMatmulPreferenceCreate(&g->preference));
    OK(cublasLtMatmulPreferenceSetAttribute(g->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                            &most, sizeof most));
    for (int i = 0; i < 4; i++)
        prefer(
            g,
            (cublasLtMatmulPreferenceAttributes_t)(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + i),
            2);
    g->a_bytes = (a_rows + q->extra) * (q->m + q->k - a_rows) * (q->bf16 ? 2 : 4);
    g->b_bytes = (b_rows + q->extra) * (q->k + q->n - b_rows) * (q->bf16 ? 2 : 4);
    g->c_bytes = (q->m + q->extra) * q->n * (q->out_bf16 ? 2 : 4);
}

static cublasStatus_t choose(struct gemm *g) {
    cublasLtMatmulHeuristicResult_t found[2];
    int count = -1;
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(g->handle, g->product, g->a, g->b, g->c,
                                                           g->c, g->preference, 2, found, &count);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    RANK_CHECK(count == 1 && found[0].state == CUBLAS_STATUS_SUCCESS);
    g->algo = found[0].algo;
    g->work_bytes = found[0].workspaceSize;
    return status;
}

static cublasStatus_t multiply(struct gemm *g, float alpha, float beta) {
    return cublasLtMatmul(g->handle, g->product, &alpha, g->at_a, g->a, g->at_b, g->b, &beta,
                          g->at_c, g->c, g->at_c, g->c, &g->algo, g->work, WORK_BYTES, g->stream);
}

static void finish(struct gemm *g) {
    OK(cublasLtMatmulPreferenceDestroy(g->preference));
    OK(cublasLtMatrixLayoutDestroy(g->a));
    OK(cublasLtMatrixLayoutDestroy(g->b));
    OK(cublasLtMatrixLayoutDestroy(g->c));
    OK(cublasLtMatmulDescDestroy(g->product));
    OK(cublasLtDestroy(g->handle));
    RANK_CHECK(double_cublaslt_open_count() == 0);
}

/* ---- values ---- */

static float value(size_t i, unsigned seed) {
    return (float)((i * 2654435761u + seed * 40503u) % 2003) / 1001 - 1;
}

static void *values(size_t elems, bool bf16, unsigned seed) {
    void *p = malloc(elems * (bf16 ? 2 : 4));
    RANK_CHECK(p != NULL);
    for (size_t i = 0; i < elems; i++)
        if (bf16)
            ((uint16_t *)p)[i] = bf16_from_f32(value(i, seed));
        else
            ((float *)p)[i] = value(i, seed);
    return p;
}

static double at(const void *p, bool bf16, size_t i) {
    return bf16 ? bf16_to_f32(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

/* In double, element by element; elements of c between its columns stay. */
static void check_product(const struct asked *q, const void *a, const void *b, const void *c,
                          const void *got) {
    size_t lda = (q->trans_a ? q->k : q->m) + q->extra;
    size_t ldb = (q->trans_b ? q->n : q->k) + q->extra, ldc = q->m + q->extra;
    double limit = q->out_bf16 ? 0.005 : q->compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? 1e-3 : 1e-6;
    for (size_t j = 0; j < q->n; j++)
        for (size_t i = 0; i < ldc; i++) {
            double sum = 0, size = 1e-3;
            if (i >= q->m) {
                RANK_CHECK(at(got, q->out_bf16, i + j * ldc) == at(c, q->out_bf16, i + j * ldc));
                continue;
            }
            for (size_t p = 0; p < q->k; p++) {
                double x = at(a, q->bf16, q->trans_a ? p + i * lda : i + p * lda) *
                           at(b, q->bf16, q->trans_b ? j + p * ldb : p + j * ldb);
                sum += x;
                size += fabs(x);
            }
            sum = q->alpha * sum;
            if (q->beta != 0)
                sum += q->beta * at(c, q->out_bf16, i + j * ldc);
            RANK_CHECK(fabs(at(got, q->out_bf16, i + j * ldc) - sum) <= limit * (size + fabs(sum)));
        }
}

static void body_product(unsigned rank, void *arg) {
    const struct asked *q = arg;
    struct gemm g = {0};
    (void)rank;
    rank_devices(1, 0);
    describe(&g, q);
    void *a = values(g.a_bytes / (q->bf16 ? 2 : 4), q->bf16, 1);
    void *b = values(g.b_bytes / (q->bf16 ? 2 : 4), q->bf16, 2);
    void *c = values(g.c_bytes / (q->out_bf16 ? 2 : 4), q->out_bf16, 3), *got = malloc(g.c_bytes);
    RANK_CHECK(got != NULL);
    g.stream = rank_stream();
    g.work = rank_alloc(WORK_BYTES);
    g.at_a = rank_put(g.stream, a, g.a_bytes);
    g.at_b = rank_put(g.stream, b, g.b_bytes);
    g.at_c = rank_put(g.stream, c, g.c_bytes);
    OK(choose(&g));
    RANK_CHECK(g.work_bytes > 0);
    OK(multiply(&g, q->alpha, q->beta));
    rank_get(g.stream, g.at_c, got, g.c_bytes);
    check_product(q, a, b, c, got);
    finish(&g);
}

static void products_are_right_in_every_form(void **state) {
    static const struct { size_t m, n, k; } sizes[] = {{1, 1, 1}, {17, 5, 3}, {33, 31, 600}};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (unsigned form = 0; form < 16; form++) {
            struct asked q = plain;
            q.m = sizes[i].m;
            q.n = sizes[i].n;
            q.k = sizes[i].k;
            q.extra = form % 3;
            q.trans_a = form & 1;
            q.trans_b = form & 2;
            q.bf16 = form & 4;
            q.out_bf16 = (form & 12) == 12;
            q.compute = (form & 12) == 8 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
            q.alpha = form & 1 ? 1 : 0.5f;
            q.beta = form & 2 ? 0 : form & 4 ? 1 : -2;
            ranks_must_pass(1, WITHIN_S, body_product, &q);
        }
}

/* TF32 is not f32: 1 + 2^-12 is 1 there. */
static void body_tf32(unsigned rank, void *arg) {
    const bool *tf32 = arg;
    struct asked q = plain;
    struct gemm g = {0};
    float one = 1, more = 1 + 1.0f / 4096, got = 0;
    (void)rank;
    rank_devices(1, 0);
    q.m = q.n = q.k = 1;
    q.compute = *tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F_PEDANTIC;
    describe(&g, &q);
    g.stream = rank_stream();
    g.work = rank_alloc(WORK_BYTES);
    g.at_a = rank_put(g.stream, &more, 4);
    g.at_b = rank_put(g.stream, &one, 4);
    g.at_c = rank_alloc(4); /* NaN, and not read: beta is 0 */
    OK(choose(&g));
    OK(multiply(&g, 1, 0));
    rank_get(g.stream, g.at_c, &got, 4);
    RANK_CHECK(got == (*tf32 ? one : more));
}

static void tf32_loses_bits_and_f32_does_not(void **state) {
    bool tf32[] = {false, true};
    (void)state;
    ranks_must_pass(1, WITHIN_S, body_tf32, &tf32[0]);
    ranks_must_pass(1, WITHIN_S, body_tf32, &tf32[1]);
}

static void make(struct gemm *g, const struct asked *q) {
    rank_devices(2, 0);
    describe(g, q);
    g->stream = rank_stream();
    g->work = rank_alloc(WORK_BYTES);
    g->at_a = rank_alloc(g->a_bytes);
    g->at_b = rank_alloc(g->b_bytes);
    g->at_c = rank_alloc(g->c_bytes);
}

static void body_work_is_garbage(unsigned rank, void *arg) {
    struct gemm g = {0};
    unsigned char *host = calloc(1, WORK_BYTES);
    (void)rank;
    (void)arg;
    RANK_CHECK(host != NULL);
    make(&g, &plain);
    g.work = rank_put(g.stream, host, WORK_BYTES);
    OK(choose(&g));
    OK(multiply(&g, 1, 0));
    rank_get(g.stream, g.work, host, WORK_BYTES);
    RANK_CHECK(host[0] == 0xff && host[g.work_bytes - 1] == 0xff && host[g.work_bytes] == 0);
}

static void the_workspace_is_written(void **state) {
    (void)state;
    ranks_must_pass(1, WITHIN_S, body_work_is_garbage, NULL);
}

/* ---- answers ---- */

static void body_not_supported(unsigned rank, void *arg) {
    struct gemm g = {0};
    struct asked q = plain;
    (void)rank;
    (void)arg;
    make(&g, &q);
    const uint32_t bf16 = CUDA_R_16BF, f32 = CUDA_R_32F, f16 = CUDA_R_16F;
    OK(choose(&g));
    OK(cublasLtMatrixLayoutSetAttribute(g.b, CUBLASLT_MATRIX_LAYOUT_TYPE, &bf16, sizeof bf16));
    RANK_CHECK(choose(&g) == CUBLAS_STATUS_NOT_SUPPORTED); /* f32 by bf16 */
    RANK_CHECK(multiply(&g, 1, 0) == CUBLAS_STATUS_NOT_SUPPORTED);
    OK(cublasLtMatrixLayoutSetAttribute(g.b, CUBLASLT_MATRIX_LAYOUT_TYPE, &f32, sizeof f32));
    OK(cublasLtMatrixLayoutSetAttribute(g.c, CUBLASLT_MATRIX_LAYOUT_TYPE, &bf16, sizeof bf16));
    RANK_CHECK(choose(&g) == CUBLAS_STATUS_NOT_SUPPORTED); /* from f32 to bf16 */
    OK(cublasLtMatrixLayoutSetAttribute(g.c, CUBLASLT_MATRIX_LAYOUT_TYPE, &f32, sizeof f32));
    OK(choose(&g));
    OK(cublasLtMatrixLayoutSetAttribute(g.a, CUBLASLT_MATRIX_LAYOUT_TYPE, &f16, sizeof f16));
    OK(cublasLtMatrixLayoutSetAttribute(g.b, CUBLASLT_MATRIX_LAYOUT_TYPE, &f16, sizeof f16));
    RANK_CHECK(choose(&g) == CUBLAS_STATUS_NOT_SUPPORTED);
    static const struct {
        cublasComputeType_t compute;
        cudaDataType scale;
        bool bf16;
    } never[] = {{CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F, true},
                 {CUBLAS_COMPUTE_64F, CUDA_R_64F, false},
                 {CUBLAS_COMPUTE_16F, CUDA_R_16F, true},
                 {CUBLAS_COMPUTE_32F, CUDA_R_16BF, true}};
    for (size_t i = 0; i < sizeof never / sizeof *never; i++) {
        q.bf16 = never[i].bf16;
        describe(&g, &q);
        OK(cublasLtMatmulDescDestroy(g.product));
        OK(cublasLtMatmulDescCreate(&g.product, never[i].compute, never[i].scale));
        RANK_CHECK(choose(&g) == CUBLAS_STATUS_NOT_SUPPORTED);
    }
}

static void dtypes_that_cublaslt_has_not_are_not_supported(void **state) {
    (void)state;
    ranks_must_pass(1, WITHIN_S, body_not_supported, NULL);
}

static void body_invalid(unsigned rank, void *arg) {
    struct gemm g = {0};
    (void)rank;
    (void)arg;
    make(&g, &plain);
    OK(choose(&g));
    const uint64_t rows = 6;
    const int64_t ld = 4, back = 5;
    const cublasOperation_t transpose = CUBLAS_OP_T;
    const uint32_t odd = 24;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    float one = 1, zero = 0;
    RANK_CHECK(cublasLtMatmulAlgoGetHeuristic(g.handle, g.product, g.a, g.b, g.c, g.c, g.preference,
                                              0, &found, &count) == CUBLAS_STATUS_INVALID_VALUE);
    OK(cublasLtMatrixLayoutSetAttribute(g.a, CUBLASLT_MATRIX_LAYOUT_LD, &ld, sizeof ld));
    RANK_CHECK(choose(&g) == CUBLAS_STATUS_INVALID_VALUE); /* 5 rows in 4 */
    RANK_CHECK(multiply(&g, 1, 0) == CUBLAS_STATUS_INVALID_VALUE);
    OK(cublasLtMatrixLayoutSetAttribute(g.a, CUBLASLT_MATRIX_LAYOUT_LD, &back, sizeof back));
    OK(choose(&g));
    OK(cublasLtMatmulDescSetAttribute(g.product, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                      sizeof transpose));
    RANK_CHECK(choose(&g) == CUBLAS_STATUS_INVALID_VALUE); /* (3,5) by (3,4) */
    RANK_CHECK(cublasLtMatmulDescSetAttribute(g.product, CUBLASLT_MATMUL_DESC_TRANSA, &rows,
                                              sizeof rows) == CUBLAS_STATUS_INVALID_VALUE);
    RANK_CHECK(cublasLtMatrixLayoutSetAttribute(g.a, CUBLASLT_MATRIX_LAYOUT_ROWS, &odd,
                                                sizeof odd) == CUBLAS_STATUS_INVALID_VALUE);
    RANK_CHECK(cublasLtMatmulPreferenceSetAttribute(
                   g.preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &odd, sizeof odd) ==
               CUBLAS_STATUS_INVALID_VALUE); /* no power of two */
    finish(&g);
    make(&g, &plain);
    OK(choose(&g));
    RANK_CHECK(cublasLtMatmul(g.handle, g.product, &one, g.at_a, g.a, g.at_b, g.b, &zero, g.at_c,
                              g.c, g.at_c, g.c, &g.algo, g.work, g.work_bytes - 1,
                              g.stream) == CUBLAS_STATUS_INVALID_VALUE);
    g.work += 128;
    RANK_CHECK(multiply(&g, 1, 0) == CUBLAS_STATUS_INVALID_VALUE);
}

static void what_does_not_fit_is_an_invalid_value(void **state) {
    (void)state;
    ranks_must_pass(1, WITHIN_S, body_invalid, NULL);
}

static void body_no_workspace(unsigned rank, void *arg) {
    struct gemm g = {0};
    const uint64_t none = 0;
    float one = 1, zero = 0;
    (void)rank;
    (void)arg;
    make(&g, &plain);
    OK(cublasLtMatmulPreferenceSetAttribute(g.preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                            &none, sizeof none));
    OK(choose(&g));
    RANK_CHECK(g.work_bytes == 0);
    OK(cublasLtMatmul(g.handle, g.product, &one, g.at_a, g.a, g.at_b, g.b, &zero, g.at_c, g.c,
                      g.at_c, g.c, &g.algo, NULL, 0, g.stream));
    RANK_CHECK(cudaStreamSynchronize(g.stream) == cudaSuccess);
}

static void a_preference_without_workspace_is_kept(void **state) {
    (void)state;
    ranks_must_pass(1, WITHIN_S, body_no_workspace, NULL);
}

static void body_injected(unsigned rank, void *arg) {
    struct gemm g = {0};
    cublasLtHandle_t handle;
    (void)rank;
    (void)arg;
    make(&g, &plain);
    emu_fail_at(1, NULL);
    RANK_CHECK(cublasLtCreate(&handle) == CUBLAS_STATUS_NOT_INITIALIZED);
    emu_fail_at(1, "CUBLAS_STATUS_ARCH_MISMATCH");
    RANK_CHECK(choose(&g) == CUBLAS_STATUS_ARCH_MISMATCH);
    RANK_CHECK_TEXT(emu_failed_call(), "cublasLtMatmulAlgoGetHeuristic");
    OK(choose(&g));
    emu_fail_at(1, NULL);
    RANK_CHECK(multiply(&g, 1, 0) == CUBLAS_STATUS_EXECUTION_FAILED);
    emu_fail_at(1, NULL);
    RANK_CHECK(cublasLtMatrixLayoutDestroy(g.a) == CUBLAS_STATUS_INTERNAL_ERROR);
    OK(cublasLtMatrixLayoutCreate(&g.a, CUDA_R_32F, 1, 1, 1)); /* for finish */
    finish(&g);                                                /* it was gone even so */
    RANK_CHECK_TEXT(cublasLtGetStatusName(CUBLAS_STATUS_NOT_SUPPORTED),
                    "CUBLAS_STATUS_NOT_SUPPORTED");
    RANK_CHECK_TEXT(cublasLtGetStatusString(CUBLAS_STATUS_ALLOC_FAILED), "allocation failed");
    RANK_CHECK(cublasLtGetVersion() == CUBLAS_VERSION);
}

static void failures_are_injected_by_name(void **state) {
    (void)state;
    ranks_must_pass(1, WITHIN_S, body_injected, NULL);
}

/* ---- what ends the program ---- */

enum wrong {
    ROW_MAJOR,
    BATCH,
    EPILOGUE,
    CONJUGATE,
    WAVES,
    EMPTY,
    NO_ALGORITHM,
    MADE_UP_ALGORITHM,
    OTHER_PROBLEM,
    LESS_ALIGNED,
    HOST_OPERAND,
    SHORT_OPERAND,
    SHORT_WORK,
    OVERLAP,
    OVERLAP_C,
    TWO_STREAMS,
    DEFAULT_STREAM,
    OTHER_DEVICE,
    GONE_LAYOUT,
    GONE_HANDLE,
    OTHER_KIND
};

static void wrong_attribute(struct gemm *g, enum wrong wrong) {
    const int32_t row = CUBLASLT_ORDER_ROW, two = 2;
    const uint32_t gelu = CUBLASLT_EPILOGUE_GELU;
    const cublasOperation_t conjugate = CUBLAS_OP_C;
    const float waves = 1;
    const uint64_t none = 0;
    if (wrong == ROW_MAJOR)
        (void)cublasLtMatrixLayoutSetAttribute(g->a, CUBLASLT_MATRIX_LAYOUT_ORDER, &row, 4);
    if (wrong == BATCH)
        (void)cublasLtMatrixLayoutSetAttribute(g->a, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &two, 4);
    if (wrong == EPILOGUE)
        (void)cublasLtMatmulDescSetAttribute(g->product, CUBLASLT_MATMUL_DESC_EPILOGUE, &gelu, 4);
    if (wrong == CONJUGATE)
        (void)cublasLtMatmulDescSetAttribute(g->product, CUBLASLT_MATMUL_DESC_TRANSB, &conjugate,
                                             4);
    if (wrong == WAVES)
        (void)cublasLtMatmulPreferenceSetAttribute(g->preference,
                                                   CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT, &waves, 4);
    if (wrong == EMPTY)
        OK(cublasLtMatrixLayoutSetAttribute(g->a, CUBLASLT_MATRIX_LAYOUT_COLS, &none, 8));
    if (wrong == GONE_LAYOUT)
        OK(cublasLtMatrixLayoutDestroy(g->b));
    if (wrong == GONE_HANDLE)
        OK(cublasLtDestroy(g->handle));
    if (wrong == OTHER_KIND)
        (void)cublasLtMatrixLayoutDestroy((cublasLtMatrixLayout_t)(void *)g->product);
    (void)choose(g);
}

static void wrong_pointer(struct gemm *g, enum wrong wrong) {
    const uint64_t one = 1;
    void *host;
    if (wrong == MADE_UP_ALGORITHM)
        memset(&g->algo, 0, sizeof g->algo);
    if (wrong == OTHER_PROBLEM) {
        OK(cublasLtMatrixLayoutSetAttribute(g->a, CUBLASLT_MATRIX_LAYOUT_COLS, &one, 8));
        OK(cublasLtMatrixLayoutSetAttribute(g->b, CUBLASLT_MATRIX_LAYOUT_ROWS, &one, 8));
    }
    if (wrong == LESS_ALIGNED)
        g->at_b = (char *)rank_alloc(g->b_bytes + 4) + 1;
    if (wrong == HOST_OPERAND) {
        RANK_CHECK(cudaHostAlloc(&host, g->a_bytes, cudaHostAllocDefault) == cudaSuccess);
        g->at_a = host;
    }
    if (wrong == SHORT_OPERAND)
        g->at_c = rank_alloc(g->c_bytes - 1);
    if (wrong == SHORT_WORK)
        g->work = rank_alloc(WORK_BYTES - 256);
    if (wrong == OVERLAP)
        g->at_a = g->at_c = rank_alloc(g->c_bytes + g->a_bytes);
    if (wrong == DEFAULT_STREAM)
        g->stream = NULL;
    if (wrong == OTHER_DEVICE) {
        RANK_CHECK(cudaSetDevice(1) == cudaSuccess);
        g->stream = rank_stream();
    }
    (void)multiply(g, 1, 0);
}

static void body_wrong(unsigned rank, void *arg) {
    const enum wrong wrong = *(const enum wrong *)arg;
    struct gemm g = {0};
    float one = 1;
    (void)rank;
    make(&g, &plain);
    if (wrong <= EMPTY || wrong >= GONE_LAYOUT)
        wrong_attribute(&g, wrong);
    OK(choose(&g));
    if (wrong == NO_ALGORITHM)
        (void)cublasLtMatmul(g.handle, g.product, &one, g.at_a, g.a, g.at_b, g.b, &one, g.at_c, g.c,
                             g.at_c, g.c, NULL, g.work, WORK_BYTES, g.stream);
    if (wrong == OVERLAP_C) {
        float *twice = rank_alloc(g.c_bytes + 4);
        (void)cublasLtMatmul(g.handle, g.product, &one, g.at_a, g.a, g.at_b, g.b, &one, twice, g.c,
                             twice + 1, g.c, &g.algo, g.work, WORK_BYTES, g.stream);
    }
    if (wrong == TWO_STREAMS) {
        OK(multiply(&g, 1, 0));
        OK(multiply(&g, 1, 0)); /* one after the other */
        g.stream = rank_stream();
    }
    wrong_pointer(&g, wrong);
}

static void what_is_wrong_or_not_modelled_ends_the_program(void **state) {
    static const char *const texts[] = {
        [ROW_MAJOR] = "order 1 is not modelled",
        [BATCH] = "cublasLtMatrixLayoutSetAttribute: attribute 5 is not modelled",
        [EPILOGUE] = "the value 32 of attribute 7 is not modelled",
        [CONJUGATE] = "the value 2 of attribute 4 is not modelled",
        [WAVES] = "cublasLtMatmulPreferenceSetAttribute: attribute 9 is not modelled",
        [EMPTY] = "empty matrices are not modelled: matrix a is (5,0)",
        [NO_ALGORITHM] = "not modelled without an algorithm",
        [MADE_UP_ALGORITHM] = "no algorithm that cublasLtMatmulAlgoGetHeuristic chose",
        [OTHER_PROBLEM] = "chosen for another problem than (5,1) by (1,4)",
        [LESS_ALIGNED] = "and the algorithm was chosen for an alignment of 2 bytes",
        [HOST_OPERAND] = "cublasLtMatmul: A",
        [SHORT_OPERAND] = "cublasLtMatmul: C",
        [SHORT_WORK] = "cublasLtMatmul: workspace",
        [OVERLAP] = "D overlaps an operand",
        [OVERLAP_C] = "D overlaps C, and is not the same matrix",
        [TWO_STREAMS] = "in use by an unfinished product on another stream",
        [DEFAULT_STREAM] = "cublasLtMatmul: ",
        [OTHER_DEVICE] = "the stream is of another device than the handle",
        [GONE_LAYOUT] = "is no open matrix layout",
        [GONE_HANDLE] = "is no open handle",
        [OTHER_KIND] = "is no open matrix layout",
    };
    (void)state;
    for (enum wrong wrong = ROW_MAJOR; wrong <= OTHER_KIND; wrong++)
        ranks_must_die(1, 0, body_wrong, &wrong, texts[wrong]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_right_in_every_form),
        cmocka_unit_test(tf32_loses_bits_and_f32_does_not),
        cmocka_unit_test(the_workspace_is_written),
        cmocka_unit_test(dtypes_that_cublaslt_has_not_are_not_supported),
        cmocka_unit_test(what_does_not_fit_is_an_invalid_value),
        cmocka_unit_test(a_preference_without_workspace_is_kept),
        cmocka_unit_test(failures_are_injected_by_name),
        cmocka_unit_test(what_is_wrong_or_not_modelled_ends_the_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
