/* stop.c - how a run ends: rest, snapshot, leave, unmount. Diagram: supervisor.h. */
#include "config.h"

#include "run/supervisor.h"

#include <errno.h>

static void leave(struct supervisor *s) {
    s->stop.phase = STOP_LEAVING;
    if (world_is_ready(s))
        world_quit(s);
    else
        world_kill(s); /* a world that is not ready has nothing that is not durable */
    stop_step(s);
}

static void take_last_snapshot(struct supervisor *s) {
    struct err err = {0};
    s->stop.phase = STOP_SNAPSHOT;
    if (snapshots_begin(s, NULL, NULL, &err))
        stop_snapshot_failed(s, (uint32_t)err.code, err.text);
}

void stop_step(struct supervisor *s) {
    switch (s->stop.phase) {
    case STOP_NONE:
        return;
    case STOP_RESTING:
    case STOP_SNAPSHOT:
        if (world_is_ready(s) && (!goal_is_resting(&s->goal) || snapshots_is_running(s)))
            return;
        if (!world_is_ready(s) || snapshots_is_current(s))
            leave(s);
        else
            take_last_snapshot(s);
        return;
    case STOP_LEAVING:
        if (s->world.state != WORLD_NONE)
            return;
        s->stop.phase = STOP_UNMOUNTING;
        commands_end_all(s, ECANCELED, "the run has ended");
        mountd_unmount(s);
        stop_step(s);
        return;
    case STOP_UNMOUNTING:
        if (mountd_is_gone(s))
            loop_stop(s->loop);
    }
}

void stop_request(struct supervisor *s, const char *why) {
    if (s->stop.phase != STOP_NONE)
        return;
    supervisor_event(s, "stop", "%s", why);
    s->stop.phase = STOP_RESTING;
    s->goal.ending = true;
    commands_cancel_steps(s, true, "the run is stopping");
    if (s->state != RUN_FAILED)
        supervisor_set_state(s, RUN_STOPPING);
    supervisor_goal_changed(s);
    stop_step(s);
}

/* The run is not thrown away: it pauses. */
void stop_snapshot_failed(struct supervisor *s, uint32_t code, const char *why) {
    bool is_full = code == ENOSPC || code == EDQUOT;
    if (s->stop.phase == STOP_RESTING)
        stop_step(s); /* it was somebody else's */
    if (s->stop.phase != STOP_SNAPSHOT)
        return;
    s->stop.phase = STOP_NONE;
    s->stop.has_failed = true;
    s->goal.ending = s->goal.running = false;
    progress_say(&s->progress,
                 "The last snapshot could not be written, so the run goes on, paused: %s\n"
                 "%s`gatherfs stop %s` tries again; Ctrl-C ends it without a snapshot.",
                 why, is_full ? "Make room, and " : "", s->rundir.path);
    supervisor_event(s, "stop", "called off: %s", why);
    supervisor_goal_changed(s);
}

void stop_at_once(struct supervisor *s, const char *why) {
    supervisor_event(s, "stop", "at once, without a snapshot: %s", why);
    s->stop.exit_code = 1;
    s->stop.phase = STOP_UNMOUNTING;
    commands_end_all(s, ECANCELED, "the run has ended");
    loop_stop(s->loop);
}
