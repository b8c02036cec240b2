/* test_layout.c - the arithmetic of shards, by exhaustion over small units, and at its limits. */
#include "config.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "layout_check.h"
#include "shard/layout.h"

enum { MAX_TENSORS = 64, MAX_RANKS = 8 };

/* A model in the making: tensors of one dimension. */
struct model {
    struct tensor_spec specs[MAX_TENSORS];
    uint32_t unit_of[MAX_TENSORS];
    uint32_t tensor_count, unit_count;
};

static const char *const unit_names[] = {"root", "h.0", "h.1", "h.2", "h.3"};
static const uint32_t aligns[] = {1, 4, 16};

static void model_add(struct model *m, uint32_t unit, uint64_t elems) {
    struct tensor_spec *t = &m->specs[m->tensor_count];
    *t = (struct tensor_spec){.name = "t.00", .ndim = 1, .shape = {elems}};
    t->name[2] = (char)('0' + m->tensor_count / 10);
    t->name[3] = (char)('0' + m->tensor_count % 10);
    m->unit_of[m->tensor_count++] = unit;
    if (unit >= m->unit_count)
        m->unit_count = unit + 1;
}

static void build(const struct model *m, uint32_t ranks, uint32_t align, struct layout *out) {
    assert_int_equal(layout_build(m->specs, m->unit_of, m->tensor_count, unit_names, m->unit_count,
                                  ranks, align, out, NULL),
                     0);
}

static void check_everywhere(const struct model *m, bool dumps) {
    for (uint32_t ranks = 1; ranks <= MAX_RANKS; ranks++) {
        for (size_t a = 0; a < sizeof(aligns) / sizeof(aligns[0]); a++) {
            struct layout l;
            build(m, ranks, aligns[a], &l);
            for (uint32_t u = 0; u < l.unit_count; u++) {
                assert_true(l.units[u].shard_elems % aligns[a] == 0);
                assert_true(l.units[u].shard_elems * ranks < l.units[u].numel + ranks * aligns[a]);
            }
            layout_check_tables(&l);
            layout_check_elements(&l);
            if (dumps)
                layout_check_dumps(&l);
            layout_free(&l);
        }
    }
}

static void layout_covers_every_element_once(void **state) {
    (void)state;
    for (uint64_t n = 0; n <= 40; n++) {
        for (uint64_t first = 0; first <= n; first++) {
            for (uint64_t second = 0; first + second <= n; second++) {
                struct model m = {0};
                model_add(&m, 0, first);
                model_add(&m, 0, second);
                model_add(&m, 0, n - first - second);
                check_everywhere(&m, n % 8 == 0);
            }
        }
    }
}

/* All ways to write n as a sum in which up to two zeros stand at any place. */
static void split(struct model *m, uint64_t left, int zeros) {
    if (left == 0)
        check_everywhere(m, false);
    if (zeros > 0) {
        model_add(m, 0, 0);
        split(m, left, zeros - 1);
        m->tensor_count--;
    }
    for (uint64_t n = 1; n <= left; n++) {
        model_add(m, 0, n);
        split(m, left - n, zeros);
        m->tensor_count--;
    }
}

static void layout_takes_every_split_of_a_small_unit(void **state) {
    (void)state;
    for (uint64_t n = 0; n <= 7; n++) {
        struct model m = {.unit_count = 1};
        split(&m, n, 2);
    }
}

static void layout_takes_tensors_of_one_element(void **state) {
    (void)state;
    for (uint32_t n = 0; n <= 40; n++) {
        struct model m = {.unit_count = 1};
        for (uint32_t i = 0; i < n; i++)
            model_add(&m, 0, 1);
        check_everywhere(&m, true);
    }
}

static void layout_places_units_apart_and_the_root_may_recur(void **state) {
    (void)state;
    for (uint64_t sizes = 0; sizes < 6 * 6 * 6 * 6; sizes++) {
        struct model m = {0};
        model_add(&m, 0, sizes % 6 * 3);
        model_add(&m, 1, sizes / 6 % 6);
        model_add(&m, 1, 2);
        model_add(&m, 0, 1);
        model_add(&m, 2, sizes / 36 % 6 * 7);
        model_add(&m, 0, sizes / 216 % 6);
        check_everywhere(&m, true);
    }
}

static void layout_of_nothing_is_empty(void **state) {
    (void)state;
    struct layout l;
    assert_int_equal(layout_build(NULL, NULL, 0, NULL, 0, 3, 1, &l, NULL), 0);
    layout_check_tables(&l);
    layout_check_dumps(&l);
    assert_true(layout_numel(&l) == 0);
    assert_int_equal(layout_find_tensor(&l, ""), -ENOENT);
    layout_free(&l);
    layout_free(&l);
}

static void layout_keeps_a_unit_without_tensors(void **state) {
    (void)state;
    struct model m = {.unit_count = 3};
    model_add(&m, 0, 5);
    model_add(&m, 1, 5);
    check_everywhere(&m, true);
}

static void pieces_are_counted_beyond_what_is_stored(void **state) {
    (void)state;
    struct model m = {0};
    struct layout l;
    struct layout_piece pieces[3], none;
    uint32_t count;
    memset(&none, 0x5a, sizeof(none));
    model_add(&m, 0, 40);
    build(&m, 8, 1, &l);
    for (uint32_t cap = 0; cap < 3; cap++) {
        memset(pieces, 0x5a, sizeof(pieces));
        layout_tensor_pieces(&l, 0, pieces, cap, &count);
        assert_int_equal(count, 8);
        for (uint32_t i = 0; i < cap; i++)
            assert_int_equal(pieces[i].rank, i);
        assert_memory_equal(&pieces[cap], &none, sizeof(none));
    }
    layout_free(&l);
}

static void tensors_are_found_by_name(void **state) {
    (void)state;
    struct model m = {0};
    struct layout l;
    model_add(&m, 0, 1);
    model_add(&m, 1, 2);
    build(&m, 2, 1, &l);
    assert_int_equal(layout_find_tensor(&l, "t.00"), 0);
    assert_int_equal(layout_find_tensor(&l, "t.01"), 1);
    assert_int_equal(layout_find_tensor(&l, "t.0"), -ENOENT);
    assert_true(layout_numel(&l) == 3);
    layout_free(&l);
}

static void layout_of_4096_ranks_covers_a_unit_smaller_than_they_are(void **state) {
    (void)state;
    struct model m = {0};
    struct layout l;
    model_add(&m, 0, 100);
    model_add(&m, 0, 5000);
    build(&m, LAYOUT_MAX_RANKS, 1, &l);
    layout_check_tables(&l);
    layout_check_dumps(&l);
    layout_free(&l);
}

static void expect_refused(const struct model *m, uint32_t ranks, uint32_t align, int code) {
    struct layout l = {.world_size = 77}, before = l;
    struct err err = {0};
    assert_int_equal(layout_build(m->specs, m->unit_of, m->tensor_count, unit_names, m->unit_count,
                                  ranks, align, &l, &err),
                     -code);
    assert_int_equal(err.code, code);
    assert_true(err.text[0] != '\0');
    assert_memory_equal(&l, &before, sizeof(l));
}

static void layout_refuses_impossible_worlds(void **state) {
    (void)state;
    struct model m = {0};
    model_add(&m, 0, 5);
    expect_refused(&m, 0, 1, EINVAL);
    expect_refused(&m, LAYOUT_MAX_RANKS + 1, 1, EINVAL);
    expect_refused(&m, UINT32_MAX, 1, EINVAL);
    expect_refused(&m, 1, 0, EINVAL);
}

static void layout_refuses_units_out_of_order(void **state) {
    (void)state;
    static const uint32_t wrong[][4] = {
        {0, 5, 0, 0}, {0, 2, 1, 1}, {0, 1, 2, 1}, {1, 2, 1, 0}, {0, 0, 2, 2}, {1, 1, 3, 3},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct model m = {.unit_count = 5};
        for (size_t k = 0; k < 4; k++)
            model_add(&m, wrong[i][k], 3);
        m.unit_count = 5;
        expect_refused(&m, 2, 1, EINVAL);
    }
}

static void layout_refuses_shapes_that_are_too_large(void **state) {
    (void)state;
    struct model m = {0};
    model_add(&m, 0, 2);
    m.specs[0].ndim = 4;
    for (size_t d = 0; d < 4; d++)
        m.specs[0].shape[d] = UINT64_C(1) << 32;
    expect_refused(&m, 1, 1, EOVERFLOW);
    m.specs[0].ndim = TENSOR_MAX_DIMS + 1;
    expect_refused(&m, 1, 1, EINVAL);
}

/* 2^56 elements are the most: the bytes of four arrays of them are 2^60. */
static void layout_bounds_the_elements_of_a_model(void **state) {
    (void)state;
    struct model m = {0};
    struct layout l;
    model_add(&m, 0, UINT64_C(1) << 56);
    build(&m, 3, 16, &l);
    layout_check_tables(&l);
    assert_true(layout_dump_bytes(&l, ARRAY_MASK_ALL, 0) > UINT64_C(1) << 58);
    layout_free(&l);
    model_add(&m, 0, 1);
    expect_refused(&m, 1, 1, EOVERFLOW);
}

/* Sixteen units, each as large as a unit may be: offsets in a dump would wrap around to 0. */
static void layout_bounds_the_elements_of_all_units_together(void **state) {
    (void)state;
    const char *names[16];
    struct model m = {0};
    struct layout l = {0};
    for (uint32_t u = 0; u < 16; u++) {
        names[u] = "unit";
        model_add(&m, u, UINT64_C(1) << 56);
    }
    int rc = layout_build(m.specs, m.unit_of, m.tensor_count, names, m.unit_count, 1, 1, &l, NULL);
    if (rc == 0)
        print_message("a dump of all arrays has %llu bytes\n",
                      (unsigned long long)layout_dump_bytes(&l, ARRAY_MASK_ALL, 0));
    layout_free(&l);
    assert_int_equal(rc, -EOVERFLOW);
}

static void layout_bounds_the_number_of_tensors(void **state) {
    (void)state;
    uint32_t count = LAYOUT_MAX_TENSORS;
    struct tensor_spec *specs = calloc((size_t)count + 1, sizeof(*specs));
    uint32_t *unit_of = calloc((size_t)count + 1, sizeof(*unit_of));
    struct layout l;
    assert_true(specs != NULL && unit_of != NULL);
    for (uint32_t i = 0; i <= count; i++)
        specs[i] = (struct tensor_spec){.name = "t", .ndim = 0};
    assert_int_equal(layout_build(specs, unit_of, count, unit_names, 1, 7, 1, &l, NULL), 0);
    assert_true(layout_numel(&l) == count);
    layout_free(&l);
    assert_int_equal(layout_build(specs, unit_of, count + 1, unit_names, 1, 7, 1, &l, NULL),
                     -EINVAL);
    assert_int_equal(layout_build(specs, unit_of, 1, unit_names, count + 1, 7, 1, &l, NULL),
                     -EINVAL);
    free(specs);
    free(unit_of);
}

static void array_names_are_those_of_the_files(void **state) {
    (void)state;
    assert_string_equal(array_names[ARRAY_PARAMS], "params");
    assert_string_equal(array_names[ARRAY_GRADS], "grads");
    assert_string_equal(array_names[ARRAY_EXP_AVG], "exp_avg");
    assert_string_equal(array_names[ARRAY_EXP_AVG_SQ], "exp_avg_sq");
    assert_int_equal(ARRAY_MASK_ALL, 15);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layout_covers_every_element_once),
        cmocka_unit_test(layout_takes_every_split_of_a_small_unit),
        cmocka_unit_test(layout_takes_tensors_of_one_element),
        cmocka_unit_test(layout_places_units_apart_and_the_root_may_recur),
        cmocka_unit_test(layout_of_nothing_is_empty),
        cmocka_unit_test(layout_keeps_a_unit_without_tensors),
        cmocka_unit_test(pieces_are_counted_beyond_what_is_stored),
        cmocka_unit_test(tensors_are_found_by_name),
        cmocka_unit_test(layout_of_4096_ranks_covers_a_unit_smaller_than_they_are),
        cmocka_unit_test(layout_refuses_impossible_worlds),
        cmocka_unit_test(layout_refuses_units_out_of_order),
        cmocka_unit_test(layout_refuses_shapes_that_are_too_large),
        cmocka_unit_test(layout_bounds_the_elements_of_a_model),
        cmocka_unit_test(layout_bounds_the_elements_of_all_units_together),
        cmocka_unit_test(layout_bounds_the_number_of_tensors),
        cmocka_unit_test(array_names_are_those_of_the_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
