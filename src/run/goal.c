/* goal.c - decisions of the supervisor that need no I/O. */
#include "config.h"

#include "run/goal.h"

#include <errno.h>
#include <inttypes.h>

static int beyond(const struct goal *g, uint64_t step, bool overflow, struct err *err) {
    if (g->step >= g->target)
        return err_set(err, ERANGE,
                       "the target %" PRIu64
                       " is reached: stop, and run again with a larger --steps",
                       g->target);
    if (overflow)
        return err_set(err, ERANGE,
                       "beyond the target %" PRIu64 ": at most %" PRIu64 " steps are left",
                       g->target, g->target - g->step);
    return err_set(err, ERANGE,
                   "%" PRIu64 " is beyond the target %" PRIu64 ": at most %" PRIu64
                   " steps are left; to go on, stop, and run again with a larger --steps",
                   step, g->target, g->target - g->step);
}

int goal_accept_step(const struct goal *g, uint64_t n, uint64_t *absolute, struct err *err) {
    if (n == 0)
        return err_set(err, ERANGE, "expected at least 1");
    if (n > UINT64_MAX - g->step)
        return beyond(g, 0, true, err);
    if (g->step + n > g->target)
        return beyond(g, g->step + n, false, err);
    *absolute = g->step + n;
    return 0;
}

int goal_accept_target(const struct goal *g, uint64_t s, struct err *err) {
    return s > g->target && s > g->step ? beyond(g, s, false, err) : 0;
}

int goal_accept_run(const struct goal *g, bool stay, struct err *err) {
    /* Without --stay a run at its target ends when it is told to run. */
    if (stay && g->ready && g->step >= g->target)
        return beyond(g, 0, false, err);
    return 0;
}

uint64_t goal_orders(const struct goal *g, uint64_t wanted) {
    if (g->ending)
        return 0;
    if (g->running)
        return g->target;
    return wanted > g->step ? wanted : 0;
}

bool goal_is_resting(const struct goal *g) {
    return g->ready && g->waiting && g->ordered <= g->step;
}

bool goal_is_reached(const struct goal *g) {
    return g->ready && g->running && g->step >= g->target;
}

enum run_state goal_state(const struct goal *g) {
    if (!goal_is_resting(g))
        return RUN_TRAINING;
    return g->done || goal_is_reached(g) ? RUN_DONE : RUN_PAUSED;
}

uint32_t goal_origins(const struct goal_origin *list, uint32_t count, uint64_t restored_gen,
                      uint32_t *order) {
    uint32_t n = 0;
    /* What was written after the restore, newest first; then what it loaded; then the rest, newest
     * first. */
    for (uint32_t i = count; i-- > 0;)
        if (!list[i].broken && list[i].gen >= restored_gen)
            order[n++] = i;
    for (uint32_t i = count; i-- > 0;)
        if (!list[i].broken && list[i].gen < restored_gen && list[i].restored)
            order[n++] = i;
    for (uint32_t i = count; i-- > 0;)
        if (!list[i].broken && list[i].gen < restored_gen && !list[i].restored)
            order[n++] = i;
    return n;
}

bool goal_may_restart(uint32_t restarts_since_snapshot) {
    return restarts_since_snapshot < GOAL_MAX_RESTARTS;
}

uint64_t goal_restart_delay_ms(uint32_t n) { return n <= 1 ? 0 : 200u << (n - 2 < 4 ? n - 2 : 4); }
