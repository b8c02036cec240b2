/* link.c - frames over a stream socket; the outbox is bounded and nothing here ever blocks. */
#include "config.h"

#include "wire/link.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { FRAME_HEADER_BYTES = 16, LINK_READ_BYTES = 64 << 10, LINK_MAX_PENDING_FDS = 256 };

/* A frame in the outbox. Its descriptors go with its first byte. */
struct outgoing {
    struct outgoing *next;
    size_t len_bytes, sent_bytes;
    int fds[LINK_MAX_FDS];
    uint32_t fd_count;
    uint8_t bytes[];
};

struct link {
    int fd;
    int error; /* sticky, negative */
    size_t outbox_limit_bytes, outbox_bytes;
    struct outgoing *out_first, **out_last;
    uint8_t *in;
    size_t in_start, in_len, in_cap;  /* bytes [in_start, in_len) are not yet handed out */
    int in_fds[LINK_MAX_PENDING_FDS]; /* received, in order, not yet claimed by a frame */
    uint32_t in_fd_count;
    int frame_fds[LINK_MAX_FDS]; /* of the frame handed out last; -1 when taken */
    bool ended;
};

/* Descriptors are counted in the header's version word: version in the low byte, count in the high
 * byte. */
static void frame_header(uint8_t *h, uint16_t type, uint32_t fd_count, size_t len_bytes,
                         uint64_t id) {
    h[0] = LINK_VERSION;
    h[1] = (uint8_t)fd_count;
    h[2] = (uint8_t)type;
    h[3] = (uint8_t)(type >> 8);
    for (int i = 0; i < 4; i++)
        h[4 + i] = (uint8_t)(len_bytes >> (8 * i));
    for (int i = 0; i < 8; i++)
        h[8 + i] = (uint8_t)(id >> (8 * i));
}

static void close_fds(int *fds, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
        fds[i] = -1;
    }
}

struct link *link_open(int fd, size_t outbox_bytes) {
    struct link *l = calloc(1, sizeof(*l));
    int flags = fcntl(fd, F_GETFL);
    if (l == NULL || flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
        fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
        free(l);
        close(fd);
        return NULL;
    }
    l->fd = fd;
    l->outbox_limit_bytes = outbox_bytes;
    l->out_last = &l->out_first;
    for (int i = 0; i < LINK_MAX_FDS; i++)
        l->frame_fds[i] = -1;
    return l;
}

static void link_drop_outgoing(struct link *l) {
    struct outgoing *o = l->out_first;
    l->out_first = o->next;
    if (l->out_first == NULL)
        l->out_last = &l->out_first;
    l->outbox_bytes -= o->len_bytes;
    close_fds(o->fds, o->fd_count);
    free(o);
}

/* The descriptors of the frame handed out last: those that the receiver did not take are closed. */
static void link_end_frame(struct link *l) { close_fds(l->frame_fds, LINK_MAX_FDS); }

void link_close(struct link *l) {
    if (l == NULL)
        return;
    while (l->out_first != NULL)
        link_drop_outgoing(l);
    link_end_frame(l);
    close_fds(l->in_fds, l->in_fd_count);
    close(l->fd);
    free(l->in);
    free(l);
}

int link_fd(const struct link *l) { return l->fd; }

int link_fail(struct link *l, int rc) {
    if (l->error == 0)
        l->error = rc;
    return l->error;
}

/* One sendmsg. Returns bytes written, 0 when the socket is full, -errno. */
static ssize_t link_send_some(const struct link *l, struct outgoing *o) {
    struct iovec iov = {.iov_base = o->bytes + o->sent_bytes,
                        .iov_len = o->len_bytes - o->sent_bytes};
    struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * LINK_MAX_FDS)];
    } control;
    if (o->sent_bytes == 0 && o->fd_count > 0) {
        memset(&control, 0, sizeof(control));
        mh.msg_control = control.bytes;
        mh.msg_controllen = CMSG_SPACE(sizeof(int) * o->fd_count);
        struct cmsghdr *c = CMSG_FIRSTHDR(&mh);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * o->fd_count);
        memcpy(CMSG_DATA(c), o->fds, sizeof(int) * o->fd_count);
    }
    for (;;) {
        ssize_t n = sendmsg(l->fd, &mh, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0)
            return n;
        if (errno == EINTR)
            continue;
        if (errno == ECONNRESET) /* the peer closed while this call was under way */
            return -EPIPE;
        return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -errno;
    }
}

int link_flush(struct link *l) {
    while (l->error == 0 && l->out_first != NULL) {
        struct outgoing *o = l->out_first;
        ssize_t n = link_send_some(l, o);
        if (n < 0)
            return link_fail(l, (int)n);
        if (n == 0)
            return 0;
        o->sent_bytes += (size_t)n;
        if (o->sent_bytes == o->len_bytes)
            link_drop_outgoing(l);
    }
    return l->error;
}

int link_send(struct link *l, uint16_t type, uint64_t id, const void *payload, size_t len_bytes,
              const int *fds, uint32_t fd_count) {
    if (l->error != 0)
        return l->error;
    if (len_bytes > LINK_MAX_PAYLOAD_BYTES || fd_count > LINK_MAX_FDS)
        return link_fail(l, -EMSGSIZE);
    size_t total = FRAME_HEADER_BYTES + len_bytes;
    if (l->out_first != NULL &&
        total >
            l->outbox_limit_bytes -
                (l->outbox_bytes < l->outbox_limit_bytes ? l->outbox_bytes : l->outbox_limit_bytes))
        return link_fail(l, -ENOBUFS);
    struct outgoing *o = calloc(1, sizeof(*o) + total);
    if (o == NULL)
        return link_fail(l, -ENOMEM);
    o->len_bytes = total;
    for (uint32_t i = 0; i < fd_count; i++) {
        o->fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
        if (o->fds[i] < 0) {
            int rc = -errno;
            close_fds(o->fds, i);
            free(o);
            return link_fail(l, rc);
        }
        o->fd_count = i + 1;
    }
    frame_header(o->bytes, type, fd_count, len_bytes, id);
    if (len_bytes != 0)
        memcpy(o->bytes + FRAME_HEADER_BYTES, payload, len_bytes);
    *l->out_last = o;
    l->out_last = &o->next;
    l->outbox_bytes += total;
    return link_flush(l);
}

bool link_wants_write(const struct link *l) { return l->error == 0 && l->out_first != NULL; }

static int link_room(struct link *l) {
    if (l->in_start > 0) {
        memmove(l->in, l->in + l->in_start, l->in_len - l->in_start);
        l->in_len -= l->in_start;
        l->in_start = 0;
    }
    if (l->in_cap - l->in_len >= LINK_READ_BYTES)
        return 0;
    size_t cap =
        l->in_cap + LINK_READ_BYTES > 2 * l->in_cap ? l->in_cap + LINK_READ_BYTES : 2 * l->in_cap;
    uint8_t *in = realloc(l->in, cap);
    if (in == NULL)
        return -ENOMEM;
    l->in = in;
    l->in_cap = cap;
    return 0;
}

static int link_take_control(struct link *l, struct msghdr *mh) {
    int rc = (mh->msg_flags & MSG_CTRUNC) != 0 ? -EPROTO : 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(mh); c != NULL; c = CMSG_NXTHDR(mh, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        int fds[LINK_MAX_FDS * 4];
        if (n > sizeof(fds) / sizeof(fds[0]))
            n = sizeof(fds) / sizeof(fds[0]);
        memcpy(fds, CMSG_DATA(c), n * sizeof(int));
        for (size_t i = 0; i < n; i++) {
            if (l->in_fd_count < LINK_MAX_PENDING_FDS) {
                l->in_fds[l->in_fd_count++] = fds[i];
            } else {
                close(fds[i]);
                rc = -EPROTO;
            }
        }
    }
    return rc;
}

/* Frames are bounded, so what may pile up here is bounded too: reading stops while a whole frame
 * waits. */
static bool link_has_frame(const struct link *l) {
    size_t have = l->in_len - l->in_start;
    if (have < FRAME_HEADER_BYTES)
        return false;
    const uint8_t *h = l->in + l->in_start;
    size_t len = (size_t)h[4] | (size_t)h[5] << 8 | (size_t)h[6] << 16 | (size_t)h[7] << 24;
    return len > LINK_MAX_PAYLOAD_BYTES || have - FRAME_HEADER_BYTES >= len;
}

int link_fill(struct link *l) {
    link_end_frame(l);
    if (l->error != 0 && l->error != -EPIPE)
        return l->error;
    if (l->ended)
        return -EPIPE;
    for (int rounds = 0; rounds < 64; rounds++) {
        int rc = link_room(l);
        if (rc != 0)
            return link_fail(l, rc);
        union {
            struct cmsghdr align;
            char bytes[CMSG_SPACE(sizeof(int) * LINK_MAX_FDS * 4)];
        } control;
        struct iovec iov = {.iov_base = l->in + l->in_len, .iov_len = l->in_cap - l->in_len};
        struct msghdr mh = {.msg_iov = &iov,
                            .msg_iovlen = 1,
                            .msg_control = control.bytes,
                            .msg_controllen = sizeof(control.bytes)};
        ssize_t n = recvmsg(l->fd, &mh, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        if (n <= 0) {
            l->ended = true;
            return -EPIPE;
        }
        l->in_len += (size_t)n;
        rc = link_take_control(l, &mh);
        if (rc != 0)
            return link_fail(l, rc);
        if (link_has_frame(l) && rounds >= 4)
            return 0;
    }
    return 0;
}

int link_next(struct link *l, struct frame *out) {
    link_end_frame(l);
    if (l->error == -EPROTO)
        return -EPROTO;
    size_t have = l->in_len - l->in_start;
    if (have < FRAME_HEADER_BYTES)
        return 0;
    const uint8_t *h = l->in + l->in_start;
    size_t len = (size_t)h[4] | (size_t)h[5] << 8 | (size_t)h[6] << 16 | (size_t)h[7] << 24;
    uint32_t fd_count = h[1];
    if (h[0] != LINK_VERSION || len > LINK_MAX_PAYLOAD_BYTES || fd_count > LINK_MAX_FDS)
        return link_fail(l, -EPROTO);
    if (have - FRAME_HEADER_BYTES < len)
        return 0;
    if (fd_count > l->in_fd_count)
        return link_fail(l, -EPROTO);
    out->type = (uint16_t)(h[2] | h[3] << 8);
    out->id = 0;
    for (int i = 0; i < 8; i++)
        out->id |= (uint64_t)h[8 + i] << (8 * i);
    out->payload = h + FRAME_HEADER_BYTES;
    out->len_bytes = len;
    out->fd_count = fd_count;
    out->fds = l->frame_fds;
    for (uint32_t i = 0; i < fd_count; i++)
        l->frame_fds[i] = l->in_fds[i];
    l->in_fd_count -= fd_count;
    memmove(l->in_fds, l->in_fds + fd_count, l->in_fd_count * sizeof(l->in_fds[0]));
    l->in_start += FRAME_HEADER_BYTES + len;
    return 1;
}

int link_pair(int fds[2]) {
    return socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0 ? 0 : -errno;
}

/* dir may be longer than sun_path: it is named by a descriptor. */
static int link_address(const char *dir, const char *name, int *dirfd, struct sockaddr_un *sun) {
    *dirfd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (*dirfd < 0)
        return -errno;
    *sun = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(sun->sun_path, sizeof(sun->sun_path), "/proc/self/fd/%d/%s", *dirfd, name);
    if (n < 0 || (size_t)n >= sizeof(sun->sun_path)) {
        close(*dirfd);
        return -ENAMETOOLONG;
    }
    return 0;
}

int link_listen(const char *dir, const char *name) {
    int dirfd;
    struct sockaddr_un sun;
    int rc = link_address(dir, name, &dirfd, &sun);
    if (rc != 0)
        return rc;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        rc = -errno;
        goto out;
    }
    unlinkat(dirfd, name, 0);
    /* The mode is set on the socket before bind makes the name: it is never wider than 0600. */
    if (fchmod(fd, 0600) != 0 || bind(fd, (struct sockaddr *)&sun, sizeof(sun)) != 0 ||
        listen(fd, 128) != 0) {
        rc = -errno;
        close(fd);
        goto out;
    }
    rc = fd;
out:
    close(dirfd);
    return rc;
}

int link_connect(const char *dir, const char *name) {
    int dirfd;
    struct sockaddr_un sun;
    int rc = link_address(dir, name, &dirfd, &sun);
    if (rc != 0)
        return rc;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        rc = -errno;
    else if (connect(fd, (struct sockaddr *)&sun, sizeof(sun)) != 0) {
        rc = -errno;
        close(fd);
    } else
        rc = fd;
    close(dirfd);
    return rc;
}

int link_peer_uid(int fd, uint32_t *uid) {
    struct ucred cred;
    socklen_t len = sizeof(cred);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0)
        return -errno;
    *uid = cred.uid;
    return 0;
}
