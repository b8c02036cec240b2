/* goal.h - the one number that run, step, target, pause and the end come to; decisions only, no
 * I/O.
 *
 * Running: the goal is the target. Paused: the highest step that a command still waits for, or
 * nothing. Ending: nothing. */
#ifndef GFS_RUN_GOAL_H
#define GFS_RUN_GOAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "wire/msg.h"

struct goal {
    uint64_t target;  /* the last step of the run */
    uint64_t step;    /* of the last boundary */
    uint64_t ordered; /* goal_step of the newest orders */
    bool running;     /* to the target, not only as far as commands ask */
    bool ending;      /* stop, Ctrl-C, unmount, target reached */
    bool ready;       /* there is a world */
    bool waiting;     /* the ranks wait at the last boundary */
    bool done;        /* the target was reached by running, and nothing was restored since */
};

/* `step N`: the absolute step it stands for. -ERANGE with what to do when it lies beyond the
 * target. */
int goal_accept_step(const struct goal *g, uint64_t n, uint64_t *absolute, struct err *err);
/* `target S`. -ERANGE likewise. */
int goal_accept_target(const struct goal *g, uint64_t s, struct err *err);
/* `run 1`. -ERANGE when there is nothing left to run. */
int goal_accept_run(const struct goal *g, bool stay, struct err *err);

/* What the ranks are told; wanted: the highest step that a command waits for, 0 if none. */
uint64_t goal_orders(const struct goal *g, uint64_t wanted);
/* After a boundary, or new orders: do the ranks rest, with nothing more to do? */
bool goal_is_resting(const struct goal *g);
/* RUN_TRAINING, RUN_PAUSED or RUN_DONE of a world that is ready. */
enum run_state goal_state(const struct goal *g);
/* The target was reached by running: the run is over. */
bool goal_is_reached(const struct goal *g);

/* Where a run starts from: the snapshots, sorted by (epoch, gen) ascending, as gens and a flag. A
 * restore at gen restored_gen made all snapshots of lower gen stale but the restored one. Fills
 * order[] with indices, first choice first; returns their number. */
struct goal_origin {
    uint64_t gen;
    bool restored; /* the snapshot that the last restore loaded */
    bool broken;   /* a rank found it damaged */
};
uint32_t goal_origins(const struct goal_origin *list, uint32_t count, uint64_t restored_gen,
                      uint32_t *order);

/* Three restarts without a new snapshot between them end a run. */
enum { GOAL_MAX_RESTARTS = 3 };
bool goal_may_restart(uint32_t restarts_since_snapshot);
/* Milliseconds before restart number n (from 1). */
uint64_t goal_restart_delay_ms(uint32_t n);

#endif
