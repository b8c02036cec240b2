/* double_cublaslt.c - see the header: descriptors, what is supported, products on streams. */
#include "config.h"

#include "tests/cuda/double_cublaslt.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/double_cublaslt_product.h"
#include "tests/cuda/emu_stream.h"

/* What is created is one of these, and lives in memory as large as the library's own. */
enum object_kind { OBJECT_HANDLE = 1, OBJECT_PRODUCT, OBJECT_LAYOUT, OBJECT_PREFERENCE };

struct object {
    struct object *older;
    enum object_kind kind;
};
struct handle {
    struct object object;
    int device;
};
struct description {
    struct object object;
    int32_t compute, scale, trans_a, trans_b;
};
struct layout {
    struct object object;
    uint32_t type;
    uint64_t rows, cols;
    int64_t ld;
};
struct preference {
    struct object object;
    uint64_t workspace_bytes;
    uint32_t reductions;
    uint32_t alignment[4]; /* of a, b, c, d */
};
struct algorithm {
    uint64_t magic, workspace_bytes;
    uint32_t alignment[4];
    uint64_t problem; /* hash of the shape */
};
_Static_assert(sizeof(struct description) <= sizeof(cublasLtMatmulDescOpaque_t), "it fits");
_Static_assert(sizeof(struct layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "it fits");
_Static_assert(sizeof(struct preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t), "it fits");
_Static_assert(sizeof(struct algorithm) <= sizeof(cublasLtMatmulAlgo_t), "it fits");

enum { ALGORITHM_MAGIC = 0x616c676f, WORK_ALIGNMENT = 256, DEFAULT_ALIGNMENT = 256 };

/* A product on a stream. */
struct job {
    struct product product;
    unsigned char *work;
    size_t work_bytes;
    cudaStream_t stream;
    struct job *older;
};

/* Both under emu_lock. */
static struct object *objects;
static struct job *jobs;

/* ---- status ---- */

static const struct {
    cublasStatus_t status;
    const char *name, *text;
} statuses[] = {
    {CUBLAS_STATUS_SUCCESS, "CUBLAS_STATUS_SUCCESS", "success"},
    {CUBLAS_STATUS_NOT_INITIALIZED, "CUBLAS_STATUS_NOT_INITIALIZED",
     "the library was not initialized"},
    {CUBLAS_STATUS_ALLOC_FAILED, "CUBLAS_STATUS_ALLOC_FAILED", "the resource allocation failed"},
    {CUBLAS_STATUS_INVALID_VALUE, "CUBLAS_STATUS_INVALID_VALUE",
     "an unsupported value or parameter was passed to the function"},
    {CUBLAS_STATUS_ARCH_MISMATCH, "CUBLAS_STATUS_ARCH_MISMATCH",
     "the device lacks a feature that the function needs"},
    {CUBLAS_STATUS_MAPPING_ERROR, "CUBLAS_STATUS_MAPPING_ERROR",
     "an access to GPU memory space failed"},
    {CUBLAS_STATUS_EXECUTION_FAILED, "CUBLAS_STATUS_EXECUTION_FAILED",
     "the GPU program failed to execute"},
    {CUBLAS_STATUS_INTERNAL_ERROR, "CUBLAS_STATUS_INTERNAL_ERROR", "an internal operation failed"},
    {CUBLAS_STATUS_NOT_SUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED",
     "the functionality requested is not supported"},
    {CUBLAS_STATUS_LICENSE_ERROR, "CUBLAS_STATUS_LICENSE_ERROR",
     "the functionality requested requires a license"},
};
enum { STATUSES = sizeof(statuses) / sizeof(statuses[0]) };

const char *cublasLtGetStatusName(cublasStatus_t status) {
    for (size_t i = 0; i < STATUSES; i++)
        if (statuses[i].status == status)
            return statuses[i].name;
    return "unknown status";
}

const char *cublasLtGetStatusString(cublasStatus_t status) {
    for (size_t i = 0; i < STATUSES; i++)
        if (statuses[i].status == status)
            return statuses[i].text;
    return "unknown status";
}

size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }

static cublasStatus_t injected(cublasStatus_t likely) {
    const char *name = emu_fail_error();
    for (size_t i = 1; i < STATUSES; i++)
        if (strcmp(name, statuses[i].name) == 0)
            return statuses[i].status;
    return strncmp(name, "cuda", 4) == 0 ? CUBLAS_STATUS_EXECUTION_FAILED : likely;
}

/* ---- objects ---- */

/* Zeroed, of at least the library's size. */
static void *object_new(const char *call, enum object_kind kind, size_t bytes) {
    struct object *o = calloc(1, bytes);
    if (o == NULL)
        emu_die(call, "no memory");
    o->kind = kind;
    emu_lock();
    o->older = objects;
    objects = o;
    emu_unlock();
    return o;
}

static struct object **object_find(const char *call, const void *p, enum object_kind kind) {
    static const char *const names[] = {"", "handle", "matmul descriptor", "matrix layout",
                                        "preference"};
    struct object **at = &objects;
    while (*at != NULL && *at != p)
        at = &(*at)->older;
    if (*at == NULL || (*at)->kind != kind)
        emu_die(call, "%p is no open %s", p, names[kind]);
    return at;
}

static const void *object_check(const char *call, const void *p, enum object_kind kind) {
    emu_lock();
    (void)object_find(call, p, kind);
    emu_unlock();
    return p;
}

static cublasStatus_t object_end(const char *call, void *p, enum object_kind kind) {
    bool fails = emu_fail(call);
    emu_lock();
    struct object **at = object_find(call, p, kind);
    *at = (*at)->older;
    free(p);
    emu_unlock();
    return fails ? injected(CUBLAS_STATUS_INTERNAL_ERROR) : CUBLAS_STATUS_SUCCESS;
}

size_t double_cublaslt_open_count(void) {
    size_t n = 0;
    emu_lock();
    for (const struct object *o = objects; o != NULL; o = o->older)
        n++;
    emu_unlock();
    return n;
}

/* Copies a value of an attribute, if it is as large as the attribute is. */
static cublasStatus_t value_of(const void *buf, size_t given, void *out, size_t bytes) {
    if (buf == NULL || given != bytes)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(out, buf, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *lightHandle) {
    if (emu_fail(__func__))
        return injected(CUBLAS_STATUS_NOT_INITIALIZED);
    int device = -1;
    if (cudaGetDevice(&device) != cudaSuccess)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    struct handle *h = object_new(__func__, OBJECT_HANDLE, sizeof *h);
    h->device = device;
    *lightHandle = (cublasLtHandle_t)(void *)h;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t lightHandle) {
    return object_end(__func__, lightHandle, OBJECT_HANDLE);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *matmulDesc,
                                        cublasComputeType_t computeType, cudaDataType_t scaleType) {
    if (emu_fail(__func__))
        return injected(CUBLAS_STATUS_ALLOC_FAILED);
    struct description *d = object_new(__func__, OBJECT_PRODUCT, sizeof **matmulDesc);
    d->compute = (int32_t)computeType;
    d->scale = (int32_t)scaleType;
    d->trans_a = d->trans_b = CUBLAS_OP_N;
    *matmulDesc = (cublasLtMatmulDesc_t)(void *)d;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t matmulDesc) {
    return object_end(__func__, matmulDesc, OBJECT_PRODUCT);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t matmulDesc,
                                              cublasLtMatmulDescAttributes_t attr, const void *buf,
                                              size_t sizeInBytes) {
    if (emu_fail(__func__))
        return injected(CUBLAS_STATUS_INVALID_VALUE);
    (void)object_check(__func__, matmulDesc, OBJECT_PRODUCT);
    struct description *d = (void *)matmulDesc;
    int32_t value = 0;
    cublasStatus_t status = value_of(buf, sizeInBytes, &value, sizeof value);
    bool modelled = true;
    if (attr == CUBLASLT_MATMUL_DESC_EPILOGUE)
        modelled = value == CUBLASLT_EPILOGUE_DEFAULT;
    else if (attr == CUBLASLT_MATMUL_DESC_POINTER_MODE)
        modelled = value == CUBLASLT_POINTER_MODE_HOST;
    else
        modelled = attr == CUBLASLT_MATMUL_DESC_TRANSA || attr == CUBLASLT_MATMUL_DESC_TRANSB;
    if (attr == CUBLASLT_MATMUL_DESC_TRANSA || attr == CUBLASLT_MATMUL_DESC_TRANSB)
        modelled = value == CUBLAS_OP_N || value == CUBLAS_OP_T;
    if (status == CUBLAS_STATUS_SUCCESS && !modelled)
        emu_die(__func__, "the value %d of attribute %d is not modelled", value, (int)attr);
    if (status == CUBLAS_STATUS_SUCCESS && attr == CUBLASLT_MATMUL_DESC_TRANSA)
        d->trans_a = value;
    if (status == CUBLAS_STATUS_SUCCESS && attr == CUBLASLT_MATMUL_DESC_TRANSB)
        d->trans_b = value;
    return status;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *matLayout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
    if (emu_fail(__func__))
        return injected(CUBLAS_STATUS_ALLOC_FAILED);
    struct layout *l = object_new(__func__, OBJECT_LAYOUT, sizeof **matLayout);
    l->type = (uint32_t)type;
    l->rows = rows;
    l->cols = cols;
    l->ld = ld;
    *matLayout = (cublasLtMatrixLayout_t)(void *)l;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t matLayout) {
    return object_end(__func__, matLayout, OBJECT_LAYOUT);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t matLayout,
                                                cublasLtMatrixLayoutAttribute_t attr,
                                                const void *buf, size_t sizeInBytes) {
    if (emu_fail(__func__))
        return injected(CUBLAS_STATUS_INVALID_VALUE);
    (void)object_check(__func__, matLayout, OBJECT_LAYOUT);
    struct layout *l = (void *)matLayout;
    int32_t order = 0;
    cublasStatus_t status;
    switch (attr) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
        return value_of(buf, sizeInBytes, &l->type, sizeof l->type);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
        return value_of(buf, sizeInBytes, &l->rows, sizeof l->rows);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
        return value_of(buf, sizeInBytes, &l->cols, sizeof l->cols);
    case CUBLASLT_MATRIX_LAYOUT_LD:
        return value_of(buf, sizeInBytes, &l->ld, sizeof l->ld);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
        status = value_of(buf, sizeInBytes, &order, sizeof order);
        if (status == CUBLAS_STATUS_SUCCESS && order != CUBLASLT_ORDER_COL)
            emu_die(__func__, "order %d is not modelled, only column-major", order);
        return status;
    default:
        emu_die(__func__, "attribute %d is not modelled", (int)attr);
    }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *pref) {
    if (emu_fail(__func__))
        return injected(CUBLAS_STATUS_ALLOC_FAILED);
    struct preference *p = object_new(__func__, OBJECT_PREFERENCE, sizeof **pref);
    p->reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
    for (size_t i = 0; i < 4; i++)
        p->alignment[i] = DEFAULT_ALIGNMENT;
    *pref = (cublasLtMatmulPreference_t)(void *)p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t pref) {
    return object_end(__func__, pref, OBJECT_PREFERENCE);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                                    cublasLtMatmulPreferenceAttributes_t attr,
                                                    const void *buf, size_t sizeInBytes) {
    if (emu_fail(__func__))
        return injected(CUBLAS_STATUS_INVALID_VALUE);
    (void)object_check(__func__, pref, OBJECT_PREFERENCE);
    struct preference *p = (void *)pref;
    uint32_t alignment = 0;
    if (attr == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        return value_of(buf, sizeInBytes, &p->workspace_bytes, sizeof p->workspace_bytes);
    if (attr == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        return value_of(buf, sizeInBytes, &p->reductions, sizeof p->reductions);
    if (attr < CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES ||
        attr > CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)
        emu_die(__func__, "attribute %d is not modelled", (int)attr);
    cublasStatus_t status = value_of(buf, sizeInBytes, &alignment, sizeof alignment);
    if (status == CUBLAS_STATUS_SUCCESS && (alignment == 0 || (alignment & (alignment - 1)) != 0))
        status = CUBLAS_STATUS_INVALID_VALUE;
    if (status == CUBLAS_STATUS_SUCCESS)
        p->alignment[attr - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES] = alignment;
    return status;
}

/* ---- problems ---- */

struct problem {
    const struct description *description;
    const struct layout *a, *b, *c, *d;
};

static void problem_check(const char *call, const struct problem *p) {
    (void)object_check(call, p->description, OBJECT_PRODUCT);
    const struct layout *const all[] = {p->a, p->b, p->c, p->d};
    for (size_t i = 0; i < 4; i++) {
        (void)object_check(call, all[i], OBJECT_LAYOUT);
        if (all[i]->rows == 0 || all[i]->cols == 0)
            emu_die(call, "empty matrices are not modelled: matrix %c is (%zu,%zu)", "abcd"[i],
                    (size_t)all[i] -> rows, (size_t)all[i] -> cols);
    }
}

static bool types_supported(const struct problem *p) {
    uint32_t ab = p->a->type, cd = p->d->type;
    if (p->b->type != ab || p->c->type != cd || p->description->scale != CUDA_R_32F)
        return false;
    switch (p->description->compute) {
    case CUBLAS_COMPUTE_32F:
    case CUBLAS_COMPUTE_32F_PEDANTIC:
        return (ab == CUDA_R_32F && cd == CUDA_R_32F) ||
               (ab == CUDA_R_16BF && (cd == CUDA_R_16BF || cd == CUDA_R_32F));
    case CUBLAS_COMPUTE_32F_FAST_TF32:
        return ab == CUDA_R_32F && cd == CUDA_R_32F;
    default:
        return false;
    }
}

static bool layout_fits(const struct layout *l) { return l->ld >= 0 && (uint64_t)l->ld >= l->rows; }

static bool layout_supported(const struct layout *l) {
    return l->rows <= INT_MAX && l->cols <= INT_MAX;
}

static cublasStatus_t problem_shape(const struct problem *p, struct product_shape *out) {
    const struct layout *a = p->a, *b = p->b, *c = p->c, *d = p->d;
    struct product_shape s = {.trans_a = p->description->trans_a == CUBLAS_OP_T,
                              .trans_b = p->description->trans_b == CUBLAS_OP_T};
    s.m = d->rows;
    s.n = d->cols;
    s.k = s.trans_a ? a->rows : a->cols;
    bool fits = (s.trans_a ? a->cols : a->rows) == s.m && (s.trans_b ? b->cols : b->rows) == s.k &&
                (s.trans_b ? b->rows : b->cols) == s.n && c->rows == s.m && c->cols == s.n;
    if (!fits || !layout_fits(a) || !layout_fits(b) || !layout_fits(c) || !layout_fits(d))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!types_supported(p) || !layout_supported(a) || !layout_supported(b) || !layout_supported(d))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    s.lda = (uint64_t)a->ld;
    s.ldb = (uint64_t)b->ld;
    s.ldc = (uint64_t)c->ld;
    s.ldd = (uint64_t)d->ld;
    s.ab_bf16 = a->type == CUDA_R_16BF;
    s.cd_bf16 = d->type == CUDA_R_16BF;
    s.tf32 = p->description->compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    *out = s;
    return CUBLAS_STATUS_SUCCESS;
}

static uint64_t shape_hash(const struct product_shape *s) {
    const unsigned char *bytes = (const void *)s;
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < sizeof *s; i++)
        h = (h ^ bytes[i]) * 0x100000001b3u;
    return h;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t operationDesc, cublasLtMatrixLayout_t Adesc,
    cublasLtMatrixLayout_t Bdesc, cublasLtMatrixLayout_t Cdesc, cublasLtMatrixLayout_t Ddesc,
    cublasLtMatmulPreference_t preference, int requestedAlgoCount,
    cublasLtMatmulHeuristicResult_t heuristicResultsArray[], int *returnAlgoCount) {
    if (emu_fail(__func__))
        return injected(CUBLAS_STATUS_NOT_SUPPORTED);
    (void)object_check(__func__, lightHandle, OBJECT_HANDLE);
    const struct preference *want = object_check(__func__, preference, OBJECT_PREFERENCE);
    struct problem problem = {(void *)operationDesc, (void *)Adesc, (void *)Bdesc, (void *)Cdesc,
                              (void *)Ddesc};
    struct product_shape shape = {0};
    problem_check(__func__, &problem);
    if (requestedAlgoCount <= 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    *returnAlgoCount = 0;
    cublasStatus_t status = problem_shape(&problem, &shape);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    struct algorithm found = {.magic = ALGORITHM_MAGIC, .problem = shape_hash(&shape)};
    memcpy(found.alignment, want->alignment, sizeof found.alignment);
    found.workspace_bytes = 1000 * (1 + found.problem % 7);
    if (found.workspace_bytes > want->workspace_bytes)
        found.workspace_bytes = 0; /* there always is one that needs none */
    cublasLtMatmulHeuristicResult_t result = {
        .workspaceSize = found.workspace_bytes, .state = CUBLAS_STATUS_SUCCESS, .wavesCount = 1};
    memcpy(&result.algo, &found, sizeof found);
    heuristicResultsArray[0] = result;
    *returnAlgoCount = 1;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- products ---- */

static size_t elem_bytes(bool bf16) { return bf16 ? 2 : 4; }

static struct emu_range range_of(const struct layout *l, const void *start, bool write) {
    size_t elem = elem_bytes(l->type == CUDA_R_16BF);
    return (struct emu_range){start, l->cols, l->rows * elem, (size_t)l->ld * elem, write};
}

static const unsigned char *range_end(const struct emu_range *r) {
    return (const unsigned char *)r->start + (r->rows - 1) * r->pitch_bytes + r->row_bytes;
}

static bool ranges_meet(const struct emu_range *a, const struct emu_range *b) {
    return (const unsigned char *)a->start < range_end(b) &&
           (const unsigned char *)b->start < range_end(a);
}

static void job_run(void *arg) {
    struct job *j = arg;
    if (j->work_bytes > 0)
        memset(j->work, 0xff, j->work_bytes);
    if (!product_run(&j->product))
        emu_die("cublasLtMatmul", "no memory to compute it");
}

static void job_release(void *arg) {
    struct job *j = arg, **at = &jobs;
    while (*at != j)
        at = &(*at)->older;
    *at = j->older;
    free(j);
}

/* With emu_lock held. */
static void work_check(const char *call, const struct job *j) {
    for (const struct job *other = jobs; other != NULL; other = other->older)
        if (other->stream != j->stream && other->work < j->work + j->work_bytes &&
            j->work < other->work + other->work_bytes)
            emu_die(call, "the workspace is in use by an unfinished product on another stream");
}

static void job_check(const char *call, const struct job *j, const struct algorithm *algorithm,
                      const struct emu_range *ranges) {
    static const char *const names[] = {"A", "B", "C", "D"};
    const void *const pointers[] = {j->product.a, j->product.b, j->product.c, j->product.d};
    for (size_t i = 0; i < 4; i++) {
        if ((uintptr_t)pointers[i] % algorithm->alignment[i] != 0)
            emu_die(call, "%s is at %p, and the algorithm was chosen for an alignment of %u bytes",
                    names[i], pointers[i], algorithm->alignment[i]);
        emu_check_range(call, names[i], &ranges[i], EMU_DEVICE);
    }
    if (ranges_meet(&ranges[3], &ranges[0]) || ranges_meet(&ranges[3], &ranges[1]))
        emu_die(call, "D overlaps an operand");
    bool in_place = j->product.c == j->product.d && j->product.shape.ldc == j->product.shape.ldd;
    if (!in_place && ranges_meet(&ranges[3], &ranges[2]))
        emu_die(call, "D overlaps C, and is not the same matrix");
}

static void job_queue(const char *call, struct job *j, const struct emu_range *ranges) {
    struct emu_op op = {.name = call, .run = job_run, .release = job_release, .arg = j};
    op.ranges[op.range_count++] = ranges[0];
    op.ranges[op.range_count++] = ranges[1];
    if (j->product.beta != 0)
        op.ranges[op.range_count++] = ranges[2];
    op.ranges[op.range_count++] = ranges[3];
    if (j->work_bytes > 0)
        op.ranges[op.range_count++] = emu_writes(j->work, j->work_bytes);
    emu_lock();
    work_check(call, j);
    j->older = jobs;
    jobs = j;
    emu_queue(j->stream, &op);
    emu_unlock();
}

/* The algorithm for this problem, with the workspace that it needs. */
static cublasStatus_t algorithm_check(const char *call, const struct algorithm *algorithm,
                                      const struct product_shape *shape, const void *workspace,
                                      size_t workspace_bytes) {
    if (algorithm->magic != ALGORITHM_MAGIC)
        emu_die(call, "this is no algorithm that cublasLtMatmulAlgoGetHeuristic chose");
    if (algorithm->problem != shape_hash(shape))
        emu_die(call, "the algorithm was chosen for another problem than (%zu,%zu) by (%zu,%zu)",
                (size_t)shape->m, (size_t)shape->k, (size_t)shape->k, (size_t)shape->n);
    if (workspace_bytes < algorithm->workspace_bytes || (uintptr_t)workspace % WORK_ALIGNMENT != 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    struct emu_range given = emu_writes(workspace, workspace_bytes);
    if (workspace_bytes > 0)
        emu_check_range(call, "workspace", &given, EMU_DEVICE);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t computeDesc,
                              const void *alpha, const void *A, cublasLtMatrixLayout_t Adesc,
                              const void *B, cublasLtMatrixLayout_t Bdesc, const void *beta,
                              const void *C, cublasLtMatrixLayout_t Cdesc, void *D,
                              cublasLtMatrixLayout_t Ddesc, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspaceSizeInBytes, cudaStream_t stream) {
    if (emu_fail(__func__))
        return injected(CUBLAS_STATUS_EXECUTION_FAILED);
    const struct handle *handle = object_check(__func__, lightHandle, OBJECT_HANDLE);
    struct problem problem = {(void *)computeDesc, (void *)Adesc, (void *)Bdesc, (void *)Cdesc,
                              (void *)Ddesc};
    struct product product = {.a = A, .b = B, .c = C, .d = D};
    struct algorithm algorithm;
    problem_check(__func__, &problem);
    cublasStatus_t status = problem_shape(&problem, &product.shape);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    if (algo == NULL)
        emu_die(__func__, "not modelled without an algorithm");
    if (emu_check_stream(__func__, stream) != handle->device)
        emu_die(__func__, "the stream is of another device than the handle");
    memcpy(&algorithm, algo, sizeof algorithm);
    status = algorithm_check(__func__, &algorithm, &product.shape, workspace, workspaceSizeInBytes);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    memcpy(&product.alpha, alpha, sizeof product.alpha);
    memcpy(&product.beta, beta, sizeof product.beta);
    struct job *j = malloc(sizeof *j);
    if (j == NULL)
        emu_die(__func__, "no memory");
    *j = (struct job){product, workspace, algorithm.workspace_bytes, stream, NULL};
    const struct emu_range ranges[] = {range_of(problem.a, A, false), range_of(problem.b, B, false),
                                       range_of(problem.c, C, false), range_of(problem.d, D, true)};
    job_check(__func__, j, &algorithm, ranges);
    job_queue(__func__, j, ranges);
    return CUBLAS_STATUS_SUCCESS;
}
