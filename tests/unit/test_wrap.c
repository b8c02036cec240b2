/* test_wrap.c - which modules form a unit, for each policy. */
#include "config.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "layout_check.h"
#include "shard/wrap.h"

/* A small GPT-2: embeddings, three blocks of attention (12 parameters) and MLP (30), a norm. */
static const struct wrap_module modules[] = {
    {"transformer.wte", -1},     {"transformer.h.0.attn", 0}, {"transformer.h.0.mlp", 0},
    {"transformer.h.1.attn", 1}, {"transformer.h.1.mlp", 1},  {"transformer.h.2.attn", 2},
    {"transformer.h.2.mlp", 2},  {"transformer.ln_f", -1},
};
static const struct tensor_spec tensors[] = {
    {.name = "wte.weight", .ndim = 2, .shape = {10, 4}, .module = 0},
    {.name = "wpe.weight", .ndim = 2, .shape = {5, 4}, .module = 0},
    {.name = "h.0.attn.weight", .ndim = 2, .shape = {2, 5}, .module = 1},
    {.name = "h.0.attn.bias", .ndim = 1, .shape = {2}, .module = 1},
    {.name = "h.0.mlp.weight", .ndim = 2, .shape = {5, 6}, .module = 2},
    {.name = "h.1.attn.weight", .ndim = 2, .shape = {2, 6}, .module = 3},
    {.name = "h.1.mlp.weight", .ndim = 2, .shape = {5, 6}, .module = 4},
    {.name = "h.2.attn.weight", .ndim = 2, .shape = {2, 6}, .module = 5},
    {.name = "h.2.mlp.weight", .ndim = 2, .shape = {5, 6}, .module = 6},
    {.name = "ln_f.weight", .ndim = 1, .shape = {4}, .module = 7},
};
enum {
    MODULES = sizeof(modules) / sizeof(modules[0]),
    TENSORS = sizeof(tensors) / sizeof(tensors[0])
};

struct unit {
    const char *name;
    uint64_t numel;
};

static void expect_units(const char *policy, const struct unit *units, uint32_t unit_count) {
    for (uint32_t ranks = 1; ranks <= 5; ranks++) {
        struct layout l;
        struct err err = {0};
        assert_int_equal(wrap_layout(policy, tensors, TENSORS, modules, MODULES, ranks, &l, &err),
                         0);
        assert_int_equal(err.code, 0);
        assert_int_equal(l.unit_count, unit_count);
        for (uint32_t u = 0; u < unit_count; u++) {
            assert_string_equal(l.units[u].name, units[u].name);
            assert_true(l.units[u].numel == units[u].numel);
            assert_true(l.units[u].shard_elems % LAYOUT_SHARD_ALIGN_ELEMS == 0);
        }
        layout_check_tables(&l);
        layout_check_elements(&l);
        layout_check_dumps(&l);
        layout_free(&l);
    }
}

static void none_makes_everything_the_root(void **state) {
    (void)state;
    static const struct unit units[] = {{"root", 190}};
    expect_units("none", units, 1);
}

static void block_makes_a_unit_of_each_block(void **state) {
    (void)state;
    static const struct unit units[] = {
        {"root", 64}, {"transformer.h.0", 42}, {"transformer.h.1", 42}, {"transformer.h.2", 42}};
    expect_units("block", units, 4);
}

static void size_joins_modules_until_a_unit_is_large_enough(void **state) {
    (void)state;
    static const struct unit each[] = {
        {"root", 64},
        {"transformer.h.0.attn", 12},
        {"transformer.h.0.mlp", 30},
        {"transformer.h.1.attn", 12},
        {"transformer.h.1.mlp", 30},
        {"transformer.h.2.attn", 12},
        {"transformer.h.2.mlp", 30},
    };
    expect_units("size:1", each, 7);
    expect_units("size:12", each, 7);
    static const struct unit blocks[] = {{"root", 64},
                                         {"transformer.h.0.attn", 42},
                                         {"transformer.h.1.attn", 42},
                                         {"transformer.h.2.attn", 42}};
    expect_units("size:13", blocks, 4);
    expect_units("size:42", blocks, 4);
    static const struct unit pairs[] = {
        {"root", 64}, {"transformer.h.0.attn", 54}, {"transformer.h.1.mlp", 72}};
    expect_units("size:43", pairs, 3);
    static const struct unit all[] = {{"root", 64}, {"transformer.h.0.attn", 126}};
    expect_units("size:18446744073709551615", all, 2);
}

static void size_leaves_a_rest_smaller_than_asked(void **state) {
    (void)state;
    static const struct unit units[] = {
        {"root", 64}, {"transformer.h.0.attn", 84}, {"transformer.h.2.attn", 42}};
    expect_units("size:55", units, 3);
}

static void a_block_named_without_a_dot_keeps_its_name(void **state) {
    (void)state;
    static const struct wrap_module one[] = {{"block", 0}};
    static const struct tensor_spec t[] = {{.name = "w", .ndim = 1, .shape = {3}}};
    struct layout l;
    assert_int_equal(wrap_layout("block", t, 1, one, 1, 2, &l, NULL), 0);
    assert_int_equal(l.unit_count, 2);
    assert_string_equal(l.units[0].name, "root");
    assert_int_equal(l.units[0].tensor_count, 0);
    assert_string_equal(l.units[1].name, "block");
    layout_check_tables(&l);
    layout_free(&l);
}

static void a_model_of_nothing_is_an_empty_root(void **state) {
    (void)state;
    static const char *const policies[] = {"none", "block", "size:9"};
    for (size_t i = 0; i < 3; i++) {
        struct layout l;
        assert_int_equal(wrap_layout(policies[i], NULL, 0, NULL, 0, 2, &l, NULL), 0);
        assert_int_equal(l.unit_count, 1);
        assert_string_equal(l.units[0].name, "root");
        assert_true(layout_numel(&l) == 0);
        layout_free(&l);
    }
}

static void policies_are_whole_words(void **state) {
    (void)state;
    static const char *const good[] = {"none", "block", "size:1", "size:007",
                                       "size:18446744073709551615"};
    static const char *const bad[] = {
        "",        "None",       "blocks",   " block",
        "block ",  "size",       "size:",    "size:0",
        "size:-1", "size:+1",    "size:1.5", "size:0x10",
        "size: 1", "size:1000k", "SIZE:1",   "size:18446744073709551616"};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        assert_int_equal(wrap_check(good[i], NULL), 0);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct err err = {0};
        struct layout l = {.world_size = 77}, before = l;
        assert_int_equal(wrap_check(bad[i], &err), -EINVAL);
        assert_int_equal(err.code, EINVAL);
        assert_non_null(strstr(err.text, "block, none or size:"));
        assert_int_equal(wrap_layout(bad[i], tensors, TENSORS, modules, MODULES, 2, &l, NULL),
                         -EINVAL);
        assert_memory_equal(&l, &before, sizeof(l));
    }
}

static void expect_refused(const struct tensor_spec *t, uint32_t ranks) {
    struct layout l = {.world_size = 77}, before = l;
    struct err err = {0};
    assert_int_equal(wrap_layout("block", t, 1, modules, MODULES, ranks, &l, &err), -EINVAL);
    assert_int_equal(err.code, EINVAL);
    assert_memory_equal(&l, &before, sizeof(l));
}

static void tensors_of_no_module_or_no_shape_are_refused(void **state) {
    (void)state;
    struct tensor_spec t = {.name = "w", .ndim = 1, .shape = {3}, .module = MODULES};
    expect_refused(&t, 2);
    t.module = UINT32_MAX;
    expect_refused(&t, 2);
    t = (struct tensor_spec){.name = "w", .ndim = 5};
    expect_refused(&t, 2);
    t = (struct tensor_spec){.name = "w", .ndim = 2, .shape = {UINT64_MAX, 2}};
    expect_refused(&t, 2);
    t = (struct tensor_spec){.name = "w", .ndim = 1, .shape = {3}};
    expect_refused(&t, 0);
    expect_refused(&t, LAYOUT_MAX_RANKS + 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(none_makes_everything_the_root),
        cmocka_unit_test(block_makes_a_unit_of_each_block),
        cmocka_unit_test(size_joins_modules_until_a_unit_is_large_enough),
        cmocka_unit_test(size_leaves_a_rest_smaller_than_asked),
        cmocka_unit_test(a_block_named_without_a_dot_keeps_its_name),
        cmocka_unit_test(a_model_of_nothing_is_an_empty_root),
        cmocka_unit_test(policies_are_whole_words),
        cmocka_unit_test(tensors_of_no_module_or_no_shape_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
