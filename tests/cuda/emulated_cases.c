/* emulated_cases.c - the kernel cases on the emulated GPU. */
#include "config.h"

#include "tests/cuda/emulated_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/cuda/cuda.h"
#include "tests/cuda/kernel_cases.h"

static void print_failed(void *arg, const struct kernel_report *r) {
    (void)arg;
    if (!r->ok)
        print_error("%s, %s: %s\n", r->name, r->shape, r->what);
}

void emulated_cases_check(enum emu_thread_order threads, const char *only, bool tensor_cores,
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
