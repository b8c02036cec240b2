/* link.h - a framed, versioned, never blocking stream between two processes, with descriptor
 * passing.
 *
 * Frame: u8 version, u8 descriptors, u16 type, u32 payload bytes, u64 id, payload. Little-endian.
 * The version is checked on every frame. Descriptors travel with the first byte of their frame
 * (Unix sockets only). */
#ifndef GFS_WIRE_LINK_H
#define GFS_WIRE_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LINK_VERSION = 2, LINK_MAX_PAYLOAD_BYTES = 64 << 20, LINK_MAX_FDS = 8 };

struct link; /* owned by one thread */

struct frame {
    uint16_t type;
    uint64_t id;
    const uint8_t *payload; /* valid until the next call on the link */
    size_t len_bytes;
    int *fds; /* LINK_MAX_FDS of the link, -1 from fd_count on; take one by setting it to -1: the
               * next call, also link_close, closes those that are left */
    uint32_t fd_count;
};

/* Takes over fd (made non-blocking, close-on-exec). At most outbox_bytes wait for a slow peer; a
 * frame larger than that waits alone. NULL: no memory, or fd is none; fd closed. */
struct link *link_open(int fd, size_t outbox_bytes);
void link_close(struct link *l); /* NULL is fine */
int link_fd(const struct link *l);

/* Queues a frame and tries to write. The fds are duplicated. 0, or: -ENOBUFS the outbox is full,
 * -EMSGSIZE the frame is too large, -EPIPE the peer is gone, and others. After any error the link
 * is dead: sending fails, and at -EPIPE only what the peer sent before can still be read. Close it.
 */
int link_send(struct link *l, uint16_t type, uint64_t id, const void *payload, size_t len_bytes,
              const int *fds, uint32_t fd_count);
/* Makes the link dead with rc (negative) unless it is already: what should be said cannot be.
 * Returns the first cause. */
int link_fail(struct link *l, int rc);
bool link_wants_write(const struct link *l); /* poll for POLLOUT, then link_flush */
int link_flush(struct link *l);

/* Reads what is there. 0, -EPIPE at the peer's end, -EPROTO on garbage. Frames read before the end
 * stay available. */
int link_fill(struct link *l);
/* 1 and a frame, 0 when none is complete, -EPROTO. */
int link_next(struct link *l, struct frame *out);

/* A connected pair of Unix stream sockets, both close-on-exec. */
int link_pair(int fds[2]);

/* Listens on / connects to dir/name whatever the length of dir (through /proc/self/fd). Mode 0600.
 */
int link_listen(const char *dir, const char *name);
int link_connect(const char *dir, const char *name);
/* uid of the peer of a Unix socket, or -errno. */
int link_peer_uid(int fd, uint32_t *uid);

#endif
