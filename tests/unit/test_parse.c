/* test_parse.c - whole string or nothing: numbers, sizes, names, and what people read. */
#include "config.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/parse.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static void integers_are_digits_only(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int rc;
        uint64_t value;
    } cases[] = {
        {"0", 0, 0},
        {"7", 0, 7},
        {"0010", 0, 10},
        {"18446744073709551615", 0, UINT64_MAX},
        {"000000000000000000000000000000000000000018446744073709551615", 0, UINT64_MAX},
        {"18446744073709551616", -ERANGE, 0},
        {"18446744073709551620", -ERANGE, 0},
        {"99999999999999999999", -ERANGE, 0},
        {"100000000000000000000000000000000000000000", -ERANGE, 0},
        {"", -EINVAL, 0},
        {" 1", -EINVAL, 0},
        {"1 ", -EINVAL, 0},
        {"1\n", -EINVAL, 0},
        {"+1", -EINVAL, 0},
        {"-1", -EINVAL, 0},
        {"0x10", -EINVAL, 0},
        {"1.0", -EINVAL, 0},
        {"1e3", -EINVAL, 0},
        {"18446744073709551616x", -EINVAL, 0},
        {"1\xd9\xa1", -EINVAL, 0},
        {"one", -EINVAL, 0},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        uint64_t v = 4711;
        assert_int_equal(parse_u64(cases[i].text, &v), cases[i].rc);
        assert_true(v == (cases[i].rc == 0 ? cases[i].value : 4711));
    }
}

static void reals_are_finite_decimal_numbers(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int rc;
        double value;
    } cases[] = {
        {"0", 0, 0},
        {"-0.5", 0, -0.5},
        {"+1", 0, 1},
        {"3e-4", 0, 3e-4},
        {"3E+4", 0, 3e4},
        {".5", 0, 0.5},
        {"5.", 0, 5},
        {"1.7976931348623157e308", 0, 1.7976931348623157e308},
        {"1e-400", 0, 0},
        {"1e400", -ERANGE, 0},
        {"-1e400", -ERANGE, 0},
        {"", -EINVAL, 0},
        {".", -EINVAL, 0},
        {"e5", -EINVAL, 0},
        {"1e", -EINVAL, 0},
        {"1e5.5", -EINVAL, 0},
        {"+-1", -EINVAL, 0},
        {"--1", -EINVAL, 0},
        {"1,5", -EINVAL, 0},
        {" 1", -EINVAL, 0},
        {"1 ", -EINVAL, 0},
        {"0x1p3", -EINVAL, 0},
        {"inf", -EINVAL, 0},
        {"nan", -EINVAL, 0},
        {"1.0.0", -EINVAL, 0},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        double v = 4711;
        assert_int_equal(parse_f64(cases[i].text, &v), cases[i].rc);
        assert_true(v == (cases[i].rc == 0 ? cases[i].value : 4711));
    }
}

static void sizes_may_have_a_unit(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int rc;
        uint64_t value;
    } cases[] = {
        {"0", 0, 0},
        {"512", 0, 512},
        {"0K", 0, 0},
        {"1K", 0, UINT64_C(1) << 10},
        {"3M", 0, UINT64_C(3) << 20},
        {"4G", 0, UINT64_C(4) << 30},
        {"16T", 0, UINT64_C(16) << 40},
        {"18446744073709551615", 0, UINT64_MAX},
        {"16777215T", 0, UINT64_C(16777215) << 40},
        {"000000000000000000000000000000000000000001K", 0, 1024},
        {"16777216T", -ERANGE, 0},
        {"18014398509481984K", -ERANGE, 0},
        {"18446744073709551616", -ERANGE, 0},
        {"18446744073709551616K", -ERANGE, 0},
        {"99999999999999999999999999999999999999999", -ERANGE, 0},
        {"99999999999999999999999999999999999999999T", -ERANGE, 0},
        {"", -EINVAL, 0},
        {"K", -EINVAL, 0},
        {"KK", -EINVAL, 0},
        {"1KK", -EINVAL, 0},
        {"1KB", -EINVAL, 0},
        {"1k", -EINVAL, 0},
        {"1P", -EINVAL, 0},
        {"1.5G", -EINVAL, 0},
        {"1 G", -EINVAL, 0},
        {"-1K", -EINVAL, 0},
        {"0x1K", -EINVAL, 0},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        uint64_t v = 4711;
        assert_int_equal(parse_bytes(cases[i].text, &v), cases[i].rc);
        assert_true(v == (cases[i].rc == 0 ? cases[i].value : 4711));
    }
}

static void names_are_safe_as_file_names(void **state) {
    (void)state;
    static const char *const good[] = {"a", "_", "0", "step-100", "a.b_c-D9", "_.", "best..1"};
    static const char *const bad[] = {"",    ".",   "..",       ".tmp", "-rf", "a/b", "a b",
                                      "a\n", "a:b", "\xc3\xa4", "a\\",  "a*",  "a%"};
    for (size_t i = 0; i < COUNT(good); i++)
        assert_true(parse_name_ok(good[i]));
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_false(parse_name_ok(bad[i]));
}

static void command_ids_may_start_with_anything_they_may_have(void **state) {
    (void)state;
    static const char *const good[] = {"a", "-", ".", ":", "job:17", "2024-01-01T00:00:00"};
    static const char *const bad[] = {"", "a b", "a/b", "a=b", "\x7f"};
    for (size_t i = 0; i < COUNT(good); i++)
        assert_true(parse_command_id_ok(good[i]));
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_false(parse_command_id_ok(bad[i]));
}

static void each_byte_is_allowed_or_not_as_the_header_says(void **state) {
    (void)state;
    for (int c = 1; c < 256; c++) {
        const char first[] = {(char)c, '\0'}, later[] = {'a', (char)c, '\0'};
        bool alnum = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        assert_true(parse_name_ok(first) == (alnum || c == '_'));
        assert_true(parse_name_ok(later) == (alnum || c == '_' || c == '.' || c == '-'));
        assert_true(parse_command_id_ok(later) ==
                    (alnum || c == '_' || c == '.' || c == '-' || c == ':'));
    }
}

static void names_and_ids_have_a_longest(void **state) {
    (void)state;
    char text[200];
    for (size_t n = 1; n < sizeof(text); n++) {
        memset(text, 'n', n);
        text[n] = '\0';
        assert_true(parse_name_ok(text) == (n <= NAME_MAX_BYTES));
        assert_true(parse_command_id_ok(text) == (n <= COMMAND_ID_MAX_BYTES));
    }
}

static void bytes_are_printed_for_people(void **state) {
    (void)state;
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {
        {0, "0 B"},
        {1, "1 B"},
        {1023, "1023 B"},
        {1024, "1.0 KiB"},
        {1536, "1.5 KiB"},
        {12 << 10, "12.0 KiB"},
        {100 << 10, "100 KiB"},
        {UINT64_C(3) << 29, "1.5 GiB"},
        {UINT64_MAX, "16.0 EiB"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char out[32];
        parse_format_bytes(cases[i].bytes, out, sizeof(out));
        assert_string_equal(out, cases[i].text);
    }
    char small[4];
    parse_format_bytes(1023, small, sizeof(small));
    assert_string_equal(small, "102");
}

static void seconds_are_printed_for_people(void **state) {
    (void)state;
    static const struct {
        double seconds;
        const char *text;
    } cases[] = {
        {0, "0s"},        {0.4, "0s"},     {41, "41s"},      {59.6, "1m00s"},   {60, "1m00s"},
        {3599, "59m59s"}, {3600, "1h00m"}, {10920, "3h02m"}, {86399, "23h59m"}, {86400, "1d00h"},
        {1e6, "11d13h"},  {-1, "?"},       {2e9, "?"},
    };
    char out[32];
    for (size_t i = 0; i < COUNT(cases); i++) {
        parse_format_seconds(cases[i].seconds, out, sizeof(out));
        assert_string_equal(out, cases[i].text);
    }
    parse_format_seconds(__builtin_nan(""), out, sizeof(out));
    assert_string_equal(out, "?");
    parse_format_seconds(__builtin_inf(), out, sizeof(out));
    assert_string_equal(out, "?");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_are_digits_only),
        cmocka_unit_test(reals_are_finite_decimal_numbers),
        cmocka_unit_test(sizes_may_have_a_unit),
        cmocka_unit_test(names_are_safe_as_file_names),
        cmocka_unit_test(command_ids_may_start_with_anything_they_may_have),
        cmocka_unit_test(each_byte_is_allowed_or_not_as_the_header_says),
        cmocka_unit_test(names_and_ids_have_a_longest),
        cmocka_unit_test(bytes_are_printed_for_people),
        cmocka_unit_test(seconds_are_printed_for_people),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
