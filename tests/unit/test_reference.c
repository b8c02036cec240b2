/* test_reference.c - GPT-2 and AdamW against what PyTorch computed
 * (tests/reference/make_expectations.py). */
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

enum { SEED = 42, LINE_BYTES = 1024, BATCH_MAX = 4096 };

struct reader {
    FILE *file;
    const struct device_ops *ops; /* that of $GFS_TEST_DEVICE, or the CPU */
    struct device *dev;
    struct harness h;
    int32_t tokens[BATCH_MAX], targets[BATCH_MAX];
    struct model_batch batch;
    double lr, decay, clip, loss;
    bool open, trained;
    bool skipped; /* the case: the device has no such attention */
    unsigned compared;
};

static void case_close(struct reader *r) {
    if (r->open)
        harness_close(&r->h);
    r->open = false;
}

static void case_open(struct reader *r, const char *config_text) {
    size_t B, T;
    char line[LINE_BYTES];
    assert_non_null(fgets(line, sizeof(line), r->file));
    assert_int_equal(sscanf(line, "batch %zu %zu", &B, &T), 2);
    assert_true(B * T <= BATCH_MAX);
    struct model *m = NULL;
    struct err err = {0};
    if (model_open(config_text, &m, &err) != 0)
        fail_msg("%s", err.text);
    r->skipped = model_supported(m, r->ops, &err) != 0;
    model_close(m);
    if (r->skipped) {
        print_message("# a case is skipped: %s\n", err.text);
        return;
    }
    harness_open(&r->h, r->ops, r->dev, DTYPE_F32, config_text, B, T);
    harness_init(&r->h, SEED);
    harness_tokens(r->tokens, r->targets, B, T, model_vocab(r->h.model));
    r->batch = (struct model_batch){.tokens = r->tokens,
                                    .targets = r->targets,
                                    .B = B,
                                    .T = T,
                                    .loss_scale = 1.0f / (float)(B * T)};
    r->open = true;
    r->trained = false;
}

static const float *tensor_of(struct reader *r, const float *array, const char *name,
                              size_t *elems) {
    for (uint32_t i = 0; i < model_tensor_count(r->h.model); i++)
        if (strcmp(model_tensors(r->h.model)[i].spec.name, name) == 0) {
            *elems = r->h.offset[i + 1] - r->h.offset[i];
            return harness_host(&r->h, array) + r->h.offset[i];
        }
    fail_msg("no tensor %s", name);
    return NULL;
}

static void compare(struct reader *r, const char *line, double got, double want, double relative,
                    double absolute) {
    if (!(fabs(got - want) <= relative * fabs(want) + absolute))
        fail_msg("%.9g instead of: %s", got, line);
    r->compared++;
}

/* Forward and backward, once for each step of the file. */
static void train(struct reader *r) {
    if (!r->trained)
        r->loss = harness_train(&r->h, &r->batch, false);
    r->trained = true;
}

static void read_value(struct reader *r, const char *line) {
    char kind[32], name[TENSOR_NAME_BYTES];
    size_t index, elems = 0;
    double want;
    if (strncmp(line, "grad_norm ", 10) != 0) {
        assert_int_equal(sscanf(line, "%31s %127s %zu %lf", kind, name, &index, &want), 4);
        bool grad = strcmp(kind, "grad") == 0, init = strcmp(kind, "init") == 0;
        if (grad)
            train(r);
        const float *t = tensor_of(r, grad ? r->h.grads : r->h.params, name, &elems);
        assert_true(index < elems);
        if (init)
            compare(r, line, t[index], want, 1e-7, 0);
        else if (grad)
            compare(r, line, t[index], want, 1e-4, 2e-7);
        else /* AdamW makes of a tiny gradient's rounding a step of its own */
            compare(r, line, t[index], want, 1e-4, 2e-5);
        return;
    }
    assert_int_equal(sscanf(line, "%31s %127s %lf", kind, name, &want), 3);
    train(r);
    const float *t = tensor_of(r, r->h.grads, name, &elems);
    double sum = 0;
    for (size_t i = 0; i < elems; i++)
        sum += (double)t[i] * t[i];
    compare(r, line, sqrt(sum), want, 1e-5, 1e-8);
}

static void read_line(struct reader *r, char *line) {
    char word[64];
    double want;
    line[strcspn(line, "\n")] = '\0';
    if (strncmp(line, "case ", 5) == 0) {
        case_close(r);
        r->skipped = false;
    } else if (strncmp(line, "config ", 7) == 0) {
        case_open(r, line + 7);
    } else if (sscanf(line, "preset %63s", word) == 1) {
        char *text = NULL;
        assert_int_equal(model_config_text(word, &text, NULL), 0);
        case_open(r, text);
        free(text);
    } else if (r->skipped) {
        return;
    } else if (sscanf(line, "optimizer %lf %lf %lf", &r->lr, &r->decay, &r->clip) == 3) {
        return;
    } else if (sscanf(line, "loss %lf", &want) == 1) {
        train(r);
        compare(r, line, r->loss, want, 1e-5, 0);
    } else if (sscanf(line, "norm %lf", &want) == 1) {
        /* AdamW makes more of each step's rounding, which is another one on another device. */
        compare(r, line, harness_update(&r->h, r->lr, r->decay, r->clip), want,
                r->ops == &device_cpu ? 2e-5 : 1e-4, 0);
        r->trained = false;
    } else {
        read_value(r, line);
    }
}

static void gpt2_agrees_with_pytorch(void **state) {
    (void)state;
    static struct reader r;
    char path[4096], line[LINE_BYTES];
    const char *top = getenv("GFS_SRC");
    assert_non_null(top);
    snprintf(path, sizeof(path), "%s/tests/reference/expected_gpt2.txt", top);
    r.file = fopen(path, "r");
    assert_non_null(r.file);
    const char *device = getenv("GFS_TEST_DEVICE");
    struct device_args args = {.threads = 1};
    struct err err = {0};
    if (device_find(device != NULL ? device : "cpu", &r.ops, NULL, 0, &err) != 0 ||
        r.ops->open(&args, &r.dev, &err) != 0)
        fail_msg("%s", err.text);
    while (fgets(line, sizeof(line), r.file) != NULL)
        read_line(&r, line);
    assert_true(r.compared > (device != NULL ? 100u : 1000u));
    case_close(&r);
    r.ops->close(r.dev);
    fclose(r.file);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(gpt2_agrees_with_pytorch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
