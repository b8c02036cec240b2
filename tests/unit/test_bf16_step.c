/* test_bf16_step.c - training steps of GPT-2 on the CPU in bf16, beside the same in f32. */
#include "config.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model_harness.h"

enum { B = 3, T = 65, STEPS = 3, VOCAB = 257 };

/* Widths that are no multiple of 64, a vocabulary that is of nothing. */
static const char config[] =
    "{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_head\": 3, \"n_embd\": 72,"
    " \"n_positions\": 80, \"n_ctx\": 80, \"vocab_size\": 257,"
    " \"activation_function\": \"gelu_new\", \"layer_norm_epsilon\": 1e-5}";

/* What some steps gave; grads are those of the first. The caller closes. */
struct run {
    struct device *dev;
    struct harness h;
    double loss[STEPS], norm[STEPS];
    float *grads;
};

/* false: the device has no such dtype, and says why. */
static bool run_open(struct run *r, enum dtype dtype, uint32_t threads) {
    struct err err = {0};
    struct device_args args = {.threads = threads};
    int32_t tokens[B * T], targets[B * T];
    assert_int_equal(device_cpu.open(&args, &r->dev, &err), 0);
    if (device_cpu.supports(r->dev, dtype, &err) != 0) {
        print_message("skipped: %s\n", err.text);
        device_cpu.close(r->dev);
        return false;
    }
    harness_open(&r->h, &device_cpu, r->dev, dtype, config, B, T);
    harness_init(&r->h, 7);
    harness_tokens(tokens, targets, B, T, VOCAB);
    struct model_batch batch = {
        .tokens = tokens, .targets = targets, .B = B, .T = T, .loss_scale = 1.0f / (B * T)};
    for (size_t i = 0; i < STEPS; i++) {
        r->loss[i] = harness_train(&r->h, &batch, false);
        if (i == 0) {
            r->grads = malloc(r->h.elems * sizeof(float));
            assert_non_null(r->grads);
            memcpy(r->grads, r->h.grads, r->h.elems * sizeof(float));
        }
        r->norm[i] = harness_update(&r->h, 1e-3, 0.1, 1.0);
    }
    return true;
}

static void run_close(struct run *r) {
    free(r->grads);
    harness_close(&r->h);
    device_cpu.close(r->dev);
}

static void assert_near(const char *what, const float *got, const float *want, size_t elems,
                        double tolerance) {
    double off = 0, size = 0;
    for (size_t i = 0; i < elems; i++) {
        off += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        size += (double)want[i] * want[i];
    }
    if (!(sqrt(off) <= tolerance * sqrt(size)))
        fail_msg("%s: off by %.3g of its norm", what, sqrt(off / size));
}

static void steps_in_bf16_are_near_those_in_f32(void **state) {
    (void)state;
    struct run narrow, wide;
    if (!run_open(&narrow, DTYPE_BF16, 2))
        skip();
    assert_true(run_open(&wide, DTYPE_F32, 2));
    for (size_t i = 0; i < STEPS; i++) {
        assert_float_equal(narrow.loss[i], wide.loss[i], 1e-3 * wide.loss[i]);
        assert_float_equal(narrow.norm[i], wide.norm[i], 1e-2 * wide.norm[i]);
    }
    for (uint32_t i = 0; i < model_tensor_count(wide.h.model); i++) {
        size_t at = wide.h.offset[i], elems = wide.h.offset[i + 1] - at;
        assert_near(model_tensors(wide.h.model)[i].spec.name, narrow.grads + at, wide.grads + at,
                    elems, 2e-2);
    }
    run_close(&narrow);
    run_close(&wide);
}

static void steps_in_bf16_do_not_depend_on_the_threads(void **state) {
    (void)state;
    struct run first;
    if (!run_open(&first, DTYPE_BF16, 1))
        skip();
    for (uint32_t threads = 1; threads <= 4; threads++) { /* 1: again */
        struct run r;
        assert_true(run_open(&r, DTYPE_BF16, threads));
        assert_memory_equal(r.loss, first.loss, sizeof(r.loss));
        assert_memory_equal(r.norm, first.norm, sizeof(r.norm));
        assert_memory_equal(r.grads, first.grads, r.h.elems * sizeof(float));
        assert_memory_equal(r.h.params, first.h.params, r.h.elems * sizeof(float));
        run_close(&r);
    }
    run_close(&first);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_in_bf16_are_near_those_in_f32),
        cmocka_unit_test(steps_in_bf16_do_not_depend_on_the_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
