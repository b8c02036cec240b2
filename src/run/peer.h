/* peer.h - a link watched by the loop. A failed send is reported like the peer's end: later, from
 * the loop. */
#ifndef GFS_RUN_PEER_H
#define GFS_RUN_PEER_H

#include "run/loop.h"
#include "wire/link.h"

struct peer;

/* The frame's descriptors are closed after the call unless taken (set to -1). The handler may close
 * the peer. */
typedef void peer_frame_fn(void *arg, struct peer *p, struct frame *f);
/* The link has ended, and every frame that came was handed out. The handler closes the peer. */
typedef void peer_end_fn(void *arg, struct peer *p);

/* Takes over fd, also on failure. */
int peer_open(struct loop *l, int fd, size_t outbox_bytes, peer_frame_fn *on_frame,
              peer_end_fn *on_end, void *arg, struct peer **out);
void peer_close(struct peer *p); /* NULL is fine */
/* Other handlers from now on. */
void peer_set_handlers(struct peer *p, peer_frame_fn *on_frame, peer_end_fn *on_end, void *arg);
int peer_fd(const struct peer *p);

/* msg_send; p may be NULL or dead: then nothing happens. */
void peer_send(struct peer *p, uint16_t type, const void *msg, const int *fds, uint32_t fd_count);
/* The same without descriptors, with a frame id. */
void peer_reply(struct peer *p, uint16_t type, uint64_t id, const void *msg);
/* True while the peer does not keep up: what can be coalesced should wait. */
bool peer_is_slow(const struct peer *p);

#endif
