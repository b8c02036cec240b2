/* test_link.c - frames: every size, every split, every way in which a peer may be wrong. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "fixture.h"
#include "link_harness.h"

enum { OUTBOX_BYTES = 1 << 20 };

static uint8_t pattern_at(size_t i, unsigned salt) { return (uint8_t)(i * 31 + i / 251 + salt); }

static uint8_t *pattern_make(size_t len, unsigned salt) {
    uint8_t *p = malloc(len + 1);
    assert_non_null(p);
    for (size_t i = 0; i < len; i++)
        p[i] = pattern_at(i, salt);
    return p;
}

static void expect_frame(const struct frame *f, unsigned type, uint64_t id, size_t len,
                         unsigned salt) {
    assert_int_equal(f->type, type);
    assert_true(f->id == id);
    assert_int_equal(f->len_bytes, len);
    size_t same = 0;
    while (same < len && f->payload[same] == pattern_at(same, salt))
        same++;
    assert_int_equal(same, len);
    assert_int_equal(f->fd_count, 0);
}

/* ---- what goes in comes out */

static void frames_of_all_sizes_come_through(void **state) {
    (void)state;
    struct link *a, *b;
    struct frame f;
    size_t done = 0;
    harness_pair(OUTBOX_BYTES, &a, &b);
    for (size_t len = 0; len <= 300000; len = len < 300 ? len + 1 : len * 9 / 8 + 1, done++) {
        uint8_t *p = pattern_make(len, (unsigned)done);
        assert_int_equal(link_send(a, (uint16_t)done, done * 3, p, len, NULL, 0), 0);
        assert_int_equal(harness_receive(a, b, &f), 1);
        expect_frame(&f, (unsigned)done, done * 3, len, (unsigned)done);
        free(p);
    }
    assert_false(link_wants_write(a));
    assert_int_equal(link_fill(b), 0);
    assert_int_equal(link_next(b, &f), 0);
    link_close(a);
    link_close(b);
}

static void types_and_ids_keep_all_their_bits(void **state) {
    (void)state;
    static const uint16_t types[] = {0, 1, 255, 256, 0x8000, UINT16_MAX};
    static const uint64_t ids[] = {0, 1, UINT64_C(1) << 63, UINT64_MAX,
                                   UINT64_C(0x0102030405060708)};
    struct link *a, *b;
    struct frame f;
    harness_pair(OUTBOX_BYTES, &a, &b);
    for (size_t t = 0; t < 6; t++) {
        for (size_t i = 0; i < 5; i++) {
            assert_int_equal(link_send(a, types[t], ids[i], NULL, 0, NULL, 0), 0);
            assert_int_equal(harness_receive(a, b, &f), 1);
            expect_frame(&f, types[t], ids[i], 0, 0);
        }
    }
    link_close(a);
    link_close(b);
}

static void a_frame_has_the_bytes_that_the_header_says(void **state) {
    (void)state;
    struct link *l;
    int fd;
    static const uint8_t payload[] = {1, 2, 3, 4, 5};
    uint8_t want[HARNESS_HEADER_BYTES + sizeof(payload)], got[64];
    harness_raw(OUTBOX_BYTES, &l, &fd);
    harness_header(want, LINK_VERSION, 0, 0x1234, 5, UINT64_C(0x1122334455667788));
    memcpy(want + HARNESS_HEADER_BYTES, payload, sizeof(payload));
    assert_int_equal(link_send(l, 0x1234, UINT64_C(0x1122334455667788), payload, 5, NULL, 0), 0);
    assert_int_equal(read(fd, got, sizeof(got)), sizeof(want));
    assert_memory_equal(got, want, sizeof(want));
    close(fd);
    link_close(l);
}

static void both_directions_work_at_once(void **state) {
    (void)state;
    struct link *a, *b;
    struct frame f;
    uint8_t *p = pattern_make(200000, 7);
    harness_pair(OUTBOX_BYTES, &a, &b);
    for (uint64_t i = 0; i < 5; i++) {
        assert_int_equal(link_send(a, 1, i, p, 100000, NULL, 0), 0);
        assert_int_equal(link_send(b, 2, i, p, 200000, NULL, 0), 0);
    }
    for (uint64_t i = 0; i < 5; i++) {
        assert_int_equal(harness_receive(b, a, &f), 1);
        expect_frame(&f, 2, i, 200000, 7);
        assert_int_equal(harness_receive(a, b, &f), 1);
        expect_frame(&f, 1, i, 100000, 7);
    }
    free(p);
    link_close(a);
    link_close(b);
}

static void a_frame_of_the_limit_comes_through_and_one_byte_more_is_refused(void **state) {
    (void)state;
    struct link *a, *b;
    struct frame f;
    uint8_t *p = calloc(1, LINK_MAX_PAYLOAD_BYTES + 1);
    assert_non_null(p);
    p[LINK_MAX_PAYLOAD_BYTES - 1] = 0x5a;
    harness_pair(OUTBOX_BYTES, &a, &b);
    assert_int_equal(link_send(a, 9, 1, p, LINK_MAX_PAYLOAD_BYTES, NULL, 0), 0);
    assert_int_equal(harness_receive(a, b, &f), 1);
    assert_int_equal(f.len_bytes, LINK_MAX_PAYLOAD_BYTES);
    assert_int_equal(f.payload[LINK_MAX_PAYLOAD_BYTES - 1], 0x5a);
    assert_int_equal(link_send(a, 9, 2, p, LINK_MAX_PAYLOAD_BYTES + 1, NULL, 0), -EMSGSIZE);
    assert_int_equal(link_send(a, 9, 3, p, 0, NULL, 0), -EMSGSIZE); /* nothing is lost in silence */
    assert_int_equal(link_flush(a), -EMSGSIZE);
    free(p);
    link_close(a);
    link_close(b);
}

/* ---- how the bytes arrive */

/* Three frames, the second empty. */
static size_t stream_make(uint8_t *s) {
    static const uint32_t lens[] = {7, 0, 21};
    size_t n = 0;
    for (unsigned i = 0; i < 3; i++) {
        harness_header(s + n, LINK_VERSION, 0, 40 + i, lens[i], i);
        n += HARNESS_HEADER_BYTES;
        for (size_t k = 0; k < lens[i]; k++)
            s[n++] = pattern_at(k, i);
    }
    return n;
}

static void stream_expect(struct link *l, unsigned *next) {
    static const size_t lens[] = {7, 0, 21};
    struct frame f;
    while (link_next(l, &f) == 1) {
        assert_true(*next < 3);
        expect_frame(&f, 40 + *next, *next, lens[*next % 3], *next);
        (*next)++;
    }
}

static void frames_survive_a_split_at_every_two_places(void **state) {
    (void)state;
    uint8_t s[128];
    size_t n = stream_make(s);
    for (size_t i = 0; i <= n; i++) {
        for (size_t k = i; k <= n; k++) {
            const size_t cuts[] = {0, i, k, n};
            struct link *l;
            int fd;
            unsigned next = 0;
            harness_raw(OUTBOX_BYTES, &l, &fd);
            for (size_t c = 0; c < 3; c++) {
                if (cuts[c + 1] > cuts[c])
                    harness_write(fd, s + cuts[c], cuts[c + 1] - cuts[c], NULL, 0);
                assert_int_equal(link_fill(l), 0);
                stream_expect(l, &next);
            }
            assert_int_equal(next, 3);
            close(fd);
            link_close(l);
        }
    }
}

static void frames_survive_byte_by_byte(void **state) {
    (void)state;
    uint8_t s[128];
    size_t n = stream_make(s);
    static const size_t ends[] = {23, 39, 76};
    struct link *l;
    int fd;
    unsigned next = 0;
    harness_raw(OUTBOX_BYTES, &l, &fd);
    for (size_t i = 0; i < n; i++) {
        harness_write(fd, s + i, 1, NULL, 0);
        assert_int_equal(link_fill(l), 0);
        stream_expect(l, &next);
        unsigned whole = 0;
        while (whole < 3 && ends[whole] <= i + 1)
            whole++;
        assert_int_equal(next, whole);
    }
    close(fd);
    link_close(l);
}

static void many_frames_of_random_sizes_survive_random_pieces(void **state) {
    (void)state;
    struct link *l;
    int fd;
    uint64_t seed = 7, reading = 7;
    uint8_t *buf = malloc(1 << 20);
    size_t have = 0, sent = 0;
    unsigned made = 0, got = 0;
    assert_non_null(buf);
    harness_raw(OUTBOX_BYTES, &l, &fd);
    while (got < 2000) {
        if (sent == have && made < 2000) {
            uint32_t len = (uint32_t)(fixture_random(&seed) % (made % 50 == 0 ? 200000 : 500));
            harness_header(buf, LINK_VERSION, 0, made & 0xffff, len, made);
            for (size_t k = 0; k < len; k++)
                buf[HARNESS_HEADER_BYTES + k] = pattern_at(k, made);
            have = HARNESS_HEADER_BYTES + len;
            sent = 0;
            made++;
        }
        size_t piece = 1 + have / 7 * (made % 3);
        ssize_t n = write(fd, buf + sent, piece < have - sent ? piece : have - sent);
        sent += n > 0 ? (size_t)n : 0;
        if (n > 0 && made % 5 != 0 && sent < have)
            continue;
        struct frame f;
        assert_int_equal(link_fill(l), 0);
        while (link_next(l, &f) == 1) {
            size_t len = fixture_random(&reading) % (got % 50 == 0 ? 200000 : 500);
            expect_frame(&f, got & 0xffff, got, len, got);
            got++;
        }
    }
    free(buf);
    close(fd);
    link_close(l);
}

/* ---- what is refused */

/* Writes the header; the link must refuse it before any payload comes, and all that follows. */
static void expect_header_refused(unsigned version, unsigned fd_count, uint32_t len) {
    struct link *l;
    struct frame f;
    int fd;
    uint8_t h[HARNESS_HEADER_BYTES];
    harness_raw(OUTBOX_BYTES, &l, &fd);
    harness_write_frame(fd, 3, NULL, 0);
    harness_header(h, version, fd_count, 1, len, 0);
    harness_write(fd, h, sizeof(h), NULL, 0);
    harness_write_frame(fd, 4, NULL, 0);
    assert_int_equal(link_fill(l), 0);
    assert_int_equal(link_next(l, &f), 1);
    assert_int_equal(f.type, 3);
    assert_int_equal(link_next(l, &f), -EPROTO);
    assert_int_equal(link_next(l, &f), -EPROTO);
    assert_int_equal(link_fill(l), -EPROTO);
    assert_int_equal(link_send(l, 1, 0, NULL, 0, NULL, 0), -EPROTO);
    assert_int_equal(link_flush(l), -EPROTO);
    assert_false(link_wants_write(l));
    close(fd);
    link_close(l);
}

static void every_other_version_is_refused(void **state) {
    (void)state;
    for (unsigned version = 0; version < 256; version++)
        if (version != LINK_VERSION)
            expect_header_refused(version, 0, 0);
}

static void oversize_lengths_are_refused_before_they_are_read(void **state) {
    (void)state;
    expect_header_refused(LINK_VERSION, 0, LINK_MAX_PAYLOAD_BYTES + 1);
    expect_header_refused(LINK_VERSION, 0, UINT32_C(1) << 31);
    expect_header_refused(LINK_VERSION, 0, UINT32_MAX);
}

static void more_descriptors_than_a_frame_may_have_are_refused(void **state) {
    (void)state;
    expect_header_refused(LINK_VERSION, LINK_MAX_FDS + 1, 0);
    expect_header_refused(LINK_VERSION, 255, 0);
}

static void descriptors_that_did_not_come_are_refused(void **state) {
    (void)state;
    expect_header_refused(LINK_VERSION, 1, 0);
    expect_header_refused(LINK_VERSION, LINK_MAX_FDS, 0);
}

static void sending_too_many_descriptors_is_refused(void **state) {
    (void)state;
    struct link *a, *b;
    int fds[LINK_MAX_FDS + 1] = {0};
    harness_pair(OUTBOX_BYTES, &a, &b);
    assert_int_equal(link_send(a, 1, 0, NULL, 0, fds, LINK_MAX_FDS + 1), -EMSGSIZE);
    link_close(a);
    link_close(b);
}

static void random_bytes_never_make_frames_that_were_not_sent(void **state) {
    (void)state;
    uint64_t seed = 99;
    for (int round = 0; round < 2000; round++) {
        struct link *l;
        struct frame f;
        int fd, rc;
        uint8_t bytes[300] = {0};
        size_t n = 1 + fixture_random(&seed) % sizeof(bytes), used = 0;
        for (size_t i = 0; i < n; i++)
            bytes[i] = (uint8_t)fixture_random(&seed);
        if (round % 2 == 0)
            harness_header(bytes, LINK_VERSION, 0, 1, bytes[4], 0);
        harness_raw(OUTBOX_BYTES, &l, &fd);
        harness_write(fd, bytes, n, NULL, 0);
        assert_int_equal(link_fill(l), 0);
        while ((rc = link_next(l, &f)) == 1) {
            used += HARNESS_HEADER_BYTES + f.len_bytes;
            assert_true(used <= n);
            assert_memory_equal(f.payload, bytes + used - f.len_bytes, f.len_bytes);
        }
        assert_true(rc == 0 || rc == -EPROTO);
        close(fd);
        link_close(l);
    }
}

/* ---- a slow peer */

static void a_full_outbox_ends_the_link_and_nothing_blocks(void **state) {
    (void)state;
    struct link *a, *b;
    static const uint8_t p[1000];
    size_t sent = 0;
    int rc = 0;
    harness_pair(100000, &a, &b);
    alarm(20); /* a blocking send would never return */
    while (sent < 100000 && (rc = link_send(a, 1, sent, p, sizeof(p), NULL, 0)) == 0)
        sent++;
    alarm(0);
    assert_int_equal(rc, -ENOBUFS);
    assert_true(sent >= 98); /* what the outbox holds, and what the socket holds */
    assert_int_equal(link_send(a, 1, 0, NULL, 0, NULL, 0), -ENOBUFS);
    assert_int_equal(link_flush(a), -ENOBUFS);
    assert_int_equal(link_fill(a), -ENOBUFS);
    assert_false(link_wants_write(a));
    link_close(a);
    link_close(b);
}

static void the_outbox_holds_no_more_than_its_limit(void **state) {
    (void)state;
    enum { LIMIT = 10 * (HARNESS_HEADER_BYTES + 84) };
    struct link *a, *b;
    struct frame f;
    static const uint8_t p[1000];
    unsigned sent = 0;
    harness_pair(LIMIT, &a, &b);
    while (!link_wants_write(a))
        assert_int_equal(link_send(a, 1, sent++, p, 84, NULL, 0), 0);
    for (unsigned i = 0; i < 9; i++) /* one waits already */
        assert_int_equal(link_send(a, 1, sent++, p, 84, NULL, 0), 0);
    for (unsigned i = 0; i < sent; i++) {
        assert_int_equal(harness_receive(a, b, &f), 1);
        assert_int_equal(f.id, i);
    }
    assert_false(link_wants_write(a));
    while (!link_wants_write(a))
        assert_int_equal(link_send(a, 1, sent++, p, 84, NULL, 0), 0);
    for (unsigned i = 0; i < 9; i++) /* what was sent does not count any more */
        assert_int_equal(link_send(a, 1, sent++, p, 84, NULL, 0), 0);
    assert_int_equal(link_send(a, 1, sent++, p, 0, NULL, 0), -ENOBUFS);
    link_close(a);
    link_close(b);
}

static void a_frame_larger_than_the_outbox_goes_alone(void **state) {
    (void)state;
    struct link *a, *b;
    struct frame f;
    uint8_t *p = pattern_make(2000000, 3);
    harness_pair(1000, &a, &b);
    assert_int_equal(link_send(a, 1, 0, p, 2000000, NULL, 0), 0);
    assert_true(link_wants_write(a));
    assert_int_equal(harness_receive(a, b, &f), 1);
    expect_frame(&f, 1, 0, 2000000, 3);
    assert_int_equal(link_send(a, 1, 1, p, 2000000, NULL, 0), 0);
    assert_int_equal(link_send(a, 1, 2, p, 1, NULL, 0), -ENOBUFS);
    free(p);
    link_close(a);
    link_close(b);
}

/* ---- the peer's end */

static void a_peer_that_closes_within_a_frame_leaves_those_before_it(void **state) {
    (void)state;
    uint8_t s[128];
    size_t n = stream_make(s);
    static const size_t ends[] = {23, 39, 76};
    for (size_t cut = 0; cut <= n; cut++) {
        struct link *l;
        struct frame f;
        int fd;
        unsigned next = 0, whole = 0;
        harness_raw(OUTBOX_BYTES, &l, &fd);
        if (cut > 0)
            harness_write(fd, s, cut, NULL, 0);
        close(fd);
        while (whole < 3 && ends[whole] <= cut)
            whole++;
        assert_int_equal(link_fill(l), -EPIPE);
        assert_int_equal(link_fill(l), -EPIPE);
        stream_expect(l, &next);
        assert_int_equal(next, whole);
        assert_int_equal(link_next(l, &f), 0);
        assert_int_equal(link_fill(l), -EPIPE);
        link_close(l);
    }
}

static void what_the_peer_said_last_is_heard_after_a_send_failed(void **state) {
    (void)state;
    struct link *a, *b;
    struct frame f;
    harness_pair(OUTBOX_BYTES, &a, &b);
    assert_int_equal(link_send(b, 77, 5, "bye", 3, NULL, 0), 0);
    link_close(b);
    assert_int_equal(link_send(a, 1, 0, NULL, 0, NULL, 0), -EPIPE);
    assert_int_equal(link_send(a, 1, 0, NULL, 0, NULL, 0), -EPIPE);
    assert_int_equal(link_fill(a), -EPIPE);
    assert_int_equal(link_next(a, &f), 1);
    assert_int_equal(f.type, 77);
    assert_memory_equal(f.payload, "bye", 3);
    assert_int_equal(link_next(a, &f), 0);
    link_close(a);
}

static void a_peer_that_closes_with_unread_bytes_is_heard_too(void **state) {
    (void)state;
    struct link *a, *b;
    struct frame f;
    harness_pair(OUTBOX_BYTES, &a, &b);
    assert_int_equal(link_send(a, 1, 0, "unread", 6, NULL, 0), 0);
    assert_int_equal(link_send(b, 77, 0, NULL, 0, NULL, 0), 0);
    link_close(b); /* the kernel says ECONNRESET for it */
    assert_int_equal(link_fill(a), -EPIPE);
    assert_int_equal(link_next(a, &f), 1);
    assert_int_equal(f.type, 77);
    link_close(a);
}

static void a_link_that_fails_stays_failed(void **state) {
    (void)state;
    struct link *a, *b;
    harness_pair(OUTBOX_BYTES, &a, &b);
    assert_int_equal(link_fail(a, -ENOMEM), -ENOMEM);
    assert_int_equal(link_fail(a, -EPIPE), -ENOMEM); /* the first cause */
    assert_int_equal(link_send(a, 1, 0, NULL, 0, NULL, 0), -ENOMEM);
    assert_int_equal(link_flush(a), -ENOMEM);
    assert_int_equal(link_fill(a), -ENOMEM);
    link_close(a);
    link_close(b);
}

static void a_link_makes_its_descriptor_non_blocking_and_close_on_exec(void **state) {
    (void)state;
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    struct link *l = link_open(fds[0], 1);
    assert_non_null(l);
    assert_int_equal(link_fd(l), fds[0]);
    assert_true((fcntl(fds[0], F_GETFL) & O_NONBLOCK) != 0);
    assert_true((fcntl(fds[0], F_GETFD) & FD_CLOEXEC) != 0);
    link_close(l);
    link_close(NULL);
    assert_int_equal(fcntl(fds[0], F_GETFD), -1);
    close(fds[1]);
    assert_null(link_open(-1, 1));
    assert_int_equal(link_pair(fds), 0);
    assert_true((fcntl(fds[0], F_GETFD) & fcntl(fds[1], F_GETFD) & FD_CLOEXEC) != 0);
    close(fds[0]);
    close(fds[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_of_all_sizes_come_through),
        cmocka_unit_test(types_and_ids_keep_all_their_bits),
        cmocka_unit_test(a_frame_has_the_bytes_that_the_header_says),
        cmocka_unit_test(both_directions_work_at_once),
        cmocka_unit_test(a_frame_of_the_limit_comes_through_and_one_byte_more_is_refused),
        cmocka_unit_test(frames_survive_a_split_at_every_two_places),
        cmocka_unit_test(frames_survive_byte_by_byte),
        cmocka_unit_test(many_frames_of_random_sizes_survive_random_pieces),
        cmocka_unit_test(every_other_version_is_refused),
        cmocka_unit_test(oversize_lengths_are_refused_before_they_are_read),
        cmocka_unit_test(more_descriptors_than_a_frame_may_have_are_refused),
        cmocka_unit_test(descriptors_that_did_not_come_are_refused),
        cmocka_unit_test(sending_too_many_descriptors_is_refused),
        cmocka_unit_test(random_bytes_never_make_frames_that_were_not_sent),
        cmocka_unit_test(a_full_outbox_ends_the_link_and_nothing_blocks),
        cmocka_unit_test(the_outbox_holds_no_more_than_its_limit),
        cmocka_unit_test(a_frame_larger_than_the_outbox_goes_alone),
        cmocka_unit_test(a_peer_that_closes_within_a_frame_leaves_those_before_it),
        cmocka_unit_test(what_the_peer_said_last_is_heard_after_a_send_failed),
        cmocka_unit_test(a_peer_that_closes_with_unread_bytes_is_heard_too),
        cmocka_unit_test(a_link_that_fails_stays_failed),
        cmocka_unit_test(a_link_makes_its_descriptor_non_blocking_and_close_on_exec),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
