/* supervisor.c - the life of a run.
 *
 *   supervisor_run        supervisor_world_ready        supervisor_update_state
 *  ------------> STARTING ------------------> PAUSED <------------------------> TRAINING
 *                   |                           ^ |                                | |
 *                   |    supervisor_world_ready | | supervisor_world_failed        | |
 *                   |                           | v                                | |
 *                   |                        RESTARTING <--------------------------+ |
 *                   |                           |                                    |
 *                   | supervisor_world_failed   | after three restarts without       |
 *                   v                           | a new snapshot                     v
 *                 FAILED <----------------------+              with --stay: DONE, where a world
 *                                                              that is lost is started again too
 *
 * From each stop_request leads to STOPPING: see supervisor.h. */
#include "config.h"

#include "run/supervisor.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "run/gpus.h"
#include "shard/wrap.h"

enum {
    HOUSEKEEPING_MS = 200,
    TICKS_A_SECOND = 5,
    LEDGER_MAX_FINISHED = 100000,
    SMOOTH_STEPS = 10,
    SIGNAL_ECHO_MS = 200,
};

/* ---- words */

void supervisor_event(struct supervisor *s, const char *kind, const char *fmt, ...) {
    char text[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    err_clean(text);
    record_event(&s->record, kind, "%s", text);
    progress_say(&s->progress, "%s: %s", kind, text);
}

void supervisor_error(struct supervisor *s, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(s->status.last_error, sizeof s->status.last_error, fmt, ap);
    va_end(ap);
    err_clean(s->status.last_error);
    record_event(&s->record, "error", "%s", s->status.last_error);
    progress_say(&s->progress, "error: %s", s->status.last_error);
    s->status.is_dirty = true;
}

static void progress_values(const struct supervisor *s, char note[NAME_MAX_BYTES + 32],
                            struct progress_values *v) {
    const char *running = snapshots_running(s);
    snprintf(note, NAME_MAX_BYTES + 32, "%s%s", *running ? "snapshot " : "", running);
    *v = (struct progress_values){
        .state = run_state_names[s->state],
        .note = note,
        .step = s->goal.step,
        .target = s->goal.target,
        .loss = s->status.loss,
        .tokens_per_second = status_tokens_per_second(s),
        .mfu = status_mfu(s),
        .eta_seconds = s->state == RUN_TRAINING ? status_eta_seconds(s) : NAN,
    };
}

static void show_progress(struct supervisor *s, bool now) {
    char note[NAME_MAX_BYTES + 32];
    struct progress_values v;
    progress_values(s, note, &v);
    progress_show(&s->progress, &v, now);
}

static void print_step(struct supervisor *s) {
    char note[NAME_MAX_BYTES + 32];
    struct progress_values v;
    if (s->progress.is_terminal) {
        show_progress(s, false);
    } else if (s->goal.step % s->config.log_every == 0 || s->goal.step == s->goal.target) {
        progress_values(s, note, &v);
        progress_print(&s->progress, &v);
    }
}

/* ---- state */

void supervisor_set_state(struct supervisor *s, enum run_state state) {
    if (s->state != state) {
        s->state = state;
        record_event(&s->record, "state", "%s at step %" PRIu64, run_state_names[state],
                     s->goal.step);
        show_progress(s, true);
    }
    status_send(s);
}

/* By running, the last step was made: with --stay it stays there, else the run ends. */
static void target_reached(struct supervisor *s) {
    struct err err = {0};
    s->goal.running = false;
    s->goal.done = true;
    supervisor_event(s, "done", "step %" PRIu64 " is the target", s->goal.step);
    if (!s->config.stay) {
        s->stop.is_done = true;
        stop_request(s, "the target is reached");
        return;
    }
    supervisor_set_state(s, goal_state(&s->goal));
    if (!snapshots_is_current(s) && !snapshots_is_running(s) &&
        snapshots_begin(s, NULL, NULL, &err))
        supervisor_error(s, "snapshot of the last step: %s", err.text);
}

void supervisor_update_state(struct supervisor *s) {
    if (s->stop.phase != STOP_NONE)
        status_send(s);
    else if (world_is_ready(s))
        supervisor_set_state(s, goal_state(&s->goal));
}

/* What has to be looked at whenever step or goal has changed; the status has been sent. */
static void settle(struct supervisor *s) {
    commands_on_boundary(s);
    if (s->stop.phase == STOP_NONE && goal_is_reached(&s->goal) && goal_is_resting(&s->goal))
        target_reached(s);
    else
        stop_step(s);
}

void supervisor_goal_changed(struct supervisor *s) {
    uint64_t ordered = goal_orders(&s->goal, commands_wanted_step(s));
    if (!world_is_ready(s)) {
        s->goal.ordered = ordered;
        return;
    }
    if (ordered != s->goal.ordered) {
        s->goal.ordered = ordered;
        if (ordered > s->goal.step)
            s->goal.waiting = false;
        world_orders(s);
    }
    supervisor_update_state(s);
    settle(s);
}

static void note_step(struct supervisor *s, const struct msg_boundary *m) {
    struct status *t = &s->status;
    t->loss = m->loss;
    t->grad_norm = m->grad_norm;
    t->clip_factor = m->clip_factor;
    t->lr = m->lr;
    t->step_seconds = m->step_seconds;
    t->tokens_per_step = m->tokens;
    t->smooth_seconds =
        t->smooth_seconds > 0
            ? t->smooth_seconds + (m->step_seconds - t->smooth_seconds) / SMOOTH_STEPS
            : m->step_seconds;
    struct catalogue_step row = {.step = m->step,
                                 .attempt = m->epoch,
                                 .epoch = m->epoch,
                                 .gen = m->gen,
                                 .tokens = m->tokens,
                                 .time_ns = t->time_ns,
                                 .loss = m->loss,
                                 .grad_norm = m->grad_norm,
                                 .clip_factor = m->clip_factor,
                                 .lr = m->lr,
                                 .step_seconds = m->step_seconds};
    record_step(&s->record, &row);
}

void supervisor_rests(struct supervisor *s) {
    s->goal.waiting = true;
    supervisor_update_state(s);
    settle(s);
}

void supervisor_on_boundary(struct supervisor *s, const struct msg_boundary *m) {
    if (m->epoch != s->world.epoch || !world_is_ready(s))
        return;
    if (m->gen > s->gen)
        s->gen = m->gen;
    s->goal.step = m->step;
    s->status.time_ns = loop_time_ns();
    if (m->first_of_step) {
        s->has_grads = true;
        note_step(s, m);
    }
    /* A rest under older orders is none. */
    s->goal.waiting = m->waiting && m->goal_step == s->goal.ordered;
    supervisor_update_state(s);
    settle(s);
    if (m->first_of_step)
        print_step(s);
}

/* ---- worlds */

static void say_hello(struct supervisor *s, const char *summary) {
    const char *mnt = s->request->mountpoint;
    progress_say(&s->progress, "%s", summary);
    if (*s->world.note)
        progress_say(&s->progress, "%s", s->world.note);
    if (s->mountd.mount.fuse_fd >= 0)
        progress_say(&s->progress,
                     "The run's state is under %s. Try, in another terminal:\n"
                     "  cat %s/status/loss\n"
                     "  echo 10 > %s/control/step",
                     mnt, mnt, mnt);
    else
        progress_say(&s->progress,
                     "Without a mount. Try, in another terminal:\n"
                     "  gatherfs status %s\n"
                     "  gatherfs stop %s",
                     s->rundir.path, s->rundir.path);
}

static void save_config(struct supervisor *s) {
    struct err err = {0};
    s->config_is_dirty = false;
    if (rundir_save_config(&s->rundir, &s->config, &err))
        supervisor_error(s, "%s", err.text);
}

uint32_t supervisor_arrays(const struct supervisor *s, uint32_t array_mask) {
    bool has_grads = world_is_ready(s) && s->has_grads;
    return has_grads ? array_mask : array_mask & ~ARRAY_BIT(ARRAY_GRADS);
}

void supervisor_world_ready(struct supervisor *s, uint64_t gen, uint64_t step,
                            const char *summary) {
    static const char *const from[] = {"from the beginning", "from snapshot "};
    bool resumed = *s->world.resume_name != '\0';
    s->goal.ready = true;
    s->goal.done = false;
    s->has_grads = false;
    s->snapshots.has_saved = resumed;
    s->snapshots.saved_gen = gen;
    s->status.time_ns = loop_time_ns();
    s->goal.ordered = goal_orders(&s->goal, commands_wanted_step(s));
    s->goal.waiting = s->goal.ordered <= step; /* a new world rests until it gets orders */
    save_config(s);
    if (s->state == RUN_STARTING)
        say_hello(s, summary);
    supervisor_event(s, "world", "epoch %" PRIu64 " is ready at step %" PRIu64 ", %s%s",
                     s->world.epoch, step, from[resumed], s->world.resume_name);
    supervisor_update_state(s);
    world_meet_daemon(s);
    status_tell_ranks(s);
    world_orders(s);
    pins_world_ready(s);
    commands_execute(s);
    snapshots_start_timer(s);
    settle(s);
}

void supervisor_fail(struct supervisor *s, const char *why) {
    if (s->state == RUN_FAILED)
        return;
    char text[MSG_TEXT_BYTES];
    s->stop.exit_code = 1;
    supervisor_error(s, "%s", why);
    memcpy(s->failure, s->status.last_error, sizeof s->failure);
    snprintf(text, sizeof text, "the run has failed: %.400s", s->failure);
    supervisor_set_state(s, RUN_FAILED);
    commands_end_all(s, EIO, text);
    world_lose(s);
    if (s->config.stay && s->world.was_ready && s->mountd.is_ready) {
        progress_say(&s->progress, "The mount stays, with its snapshots: `umount %s` ends it.",
                     s->request->mountpoint);
        world_kill(s);
        return;
    }
    s->stop.phase = STOP_LEAVING;
    world_kill(s);
    stop_step(s);
}

static void forget_world(struct supervisor *s) {
    world_lose(s);
    s->goal.ready = s->goal.waiting = false;
    wide_world_gone(s);
    snapshots_world_gone(s);
    pins_world_gone(s);
    commands_world_gone(s);
    world_meet_daemon(s);
}

void supervisor_world_failed(struct supervisor *s, const char *why, bool is_final) {
    struct world *w = &s->world;
    if (w->state == WORLD_NONE || w->state == WORLD_ENDING)
        return;
    bool is_broken = w->is_broken_snapshot && !is_final;
    record_attempt(&s->record, w->epoch, w->epoch, w->size, why);
    forget_world(s);
    if (s->stop.phase != STOP_NONE) {
        supervisor_error(s, "the ranks ended while the run was stopping: %s", why);
        s->stop.exit_code = 1;
        s->stop.phase = STOP_LEAVING;
    } else if (is_broken) {
        snapshots_mark_broken(s, w->resume_name);
        supervisor_error(s, "snapshot %s is damaged, an older one is tried: %s", w->resume_name,
                         why);
    } else if (is_final || !w->was_ready) {
        supervisor_fail(s, why);
        return;
    } else if (!goal_may_restart(s->snapshots.restarts)) {
        char text[MSG_TEXT_BYTES];
        snprintf(text, sizeof text,
                 "the ranks were started again %d times without a new snapshot: %.400s",
                 GOAL_MAX_RESTARTS, why);
        supervisor_fail(s, text);
        return;
    } else {
        s->snapshots.restarts++;
        supervisor_error(s, "%s: the ranks are started again", why);
    }
    if (s->stop.phase == STOP_NONE && w->was_ready)
        supervisor_set_state(s, RUN_RESTARTING);
    status_tell_ranks(s);
    world_kill(s);
}

static void on_restart_timer(void *arg) {
    struct supervisor *s = arg;
    struct err err = {0};
    if (s->stop.phase == STOP_NONE && s->state != RUN_FAILED && world_start(s, &err))
        supervisor_fail(s, err.text);
}

void supervisor_world_gone(struct supervisor *s) {
    s->goal.ready = s->goal.waiting = false;
    if (s->stop.phase != STOP_NONE)
        stop_step(s);
    else if (s->state != RUN_FAILED)
        loop_timer_set(s->loop, &s->restart_timer, goal_restart_delay_ms(s->snapshots.restarts));
}

/* ---- the loop */

static void on_housekeeping(void *arg) {
    struct supervisor *s = arg;
    record_flush(&s->record);
    ledger_trim(s->ledger);
    if (s->config_is_dirty)
        save_config(s);
    if (s->told_event_bytes != s->record.events_bytes) {
        struct msg_event m = {.bytes = s->record.events_bytes};
        s->told_event_bytes = m.bytes;
        mountd_send(s, MSG_EVENT, &m);
    }
    if (s->status.is_dirty)
        status_send(s);
    if (++s->ticks % TICKS_A_SECOND == 0) {
        world_tick(s);
        status_tell_ranks(s);
        show_progress(s, false);
    }
    loop_timer_set(s->loop, &s->housekeeping, HOUSEKEEPING_MS);
}

/* A signal to a process group and another to us, as timeout(1) sends them, are one wish. */
static bool is_echo(struct stop *stop) {
    uint64_t before = stop->signal_ns, now = loop_now_ns();
    stop->signal_ns = now;
    return before && now - before < SIGNAL_ECHO_MS * 1000000ull;
}

static void on_signal(void *arg, int number) {
    struct supervisor *s = arg;
    if (is_echo(&s->stop))
        return;
    s->stop.signals++;
    if (s->stop.phase == STOP_NONE && !s->stop.has_failed)
        stop_request(s, strsignal(number));
    else
        stop_at_once(s, strsignal(number));
}

static void warn_of_timeout(void) {
    FILE *f = fopen("/proc/sys/fs/fuse/max_request_timeout", "re");
    unsigned seconds = 0;
    if (f && fscanf(f, "%u", &seconds) == 1 && seconds)
        log_warn(
            "fs.fuse.max_request_timeout is %u: the kernel aborts the mount when a command waits "
            "longer; set it to 0",
            seconds);
    if (f)
        fclose(f);
}

/* ---- start and end */

/* Nothing left to do, and nobody asked to look at it. */
static bool is_finished(const struct supervisor *s) {
    return s->snapshots.count && snapshots_newest_step(s) >= s->config.steps && !s->config.stay &&
           !s->config.paused && !s->snapshots.restored_gen;
}

static int open_run(struct supervisor *s, struct err *err) {
    const struct request *q = s->request;
    unsigned moved = 0;
    int rc = rundir_open(q->run_dir, q->values.fresh, &s->rundir, &moved, err);
    if (rc)
        return rc;
    if (moved)
        progress_say(&s->progress, "The old run is kept in %s.%u", q->run_dir, moved);
    rc = rundir_config(&s->rundir, q, &s->config, err);
    if (!rc)
        rc = wrap_check(s->config.wrap, err);
    if (!rc)
        rc = config_check(&s->config, err);
    if (!rc)
        rc = rundir_sweep(&s->rundir, err);
    if (!rc)
        rc = record_open(s->rundir.path, &s->record, err);
    if (!rc)
        rc = snapshots_open(s, err);
    if (rc)
        return rc;
    if (s->record.last_gen > s->gen)
        s->gen = s->record.last_gen;
    s->goal.target = s->config.steps;
    s->goal.running = !s->config.paused;
    return 0;
}

static int start_run(struct supervisor *s, struct err *err) {
    struct enc config = {0};
    int rc = gpus_choose_ranks(&s->config, err);
    if (rc)
        return rc;
    config_print(&s->config, false, &config);
    enc_u8(&config, 0);
    if (s->record.catalogue && !config.failed)
        catalogue_run(s->record.catalogue, PACKAGE_VERSION, (const char *)config.data);
    enc_free(&config);
    rc = guests_open(s, err);
    if (!rc && s->config.mount) {
        warn_of_timeout();
        rc = mountd_open(s, err);
    }
    return rc ? rc : world_start(s, err);
}

void supervisor_close(struct supervisor *s) {
    world_close(s);
    mountd_close(s);
    snapshots_close(s);
    pins_close(s);
    wides_close(s);
    guests_close(s);
    record_close(&s->record);
    ledger_close(s->ledger);
    rundir_close(&s->rundir);
    guests_leave(s);
    loop_close(s->loop);
    progress_close(&s->progress);
    free(s);
}

struct supervisor *supervisor_make(const struct request *q, enum run_state state) {
    struct supervisor *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->request = q;
    s->state = state;
    s->rundir.lock_fd = s->guests.listen_fd = s->mountd.requests_fd = -1;
    s->record.metrics_fd = s->record.events_fd = -1;
    s->mountd.mount = MOUNTPOINT_EMPTY;
    s->housekeeping = (struct loop_timer){.fn = on_housekeeping, .arg = s};
    s->restart_timer = (struct loop_timer){.fn = on_restart_timer, .arg = s};
    progress_open(&s->progress);
    status_init(s);
    s->ledger = ledger_open(LEDGER_MAX_FINISHED);
    if (!s->ledger || loop_open(on_signal, s, &s->loop)) {
        ledger_close(s->ledger);
        free(s);
        return NULL;
    }
    return s;
}

static int run(struct supervisor *s) {
    struct err err = {0};
    int rc = open_run(s, &err);
    if (!rc && is_finished(s)) {
        progress_say(&s->progress,
                     "Step %" PRIu64
                     " was the target, and is reached: nothing to do. --steps N goes on to "
                     "step N, --stay shows what there is.",
                     s->config.steps);
        return 0;
    }
    if (!rc)
        rc = start_run(s, &err);
    if (rc) {
        progress_say(&s->progress, "gatherfs: %s", err.text);
        return 1;
    }
    loop_timer_set(s->loop, &s->housekeeping, HOUSEKEEPING_MS);
    rc = loop_run(s->loop);
    if (rc)
        progress_say(&s->progress, "gatherfs: %s", strerror(-rc));
    return rc ? 1 : s->stop.exit_code;
}

int supervisor_run(const struct request *q) {
    struct supervisor *s = supervisor_make(q, RUN_STARTING);
    if (!s)
        return 1;
    int code = run(s);
    uint64_t step = snapshots_newest_step(s);
    bool stopped = s->stop.phase != STOP_NONE, is_done = s->stop.is_done;
    supervisor_close(s);
    if (code == 0 && is_done)
        printf("Done: step %" PRIu64 " is in the newest snapshot.\n", step);
    else if (code == 0 && stopped)
        printf("Stopped; the same command goes on from step %" PRIu64 ".\n", step);
    return code;
}
