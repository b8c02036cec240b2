/* pins.c - names for takes that are kept in memory.
 *
 * A pin is listed from the moment its name is accepted, since names and sizes are known then. Its
 * content belongs to the world that made it; when that world is gone, the daemon still has the
 * segments, and the pin stays for as long as that daemon lives. */
#include "config.h"

#include "run/supervisor.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pin {
    struct pin *next;
    uint64_t id, take, epoch, gen, step, time_ns;
    uint32_t mask, code;
    enum pin_state state;
    char name[NAME_MAX_BYTES + 1];
    struct wide *wide;       /* NULL: waits for a world, or failed */
    struct command *command; /* waits until memory is reserved */
    uint64_t session;   /* of the daemon that has the segments of a world that is gone; 0 while the
                           world lives */
    struct enc layout;  /* as it was */
    char *model_config; /* owned */
};

static void tell(struct supervisor *s, const struct pin *p) {
    struct msg_pin m = {
        .pin = p->id,
        .take = p->take,
        .state = p->state,
        .code = p->code,
        .epoch = p->epoch,
        .gen = p->gen,
        .step = p->step,
        .array_mask = p->mask,
        .time_ns = p->time_ns,
        .layout = {p->layout.data, p->layout.len_bytes},
        .model_config = {(const uint8_t *)p->model_config, strlen(p->model_config)}};
    memcpy(m.name, p->name, sizeof m.name);
    mountd_send(s, MSG_PIN, &m);
}

static struct pin *find(const struct supervisor *s, const char *name) {
    struct pin *p = s->pins.first;
    while (p && strcmp(p->name, name) != 0)
        p = p->next;
    return p;
}

static void pin_free(struct pin *p) {
    enc_free(&p->layout);
    free(p->model_config);
    free(p);
}

static void pin_drop(struct supervisor *s, struct pin *p) {
    struct pin **at = &s->pins.first;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    wide_release(s, p->wide);
    p->state = PIN_GONE;
    tell(s, p);
    pin_free(p);
}

/* The layout and names that the new pin's files have. */
static int remember_world(struct supervisor *s, struct pin *p) {
    enc_reset(&p->layout);
    enc_bytes(&p->layout, s->world.layout_bytes.data, s->world.layout_bytes.len_bytes);
    char *model = strdup(s->world.model_config);
    if (!model || p->layout.failed) {
        free(model);
        return -ENOMEM;
    }
    free(p->model_config);
    p->model_config = model;
    return 0;
}

static void pin_failed(struct supervisor *s, struct pin *p, uint32_t code) {
    wide_release(s, p->wide);
    p->wide = NULL;
    p->state = PIN_FAILED;
    p->code = code;
    struct command *c = p->command;
    p->command = NULL;
    const char *why = code == ENOBUFS ? "the ranks have no memory for it" : err_name((int)code);
    if (c) {
        /* Who wrote to control/pin is told, and sees no pin. */
        commands_finish(s, c, code, "pin %s: %s", p->name, why);
        pin_drop(s, p);
    } else {
        supervisor_error(s, "pin %s: %s", p->name, why);
        tell(s, p);
    }
}

/* The world went before it had fixed the pin's version: the next one makes it. */
static void pin_again(struct supervisor *s, struct pin *p) {
    wide_release(s, p->wide);
    p->wide = NULL;
    if (!p->command)
        return; /* pins_world_ready */
    ledger_retry(p->command);
    p->command = NULL;
    pin_drop(s, p);
}

static void on_change(struct supervisor *s, struct wide *w) {
    struct pin *p = w->owner;
    if (w->state == WIDE_FAILED) {
        if (!world_is_ready(s) && p->state == PIN_RESERVING)
            pin_again(s, p);
        else
            pin_failed(s, p, w->code);
        return;
    }
    p->gen = w->gen;
    p->step = w->step;
    if (w->state == WIDE_FIXED || w->state == WIDE_READY)
        p->state = w->state == WIDE_READY ? PIN_READY : PIN_FIXED;
    tell(s, p);
    if (w->state == WIDE_READY)
        supervisor_event(s, "pin", "%s is step %" PRIu64, p->name, p->step);
    /* Memory is reserved and the next boundary is its version: nothing can go wrong but a death. */
    struct command *c = p->command;
    p->command = NULL;
    if (c)
        commands_finish(s, c, 0, "pin %s", p->name);
}

static void pin_take(struct supervisor *s, struct pin *p) {
    p->mask = supervisor_arrays(s, ARRAY_MASK_ALL);
    p->wide = wide_start(s, p->mask, false, on_change, p);
    if (!p->wide || remember_world(s, p)) {
        pin_failed(s, p, ENOMEM);
        return;
    }
    p->take = p->wide->id;
    p->epoch = s->world.epoch;
    tell(s, p);
}

int pins_make(struct supervisor *s, const char *name, struct command *command, struct err *err) {
    uint64_t count = 0;
    for (const struct pin *p = s->pins.first; p; p = p->next)
        count++;
    if (!parse_name_ok(name))
        return err_set(err, EINVAL, "'%.120s' is no name of a pin: letters, digits, . _ -", name);
    if (find(s, name))
        return err_set(err, EEXIST, "there is a pin %s", name);
    if (count >= s->config.max_pins)
        return err_set(err, ENOBUFS,
                       "there are %" PRIu64 " pins already: rmdir one, or raise max_pins", count);
    if (!s->world.has_layout)
        return err_set(err, EBUSY,
                       "the run is starting: write the name to control/pin, which waits");
    struct pin *p = calloc(1, sizeof *p);
    if (!p || remember_world(s, p)) {
        if (p)
            pin_free(p);
        return err_set(err, ENOMEM, "no memory");
    }
    p->id = ++s->pins.last_id;
    p->mask = supervisor_arrays(s, ARRAY_MASK_ALL);
    p->time_ns = loop_time_ns();
    p->command = command;
    snprintf(p->name, sizeof p->name, "%s", name);
    p->next = s->pins.first;
    s->pins.first = p;
    if (world_is_ready(s))
        pin_take(s, p);
    else
        tell(s, p); /* pins_world_ready goes on */
    return 0;
}

int pins_remove(struct supervisor *s, const char *name, struct err *err) {
    struct pin *p = find(s, name);
    if (!p)
        return err_set(err, ENOENT, "there is no pin %.120s", name);
    if (p->command)
        commands_finish(s, p->command, ECANCELED, "pin %s: removed", name);
    supervisor_event(s, "pin", "%s is let go", p->name);
    pin_drop(s, p);
    return 0;
}

void pins_abort(struct supervisor *s) {
    struct pin *next;
    for (struct pin *p = s->pins.first; p; p = next) {
        next = p->next;
        if (!p->command)
            continue;
        commands_finish(s, p->command, ECANCELED, "pin %s: aborted", p->name);
        p->command = NULL;
        pin_drop(s, p);
    }
}

void pins_world_gone(struct supervisor *s) {
    for (struct pin *p = s->pins.first; p; p = p->next)
        if (p->state == PIN_READY && !p->session)
            p->session = s->mountd.session; /* that daemon holds all of it */
}

void pins_world_ready(struct supervisor *s) {
    struct pin *next;
    for (struct pin *p = s->pins.first; p; p = next) {
        next = p->next;
        if (p->state == PIN_RESERVING && !p->wide)
            pin_take(s, p);
    }
}

void pins_tell_daemon(struct supervisor *s) {
    for (struct pin *p = s->pins.first; p; p = p->next) {
        /* What a daemon that died held of a world that died. */
        if (p->session && p->session != s->mountd.session && p->state == PIN_READY) {
            p->state = PIN_FAILED;
            p->code = EIO;
        }
        tell(s, p);
    }
}

void pins_close(struct supervisor *s) {
    while (s->pins.first) {
        struct pin *p = s->pins.first;
        s->pins.first = p->next;
        pin_free(p);
    }
}
