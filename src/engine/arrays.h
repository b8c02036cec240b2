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
 *   HOLD_IDLE -----> HOLD_DONE     arrays_take: there is none and none to come, the version wanted
 *                                  is gone, or it was copied from memory of the host
 *   HOLD_IDLE -----> HOLD_WAITING  arrays_take: it is being written, or the version is to come
 *   HOLD_IDLE -----> HOLD_OWED     arrays_take: the content is there, but not in memory of the
 * host; arrays_fix, at a boundary (HOLD_DONE: there is no content) HOLD_WAITING --> HOLD_OWED
 * arrays_*_end: the version is there; arrays_fix HOLD_WAITING --> HOLD_DONE     arrays_*_end: it
 * was passed; arrays_grads_none HOLD_OWED -----> HOLD_DONE     arrays_serve, or arrays_*_begin
 * before the overwrite HOLD_OWED -----> HOLD_STAGED   the same, from memory of a device: all of it
 * is on the stream HOLD_STAGED ---> HOLD_DONE     arrays_next_done, when the stage has all bytes or
 * has failed any -----------> HOLD_IDLE     arrays_cancel
 *
 * Memory of a device. Its copies go through a stage (engine/stage.h). To begin a write the main
 * thread puts what is still owed on the TAKE stream, and the stream that will write waits for it:
 * the host does not, unless the ring has no room, and then only until it has. So a hold is STAGED
 * while its content is safe but not yet here; moving it on is the service thread's. No lock of a
 * group is held while anybody waits for the device.
 * A version is published (arrays_*_end) only when the device has completed it: the main thread has
 * waited for an event behind the last write. Therefore a copy never waits for the writer, whenever
 * it is queued. */
#ifndef GFS_ENGINE_ARRAYS_H
#define GFS_ENGINE_ARRAYS_H

#include <stdbool.h>

#include "base/err.h"
#include "engine/stage.h"
#include "shard/layout.h"

struct arrays;

/* Memory of each shard: shard_elems floats (padding included), owned by the caller (the trainer),
 * zeroed. It is memory of the host, if neither of the next two says otherwise; all is said before
 * the first version is published. */
int arrays_open(const struct layout *l, uint32_t rank, struct arrays **out, struct err *err);
void arrays_close(struct arrays *a);
void arrays_set_shard(struct arrays *a, enum array array, uint32_t unit, float *shard);
float *arrays_shard(const struct arrays *a, enum array array, uint32_t unit);
/* The shards of all arrays lie in memory that only the device reads, and are written by operations
 * on these two streams (or on the stage's own, by arrays_load). All are borrowed; the stage is
 * closed after the last call of the service thread, or while no version has been published yet, and
 * before the arrays. */
void arrays_set_stage(struct arrays *a, struct stage *stage, struct dev_stream *state_writer,
                      struct dev_stream *grads_writer);

enum array_place { ARRAY_IN_HOST, ARRAY_IN_DEVICE, ARRAY_ELSEWHERE };
/* Where an array of a unit rests. */
struct array_home {
    enum array_place place;
    /* of ARRAY_ELSEWHERE. Elements [lo, hi) of the shard, between host memory and wherever they
     * are; 0 or -errno. read: by either thread, also of two units at once, never between begin and
     * end. write: by arrays_load; NULL: it can't be loaded. */
    int (*read)(void *ctx, enum array array, uint32_t unit, uint64_t lo, uint64_t hi, void *dst);
    int (*write)(void *ctx, enum array array, uint32_t unit, uint64_t lo, uint64_t hi,
                 const void *src);
    void *ctx;
};
/* Of one array of one unit, where it differs from the others; after arrays_set_stage. */
void arrays_set_home(struct arrays *a, enum array array, uint32_t unit,
                     const struct array_home *home);

/* ---- main thread: writes */

/* Params and moments of a unit: the owed copies are made, or, from memory of a device, queued
 * before all that its writer is told to do from now on. Then the group is being written until
 * arrays_state_end, which is called when the writes are complete. */
void arrays_state_begin(struct arrays *a, uint32_t unit);
void arrays_state_end(struct arrays *a, uint32_t unit, uint64_t gen, uint64_t step);
/* Gradients of a unit: before the first write of a step ... */
void arrays_grads_begin(struct arrays *a, uint32_t unit);
/* ... after the last collective of the last microbatch: valid, made by the step that leads to (gen,
 * step). */
void arrays_grads_end(struct arrays *a, uint32_t unit, uint64_t gen, uint64_t step);
/* After a restore and before the first step: no gradient is valid and none is under way. */
void arrays_grads_none(struct arrays *a);
/* Between arrays_state_begin and arrays_state_end: elements [lo, hi) of the shard become what fill
 * gives, in ascending pieces: element `from` and on, elems of them, to `to`. Done when it returns.
 * fill sets *err (the same as is passed here) and returns -errno when it fails, which ends it. */
int arrays_load(struct arrays *a, enum array array, uint32_t unit, uint64_t lo, uint64_t hi,
                int (*fill)(void *ctx, uint64_t from, uint64_t elems, float *to), void *ctx,
                struct err *err);

/* ---- copies */

enum hold_state { HOLD_IDLE, HOLD_WAITING, HOLD_OWED, HOLD_STAGED, HOLD_DONE };
enum hold_result { HOLD_COPIED, HOLD_NONE, HOLD_PASSED, HOLD_FAILED };

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
    int code;                  /* for HOLD_FAILED: EIO, since a reader has nothing to do with what a
                                * device or a disk lacks; what is at dst is undefined */
    uint64_t gen, step;        /* version of what was copied; for HOLD_PASSED of what is there */
    struct hold *next, **prev; /* in the group's list */
    uint64_t read_elems;       /* from elsewhere, so far */
    struct stage_copy copy;    /* from memory of a device; partly the stage's */
    struct hold *done_next, **done_prev;
};

/* Service thread. True: finished at once, see h->result. False: registered; arrays_next_done will
 * hand it out. */
bool arrays_take(struct arrays *a, struct hold *h);
/* Main thread, at a boundary: the content of this moment is owed (a hold that is done already stays
 * as it is). */
void arrays_fix(struct arrays *a, struct hold *h);
/* Service thread: takes a hold out of all lists; afterwards nobody touches it. Waits for a piece of
 * it that is on its way from the stage to dst. */
void arrays_cancel(struct arrays *a, struct hold *h);
/* Service thread: makes one owed copy, or goes on with several: fills the ring of the stage and
 * waits for one piece of it. False when nothing can be done now: none is owed, or others have all
 * of the ring in hand (arrays_wake_fd tells when they are done). */
bool arrays_serve(struct arrays *a);
/* Service thread: the next hold that was finished by somebody else than arrays_take, or NULL. */
struct hold *arrays_next_done(struct arrays *a);
/* 0; or -errno and the sentence: no copy out of the device will succeed any more. */
int arrays_failed(const struct arrays *a, struct err *err);
/* Readable when arrays_serve or arrays_next_done may have something. */
int arrays_wake_fd(const struct arrays *a);

#endif
