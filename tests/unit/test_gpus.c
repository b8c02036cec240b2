/* test_gpus.c - what `gatherfs-rank --devices` printed, and the number of ranks that follows. */
#include "config.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "run/gpus.h"

static uint32_t parse(const char *printed, const char *expected_why) {
    char text[1024], why[200];
    snprintf(text, sizeof text, "%s", printed);
    uint32_t count = gpus_parse(text, why, sizeof why);
    assert_string_equal(why, expected_why);
    return count;
}

static void a_line_a_gpu_is_counted(void **state) {
    (void)state;
    assert_int_equal(parse("0 NVIDIA H200 150754820096 bytes\n", ""), 1);
    assert_int_equal(
        parse("0 NVIDIA H200 150754820096 bytes\n1 NVIDIA H200 150754820096 bytes", ""), 2);
    assert_int_equal(parse("a loader's warning\n0 A 1 bytes\n1 B 1 bytes\nanother\n", ""), 2);
}

static void what_is_no_gpu_is_the_reason(void **state) {
    (void)state;
    assert_int_equal(parse("", ""), 0);
    assert_int_equal(parse("no GPU: no driver\n", "no GPU: no driver"), 0);
    assert_int_equal(parse("warning\n\nno GPU: no driver\n\n", "no GPU: no driver"), 0);
    assert_int_equal(parse("1 NVIDIA H200 5 bytes\n", "1 NVIDIA H200 5 bytes"), 0);
    assert_int_equal(parse("0 bytes\n", "0 bytes"), 0);
    assert_int_equal(parse("0x NVIDIA 5 bytes\n", "0x NVIDIA 5 bytes"), 0);
    assert_int_equal(parse("0 NVIDIA 5 bytes more\n", "0 NVIDIA 5 bytes more"), 0);
}

/* A program that stands for gatherfs-rank. */
static void play(const char *script) {
    char path[] = "/tmp/gatherfs-gpus.XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_true(dprintf(fd, "#!/bin/sh\n%s\n", script) > 0);
    assert_int_equal(fchmod(fd, 0700), 0);
    close(fd);
    assert_int_equal(setenv("GATHERFS_RANK_PROGRAM", path, 1), 0);
}

static void stop_playing(void) {
    assert_int_equal(unlink(getenv("GATHERFS_RANK_PROGRAM")), 0);
    unsetenv("GATHERFS_RANK_PROGRAM");
}

static void choose(const char *text, int code, uint64_t ranks, const char *says) {
    struct config c;
    struct err err = {0};
    config_defaults(&c);
    assert_int_equal(config_parse(&c, text, "text", NULL, NULL), 0);
    assert_int_equal(gpus_choose_ranks(&c, &err), -code);
    if (code == 0)
        assert_int_equal(c.ranks, ranks);
    else if (strstr(err.text, says) == NULL)
        fail_msg("'%s' does not say '%s'", err.text, says);
}

static void ranks_follow_what_the_program_says(void **state) {
    (void)state;
    struct config none;
    config_defaults(&none);
    uint64_t default_ranks = config_ranks(&none, 0);
    play("[ \"$1 $2\" = '--devices cuda' ] && echo '0 a GPU 5 bytes'");
    choose("", 0, 1, NULL);
    choose("device = cuda", 0, 1, NULL);
    choose("device = cpu", 0, default_ranks, NULL);
    choose("ranks = 3", 0, 3, NULL);
    stop_playing();
    play("echo 'no GPU: no driver'; exit 1");
    choose("", 0, default_ranks, NULL);
    choose("device = cuda", ENODEV, 0, "device = cuda: no GPU: no driver");
    choose("device = cuda\nranks = 2", 0, 2, NULL);
    stop_playing();
    play("exit 1");
    choose("device = cuda", ENODEV, 0, "lists none");
    stop_playing();
}

static void without_the_program_there_is_an_error(void **state) {
    (void)state;
    assert_int_equal(setenv("GATHERFS_RANK_PROGRAM", "/nonexistent/program", 1), 0);
    choose("", ENOENT, 0, "/nonexistent/program");
    unsetenv("GATHERFS_RANK_PROGRAM");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_a_gpu_is_counted),
        cmocka_unit_test(what_is_no_gpu_is_the_reason),
        cmocka_unit_test(ranks_follow_what_the_program_says),
        cmocka_unit_test(without_the_program_there_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
