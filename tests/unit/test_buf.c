/* test_buf.c - fields out and in, in little-endian bytes, and never beyond what is there. */
#include "config.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"

static void numbers_are_little_endian(void **state) {
    (void)state;
    static const uint8_t want[] = {0x01, 0x07, 0x06, 0x05, 0x04, 0x0f, 0x0e, 0x0d, 0x0c, 0x0b, 0x0a,
                                   0x09, 0x08, 0,    0,    0,    0,    0,    0,    0xf8, 0x3f};
    struct enc e = {0};
    enc_u8(&e, 0x01);
    enc_u32(&e, 0x04050607);
    enc_u64(&e, UINT64_C(0x08090a0b0c0d0e0f));
    enc_f64(&e, 1.5);
    assert_int_equal(e.len_bytes, sizeof(want));
    assert_memory_equal(e.data, want, sizeof(want));
    struct dec d = dec_of(e.data, e.len_bytes);
    assert_int_equal(dec_u8(&d), 0x01);
    assert_int_equal(dec_u32(&d), 0x04050607);
    assert_true(dec_u64(&d) == UINT64_C(0x08090a0b0c0d0e0f));
    assert_true(dec_f64(&d) == 1.5);
    assert_true(dec_done(&d));
    enc_free(&e);
}

static void numbers_at_their_limits_come_back(void **state) {
    (void)state;
    static const uint64_t numbers[] = {0, 1, 127, 128, 255, UINT32_MAX, INT64_MAX, UINT64_MAX};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        struct enc e = {0};
        enc_u8(&e, (uint8_t)numbers[i]);
        enc_u32(&e, (uint32_t)numbers[i]);
        enc_u64(&e, numbers[i]);
        struct dec d = dec_of(e.data, e.len_bytes);
        assert_int_equal(dec_u8(&d), (uint8_t)numbers[i]);
        assert_int_equal(dec_u32(&d), (uint32_t)numbers[i]);
        assert_true(dec_u64(&d) == numbers[i]);
        enc_free(&e);
    }
}

static void reals_keep_all_their_bits(void **state) {
    (void)state;
    const double reals[] = {0.0, -0.0, 4.9e-324, 1.7976931348623157e308, INFINITY, -INFINITY, NAN};
    for (size_t i = 0; i < sizeof(reals) / sizeof(reals[0]); i++) {
        struct enc e = {0};
        enc_f64(&e, reals[i]);
        struct dec d = dec_of(e.data, e.len_bytes);
        double back = dec_f64(&d);
        assert_memory_equal(&back, &reals[i], sizeof(back));
        enc_free(&e);
    }
}

static void strings_and_blobs_come_back(void **state) {
    (void)state;
    struct enc e = {0};
    char out[6] = "xxxxx";
    size_t n;
    enc_str(&e, "hello");
    enc_str(&e, "");
    enc_str(&e, NULL);
    enc_blob(&e, "\0\1\2", 3);
    enc_blob(&e, NULL, 0);
    enc_str(&e, "again");
    enc_bytes(&e, "raw", 3);
    struct dec d = dec_of(e.data, e.len_bytes);
    dec_str(&d, out, sizeof(out));
    assert_string_equal(out, "hello");
    dec_str(&d, out, sizeof(out));
    assert_string_equal(out, "");
    dec_str(&d, out, 1);
    assert_string_equal(out, "");
    const uint8_t *blob = dec_blob(&d, &n);
    assert_int_equal(n, 3);
    assert_memory_equal(blob, "\0\1\2", 3);
    assert_true(blob > e.data && blob < e.data + e.len_bytes); /* a view */
    dec_blob(&d, &n);
    assert_int_equal(n, 0);
    char *s = dec_strdup(&d, 5);
    assert_string_equal(s, "again");
    free(s);
    assert_false(dec_done(&d)); /* "raw" is left */
    assert_false(d.bad);
    enc_free(&e);
}

static void strings_with_a_nul_or_without_room_are_bad(void **state) {
    (void)state;
    struct enc e = {0};
    char out[8] = "before";
    enc_blob(&e, "ab\0c", 4);
    struct dec d = dec_of(e.data, e.len_bytes);
    dec_str(&d, out, sizeof(out));
    assert_true(d.bad);
    assert_string_equal(out, "");
    d = dec_of(e.data, e.len_bytes);
    assert_null(dec_strdup(&d, 100));
    assert_true(d.bad);
    enc_reset(&e);
    enc_str(&e, "seven..");
    for (size_t cap = 1; cap <= sizeof(out); cap++) {
        d = dec_of(e.data, e.len_bytes);
        memset(out, 'x', sizeof(out));
        dec_str(&d, out, cap);
        assert_true(d.bad == (cap < 8));
        assert_string_equal(out, cap < 8 ? "" : "seven..");
        d = dec_of(e.data, e.len_bytes);
        char *s = dec_strdup(&d, cap);
        assert_true((s != NULL) == (cap >= 7));
        free(s);
    }
    enc_free(&e);
}

static void reading_beyond_the_end_is_bad_and_stays_so(void **state) {
    (void)state;
    static const uint8_t bytes[7] = {1, 2, 3, 4, 5, 6, 7};
    struct dec d = dec_of(bytes, 7);
    size_t n = 99;
    char out[4] = "abc";
    assert_true(dec_u64(&d) == 0);
    assert_true(d.bad);
    assert_int_equal(dec_u8(&d), 0); /* though there are bytes */
    assert_int_equal(dec_u32(&d), 0);
    assert_true(dec_f64(&d) == 0.0);
    assert_null(dec_blob(&d, &n));
    assert_int_equal(n, 0);
    dec_str(&d, out, sizeof(out));
    assert_string_equal(out, "");
    assert_null(dec_strdup(&d, 10));
    assert_false(dec_done(&d));
}

static void lengths_beyond_the_end_are_bad(void **state) {
    (void)state;
    static const uint32_t claims[] = {4, 5, UINT32_C(1) << 31, UINT32_MAX};
    for (size_t i = 0; i < sizeof(claims) / sizeof(claims[0]); i++) {
        struct enc e = {0};
        size_t n = 99;
        enc_u32(&e, claims[i]);
        enc_bytes(&e, "abc", 3);
        struct dec d = dec_of(e.data, e.len_bytes);
        assert_null(dec_blob(&d, &n));
        assert_int_equal(n, 0);
        assert_true(d.bad);
        enc_free(&e);
    }
}

static void nothing_decodes_to_nothing(void **state) {
    (void)state;
    struct dec d = dec_of(NULL, 0);
    assert_true(dec_done(&d));
    assert_int_equal(dec_u8(&d), 0);
    assert_false(dec_done(&d));
}

static void a_buffer_grows_as_it_must(void **state) {
    (void)state;
    struct enc e = {0};
    for (uint32_t i = 0; i < 100000; i++)
        enc_u32(&e, i);
    assert_int_equal(e.len_bytes, 400000);
    assert_true(e.cap_bytes >= e.len_bytes && e.cap_bytes < 4 * e.len_bytes);
    struct dec d = dec_of(e.data, e.len_bytes);
    for (uint32_t i = 0; i < 100000; i++)
        assert_int_equal(dec_u32(&d), i);
    assert_true(dec_done(&d));
    uint8_t *kept = e.data;
    enc_reset(&e);
    assert_int_equal(e.len_bytes, 0);
    enc_u8(&e, 1);
    assert_ptr_equal(e.data, kept);
    enc_free(&e);
    assert_null(e.data);
    enc_free(&e);
}

static void a_blob_whose_length_does_not_fit_fails(void **state) {
    (void)state;
    struct enc e = {0};
    enc_u8(&e, 1);
    enc_blob(&e, "", (size_t)UINT32_MAX + 1); /* never read */
    assert_true(e.failed);
    enc_u8(&e, 2);
    assert_int_equal(e.len_bytes, 1);
    enc_reset(&e);
    assert_false(e.failed);
    enc_u8(&e, 3);
    assert_int_equal(e.data[0], 3);
    enc_free(&e);
}

static void printf_appends_text_without_its_nul(void **state) {
    (void)state;
    struct enc e = {0};
    char want[2000];
    enc_u8(&e, 'a');
    enc_printf(&e, "%s-%d", "b", 12);
    enc_printf(&e, "%s", "");
    enc_u8(&e, 'c');
    assert_int_equal(e.len_bytes, 6);
    assert_memory_equal(e.data, "ab-12c", 6);
    enc_reset(&e);
    memset(want, ' ', sizeof(want));
    for (int i = 0; i < 20; i++) /* up to and over the end of what is there */
        enc_printf(&e, "%100s", "");
    assert_int_equal(e.len_bytes, 2000);
    assert_memory_equal(e.data, want, 2000);
    enc_free(&e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_little_endian),
        cmocka_unit_test(numbers_at_their_limits_come_back),
        cmocka_unit_test(reals_keep_all_their_bits),
        cmocka_unit_test(strings_and_blobs_come_back),
        cmocka_unit_test(strings_with_a_nul_or_without_room_are_bad),
        cmocka_unit_test(reading_beyond_the_end_is_bad_and_stays_so),
        cmocka_unit_test(lengths_beyond_the_end_are_bad),
        cmocka_unit_test(nothing_decodes_to_nothing),
        cmocka_unit_test(a_buffer_grows_as_it_must),
        cmocka_unit_test(a_blob_whose_length_does_not_fit_fails),
        cmocka_unit_test(printf_appends_text_without_its_nul),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
