/* session.h - the FUSE session over an inherited /dev/fuse: reading, dispatching, and taking over
 * from a predecessor.
 *
 * A daemon that dies leaves the mount to its successor, because the supervisor holds /dev/fuse too.
 * The kernel sends INIT only once: it is kept by the supervisor and replayed here, and its reply is
 * swallowed. Each request is written to a shared memfd when it is read and wiped out when it is
 * answered; what stands there at the start was in flight when the predecessor died:
 * FUSE_NOTIFY_RESEND (Linux 6.9) brings it back, and without that it is answered with EIO. */
#ifndef GFS_FSMOUNT_SESSION_H
#define GFS_FSMOUNT_SESSION_H

#define FUSE_USE_VERSION 312
#include <fuse_lowlevel.h>

#include "base/err.h"
#include "fsmount/slots.h"

enum { SESSION_MAX_READ_BYTES = 1 << 20 };

struct session;

struct session_setup {
    int fuse_fd;     /* owned by the session from now on, also on failure */
    int requests_fd; /* likewise; -1: nothing is recorded */
    bool mask_resend;
    const uint8_t *init; /* INIT of a predecessor, or len 0 */
    size_t init_bytes;
    const struct fuse_lowlevel_ops *ops;
    void (*on_init)(void *userdata, const uint8_t *init,
                    size_t init_bytes); /* a new INIT, before it is answered */
    void *userdata;
};

/* Replays INIT if there is one. */
int session_open(const struct session_setup *setup, struct session **out, struct err *err);
void session_close(struct session *s);

int session_fd(const struct session *s);
/* False until INIT was handled, by replay or from the kernel. */
bool session_is_ready(const struct session *s);
/* Reads and dispatches one request. 1; 0 when there is none; -ENODEV: unmounted; other errors end
 * the daemon. */
int session_step(struct session *s);

/* What the userdata of a request's session is, and the unique of the request that is dispatched now
 * (resend bit cleared). */
void *session_userdata(fuse_req_t req);
uint64_t session_unique(fuse_req_t req);

#endif
