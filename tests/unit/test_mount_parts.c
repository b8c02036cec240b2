/* test_mount_parts.c - the pure parts of the mount daemon: node ids, version times, replies,
 * requests in flight, commands. */
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fsmount/control.h"
#include "fsmount/gather.h"
#include "fsmount/key.h"
#include "fsmount/slots.h"
#include "fsmount/versions.h"

static void every_key_comes_back_from_its_node_id(void **state) {
    (void)state;
    struct key k, back;
    static const uint32_t objects[] = {1, 2, 77, UINT32_MAX};
    static const uint32_t numbers[] = {0, 1, 4096, 65535};
    for (uint32_t kind = 0; kind < BUNDLE_KIND_COUNT; kind++)
        for (uint32_t a = 0; a < 4; a++)
            for (size_t o = 0; o < 4; o++)
                for (size_t n = 0; n < 4; n++) {
                    struct bundle_index i;
                    k = key_bundle(o % 2 != 0 ? KEY_PIN : KEY_SNAPSHOT, objects[o],
                                   (enum bundle_kind)kind, a, numbers[n]);
                    assert_true(key_unpack(key_pack(k), &back));
                    assert_memory_equal(&k, &back, sizeof(k));
                    assert_true(bundle_index_unpack(back.index, &i));
                    assert_int_equal(i.kind, kind);
                    assert_int_equal(i.array, a);
                    assert_int_equal(i.number, numbers[n]);
                    assert_false(key_is_volatile(key_pack(k)));
                }
    for (uint32_t f = 0; f < FIXED_END; f++) {
        assert_true(key_unpack(key_pack(key_fixed(f)), &back));
        assert_int_equal(back.index, f);
    }
    assert_int_equal(key_pack(key_fixed(FIXED_ROOT)), 1);
}

static void node_ids_without_meaning_are_refused(void **state) {
    (void)state;
    struct key k;
    static const uint64_t bad[] = {0,
                                   2,
                                   UINT64_MAX,
                                   UINT64_C(9) << 56,
                                   UINT64_C(1) << 56 | 256,
                                   UINT64_C(1) << 56 | UINT64_C(1) << 24,
                                   UINT64_C(2) << 56 | RANK_FILE_COUNT,
                                   UINT64_C(5) << 56 | (uint64_t)BUNDLE_KIND_COUNT << 19};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(key_unpack(bad[i], &k));
    for (int i = 0; i < 100000; i++) {
        uint64_t ino = (uint64_t)rand() << 33 ^ (uint64_t)rand() << 10 ^ (uint64_t)rand();
        if (key_unpack(ino, &k))
            assert_int_equal(key_pack(k), ino);
    }
}

static void a_volatile_id_tells_its_control_file_to_a_successor(void **state) {
    (void)state;
    uint64_t a = key_volatile(3, FIXED_CONTROL_FILE + 5, 1),
             b = key_volatile(4, FIXED_CONTROL_FILE + 5, 1);
    assert_true(key_is_volatile(a));
    assert_int_not_equal(a, b);
    assert_int_equal(key_volatile_fixed(a), FIXED_CONTROL_FILE + 5);
    assert_int_equal(key_volatile_fixed(key_volatile(9, 0, UINT64_MAX)), 0);
}

static void version_times_ascend_whatever_order_they_are_asked_in(void **state) {
    (void)state;
    struct versions v = {0};
    uint64_t t5 = versions_time(&v, 1, 5, 1000);
    uint64_t t7 = versions_time(&v, 1, 7, 1000);
    uint64_t t6 = versions_time(&v, 1, 6, 5000);
    uint64_t t8 = versions_time(&v, 1, 8, 10);
    uint64_t next = versions_time(&v, 2, 1, 10);
    uint64_t older = versions_time(&v, 1, 2, 99999);
    assert_true(older < t5 && t5 < t7 && t7 < t8 && t8 < next);
    assert_true(t5 <= t6 && t6 <= t7);
    assert_int_equal(versions_time(&v, 1, 5, 77), t5);
    uint64_t last = next;
    for (uint64_t g = 2; g < 3 * VERSIONS_KEPT; g++) {
        uint64_t t = versions_time(&v, 2, g, 10);
        assert_true(t > last);
        last = t;
    }
    assert_true(v.count <= VERSIONS_KEPT);
}

/* A file of pieces of many sizes, read at all places. */
static void a_reply_holds_the_range_that_was_asked_for(void **state) {
    (void)state;
    enum { FILE_BYTES = 9000 };
    static struct gather g;
    uint8_t file[FILE_BYTES];
    assert_int_equal(gather_open(&g), 0);
    for (size_t i = 0; i < FILE_BYTES; i++)
        file[i] = (uint8_t)(i * 7 + i / 251);
    static const size_t steps[] = {1, 3, 100, FILE_BYTES};
    for (size_t s = 0; s < 4; s++) {
        for (size_t off = 0; off < FILE_BYTES + 10; off += 311) {
            for (size_t size = 1; size <= FILE_BYTES; size = size * 3 + 1) {
                gather_begin(&g, off, size, FILE_BYTES);
                for (size_t at = 0; at < FILE_BYTES; at += steps[s])
                    gather_add(&g, at, file + at,
                               FILE_BYTES - at < steps[s] ? FILE_BYTES - at : steps[s]);
                assert_int_equal(gather_end(&g), 0);
                size_t want = off >= FILE_BYTES         ? 0
                              : FILE_BYTES - off < size ? FILE_BYTES - off
                                                        : size,
                       got = 0;
                assert_int_equal(g.want_bytes, want);
                assert_true(g.piece_count <= GATHER_MAX_PIECES);
                for (int i = 0; i < g.piece_count; i++) {
                    assert_memory_equal(g.pieces[i].iov_base, file + off + got,
                                        g.pieces[i].iov_len);
                    got += g.pieces[i].iov_len;
                }
                assert_int_equal(got, want);
            }
        }
    }
    gather_close(&g);
}

static void a_reply_with_a_hole_is_an_error(void **state) {
    (void)state;
    static struct gather g;
    uint8_t file[100] = {0};
    assert_int_equal(gather_open(&g), 0);
    gather_begin(&g, 0, 100, 100);
    gather_add(&g, 0, file, 10);
    gather_add(&g, 20, file + 20, 80);
    assert_int_equal(gather_end(&g), -EIO);
    gather_begin(&g, 0, 100, 100);
    gather_add(&g, 0, file, 10);
    assert_int_equal(gather_end(&g), -EIO);
    gather_close(&g);
}

static void requests_in_flight_are_found_after_any_removals(void **state) {
    (void)state;
    struct slots s;
    int fd = memfd_create("slots", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, 64 * 8), 0);
    assert_int_equal(slots_open(fd, &s), 0);
    uint64_t in[64];
    size_t n = 0;
    for (int i = 0; i < 20000; i++) {
        if (n < 64 && rand() % 2 == 0) {
            uint64_t unique = (uint64_t)(i + 1) * 2 | (uint64_t)(rand() % 4 == 0) << 63;
            assert_true(slots_add(&s, unique));
            in[n++] = unique;
        } else if (n > 0) {
            size_t at = (size_t)rand() % n;
            assert_true(slots_has(&s, in[at]));
            slots_remove(&s, in[at]);
            assert_false(slots_has(&s, in[at]));
            in[at] = in[--n];
        }
    }
    while (n < 64) {
        assert_true(slots_add(&s, 1000000 + 2 * n));
        n++;
    }
    assert_false(slots_add(&s, 5000000));
    slots_close(&s);
}

static int parse(const char *file, const char *line, struct msg_command *m) {
    static struct config config;
    struct err err = {0};
    config_defaults(&config);
    int rc =
        control_parse((uint32_t)control_file_find(file), line, strlen(line), &config, 42, m, &err);
    assert_int_equal(rc, -err.code);
    return rc;
}

static void a_line_is_one_command_with_a_key(void **state) {
    (void)state;
    struct msg_command m;
    assert_int_equal(parse("step", "100\n", &m), 0);
    assert_string_equal(m.key, "u:42");
    assert_string_equal(m.name, "step");
    assert_string_equal(m.value, "100");
    assert_int_equal(parse("snapshot", " before\tmy-id.7 ", &m), 0);
    assert_string_equal(m.key, "id:my-id.7");
    assert_string_equal(m.value, "before");
    assert_int_equal(parse("lr", "3e-4", &m), 0);
    assert_string_equal(m.name, "lr");
}

static void what_is_no_command_is_refused(void **state) {
    (void)state;
    struct msg_command m;
    assert_int_equal(parse("step", "", &m), -EINVAL);
    assert_int_equal(parse("step", "1\n\n", &m), -EINVAL);
    assert_int_equal(parse("step", "1 a b", &m), -EINVAL);
    assert_int_equal(parse("step", "1.5", &m), -EINVAL);
    assert_int_equal(parse("step", "0", &m), -ERANGE);
    assert_int_equal(parse("target", "9007199254740993", &m), -ERANGE);
    assert_int_equal(parse("run", "2", &m), -ERANGE);
    assert_int_equal(parse("pin", "a/b", &m), -EINVAL);
    assert_int_equal(parse("lr", "-1", &m), -ERANGE);
    assert_int_equal(control_file_find("ranks"), -ENOENT);
    char longest[2000];
    memset(longest, '1', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    assert_int_equal(parse("step", longest, &m), -EINVAL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_comes_back_from_its_node_id),
        cmocka_unit_test(node_ids_without_meaning_are_refused),
        cmocka_unit_test(a_volatile_id_tells_its_control_file_to_a_successor),
        cmocka_unit_test(version_times_ascend_whatever_order_they_are_asked_in),
        cmocka_unit_test(a_reply_holds_the_range_that_was_asked_for),
        cmocka_unit_test(a_reply_with_a_hole_is_an_error),
        cmocka_unit_test(requests_in_flight_are_found_after_any_removals),
        cmocka_unit_test(a_line_is_one_command_with_a_key),
        cmocka_unit_test(what_is_no_command_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
