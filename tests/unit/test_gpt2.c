/* test_gpt2.c - GPT-2 on the CPU device against a double-precision reference. */
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

#include "device/cpu/cpu.h"
#include "gpt2_ref_double.h"
#include "model_harness.h"

static const char config_format[] =
    "{\"model_type\": \"gpt2\", \"n_layer\": %zu, \"n_head\": %zu, \"n_embd\": %zu, "
    "\"n_positions\": %zu, \"vocab_size\": %zu}";

struct doubles {
    double **tensor;
    uint32_t count;
};

static struct doubles doubles_of(const struct harness *h, const float *from) {
    struct doubles d = {.count = model_tensor_count(h->model)};
    d.tensor = calloc(d.count, sizeof(*d.tensor));
    assert_non_null(d.tensor);
    for (uint32_t i = 0; i < d.count; i++) {
        size_t elems = h->offset[i + 1] - h->offset[i];
        d.tensor[i] = calloc(elems, sizeof(double));
        assert_non_null(d.tensor[i]);
        for (size_t j = 0; j < elems; j++)
            d.tensor[i][j] = from[h->offset[i] + j];
    }
    return d;
}

static void doubles_free(struct doubles *d) {
    for (uint32_t i = 0; i < d->count; i++)
        free(d->tensor[i]);
    free(d->tensor);
}

/* Every gradient within 2e-5 of the largest of its tensor. */
static void compare_grads(const struct harness *h, const struct doubles *expected, double factor) {
    for (uint32_t i = 0; i < expected->count; i++) {
        size_t elems = h->offset[i + 1] - h->offset[i];
        double largest = 1e-12;
        for (size_t j = 0; j < elems; j++)
            largest = fmax(largest, factor * fabs(expected->tensor[i][j]));
        for (size_t j = 0; j < elems; j++) {
            double got = h->grads[h->offset[i] + j], want = factor * expected->tensor[i][j];
            if (!(fabs(got - want) <= 2e-5 * largest))
                fail_msg("gradient of %s [%zu]: %g, expected %g (largest %g)",
                         model_tensors(h->model)[i].spec.name, j, got, want, largest);
        }
    }
}

struct shape {
    size_t layers, heads, width, context, vocab, B, T;
};

static const struct shape shapes[] = {
    {2, 3, 15, 9, 31, 2, 7},     /* nothing is a whole vector */
    {1, 1, 4, 1, 3, 1, 1},       /* the smallest */
    {1, 2, 64, 70, 257, 1, 65},  /* a block of attention and one row */
    {2, 4, 24, 200, 257, 4, 150} /* several blocks; logits in two pieces */
};

/* Biases and norms start at 0 and 1: other values show more. */
static void perturb(struct harness *h) {
    uint32_t x = 1;
    for (size_t i = 0; i < h->elems; i++) {
        x = x * 1664525u + 1013904223u;
        h->params[i] = h->params[i] * 3 + ((float)(x >> 8) / 16777216.0f - 0.5f) * 0.2f;
    }
}

static void check_shape(const struct shape *s, const struct cpu_kernels *k, uint32_t threads) {
    char config[512];
    snprintf(config, sizeof(config), config_format, s->layers, s->heads, s->width, s->context,
             s->vocab);
    struct device *dev;
    struct harness h;
    assert_int_equal(cpu_open_with(k, threads, &dev), 0);
    harness_open(&h, &device_cpu, dev, DTYPE_F32, config, s->B, s->T);
    harness_init(&h, 7);
    perturb(&h);

    size_t N = s->B * s->T;
    int32_t *tokens = calloc(N, sizeof(*tokens)), *targets = calloc(N, sizeof(*targets));
    assert_non_null(tokens);
    assert_non_null(targets);
    harness_tokens(tokens, targets, s->B, s->T, s->vocab);
    struct model_batch batch = {
        .tokens = tokens, .targets = targets, .B = s->B, .T = s->T, .loss_scale = 1.0f / (float)N};
    struct ref_shape ref = {s->layers,  s->heads, s->width,     4 * s->width,
                            s->context, s->vocab, (double)1e-5f};
    struct doubles params = doubles_of(&h, h.params), grads = doubles_of(&h, h.grads);
    double want =
        ref_gpt2(&ref, params.tensor, grads.tensor, tokens, targets, s->B, s->T, 1.0 / (double)N);

    assert_float_equal(harness_loss(&h, &batch), want, 2e-6 * want);
    assert_float_equal(harness_train(&h, &batch, false), want, 2e-6 * want);
    compare_grads(&h, &grads, 1);
    assert_float_equal(harness_train(&h, &batch, true), want, 2e-6 * want);
    compare_grads(&h, &grads, 2);

    doubles_free(&params);
    doubles_free(&grads);
    free(tokens);
    free(targets);
    harness_close(&h);
    device_cpu.close(dev);
}

static void gpt2_agrees_with_the_double_reference(void **state) {
    (void)state;
    for (size_t k = 0; cpu_kernels_all[k] != NULL; k++)
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]) && cpu_kernels_all[k]->usable();
             i++) {
            check_shape(&shapes[i], cpu_kernels_all[k], 1);
            check_shape(&shapes[i], cpu_kernels_all[k], 3);
        }
}

static void gpt2_of_no_sequences_has_zero_gradients(void **state) {
    (void)state;
    struct device *dev;
    struct harness h;
    char config[512];
    snprintf(config, sizeof(config), config_format, (size_t)1, (size_t)2, (size_t)8, (size_t)8,
             (size_t)11);
    assert_int_equal(device_cpu.open(&(struct device_args){.threads = 1}, &dev, NULL), 0);
    harness_open(&h, &device_cpu, dev, DTYPE_F32, config, 2, 8);
    harness_init(&h, 1);
    struct model_batch none = {.B = 0, .T = 8, .loss_scale = 1};
    assert_true(harness_train(&h, &none, false) == 0);
    for (size_t i = 0; i < h.elems; i++)
        assert_true(h.grads[i] == 0);
    harness_close(&h);
    device_cpu.close(dev);
}

static void gpt2_repeats_bit_for_bit(void **state) {
    (void)state;
    struct device *dev;
    struct harness h;
    char *config;
    int32_t tokens[2 * 100], targets[2 * 100];
    assert_int_equal(model_config_text("gpt2:tiny", &config, NULL), 0);
    assert_int_equal(device_cpu.open(&(struct device_args){.threads = 2}, &dev, NULL), 0);
    harness_open(&h, &device_cpu, dev, DTYPE_F32, config, 2, 100);
    harness_tokens(tokens, targets, 2, 100, 257);
    struct model_batch batch = {
        .tokens = tokens, .targets = targets, .B = 2, .T = 100, .loss_scale = 1.0f / 200};
    float *first = calloc(h.elems, sizeof(float));
    assert_non_null(first);
    for (int round = 0; round < 2; round++) {
        harness_init(&h, 3);
        for (int step = 0; step < 3; step++) {
            harness_train(&h, &batch, false);
            harness_update(&h, 1e-3, 0.1, 1.0);
        }
        if (round == 0)
            memcpy(first, h.params, h.elems * sizeof(float));
    }
    assert_memory_equal(first, h.params, h.elems * sizeof(float));
    free(first);
    free(config);
    harness_close(&h);
    device_cpu.close(dev);
}

static void gpt2_learns_a_sequence(void **state) {
    (void)state;
    struct device *dev;
    struct harness h;
    char *config;
    int32_t tokens[2 * 32], targets[2 * 32];
    assert_int_equal(model_config_text("gpt2:tiny", &config, NULL), 0);
    assert_int_equal(device_cpu.open(&(struct device_args){.threads = 1}, &dev, NULL), 0);
    harness_open(&h, &device_cpu, dev, DTYPE_F32, config, 2, 32);
    harness_init(&h, 3);
    harness_tokens(tokens, targets, 2, 32, 257);
    struct model_batch batch = {
        .tokens = tokens, .targets = targets, .B = 2, .T = 32, .loss_scale = 1.0f / 64};
    double loss = harness_train(&h, &batch, false);
    assert_float_equal(loss, log(257), 0.3);
    for (int step = 0; step < 60; step++) {
        harness_update(&h, 3e-3, 0, 1.0);
        loss = harness_train(&h, &batch, false);
    }
    assert_true(loss < 0.5);
    free(config);
    harness_close(&h);
    device_cpu.close(dev);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_agrees_with_the_double_reference),
        cmocka_unit_test(gpt2_of_no_sequences_has_zero_gradients),
        cmocka_unit_test(gpt2_repeats_bit_for_bit),
        cmocka_unit_test(gpt2_learns_a_sequence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
