/* status.c - the values that status/ shows. */
#include "config.h"

#include "run/mfu.h"
#include "run/supervisor.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { STATUS_RETRY_MS = 20 };

static void on_timer(void *arg) {
    struct supervisor *s = arg;
    if (s->status.is_dirty)
        status_send(s);
}

void status_init(struct supervisor *s) {
    struct status *t = &s->status;
    t->loss = t->grad_norm = t->clip_factor = t->lr = t->step_seconds = NAN;
    t->timer = (struct loop_timer){.fn = on_timer, .arg = s};
}

double status_eta_seconds(const struct supervisor *s) {
    if (s->status.smooth_seconds <= 0 || s->goal.step >= s->goal.target)
        return NAN;
    return (double)(s->goal.target - s->goal.step) * s->status.smooth_seconds;
}

double status_tokens_per_second(const struct supervisor *s) {
    const struct status *t = &s->status;
    return t->smooth_seconds > 0 ? (double)t->tokens_per_step / t->smooth_seconds : NAN;
}

double status_mfu(const struct supervisor *s) {
    return mfu_share(s->world.flops_per_token, status_tokens_per_second(s), s->world.peak_flops);
}

void status_fill(const struct supervisor *s, struct msg_status *m, struct enc *config_text) {
    const struct status *t = &s->status;
    *m = (struct msg_status){
        .state = s->state,
        .world_size = s->world.size,
        .attempt = (uint32_t)s->world.epoch,
        .epoch = s->world.epoch,
        .gen = s->gen,
        .step = s->goal.step,
        .target = s->goal.target,
        .goal_step = s->goal.ordered,
        .time_ns = t->time_ns,
        .loss = t->loss,
        .grad_norm = t->grad_norm,
        .clip_factor = t->clip_factor,
        .lr = t->lr,
        .step_seconds = t->step_seconds,
        .tokens_per_second = status_tokens_per_second(s),
        .eta_seconds = status_eta_seconds(s),
        .mfu = status_mfu(s),
        .tokens_seen = s->goal.step * t->tokens_per_step,
        .metrics_bytes = s->record.metrics_bytes,
        .last_snapshot_step = snapshots_newest_step(s),
        .snapshot_count = s->snapshots.count,
    };
    snprintf(m->snapshot_running, sizeof m->snapshot_running, "%s", snapshots_running(s));
    memcpy(m->device, s->world.device, sizeof m->device);
    memcpy(m->last_error, t->last_error, sizeof m->last_error);
    config_print(&s->config, false, config_text);
    m->config = (struct blob){config_text->data, config_text->len_bytes};
}

static void send_now(struct supervisor *s) {
    struct msg_status m;
    struct enc config = {0};
    s->status.is_dirty = false;
    status_fill(s, &m, &config);
    mountd_send(s, MSG_STATUS, &m);
    enc_free(&config);
}

void status_send(struct supervisor *s) {
    if (!s->mountd.is_ready)
        return;
    /* A daemon that does not read gets the newest values when it does, not all that there were. */
    if (mountd_is_slow(s)) {
        s->status.is_dirty = true;
        if (!s->status.timer.armed)
            loop_timer_set(s->loop, &s->status.timer, STATUS_RETRY_MS);
        return;
    }
    send_now(s);
}

void status_flush(struct supervisor *s) {
    if (s->status.is_dirty && s->mountd.is_ready)
        send_now(s);
}

static const char *rank_state(const struct supervisor *s, const struct rank *r) {
    if (!r->peer)
        return s->world.state == WORLD_STARTING ? "starting" : "gone";
    if (!r->ready && r->alive.phase != RANK_LOADING)
        return "starting";
    return r->alive.phase < RANK_PHASE_COUNT ? rank_phase_names[r->alive.phase] : "unknown";
}

void status_tell_ranks(struct supervisor *s) {
    if (!s->mountd.is_ready || mountd_is_slow(s))
        return;
    for (uint32_t i = 0; i < s->world.size; i++) {
        const struct rank *r = &s->world.ranks[i];
        struct msg_rank_table m = {.rank = i,
                                   .pid = (uint64_t)r->pid,
                                   .last_seen_ns = r->last_seen_ns,
                                   .rss_bytes = r->alive.rss_bytes,
                                   .take_bytes = r->alive.take_bytes};
        snprintf(m.state, sizeof m.state, "%s", rank_state(s, r));
        mountd_send(s, MSG_RANK_TABLE, &m);
    }
}
