/* test_kernel_cases.c - the kernel cases themselves: the CPU agrees with itself, and a device with
 * a fault of each kind does not pass. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/cuda/kernel_cases.h"

struct outcome {
    size_t run, failed;
    char first_what[256];
    bool said_skipped;
};

static void note(void *arg, const struct kernel_report *r) {
    struct outcome *o = arg;
    o->said_skipped |= r->skipped != NULL;
    assert_int_equal(r->ok, r->what[0] == '\0');
    if (!r->ok && o->first_what[0] == '\0') {
        size_t n = strlen(r->what);
        n = n < sizeof o->first_what ? n : sizeof o->first_what - 1;
        memcpy(o->first_what, r->what, n);
    }
}

static struct outcome outcome_of(const struct device_ops *tested, const char *only) {
    struct outcome o = {.run = 0};
    struct device_args args = {.threads = 1};
    struct kernel_cases k = {
        .reference_ops = &device_cpu, .ops = tested, .only = only, .report = note, .arg = &o};
    struct err err = {0};
    assert_int_equal(device_cpu.open(&args, &k.reference, &err), 0);
    assert_int_equal(device_cpu.open(&args, &k.device, &err), 0);
    assert_int_equal(kernel_cases_run(&k, &o.run, &o.failed), 0);
    device_cpu.close(k.device);
    device_cpu.close(k.reference);
    return o;
}

static void the_reference_agrees_with_itself(void **state) {
    (void)state;
    struct outcome o = outcome_of(&device_cpu, "");
    if (o.failed > 0)
        fail_msg("%zu of %zu failed, the first: %s", o.failed, o.run, o.first_what);
    assert_true(o.run > 500);
    assert_false(o.said_skipped);
}

static void assert_noticed(const struct device_ops *faulty, const char *only, const char *what) {
    struct outcome o = outcome_of(faulty, only);
    assert_true(o.run > 0);
    if (o.failed == 0)
        fail_msg("a fault of %s was not noticed in %zu cases", only, o.run);
    if (strstr(o.first_what, what) == NULL)
        fail_msg("%s: \"%s\", where \"%s\" was to be said", only, o.first_what, what);
}

/* ---- faults: each does what the CPU does, and one thing more ---- */

static void element_add(void *p, enum dtype t, size_t i, float value) {
    float *f = p;
    uint16_t *h = p;
    if (t == DTYPE_BF16)
        h[i] = bf16_from_f32(bf16_to_f32(h[i]) + value);
    else
        f[i] += value;
}

static int wrong_sum(struct device *d, struct dev_stream *s, enum dtype t, enum dtype g,
                     void *dbias, const void *dout, size_t N, size_t C) {
    int rc = device_cpu.bias_backward(d, s, t, g, dbias, dout, N, C);
    element_add(dbias, g, C - 1, 1);
    return rc;
}

static int writes_behind(struct device *d, struct dev_stream *s, void *dst, enum dtype t,
                         size_t elems, float value) {
    return device_cpu.fill(d, s, dst, t, elems + 1, value);
}

static int writes_before(struct device *d, struct dev_stream *s, void *dst, enum dtype t,
                         size_t elems, float value) {
    return device_cpu.fill(d, s, (char *)dst - dtype_bytes(t), t, elems + 1, value);
}

static int writes_input(struct device *d, struct dev_stream *s, float *dst, const void *src,
                        enum dtype src_dtype, size_t elems) {
    int rc = device_cpu.add(d, s, dst, src, src_dtype, elems);
    if (elems > 0)
        element_add((void *)(uintptr_t)src, src_dtype, elems / 2, 1);
    return rc;
}

static int leaves_an_element(struct device *d, struct dev_stream *s, void *dst, enum dtype t,
                             size_t elems, float value) {
    return device_cpu.fill(d, s, dst, t, elems - (elems > 0), value);
}

static int never_twice_the_same(struct device *d, struct dev_stream *s, float *dst, size_t elems,
                                uint64_t seed, uint64_t sequence, uint64_t first, float mean,
                                float std) {
    static unsigned calls;
    int rc = device_cpu.init_normal(d, s, dst, elems, seed, sequence, first, mean, std);
    for (size_t i = 0; i < elems; i++)
        dst[i] *= 1 + 2e-7f * (float)(calls % 2);
    calls++;
    return rc;
}

static int truncates(struct device *d, struct dev_stream *s, void *dst, enum dtype dst_dtype,
                     const void *src, enum dtype src_dtype, size_t elems) {
    if (dst_dtype != DTYPE_BF16 || src_dtype != DTYPE_F32)
        return device_cpu.cast(d, s, dst, dst_dtype, src, src_dtype, elems);
    for (size_t i = 0; i < elems; i++)
        memcpy((uint16_t *)dst + i, (const char *)src + i * 4 + 2, 2);
    return 0;
}

static int fails(struct device *d, struct dev_stream *s, void *dst, const void *src, size_t bytes) {
    static unsigned calls;
    return ++calls % 50 == 0 ? -EIO : device_cpu.copy(d, s, dst, src, bytes);
}

static int swallows_nan(struct device *d, struct dev_stream *s, double *out, const float *in,
                        size_t elems) {
    int rc = device_cpu.sum_squares(d, s, out, in, elems);
    if (isnan(*out))
        *out = 1;
    return rc;
}

/* The first row's end is taken for the bias of the last column. */
static int reads_behind(struct device *d, struct dev_stream *s, enum dtype t, void *inout,
                        const void *bias, size_t N, size_t C) {
    int rc = device_cpu.bias_forward(d, s, t, inout, bias, N, C);
    if (t == DTYPE_F32 && N * C > 0)
        ((float *)inout)[N * C - 1] += ((const float *)bias)[C] * 0;
    return rc;
}

static int writes_behind_scratch(struct device *d, struct dev_stream *s, enum dtype t, void *out,
                                 float *lse, const void *qkv, void *scratch, size_t B, size_t T,
                                 size_t C, size_t NH) {
    size_t bytes = device_cpu.attention_scratch_bytes(d, t, B, T, C, NH);
    memset((char *)scratch + bytes, 0, 1);
    return device_cpu.attention_forward(d, s, t, out, lse, qkv, scratch, B, T, C, NH);
}

/* One element in a large tensor, far too small to show in its norm in bf16. */
static int one_element_off(struct device *d, struct dev_stream *s, enum dtype t, void *inout,
                           const void *pre, size_t N, size_t C) {
    int rc = device_cpu.gelu_backward(d, s, t, inout, pre, N, C);
    if (t == DTYPE_BF16 && N * C > 40000)
        element_add(inout, t, N * C / 2, 0.5f);
    return rc;
}

/* What is not a product the CPU does in bf16 too, whatever the processor. */
static int supports_all(struct device *d, enum dtype t, struct err *err) {
    (void)d, (void)t, (void)err;
    return 0;
}

static void wrong_values_are_noticed(void **state) {
    (void)state;
    struct device_ops faulty = device_cpu;
    faulty.bias_backward = wrong_sum;
    assert_noticed(&faulty, "bias_backward", "dbias[0 of 1] is ");
    faulty.cast = truncates;
    faulty.supports = supports_all;
    assert_noticed(&faulty, "cast", "dst[");
    faulty.sum_squares = swallows_nan;
    assert_noticed(&faulty, "sum_squares", "out[0 of 1] is 1, of the reference ");
    faulty.gelu_backward = one_element_off;
    assert_noticed(&faulty, "gelu_backward", "inout[");
}

static void writes_beyond_the_outputs_are_noticed(void **state) {
    (void)state;
    struct device_ops faulty = device_cpu;
    faulty.fill = writes_behind;
    assert_noticed(&faulty, "fill", "memory behind dst was written");
    faulty.fill = writes_before;
    assert_noticed(&faulty, "fill", "memory before dst was written");
    faulty.add = writes_input;
    assert_noticed(&faulty, "add", "input src was written");
    faulty.attention_forward = writes_behind_scratch;
    assert_noticed(&faulty, "attention_forward", "memory behind scratch was written");
}

static void what_was_not_written_or_not_given_is_noticed(void **state) {
    (void)state;
    struct device_ops faulty = device_cpu;
    faulty.fill = leaves_an_element;
    assert_noticed(&faulty, "fill", "dst[0 of 1] is ");
    faulty.bias_forward = reads_behind;
    assert_noticed(&faulty, "bias_forward", "inout[0 of 1] is ");
}

static void other_bits_in_a_second_run_are_noticed(void **state) {
    (void)state;
    struct device_ops faulty = device_cpu;
    faulty.init_normal = never_twice_the_same;
    assert_noticed(&faulty, "init_normal", "a second run has other bits in dst[0 of 1]");
}

static void a_failed_call_is_a_failed_case(void **state) {
    (void)state;
    struct device_ops faulty = device_cpu;
    faulty.copy = fails;
    assert_noticed(&faulty, "fill", "of cpu failed: -5");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference_agrees_with_itself),
        cmocka_unit_test(wrong_values_are_noticed),
        cmocka_unit_test(writes_beyond_the_outputs_are_noticed),
        cmocka_unit_test(what_was_not_written_or_not_given_is_noticed),
        cmocka_unit_test(other_bits_in_a_second_run_are_noticed),
        cmocka_unit_test(a_failed_call_is_a_failed_case),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
