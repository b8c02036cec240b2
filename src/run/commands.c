/* commands.c - from a message to a result: each command is checked whole, kept in the ledger, and
 * carried out once. */
#include "config.h"

#include "run/commands.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COMMAND_ROWS = 1000 /* what a new daemon is told of */ };

/* ---- results */

static void record(struct supervisor *s, const struct command *c) {
    struct catalogue_command row = {.number = c->number,
                                    .id = command_id(c),
                                    .name = c->name,
                                    .value = c->value,
                                    .state = command_state_name(c),
                                    .text = c->text,
                                    .code = (int)c->code};
    record_command(&s->record, &row);
}

void commands_tell_row(struct supervisor *s, const struct command *c) {
    struct msg_command_row m = {.number = c->number, .code = c->code};
    snprintf(m.id, sizeof m.id, "%s", command_id(c));
    snprintf(m.state, sizeof m.state, "%s", command_state_name(c));
    if (*c->text)
        snprintf(m.text, sizeof m.text, "%s", c->text);
    else
        snprintf(m.text, sizeof m.text, "%s %.400s", c->name, c->value);
    mountd_send(s, MSG_COMMAND_ROW, &m);
}

static void tell_done(struct supervisor *s, const struct command *c) {
    struct msg_command_done m = {.code = c->code};
    snprintf(m.key, sizeof m.key, "%s", c->key);
    snprintf(m.text, sizeof m.text, "%s", c->text);
    status_flush(s); /* a result is never ahead of the values that it is about */
    mountd_send(s, MSG_COMMAND_DONE, &m);
}

void commands_finish(struct supervisor *s, struct command *c, uint32_t code, const char *fmt, ...) {
    char text[MSG_TEXT_BYTES];
    va_list ap;
    if (!command_is_open(c))
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    err_clean(text);
    ledger_finish(s->ledger, c, code, text);
    if (code && code != ECANCELED)
        supervisor_error(s, "%s", text);
    /* What the command changed is seen first, then its result; what is for history comes last. */
    commands_tell_row(s, c);
    tell_done(s, c);
    guests_command_done(s, c);
    record(s, c);
}

void commands_tell_daemon(struct supervisor *s) {
    for (struct command *c = ledger_tail(s->ledger, COMMAND_ROWS); c; c = c->newer)
        commands_tell_row(s, c);
}

/* ---- arrival */

/* Its key was used for something else: the first keeps it. */
static void refuse_reuse(struct peer *from, uint64_t frame_id, const struct command *c,
                         const struct msg_command *m) {
    struct msg_command_done done = {.code = EINVAL};
    memcpy(done.key, m->key, sizeof done.key);
    snprintf(done.text, sizeof done.text, "id %s was used for %s %.300s", command_id(c), c->name,
             c->value);
    peer_reply(from, MSG_COMMAND_DONE, frame_id, &done);
}

static bool may_command(uint32_t uid) { return uid == 0 || uid == geteuid(); }

/* Whether it can be carried out at all, in the state that the run is in. */
static int check_state(const struct supervisor *s, const struct command *c, struct err *err) {
    if (s->state == RUN_FAILED && strcmp(c->name, "stop") != 0)
        return err_set(err, EIO, "the run has failed: %.300s", s->failure);
    if (s->state == RUN_OFFLINE)
        return err_set(err, EROFS, "nothing is trained here: `gatherfs run` goes on with the run");
    if (s->stop.phase != STOP_NONE)
        return err_set(err, EBUSY, "the run is stopping");
    return 0;
}

static void begin(struct supervisor *s, struct command *c) {
    struct err err = {0};
    if (!may_command(c->uid))
        err_set(&err, EPERM, "only user %u may command this run", (unsigned)geteuid());
    else if (command_check(c->name, c->value, &err) == 0)
        check_state(s, c, &err);
    if (err.code)
        commands_finish(s, c, (uint32_t)err.code, "%s%s%s", knob_find(c->name) ? "" : c->name,
                        knob_find(c->name) ? "" : ": ", err.text);
    else
        commands_execute(s);
}

void commands_receive(struct supervisor *s, struct peer *from, uint64_t frame_id,
                      const struct msg_command *m) {
    struct command *c = ledger_find(s->ledger, m->key);
    if (c && (strcmp(c->name, m->name) != 0 || strcmp(c->value, m->value) != 0)) {
        refuse_reuse(from, frame_id, c, m);
        return;
    }
    if (c && command_is_open(c))
        return; /* its result goes to all that wait for the key */
    if (c) {
        tell_done(s, c);
        guests_command_done(s, c);
        return;
    }
    c = ledger_add(s->ledger, m);
    if (!c) {
        struct msg_command_done done = {.code = ENOMEM};
        memcpy(done.key, m->key, sizeof done.key);
        peer_reply(from, MSG_COMMAND_DONE, 0, &done);
        return;
    }
    commands_tell_row(s, c);
    begin(s, c);
}

/* ---- carrying out */

void commands_execute(struct supervisor *s) {
    for (struct command *c = ledger_first_open(s->ledger); c; c = ledger_next_open(c)) {
        const struct command_def *def = command_find(c->name);
        if (c->state != COMMAND_WAITING || (def->needs_world && !world_is_ready(s)))
            continue;
        c->state = COMMAND_ACCEPTED;
        def->execute(s, c);
    }
}

static bool is_step(const struct command *c) {
    return strcmp(c->name, "step") == 0 || strcmp(c->name, "target") == 0;
}

uint64_t commands_wanted_step(const struct supervisor *s) {
    uint64_t wanted = 0;
    for (struct command *c = ledger_first_open(s->ledger); c; c = ledger_next_open(c))
        if (is_step(c) && c->state == COMMAND_ACCEPTED && !c->cut && c->step > wanted)
            wanted = c->step;
    return wanted;
}

void commands_on_boundary(struct supervisor *s) {
    bool resting = goal_is_resting(&s->goal);
    for (struct command *c = ledger_first_open(s->ledger); c; c = ledger_next_open(c)) {
        if (!is_step(c) || c->state != COMMAND_ACCEPTED)
            continue;
        if (s->goal.step >= c->step)
            commands_finish(s, c, 0, "%s %s: reached step %llu", c->name, c->value,
                            (unsigned long long)c->step);
        else if (c->cut && resting)
            commands_finish(s, c, ECANCELED, "%s %s: the run paused at step %llu", c->name,
                            c->value, (unsigned long long)s->goal.step);
    }
}

void commands_cancel_steps(struct supervisor *s, bool waiting_too, const char *why) {
    for (struct command *c = ledger_first_open(s->ledger); c; c = ledger_next_open(c))
        if (c->state == COMMAND_ACCEPTED ? is_step(c) : waiting_too)
            commands_finish(s, c, ECANCELED, "%s %s: %s", c->name, c->value, why);
}

void commands_end_all(struct supervisor *s, uint32_t code, const char *why) {
    for (struct command *c = ledger_first_open(s->ledger); c; c = ledger_next_open(c))
        commands_finish(s, c, code, "%s %s: %s", c->name, c->value, why);
}

/* What was given to the ranks and not answered is given to the next ones. */
void commands_world_gone(struct supervisor *s) {
    for (struct command *c = ledger_first_open(s->ledger); c; c = ledger_next_open(c))
        if (c->state == COMMAND_ACCEPTED && !is_step(c))
            ledger_retry(c);
}
