/* test_link_fds.c - descriptors of frames: whose they are, and that none is left open. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fixture.h"
#include "link_harness.h"

enum { OUTBOX_BYTES = 1 << 20 };

/* Sends a frame with `count` descriptors of the numbers id * 100, id * 100 + 1, ... */
static void send_numbered(struct link *l, uint64_t id, const void *payload, size_t len,
                          uint32_t count) {
    int fds[LINK_MAX_FDS] = {0};
    for (uint32_t i = 0; i < count; i++)
        fds[i] = harness_fd_make(id * 100 + i);
    assert_int_equal(link_send(l, 1, id, payload, len, fds, count), 0);
    for (uint32_t i = 0; i < count; i++)
        close(fds[i]);
}

static void expect_numbered(const struct frame *f, uint64_t id, uint32_t count) {
    assert_true(f->id == id);
    assert_int_equal(f->fd_count, count);
    for (uint32_t i = 0; i < count; i++) {
        assert_true(harness_fd_number(f->fds[i]) == id * 100 + i);
        assert_true((fcntl(f->fds[i], F_GETFD) & FD_CLOEXEC) != 0);
    }
}

static void descriptors_belong_to_their_frame(void **state) {
    (void)state;
    int before = fixture_fd_count();
    struct link *a, *b;
    struct frame f;
    static uint8_t payload[50000];
    harness_pair(OUTBOX_BYTES, &a, &b);
    for (uint64_t id = 0; id < 300; id++) {
        size_t len = id % 7 == 0 ? sizeof(payload) : id % 11;
        send_numbered(a, id, payload, len, (uint32_t)(id * 5 % (LINK_MAX_FDS + 1)));
        if (id % 20 != 19)
            continue;
        for (uint64_t k = id - 19; k <= id; k++) {
            assert_int_equal(harness_receive(a, b, &f), 1);
            expect_numbered(&f, k, (uint32_t)(k * 5 % (LINK_MAX_FDS + 1)));
        }
    }
    link_close(a);
    link_close(b);
    assert_int_equal(fixture_fd_count(), before);
}

static void descriptors_not_taken_are_closed_by_the_next_call(void **state) {
    (void)state;
    struct link *a, *b;
    struct frame f;
    harness_pair(OUTBOX_BYTES, &a, &b);
    int before = fixture_fd_count();
    send_numbered(a, 1, NULL, 0, 3);
    assert_int_equal(harness_receive(a, b, &f), 1);
    assert_int_equal(fixture_fd_count(), before + 3);
    int taken = f.fds[1];
    f.fds[1] = -1;
    assert_int_equal(link_next(b, &f), 0);
    assert_int_equal(fixture_fd_count(), before + 1);
    assert_true(harness_fd_number(taken) == 101);
    send_numbered(a, 2, NULL, 0, 2);
    assert_int_equal(harness_receive(a, b, &f), 1);
    assert_int_equal(link_fill(b), 0);
    assert_int_equal(fixture_fd_count(), before + 1);
    close(taken);
    link_close(a);
    link_close(b);
}

static void descriptors_not_taken_are_closed_with_the_link(void **state) {
    (void)state;
    int before = fixture_fd_count();
    struct link *a, *b;
    struct frame f;
    harness_pair(OUTBOX_BYTES, &a, &b);
    send_numbered(a, 1, NULL, 0, 3);
    assert_int_equal(harness_receive(a, b, &f), 1);
    int taken = f.fds[0];
    f.fds[0] = -1;
    link_close(a);
    link_close(b);
    assert_int_equal(fixture_fd_count(), before + 1);
    close(taken);
}

/* A caller may return, and its frame with it, before the next call. */
static void a_frame_may_go_away_before_the_next_call(void **state) {
    (void)state;
    int before = fixture_fd_count();
    struct link *a, *b;
    struct frame *f = malloc(sizeof(*f)), next;
    assert_non_null(f);
    harness_pair(OUTBOX_BYTES, &a, &b);
    send_numbered(a, 1, NULL, 0, 2);
    send_numbered(a, 2, NULL, 0, 0);
    assert_int_equal(harness_receive(a, b, f), 1);
    memset(f, 0, sizeof(*f)); /* as whoever has that memory next: it is not the link's to read */
    free(f);
    assert_int_equal(harness_receive(a, b, &next), 1);
    assert_true(next.id == 2);
    link_close(a);
    link_close(b);
    assert_int_equal(fixture_fd_count(), before);
}

static void descriptors_of_frames_never_read_are_closed(void **state) {
    (void)state;
    int before = fixture_fd_count();
    struct link *a, *b;
    struct frame f;
    harness_pair(OUTBOX_BYTES, &a, &b);
    for (uint64_t id = 0; id < 10; id++)
        send_numbered(a, id, "x", 1, 4);
    assert_int_equal(harness_receive(a, b, &f), 1);
    link_close(b);
    link_close(a);
    assert_int_equal(fixture_fd_count(), before);
}

static void descriptors_in_the_outbox_are_closed(void **state) {
    (void)state;
    int before = fixture_fd_count();
    struct link *a, *b;
    static uint8_t payload[100000];
    int fd = harness_fd_make(5), rc;
    harness_pair(OUTBOX_BYTES, &a, &b);
    while ((rc = link_send(a, 1, 0, payload, sizeof(payload), &fd, 1)) == 0)
        continue;
    assert_int_equal(rc, -ENOBUFS);
    close(fd);
    link_close(a);
    link_close(b);
    assert_int_equal(fixture_fd_count(), before);
}

static void the_sender_keeps_its_own(void **state) {
    (void)state;
    struct link *a, *b;
    struct frame f;
    int fd = harness_fd_make(7);
    harness_pair(OUTBOX_BYTES, &a, &b);
    assert_int_equal(link_send(a, 1, 0, NULL, 0, &fd, 1), 0);
    assert_int_equal(harness_receive(a, b, &f), 1);
    assert_int_not_equal(f.fds[0], fd);
    link_close(a);
    link_close(b);
    assert_true(harness_fd_number(fd) == 7);
    close(fd);
}

static void a_descriptor_that_is_none_ends_the_link(void **state) {
    (void)state;
    struct link *a, *b;
    int fds[2] = {harness_fd_make(1), -1};
    harness_pair(OUTBOX_BYTES, &a, &b);
    int before = fixture_fd_count();
    assert_int_equal(link_send(a, 1, 0, NULL, 0, fds, 2), -EBADF);
    assert_int_equal(fixture_fd_count(), before);
    assert_int_equal(link_send(a, 1, 0, NULL, 0, NULL, 0), -EBADF);
    close(fds[0]);
    link_close(a);
    link_close(b);
}

static void more_claimed_than_sent_is_refused(void **state) {
    (void)state;
    int before = fixture_fd_count();
    for (uint32_t sent = 0; sent < 3; sent++) {
        struct link *l;
        struct frame f;
        int raw, fds[3];
        harness_raw(OUTBOX_BYTES, &l, &raw);
        for (uint32_t i = 0; i < 3; i++)
            fds[i] = harness_fd_make(i);
        uint8_t h[HARNESS_HEADER_BYTES];
        harness_header(h, LINK_VERSION, 3, 1, 0, 0);
        harness_write(raw, h, sizeof(h), fds, sent);
        assert_int_equal(link_fill(l), 0);
        assert_int_equal(link_next(l, &f), -EPROTO);
        for (uint32_t i = 0; i < 3; i++)
            close(fds[i]);
        close(raw);
        link_close(l);
    }
    assert_int_equal(fixture_fd_count(), before);
}

/* Descriptors that no frame claims must not pile up, nor more than any frame may have come. */
static void descriptors_that_nobody_claims_end_the_link(void **state) {
    (void)state;
    int before = fixture_fd_count();
    struct link *l;
    struct frame f;
    int raw, fds[16], rc = 0;
    uint8_t h[HARNESS_HEADER_BYTES];
    harness_raw(OUTBOX_BYTES, &l, &raw);
    for (uint32_t i = 0; i < 16; i++)
        fds[i] = harness_fd_make(i);
    harness_header(h, LINK_VERSION, 0, 1, 0, 0);
    int frames = 0;
    while (rc == 0 && frames++ < 100) {
        harness_write(raw, h, sizeof(h), fds, 16);
        rc = link_fill(l);
        while (link_next(l, &f) == 1)
            assert_int_equal(f.fd_count, 0);
    }
    assert_int_equal(rc, -EPROTO);
    for (uint32_t i = 0; i < 16; i++)
        close(fds[i]);
    close(raw);
    link_close(l);
    assert_int_equal(fixture_fd_count(), before);
}

static void a_message_with_too_many_descriptors_ends_the_link(void **state) {
    (void)state;
    int before = fixture_fd_count();
    struct link *l;
    int raw, fds[253];
    uint8_t h[HARNESS_HEADER_BYTES];
    harness_raw(OUTBOX_BYTES, &l, &raw);
    for (uint32_t i = 0; i < 253; i++)
        fds[i] = harness_fd_make(i);
    harness_header(h, LINK_VERSION, LINK_MAX_FDS, 1, 0, 0);
    harness_write(raw, h, sizeof(h), fds, 253);
    assert_int_equal(link_fill(l), -EPROTO);
    for (uint32_t i = 0; i < 253; i++)
        close(fds[i]);
    close(raw);
    link_close(l);
    assert_int_equal(fixture_fd_count(), before);
}

static void a_frame_cut_short_leaves_no_descriptor(void **state) {
    (void)state;
    int before = fixture_fd_count();
    struct link *l;
    struct frame f;
    int raw, fd = harness_fd_make(1);
    uint8_t h[HARNESS_HEADER_BYTES];
    harness_raw(OUTBOX_BYTES, &l, &raw);
    harness_header(h, LINK_VERSION, 1, 1, 10, 0);
    harness_write(raw, h, sizeof(h), &fd, 1);
    harness_write(raw, "12345", 5, NULL, 0);
    close(raw);
    close(fd);
    assert_int_equal(link_fill(l), -EPIPE);
    assert_int_equal(link_next(l, &f), 0);
    assert_int_equal(fixture_fd_count(), before + 2);
    link_close(l);
    assert_int_equal(fixture_fd_count(), before);
}

static void a_frame_without_descriptors_shows_none(void **state) {
    (void)state;
    struct link *a, *b;
    struct frame f;
    harness_pair(OUTBOX_BYTES, &a, &b);
    send_numbered(a, 1, NULL, 0, LINK_MAX_FDS);
    send_numbered(a, 2, NULL, 0, 0);
    assert_int_equal(harness_receive(a, b, &f), 1);
    assert_int_equal(harness_receive(a, b, &f), 1);
    assert_int_equal(f.fd_count, 0);
    for (int i = 0; i < LINK_MAX_FDS; i++)
        assert_int_equal(f.fds[i], -1);
    link_close(a);
    link_close(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descriptors_belong_to_their_frame),
        cmocka_unit_test(descriptors_not_taken_are_closed_by_the_next_call),
        cmocka_unit_test(descriptors_not_taken_are_closed_with_the_link),
        cmocka_unit_test(a_frame_may_go_away_before_the_next_call),
        cmocka_unit_test(descriptors_of_frames_never_read_are_closed),
        cmocka_unit_test(descriptors_in_the_outbox_are_closed),
        cmocka_unit_test(the_sender_keeps_its_own),
        cmocka_unit_test(a_descriptor_that_is_none_ends_the_link),
        cmocka_unit_test(more_claimed_than_sent_is_refused),
        cmocka_unit_test(descriptors_that_nobody_claims_end_the_link),
        cmocka_unit_test(a_message_with_too_many_descriptors_ends_the_link),
        cmocka_unit_test(a_frame_cut_short_leaves_no_descriptor),
        cmocka_unit_test(a_frame_without_descriptors_shows_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
