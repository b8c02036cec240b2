/* test_knobs.c - the table of settings, and configurations as text. */
#include "config.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/knobs.h"

static void set_ok(struct config *c, const char *name, const char *value) {
    struct err err = {0};
    int rc = config_set(c, knob_find(name), value, &err);
    if (rc)
        fail_msg("%s = %s: %s", name, value, err.text);
}

static void set_fails(int code, const char *name, const char *value) {
    struct config c, before;
    struct err err = {0};
    config_defaults(&c);
    before = c;
    assert_int_equal(config_set(&c, knob_find(name), value, &err), -code);
    assert_non_null(strstr(err.text, name));
    assert_true(config_equal(&c, &before, knob_find(name)));
}

static void table_is_whole(void **state) {
    (void)state;
    size_t covered = 0;
    for (size_t i = 0; i < knob_count; i++) {
        const struct knob *k = &knob_table[i];
        assert_non_null(k->help);
        assert_non_null(k->fallback);
        assert_ptr_equal(knob_find(k->name), k);
        if (k->option)
            assert_ptr_equal(knob_find_option(k->option), k);
        assert_true(k->class != KNOB_ONCE || k->option);
        assert_true(k->offset + k->size_bytes <= sizeof(struct config));
        for (size_t j = 0; j < i; j++)
            assert_true(knob_table[j].offset >= k->offset + k->size_bytes ||
                        k->offset >= knob_table[j].offset + knob_table[j].size_bytes);
        covered += k->size_bytes;
    }
    assert_true(covered <= sizeof(struct config));
    assert_true(covered + 64 > sizeof(struct config)); /* a field without a knob would show here */
}

static void every_default_is_valid(void **state) {
    (void)state;
    struct config c;
    config_defaults(&c);
    for (size_t i = 0; i < knob_count; i++) {
        char value[KNOB_PATHS_BYTES];
        if (knob_table[i].type == KNOB_PATHS)
            continue;
        set_ok(&c, knob_table[i].name, knob_table[i].fallback);
        assert_int_equal(config_get(&c, &knob_table[i], value, sizeof value), 0);
        assert_string_equal(value, knob_table[i].fallback);
    }
}

static void values_are_checked(void **state) {
    (void)state;
    set_fails(EINVAL, "ranks", "two");
    set_fails(EINVAL, "ranks", "");
    set_fails(EINVAL, "ranks", "2 ");
    set_fails(ERANGE, "ranks", "4097");
    set_fails(ERANGE, "ranks", "-1");
    set_fails(ERANGE, "ranks", "99999999999999999999999");
    set_fails(EINVAL, "lr", "fast");
    set_fails(EINVAL, "lr", "nan");
    set_fails(EINVAL, "lr", "0x1p3");
    set_fails(ERANGE, "lr", "-1e-3");
    set_fails(ERANGE, "beta1", "1");
    set_fails(EINVAL, "take_memory", "1Q");
    set_fails(EINVAL, "comm", "nod");
    set_fails(EINVAL, "comm", "node|mpi");
    set_fails(EINVAL, "comm", "");
    set_fails(ERANGE, "comm_timeout", "0");
    set_fails(EINVAL, "device", "gpu");
    set_fails(EINVAL, "dtype", "f16");
    set_fails(EINVAL, "reduce_dtype", "bf16|f32");
    set_fails(EINVAL, "tensor_cores", "1");
    set_fails(EINVAL, "offload", "");
    set_fails(EINVAL, "model", "two\nlines");
    set_fails(EINVAL, "stay", "maybe");
}

static void values_are_stored(void **state) {
    (void)state;
    struct config c;
    config_defaults(&c);
    set_ok(&c, "take_memory", "2M");
    assert_int_equal(c.take_memory, 2 << 20);
    set_ok(&c, "lr", "3e-4");
    assert_true(c.lr == 3e-4);
    set_ok(&c, "seed", "18446744073709551615");
    assert_true(c.seed == UINT64_MAX);
    set_ok(&c, "stay", "yes");
    assert_true(c.stay);
    set_ok(&c, "comm", "mpi");
    assert_string_equal(c.comm, "mpi");
    set_ok(&c, "comm", "nccl");
    set_ok(&c, "comm_timeout", "0.5");
    assert_true(c.comm_timeout == 0.5);
    set_ok(&c, "device", "cuda");
    assert_string_equal(c.device, "cuda");
    set_ok(&c, "dtype", "bf16");
    set_ok(&c, "reduce_dtype", "bf16");
    assert_string_equal(c.reduce_dtype, "bf16");
    set_ok(&c, "tensor_cores", "off");
    assert_string_equal(c.tensor_cores, "off");
    set_ok(&c, "ranks", "0");
    assert_int_equal(c.ranks, 0);
}

/* NULL: it is fine. */
static void check_says(const char *text, const char *expected) {
    struct config c;
    struct err err = {0};
    config_defaults(&c);
    assert_int_equal(config_parse(&c, text, "FILE", NULL, NULL), 0);
    assert_int_equal(config_check(&c, &err), expected ? -EINVAL : 0);
    if (expected && !strstr(err.text, expected))
        fail_msg("'%s' does not say '%s'", err.text, expected);
}

static void settings_that_do_not_fit_each_other_are_refused(void **state) {
    (void)state;
    check_says("", NULL);
    check_says("dtype = bf16", NULL);
    check_says("dtype = bf16\nreduce_dtype = bf16", NULL);
    check_says("reduce_dtype = bf16", "expected f32, or bf16 for both");
    check_says("comm = nccl", NULL);
    check_says("comm = nccl\ndevice = cuda", NULL);
    check_says("comm = nccl\ndevice = cpu", "expected auto, self, node or mpi");
    check_says("offload = optimizer=host", NULL);
    check_says("offload = optimizer=file:/a b", NULL);
    static const char *const bad[] = {"host",           "optimizer",       "optimizer=",
                                      "optimizer=file", "optimizer=file:", "optimizer=host:x",
                                      "params=host"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char line[80];
        snprintf(line, sizeof line, "offload = %s", bad[i]);
        check_says(line, "expected none, optimizer=host or optimizer=file:DIR");
    }
    assert_string_equal(config_offload_dir("optimizer=file:/x"), "/x");
    assert_null(config_offload_dir("optimizer=host"));
    assert_null(config_offload_dir("none"));
}

static uint64_t ranks_of(const char *ranks, const char *device, uint32_t gpu_count) {
    struct config c;
    config_defaults(&c);
    set_ok(&c, "ranks", ranks);
    set_ok(&c, "device", device);
    return config_ranks(&c, gpu_count);
}

static void ranks_are_one_a_gpu_unless_set(void **state) {
    (void)state;
#ifdef HAVE_MPI
    uint64_t eight = 8, none = 2;
#else
    uint64_t eight = 1, none = 1;
#endif
    assert_int_equal(ranks_of("0", "auto", 8), eight);
    assert_int_equal(ranks_of("0", "cuda", 8), eight);
    assert_int_equal(ranks_of("0", "cuda", 1), 1);
    assert_int_equal(ranks_of("0", "cpu", 8), none);
    assert_int_equal(ranks_of("0", "auto", 0), none);
    assert_int_equal(ranks_of("3", "auto", 8), 3);
    assert_int_equal(ranks_of("3", "cpu", 0), 3);
    assert_true(ranks_of("0", "cuda", UINT32_MAX) <= KNOB_MAX_RANKS);
}

static void numbers_read_back_as_they_were(void **state) {
    (void)state;
    static const double values[] = {0.1, 1e-3, 3e-4, 1.0 / 3, 1e-300, 987.654321, 0};
    struct config c, d;
    char text[64];
    config_defaults(&c);
    config_defaults(&d);
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        c.lr = values[i];
        assert_int_equal(config_get(&c, knob_find("lr"), text, sizeof text), 0);
        set_ok(&d, "lr", text);
        assert_true(d.lr == values[i]);
    }
    assert_int_equal(config_get(&c, knob_find("lr"), text, 1), -ERANGE);
}

static void a_printed_config_parses_to_the_same(void **state) {
    (void)state;
    struct config c, d;
    config_defaults(&c);
    set_ok(&c, "data", "/a b/c");
    set_ok(&c, "data", "/d#e");
    set_ok(&c, "lr", "0.123456789");
    set_ok(&c, "wrap", "size:1000");
    for (int comments = 0; comments < 2; comments++) {
        struct enc e = {0};
        struct err err = {0};
        config_print(&c, comments, &e);
        enc_u8(&e, 0);
        config_defaults(&d);
        set_ok(&d, "data", "/replaced");
        assert_int_equal(config_parse(&d, (const char *)e.data, "text", NULL, &err), 0);
        assert_string_equal(d.data, "/a b/c\n/d#e");
        for (size_t i = 0; i < knob_count; i++)
            assert_true(config_equal(&c, &d, &knob_table[i]));
        enc_free(&e);
    }
}

static void parse_fails(const char *text, const char *expected) {
    struct config c;
    struct err err = {0};
    config_defaults(&c);
    int rc = config_parse(&c, text, "FILE", NULL, &err);
    assert_int_equal(rc, -err.code);
    assert_true(err.code == EINVAL || err.code == ERANGE);
    if (!strstr(err.text, expected))
        fail_msg("'%s' does not say '%s'", err.text, expected);
}

static void a_bad_file_names_line_and_knob(void **state) {
    (void)state;
    parse_fails("lr = 1\n\n# x\nranks = 4097\n", "FILE:4: ranks = 4097");
    parse_fails("stpes = 3", "FILE:1: there is no knob 'stpes'; did you mean 'steps'?");
    parse_fails("lr 3", "expected `knob = value`");
    parse_fails("stay = 1", "--stay");
    parse_fails("data =", "data");
    parse_fails("zzzzzzzz = 3", "there is no knob 'zzzzzzzz'");
}

static void what_was_given_is_marked(void **state) {
    (void)state;
    struct config c;
    struct err err = {0};
    bool given[64] = {false};
    assert_true(knob_count <= 64);
    config_defaults(&c);
    assert_int_equal(config_parse(&c, "  lr=1 \r\n\tseed = 4", "x", given, &err), 0);
    for (size_t i = 0; i < knob_count; i++)
        assert_int_equal(given[i], strcmp(knob_table[i].name, "lr") == 0 ||
                                       strcmp(knob_table[i].name, "seed") == 0);
    assert_int_equal(c.seed, 4);
}

static void paths_that_do_not_fit_are_refused(void **state) {
    (void)state;
    struct config c;
    char path[1000];
    config_defaults(&c);
    memset(path, 'p', sizeof path);
    path[sizeof path - 1] = '\0';
    int rc = 0, count = 0;
    while (!rc && count < 100)
        if (!(rc = config_set(&c, knob_find("data"), path, NULL)))
            count++;
    assert_int_equal(rc, -ERANGE);
    assert_int_equal(count, KNOB_PATHS_BYTES / 1000);
    config_clear_paths(&c, knob_find("data"));
    assert_string_equal(c.data, "");
}

static void misspelt_names_are_suggested(void **state) {
    (void)state;
    assert_string_equal(knob_suggest("weigth_decay")->name, "weight_decay");
    assert_string_equal(knob_suggest("seq-len")->name, "seq_len");
    assert_string_equal(knob_suggest("snapshot")->name, "snapshot_every");
    assert_null(knob_suggest("zzzz"));
    assert_null(knob_suggest(""));
    char *longer = calloc(1, 5000);
    memset(longer, 'l', 4999);
    assert_null(knob_suggest(longer));
    free(longer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_is_whole),
        cmocka_unit_test(every_default_is_valid),
        cmocka_unit_test(values_are_checked),
        cmocka_unit_test(values_are_stored),
        cmocka_unit_test(settings_that_do_not_fit_each_other_are_refused),
        cmocka_unit_test(ranks_are_one_a_gpu_unless_set),
        cmocka_unit_test(numbers_read_back_as_they_were),
        cmocka_unit_test(a_printed_config_parses_to_the_same),
        cmocka_unit_test(a_bad_file_names_line_and_knob),
        cmocka_unit_test(what_was_given_is_marked),
        cmocka_unit_test(paths_that_do_not_fit_are_refused),
        cmocka_unit_test(misspelt_names_are_suggested),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
