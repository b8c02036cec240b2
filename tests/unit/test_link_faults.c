/* test_link_faults.c - links over a socket whose calls are interrupted, short, or fail. Linked with
 * --wrap for sendmsg and recvmsg. */
#include "config.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "fixture.h"
#include "link_harness.h"

enum { OUTBOX_BYTES = 1 << 20 };

/* What the next calls do; 0: as the kernel does. */
static struct {
    size_t send_at_most, receive_at_most; /* bytes a call */
    int send_errno, receive_errno;
    int send_interrupts, receive_interrupts; /* calls that end with EINTR first */
} faults;

ssize_t __real_sendmsg(int fd, const struct msghdr *mh, int flags);
ssize_t __real_recvmsg(int fd, struct msghdr *mh, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *mh, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *mh, int flags);

ssize_t __wrap_sendmsg(int fd, const struct msghdr *mh, int flags) {
    if (faults.send_interrupts > 0 || faults.send_errno != 0) {
        errno = faults.send_interrupts > 0 ? EINTR : faults.send_errno;
        faults.send_interrupts--;
        return -1;
    }
    struct iovec iov = mh->msg_iov[0];
    struct msghdr less = *mh;
    less.msg_iov = &iov;
    if (faults.send_at_most != 0 && iov.iov_len > faults.send_at_most)
        iov.iov_len = faults.send_at_most;
    return __real_sendmsg(fd, &less, flags);
}

ssize_t __wrap_recvmsg(int fd, struct msghdr *mh, int flags) {
    if (faults.receive_interrupts > 0 || faults.receive_errno != 0) {
        errno = faults.receive_interrupts > 0 ? EINTR : faults.receive_errno;
        faults.receive_interrupts--;
        return -1;
    }
    if (faults.receive_at_most != 0 && mh->msg_iov[0].iov_len > faults.receive_at_most)
        mh->msg_iov[0].iov_len = faults.receive_at_most;
    return __real_recvmsg(fd, mh, flags);
}

static int faults_reset(void **state) {
    (void)state;
    memset(&faults, 0, sizeof(faults));
    return 0;
}

/* Ten frames with payloads and descriptors, whatever is written and read in one call. */
static void expect_frames_pass(void) {
    int before = fixture_fd_count();
    struct link *a, *b;
    struct frame f;
    harness_pair(OUTBOX_BYTES, &a, &b);
    for (uint64_t id = 0; id < 10; id++) {
        int fds[2] = {harness_fd_make(id * 2), harness_fd_make(id * 2 + 1)};
        assert_int_equal(link_send(a, 1, id, "0123456789", id, fds, (uint32_t)(id % 3)), 0);
        close(fds[0]);
        close(fds[1]);
    }
    for (uint64_t id = 0; id < 10; id++) {
        assert_int_equal(harness_receive(a, b, &f), 1);
        assert_true(f.id == id);
        assert_int_equal(f.len_bytes, id);
        assert_memory_equal(f.payload, "0123456789", id);
        assert_int_equal(f.fd_count, id % 3);
        for (uint32_t i = 0; i < f.fd_count; i++)
            assert_true(harness_fd_number(f.fds[i]) == id * 2 + i);
    }
    assert_int_equal(link_next(b, &f), 0);
    link_close(a);
    link_close(b);
    assert_int_equal(fixture_fd_count(), before);
}

static void frames_survive_short_writes_and_short_reads(void **state) {
    (void)state;
    for (size_t sent = 0; sent <= 30; sent++) {
        for (size_t received = 0; received <= 30; received++) {
            faults.send_at_most = sent;
            faults.receive_at_most = received;
            expect_frames_pass();
        }
    }
}

static void interrupted_calls_are_made_again(void **state) {
    (void)state;
    faults.send_interrupts = 5;
    faults.receive_interrupts = 5;
    expect_frames_pass();
    assert_true(faults.send_interrupts <= 0 && faults.receive_interrupts <= 0);
}

static void a_full_socket_is_no_error(void **state) {
    (void)state;
    struct link *a, *b;
    struct frame f;
    harness_pair(OUTBOX_BYTES, &a, &b);
    faults.send_errno = EAGAIN;
    assert_int_equal(link_send(a, 1, 5, "x", 1, NULL, 0), 0);
    assert_true(link_wants_write(a));
    assert_int_equal(link_flush(a), 0);
    assert_int_equal(link_fill(b), 0);
    assert_int_equal(link_next(b, &f), 0);
    faults.send_errno = 0;
    assert_int_equal(link_flush(a), 0);
    assert_false(link_wants_write(a));
    assert_int_equal(link_fill(b), 0);
    assert_int_equal(link_next(b, &f), 1);
    link_close(a);
    link_close(b);
}

/* The peer closes between the checks of one sendmsg: ECONNRESET is its end as EPIPE is. */
static void a_reset_while_sending_leaves_what_the_peer_said(void **state) {
    (void)state;
    static const int codes[] = {EPIPE, ECONNRESET};
    for (size_t i = 0; i < 2; i++) {
        struct link *a, *b;
        struct frame f;
        faults_reset(NULL);
        harness_pair(OUTBOX_BYTES, &a, &b);
        assert_int_equal(link_send(b, 77, 0, NULL, 0, NULL, 0), 0);
        link_close(b);
        faults.send_errno = codes[i];
        assert_int_equal(link_send(a, 1, 0, NULL, 0, NULL, 0), -EPIPE);
        assert_int_equal(link_fill(a), -EPIPE);
        assert_int_equal(link_next(a, &f), 1);
        assert_int_equal(f.type, 77);
        link_close(a);
    }
}

static void other_errors_of_sending_end_the_link(void **state) {
    (void)state;
    struct link *a, *b;
    harness_pair(OUTBOX_BYTES, &a, &b);
    faults.send_errno = ETOOMANYREFS;
    assert_int_equal(link_send(a, 1, 0, NULL, 0, NULL, 0), -ETOOMANYREFS);
    faults.send_errno = 0;
    assert_int_equal(link_flush(a), -ETOOMANYREFS);
    assert_int_equal(link_send(a, 1, 0, NULL, 0, NULL, 0), -ETOOMANYREFS);
    link_close(a);
    link_close(b);
}

static void an_error_of_receiving_is_the_end_of_the_peer(void **state) {
    (void)state;
    struct link *a, *b;
    struct frame f;
    harness_pair(OUTBOX_BYTES, &a, &b);
    assert_int_equal(link_send(b, 77, 0, NULL, 0, NULL, 0), 0);
    assert_int_equal(link_fill(a), 0);
    faults.receive_errno = ECONNRESET;
    assert_int_equal(link_fill(a), -EPIPE);
    faults.receive_errno = 0;
    assert_int_equal(link_fill(a), -EPIPE);
    assert_int_equal(link_next(a, &f), 1);
    assert_int_equal(link_next(a, &f), 0);
    link_close(a);
    link_close(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(frames_survive_short_writes_and_short_reads, faults_reset),
        cmocka_unit_test_setup(interrupted_calls_are_made_again, faults_reset),
        cmocka_unit_test_setup(a_full_socket_is_no_error, faults_reset),
        cmocka_unit_test_setup(a_reset_while_sending_leaves_what_the_peer_said, faults_reset),
        cmocka_unit_test_setup(other_errors_of_sending_end_the_link, faults_reset),
        cmocka_unit_test_setup(an_error_of_receiving_is_the_end_of_the_peer, faults_reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
