/* test_layout_wire.c - layouts as bytes: round trips, truncations, flipped bits, contradictions. */
#include "config.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fixture.h"
#include "layout_check.h"
#include "shard/layout.h"

static const char *const unit_names[] = {"root", "transformer.h.0", "transformer.h.1"};

/* Seven tensors of zero to four dimensions in three units; the root comes again at the end. */
static void make(uint32_t ranks, uint32_t align, struct layout *out) {
    static const struct tensor_spec specs[] = {
        {.name = "wte.weight", .ndim = 2, .shape = {7, 3}, .module = 0, .decay = true},
        {.name = "scalar", .ndim = 0, .module = 1},
        {.name = "h.0.weight", .ndim = 3, .shape = {2, 2, 2}, .module = 2, .decay = true},
        {.name = "h.0.none", .ndim = 2, .shape = {0, 9}, .module = 2},
        {.name = "h.1.weight", .ndim = 4, .shape = {1, 2, 1, 6}, .module = 3, .decay = true},
        {.name = "h.1.bias", .ndim = 1, .shape = {5}, .module = 3},
        {.name = "ln_f.weight", .ndim = 1, .shape = {3}, .module = 4},
    };
    static const uint32_t unit_of[] = {0, 0, 1, 1, 2, 2, 0};
    assert_int_equal(layout_build(specs, unit_of, 7, unit_names, 3, ranks, align, out, NULL), 0);
}

/* Decodes a copy that ends where memory ends, for the sanitizer to see reads beyond. */
static int decode(const uint8_t *data, size_t len, struct layout *out, bool *done) {
    uint8_t *copy = malloc(len != 0 ? len : 1);
    assert_non_null(copy);
    if (len != 0)
        memcpy(copy, data, len);
    struct dec d = dec_of(copy, len);
    struct err err = {0};
    int rc = layout_decode(&d, out, &err);
    *done = dec_done(&d);
    free(copy);
    if (rc != 0) {
        assert_int_equal(err.code, -rc);
        assert_true(err.text[0] != '\0');
    }
    return rc;
}

static void decode_gives_back_what_was_encoded(void **state) {
    (void)state;
    static const uint32_t aligns[] = {1, 4, 16, 65536};
    for (uint32_t ranks = 1; ranks <= 9; ranks++) {
        for (size_t a = 0; a < 4; a++) {
            struct layout l, back;
            struct enc e = {0};
            bool done;
            make(ranks, aligns[a], &l);
            layout_encode(&l, &e);
            assert_false(e.failed);
            assert_int_equal(decode(e.data, e.len_bytes, &back, &done), 0);
            assert_true(done);
            layout_check_equal(&l, &back);
            layout_free(&back);
            layout_free(&l);
            enc_free(&e);
        }
    }
}

static void decode_leaves_what_follows_the_layout(void **state) {
    (void)state;
    struct layout l, back;
    struct enc e = {0};
    make(3, 4, &l);
    layout_encode(&l, &e);
    enc_u32(&e, 0x01020304);
    struct dec d = dec_of(e.data, e.len_bytes);
    assert_int_equal(layout_decode(&d, &back, NULL), 0);
    assert_int_equal(dec_u32(&d), 0x01020304);
    assert_true(dec_done(&d));
    layout_free(&back);
    layout_free(&l);
    enc_free(&e);
}

static void decode_refuses_every_truncation(void **state) {
    (void)state;
    struct layout l;
    struct enc e = {0};
    make(3, 4, &l);
    layout_encode(&l, &e);
    for (size_t n = 0; n < e.len_bytes; n++) {
        struct layout back = {.world_size = 77}, before = back;
        bool done;
        assert_true(decode(e.data, n, &back, &done) < 0);
        assert_memory_equal(&back, &before, sizeof(back));
    }
    layout_free(&l);
    enc_free(&e);
}

/* Decodes what may be damaged: refused, or a layout that keeps the rules and has these very bytes.
 * Returns whether it was accepted. */
static bool decode_damaged(const uint8_t *data, size_t len) {
    struct layout back = {.world_size = 77}, before = back;
    bool done;
    int rc = decode(data, len, &back, &done);
    if (rc != 0) {
        assert_true(rc == -EPROTO || rc == -EINVAL || rc == -EOVERFLOW);
        assert_memory_equal(&back, &before, sizeof(back));
        return false;
    }
    struct enc again = {0};
    layout_check_tables(&back);
    layout_encode(&back, &again);
    assert_true(again.len_bytes <= len);
    assert_true(done == (again.len_bytes == len));
    assert_memory_equal(again.data, data, again.len_bytes);
    enc_free(&again);
    layout_free(&back);
    return true;
}

static void decode_survives_every_flipped_bit(void **state) {
    (void)state;
    struct layout l;
    struct enc e = {0};
    make(3, 4, &l);
    layout_encode(&l, &e);
    size_t accepted = 0;
    for (size_t bit = 0; bit < e.len_bytes * 8; bit++) {
        e.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        accepted += decode_damaged(e.data, e.len_bytes);
        e.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    assert_true(accepted > 0); /* a letter of a name */
    layout_free(&l);
    enc_free(&e);
}

static void decode_survives_damage_at_many_places(void **state) {
    (void)state;
    struct layout l;
    struct enc e = {0};
    uint64_t seed = 42;
    uint8_t bytes[1024];
    make(3, 4, &l);
    layout_encode(&l, &e);
    assert_true(e.len_bytes <= sizeof(bytes));
    for (int round = 0; round < 50000; round++) {
        memcpy(bytes, e.data, e.len_bytes);
        for (uint64_t k = 1 + fixture_random(&seed) % 4; k > 0; k--)
            bytes[fixture_random(&seed) % e.len_bytes] = (uint8_t)fixture_random(&seed);
        decode_damaged(bytes, e.len_bytes);
    }
    layout_free(&l);
    enc_free(&e);
}

static void decode_survives_garbage(void **state) {
    (void)state;
    uint64_t seed = 43;
    uint8_t bytes[200];
    for (int round = 0; round < 50000; round++) {
        size_t len = fixture_random(&seed) % sizeof(bytes);
        for (size_t i = 0; i < len; i++)
            bytes[i] = fixture_random(&seed) % 4 != 0 ? 0 : (uint8_t)fixture_random(&seed);
        decode_damaged(bytes, len);
    }
}

/* One unit, one tensor, field by field. */
struct one {
    uint32_t world_size, unit_count, tensor_count, unit;
    uint64_t shard_elems, dim;
    uint8_t decay, ndim;
};
static const struct one good = {2, 1, 1, 0, 5, 10, 1, 1};

static int decode_one(const struct one *o) {
    struct enc e = {0};
    struct layout l;
    bool done;
    enc_u32(&e, o->world_size);
    enc_u32(&e, o->unit_count);
    enc_str(&e, "root");
    enc_u64(&e, o->shard_elems);
    enc_u32(&e, o->tensor_count);
    enc_str(&e, "t");
    enc_u32(&e, o->unit);
    enc_u32(&e, 0);
    enc_u8(&e, o->decay);
    enc_u8(&e, o->ndim);
    enc_u64(&e, o->dim);
    int rc = decode(e.data, e.len_bytes, &l, &done);
    if (rc == 0)
        layout_free(&l);
    enc_free(&e);
    return rc;
}

static void decode_refuses_what_contradicts_the_arithmetic(void **state) {
    (void)state;
    struct one o = good;
    assert_int_equal(decode_one(&o), 0);
    o.shard_elems = 4; /* 8 of 10 elements would have a place */
    assert_int_equal(decode_one(&o), -EPROTO);
    o.shard_elems = 0;
    assert_int_equal(decode_one(&o), -EPROTO);
    o.shard_elems = 5 + 65536;
    assert_int_equal(decode_one(&o), 0);
    o.shard_elems = 5 + 65537;
    assert_int_equal(decode_one(&o), -EPROTO);
    o.shard_elems = UINT64_MAX;
    assert_int_equal(decode_one(&o), -EPROTO);
    o = good;
    o.world_size = 0;
    assert_true(decode_one(&o) < 0);
    o.world_size = LAYOUT_MAX_RANKS + 1;
    assert_true(decode_one(&o) < 0);
    o.world_size = UINT32_MAX;
    assert_true(decode_one(&o) < 0);
    o = good;
    o.unit = 1;
    assert_true(decode_one(&o) < 0);
    o.unit = UINT32_MAX;
    assert_true(decode_one(&o) < 0);
}

static void decode_refuses_numbers_out_of_range(void **state) {
    (void)state;
    struct one o = good;
    o.unit_count = LAYOUT_MAX_TENSORS + 1;
    assert_int_equal(decode_one(&o), -EPROTO);
    o.unit_count = UINT32_MAX;
    assert_int_equal(decode_one(&o), -EPROTO);
    o = good;
    o.tensor_count = UINT32_MAX;
    assert_int_equal(decode_one(&o), -EPROTO);
    o = good;
    o.ndim = TENSOR_MAX_DIMS + 1;
    assert_int_equal(decode_one(&o), -EPROTO);
    o.ndim = 255;
    assert_int_equal(decode_one(&o), -EPROTO);
    o = good;
    o.decay = 2;
    assert_int_equal(decode_one(&o), -EPROTO);
    o = good;
    o.dim = UINT64_C(1) << 57;
    o.shard_elems = UINT64_C(1) << 56;
    assert_true(decode_one(&o) < 0);
    o.dim = UINT64_MAX;
    assert_true(decode_one(&o) < 0);
}

/* The shards would be right one by one, and the offsets in a dump wrap around. */
static void decode_refuses_units_that_are_too_large_together(void **state) {
    (void)state;
    struct enc e = {0};
    struct layout l;
    bool done;
    enc_u32(&e, 1);
    enc_u32(&e, 16);
    for (int u = 0; u < 16; u++) {
        enc_str(&e, "unit");
        enc_u64(&e, UINT64_C(1) << 56);
    }
    enc_u32(&e, 16);
    for (uint32_t u = 0; u < 16; u++) {
        enc_str(&e, "t");
        enc_u32(&e, u);
        enc_u32(&e, 0);
        enc_u8(&e, 0);
        enc_u8(&e, 1);
        enc_u64(&e, UINT64_C(1) << 56);
    }
    int rc = decode(e.data, e.len_bytes, &l, &done);
    if (rc == 0)
        layout_free(&l);
    assert_int_equal(rc, -EOVERFLOW);
    enc_free(&e);
}

static void decode_of_names_needs_their_room(void **state) {
    (void)state;
    for (size_t len = TENSOR_NAME_BYTES - 2; len <= TENSOR_NAME_BYTES + 1; len++) {
        struct enc e = {0};
        struct layout l;
        bool done;
        char name[TENSOR_NAME_BYTES + 2];
        memset(name, 'x', sizeof(name));
        enc_u32(&e, 1);
        enc_u32(&e, 1);
        enc_blob(&e, name, len);
        enc_u64(&e, 0);
        enc_u32(&e, 0);
        int rc = decode(e.data, e.len_bytes, &l, &done);
        assert_int_equal(rc, len < TENSOR_NAME_BYTES ? 0 : -EPROTO);
        if (rc == 0) {
            assert_int_equal(strlen(l.units[0].name), len);
            layout_free(&l);
        }
        e.data[14] = '\0'; /* within the name */
        assert_int_equal(decode(e.data, e.len_bytes, &l, &done), -EPROTO);
        enc_free(&e);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_gives_back_what_was_encoded),
        cmocka_unit_test(decode_leaves_what_follows_the_layout),
        cmocka_unit_test(decode_refuses_every_truncation),
        cmocka_unit_test(decode_survives_every_flipped_bit),
        cmocka_unit_test(decode_survives_damage_at_many_places),
        cmocka_unit_test(decode_survives_garbage),
        cmocka_unit_test(decode_refuses_what_contradicts_the_arithmetic),
        cmocka_unit_test(decode_refuses_numbers_out_of_range),
        cmocka_unit_test(decode_refuses_units_that_are_too_large_together),
        cmocka_unit_test(decode_of_names_needs_their_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
