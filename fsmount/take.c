/* take.c - asking the owners, agreeing on a version, sharing and letting go. */
#include "config.h"

#include "fsmount/take.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "fsmount/clock.h"

enum take_phase { TAKE_WORLD, TAKE_ASKING, TAKE_FIXING, TAKE_READY };
enum { TAKE_MAX_FIXES = 8, TAKE_PAGE_BYTES = 4096 };

struct part {
    uint32_t rank;
    uint64_t lo, hi;              /* elements of the rank's shard of the unit */
    uint64_t tensor_offset_elems; /* of lo */
    uint64_t try, want_gen;
    bool pending;          /* an answer is awaited */
    enum take_state state; /* of the last answer */
    uint64_t gen, step;
    struct shared *segment;
    const uint8_t *data; /* in segment, (hi - lo) elements */
};

struct take {
    struct take *next, **link;
    enum take_phase phase;
    uint64_t number, epoch, gen, step;
    enum array array;
    uint32_t tensor;
    uint64_t bytes; /* of the tensor */
    uint64_t try, since_ns;
    uint64_t knowledge; /* of takes, when it was asked for */
    uint64_t idle_turn; /* of takes, when it was asked for; 0: training went on */
    uint32_t fixes, part_count;
    struct part *parts;
    struct take_user *users;
};

struct takes {
    uint64_t session, next_number;
    struct world *world;
    struct take *all;
    uint64_t used_bytes, limit_bytes, timeout_ns;
    uint64_t status_epoch, status_gen;
    uint64_t newest_gen; /* of what was answered in this epoch */
    /* Counts what may have told somebody of a newer version: a take that was asked for before must
     * not be joined after. */
    uint64_t knowledge;
    /* Counts the stretches in which the world waits at one version; idle_now is 0 while it does
     * not. */
    uint64_t idle_turns, idle_now;
};

int takes_open(uint64_t session, struct world *world, struct takes **out) {
    struct takes *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return -ENOMEM;
    t->session = session;
    t->world = world;
    t->next_number = 1;
    t->knowledge = 1;
    *out = t;
    return 0;
}

/* ---- life of a take */

static void part_drop(struct part *p) {
    shared_put(p->segment);
    p->segment = NULL;
    p->data = NULL;
}

static void take_unlink(struct take *take) {
    *take->link = take->next;
    if (take->next != NULL)
        take->next->link = take->link;
}

/* Ranks let go of what they copied or promised. Those that know nothing of it do not mind. */
static void take_release(struct takes *t, struct take *take) {
    struct msg_take_release m = {.session = t->session, .number = take->number};
    if (take->phase != TAKE_WORLD && take->epoch == world_epoch(t->world))
        for (uint32_t i = 0; i < take->part_count; i++)
            world_send(t->world, take->parts[i].rank, MSG_TAKE_RELEASE, &m);
}

/* What a rank needs for the part that it has of a tensor: whole pages. More of them where several
 * ranks have a part, but never more on one of them: no rank is out of memory before this limit is.
 */
static uint64_t take_cost(uint64_t bytes) {
    uint64_t pages = bytes / TAKE_PAGE_BYTES + (bytes % TAKE_PAGE_BYTES != 0);
    return (pages != 0 ? pages : 1) * TAKE_PAGE_BYTES;
}

static void take_free(struct takes *t, struct take *take) {
    take_release(t, take);
    for (uint32_t i = 0; i < take->part_count; i++)
        part_drop(&take->parts[i]);
    t->used_bytes -= take_cost(take->bytes);
    take_unlink(take);
    free(take->parts);
    free(take);
}

static void user_link(struct take *take, struct take_user *u) {
    u->take = take;
    u->next = take->users;
    u->link = &take->users;
    if (u->next != NULL)
        u->next->link = &u->next;
    take->users = u;
}

static void user_unlink(struct take_user *u) {
    *u->link = u->next;
    if (u->next != NULL)
        u->next->link = u->link;
    u->take = NULL;
}

/* Its users are told why, and it is gone. */
static void take_over(struct takes *t, struct take *take, int code) {
    while (take->users != NULL) {
        struct take_user *u = take->users;
        user_unlink(u);
        if (u->done != NULL)
            u->done(u, code);
    }
    take_free(t, take);
}

void takes_close(struct takes *t) {
    if (t == NULL)
        return;
    while (t->all != NULL)
        take_over(t, t->all, EIO);
    free(t);
}

/* A cached take is worth its memory only while nothing can be newer. */
static bool take_is_current(const struct takes *t, const struct take *take) {
    return take->phase == TAKE_READY && take->idle_turn != 0 && take->idle_turn == t->idle_now &&
           take->epoch == world_epoch(t->world) && world_is_complete(t->world);
}

static void takes_evict(struct takes *t, bool current_too) {
    for (struct take *take = t->all, *next; take != NULL; take = next) {
        next = take->next;
        if (take->users == NULL && (current_too || !take_is_current(t, take)))
            take_free(t, take);
    }
}

int takes_charge(struct takes *t, uint64_t bytes) {
    if (t->used_bytes > t->limit_bytes || bytes > t->limit_bytes - t->used_bytes)
        takes_evict(t, true);
    if (t->used_bytes > t->limit_bytes || bytes > t->limit_bytes - t->used_bytes)
        return -ENOBUFS;
    t->used_bytes += bytes;
    return 0;
}

void takes_discharge(struct takes *t, uint64_t bytes) { t->used_bytes -= bytes; }
uint64_t takes_used_bytes(const struct takes *t) { return t->used_bytes; }

/* ---- what the daemon knows */

void takes_configure(struct takes *t, uint64_t limit_bytes, double read_timeout_seconds) {
    t->limit_bytes = limit_bytes;
    t->timeout_ns = (uint64_t)(read_timeout_seconds * 1e9);
}

void takes_status(struct takes *t, uint64_t epoch, uint64_t gen, bool idle) {
    if (epoch != t->status_epoch || gen != t->status_gen)
        t->knowledge++;
    if (!idle)
        t->idle_now = 0;
    else if (t->idle_now == 0 || epoch != t->status_epoch || gen != t->status_gen)
        t->idle_now = ++t->idle_turns;
    t->status_epoch = epoch;
    t->status_gen = gen;
    takes_evict(t, false);
}

void takes_answered(struct takes *t) { t->knowledge++; }
uint64_t takes_knowledge(const struct takes *t) { return t->knowledge; }

/* ---- asking */

static void part_ask(struct takes *t, struct take *take, struct part *p, uint64_t want_gen) {
    const struct layout *l = model_layout(world_model(t->world));
    part_drop(p);
    p->try = ++take->try;
    p->pending = true;
    p->want_gen = want_gen;
    struct msg_take m = {.session = t->session,
                         .number = take->number,
                         .try = p->try,
                         .epoch = take->epoch,
                         .array = take->array,
                         .unit = l->tensors[take->tensor].unit,
                         .lo = p->lo,
                         .hi = p->hi,
                         .want_gen = want_gen};
    world_send(t->world, p->rank, MSG_TAKE, &m); /* a failure ends the link, and with it the take */
}

static int take_split(struct take *take, const struct layout *l) {
    uint32_t count = 0;
    layout_tensor_pieces(l, take->tensor, NULL, 0, &count);
    struct layout_piece *pieces = calloc((size_t)count + 1, sizeof(*pieces));
    take->parts = calloc((size_t)count + 1, sizeof(*take->parts));
    if (pieces == NULL || take->parts == NULL) {
        free(pieces);
        return -ENOMEM;
    }
    layout_tensor_pieces(l, take->tensor, pieces, count, &take->part_count);
    for (uint32_t i = 0; i < count; i++)
        take->parts[i] = (struct part){.rank = pieces[i].rank,
                                       .lo = pieces[i].shard_offset_elems,
                                       .hi = pieces[i].shard_offset_elems + pieces[i].elems,
                                       .tensor_offset_elems = pieces[i].tensor_offset_elems};
    free(pieces);
    return 0;
}

static void take_decide(struct takes *t, struct take *take);

/* The world is complete: its layout is the one that counts, not that of the time of the open. */
static void take_begin(struct takes *t, struct take *take) {
    const struct layout *l = model_layout(world_model(t->world));
    if (take->tensor >= l->tensor_count ||
        l->tensors[take->tensor].numel * TENSOR_ELEM_BYTES != take->bytes) {
        take_over(t, take, EIO);
        return;
    }
    int rc = take_split(take, l);
    if (rc != 0) {
        take_over(t, take, -rc);
        return;
    }
    take->phase = TAKE_ASKING;
    take->epoch = world_epoch(t->world);
    take->since_ns = clock_now();
    take->knowledge = t->knowledge;
    take->idle_turn = t->idle_now;
    for (uint32_t i = 0; i < take->part_count; i++)
        part_ask(t, take, &take->parts[i], 0);
    if (take->part_count == 0) { /* a tensor of no elements has no owner to ask */
        take->gen = t->status_gen;
        take_decide(t, take);
    }
}

/* ---- deciding */

static struct take *takes_find_ready(const struct takes *t, const struct take *like) {
    for (struct take *o = t->all; o != NULL; o = o->next)
        if (o != like && o->phase == TAKE_READY && o->array == like->array &&
            o->tensor == like->tensor && o->epoch == like->epoch && o->gen == like->gen)
            return o;
    return NULL;
}

static void take_ready(struct takes *t, struct take *take) {
    take->phase = TAKE_READY;
    if (take->gen > t->newest_gen) {
        t->newest_gen = take->gen;
        t->knowledge++;
    }
    struct take *shared = takes_find_ready(t, take), *to = shared != NULL ? shared : take;
    /* The older copy is as new as this one: it was found to be current now. */
    if (shared != NULL)
        shared->idle_turn = take->idle_turn;
    struct take_user *users = take->users;
    take->users = NULL;
    while (users != NULL) {
        struct take_user *u = users;
        users = u->next;
        user_link(to, u);
    }
    if (shared != NULL)
        take_free(t, take);
    for (struct take_user *u = to->users, *next; u != NULL; u = next) {
        next = u->next;
        void (*done)(struct take_user *, int) = u->done;
        u->done = NULL;
        if (done != NULL)
            done(u, 0);
    }
}

static void take_fix(struct takes *t, struct take *take) {
    if (take->fixes++ >= TAKE_MAX_FIXES) {
        log_error("take %llu: the agenda fixed it %u times and the ranks still disagree",
                  (unsigned long long)take->number, take->fixes);
        take_over(t, take, EIO);
        return;
    }
    take->phase = TAKE_FIXING;
    for (uint32_t i = 0; i < take->part_count; i++) {
        part_drop(&take->parts[i]);
        take->parts[i].pending = true;
    }
    struct msg_take_fix m = {.session = t->session, .number = take->number};
    if (world_send(t->world, 0, MSG_TAKE_FIX, &m) == -ENOTCONN)
        take_over(t, take, EIO);
}

/* Called when no answer is awaited: all agree, some are asked again, or the agenda decides. */
static void take_decide(struct takes *t, struct take *take) {
    uint32_t copies = 0, nones = 0, stuck = 0;
    uint64_t newest = take->part_count == 0 ? take->gen : 0;
    for (uint32_t i = 0; i < take->part_count; i++) {
        const struct part *p = &take->parts[i];
        copies += p->state == TAKE_COPY;
        nones += p->state == TAKE_NONE;
        /* Asked for a version and it has something else: asking again would go on for ever. */
        stuck += p->state == TAKE_PASSED ||
                 (p->want_gen != 0 && (p->state == TAKE_NONE || p->gen != p->want_gen));
        if (p->state == TAKE_COPY && p->gen > newest)
            newest = p->gen;
    }
    if (nones != 0 && nones == take->part_count) {
        take_over(t, take, ENODATA);
        return;
    }
    uint32_t behind = 0;
    for (uint32_t i = 0; i < take->part_count; i++)
        behind += take->parts[i].state != TAKE_COPY || take->parts[i].gen != newest;
    if (behind == 0) {
        take->gen = newest;
        take->step = take->part_count != 0 ? take->parts[0].step : 0;
        take_ready(t, take);
        return;
    }
    if (stuck != 0 || take->phase == TAKE_FIXING || copies == 0) {
        take_fix(t, take);
        return;
    }
    for (uint32_t i = 0; i < take->part_count; i++)
        if (take->parts[i].state != TAKE_COPY || take->parts[i].gen != newest)
            part_ask(t, take, &take->parts[i], newest);
}

static struct take *takes_find(const struct takes *t, uint64_t number) {
    for (struct take *take = t->all; take != NULL; take = take->next)
        if (take->number == number)
            return take;
    return NULL;
}

static struct part *take_part(struct take *take, uint32_t rank) {
    for (uint32_t i = 0; i < take->part_count; i++)
        if (take->parts[i].rank == rank)
            return &take->parts[i];
    return NULL;
}

static bool part_accepts(const struct part *p, const struct msg_take_reply *m,
                         const struct shared *s) {
    if (m->state != TAKE_COPY)
        return true;
    uint64_t need = (p->hi - p->lo) * TENSOR_ELEM_BYTES;
    return s != NULL && need <= s->segment.bytes && m->offset_bytes <= s->segment.bytes - need;
}

void takes_reply(struct takes *t, uint32_t rank, const struct msg_take_reply *m,
                 struct shared *segment) {
    struct take *take = takes_find(t, m->number);
    struct part *p = take != NULL ? take_part(take, rank) : NULL;
    if (p == NULL) {
        /* Let go of before it was answered. */
        struct msg_take_release release = {.session = t->session, .number = m->number};
        if (m->state == TAKE_COPY || m->state == TAKE_HELD)
            world_send(t->world, rank, MSG_TAKE_RELEASE, &release);
        return;
    }
    if (!p->pending || m->try != p->try || take->epoch != m->epoch || take->phase == TAKE_READY)
        return; /* late, or twice */
    if (m->state == TAKE_HELD)
        return;
    if (m->state > TAKE_FAILED || !part_accepts(p, m, segment)) {
        log_error("rank %u: take %llu: the answer does not fit the question", rank,
                  (unsigned long long)m->number);
        take_over(t, take, EIO);
        return;
    }
    p->pending = false;
    p->state = (enum take_state)m->state;
    p->gen = m->gen;
    p->step = m->step;
    part_drop(p);
    if (m->state == TAKE_FAILED) {
        take_over(t, take, m->code != 0 && m->code < 4096 ? (int)m->code : EIO);
        return;
    }
    if (m->state == TAKE_COPY) {
        p->segment = shared_get(segment);
        p->data = segment->segment.base + m->offset_bytes;
    }
    for (uint32_t i = 0; i < take->part_count; i++)
        if (take->parts[i].pending)
            return;
    take_decide(t, take);
}

/* ---- users */

/* One in flight that nobody can know to be old, or a ready one that nothing can have overtaken. */
static struct take *takes_find_joinable(const struct takes *t, enum array array, uint32_t tensor) {
    for (struct take *take = t->all; take != NULL; take = take->next) {
        if (take->array != array || take->tensor != tensor)
            continue;
        if (take->phase == TAKE_READY
                ? take_is_current(t, take)
                : take->phase == TAKE_WORLD || take->knowledge == t->knowledge)
            return take;
    }
    return NULL;
}

int takes_join(struct takes *t, enum array array, uint32_t tensor, struct take_user *u,
               bool *ready) {
    struct take *take = takes_find_joinable(t, array, tensor);
    if (take != NULL) {
        user_link(take, u);
        *ready = take->phase == TAKE_READY;
        if (*ready)
            u->done = NULL;
        return 0;
    }
    struct model *model = world_model(t->world);
    if (model == NULL || tensor >= model_layout(model)->tensor_count)
        return -EIO;
    uint64_t bytes = model_tensor_bytes(model, tensor);
    int rc = takes_charge(t, take_cost(bytes));
    if (rc != 0)
        return rc;
    take = calloc(1, sizeof(*take));
    if (take == NULL) {
        takes_discharge(t, take_cost(bytes));
        return -ENOMEM;
    }
    *take = (struct take){.next = t->all,
                          .link = &t->all,
                          .number = t->next_number++,
                          .array = array,
                          .tensor = tensor,
                          .bytes = bytes,
                          .since_ns = clock_now()};
    if (t->all != NULL)
        t->all->link = &take->next;
    t->all = take;
    user_link(take, u);
    /* What has no owner is ready, or over, at once: the caller hears of it from this call. */
    void (*done)(struct take_user *, int) = u->done;
    u->done = NULL;
    if (world_is_complete(t->world))
        take_begin(t, take);
    *ready = u->take != NULL && u->take->phase == TAKE_READY;
    if (!*ready)
        u->done = done;
    return u->take != NULL ? 0 : -EIO;
}

void takes_leave(struct takes *t, struct take_user *u) {
    struct take *take = u->take;
    if (take == NULL)
        return;
    user_unlink(u);
    if (take->users == NULL && !take_is_current(t, take))
        take_free(t, take);
}

struct take_version take_version(const struct take *take) {
    return (struct take_version){.epoch = take->epoch, .gen = take->gen, .step = take->step};
}

void take_gather(const struct take *take, uint64_t at_bytes, struct gather *g) {
    for (uint32_t i = 0; i < take->part_count; i++) {
        const struct part *p = &take->parts[i];
        gather_add(g, at_bytes + p->tensor_offset_elems * TENSOR_ELEM_BYTES, p->data,
                   (p->hi - p->lo) * TENSOR_ELEM_BYTES);
    }
}

/* ---- the world */

void takes_world(struct takes *t) {
    for (struct take *take = t->all, *next; take != NULL; take = next) {
        next = take->next;
        if (take->phase == TAKE_WORLD)
            take_begin(t, take);
    }
}

static bool take_in_flight(const struct take *take) {
    return take->phase == TAKE_ASKING || take->phase == TAKE_FIXING;
}

void takes_lost(struct takes *t, uint64_t epoch, uint32_t rank) {
    for (struct take *take = t->all, *next; take != NULL; take = next) {
        next = take->next;
        if (take_in_flight(take) && take->epoch == epoch &&
            (take_part(take, rank) != NULL || (rank == 0 && take->phase == TAKE_FIXING)))
            take_over(t, take, EIO);
    }
    takes_evict(t, false);
}

/* What it answered stays good, but nobody knows whether it was connected when the agenda fixed a
 * take: that one starts over. */
void takes_replaced(struct takes *t, uint32_t rank) {
    for (struct take *take = t->all; take != NULL; take = take->next) {
        struct part *p = take_part(take, rank);
        bool fixing = take->phase == TAKE_FIXING && (p != NULL || rank == 0);
        if (fixing) {
            /* Under a new number: the old one may still stand on an agenda, and would be copied
             * once more into memory that is shown by then. */
            take_release(t, take);
            take->number = t->next_number++;
            take->phase = TAKE_ASKING;
        }
        for (uint32_t i = 0; fixing && i < take->part_count; i++)
            part_ask(t, take, &take->parts[i], 0);
        if (!fixing && take->phase == TAKE_ASKING && p != NULL && p->pending)
            part_ask(t, take, p, p->want_gen);
    }
}

void takes_world_changed(struct takes *t) {
    t->newest_gen = 0;
    for (struct take *take = t->all, *next; take != NULL; take = next) {
        next = take->next;
        if (take_in_flight(take) &&
            (take->epoch != world_epoch(t->world) || !world_is_complete(t->world)))
            take_over(t, take, EIO);
    }
    takes_evict(t, false);
}

/* ---- time */

bool takes_waiting(const struct takes *t) {
    for (const struct take *take = t->all; take != NULL; take = take->next)
        if (take->phase != TAKE_READY)
            return true;
    return false;
}

/* The last moment at which somebody it waits for was seen alive: the most silent one counts. */
static uint64_t take_oldest_sign(const struct takes *t, const struct take *take) {
    uint64_t oldest = UINT64_MAX;
    if (take->phase == TAKE_WORLD)
        return take->since_ns;
    for (uint32_t i = 0; i < take->part_count; i++) {
        uint64_t alive = world_alive_ns(t->world, take->parts[i].rank);
        if (take->parts[i].pending && alive < oldest)
            oldest = alive;
    }
    uint64_t first = take->phase == TAKE_FIXING ? world_alive_ns(t->world, 0) : oldest;
    oldest = first < oldest ? first : oldest;
    return oldest > take->since_ns ? oldest : take->since_ns;
}

void takes_tick(struct takes *t, uint64_t now_ns) {
    for (struct take *take = t->all, *next; take != NULL; take = next) {
        next = take->next;
        if (take->phase == TAKE_READY)
            continue;
        uint64_t sign = take_oldest_sign(t, take);
        if (now_ns > sign && now_ns - sign >= t->timeout_ns)
            take_over(t, take, ETIMEDOUT);
    }
}
