/* wide.c - a table of offered segments by (take, rank), and a list of opens. */
#include "config.h"

#include "fsmount/wide.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fsmount/clock.h"

/* The segments of one wide take. */
struct offer {
    struct offer *next;
    uint64_t take, epoch;
    uint32_t holds;           /* pins and opens */
    bool gone;                /* a rank let go of it: nobody writes to it any more */
    struct shared **segments; /* [rank_count] */
    uint32_t rank_count;
};

enum wide_phase { WIDE_WORLD, WIDE_ASKED, WIDE_READY };

struct wide {
    struct wide *next, **link;
    enum wide_phase phase;
    uint64_t request, take;
    struct take_version version;
    bool fixed; /* its version is known: an open that comes later must not join */
    bool answered_ready;
    uint64_t bytes, since_ns, knowledge; /* knowledge: takes_knowledge() when it was asked for */
    struct model *model;                 /* as it was when the take was asked for */
    struct wides *owner;
    struct wide_user *users;
};

struct wides {
    struct link *supervisor;
    struct world *world;
    struct takes *takes;
    struct offer *offers;
    struct wide *all;
    uint64_t next_request, timeout_ns;
};

int wides_open(struct link *supervisor, struct world *world, struct takes *takes,
               struct wides **out) {
    struct wides *w = calloc(1, sizeof(*w));
    if (w == NULL)
        return -ENOMEM;
    *w =
        (struct wides){.supervisor = supervisor, .world = world, .takes = takes, .next_request = 1};
    *out = w;
    return 0;
}

void wides_configure(struct wides *w, double read_timeout_seconds) {
    w->timeout_ns = (uint64_t)(read_timeout_seconds * 1e9);
}

/* ---- segments */

static struct offer *wides_offer(const struct wides *w, uint64_t take) {
    for (struct offer *o = w->offers; o != NULL; o = o->next)
        if (o->take == take)
            return o;
    return NULL;
}

static struct offer *wides_offer_make(struct wides *w, uint64_t take) {
    struct offer *o = wides_offer(w, take);
    if (o != NULL)
        return o;
    o = calloc(1, sizeof(*o));
    if (o == NULL)
        return NULL;
    o->next = w->offers;
    o->take = take;
    w->offers = o;
    return o;
}

static bool offer_is_empty(const struct offer *o) {
    for (uint32_t r = 0; r < o->rank_count; r++)
        if (o->segments[r] != NULL)
            return false;
    return true;
}

static void offer_clear(struct offer *o) {
    for (uint32_t r = 0; r < o->rank_count; r++)
        shared_put(o->segments[r]);
    free(o->segments);
    o->segments = NULL;
    o->rank_count = 0;
}

/* Removes what nobody holds and nobody offers. */
static void wides_sweep(struct wides *w) {
    for (struct offer **at = &w->offers; *at != NULL;) {
        struct offer *o = *at;
        if (o->holds != 0 || !offer_is_empty(o)) {
            at = &o->next;
            continue;
        }
        *at = o->next;
        offer_clear(o);
        free(o);
    }
}

static void wides_check(struct wides *w);

void wides_segment(struct wides *w, uint64_t epoch, uint32_t rank, const struct msg_wide_segment *m,
                   struct shared *segment) {
    struct offer *o = wides_offer_make(w, m->take);
    if (o == NULL)
        return;
    if (rank >= o->rank_count) {
        struct shared **grown = realloc(o->segments, (rank + 1) * sizeof(struct shared *));
        if (grown == NULL)
            return;
        for (uint32_t r = o->rank_count; r <= rank; r++)
            grown[r] = NULL;
        o->segments = grown;
        o->rank_count = rank + 1;
    }
    o->epoch = epoch;
    shared_put(o->segments[rank]);
    o->segments[rank] = shared_get(segment);
    wides_check(w);
}

void wides_gone(struct wides *w, uint64_t epoch, uint32_t rank, uint64_t take) {
    struct offer *o = wides_offer(w, take);
    if (o == NULL || o->epoch != epoch || rank >= o->rank_count)
        return;
    o->gone = true;
    if (o->holds != 0)
        return; /* a pin that was removed while its files are open */
    shared_put(o->segments[rank]);
    o->segments[rank] = NULL;
    wides_sweep(w);
}

bool wides_is_whole(const struct wides *w, uint64_t take, const struct layout *l,
                    uint32_t array_mask) {
    const struct offer *o = wides_offer(w, take);
    for (uint32_t r = 0; r < l->world_size; r++) {
        uint64_t need = layout_dump_bytes(l, array_mask, r);
        if (need == 0)
            continue;
        if (o == NULL || r >= o->rank_count || o->segments[r] == NULL ||
            o->segments[r]->segment.bytes < need)
            return false;
    }
    return true;
}

int wides_dump(const struct wides *w, uint64_t take, uint32_t rank, const uint8_t **data,
               uint64_t *bytes) {
    const struct offer *o = wides_offer(w, take);
    if (o == NULL || rank >= o->rank_count || o->segments[rank] == NULL)
        return -EIO;
    *data = o->segments[rank]->segment.base;
    *bytes = o->segments[rank]->segment.bytes;
    return 0;
}

uint64_t wides_oldest_sign(const struct wides *w, uint64_t take, const struct layout *l) {
    const struct offer *o = wides_offer(w, take);
    uint64_t oldest = UINT64_MAX;
    for (uint32_t r = 0; r < l->world_size; r++) {
        if (o != NULL && r < o->rank_count && o->segments[r] != NULL)
            continue;
        uint64_t alive = world_alive_ns(w->world, r);
        oldest = alive < oldest ? alive : oldest;
    }
    return oldest;
}

void wides_hold(struct wides *w, uint64_t take) {
    struct offer *o = wides_offer_make(w, take);
    if (o != NULL)
        o->holds++;
}

void wides_unhold(struct wides *w, uint64_t take) {
    struct offer *o = wides_offer(w, take);
    if (o != NULL && o->holds > 0 && --o->holds == 0 &&
        (o->gone || o->epoch != world_epoch(w->world)))
        offer_clear(o); /* MSG_WIDE_GONE has come, or the rank that would say it is gone itself */
    wides_sweep(w);
}

/* ---- opens */

static void wide_user_link(struct wide *wide, struct wide_user *u) {
    u->wide = wide;
    u->next = wide->users;
    u->link = &wide->users;
    if (u->next != NULL)
        u->next->link = &u->next;
    wide->users = u;
}

static void wide_user_unlink(struct wide_user *u) {
    *u->link = u->next;
    if (u->next != NULL)
        u->next->link = u->link;
    u->wide = NULL;
}

static void wide_free(struct wides *w, struct wide *wide) {
    struct msg_wide_close m = {.request = wide->request};
    if (wide->phase != WIDE_WORLD)
        msg_send(w->supervisor, MSG_WIDE_CLOSE, 0, &m, NULL, 0);
    if (wide->take != 0)
        wides_unhold(w, wide->take);
    takes_discharge(w->takes, wide->bytes);
    model_put(wide->model);
    *wide->link = wide->next;
    if (wide->next != NULL)
        wide->next->link = wide->link;
    free(wide);
}

static void wide_over(struct wides *w, struct wide *wide, int code) {
    while (wide->users != NULL) {
        struct wide_user *u = wide->users;
        wide_user_unlink(u);
        u->done(u, code);
    }
    wide_free(w, wide);
}

void wides_close(struct wides *w) {
    if (w == NULL)
        return;
    while (w->all != NULL)
        wide_over(w, w->all, EIO);
    while (w->offers != NULL) {
        struct offer *o = w->offers;
        w->offers = o->next;
        offer_clear(o);
        free(o);
    }
    free(w);
}

static void wide_ask(struct wides *w, struct wide *wide) {
    model_put(wide->model);
    wide->model = model_get(world_model(w->world));
    wide->phase = WIDE_ASKED;
    wide->version.epoch = world_epoch(w->world);
    wide->since_ns = clock_now();
    wide->knowledge = takes_knowledge(w->takes);
    wide->request = w->next_request++;
    struct msg_wide_open m = {.request = wide->request, .array_mask = ARRAY_BIT(ARRAY_PARAMS)};
    msg_send(w->supervisor, MSG_WIDE_OPEN, 0, &m, NULL, 0); /* its end ends the daemon */
}

static bool wide_is_whole(const struct wides *w, const struct wide *wide) {
    return wide->answered_ready &&
           wides_is_whole(w, wide->take, model_layout(wide->model), ARRAY_BIT(ARRAY_PARAMS));
}

static void wides_check(struct wides *w) {
    for (struct wide *wide = w->all, *next; wide != NULL; wide = next) {
        next = wide->next;
        if (wide->phase != WIDE_ASKED || !wide_is_whole(w, wide))
            continue;
        wide->phase = WIDE_READY;
        /* A user may leave from its callback, and the last one takes the open with it. */
        for (struct wide_user *u = wide->users, *after; u != NULL; u = after) {
            after = u->next;
            u->done(u, 0);
        }
    }
}

int wides_join(struct wides *w, struct wide_user *u, bool *ready) {
    *ready = false;
    for (struct wide *wide = w->all; wide != NULL; wide = wide->next) {
        if (wide->phase != WIDE_WORLD &&
            (wide->fixed || wide->knowledge != takes_knowledge(w->takes)))
            continue;
        wide_user_link(wide, u);
        return 0;
    }
    struct model *model = world_model(w->world);
    if (model == NULL)
        return -EIO;
    uint64_t bytes = layout_numel(model_layout(model)) * TENSOR_ELEM_BYTES;
    int rc = takes_charge(w->takes, bytes);
    if (rc != 0)
        return rc;
    struct wide *wide = calloc(1, sizeof(*wide));
    if (wide == NULL) {
        takes_discharge(w->takes, bytes);
        return -ENOMEM;
    }
    *wide = (struct wide){
        .next = w->all, .link = &w->all, .bytes = bytes, .owner = w, .since_ns = clock_now()};
    wide->model = model_get(model);
    if (w->all != NULL)
        w->all->link = &wide->next;
    w->all = wide;
    wide_user_link(wide, u);
    if (world_is_complete(w->world))
        wide_ask(w, wide);
    return 0;
}

void wides_leave(struct wides *w, struct wide_user *u) {
    struct wide *wide = u->wide;
    if (wide == NULL)
        return;
    wide_user_unlink(u);
    if (wide->users == NULL)
        wide_free(w, wide);
}

void wides_answer(struct wides *w, const struct msg_wide *m) {
    struct wide *wide = w->all;
    while (wide != NULL && (wide->phase == WIDE_WORLD || wide->request != m->request))
        wide = wide->next;
    if (wide == NULL)
        return; /* closed before it was answered */
    if (m->state == PIN_FAILED || m->state == PIN_GONE) {
        if (wide->phase != WIDE_READY)
            wide_over(w, wide, m->code != 0 && m->code < 4096 ? (int)m->code : EIO);
        return;
    }
    if (wide->take == 0 && m->take != 0) {
        wide->take = m->take;
        wides_hold(w, m->take);
    }
    if (m->state == PIN_FIXED || m->state == PIN_READY) {
        wide->fixed = true;
        wide->version = (struct take_version){.epoch = m->epoch, .gen = m->gen, .step = m->step};
    }
    wide->answered_ready = m->state == PIN_READY && m->take == wide->take;
    wides_check(w);
}

struct take_version wide_version(const struct wide *wide) {
    return wide->version;
}

static int wide_dump(void *ctx, uint32_t rank, const uint8_t **data, uint64_t *bytes) {
    const struct wide *wide = ctx;
    return wides_dump(wide->owner, wide->take, rank, data, bytes);
}

int wide_gather(const struct wide *wide, struct gather *g) {
    const struct safetensors_plan *plan = model_weights(wide->model);
    if (plan == NULL)
        return -EIO;
    struct dump_source from = {
        .array_mask = ARRAY_BIT(ARRAY_PARAMS), .dump = wide_dump, .ctx = (void *)(uintptr_t)wide};
    return model_gather_weights(wide->model, &from, plan, g);
}

/* ---- the world and time */

void wides_world(struct wides *w) {
    for (struct wide *wide = w->all; wide != NULL; wide = wide->next)
        if (wide->phase == WIDE_WORLD)
            wide_ask(w, wide);
}

void wides_lost(struct wides *w, uint64_t epoch, uint32_t rank) {
    for (struct wide *wide = w->all, *next; wide != NULL; wide = next) {
        next = wide->next;
        if (wide->phase == WIDE_ASKED && wide->version.epoch == epoch)
            wide_over(w, wide, EIO);
    }
    for (struct offer *o = w->offers; o != NULL; o = o->next) {
        if (o->epoch != epoch || o->holds != 0 || rank >= o->rank_count)
            continue;
        shared_put(o->segments[rank]);
        o->segments[rank] = NULL;
    }
    wides_sweep(w);
}

void wides_world_changed(struct wides *w) {
    for (struct wide *wide = w->all, *next; wide != NULL; wide = next) {
        next = wide->next;
        if (wide->phase == WIDE_ASKED &&
            (wide->version.epoch != world_epoch(w->world) || !world_is_complete(w->world)))
            wide_over(w, wide, EIO);
    }
}

bool wides_waiting(const struct wides *w) {
    for (const struct wide *wide = w->all; wide != NULL; wide = wide->next)
        if (wide->phase != WIDE_READY)
            return true;
    return false;
}

void wides_tick(struct wides *w, uint64_t now_ns) {
    for (struct wide *wide = w->all, *next; wide != NULL; wide = next) {
        next = wide->next;
        if (wide->phase == WIDE_READY)
            continue;
        uint64_t sign = wide->since_ns;
        if (wide->phase == WIDE_ASKED) {
            uint64_t oldest = wides_oldest_sign(w, wide->take, model_layout(wide->model));
            if (oldest != UINT64_MAX && oldest > sign)
                sign = oldest;
        }
        if (now_ns > sign && now_ns - sign >= w->timeout_ns)
            wide_over(w, wide, ETIMEDOUT);
    }
}
