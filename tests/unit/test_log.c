/* test_log.c - one event, one line, one write. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <regex.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"

static struct { int saved_stderr, pipe[2]; } capture;

/* A pipe of packets: what one write(2) said is what one read gives. */
static int capture_begin(void **state) {
    (void)state;
    if (pipe2(capture.pipe, O_DIRECT | O_NONBLOCK | O_CLOEXEC) != 0)
        return -1;
    capture.saved_stderr = dup(STDERR_FILENO);
    log_open("gatherfs", LEVEL_INFO);
    return dup2(capture.pipe[1], STDERR_FILENO) < 0 ? -1 : 0;
}

static int capture_end(void **state) {
    (void)state;
    dup2(capture.saved_stderr, STDERR_FILENO);
    close(capture.saved_stderr);
    close(capture.pipe[0]);
    close(capture.pipe[1]);
    return 0;
}

/* The next line, "" if none was written. */
static void next_line(char line[4096]) {
    ssize_t n = read(capture.pipe[0], line, 4095);
    line[n > 0 ? n : 0] = '\0';
}

static void expect_line(const char *pattern) {
    char line[4096];
    regex_t re;
    next_line(line);
    assert_int_equal(regcomp(&re, pattern, REG_EXTENDED | REG_NOSUB), 0);
    int rc = regexec(&re, line, 0, NULL, 0);
    regfree(&re);
    if (rc != 0)
        print_message("'%s' does not match '%s'\n", line, pattern);
    assert_int_equal(rc, 0);
}

#define STAMP "^[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9]\\.[0-9]{3}Z "

static void a_line_has_time_component_level_and_text(void **state) {
    (void)state;
    log_open("rank 1", LEVEL_DEBUG);
    log_error("number %d", 7);
    expect_line(STAMP "rank 1: error: number 7\n$");
    log_warn("w");
    expect_line(STAMP "rank 1: warning: w\n$");
    log_info("%s", "");
    expect_line(STAMP "rank 1: info: \n$");
    log_debug("d");
    expect_line(STAMP "rank 1: debug: d\n$");
}

static void less_important_lines_are_left_out(void **state) {
    (void)state;
    static void (*const logs[])(const char *, ...) = {log_error, log_warn, log_info, log_debug};
    char line[4096];
    for (int limit = LEVEL_ERROR; limit <= LEVEL_DEBUG; limit++) {
        log_set_level((enum log_level)limit);
        for (int level = LEVEL_ERROR; level <= LEVEL_DEBUG; level++) {
            logs[level]("x");
            next_line(line);
            assert_true((line[0] != '\0') == (level <= limit));
        }
    }
}

static void a_long_line_is_cut_and_still_ends(void **state) {
    (void)state;
    char text[3000], line[4096];
    for (size_t n = 900; n < 1100; n++) {
        memset(text, 't', n);
        text[n] = '\0';
        log_info("%s", text);
        next_line(line);
        size_t len = strlen(line);
        assert_true(len <= 1024);
        assert_int_equal(line[len - 1], '\n');
        assert_int_equal(line[len - 2], 't');
        next_line(line);
        assert_string_equal(line, "");
    }
}

static void a_long_component_is_cut(void **state) {
    (void)state;
    log_open("0123456789012345678901234567890123456789", LEVEL_INFO);
    log_info("x");
    expect_line(STAMP "0123456789012345678901234567890: info: x\n$");
}

/* Names of tensors and files, and what peers say, come into the log. */
static void control_bytes_do_not_break_a_line_in_two(void **state) {
    (void)state;
    log_info("a\nb\rc\033[2Jd\te\x7f"
             "f \xc3\xa4");
    expect_line(STAMP "gatherfs: info: a\\?b\\?c\\?\\[2Jd\\?e\\?f \xc3\xa4\n$");
    char line[4096];
    next_line(line);
    assert_string_equal(line, "");
}

static void errno_is_left_alone(void **state) {
    (void)state;
    errno = EXDEV;
    log_info("x");
    assert_int_equal(errno, EXDEV);
    close(STDERR_FILENO);
    errno = EXDEV;
    log_info("x");
    assert_int_equal(errno, EXDEV);
}

int main(void) {
#define CAPTURED(test) cmocka_unit_test_setup_teardown(test, capture_begin, capture_end)
    const struct CMUnitTest tests[] = {
        CAPTURED(a_line_has_time_component_level_and_text),
        CAPTURED(less_important_lines_are_left_out),
        CAPTURED(a_long_line_is_cut_and_still_ends),
        CAPTURED(a_long_component_is_cut),
        CAPTURED(control_bytes_do_not_break_a_line_in_two),
        CAPTURED(errno_is_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
