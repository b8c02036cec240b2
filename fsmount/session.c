/* session.c - custom I/O under libfuse: every request and every reply passes here. */
#include "config.h"

#include "fsmount/session.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/log.h"

/* Newer than the headers of Debian 12. */
#ifndef FUSE_HAS_RESEND
#define FUSE_HAS_RESEND (UINT64_C(1) << 39)
#endif
#ifndef FUSE_UNIQUE_RESEND
#define FUSE_UNIQUE_RESEND (UINT64_C(1) << 63)
#endif
enum { SESSION_NOTIFY_RESEND = 7, SESSION_BUFFER_BYTES = SESSION_MAX_READ_BYTES + 64 * 1024 };

struct session {
    struct fuse_session *fuse;
    struct slots slots;
    struct session_setup setup; /* init is not kept */
    uint8_t *buffer;
    uint64_t unique;       /* of the request that is dispatched */
    uint64_t swallow;      /* unique of the replayed INIT, 0 none */
    bool ready, full_said; /* full_said: that the table of requests is full was logged */
};

static struct session *session_of(fuse_req_t req) { return fuse_req_userdata(req); }
void *session_userdata(fuse_req_t req) { return session_of(req)->setup.userdata; }
uint64_t session_unique(fuse_req_t req) { return session_of(req)->unique & ~FUSE_UNIQUE_RESEND; }
int session_fd(const struct session *s) { return s->setup.fuse_fd; }
bool session_is_ready(const struct session *s) { return s->ready; }

static int session_write_error(const struct session *s, uint64_t unique, int code) {
    struct fuse_out_header out = {.len = sizeof(out), .error = -code, .unique = unique};
    return write(s->setup.fuse_fd, &out, sizeof(out)) == (ssize_t)sizeof(out) ? 0 : -errno;
}

/* A reply whose memory can't be read (the file under a mapping lost its end) must not leave its
 * caller waiting. */
static ssize_t session_writev(int fd, struct iovec *iov, int count, void *userdata) {
    struct session *s = userdata;
    struct fuse_out_header out;
    memcpy(&out, iov[0].iov_base, sizeof(out));
    if (out.unique != 0 && out.unique == s->swallow) {
        s->swallow = 0;
        return (ssize_t)out.len;
    }
    ssize_t n = writev(fd, iov, count);
    if (n < 0 && out.unique != 0 && errno != ENOENT && errno != ENODEV) {
        int saved = errno;
        if (saved != EINVAL || out.error == 0)
            session_write_error(s, out.unique, EIO);
        errno = saved;
    }
    if (out.unique != 0)
        slots_remove(&s->slots, out.unique);
    return n;
}

static ssize_t session_read(int fd, void *buf, size_t len, void *userdata) {
    (void)userdata;
    return read(fd, buf, len);
}

static void session_dispatch(struct session *s, uint8_t *data, size_t len) {
    struct fuse_in_header in;
    memcpy(&in, data, sizeof(in));
    bool answered = in.opcode != FUSE_FORGET && in.opcode != FUSE_BATCH_FORGET &&
                    in.opcode != FUSE_INTERRUPT && in.opcode != FUSE_NOTIFY_REPLY;
    if (answered && s->swallow != in.unique && s->slots.at != NULL &&
        !slots_add(&s->slots, in.unique) && !s->full_said) {
        s->full_said = true;
        log_warn("more than %zu requests in flight: a successor would not know all",
                 s->slots.count);
    }
    s->unique = in.unique;
    struct fuse_buf buf = {.size = len, .mem = data};
    fuse_session_process_buf(s->fuse, &buf);
    s->unique = 0;
}

/* True if the kernel that sent this INIT can send requests again. */
static bool session_has_resend(const uint8_t *init, size_t len) {
    struct fuse_init_in in = {0};
    size_t have = len - sizeof(struct fuse_in_header);
    memcpy(&in, init + sizeof(struct fuse_in_header), have < sizeof(in) ? have : sizeof(in));
    uint64_t flags = in.flags;
    if ((in.flags & FUSE_INIT_EXT) != 0)
        flags |= (uint64_t)in.flags2 << 32;
    return (flags & FUSE_HAS_RESEND) != 0;
}

static void session_answer_lost(struct session *s) {
    size_t count = 0;
    for (size_t i = 0; i < s->slots.count; i++) {
        if (s->slots.at[i] == 0)
            continue;
        session_write_error(s, s->slots.at[i], EIO);
        s->slots.at[i] = 0;
        count++;
    }
    if (count != 0)
        log_warn("%zu requests of the daemon before this one answered with EIO", count);
}

static int session_resend(struct session *s) {
    struct fuse_out_header out = {.len = sizeof(out), .error = SESSION_NOTIFY_RESEND};
    if (s->slots.at != NULL)
        memset(s->slots.at, 0, s->slots.count * sizeof(*s->slots.at));
    return write(s->setup.fuse_fd, &out, sizeof(out)) == (ssize_t)sizeof(out) ? 0 : -errno;
}

static int session_replay(struct session *s, const uint8_t *init, size_t len, struct err *err) {
    struct fuse_in_header in;
    if (len < sizeof(in) || len > SESSION_BUFFER_BYTES)
        return err_set(err, EPROTO, "the INIT of the daemon before this one has %zu bytes", len);
    memcpy(&in, init, sizeof(in));
    if (in.opcode != FUSE_INIT)
        return err_set(err, EPROTO, "the INIT of the daemon before this one is none");
    /* It may have died between reading INIT and answering: then the kernel still waits for the
     * reply. */
    bool unanswered = slots_has(&s->slots, in.unique);
    s->swallow = unanswered ? 0 : in.unique;
    slots_remove(&s->slots, in.unique);
    memcpy(s->buffer, init, len);
    session_dispatch(s, s->buffer, len);
    s->swallow = 0;
    s->ready = true;
    if (s->setup.mask_resend || !session_has_resend(init, len)) {
        session_answer_lost(s);
        return 0;
    }
    int rc = session_resend(s);
    if (rc != 0) {
        log_warn("requests in flight can't be had again: %s", strerror(-rc));
        session_answer_lost(s);
    }
    return 0;
}

static int session_start_fuse(struct session *s, struct err *err) {
    static const struct fuse_custom_io io = {.writev = session_writev, .read = session_read};
    char *argv[] = {"gatherfs-mountd", "-o", "max_read=1048576", NULL};
    struct fuse_args args = FUSE_ARGS_INIT(3, argv);
    s->fuse = fuse_session_new(&args, s->setup.ops, sizeof(*s->setup.ops), s);
    fuse_opt_free_args(&args); /* libfuse made a copy */
    if (s->fuse == NULL)
        return err_set(err, EINVAL, "libfuse makes no session");
    if (fuse_session_custom_io(s->fuse, &io, s->setup.fuse_fd) != 0)
        return err_set(err, EINVAL, "libfuse refuses the descriptor of /dev/fuse");
    return 0;
}

int session_open(const struct session_setup *setup, struct session **out, struct err *err) {
    int rc = 0;
    struct session *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        close(setup->fuse_fd);
        if (setup->requests_fd >= 0)
            close(setup->requests_fd);
        return err_set(err, ENOMEM, "no memory for the session");
    }
    s->setup = *setup;
    s->setup.init = NULL;
    if (setup->requests_fd >= 0 && (rc = slots_open(setup->requests_fd, &s->slots)) != 0) {
        err_set(err, -rc, "the memory of requests in flight can't be mapped");
        goto failed;
    }
    s->buffer = malloc(SESSION_BUFFER_BYTES);
    int flags = fcntl(setup->fuse_fd, F_GETFL);
    if (s->buffer == NULL || flags < 0 || fcntl(setup->fuse_fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
        fcntl(setup->fuse_fd, F_SETFD, FD_CLOEXEC) != 0) {
        rc = err_set(err, ENOMEM, "/dev/fuse can't be set up");
        goto failed;
    }
    rc = session_start_fuse(s, err);
    if (rc == 0 && setup->init_bytes != 0)
        rc = session_replay(s, setup->init, setup->init_bytes, err);
    if (rc != 0)
        goto failed;
    *out = s;
    return 0;
failed:
    session_close(s);
    return rc;
}

void session_close(struct session *s) {
    if (s == NULL)
        return;
    if (s->fuse != NULL)
        fuse_session_destroy(s->fuse); /* closes fuse_fd */
    else
        close(s->setup.fuse_fd);
    slots_close(&s->slots);
    free(s->buffer);
    free(s);
}

int session_step(struct session *s) {
    ssize_t n = read(s->setup.fuse_fd, s->buffer, SESSION_BUFFER_BYTES);
    if (n < 0) {
        if (errno == EAGAIN)
            return 0;
        /* ENOENT: the caller gave up between the queue and this read. */
        return errno == EINTR || errno == ENOENT ? 1 : -errno;
    }
    struct fuse_in_header in;
    if ((size_t)n < sizeof(in))
        return -EIO;
    memcpy(&in, s->buffer, sizeof(in));
    if (in.opcode == FUSE_INIT) {
        s->setup.on_init(s->setup.userdata, s->buffer, (size_t)n);
        s->ready = true;
    }
    session_dispatch(s, s->buffer, (size_t)n);
    return fuse_session_exited(s->fuse) ? -ENODEV : 1;
}
