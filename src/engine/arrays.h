/* arrays.h - the sharded arrays of this rank: memory, versions, locks, and the copies that are owed
 * to readers.
 *
 * Two threads meet here. The main thread trains: it brackets every write. The service thread copies
 * for takes. Whoever is about to overwrite makes the outstanding copies first, so that training
 * waits for a reader at most for one copy of what it overwrites.
 *
 *   params, exp_avg, exp_avg_sq of a unit: one group, one lock, one version.
 *   grads of a unit: a group of its own, invalid from the first write of a step until the last
 * collective of its last microbatch.
 *
 * A hold is one copy: [lo, hi) of this rank's shard of one array of one unit, to memory that was
 * there before.
 *
 *   HOLD_IDLE -----> HOLD_DONE     arrays_take: the content is there, there is none and none to
 *                                  come, or the version wanted is gone (returned at once)
 *   HOLD_IDLE -----> HOLD_WAITING  arrays_take: it is being written, or the version is to come
 *   HOLD_IDLE -----> HOLD_OWED     arrays_fix, at a boundary (HOLD_DONE: there is no content)
 *   HOLD_WAITING --> HOLD_OWED     arrays_*_end: the version is there; arrays_fix
 *   HOLD_WAITING --> HOLD_DONE     arrays_*_end: it was passed; arrays_grads_none
 *   HOLD_OWED -----> HOLD_DONE     arrays_serve, or arrays_*_begin before the overwrite
 *   any -----------> HOLD_IDLE     arrays_cancel */
#ifndef GFS_ENGINE_ARRAYS_H
#define GFS_ENGINE_ARRAYS_H

#include <stdbool.h>

#include "base/err.h"
#include "shard/layout.h"

struct arrays;

/* Memory of each shard: shard_elems floats (padding included), owned by the caller (the trainer),
 * zeroed. */
int arrays_open(const struct layout *l, uint32_t rank, struct arrays **out, struct err *err);
void arrays_close(struct arrays *a);
void arrays_set_shard(struct arrays *a, enum array array, uint32_t unit, float *shard);
float *arrays_shard(const struct arrays *a, enum array array, uint32_t unit);

/* ---- main thread: writes */

/* Params and moments of a unit: the owed copies are made, then the group is being written until
 * arrays_state_end. */
void arrays_state_begin(struct arrays *a, uint32_t unit);
void arrays_state_end(struct arrays *a, uint32_t unit, uint64_t gen, uint64_t step);
/* Gradients of a unit: before the first write of a step ... */
void arrays_grads_begin(struct arrays *a, uint32_t unit);
/* ... after the last collective of the last microbatch: valid, made by the step that leads to (gen,
 * step). */
void arrays_grads_end(struct arrays *a, uint32_t unit, uint64_t gen, uint64_t step);
/* After a restore and before the first step: no gradient is valid and none is under way. */
void arrays_grads_none(struct arrays *a);

/* ---- copies */

enum hold_state { HOLD_IDLE, HOLD_WAITING, HOLD_OWED, HOLD_DONE };
enum hold_result { HOLD_COPIED, HOLD_NONE, HOLD_PASSED };

struct hold {
    enum array array;
    uint32_t unit;
    uint64_t lo, hi;   /* elements of the shard */
    uint8_t *dst;      /* (hi - lo) floats, touched */
    uint64_t want_gen; /* 0: what is there */
    void *owner;       /* the caller's */
    /* under the group's lock */
    enum hold_state state;
    enum hold_result result;   /* when HOLD_DONE */
    uint64_t gen, step;        /* version of what was copied; for HOLD_PASSED of what is there */
    struct hold *next, **prev; /* in the group's list */
    struct hold *done_next, **done_prev;
};

/* Service thread. True: finished at once, see h->result. False: registered; arrays_next_done will
 * hand it out. */
bool arrays_take(struct arrays *a, struct hold *h);
/* Main thread, at a boundary: the content of this moment is owed (a hold that is done already stays
 * as it is). */
void arrays_fix(struct arrays *a, struct hold *h);
/* Takes a hold out of all lists; afterwards nobody touches it. */
void arrays_cancel(struct arrays *a, struct hold *h);
/* Service thread: makes one owed copy. False when none is owed. */
bool arrays_serve(struct arrays *a);
/* The next hold that was finished by somebody else than arrays_take, or NULL. */
struct hold *arrays_next_done(struct arrays *a);
/* Readable when arrays_serve or arrays_next_done may have something. */
int arrays_wake_fd(const struct arrays *a);

#endif
