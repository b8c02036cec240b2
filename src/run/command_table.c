/* command_table.c - what each command does. */
#include "config.h"

#include "run/commands.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- going on */

static void execute_step(struct supervisor *s, struct command *c) {
    struct err err = {0};
    uint64_t n = 0;
    parse_u64(c->value, &n);
    if (goal_accept_step(&s->goal, n, &c->step, &err)) {
        commands_finish(s, c, (uint32_t)err.code, "step %s: %s", c->value, err.text);
        return;
    }
    supervisor_goal_changed(s);
}

static void execute_target(struct supervisor *s, struct command *c) {
    struct err err = {0};
    parse_u64(c->value, &c->step);
    if (goal_accept_target(&s->goal, c->step, &err)) {
        commands_finish(s, c, (uint32_t)err.code, "target %s: %s", c->value, err.text);
        return;
    }
    supervisor_goal_changed(s);
}

/* With 0 the commands that wait for steps are not cancelled yet: the step that is being made may
 * reach them. */
static void cut_steps(struct supervisor *s, bool cut) {
    for (struct command *c = ledger_first_open(s->ledger); c; c = ledger_next_open(c))
        if (c->state == COMMAND_ACCEPTED)
            c->cut = cut;
}

static void execute_run(struct supervisor *s, struct command *c) {
    struct err err = {0};
    bool on = strcmp(c->value, "1") == 0;
    if (on && goal_accept_run(&s->goal, s->config.stay, &err)) {
        commands_finish(s, c, (uint32_t)err.code, "run 1: %s", err.text);
        return;
    }
    s->goal.running = on;
    cut_steps(s, !on);
    supervisor_goal_changed(s);
    commands_finish(s, c, 0, "run %s", c->value);
}

static void execute_abort(struct supervisor *s, struct command *c) {
    snapshots_abort(s);
    pins_abort(s);
    /* A restore that the ranks have begun is not left half done: it ends by itself. */
    for (struct command *o = ledger_first_open(s->ledger); o; o = ledger_next_open(o))
        if (o != c && !(o->state == COMMAND_ACCEPTED && strcmp(o->name, "restore") == 0))
            commands_finish(s, o, ECANCELED, "%s %s: aborted", o->name, o->value);
    supervisor_goal_changed(s);
    commands_finish(s, c, 0, "abort");
}

static void execute_stop(struct supervisor *s, struct command *c) {
    commands_finish(s, c, 0, "stop");
    stop_request(s, "control/stop");
}

/* ---- snapshots and pins */

static void execute_snapshot(struct supervisor *s, struct command *c) {
    struct err err = {0};
    if (snapshots_begin(s, c->value, c, &err))
        commands_finish(s, c, (uint32_t)err.code, "snapshot %s: %s", c->value, err.text);
}

static void execute_rmdir_snapshot(struct supervisor *s, struct command *c) {
    struct err err = {0};
    int rc = snapshots_remove(s, c->value, &err);
    commands_finish(s, c, (uint32_t)-rc, "rmdir snapshots/%s%s%s", c->value, rc ? ": " : "",
                    err.text);
    status_send(s);
}

static void execute_pin(struct supervisor *s, struct command *c) {
    struct err err = {0};
    if (pins_make(s, c->value, c, &err))
        commands_finish(s, c, (uint32_t)err.code, "pin %s: %s", c->value, err.text);
}

/* mkdir locks the directory that it makes something in, so it never waits: not for memory, not for
 * a world. */
static void execute_mkdir_pin(struct supervisor *s, struct command *c) {
    struct err err = {0};
    int rc = pins_make(s, c->value, NULL, &err);
    commands_finish(s, c, (uint32_t)-rc, "mkdir pins/%s%s%s", c->value, rc ? ": " : "", err.text);
}

static void execute_rmdir_pin(struct supervisor *s, struct command *c) {
    struct err err = {0};
    int rc = pins_remove(s, c->value, &err);
    commands_finish(s, c, (uint32_t)-rc, "rmdir pins/%s%s%s", c->value, rc ? ": " : "", err.text);
}

static void execute_restore(struct supervisor *s, struct command *c) {
    struct msg_restore m = {.command = c->number};
    if (snapshots_find(s, c->value) < 0) {
        commands_finish(s, c, ENOENT, "restore %s: there is no such snapshot", c->value);
        return;
    }
    if (snapshots_path(s, c->value, m.dir, sizeof m.dir)) {
        commands_finish(s, c, ENAMETOOLONG, "restore %s: the path is too long", c->value);
        return;
    }
    world_send(s, 0, MSG_RESTORE, &m);
}

static struct command *find_number(struct supervisor *s, uint64_t number) {
    struct command *c = ledger_first_open(s->ledger);
    while (c && c->number != number)
        c = ledger_next_open(c);
    return c;
}

void commands_on_restored(struct supervisor *s, const struct msg_restored *m) {
    struct command *c = find_number(s, m->command);
    if (m->gen > s->gen)
        s->gen = m->gen;
    if (!m->code) {
        s->goal.step = m->step;
        s->has_grads = false;
        if (c)
            snapshots_restored(s, c->value, m->gen);
        supervisor_event(s, "restore", "%s: step %" PRIu64, c ? c->value : "a snapshot", m->step);
        commands_cancel_steps(s, false, "a snapshot was restored first");
        s->goal.done = false;
        supervisor_goal_changed(s);
    }
    if (c && c->state == COMMAND_ACCEPTED)
        commands_finish(s, c, m->code, "restore %s%s%s", c->value, m->code ? ": " : "", m->text);
}

/* ---- knobs */

static void execute_knob(struct supervisor *s, struct command *c) {
    struct err err = {0};
    const struct knob *k = knob_find(c->name);
    if (config_set(&s->config, k, c->value, &err)) {
        commands_finish(s, c, (uint32_t)err.code, "%s", err.text);
        return;
    }
    s->config_is_dirty = true;
    if (strcmp(k->name, "snapshot_every") == 0)
        snapshots_start_timer(s);
    world_orders(s);
    status_send(s);
    supervisor_event(s, "knob", "%s = %s", c->name, c->value);
    commands_finish(s, c, 0, "%s %s", c->name, c->value);
}

/* ---- the table */

static const struct command_def table[] = {
    {"step", true, execute_step, "a number of steps"},
    {"target", true, execute_target, "the number of a step"},
    {"run", false, execute_run, "0 or 1"},
    {"snapshot", true, execute_snapshot, "a name"},
    {"pin", true, execute_pin, "a name"},
    {"restore", true, execute_restore, "the name of a snapshot"},
    {"abort", false, execute_abort, "1"},
    {"stop", false, execute_stop, "1"},
    {"mkdir-pin", false, execute_mkdir_pin, "a name"},
    {"rmdir-pin", false, execute_rmdir_pin, "a name"},
    {"rmdir-snapshot", false, execute_rmdir_snapshot, "a name"},
};
static const struct command_def knob_def = {"knob", false, execute_knob, "a value"};

const struct command_def *command_find(const char *name) {
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    const struct knob *k = knob_find(name);
    return k && k->class == KNOB_LIVE ? &knob_def : NULL;
}

static int check_number(const struct command_def *d, const char *value, struct err *err) {
    uint64_t n;
    double negative;
    int rc = parse_u64(value, &n);
    if (rc == -EINVAL && value[0] == '-' && parse_f64(value, &negative) == 0)
        rc = -ERANGE;
    return rc ? err_set(err, -rc, "'%.60s' is not %s", value, d->expected) : 0;
}

/* A number that is none of those that mean something is out of range; anything else is no number.
 */
static int check_switch(const struct command_def *d, const char *value, struct err *err) {
    int rc = check_number(d, value, err);
    return rc ? rc : err_set(err, ERANGE, "'%.60s': expected %s", value, d->expected);
}

int command_check(const char *name, const char *value, struct err *err) {
    const struct command_def *d = command_find(name);
    if (!d)
        return err_set(err, EINVAL, "there is no such command");
    if (d == &knob_def) {
        struct config scratch;
        config_defaults(&scratch);
        return config_set(&scratch, knob_find(name), value, err);
    }
    if (strcmp(name, "step") == 0 || strcmp(name, "target") == 0)
        return check_number(d, value, err);
    if (strcmp(name, "run") == 0 || strcmp(name, "abort") == 0 || strcmp(name, "stop") == 0) {
        bool ok = strcmp(value, "1") == 0 || (strcmp(name, "run") == 0 && strcmp(value, "0") == 0);
        return ok ? 0 : check_switch(d, value, err);
    }
    if (!parse_name_ok(value))
        return err_set(err, EINVAL, "'%.60s' is not %s: letters, digits, . _ -", value,
                       d->expected);
    return 0;
}
