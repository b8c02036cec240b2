/* test_host.c - the host's side of the GPU, on the doubles: which device, what a failure says and
 * leaves behind, and the plans of products. What kernels and products compute is in kernel_cases.h.
 */
#include "config.h"

#include <errno.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "device/cuda/cuda.h"
#include "tests/cuda/double_cublaslt.h"
#include "tests/cuda/emu_control.h"

static const struct device_ops *const ops = &device_cuda;

struct rig {
    struct device *d;
    struct dev_stream *s; /* compute */
    struct dev_event *done;
    float *device, *host; /* ELEMS each */
};
enum { ELEMS = 4096 };

static struct device *open_rank(uint32_t local_rank) {
    struct err err = {0};
    struct device *d;
    const struct device_args args = {.threads = 1, .local_rank = local_rank, .local_size = 8};
    assert_int_equal(ops->open(&args, &d, &err), 0);
    return d;
}

static void rig_open(struct rig *r) {
    void *p;
    r->d = open_rank(0);
    assert_int_equal(ops->stream_open(r->d, DEV_STREAM_COMPUTE, &r->s), 0);
    assert_int_equal(ops->event_open(r->d, "done", &r->done), 0);
    assert_int_equal(ops->alloc(r->d, DEV_MEM_DEVICE, ELEMS * 4, "numbers", &p), 0);
    r->device = p;
    assert_int_equal(ops->alloc(r->d, DEV_MEM_HOST, ELEMS * 4, "numbers", &p), 0);
    r->host = p;
}

static int rig_wait(struct rig *r) {
    int rc = ops->event_record(r->d, r->s, r->done);
    return rc != 0 ? rc : ops->event_synchronize(r->d, r->done);
}

static void rig_close(struct rig *r) {
    assert_int_equal(rig_wait(r), 0);
    ops->free(r->d, DEV_MEM_DEVICE, r->device, ELEMS * 4);
    ops->free(r->d, DEV_MEM_HOST, r->host, ELEMS * 4);
    ops->event_close(r->d, r->done);
    ops->stream_close(r->d, r->s);
    ops->close(r->d);
    assert_int_equal(emu_leaks(true), 0);
    assert_int_equal(double_cublaslt_open_count(), 0);
}

static void assert_why(struct device *d, const char *word) {
    char why[ERR_TEXT_BYTES];
    ops->why(d, why, sizeof(why));
    if (strstr(why, word) == NULL)
        fail_msg("no '%s' in: %s", word, why);
    assert_null(strchr(why, '\n'));
}

static int gemm(struct rig *r, enum dtype t, enum dtype c_dtype, size_t m, size_t n, size_t k) {
    return ops->gemm(r->d, r->s, t, c_dtype, false, false, m, n, k, 1, r->device, k,
                     r->device + 1024, n, 0, r->device + 2048, n);
}

/* ---- which device ---- */

static void ranks_take_gpus_in_turn(void **state) {
    (void)state;
    struct emu_settings old = emu_get_settings(), three = old;
    three.devices = 3;
    emu_set_settings(&three);
    char ids[6][40];
    for (uint32_t i = 0; i < 6; i++) {
        struct device_properties p;
        struct device *d = open_rank(i);
        assert_int_equal(ops->properties(d, &p), 0);
        memcpy(ids[i], p.id, sizeof(ids[i]));
        ops->close(d);
    }
    for (size_t i = 0; i < 3; i++) {
        assert_string_equal(ids[i], ids[i + 3]);
        assert_string_not_equal(ids[i], ids[(i + 1) % 3]);
        assert_int_equal(strlen(ids[i]), 36);
    }
    emu_set_settings(&old);
}

static uint64_t free_bytes(struct device *d) {
    struct device_properties p;
    assert_int_equal(ops->properties(d, &p), 0);
    return p.memory_free_bytes;
}

static void calls_go_to_the_device_that_they_name(void **state) {
    (void)state;
    struct emu_settings old = emu_get_settings(), two = old;
    two.devices = 2;
    emu_set_settings(&two);
    struct device *d[2] = {open_rank(0), open_rank(1)};
    uint64_t before[2] = {free_bytes(d[0]), free_bytes(d[1])};
    void *p[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(ops->alloc(d[i], DEV_MEM_DEVICE, (size_t)(i + 1) << 20, "one", &p[i]), 0);
    assert_int_equal(before[0] - free_bytes(d[0]), 1 << 20);
    assert_int_equal(before[1] - free_bytes(d[1]), 2 << 20);
    for (int i = 0; i < 2; i++) {
        ops->free(d[i], DEV_MEM_DEVICE, p[i], (size_t)(i + 1) << 20);
        assert_int_equal(free_bytes(d[i]), before[i]);
    }
    for (int i = 0; i < 2; i++)
        ops->close(d[i]);
    emu_set_settings(&old);
}

static void assert_near(double a, double published) {
    if (fabs(a - published) > 0.02 * published)
        fail_msg("%g, and %g is published", a, published);
}

/* TFLOP/s as published for each; the greatest clock is what such a card reports. */
static void peaks_are_those_of_the_data_sheets(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int arch, sm_count, clock_khz;
        double f32, tf32, bf16;
    } cards[] = {
        {"NVIDIA A100-SXM4-80GB", 80, 108, 1410000, 19.5, 156, 312},
        {"NVIDIA A40", 86, 84, 1740000, 37.4, 74.8, 149.7},
        {"NVIDIA GeForce RTX 3090", 86, 82, 1695000, 35.6, 35.6, 71},
        {"NVIDIA L40S", 89, 142, 2520000, 91.6, 183, 362},
        {"NVIDIA H200", 90, 132, 1980000, 67, 494.7, 989.4},
        {"NVIDIA B200", 100, 148, 1965000, 75, 1125, 2250},
    };
    for (size_t i = 0; i < sizeof(cards) / sizeof(cards[0]); i++) {
        double plain[DTYPE_COUNT] = {0}, tensor[DTYPE_COUNT] = {0};
        cuda_peaks(cards[i].name, cards[i].arch, cards[i].sm_count, cards[i].clock_khz, false,
                   plain);
        cuda_peaks(cards[i].name, cards[i].arch, cards[i].sm_count, cards[i].clock_khz, true,
                   tensor);
        assert_near(plain[DTYPE_F32], cards[i].f32 * 1e12);
        assert_near(tensor[DTYPE_F32], cards[i].tf32 * 1e12);
        assert_near(plain[DTYPE_BF16], cards[i].bf16 * 1e12);
    }
}

/* ---- what a failure says ---- */

static void codes_become_errno_in_one_table(void **state) {
    (void)state;
    assert_int_equal(cuda_errno(cudaSuccess), 0);
    assert_int_equal(cuda_errno(cudaErrorMemoryAllocation), ENOMEM);
    assert_int_equal(cuda_errno(cudaErrorDevicesUnavailable), EBUSY);
    assert_int_equal(cuda_errno(cudaErrorInsufficientDriver), ENODEV);
    assert_int_equal(cuda_errno(cudaErrorIllegalAddress), EFAULT);
    assert_int_equal(cuda_errno(cudaErrorECCUncorrectable), EIO);
    assert_int_equal(cuda_blas_errno(CUBLAS_STATUS_SUCCESS), 0);
    assert_int_equal(cuda_blas_errno(CUBLAS_STATUS_ALLOC_FAILED), ENOMEM);
    assert_int_equal(cuda_blas_errno((cublasStatus_t)77), EIO);
}

static void too_much_memory_is_refused_by_name(void **state) {
    (void)state;
    struct rig r;
    rig_open(&r);
    void *p = &r;
    size_t most = emu_get_settings().memory_bytes;
    assert_int_equal(ops->alloc(r.d, DEV_MEM_DEVICE, most, "activations", &p), -ENOMEM);
    assert_ptr_equal(p, &r);
    assert_why(r.d, "cudaMalloc");
    assert_why(r.d, "activations");
    assert_why(r.d, "out of memory");
    assert_int_equal(ops->fill(r.d, r.s, r.device, DTYPE_F32, ELEMS, 1), 0);
    rig_close(&r);
}

static void an_error_of_execution_surfaces_at_the_wait(void **state) {
    (void)state;
    struct rig r;
    rig_open(&r);
    assert_int_equal(ops->fill(r.d, r.s, r.device, DTYPE_F32, ELEMS, 1), 0);
    assert_int_equal(ops->event_record(r.d, r.s, r.done), 0);
    emu_fail_at(1, "cudaErrorIllegalAddress");
    assert_int_equal(ops->event_synchronize(r.d, r.done), -EFAULT);
    assert_why(r.d, "cudaEventSynchronize of done");
    assert_why(r.d, "cudaErrorIllegalAddress");
    assert_int_not_equal(ops->fill(r.d, r.s, r.device, DTYPE_F32, ELEMS, 1), 0);
    emu_fail_at(0, NULL);
    rig_close(&r);
}

/* Everything once. 0, or the first failure; text: what it said. */
static int whole_life(char *text, size_t cap_bytes) {
    struct err err = {0};
    struct device *d;
    struct dev_stream *s[DEV_STREAM_COUNT] = {NULL};
    struct dev_event *e = NULL;
    struct device_properties properties;
    void *device = NULL, *host = NULL;
    const struct device_args args = {.threads = 1, .local_size = 1};
    text[0] = '\0';
    int rc = ops->open(&args, &d, &err);
    if (rc != 0) {
        snprintf(text, cap_bytes, "%s", err.text);
        return rc;
    }
    rc = ops->properties(d, &properties);
    for (int i = 0; rc == 0 && i < DEV_STREAM_COUNT; i++)
        rc = ops->stream_open(d, (enum dev_stream_kind)i, &s[i]);
    if (rc == 0)
        rc = ops->event_open(d, "life", &e);
    if (rc == 0)
        rc = ops->alloc(d, DEV_MEM_DEVICE, 4096, "device memory", &device);
    if (rc == 0)
        rc = ops->alloc(d, DEV_MEM_HOST, 4096, "host memory", &host);
    if (rc == 0)
        rc = ops->fill(d, s[DEV_STREAM_COMPUTE], device, DTYPE_F32, 1024, 2);
    if (rc == 0)
        rc = ops->gemm(d, s[DEV_STREAM_COMPUTE], DTYPE_F32, DTYPE_F32, false, true, 8, 8, 8, 1,
                       device, 8, (float *)device + 64, 8, 0, (float *)device + 128, 8);
    if (rc == 0)
        rc = ops->sum(d, s[DEV_STREAM_COMPUTE], host, device, 64);
    if (rc == 0)
        rc = ops->event_record(d, s[DEV_STREAM_COMPUTE], e);
    if (rc == 0)
        rc = ops->stream_wait(d, s[DEV_STREAM_TAKE], e);
    if (rc == 0)
        rc = ops->copy(d, s[DEV_STREAM_TAKE], (char *)host + 8, device, 1024);
    if (rc == 0)
        rc = ops->event_record(d, s[DEV_STREAM_TAKE], e);
    if (rc == 0)
        rc = ops->event_synchronize(d, e);
    if (rc != 0)
        ops->why(d, text, cap_bytes);
    for (int i = 0; i < DEV_STREAM_COUNT; i++)
        ops->stream_close(d, s[i]);
    ops->free(d, DEV_MEM_DEVICE, device, 4096);
    ops->free(d, DEV_MEM_HOST, host, 4096);
    ops->event_close(d, e);
    ops->close(d);
    return rc;
}

/* A launch is named by its operation; what a library calls in turn, by the library's call. */
static bool names(const char *text, const char *call) {
    if (strcmp(call, "cudaGetDevice") == 0)
        return strstr(text, "cublasLt") != NULL;
    if (strcmp(call, "cudaLaunchKernel") == 0)
        return strstr(text, "fill of 1024") != NULL || strstr(text, "sum of 64") != NULL;
    return strstr(text, call) != NULL;
}

static void every_call_that_fails_is_named_and_leaves_nothing(void **state) {
    (void)state;
    char text[ERR_TEXT_BYTES];
    assert_int_equal(whole_life(text, sizeof(text)), 0); /* only the first chooses the device */
    emu_fail_at(0, NULL);
    assert_int_equal(whole_life(text, sizeof(text)), 0);
    uint64_t calls = emu_call_count();
    assert_true(calls > 40);
    size_t said = 0;
    for (uint64_t n = 1; n <= calls; n++) {
        emu_fail_at(n, NULL);
        int rc = whole_life(text, sizeof(text));
        const char *call = emu_failed_call();
        if (rc == 0) { /* what fails as all is taken down goes unseen, and nothing else */
            assert_true(strstr(call, "Destroy") != NULL || strstr(call, "cudaFree") != NULL ||
                        strcmp(call, "cudaStreamSynchronize") == 0);
        } else {
            said++;
            if (!names(text, call))
                fail_msg("call %d, %s, said: %s", (int)n, call, text);
        }
        emu_fail_at(0, NULL);
        assert_int_equal(emu_leaks(true), 0);
        assert_int_equal(double_cublaslt_open_count(), 0);
    }
    assert_true(said > calls / 2);
}

/* ---- products ---- */

static void a_shape_is_planned_once(void **state) {
    (void)state;
    struct rig r;
    rig_open(&r);
    assert_int_equal(ops->fill(r.d, r.s, r.device, DTYPE_F32, ELEMS, 1), 0);
    assert_int_equal(gemm(&r, DTYPE_F32, DTYPE_F32, 4, 5, 6), 0);
    size_t open = double_cublaslt_open_count();
    emu_fail_at(0, NULL);
    assert_int_equal(gemm(&r, DTYPE_F32, DTYPE_F32, 4, 5, 6), 0);
    assert_int_equal(emu_call_count(), 1); /* cublasLtMatmul, and nothing else */
    assert_int_equal(double_cublaslt_open_count(), open);
    assert_int_equal(gemm(&r, DTYPE_F32, DTYPE_F32, 4, 6, 6), 0);
    assert_int_equal(double_cublaslt_open_count(), open + 4);
    rig_close(&r);
}

static void plans_are_dropped_beyond_a_bound(void **state) {
    (void)state;
    struct rig r;
    rig_open(&r);
    assert_int_equal(ops->fill(r.d, r.s, r.device, DTYPE_F32, ELEMS, 1), 0);
    size_t none = double_cublaslt_open_count(), most = 0;
    for (size_t m = 1; m <= 20; m++)
        for (size_t n = 1; n <= 30; n++) {
            assert_int_equal(gemm(&r, DTYPE_F32, DTYPE_F32, m, n, 3), 0);
            size_t open = double_cublaslt_open_count() - none;
            most = open > most ? open : most;
        }
    assert_true(most >= 4 * 64 && most <= 4 * 256);
    assert_int_equal(ops->copy(r.d, r.s, r.host, r.device + 2048, 20 * 30 * 4), 0);
    assert_int_equal(rig_wait(&r), 0);
    for (size_t i = 0; i < 20 * 30; i++)
        assert_true(r.host[i] == 3.0f);
    rig_close(&r);
}

/* c (2,3) within rows of 4: what lies between stays */
static void scale_case(struct rig *r, enum dtype t, float beta, float c, float expected) {
    float now;
    assert_int_equal(ops->fill(r->d, r->s, r->device, t, 8, c), 0);
    assert_int_equal(ops->gemm(r->d, r->s, t, t, false, false, 2, 3, 0, 1, r->device + 1024, 1,
                               r->device + 1024, 3, beta, r->device, 4),
                     0);
    assert_int_equal(ops->copy(r->d, r->s, r->host, r->device, 8 * dtype_bytes(t)), 0);
    assert_int_equal(rig_wait(r), 0);
    for (size_t i = 0; i < 8; i++) {
        now = t == DTYPE_BF16 ? bf16_to_f32(((uint16_t *)r->host)[i]) : r->host[i];
        if (i % 4 == 3)
            assert_true(now == c || (isnan(now) && isnan(c)));
        else
            assert_true(now == expected || (isnan(now) && isnan(expected)));
    }
}

static void a_product_of_no_terms_scales_c(void **state) {
    (void)state;
    struct rig r;
    rig_open(&r);
    for (int t = 0; t < DTYPE_COUNT; t++) {
        scale_case(&r, (enum dtype)t, 0, NAN, 0);
        scale_case(&r, (enum dtype)t, 0.5f, 3, 1.5f);
        scale_case(&r, (enum dtype)t, 1, 3, 3);
        scale_case(&r, (enum dtype)t, 2, NAN, NAN);
    }
    emu_fail_at(0, NULL);
    assert_int_equal(gemm(&r, DTYPE_F32, DTYPE_F32, 0, 5, 6), 0);
    assert_int_equal(gemm(&r, DTYPE_F32, DTYPE_F32, 5, 0, 6), 0);
    assert_int_equal(emu_call_count(), 0);
    rig_close(&r);
}

static void products_that_cannot_be_are_refused(void **state) {
    (void)state;
    struct rig r;
    rig_open(&r);
    struct dev_stream *take, *compute = r.s;
    assert_int_equal(ops->stream_open(r.d, DEV_STREAM_TAKE, &take), 0);
    assert_int_equal(gemm(&r, DTYPE_F32, DTYPE_BF16, 4, 4, 4), -EINVAL);
    assert_why(r.d, "from f32 to bf16");
    assert_int_equal(gemm(&r, DTYPE_F32, DTYPE_F32, (size_t)INT_MAX + 1, 4, 4), -EOVERFLOW);
    r.s = take;
    assert_int_equal(gemm(&r, DTYPE_F32, DTYPE_F32, 4, 4, 4), -EINVAL);
    assert_why(r.d, "compute stream");
    assert_int_equal(ops->sum(r.d, take, (double *)r.host, r.device, 4), -EINVAL);
    assert_why(r.d, "take stream");
    r.s = compute;
    ops->stream_close(r.d, take);
    rig_close(&r);
}

/* TF32 rounds its inputs to 10 bits: 1 + 2^-12 becomes 1. */
static void tf32_is_used_only_where_asked_for(void **state) {
    (void)state;
    for (int tensor_cores = 0; tensor_cores < 2; tensor_cores++) {
        struct rig r;
        rig_open(&r);
        r.d->tensor_cores = tensor_cores != 0;
        assert_int_equal(ops->fill(r.d, r.s, r.device, DTYPE_F32, 1024, 1 + 0x1p-12f), 0);
        assert_int_equal(ops->fill(r.d, r.s, r.device + 1024, DTYPE_F32, 1024, 1), 0);
        assert_int_equal(gemm(&r, DTYPE_F32, DTYPE_F32, 2, 2, 4), 0);
        assert_int_equal(ops->copy(r.d, r.s, r.host, r.device + 2048, 16), 0);
        assert_int_equal(rig_wait(&r), 0);
        assert_true(r.host[0] == (tensor_cores ? 4.0f : 4 + 0x1p-10f));
        rig_close(&r);
    }
}

/* An argument is a pattern of names: those tests alone. */
int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_take_gpus_in_turn),
        cmocka_unit_test(calls_go_to_the_device_that_they_name),
        cmocka_unit_test(peaks_are_those_of_the_data_sheets),
        cmocka_unit_test(codes_become_errno_in_one_table),
        cmocka_unit_test(too_much_memory_is_refused_by_name),
        cmocka_unit_test(every_call_that_fails_is_named_and_leaves_nothing),
        cmocka_unit_test(a_shape_is_planned_once),
        cmocka_unit_test(plans_are_dropped_beyond_a_bound),
        cmocka_unit_test(a_product_of_no_terms_scales_c),
        cmocka_unit_test(products_that_cannot_be_are_refused),
        cmocka_unit_test(tf32_is_used_only_where_asked_for),
        /* last: such an error stays with the thread */
        cmocka_unit_test(an_error_of_execution_surfaces_at_the_wait),
    };
    cmocka_set_test_filter(argc > 1 ? argv[1] : NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
