/* wide.c - takes of everything in a mask at one boundary: for pins, for snapshots, and for opens of
 * files that span units.
 *
 *   all MSG_TAKE_RESERVED     first DONE        all DONE
 *  RESERVING ---------> FIXING ---------> FIXED --------> READY
 *      |                  |                 |
 *      +------------------+-----------------+-----------> FAILED: a rank's errno, or no world */
#include "config.h"

#include "run/supervisor.h"

#include <errno.h>
#include <stdlib.h>

struct wide *wide_start(struct supervisor *s, uint32_t mask, bool keep,
                        void (*on_change)(struct supervisor *s, struct wide *w), void *owner) {
    struct wide *w = world_is_ready(s) ? calloc(1, sizeof *w) : NULL;
    if (!w)
        return NULL;
    w->id = ++s->wides.last_id;
    w->epoch = s->world.epoch;
    w->mask = mask;
    w->on_change = on_change;
    w->owner = owner;
    w->next = s->wides.first;
    s->wides.first = w;
    struct msg_take_reserve m = {.take = w->id, .array_mask = mask, .keep = keep};
    world_send_all(s, MSG_TAKE_RESERVE, &m);
    return w;
}

static bool is_of_this_world(const struct supervisor *s, const struct wide *w) {
    return w->epoch == s->world.epoch;
}

void wide_release(struct supervisor *s, struct wide *w) {
    if (!w)
        return;
    struct wide **at = &s->wides.first;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    if (is_of_this_world(s, w)) {
        struct msg_take_release m = {.number = w->id};
        world_send_all(s, MSG_TAKE_RELEASE, &m);
    }
    free(w);
}

static struct wide *find(struct supervisor *s, uint64_t id) {
    struct wide *w = s->wides.first;
    while (w && w->id != id)
        w = w->next;
    return w;
}

static void change(struct supervisor *s, struct wide *w, enum wide_state state, uint32_t code) {
    w->state = state;
    w->code = code;
    w->on_change(s, w);
}

void wide_on_reserved(struct supervisor *s, const struct msg_take_reserved *m) {
    struct wide *w = find(s, m->take);
    if (!w || w->state != WIDE_RESERVING)
        return;
    if (m->code) {
        change(s, w, WIDE_FAILED, m->code);
        return;
    }
    if (++w->reserved_count < s->world.size)
        return;
    struct msg_take_fix fix = {.session = 0, .number = w->id};
    world_send(s, 0, MSG_TAKE_FIX, &fix);
    change(s, w, WIDE_FIXING, 0);
}

void wide_on_done(struct supervisor *s, const struct msg_take_done *m) {
    struct wide *w = find(s, m->take);
    if (!w || (w->state != WIDE_FIXING && w->state != WIDE_FIXED))
        return;
    if (!m->code && w->state == WIDE_FIXED && m->gen != w->gen) {
        supervisor_error(s, "the ranks do not agree on the version of a take");
        change(s, w, WIDE_FAILED, EPROTO);
        return;
    }
    if (m->code) {
        change(s, w, WIDE_FAILED, m->code);
        return;
    }
    w->gen = m->gen;
    w->step = m->step;
    if (++w->done_count == s->world.size)
        change(s, w, WIDE_READY, 0);
    else if (w->state == WIDE_FIXING)
        change(s, w, WIDE_FIXED, 0);
}

void wide_world_gone(struct supervisor *s) {
    /* A handler may release its take: begin anew after each. */
    for (struct wide *w = s->wides.first; w;) {
        if (w->state == WIDE_READY || w->state == WIDE_FAILED) {
            w = w->next;
            continue;
        }
        change(s, w, WIDE_FAILED, EIO);
        w = s->wides.first;
    }
}

void wides_close(struct supervisor *s) {
    while (s->wides.first) {
        struct wide *w = s->wides.first;
        s->wides.first = w->next;
        free(w);
    }
}

/* ---- opens by the daemon: one take serves all that are opened at the same version */

struct open_request {
    struct open_request *next;
    uint64_t request;
    struct wide *wide;
};

static void tell_open(struct supervisor *s, const struct open_request *r, uint32_t state,
                      uint32_t code) {
    const struct wide *w = r->wide;
    struct msg_wide m = {.request = r->request, .state = state, .code = code};
    if (w) {
        m.take = w->id;
        m.epoch = w->epoch;
        m.gen = w->gen;
        m.step = w->step;
    }
    mountd_send(s, MSG_WIDE, &m);
}

static uint32_t shown_state(const struct wide *w) {
    static const uint32_t shown[] = {
        [WIDE_RESERVING] = PIN_RESERVING, [WIDE_FIXING] = PIN_RESERVING, [WIDE_FIXED] = PIN_FIXED,
        [WIDE_READY] = PIN_READY,         [WIDE_FAILED] = PIN_FAILED,
    };
    return shown[w->state];
}

static void on_open_change(struct supervisor *s, struct wide *w) {
    bool failed = w->state == WIDE_FAILED;
    for (struct open_request **at = &s->wides.opens; *at;) {
        struct open_request *r = *at;
        if (r->wide != w) {
            at = &r->next;
            continue;
        }
        tell_open(s, r, shown_state(w), w->code);
        if (failed) {
            *at = r->next;
            free(r);
        } else {
            at = &r->next;
        }
    }
    if (failed)
        wide_release(s, w);
}

/* A take of these arrays that shows what a new one would show. */
static struct wide *find_shared(struct supervisor *s, uint32_t mask) {
    for (struct wide *w = s->wides.first; w; w = w->next)
        if (w->on_change == on_open_change && w->mask == mask && is_of_this_world(s, w) &&
            (w->state == WIDE_RESERVING ||
             ((w->state == WIDE_FIXED || w->state == WIDE_READY) && w->gen == s->gen)))
            return w;
    return NULL;
}

void wide_on_open(struct supervisor *s, const struct msg_wide_open *m) {
    struct open_request *r = calloc(1, sizeof *r);
    struct open_request none = {.request = m->request};
    struct wide *w = NULL;
    uint32_t mask = m->array_mask & ARRAY_MASK_ALL;
    if (r && mask && world_is_ready(s)) {
        w = find_shared(s, mask);
        if (!w)
            w = wide_start(s, mask, false, on_open_change, NULL);
    }
    if (!w) {
        free(r);
        tell_open(s, &none, PIN_FAILED, world_is_ready(s) ? ENOBUFS : EIO);
        return;
    }
    *r = (struct open_request){.next = s->wides.opens, .request = m->request, .wide = w};
    s->wides.opens = r;
    tell_open(s, r, shown_state(w), 0);
}

static void drop_unused(struct supervisor *s, struct wide *w) {
    for (const struct open_request *r = s->wides.opens; r; r = r->next)
        if (r->wide == w)
            return;
    wide_release(s, w);
}

void wide_on_close(struct supervisor *s, const struct msg_wide_close *m) {
    for (struct open_request **at = &s->wides.opens; *at; at = &(*at)->next) {
        struct open_request *r = *at;
        if (r->request != m->request)
            continue;
        struct wide *w = r->wide;
        *at = r->next;
        free(r);
        drop_unused(s, w);
        return;
    }
}

void wide_daemon_gone(struct supervisor *s) {
    while (s->wides.opens) {
        struct msg_wide_close m = {.request = s->wides.opens->request};
        wide_on_close(s, &m);
    }
}
