/* test_tensor.c - names, shapes, npy headers and safetensors plans. */
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tensor/jsontext.h"
#include "tensor/npy.h"
#include "tensor/safetensors.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void names_survive_the_way_to_a_file_and_back(void **state) {
    (void)state;
    static const struct {
        const char *name, *file;
    } cases[] = {
        {"transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_attn.weight"},
        {"a/b", "a%2Fb"},
        {"100%", "100%25"},
        {"a\tb\n", "a%09b%0A"},
        {"\x7f", "%7F"},
        {".", "%2E"},
        {"..", "%2E."},
        {"...", "..."},
        {".hidden", ".hidden"},
        {"ä", "ä"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char file[300], name[300];
        assert_int_equal(tensor_name_encode(cases[i].name, file, sizeof(file)), 0);
        assert_string_equal(file, cases[i].file);
        assert_int_equal(tensor_name_decode(file, name, sizeof(name)), 0);
        assert_string_equal(name, cases[i].name);
    }
}

static void every_byte_has_one_file_name(void **state) {
    (void)state;
    for (int a = 1; a < 256; a++) {
        for (int b = 1; b < 256; b++) {
            const char name[3] = {(char)a, (char)b, '\0'};
            char file[16], back[16];
            assert_int_equal(tensor_name_encode(name, file, sizeof(file)), 0);
            assert_null(strchr(file, '/'));
            assert_true(strcmp(file, ".") != 0 && strcmp(file, "..") != 0);
            assert_int_equal(tensor_name_decode(file, back, sizeof(back)), 0);
            assert_string_equal(back, name);
        }
    }
}

static void decode_refuses_what_encode_never_writes(void **state) {
    (void)state;
    static const char *const bad[] = {"",   "%", "%2", "%2f",    "%2g",  "%00",  "%41",  "a/b",
                                      "\n", ".", "..", "%2E%2E", "a%2E", ".%2E", "%%25", "a%"};
    char out[64];
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(tensor_name_decode(bad[i], out, sizeof(out)), -EINVAL);
    assert_int_equal(tensor_name_encode("", out, sizeof(out)), -EINVAL);
}

static void names_that_do_not_fit_are_refused(void **state) {
    (void)state;
    char out[4];
    assert_int_equal(tensor_name_encode("abc", out, 4), 0);
    assert_int_equal(tensor_name_encode("abcd", out, 4), -ENAMETOOLONG);
    assert_int_equal(tensor_name_encode("/", out, 4), 0);
    assert_int_equal(tensor_name_encode("a/", out, 4), -ENAMETOOLONG);
    assert_int_equal(tensor_name_decode("abcd", out, 4), -EINVAL);
}

static void numel_is_the_product_or_an_error(void **state) {
    (void)state;
    uint64_t n = 7;
    struct tensor_spec t = {.ndim = 0};
    assert_int_equal(tensor_numel(&t, &n), 0);
    assert_int_equal(n, 1);
    t = (struct tensor_spec){.ndim = 4, .shape = {2, 3, 5, 7}};
    assert_int_equal(tensor_numel(&t, &n), 0);
    assert_int_equal(n, 210);
    t = (struct tensor_spec){.ndim = 2, .shape = {0, UINT64_C(1) << 40}};
    assert_int_equal(tensor_numel(&t, &n), 0);
    assert_int_equal(n, 0);
    t = (struct tensor_spec){.ndim = 1, .shape = {UINT64_C(1) << 60}};
    assert_int_equal(tensor_numel(&t, &n), 0);
    t.shape[0]++;
    assert_int_equal(tensor_numel(&t, &n), -EOVERFLOW);
    t = (struct tensor_spec){.ndim = 3, .shape = {UINT64_MAX, UINT64_MAX, 0}};
    assert_int_equal(tensor_numel(&t, &n), -EOVERFLOW);
    t = (struct tensor_spec){.ndim = 2, .shape = {2, (UINT64_C(1) << 63) + 1}};
    assert_int_equal(tensor_numel(&t, &n), -EOVERFLOW);
    t.ndim = TENSOR_MAX_DIMS + 1;
    assert_int_equal(tensor_numel(&t, &n), -EINVAL);
}

static void shapes_are_printed_without_spaces(void **state) {
    (void)state;
    char out[32];
    struct tensor_spec t = {.ndim = 0};
    assert_int_equal(tensor_shape_print(&t, out, sizeof(out)), 0);
    assert_string_equal(out, "()");
    t = (struct tensor_spec){.ndim = 1, .shape = {5}};
    assert_int_equal(tensor_shape_print(&t, out, sizeof(out)), 0);
    assert_string_equal(out, "5");
    t = (struct tensor_spec){.ndim = 3, .shape = {2, 0, 50257}};
    assert_int_equal(tensor_shape_print(&t, out, sizeof(out)), 0);
    assert_string_equal(out, "2,0,50257");
    assert_int_equal(tensor_shape_print(&t, out, 9), -ENAMETOOLONG);
}

static void npy_headers_are_as_numpy_writes_them(void **state) {
    (void)state;
    static const struct {
        struct tensor_spec t;
        const char *shape;
    } cases[] = {
        {{.ndim = 0}, "()"},
        {{.ndim = 1, .shape = {5}}, "(5,)"},
        {{.ndim = 2, .shape = {2, 3}}, "(2, 3)"},
        {{.ndim = 4, .shape = {0, 1, 2, 3}}, "(0, 1, 2, 3)"},
        {{.ndim = 4, .shape = {99999, 99999, 99999, 999}}, "(99999, 99999, 99999, 999)"},
        {{.ndim = 2, .shape = {0, UINT64_C(1) << 60}}, "(0, 1152921504606846976)"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint8_t h[NPY_HEADER_BYTES];
        char text[NPY_HEADER_BYTES];
        assert_int_equal(npy_header(&cases[i].t, h), 0);
        assert_memory_equal(h, "\x93NUMPY\x01\x00\x76\x00", 10);
        assert_int_equal(h[NPY_HEADER_BYTES - 1], '\n');
        int n = snprintf(text, sizeof(text),
                         "{'descr': '<f4', 'fortran_order': False, 'shape': %s, }", cases[i].shape);
        assert_memory_equal(h + 10, text, (size_t)n);
        for (size_t k = 10 + (size_t)n; k < NPY_HEADER_BYTES - 1; k++)
            assert_int_equal(h[k], ' ');
    }
    uint8_t h[NPY_HEADER_BYTES];
    struct tensor_spec huge = {.ndim = 4, .shape = {UINT64_MAX, UINT64_MAX, UINT64_MAX, 0}};
    assert_int_equal(npy_header(&huge, h), -EOVERFLOW);
}

static const struct tensor_spec plan_tensors[] = {
    {.name = "wte", .ndim = 2, .shape = {5, 4}},   {.name = "b", .ndim = 1, .shape = {3}},
    {.name = "empty", .ndim = 2, .shape = {2, 0}}, {.name = "quote\"d \\ ä\n", .ndim = 0},
    {.name = "B", .ndim = 1, .shape = {1}},
};
enum { PLAN_COUNT = sizeof(plan_tensors) / sizeof(plan_tensors[0]) };

static json_t *plan_json(const struct safetensors_plan *p) {
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | p->header[i];
    assert_int_equal(8 + n, p->header_bytes);
    json_t *root = json_loadb((const char *)p->header + 8, n, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    return root;
}

static void a_plan_is_sorted_dense_and_page_aligned(void **state) {
    (void)state;
    struct safetensors_plan p;
    assert_int_equal(safetensors_plan(plan_tensors, NULL, PLAN_COUNT, NULL, &p, NULL), 0);
    static const uint32_t order[] = {4, 1, 2, 3, 0};
    static const uint64_t bytes[] = {4, 12, 0, 4, 80};
    assert_int_equal(p.header_bytes % 4096, 0);
    assert_int_equal(p.tensor_count, PLAN_COUNT);
    json_t *root = plan_json(&p);
    assert_string_equal(json_object_iter_key(json_object_iter(root)), "__metadata__");
    const json_t *meta = json_object_get(root, "__metadata__");
    assert_string_equal(json_string_value(json_object_get(meta, "format")), "pt");
    assert_int_equal(json_object_size(meta), 1);
    uint64_t at = p.header_bytes;
    for (uint32_t i = 0; i < PLAN_COUNT; i++) {
        assert_int_equal(p.order[i], order[i]);
        assert_int_equal(p.offset_bytes[i], at);
        const json_t *t = json_object_get(root, plan_tensors[order[i]].name);
        const json_t *offsets = json_object_get(t, "data_offsets");
        assert_string_equal(json_string_value(json_object_get(t, "dtype")), "F32");
        assert_int_equal(json_integer_value(json_array_get(offsets, 0)), at - p.header_bytes);
        at += bytes[i];
        assert_int_equal(json_integer_value(json_array_get(offsets, 1)), at - p.header_bytes);
        assert_int_equal(json_array_size(json_object_get(t, "shape")), plan_tensors[order[i]].ndim);
    }
    assert_int_equal(p.offset_bytes[PLAN_COUNT], at);
    json_decref(root);
    safetensors_plan_free(&p);
}

static void find_agrees_with_a_linear_search(void **state) {
    (void)state;
    struct safetensors_plan p;
    assert_int_equal(safetensors_plan(plan_tensors, NULL, PLAN_COUNT, NULL, &p, NULL), 0);
    for (uint64_t at = 0; at < p.offset_bytes[PLAN_COUNT] + 8; at++) {
        uint32_t expected = PLAN_COUNT;
        for (uint32_t i = 0; i < PLAN_COUNT; i++)
            if (p.offset_bytes[i] <= at && at < p.offset_bytes[i + 1])
                expected = i;
        assert_int_equal(safetensors_plan_find(&p, at), expected);
    }
    safetensors_plan_free(&p);
}

static void a_plan_of_chosen_tensors_carries_its_metadata(void **state) {
    (void)state;
    static const uint32_t chosen[] = {0, 1};
    struct safetensors_plan p;
    assert_int_equal(
        safetensors_plan(plan_tensors, chosen, 2, "\"step\":\"000000000012\"", &p, NULL), 0);
    json_t *root = plan_json(&p);
    assert_int_equal(json_object_size(root), 3);
    const json_t *meta = json_object_get(root, "__metadata__");
    assert_string_equal(json_string_value(json_object_get(meta, "step")), "000000000012");
    assert_int_equal(p.order[0], 1);
    json_decref(root);
    safetensors_plan_free(&p);
    assert_int_equal(safetensors_plan(NULL, NULL, 0, NULL, &p, NULL), 0);
    assert_int_equal(p.offset_bytes[0], p.header_bytes);
    assert_int_equal(safetensors_plan_find(&p, p.header_bytes), 0);
    safetensors_plan_free(&p);
}

static void plans_that_no_reader_takes_are_refused(void **state) {
    (void)state;
    struct safetensors_plan p;
    struct err err = {0};
    struct tensor_spec two[] = {{.name = "a", .ndim = 1, .shape = {1}},
                                {.name = "a", .ndim = 1, .shape = {1}}};
    assert_int_equal(safetensors_plan(two, NULL, 2, NULL, &p, &err), -EINVAL);
    assert_non_null(strstr(err.text, "two tensors are named a"));
    struct tensor_spec bad = {.name = "\xc3", .ndim = 0};
    assert_int_equal(safetensors_plan(&bad, NULL, 1, NULL, &p, NULL), -EINVAL);
    struct tensor_spec meta = {.name = "__metadata__", .ndim = 0};
    assert_int_equal(safetensors_plan(&meta, NULL, 1, NULL, &p, NULL), -EINVAL);
    struct tensor_spec huge[] = {{.name = "a", .ndim = 1, .shape = {UINT64_C(1) << 60}},
                                 {.name = "b", .ndim = 1, .shape = {UINT64_C(1) << 60}}};
    assert_int_equal(safetensors_plan(huge, NULL, 2, NULL, &p, NULL), -EOVERFLOW);
}

static void json_strings_are_utf8_or_refused(void **state) {
    (void)state;
    static const char *const good[] = {"",
                                       "a",
                                       "\x01\x1f\"\\/",
                                       "ä",
                                       "€",
                                       "\U0001f600",
                                       "\x7f",
                                       "\xef\xbf\xbf",
                                       "\xf4\x8f\xbf\xbf",
                                       "\xed\x9f\xbf"};
    static const char *const bad[] = {"\x80",
                                      "\xc3",
                                      "\xc0\x80",
                                      "\xc1\xbf",
                                      "\xe0\x80\x80",
                                      "\xed\xa0\x80",
                                      "\xf0\x80\x80\x80",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xff",
                                      "a\xe2\x82"};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        struct enc e = {0};
        assert_int_equal(jsontext_string(&e, good[i]), 0);
        json_t *v = json_loadb((const char *)e.data, e.len_bytes, JSON_DECODE_ANY, NULL);
        assert_non_null(v);
        assert_string_equal(json_string_value(v), good[i]);
        json_decref(v);
        enc_free(&e);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct enc e = {0};
        assert_int_equal(jsontext_string(&e, bad[i]), -EINVAL);
        assert_int_equal(e.len_bytes, 0);
        enc_free(&e);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_survive_the_way_to_a_file_and_back),
        cmocka_unit_test(every_byte_has_one_file_name),
        cmocka_unit_test(decode_refuses_what_encode_never_writes),
        cmocka_unit_test(names_that_do_not_fit_are_refused),
        cmocka_unit_test(numel_is_the_product_or_an_error),
        cmocka_unit_test(shapes_are_printed_without_spaces),
        cmocka_unit_test(npy_headers_are_as_numpy_writes_them),
        cmocka_unit_test(a_plan_is_sorted_dense_and_page_aligned),
        cmocka_unit_test(find_agrees_with_a_linear_search),
        cmocka_unit_test(a_plan_of_chosen_tensors_carries_its_metadata),
        cmocka_unit_test(plans_that_no_reader_takes_are_refused),
        cmocka_unit_test(json_strings_are_utf8_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
