/* world.h - the ranks: links, epochs, signs of life, and the segments they passed over.
 *
 * A world is complete when the supervisor has named its epoch and size and each of its ranks is
 * connected; takes begin only then. A rank's end, a newer epoch, or garbage from a rank ends the
 * link; what waits for that rank hears of it once, from world_reap, never from within a send. */
#ifndef GFS_FSMOUNT_WORLD_H
#define GFS_FSMOUNT_WORLD_H

#include <poll.h>

#include "base/segment.h"
#include "fsmount/model.h"
#include "wire/msg.h"

struct world;

/* Memory of a rank that is mapped here, counted; it outlives the link and the rank. */
struct shared {
    uint32_t refs;
    uint64_t id; /* on its link */
    struct segment segment;
    struct shared *next;
};
struct shared *shared_get(struct shared *s);
void shared_put(struct shared *s); /* NULL is fine */

struct world_ops {
    /* segment: the one the reply names, checked against its offset; NULL if it names none. */
    void (*reply)(void *ctx, uint32_t rank, const struct msg_take_reply *m, struct shared *segment);
    void (*wide)(void *ctx, uint64_t epoch, uint32_t rank, const struct msg_wide_segment *m,
                 struct shared *segment);
    void (*wide_gone)(void *ctx, uint64_t epoch, uint32_t rank, uint64_t take);
    void (*complete)(void *ctx);                            /* all ranks of the epoch are there */
    void (*lost)(void *ctx, uint64_t epoch, uint32_t rank); /* this link ended */
    void (*replaced)(void *ctx, uint32_t rank);             /* by another of the same epoch */
};

/* ops is borrowed. 0 or -ENOMEM. */
int world_open(uint64_t session, const struct world_ops *ops, void *ctx, struct world **out);
void world_close(struct world *w);

/* MSG_WORLD, MSG_RANK_LINK (takes over fd), MSG_RANK_TABLE, MSG_RANK_DEVICE. */
int world_set(struct world *w, const struct msg_world *m, struct err *err);
int world_add_link(struct world *w, const struct msg_rank_link *m, int fd);
void world_table(struct world *w, const struct msg_rank_table *m);
void world_device(struct world *w, const struct msg_rank_device *m);

/* Of the newest world, also after its end; 0 before the first. */
uint64_t world_epoch(const struct world *w);
/* The supervisor says that there is one. */
bool world_is_up(const struct world *w);
bool world_is_complete(const struct world *w);
/* The newest layout, also after its world has ended; NULL before the first. */
struct model *world_model(const struct world *w);
/* Monotonic time of the rank's last sign of life in this epoch, 0 for none. */
uint64_t world_alive_ns(const struct world *w, uint32_t rank);
/* What the supervisor said of ranks/R; rank_count: of the newest world. */
uint32_t world_rank_count(const struct world *w);
const struct msg_rank_table *world_rank(const struct world *w, uint32_t rank);
/* All empty before the supervisor has said something of it. */
const struct msg_rank_device *world_rank_device(const struct world *w, uint32_t rank);

/* To a rank of the current epoch; -ENOTCONN. */
int world_send(struct world *w, uint32_t rank, uint16_t type, const void *msg);

/* For poll(): fills at most cap entries, returns how many there are. After poll the same entries
 * are handled. */
size_t world_poll_fill(struct world *w, struct pollfd *fds, size_t cap);
void world_poll_handle(struct world *w, const struct pollfd *fds, size_t count);
size_t world_link_count(const struct world *w);
/* Removes dead links and tells. Call once in each turn of the loop. */
void world_reap(struct world *w);

#endif
