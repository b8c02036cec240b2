/* test_err.c - the first cause, its prefixes, and where text ends. */
#include "config.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"

static void an_error_has_a_code_and_a_sentence(void **state) {
    (void)state;
    struct err err = {0};
    assert_int_equal(err_set(&err, EINVAL, "lr = %s: expected a number", "x"), -EINVAL);
    assert_int_equal(err.code, EINVAL);
    assert_string_equal(err.text, "lr = x: expected a number");
    assert_int_equal(err_set(NULL, ENOMEM, "nobody asks"), -ENOMEM);
}

static void the_first_cause_wins(void **state) {
    (void)state;
    struct err err = {0};
    err_set(&err, ENOENT, "first");
    assert_int_equal(err_set(&err, EIO, "second"), -EIO);
    assert_int_equal(err.code, ENOENT);
    assert_string_equal(err.text, "first");
}

static void prefixes_stand_before_the_text(void **state) {
    (void)state;
    struct err err = {0};
    err_set(&err, EIO, "cause");
    assert_int_equal(err_prefix(&err, "file %d", 7), -EIO);
    assert_int_equal(err_prefix(&err, "rank"), -EIO);
    assert_string_equal(err.text, "rank: file 7: cause");
    assert_int_equal(err_prefix(&err, "%s", ""), -EIO);
    assert_string_equal(err.text, ": rank: file 7: cause");
}

static void success_takes_no_prefix(void **state) {
    (void)state;
    struct err err = {0};
    assert_int_equal(err_prefix(&err, "rank"), 0);
    assert_string_equal(err.text, "");
    assert_int_equal(err_prefix(NULL, "rank"), 0);
}

static void a_long_text_is_cut_and_terminated(void **state) {
    (void)state;
    struct err err = {0};
    char text[2 * ERR_TEXT_BYTES];
    memset(text, 't', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    err_set(&err, EIO, "%s", text);
    assert_int_equal(strlen(err.text), ERR_TEXT_BYTES - 1);
}

/* All lengths of both around the end of the text: the prefix is kept, the text is cut. */
static void a_long_prefix_cuts_the_text(void **state) {
    (void)state;
    for (size_t n = 0; n < ERR_TEXT_BYTES + 20; n++) {
        for (size_t t = 0; t < ERR_TEXT_BYTES; t += t < 8 || t > ERR_TEXT_BYTES - 8 ? 1 : 61) {
            struct {
                struct err err;
                char guard[4];
            } s = {.guard = {'g', 'g', 'g', 'g'}};
            char prefix[ERR_TEXT_BYTES + 20], text[ERR_TEXT_BYTES], want[2 * sizeof(prefix)];
            memset(prefix, 'p', n);
            prefix[n < sizeof(prefix) ? n : sizeof(prefix) - 1] = '\0';
            memset(text, 't', t);
            text[t] = '\0';
            err_set(&s.err, EIO, "%s", text);
            assert_int_equal(err_prefix(&s.err, "%s", prefix), -EIO);
            size_t kept = n < ERR_TEXT_BYTES - 3 ? n : ERR_TEXT_BYTES - 3;
            memset(want, 'p', kept);
            memcpy(want + kept, ": ", 2);
            memcpy(want + kept + 2, text, t + 1);
            want[ERR_TEXT_BYTES - 1] = '\0';
            assert_string_equal(s.err.text, want);
            assert_memory_equal(s.guard, "gggg", 4);
        }
    }
}

static void a_prefix_may_be_made_of_the_text(void **state) {
    (void)state;
    struct err err = {0};
    err_set(&err, EIO, "cause");
    err_prefix(&err, "<%s>", err.text);
    assert_string_equal(err.text, "<cause>: cause");
}

static void a_text_is_one_line_of_utf8(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"plain \x7e", "plain ~"},
        {"a\nb\tc\x1b[1m\x7f", "a?b?c?[1m?"},
        {"\xc3\xbc \xe2\x82\xac \xf0\x9f\x8d\xba", "\xc3\xbc \xe2\x82\xac \xf0\x9f\x8d\xba"},
        {"\xff\xfe", "??"},
        {"\xc0\xaf \xe0\x80\xaf \xf0\x80\x80\xaf", "?? ??? ????"}, /* overlong */
        {"\xed\xa0\x80", "???"},                                   /* a surrogate */
        {"\xf4\x90\x80\x80 \xf5", "???? ?"},                       /* beyond the last */
        {"\xc2\x9b", "??"},                                        /* a control character */
        {"cut \xe2\x82", "cut ??"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct err err = {0};
        err_set(&err, EIO, "%s", cases[i][0]);
        assert_string_equal(err.text, cases[i][1]);
        err_prefix(&err, "%s", cases[i][0]);
        char want[64];
        snprintf(want, sizeof(want), "%s: %s", cases[i][1], cases[i][1]);
        assert_string_equal(err.text, want);
    }
}

static void codes_have_names(void **state) {
    (void)state;
    assert_string_equal(err_name(0), "OK");
    assert_string_equal(err_name(ENOBUFS), "ENOBUFS");
    assert_string_equal(err_name(EPROTO), "EPROTO");
    assert_string_equal(err_name(-EPROTO), "E?");
    assert_string_equal(err_name(99999), "E?");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_error_has_a_code_and_a_sentence),
        cmocka_unit_test(the_first_cause_wins),
        cmocka_unit_test(prefixes_stand_before_the_text),
        cmocka_unit_test(success_takes_no_prefix),
        cmocka_unit_test(a_long_text_is_cut_and_terminated),
        cmocka_unit_test(a_long_prefix_cuts_the_text),
        cmocka_unit_test(a_prefix_may_be_made_of_the_text),
        cmocka_unit_test(a_text_is_one_line_of_utf8),
        cmocka_unit_test(codes_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
