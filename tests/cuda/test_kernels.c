/* test_kernels.c - every operation of the emulated GPU against the CPU, with the threads of a block
 * in different orders. */
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "device/cuda/cuda.h"
#include "tests/cuda/emu_control.h"
#include "tests/cuda/kernel_cases.h"

static void print_failed(void *arg, const struct kernel_report *r) {
    (void)arg;
    if (!r->ok)
        print_error("%s, %s: %s\n", r->name, r->shape, r->what);
}

/* What begins with `only`, at least `least` cases. */
static void check(enum emu_thread_order threads, const char *only, bool tensor_cores,
                  size_t least) {
    struct device_args args = {.threads = 1, .local_size = 1, .tensor_cores = tensor_cores};
    struct kernel_cases k = {
        .reference_ops = &device_cpu, .ops = &device_cuda, .only = only, .report = print_failed};
    struct emu_settings settings = emu_get_settings();
    struct err err = {0};
    size_t run = 0, failed = 0;
    settings.threads = threads;
    emu_set_settings(&settings);
    assert_int_equal(device_cpu.open(&args, &k.reference, &err), 0);
    assert_int_equal(device_cuda.open(&args, &k.device, &err), 0);
    assert_int_equal(kernel_cases_run(&k, &run, &failed), 0);
    device_cuda.close(k.device);
    device_cpu.close(k.reference);
    assert_int_equal(failed, 0);
    assert_true(run >= least);
    assert_int_equal(emu_leaks(true), 0);
}

static void kernels_agree_with_the_reference(void **state) {
    (void)state;
    check(EMU_ASC, "", false, 800);
}

/* What a missing barrier lets through in one order it seldom does in the other. These have some. */
static void the_last_thread_may_run_first(void **state) {
    (void)state;
    static const char *const names[] = {"embed_backward", "layernorm_", "residual_",
                                        "bias_backward",  "sum",        "attention_",
                                        "softmax_"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        check(EMU_DESC, names[i], false, 20);
}

static void attention_by_tensor_cores_agrees_with_the_reference(void **state) {
    (void)state;
    check(EMU_DESC, "attention", true, 60);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_agree_with_the_reference),
        cmocka_unit_test(the_last_thread_may_run_first),
        cmocka_unit_test(attention_by_tensor_cores_agrees_with_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
