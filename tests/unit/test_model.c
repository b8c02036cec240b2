/* test_model.c - from a preset or a config.json to tensors and modules, and what is refused. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "model/model.h"

static struct model *open_preset(const char *name) {
    struct model *m = NULL;
    struct err err = {0};
    char *text = NULL;
    assert_int_equal(model_config_text(name, &text, &err), 0);
    assert_int_equal(model_open(text, &m, &err), 0);
    free(text);
    return m;
}

static uint64_t numel_of(const struct model *m) {
    uint64_t sum = 0, numel;
    for (uint32_t i = 0; i < model_tensor_count(m); i++) {
        assert_int_equal(tensor_numel(&model_tensors(m)[i].spec, &numel), 0);
        sum += numel;
    }
    return sum;
}

static void presets_have_the_published_sizes(void **state) {
    (void)state;
    static const struct {
        const char *name;
        uint64_t numel;
        size_t vocab, context;
        uint32_t tensors, modules;
    } presets[] = {
        {"gpt2:tiny", 842624, 257, 128, 52, 10},
        {"gpt2:10M", 10844544, 257, 256, 76, 14},
        {"gpt2:124M", 124439808, 50257, 1024, 148, 26},
    };
    for (size_t i = 0; i < sizeof(presets) / sizeof(presets[0]); i++) {
        struct model *m = open_preset(presets[i].name);
        assert_string_equal(model_kind(m), "gpt2");
        assert_int_equal(numel_of(m), presets[i].numel);
        assert_int_equal(model_vocab(m), presets[i].vocab);
        assert_int_equal(model_context(m), presets[i].context);
        assert_int_equal(model_tensor_count(m), presets[i].tensors);
        assert_int_equal(model_module_count(m), presets[i].modules);
        model_close(m);
    }
}

static const struct model_tensor *find(const struct model *m, const char *name) {
    for (uint32_t i = 0; i < model_tensor_count(m); i++)
        if (strcmp(model_tensors(m)[i].spec.name, name) == 0)
            return &model_tensors(m)[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

static void check_tensor(const struct model *m, const char *name, uint64_t rows, uint64_t columns,
                         enum init_kind init, double std) {
    const struct model_tensor *t = find(m, name);
    assert_int_equal(t->spec.ndim, columns == 0 ? 1 : 2);
    assert_int_equal(t->spec.shape[0], rows);
    assert_int_equal(t->spec.shape[1], columns);
    assert_int_equal(t->spec.decay, columns != 0);
    assert_int_equal(t->init, init);
    assert_float_equal(t->init_std, std, 1e-7);
}

static void tensors_are_those_of_hugging_face(void **state) {
    (void)state;
    struct model *m = open_preset("gpt2:124M");
    double residual = 0.02 / sqrt(24);
    check_tensor(m, "transformer.wte.weight", 50257, 768, INIT_NORMAL, 0.02);
    check_tensor(m, "transformer.wpe.weight", 1024, 768, INIT_NORMAL, 0.02);
    check_tensor(m, "transformer.h.0.ln_1.weight", 768, 0, INIT_ONES, 0);
    check_tensor(m, "transformer.h.0.ln_1.bias", 768, 0, INIT_ZEROS, 0);
    check_tensor(m, "transformer.h.11.attn.c_attn.weight", 768, 2304, INIT_NORMAL, 0.02);
    check_tensor(m, "transformer.h.11.attn.c_attn.bias", 2304, 0, INIT_ZEROS, 0);
    check_tensor(m, "transformer.h.11.attn.c_proj.weight", 768, 768, INIT_NORMAL, residual);
    check_tensor(m, "transformer.h.11.mlp.c_fc.weight", 768, 3072, INIT_NORMAL, 0.02);
    check_tensor(m, "transformer.h.11.mlp.c_proj.weight", 3072, 768, INIT_NORMAL, residual);
    check_tensor(m, "transformer.ln_f.weight", 768, 0, INIT_ONES, 0);
    model_close(m);
}

/* Tensors come in module order; a module reads its own, and the head the embedding besides. */
static void modules_read_their_tensors(void **state) {
    (void)state;
    struct model *m = open_preset("gpt2:tiny");
    uint32_t next = 0, modules = model_module_count(m);
    for (uint32_t i = 0; i < modules; i++) {
        const uint32_t *tensors;
        uint32_t count = model_module_tensors(m, i, &tensors);
        const struct wrap_module *w = &model_modules(m)[i];
        assert_int_equal(w->block, i == 0 || i == modules - 1 ? -1 : (int32_t)(i - 1) / 2);
        for (uint32_t j = 0; j < count; j++) {
            if (i == modules - 1 && j == count - 1) {
                assert_int_equal(tensors[j], 0);
                continue;
            }
            assert_int_equal(tensors[j], next++);
            assert_int_equal(model_tensors(m)[tensors[j]].spec.module, i);
        }
    }
    assert_int_equal(next, model_tensor_count(m));
    assert_string_equal(model_modules(m)[0].name, "transformer.wte+wpe");
    assert_string_equal(model_modules(m)[7].name, "transformer.h.3.attn");
    assert_string_equal(model_modules(m)[8].name, "transformer.h.3.mlp");
    assert_string_equal(model_modules(m)[9].name, "transformer.ln_f+head");
    model_close(m);
}

static void flops_are_six_a_parameter_and_token(void **state) {
    (void)state;
    struct model *m = open_preset("gpt2:124M");
    double flops = model_flops_per_token(m, 1024), attention = 12.0 * 12 * 768 * 1024;
    assert_true(flops - attention > 6 * 123.0e6 && flops - attention < 6 * 124.5e6);
    model_close(m);
}

#define GOOD                                                                                       \
    "\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_head\": 2, \"n_embd\": 4, \"n_positions\": 8, " \
    "\"vocab_size\": 9"

static void what_is_not_offered_is_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *config, *word;
        int rc;
    } bad[] = {
        {"", "line 1", -EINVAL},
        {"{\n\"n_layer\": 1,\n]", "line 3", -EINVAL},
        {"{" GOOD ", \"n_head\": 2}", "n_head", -EINVAL},
        {"[]", "object", -EINVAL},
        {"{}", "model_type", -EINVAL},
        {"{\"model_type\": 3}", "model_type", -EINVAL},
        {"{\"model_type\": \"bert\"}", "bert", -ENOTSUP},
        {"{\"model_type\": \"gpt2\"}", "vocab_size is missing", -EINVAL},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_head\": 3, \"n_embd\": 4, "
         "\"n_positions\": 8, \"vocab_size\": 9}",
         "not divisible", -EINVAL},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 0, \"n_head\": 2, \"n_embd\": 4, "
         "\"n_positions\": 8, \"vocab_size\": 9}",
         "n_layer", -EINVAL},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 1.5, \"n_head\": 2, \"n_embd\": 4, "
         "\"n_positions\": 8, \"vocab_size\": 9}",
         "n_layer", -EINVAL},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_head\": 2, \"n_embd\": 4, "
         "\"n_positions\": 8, \"vocab_size\": 99999999999}",
         "vocab_size", -EINVAL},
        {"{" GOOD ", \"n_ctx\": 9}", "n_ctx", -EINVAL},
        {"{" GOOD ", \"n_inner\": -1}", "n_inner", -EINVAL},
        {"{" GOOD ", \"n_inner\": \"x\"}", "n_inner", -EINVAL},
        {"{" GOOD ", \"activation_function\": \"relu\"}", "relu", -ENOTSUP},
        {"{" GOOD ", \"activation_function\": 1}", "activation_function", -EINVAL},
        {"{" GOOD ", \"layer_norm_epsilon\": 0}", "layer_norm_epsilon", -EINVAL},
        {"{" GOOD ", \"layer_norm_epsilon\": \"small\"}", "layer_norm_epsilon", -EINVAL},
        {"{" GOOD ", \"initializer_range\": -1}", "initializer_range", -EINVAL},
        {"{" GOOD ", \"scale_attn_weights\": false}", "scale_attn_weights", -ENOTSUP},
        {"{" GOOD ", \"scale_attn_weights\": 1}", "scale_attn_weights", -EINVAL},
        {"{" GOOD ", \"scale_attn_by_inverse_layer_idx\": true}", "scale_attn_by_inverse_layer_idx",
         -ENOTSUP},
        {"{" GOOD ", \"reorder_and_upcast_attn\": true}", "reorder_and_upcast_attn", -ENOTSUP},
        {"{" GOOD ", \"tie_word_embeddings\": false}", "tie_word_embeddings", -ENOTSUP},
        {"{" GOOD ", \"add_cross_attention\": true}", "add_cross_attention", -ENOTSUP},
        {"{" GOOD ", \"attn_pdrop\": 0.1}", "attn_pdrop", -ENOTSUP},
        {"{" GOOD ", \"resid_pdrop\": \"0\"}", "resid_pdrop", -EINVAL},
        {"{" GOOD ", \"architectures\": [\"GPT2ForSequenceClassification\"]}", "architectures",
         -ENOTSUP},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct model *m = NULL;
        struct err err = {0};
        int rc = model_open(bad[i].config, &m, &err);
        if (rc != bad[i].rc || strstr(err.text, bad[i].word) == NULL)
            fail_msg("%s: %d, \"%s\"; expected \"%s\"", bad[i].config, rc, err.text, bad[i].word);
        assert_null(m);
    }
}

static void absent_and_null_fields_are_defaults(void **state) {
    (void)state;
    struct model *m;
    struct err err = {0};
    assert_int_equal(model_open("{" GOOD "}", &m, &err), 0);
    check_tensor(m, "transformer.h.0.mlp.c_fc.weight", 4, 16, INIT_NORMAL, 0.02);
    model_close(m);
    assert_int_equal(
        model_open("{" GOOD
                   ", \"n_inner\": null, \"n_ctx\": 8, \"unknown\": [], \"architectures\": null}",
                   &m, &err),
        0);
    model_close(m);
    assert_int_equal(model_open("{" GOOD ", \"n_inner\": 7, \"initializer_range\": 1}", &m, &err),
                     0);
    check_tensor(m, "transformer.h.0.mlp.c_proj.weight", 7, 4, INIT_NORMAL, 1 / sqrt(2));
    model_close(m);
}

static void a_path_that_cannot_be_used_is_named(void **state) {
    (void)state;
    char dir[] = "/tmp/gfs-test-model-XXXXXX", path[64];
    char *text = NULL;
    struct err err = {0};
    assert_non_null(mkdtemp(dir));
    assert_int_equal(model_config_text(dir, &text, &err), -ENOTSUP);
    assert_non_null(strstr(err.text, dir));
    assert_non_null(strstr(err.text, "loading weights is not offered yet"));

    snprintf(path, sizeof(path), "%s/config.json", dir);
    err = (struct err){0};
    assert_int_equal(model_config_text(path, &text, &err), -ENOENT);
    assert_non_null(strstr(err.text, path));

    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("{\n \"model_type\": \"gpt2\"\n \"n_layer\": 1}", f);
    fclose(f);
    err = (struct err){0};
    assert_int_equal(model_config_text(path, &text, &err), -EINVAL);
    assert_non_null(strstr(err.text, path));
    assert_non_null(strstr(err.text, "line 3"));

    f = fopen(path, "w");
    assert_non_null(f);
    fputs("{" GOOD "}\n", f);
    fclose(f);
    err = (struct err){0};
    assert_int_equal(model_config_text(path, &text, &err), 0);
    assert_string_equal(text, "{" GOOD "}\n");
    free(text);
    unlink(path);
    rmdir(dir);

    err = (struct err){0};
    assert_int_equal(model_config_text("gpt2:9B", &text, &err), -EINVAL);
    assert_non_null(strstr(err.text, "gpt2:tiny"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(presets_have_the_published_sizes),
        cmocka_unit_test(tensors_are_those_of_hugging_face),
        cmocka_unit_test(modules_read_their_tensors),
        cmocka_unit_test(flops_are_six_a_parameter_and_token),
        cmocka_unit_test(what_is_not_offered_is_refused_by_name),
        cmocka_unit_test(absent_and_null_fields_are_defaults),
        cmocka_unit_test(a_path_that_cannot_be_used_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
