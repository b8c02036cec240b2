/* test_offload.c - state that rests in a file: what comes back, in what order, and what fails. */
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/offload.h"
#include "engine/offload_file.h"

enum { UNIT_BYTES = 3 * OFFLOAD_ALIGN_BYTES, UNITS = 5 };

static void values_are_checked(void **state) {
    (void)state;
    static const char *const wrong[] = {"",     "host",           "optimizer",       "optimizer=",
                                        "None", "optimizer=disk", "optimizer=file:", "params=host"};
    enum offload_kind kind;
    const char *dir;
    struct err err = {0};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(offload_parse(wrong[i], &kind, &dir, &err), -EINVAL);
        assert_non_null(strstr(err.text, "none, optimizer=host or optimizer=file:DIR"));
    }
    assert_int_equal(offload_parse("none", &kind, &dir, &err), 0);
    assert_int_equal(kind, OFFLOAD_NONE);
    assert_int_equal(offload_parse("optimizer=host", &kind, &dir, &err), 0);
    assert_int_equal(kind, OFFLOAD_HOST);
    assert_int_equal(offload_parse("optimizer=file:/a b", &kind, &dir, &err), 0);
    assert_int_equal(kind, OFFLOAD_FILE);
    assert_string_equal(dir, "/a b");
}

static void a_directory_that_is_none_is_named(void **state) {
    (void)state;
    struct offload_file *f = NULL;
    struct err err = {0};
    assert_int_equal(offload_file_open("/nonexistent/gfs", 1 << 20, &f, &err), -ENOENT);
    assert_non_null(strstr(err.text, "optimizer=file:/nonexistent/gfs"));
    assert_non_null(strstr(err.text, "No such file"));
    assert_int_equal(offload_file_open("/dev/null", 1 << 20, &f, &err), -ENOTDIR);
    assert_null(f);
}

static struct offload_file *file_new(uint64_t bytes) {
    struct offload_file *f = NULL;
    struct err err = {0};
    const char *dir = getenv("TMPDIR");
    if (offload_file_open(dir != NULL ? dir : "/tmp", bytes, &f, &err) != 0)
        fail_msg("%s", err.text);
    return f;
}

static uint8_t *block_new(size_t bytes) {
    uint8_t *p = aligned_alloc(OFFLOAD_ALIGN_BYTES, bytes);
    assert_non_null(p);
    return p;
}

static void what_was_never_written_is_zero_and_the_rest_comes_back(void **state) {
    (void)state;
    struct offload_file *f = file_new((uint64_t)UNITS * UNIT_BYTES);
    uint8_t *out = block_new(UNIT_BYTES), *in = block_new(UNIT_BYTES);
    for (uint32_t u = 0; u < UNITS; u++) {
        struct offload_job job = {
            .offset = (uint64_t)u * UNIT_BYTES, .data = in, .bytes = UNIT_BYTES};
        memset(in, 9, UNIT_BYTES);
        assert_int_equal(offload_file_wait(f, offload_file_start(f, &job)), 0);
        for (size_t i = 0; i < UNIT_BYTES; i++)
            assert_int_equal(in[i], 0);
        /* Reads that follow writes see them: jobs run in their order. */
        memset(out, (int)u + 1, UNIT_BYTES);
        job.write = true;
        job.data = out;
        offload_file_start(f, &job);
        job.write = false;
        job.data = in;
        assert_int_equal(offload_file_wait(f, offload_file_start(f, &job)), 0);
        assert_memory_equal(in, out, UNIT_BYTES);
    }
    free(in);
    free(out);
    offload_file_close(f);
}

static void readers_get_any_range(void **state) {
    (void)state;
    enum { BYTES = 5 << 19 };
    struct offload_file *f = file_new(BYTES);
    uint8_t *want = block_new(BYTES), *got = block_new(BYTES);
    static const struct {
        size_t offset, bytes;
    } ranges[] = {{0, BYTES}, {1, 1},    {4095, 2},           {4096, 4096},
                  {5, 0},     {3, 9000}, {(1 << 20) - 3, 11}, {7, (2 << 20) + 5}};
    for (size_t i = 0; i < BYTES; i++)
        want[i] = (uint8_t)(i * 31 + (i >> 12));
    assert_int_equal(offload_file_write(f, 0, BYTES, want), 0);
    for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++) {
        memset(got, 0, ranges[r].bytes);
        assert_int_equal(offload_file_read(f, ranges[r].offset, ranges[r].bytes, got), 0);
        assert_memory_equal(got, want + ranges[r].offset, ranges[r].bytes);
        for (size_t i = 0; i < ranges[r].bytes; i++)
            want[ranges[r].offset + i] ^= 0x55;
        assert_int_equal(
            offload_file_write(f, ranges[r].offset, ranges[r].bytes, want + ranges[r].offset), 0);
        assert_int_equal(offload_file_read(f, 0, BYTES, got), 0);
        assert_memory_equal(got, want, BYTES);
    }
    free(got);
    free(want);
    offload_file_close(f);
}

static int refuse(void *ctx) {
    (void)ctx;
    return -EIO;
}

static void after_a_failure_all_jobs_fail_and_say_why(void **state) {
    (void)state;
    struct offload_file *f = file_new(UNIT_BYTES);
    uint8_t *data = block_new(UNIT_BYTES);
    memset(data, 1, UNIT_BYTES);
    struct offload_job job = {.write = true, .data = data, .bytes = UNIT_BYTES, .before = refuse};
    assert_string_equal(offload_file_why(f), "");
    assert_int_equal(offload_file_wait(f, offload_file_start(f, &job)), -EIO);
    job.before = NULL;
    assert_int_equal(offload_file_wait(f, offload_file_start(f, &job)), -EIO);
    assert_non_null(strstr(offload_file_why(f), "writing the scratch file in"));
    free(data);
    offload_file_close(f);
}

/* Beyond its end: what a file that somebody else cut would give. */
static void a_read_that_ends_early_is_an_error(void **state) {
    (void)state;
    struct offload_file *f = file_new(UNIT_BYTES);
    uint8_t byte;
    assert_int_equal(offload_file_read(f, (uint64_t)2 * UNIT_BYTES, 1, &byte), -EIO);
    offload_file_close(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_checked),
        cmocka_unit_test(a_directory_that_is_none_is_named),
        cmocka_unit_test(what_was_never_written_is_zero_and_the_rest_comes_back),
        cmocka_unit_test(readers_get_any_range),
        cmocka_unit_test(after_a_failure_all_jobs_fail_and_say_why),
        cmocka_unit_test(a_read_that_ends_early_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
