/* service_rig.h - a real service thread, between a supervisor and a mount daemon that a test plays.
 * The test is the main thread of the rank too. */
#ifndef GFS_TESTS_SERVICE_RIG_H
#define GFS_TESTS_SERVICE_RIG_H

#include "base/segment.h"
#include "engine/service.h"
#include "engine_world.h"

enum { RIG_EPOCH = 77, RIG_MAX_SEGMENTS = 64, RIG_WAIT_MS = 20000 };

/* The daemon's end of a link, and what it was given on it. */
struct rig_daemon {
    struct link *link;
    uint64_t session, numbers;
    struct segment segments[RIG_MAX_SEGMENTS]; /* by id */
    uint32_t segments_received;
};

struct rig {
    struct world w;
    struct config config;
    struct rank_shared shared;
    struct inbox *inbox;
    struct agenda *agenda;
    struct comm *comm;
    int bell;
    struct service *service;
    struct link *supervisor; /* its end */
    struct rig_daemon daemon;
    uint64_t gen, step;
};

void rig_open(struct rig *r, uint32_t rank, uint32_t world_size, uint64_t wide_elems);
/* The only rank, its arrays in memory of a device. */
void rig_open_on(struct rig *r, uint64_t wide_elems, const struct world_device *on);
/* Rank 0 of 2, with so much memory for takes. */
void rig_open_limited(struct rig *r, uint64_t take_memory_bytes);
void rig_close(struct rig *r);

/* ---- the main thread */

/* One step of training: gen and step go up by one, all arrays are written. */
void rig_step(struct rig *r);
/* The agenda and what it fixes. */
void rig_boundary(struct rig *r);
/* Waits until something was put into the inbox. */
void rig_wait_bell(struct rig *r);

/* ---- the supervisor */

void rig_order(struct rig *r, uint16_t type, const void *msg);
/* The next message that is no sign of life; it has to be of that type. Blobs in it are valid until
 * the next. */
void rig_heard(struct rig *r, uint16_t type, void *msg);
/* One of two types; returns which. */
uint16_t rig_heard_any(struct rig *r, uint16_t type, void *msg, uint16_t other, void *other_msg);
/* All that was ordered before was carried out, and the supervisor heard nothing else of it. */
void rig_sync(struct rig *r);
/* take_bytes of the next sign of life. */
uint64_t rig_take_bytes(struct rig *r);

/* ---- the daemon */

/* Connects a new daemon (d->link is overwritten, not closed). */
void rig_daemon_connect(struct rig *r, struct rig_daemon *d, uint64_t session);
void rig_daemon_close(struct rig_daemon *d);
/* A question for elements [0, all) of a shard; number 0: the next one. Returns the number. */
uint64_t rig_ask(struct rig *r, struct rig_daemon *d, uint64_t number, uint64_t try,
                 enum array array, uint32_t unit, uint64_t want_gen);
void rig_tell(struct rig_daemon *d, uint16_t type, const void *msg);
void rig_release(struct rig_daemon *d, uint64_t number);
void rig_ask_fix(struct rig_daemon *d, uint64_t number);
/* The next message; it has to be of that type. *fd (may be NULL): the descriptor that came with it,
 * or -1; those of answers are kept in d->segments. */
void rig_answer(struct rig_daemon *d, uint16_t type, void *msg, int *fd);
/* The next answer, which has to be for that take and try and in that state. */
struct msg_take_reply rig_reply(struct rig_daemon *d, uint64_t number, uint64_t try,
                                enum take_state state);
/* The data of an answer. */
const uint8_t *rig_data(const struct rig_daemon *d, const struct msg_take_reply *m);
/* The rank closed this link (what came before is thrown away). */
void rig_ends(struct rig_daemon *d);
/* All that was asked before was answered: nothing is left to read. */
void rig_daemon_sync(struct rig *r, struct rig_daemon *d);

#endif
