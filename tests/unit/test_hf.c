/* test_hf.c - the files of a Hugging Face directory. */
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tensor/hf.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const char byte_config[] = "{\"model_type\":\"gpt2\",\"vocab_size\":257,\"n_positions\":64,"
                                  "\"bos_token_id\":256,\"eos_token_id\":256}";

static const struct tensor_spec tensors[] = {
    {.name = "c", .ndim = 1, .shape = {4}},
    {.name = "a", .ndim = 1, .shape = {4}},
    {.name = "b", .ndim = 1, .shape = {100}},
    {.name = "d", .ndim = 1, .shape = {4}},
};

static bool has(const struct hf_dir *d, const char *name) {
    for (uint32_t i = 0; i < d->file_count; i++)
        if (strcmp(d->files[i].name, name) == 0)
            return true;
    return false;
}

static const struct hf_file *find(const struct hf_dir *d, const char *name) {
    uint32_t i = 0;
    assert_true(has(d, name));
    while (strcmp(d->files[i].name, name) != 0)
        i++;
    return &d->files[i];
}

static json_t *parse(const struct hf_dir *d, const char *name) {
    const struct hf_file *f = find(d, name);
    json_t *v = json_loadb(f->text, f->text_bytes, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(v);
    return v;
}

static void a_byte_level_model_has_its_tokenizer(void **state) {
    (void)state;
    struct hf_dir d;
    assert_int_equal(hf_dir_plan(tensors, 4, byte_config, 0, &d, NULL), 0);
    assert_int_equal(d.file_count, 6);
    const struct hf_file *config = find(&d, "config.json");
    assert_memory_equal(config->text, byte_config, sizeof(byte_config) - 1);
    assert_int_equal(config->text[config->text_bytes - 1], '\n');
    json_t *vocab = parse(&d, "vocab.json");
    assert_int_equal(json_object_size(vocab), 257);
    static const struct {
        const char *token;
        int id;
    } ids[] = {{"!", 0},
               {"~", 93},
               {"¡", 94},
               {"¬", 105},
               {"®", 106},
               {"ÿ", 187},
               {"Ā", 188},
               {"Ġ", 220},
               {"ġ", 221},
               {"Ń", 255},
               {"<|endoftext|>", 256}};
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++)
        assert_int_equal(json_integer_value(json_object_get(vocab, ids[i].token)), ids[i].id);
    json_decref(vocab);
    const struct hf_file *merges = find(&d, "merges.txt");
    assert_int_equal(merges->text_bytes, strlen("#version: 0.2\n"));
    json_t *tokenizer = parse(&d, "tokenizer_config.json");
    assert_int_equal(json_integer_value(json_object_get(tokenizer, "model_max_length")), 64);
    json_decref(tokenizer);
    json_t *generation = parse(&d, "generation_config.json");
    assert_int_equal(json_integer_value(json_object_get(generation, "eos_token_id")), 256);
    json_decref(generation);
    assert_false(has(&d, "model.safetensors.index.json"));
    hf_dir_free(&d);
}

static void other_vocabularies_have_no_tokenizer(void **state) {
    (void)state;
    static const char *const configs[] = {
        "{\"vocab_size\":50257,\"eos_token_id\":50256}",
        "{\"vocab_size\":256,\"eos_token_id\":256}",
        "{\"vocab_size\":257}",
        "{}",
    };
    for (size_t i = 0; i < sizeof(configs) / sizeof(configs[0]); i++) {
        struct hf_dir d;
        assert_int_equal(hf_dir_plan(tensors, 4, configs[i], 0, &d, NULL), 0);
        assert_false(has(&d, "vocab.json"));
        assert_int_equal(d.file_count, 3);
        hf_dir_free(&d);
    }
}

static void large_weights_are_cut_and_indexed(void **state) {
    (void)state;
    struct hf_dir d;
    assert_int_equal(hf_dir_plan(tensors, 4, "{}", 40, &d, NULL), 0);
    static const char *const files[] = {"model-00001-of-00003.safetensors",
                                        "model-00002-of-00003.safetensors",
                                        "model-00003-of-00003.safetensors"};
    static const uint32_t counts[] = {2, 1, 1};
    static const uint32_t orders[3][2] = {{1, 0}, {2}, {3}};
    json_t *index = parse(&d, "model.safetensors.index.json");
    const json_t *map = json_object_get(index, "weight_map");
    assert_int_equal(json_object_size(map), 4);
    for (int i = 0; i < 3; i++) {
        const struct hf_file *f = find(&d, files[i]);
        assert_int_equal(f->weights.tensor_count, counts[i]);
        for (uint32_t k = 0; k < counts[i]; k++) {
            assert_int_equal(f->weights.order[k], orders[i][k]);
            const char *name = tensors[orders[i][k]].name;
            assert_string_equal(json_string_value(json_object_get(map, name)), files[i]);
        }
    }
    const json_t *meta = json_object_get(index, "metadata");
    assert_int_equal(json_integer_value(json_object_get(meta, "total_size")), 112 * 4);
    json_decref(index);
    hf_dir_free(&d);
}

static void a_config_that_is_none_is_refused(void **state) {
    (void)state;
    struct hf_dir d;
    struct err err = {0};
    assert_int_equal(hf_dir_plan(tensors, 4, "{\"a\":1", 0, &d, &err), -EINVAL);
    assert_non_null(strstr(err.text, "config"));
    assert_int_equal(hf_dir_plan(tensors, 4, "[]", 0, &d, NULL), -EINVAL);
    assert_int_equal(hf_dir_plan(tensors, 4, "", 0, &d, NULL), -EINVAL);
}

static void no_tensors_are_a_directory_too(void **state) {
    (void)state;
    struct hf_dir d;
    assert_int_equal(hf_dir_plan(NULL, 0, "{}", 0, &d, NULL), 0);
    assert_true(has(&d, "model.safetensors"));
    hf_dir_free(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_byte_level_model_has_its_tokenizer),
        cmocka_unit_test(other_vocabularies_have_no_tokenizer),
        cmocka_unit_test(large_weights_are_cut_and_indexed),
        cmocka_unit_test(a_config_that_is_none_is_refused),
        cmocka_unit_test(no_tensors_are_a_directory_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
