/* test_msg.c - every message, field by field as the table of msg.c says: round trips, truncations,
 * bad strings, garbage. The table is private, so its file is part of this program. */
#include "config.h"

#include "wire/msg.c" /* NOLINT(bugprone-suspicious-include): the table is what is tested */

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "fixture.h"
#include "link_harness.h"

enum { SHAPES = sizeof(msg_shapes) / sizeof(msg_shapes[0]), VARIANTS = 6 };

/* Room for the largest message, aligned for each. */
union any {
    uint64_t align;
    uint8_t bytes[3 * MSG_PATH_BYTES];
};

static const uint8_t blob_bytes[5000] = {0, 1, 2, 0xff};

/* ---- values at the limits */

static uint64_t number_of(unsigned variant) {
    static const uint64_t numbers[VARIANTS] = {
        0, 1, UINT64_MAX, UINT64_C(1) << 63, UINT64_C(0x0102030405060708), UINT32_MAX};
    return numbers[variant % VARIANTS];
}

static double real_of(unsigned variant) {
    const double reals[VARIANTS] = {0.0, -0.0, NAN, -INFINITY, 4.9e-324, 1.7976931348623157e308};
    return reals[variant % VARIANTS];
}

/* Empty, one byte, all the room there is, half of it, bytes above 127, a newline. */
static void string_of(unsigned variant, char *out, size_t cap_bytes) {
    size_t len[VARIANTS] = {0, 1, cap_bytes - 1, cap_bytes / 2, cap_bytes - 1, 1};
    static const char fill[VARIANTS] = {'a', 'b', 'c', 'd', '\xff', '\n'};
    memset(out, fill[variant % VARIANTS], len[variant % VARIANTS]);
    out[len[variant % VARIANTS]] = '\0';
}

static struct blob blob_of(unsigned variant) {
    static const size_t len[VARIANTS] = {0, 1, sizeof(blob_bytes), 256, 3, 0};
    return (struct blob){.data = variant % VARIANTS == 5 ? NULL : blob_bytes,
                         .len_bytes = len[variant % VARIANTS]};
}

static void fill(const struct msg_shape *shape, unsigned variant, union any *msg) {
    for (size_t i = 0; i < shape->field_count; i++) {
        const struct msg_field *f = &shape->fields[i];
        unsigned v = variant + (unsigned)i * (variant / VARIANTS);
        uint8_t *at = msg->bytes + f->offset;
        uint32_t u32 = (uint32_t)number_of(v);
        uint64_t u64 = number_of(v);
        double f64 = real_of(v);
        struct blob blob = blob_of(v);
        switch (f->kind) {
        case FIELD_U32:
            memcpy(at, &u32, sizeof(u32));
            break;
        case FIELD_U64:
            memcpy(at, &u64, sizeof(u64));
            break;
        case FIELD_F64:
            memcpy(at, &f64, sizeof(f64));
            break;
        case FIELD_STR:
            string_of(v, (char *)at, f->size_bytes);
            break;
        case FIELD_BLOB:
            memcpy(at, &blob, sizeof(blob));
            break;
        }
    }
}

static void expect_same(const struct msg_shape *shape, const union any *a, const union any *b) {
    for (size_t i = 0; i < shape->field_count; i++) {
        const struct msg_field *f = &shape->fields[i];
        struct blob x, y;
        switch (f->kind) {
        case FIELD_U32:
        case FIELD_U64:
        case FIELD_F64:
            assert_memory_equal(a->bytes + f->offset, b->bytes + f->offset, f->size_bytes);
            break;
        case FIELD_STR:
            assert_string_equal((const char *)a->bytes + f->offset,
                                (const char *)b->bytes + f->offset);
            break;
        case FIELD_BLOB:
            memcpy(&x, a->bytes + f->offset, sizeof(x));
            memcpy(&y, b->bytes + f->offset, sizeof(y));
            assert_int_equal(x.len_bytes, y.len_bytes);
            if (x.len_bytes != 0)
                assert_memory_equal(x.data, y.data, x.len_bytes);
            break;
        }
    }
}

/* Decodes a copy that ends where memory ends. On failure nothing of *msg may be left over. */
static int decode(const struct msg_shape *shape, const uint8_t *data, size_t len, union any *msg) {
    uint8_t *copy = malloc(len != 0 ? len : 1);
    assert_non_null(copy);
    if (len != 0)
        memcpy(copy, data, len);
    memset(msg, 0x5a, sizeof(*msg));
    int rc = msg_decode(shape->type, copy, len, msg);
    free(copy);
    if (rc != 0) {
        static const union any zero;
        assert_int_equal(rc, -EPROTO);
        assert_memory_equal(msg->bytes, zero.bytes, shape->size_bytes);
    }
    for (size_t i = shape->size_bytes; i < sizeof(*msg); i++)
        assert_int_equal(msg->bytes[i], 0x5a);
    return rc;
}

/* The payload of a message of zeros and empty strings, but field `special` is a string or blob of
 * these bytes, with a length field that says `claimed`. */
static void payload_of(const struct msg_shape *shape, size_t special, const void *data, size_t len,
                       uint32_t claimed, struct enc *out) {
    enc_reset(out);
    for (size_t i = 0; i < shape->field_count; i++) {
        enum field_kind kind = shape->fields[i].kind;
        if (i == special) {
            enc_u32(out, claimed);
            enc_bytes(out, data, len);
        } else if (kind == FIELD_U64 || kind == FIELD_F64) {
            enc_u64(out, 0);
        } else {
            enc_u32(out, 0);
        }
    }
    assert_false(out->failed);
}

/* ---- the table */

static void fields_lie_in_the_message_in_order(void **state) {
    (void)state;
    static const size_t sizes[] = {
        [FIELD_U32] = 4, [FIELD_U64] = 8, [FIELD_F64] = 8, [FIELD_BLOB] = sizeof(struct blob)};
    for (size_t s = 0; s < SHAPES; s++) {
        const struct msg_shape *shape = &msg_shapes[s];
        size_t at = 0;
        assert_true(shape->field_count > 0);
        for (size_t i = 0; i < shape->field_count; i++) {
            const struct msg_field *f = &shape->fields[i];
            assert_true(f->offset >= at && f->offset - at < 8);
            assert_true(f->kind == FIELD_STR || f->size_bytes == sizes[f->kind]);
            at = f->offset + f->size_bytes;
        }
        assert_true(shape->size_bytes >= at && shape->size_bytes - at < 8);
        assert_true(shape->size_bytes <= sizeof(union any));
    }
}

static void types_have_one_name_each(void **state) {
    (void)state;
    size_t known = 0;
    for (uint32_t type = 0; type <= UINT16_MAX; type++) {
        const struct msg_shape *found = NULL;
        for (size_t s = 0; s < SHAPES; s++) {
            if (msg_shapes[s].type != type)
                continue;
            assert_null(found);
            found = &msg_shapes[s];
        }
        known += found != NULL;
        assert_string_equal(msg_type_name((uint16_t)type),
                            found != NULL ? found->name : "MSG_UNKNOWN");
    }
    assert_int_equal(known, SHAPES);
    assert_string_equal(msg_type_name(MSG_RANK_HELLO), "MSG_RANK_HELLO");
    assert_string_equal(msg_type_name(MSG_CLIENT_COMMAND), "MSG_CLIENT_COMMAND");
}

static void states_and_phases_have_names(void **state) {
    (void)state;
    for (int i = 0; i < RANK_PHASE_COUNT; i++)
        assert_true(rank_phase_names[i] != NULL && rank_phase_names[i][0] != '\0');
    for (int i = 0; i < RUN_STATE_COUNT; i++)
        assert_true(run_state_names[i] != NULL && run_state_names[i][0] != '\0');
    assert_string_equal(rank_phase_names[RANK_LOADING], "loading");
    assert_string_equal(run_state_names[RUN_OFFLINE], "offline");
}

/* ---- round trips */

static void every_message_comes_back_as_it_was(void **state) {
    (void)state;
    for (size_t s = 0; s < SHAPES; s++) {
        for (unsigned variant = 0; variant < VARIANTS * VARIANTS; variant++) {
            union any msg = {0}, back = {0};
            struct enc e = {0}, again = {0};
            fill(&msg_shapes[s], variant, &msg);
            msg_encode(msg_shapes[s].type, &msg, &e);
            assert_false(e.failed);
            assert_int_equal(msg_decode(msg_shapes[s].type, e.data, e.len_bytes, &back), 0);
            expect_same(&msg_shapes[s], &msg, &back);
            msg_encode(msg_shapes[s].type, &back, &again);
            assert_int_equal(again.len_bytes, e.len_bytes);
            assert_memory_equal(again.data, e.data, e.len_bytes);
            enc_free(&e);
            enc_free(&again);
        }
    }
}

static void every_truncation_and_every_byte_more_is_refused(void **state) {
    (void)state;
    for (size_t s = 0; s < SHAPES; s++) {
        for (unsigned variant = 0; variant < VARIANTS; variant++) {
            union any msg = {0}, back;
            struct enc e = {0};
            fill(&msg_shapes[s], variant, &msg);
            msg_encode(msg_shapes[s].type, &msg, &e);
            size_t step = e.len_bytes > 2000 ? 37 : 1; /* long ones: within strings, all is alike */
            for (size_t n = 0; n<e.len_bytes; n += n + 64> e.len_bytes ? 1 : step)
                assert_int_equal(decode(&msg_shapes[s], e.data, n, &back), -EPROTO);
            assert_int_equal(decode(&msg_shapes[s], e.data, e.len_bytes, &back), 0);
            enc_u8(&e, 0);
            assert_int_equal(decode(&msg_shapes[s], e.data, e.len_bytes, &back), -EPROTO);
            enc_free(&e);
        }
    }
}

static void a_string_that_is_not_terminated_is_cut_when_it_is_sent(void **state) {
    (void)state;
    struct msg_client_hello hello, back;
    struct enc e = {0};
    memset(hello.build, 'x', sizeof(hello.build));
    msg_encode(MSG_CLIENT_HELLO, &hello, &e);
    assert_int_equal(e.len_bytes, 4 + sizeof(hello.build) - 1);
    assert_int_equal(msg_decode(MSG_CLIENT_HELLO, e.data, e.len_bytes, &back), 0);
    assert_int_equal(strlen(back.build), sizeof(hello.build) - 1);
    enc_free(&e);
}

/* ---- what is refused */

static void strings_without_room_or_with_a_nul_are_refused(void **state) {
    (void)state;
    static const char nul[3] = {'a', '\0', 'b'}, ends[2] = {'a', '\0'};
    struct enc e = {0};
    for (size_t s = 0; s < SHAPES; s++) {
        for (size_t i = 0; i < msg_shapes[s].field_count; i++) {
            const struct msg_field *f = &msg_shapes[s].fields[i];
            union any msg;
            char text[MSG_PATH_BYTES + 1];
            if (f->kind != FIELD_STR)
                continue;
            memset(text, 't', sizeof(text));
            for (size_t len = f->size_bytes - 2; len <= f->size_bytes + 1; len++) {
                payload_of(&msg_shapes[s], i, text, len, (uint32_t)len, &e);
                assert_int_equal(decode(&msg_shapes[s], e.data, e.len_bytes, &msg),
                                 len < f->size_bytes ? 0 : -EPROTO);
            }
            payload_of(&msg_shapes[s], i, nul, 3, 3, &e);
            assert_int_equal(decode(&msg_shapes[s], e.data, e.len_bytes, &msg), -EPROTO);
            payload_of(&msg_shapes[s], i, ends, 2, 2, &e);
            assert_int_equal(decode(&msg_shapes[s], e.data, e.len_bytes, &msg), -EPROTO);
        }
    }
    enc_free(&e);
}

static void lengths_beyond_the_payload_are_refused(void **state) {
    (void)state;
    static const uint32_t claims[] = {4096, UINT32_C(1) << 31, UINT32_MAX - 3, UINT32_MAX};
    struct enc e = {0};
    for (size_t s = 0; s < SHAPES; s++) {
        for (size_t i = 0; i < msg_shapes[s].field_count; i++) {
            union any msg;
            if (msg_shapes[s].fields[i].kind != FIELD_STR &&
                msg_shapes[s].fields[i].kind != FIELD_BLOB)
                continue;
            payload_of(&msg_shapes[s], i, "abc", 3, 3, &e);
            assert_int_equal(decode(&msg_shapes[s], e.data, e.len_bytes, &msg), 0);
            for (size_t c = 0; c < sizeof(claims) / sizeof(claims[0]); c++) {
                payload_of(&msg_shapes[s], i, "abc", 3, claims[c], &e);
                assert_int_equal(decode(&msg_shapes[s], e.data, e.len_bytes, &msg), -EPROTO);
            }
        }
    }
    enc_free(&e);
}

static void unknown_types_are_refused(void **state) {
    (void)state;
    union any msg = {0};
    for (uint32_t type = 0; type <= UINT16_MAX; type++) {
        if (msg_shape_of((uint16_t)type) != NULL)
            continue;
        struct enc e = {0};
        assert_int_equal(msg_decode((uint16_t)type, "abcdefgh", 8, &msg), -EPROTO);
        assert_int_equal(msg_decode((uint16_t)type, NULL, 0, &msg), -EPROTO);
        msg_encode((uint16_t)type, &msg, &e);
        assert_true(e.failed);
        assert_int_equal(e.len_bytes, 0);
        enc_free(&e);
    }
}

/* Whatever is accepted has no other form: encoded again it gives the same bytes. */
static void garbage_is_refused_or_means_what_it_says(void **state) {
    (void)state;
    uint64_t seed = 2024;
    size_t accepted = 0;
    struct enc again = {0};
    for (int round = 0; round < 100000; round++) {
        const struct msg_shape *shape = &msg_shapes[fixture_random(&seed) % SHAPES];
        union any msg;
        uint8_t bytes[256];
        size_t len = fixture_random(&seed) % (round % 2 == 0 ? sizeof(bytes) : 40);
        for (size_t i = 0; i < len; i++)
            bytes[i] = fixture_random(&seed) % 3 != 0 ? 0 : (uint8_t)fixture_random(&seed);
        memset(&msg, 0, sizeof(msg));
        int rc = msg_decode(shape->type, bytes, len, &msg);
        if (rc != 0) {
            assert_int_equal(rc, -EPROTO);
            continue;
        }
        enc_reset(&again);
        msg_encode(shape->type, &msg, &again);
        assert_int_equal(again.len_bytes, len);
        assert_memory_equal(again.data, bytes, len);
        accepted++;
    }
    assert_true(accepted > 100);
    enc_free(&again);
}

/* ---- over a link */

static void a_message_goes_through_a_link(void **state) {
    (void)state;
    struct link *a, *b;
    struct frame f;
    harness_pair(1 << 20, &a, &b);
    for (size_t s = 0; s < SHAPES; s++) {
        union any msg = {0}, back = {0};
        fill(&msg_shapes[s], 2, &msg);
        int fd = harness_fd_make(s);
        assert_int_equal(msg_send(a, msg_shapes[s].type, s, &msg, &fd, 1), 0);
        close(fd);
        assert_int_equal(harness_receive(a, b, &f), 1);
        assert_int_equal(f.type, msg_shapes[s].type);
        assert_int_equal(f.id, s);
        assert_int_equal(f.fd_count, 1);
        assert_int_equal(harness_fd_number(f.fds[0]), s);
        assert_int_equal(msg_decode(f.type, f.payload, f.len_bytes, &back), 0);
        expect_same(&msg_shapes[s], &msg, &back);
    }
    link_close(a);
    link_close(b);
}

/* Callers leave it to the link's end to show what could not be said. */
static void a_message_that_cannot_be_sent_ends_the_link(void **state) {
    (void)state;
    struct link *a, *b;
    struct msg_event event = {.bytes = 1};
    struct msg_fuse_init large = {.init = {.len_bytes = LINK_MAX_PAYLOAD_BYTES}};
    large.init.data = calloc(1, large.init.len_bytes);
    assert_non_null(large.init.data);
    harness_pair(1 << 20, &a, &b);
    assert_int_equal(msg_send(a, MSG_FUSE_INIT, 0, &large, NULL, 0), -EMSGSIZE);
    assert_int_equal(msg_send(a, MSG_EVENT, 0, &event, NULL, 0), -EMSGSIZE);
    assert_int_equal(link_fill(a), -EMSGSIZE);
    link_close(a);
    link_close(b);
    harness_pair(1 << 20, &a, &b);
    assert_int_equal(msg_send(a, 60000, 0, &event, NULL, 0), -EPROTO);
    assert_int_equal(msg_send(a, MSG_EVENT, 0, &event, NULL, 0), -EPROTO);
    assert_int_equal(link_fill(a), -EPROTO);
    link_close(a);
    link_close(b);
    free((void *)(uintptr_t)large.init.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_lie_in_the_message_in_order),
        cmocka_unit_test(types_have_one_name_each),
        cmocka_unit_test(states_and_phases_have_names),
        cmocka_unit_test(every_message_comes_back_as_it_was),
        cmocka_unit_test(every_truncation_and_every_byte_more_is_refused),
        cmocka_unit_test(a_string_that_is_not_terminated_is_cut_when_it_is_sent),
        cmocka_unit_test(strings_without_room_or_with_a_nul_are_refused),
        cmocka_unit_test(lengths_beyond_the_payload_are_refused),
        cmocka_unit_test(unknown_types_are_refused),
        cmocka_unit_test(garbage_is_refused_or_means_what_it_says),
        cmocka_unit_test(a_message_goes_through_a_link),
        cmocka_unit_test(a_message_that_cannot_be_sent_ends_the_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
