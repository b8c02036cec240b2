/* take.h - takes of single tensors: what the mount daemon asked this rank for and has not let go.
 *
 * All calls are the service thread's but takes_fix, which is the main thread's at a boundary. */
#ifndef GFS_ENGINE_TAKE_H
#define GFS_ENGINE_TAKE_H

#include "engine/arrays.h"
#include "wire/msg.h"

struct takes;

/* Arrays and layout are borrowed. NULL: no memory. limit_bytes: of all copies together. */
struct takes *takes_open(struct arrays *a, const struct layout *l, uint32_t rank, uint64_t epoch,
                         size_t limit_bytes);
void takes_close(struct takes *t);
void takes_set_limit(struct takes *t, size_t limit_bytes);

/* A new daemon: everything of older sessions is dropped. daemon is borrowed, NULL: no daemon now.
 */
void takes_set_daemon(struct takes *t, struct link *daemon, uint64_t session);
/* MSG_TAKE: a new take, or another try of a known one; answers on the daemon link. -errno: the link
 * is dead. */
int takes_request(struct takes *t, const struct msg_take *m);
/* MSG_TAKE_RELEASE; unknown ids are fine. */
void takes_release(struct takes *t, uint64_t session, uint64_t number);
/* A hold of this table was finished by the main thread or by arrays_serve. */
int takes_finished(struct takes *t, struct hold *h);
/* Main thread at a boundary: the take is owed what is there now. Unknown: its daemon is gone,
 * nothing happens. */
void takes_fix(struct takes *t, uint64_t session, uint64_t number);
size_t takes_used_bytes(struct takes *t);

/* The owner tag of holds: tells whose hold arrays_next_done hands out. */
enum hold_owner_kind { OWNER_TAKE, OWNER_WIDE };
struct hold_owner {
    enum hold_owner_kind kind;
};

#endif
