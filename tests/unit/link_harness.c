/* link_harness.c - ends of links for tests. */
#include "config.h"

#include "link_harness.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

void harness_pair(size_t outbox_bytes, struct link **a, struct link **b) {
    int fds[2];
    assert_int_equal(link_pair(fds), 0);
    *a = link_open(fds[0], outbox_bytes);
    *b = link_open(fds[1], outbox_bytes);
    assert_true(*a != NULL && *b != NULL);
}

void harness_raw(size_t outbox_bytes, struct link **link, int *fd) {
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    *link = link_open(fds[0], outbox_bytes);
    assert_non_null(*link);
    *fd = fds[1];
}

void harness_header(uint8_t *h, unsigned version, unsigned fd_count, unsigned type, uint32_t len,
                    uint64_t id) {
    h[0] = (uint8_t)version;
    h[1] = (uint8_t)fd_count;
    h[2] = (uint8_t)(type & 255);
    h[3] = (uint8_t)(type >> 8);
    for (int i = 0; i < 4; i++)
        h[4 + i] = (uint8_t)(len >> (8 * i));
    for (int i = 0; i < 8; i++)
        h[8 + i] = (uint8_t)(id >> (8 * i));
}

void harness_write(int fd, const void *data, size_t len_bytes, const int *fds, uint32_t fd_count) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * 253)]; /* the most that Linux takes */
    } control;
    struct iovec iov = {.iov_base = (void *)(uintptr_t)data, .iov_len = len_bytes};
    struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd_count > 0) {
        memset(&control, 0, sizeof(control));
        mh.msg_control = control.bytes;
        mh.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
        struct cmsghdr *c = CMSG_FIRSTHDR(&mh);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * fd_count);
    }
    assert_int_equal(sendmsg(fd, &mh, MSG_NOSIGNAL), len_bytes);
}

void harness_write_frame(int fd, unsigned type, const int *fds, uint32_t fd_count) {
    uint8_t h[HARNESS_HEADER_BYTES];
    harness_header(h, LINK_VERSION, fd_count, type, 0, 0);
    harness_write(fd, h, sizeof(h), fds, fd_count);
}

int harness_receive(struct link *from, struct link *to, struct frame *out) {
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (;;) {
        int rc = from != NULL ? link_flush(from) : 0;
        int filled = link_fill(to);
        int got = link_next(to, out);
        if (got != 0)
            return got;
        if (rc != 0 || filled != 0)
            return rc != 0 ? rc : filled;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec - start.tv_sec > 10)
            return -ETIMEDOUT;
        struct pollfd p = {.fd = link_fd(to), .events = POLLIN};
        poll(&p, 1, from != NULL && link_wants_write(from) ? 0 : 1000);
    }
}

int harness_fd_make(uint64_t number) {
    int fd = memfd_create("numbered", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(lseek(fd, (off_t)number, SEEK_SET), number);
    return fd;
}

uint64_t harness_fd_number(int fd) { return (uint64_t)lseek(fd, 0, SEEK_CUR); }
