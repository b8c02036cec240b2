/* take.h - takes of single tensors: what an open file of live/ is bound to.
 *
 *                 world complete          all copies of one version
 *     TAKE_WORLD ───────────────► TAKE_ASKING ──────────────────────► TAKE_READY
 *         │      takes_world        │  ▲   │    take_decide            (shared, cached)
 *         │                         │  └───┘ versions differ: those behind are asked for the newest
 *         │                         ▼
 *         │                     TAKE_FIXING  a rank has passed it: the agenda fixes it
 *         ▼                         ▼
 *     TAKE_OVER  (ENODATA, EIO, ETIMEDOUT, ENOBUFS...: its users are told, it is freed)
 *
 * Takes of one tensor and version share one copy. What a take holds counts against the limit from
 * the moment it is asked for. The protocol stands in doc/takes.md. */
#ifndef GFS_FSMOUNT_TAKE_H
#define GFS_FSMOUNT_TAKE_H

#include "fsmount/world.h"

struct takes;
struct take;

/* Who uses a take: an open file. Embedded by its owner, zero-initialised. */
struct take_user {
    struct take_user *next, **link;
    struct take *take; /* NULL: none */
    /* Once, after takes_join returned 0 with *ready false; code 0: the take is ready, else a
     * positive errno and take is NULL. */
    void (*done)(struct take_user *u, int code);
};

/* world is borrowed. 0 or -ENOMEM. Closing ends all takes with EIO. */
int takes_open(uint64_t session, struct world *world, struct takes **out);
void takes_close(struct takes *t);

/* Before the first use, and whenever a knob changes. */
void takes_configure(struct takes *t, uint64_t limit_bytes, double read_timeout_seconds);
/* What the supervisor said last. idle: the ranks wait at this version and nothing but an order can
 * change it. */
void takes_status(struct takes *t, uint64_t epoch, uint64_t gen, bool idle);
/* A command was answered: a take asked for before it may be older than what its caller knows. */
void takes_answered(struct takes *t);
/* Changes whenever somebody may have learnt of a newer version: what was asked for before must not
 * be joined after. */
uint64_t takes_knowledge(const struct takes *t);

/* A take of the tensor as it is now, or later. 0 and *ready; -ENOBUFS, -ENOMEM, -EIO (no such
 * tensor any more). */
int takes_join(struct takes *t, enum array array, uint32_t tensor, struct take_user *u,
               bool *ready);
/* Leaves it, ready or not. No call of done follows. */
void takes_leave(struct takes *t, struct take_user *u);

struct take_version {
    uint64_t epoch, gen, step;
};
/* Of a ready take. */
struct take_version take_version(const struct take *take);
/* Adds the data of a ready take; at_bytes is where it begins in the file. */
void take_gather(const struct take *take, uint64_t at_bytes, struct gather *g);

/* Memory of others that is charged to the same limit; evicts what is only cached. -ENOBUFS. */
int takes_charge(struct takes *t, uint64_t bytes);
void takes_discharge(struct takes *t, uint64_t bytes);

/* From the world. */
void takes_reply(struct takes *t, uint32_t rank, const struct msg_take_reply *m,
                 struct shared *segment);
void takes_world(struct takes *t);                               /* complete */
void takes_lost(struct takes *t, uint64_t epoch, uint32_t rank); /* a link ended */
void takes_replaced(struct takes *t,
                    uint32_t rank); /* the rank knows nothing any more of what it was asked */
void takes_world_changed(struct takes *t); /* MSG_WORLD: older unanswered ones end with EIO */

/* True while something waits, so that takes_tick must be called some times a second. */
bool takes_waiting(const struct takes *t);
/* Ends what waits for a rank without a sign of life, and for a world that does not come. */
void takes_tick(struct takes *t, uint64_t now_ns);
/* Numbers for tests and logs. */
uint64_t takes_used_bytes(const struct takes *t);

#endif
