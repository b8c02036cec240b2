/* wide.h - wide takes: everything in a mask of arrays, at one boundary. Pins, snapshots, opens of
 * model.safetensors.
 *
 *   (none) --> RESERVED   wides_reserve
 *   RESERVED -> FIXED     wides_fix: main thread, at a boundary
 *   FIXED ----> COPIED    wides_finished: the last copy is made
 *   FIXED ----> FAILED    wides_finished: one could not be made; the supervisor is told
 *   COPIED ---> COPIED    wides_write: a thread writes rank-R.bin
 *   any ------> (none)    wides_release */
#ifndef GFS_ENGINE_WIDE_H
#define GFS_ENGINE_WIDE_H

#include "engine/arrays.h"
#include "engine/service.h"
#include "wire/msg.h"

struct wides;

struct wides *wides_open(struct service *s, struct arrays *a, const struct layout *l, uint32_t rank,
                         uint64_t epoch);
/* Waits for a running writer (cancelled). */
void wides_close(struct wides *w);

/* ---- service thread */

/* Memory for the dump, touched; answers MSG_TAKE_RESERVED. */
void wides_reserve(struct wides *w, const struct msg_take_reserve *m);
/* -errno: the daemon's link is dead. */
int wides_release(struct wides *w, uint64_t take);
/* Starts writing, after a writer that was cancelled has ended; MSG_TAKE_WRITTEN follows.
 * train_state: JSON, copied; NULL on ranks but 0. */
void wides_write(struct wides *w, const struct msg_take_write *m, const char *train_state);
/* -errno: the daemon's link is dead. */
int wides_finished(struct wides *w, struct hold *h);
/* Offers what is COPIED and not for a snapshot to a new daemon. -errno: the link is dead. */
int wides_offer_all(struct wides *w, struct link *daemon);
/* Ends what a finished writer left; call when service_wake was rung. */
void wides_reap(struct wides *w);
size_t wides_used_bytes(const struct wides *w);
/* The step of a wide take that was fixed; false if unknown. */
bool wides_step(struct wides *w, uint64_t take, uint64_t *step);

/* ---- main thread, at the boundary (gen, step) */
void wides_fix(struct wides *w, uint64_t take, uint64_t gen, uint64_t step);

#endif
