/* service.h - the rank's second thread: the links to supervisor and daemon, copies for readers,
 * signs of life.
 *
 * It never joins a collective and never waits for the main thread; the main thread never waits for
 * it. */
#ifndef GFS_ENGINE_SERVICE_H
#define GFS_ENGINE_SERVICE_H

#include <stdatomic.h>

#include "base/knobs.h"
#include "engine/agenda.h"
#include "engine/arrays.h"
#include "wire/msg.h"

struct service;

/* What both threads see. The atomics are written by the main thread. */
struct rank_shared {
    _Atomic uint32_t phase; /* enum rank_phase */
    _Atomic uint64_t micro, step;
};

struct service_args {
    uint32_t rank, world_size;
    uint64_t epoch;
    const struct config *config; /* copied */
    const struct layout *layout; /* borrowed */
    struct arrays *arrays;       /* borrowed */
    struct inbox *inbox;         /* borrowed; NULL but on rank 0 */
    struct link *supervisor;     /* taken over */
    struct rank_shared *shared;  /* borrowed */
    uint64_t fingerprint;        /* of the data, for the train state */
};

/* Starts the thread. 0 or -errno; the link is taken over also on failure. */
int service_open(const struct service_args *args, struct service **out, struct err *err);
/* Sends what is queued (for at most a second), ends the thread. */
void service_close(struct service *s);

/* Any thread: queues a message to the supervisor. Lost only if memory or the supervisor is. */
void service_send(struct service *s, uint16_t type, const void *msg);
/* Any thread: makes the service thread look at what changed. */
void service_wake(struct service *s);
/* Main thread of rank 0: rings the doorbells of all other ranks; waits until the supervisor has
 * sent them all. */
void service_ring_others(struct service *s);
/* Main thread, at the boundary (gen, step): carries out the fixes of the agenda. */
void service_fix(struct service *s, const struct agenda *a, uint64_t gen, uint64_t step);
/* Service thread: the link to the daemon, or NULL. */
struct link *service_daemon(struct service *s);

#endif
