/* arrays.c - versions and owed copies of the sharded arrays; the state machine stands in arrays.h.
 */
#include "config.h"

#include "engine/arrays.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Arrays that change together: of one unit, under one lock, to one version. */
struct group {
    pthread_mutex_t lock;
    atomic_uint
        writers_waiting; /* the main thread wants the lock: the service thread lets it pass */
    bool valid;          /* there is content (grads: before the first step there is none) */
    bool writing;        /* content is being overwritten */
    uint64_t gen, step;  /* of the last write */
    uint64_t ticket;     /* of the last piece on the stage's stream that reads it, 0: none */
    struct hold *holds;  /* HOLD_WAITING and HOLD_OWED */
};

enum { GROUP_STATE, GROUP_GRADS, GROUPS_PER_UNIT };
/* What is read from elsewhere, or loaded there, in one go. */
enum { PIECE_ELEMS = 1 << 20 };

struct arrays {
    uint32_t unit_count;
    struct group *groups;     /* [unit][GROUPS_PER_UNIT] */
    float **shards;           /* [unit][ARRAY_COUNT] */
    struct array_home *homes; /* likewise */
    struct stage *stage;      /* NULL: no array lies in memory of a device */
    /* A version is there, so all above is settled. Before, the service thread has nothing to do,
     * and the trainer may still fail and take the stage away again. */
    atomic_bool published;
    struct dev_stream *writers[GROUPS_PER_UNIT];
    uint64_t *shard_valid_elems;
    atomic_uint owed_count;
    uint32_t serve_cursor; /* service thread: where arrays_serve goes on */
    pthread_mutex_t done_lock;
    struct hold *done_first, **done_last;
    int wake_fd;
};

static struct group *group_of(const struct arrays *a, enum array array, uint32_t unit) {
    return &a->groups[unit * GROUPS_PER_UNIT + (array == ARRAY_GRADS ? GROUP_GRADS : GROUP_STATE)];
}

static void arrays_free(struct arrays *a) {
    if (a->wake_fd >= 0)
        close(a->wake_fd);
    free(a->groups);
    free(a->shards);
    free(a->homes);
    free(a->shard_valid_elems);
    free(a);
}

int arrays_open(const struct layout *l, uint32_t rank, struct arrays **out, struct err *err) {
    struct arrays *a = calloc(1, sizeof(*a));
    if (a == NULL)
        return err_set(err, ENOMEM, "no memory for the table of arrays");
    size_t units = l->unit_count;
    a->unit_count = l->unit_count;
    a->done_last = &a->done_first;
    a->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    a->groups = calloc(units * GROUPS_PER_UNIT + 1, sizeof(*a->groups));
    a->shards = calloc(units * ARRAY_COUNT + 1, sizeof(*a->shards));
    a->homes = calloc(units * ARRAY_COUNT + 1, sizeof(*a->homes));
    a->shard_valid_elems = calloc(units + 1, sizeof(*a->shard_valid_elems));
    if (a->wake_fd < 0 || a->groups == NULL || a->shards == NULL || a->homes == NULL ||
        a->shard_valid_elems == NULL) {
        arrays_free(a);
        return err_set(err, ENOMEM, "no memory for the table of arrays");
    }
    pthread_mutex_init(&a->done_lock, NULL);
    for (size_t i = 0; i < units * GROUPS_PER_UNIT; i++)
        pthread_mutex_init(&a->groups[i].lock, NULL);
    for (uint32_t u = 0; u < l->unit_count; u++)
        a->shard_valid_elems[u] = layout_shard_valid(l, u, rank);
    *out = a;
    return 0;
}

void arrays_close(struct arrays *a) {
    if (a == NULL)
        return;
    for (size_t i = 0; i < (size_t)a->unit_count * GROUPS_PER_UNIT; i++)
        pthread_mutex_destroy(&a->groups[i].lock);
    pthread_mutex_destroy(&a->done_lock);
    arrays_free(a);
}

void arrays_set_shard(struct arrays *a, enum array array, uint32_t unit, float *shard) {
    a->shards[unit * ARRAY_COUNT + array] = shard;
}

float *arrays_shard(const struct arrays *a, enum array array, uint32_t unit) {
    return a->shards[unit * ARRAY_COUNT + array];
}

static struct array_home *home_of(const struct arrays *a, enum array array, uint32_t unit) {
    return &a->homes[unit * ARRAY_COUNT + array];
}

int arrays_wake_fd(const struct arrays *a) { return a->wake_fd; }

static void arrays_wake(const struct arrays *a) {
    uint64_t one = 1;
    ssize_t n = write(a->wake_fd, &one, sizeof(one));
    (void)n; /* EAGAIN: the counter is full, so it is readable */
}

static void arrays_stage_wake(void *ctx) { arrays_wake(ctx); }

void arrays_set_stage(struct arrays *a, struct stage *stage, struct dev_stream *state_writer,
                      struct dev_stream *grads_writer) {
    a->writers[GROUP_STATE] = state_writer;
    a->writers[GROUP_GRADS] = grads_writer;
    for (size_t i = 0; i < (size_t)a->unit_count * ARRAY_COUNT; i++)
        a->homes[i].place = ARRAY_IN_DEVICE;
    stage_set_wake(stage, arrays_stage_wake, a);
    a->stage = stage;
}

void arrays_set_home(struct arrays *a, enum array array, uint32_t unit,
                     const struct array_home *home) {
    assert(home->place != ARRAY_IN_DEVICE || a->stage != NULL);
    assert(home->place != ARRAY_ELSEWHERE || home->read != NULL);
    *home_of(a, array, unit) = *home;
}

/* ---- holds; the group's lock is held */

static void hold_link(struct arrays *a, struct group *g, struct hold *h, enum hold_state state) {
    h->state = state;
    h->next = g->holds;
    h->prev = &g->holds;
    if (g->holds != NULL)
        g->holds->prev = &h->next;
    g->holds = h;
    if (state == HOLD_OWED)
        atomic_fetch_add(&a->owed_count, 1);
}

static void hold_unlink(struct arrays *a, struct hold *h) {
    if (h->state == HOLD_OWED)
        atomic_fetch_sub(&a->owed_count, 1);
    *h->prev = h->next;
    if (h->next != NULL)
        h->next->prev = h->prev;
    h->next = NULL;
    h->prev = NULL;
}

static void hold_result(const struct group *g, struct hold *h, enum hold_result result) {
    h->result = result;
    h->gen = g->gen;
    h->step = g->step;
}

/* From memory of the host. */
static void hold_copy(const struct arrays *a, const struct group *g, struct hold *h) {
    assert(g->valid);
    if (h->hi > h->lo)
        memcpy(h->dst, arrays_shard(a, h->array, h->unit) + h->lo,
               (h->hi - h->lo) * TENSOR_ELEM_BYTES);
    hold_result(g, h, HOLD_COPIED);
}

/* What is there is promised. */
static void hold_owe(struct arrays *a, struct group *g, struct hold *h) {
    assert(g->valid);
    h->read_elems = 0;
    if (home_of(a, h->array, h->unit)->place == ARRAY_IN_DEVICE)
        h->copy = (struct stage_copy){
            .src = (const uint8_t *)(arrays_shard(a, h->array, h->unit) + h->lo),
            .dst = h->dst,
            .bytes = (h->hi - h->lo) * TENSOR_ELEM_BYTES,
            .owner = h,
        };
    hold_link(a, g, h, HOLD_OWED);
}

/* Finished by somebody who is not its owner: handed out by arrays_next_done. */
static void hold_finish(struct arrays *a, struct hold *h) {
    h->state = HOLD_DONE;
    pthread_mutex_lock(&a->done_lock);
    h->done_next = NULL;
    h->done_prev = a->done_last;
    *a->done_last = h;
    a->done_last = &h->done_next;
    pthread_mutex_unlock(&a->done_lock);
}

/* ---- owed copies; the group's lock is held */

static void hold_end(struct arrays *a, const struct group *g, struct hold *h,
                     enum hold_result result) {
    hold_result(g, h, result);
    hold_unlink(a, h);
    hold_finish(a, h);
}

enum served { SERVED_NOTHING, SERVED_QUEUED, SERVED_COPIED };

/* One piece: between two the main thread may come and do the rest. */
static void hold_read(struct arrays *a, const struct group *g, struct hold *h) {
    const struct array_home *home = home_of(a, h->array, h->unit);
    uint64_t from = h->lo + h->read_elems, left = h->hi - from;
    uint64_t elems = left < PIECE_ELEMS ? left : PIECE_ELEMS;
    int rc = 0;
    if (elems > 0)
        rc = home->read(home->ctx, h->array, h->unit, from, from + elems,
                        h->dst + h->read_elems * TENSOR_ELEM_BYTES);
    h->read_elems += elems;
    if (rc != 0)
        h->code = EIO;
    if (rc != 0 || elems == left)
        hold_end(a, g, h, rc != 0 ? HOLD_FAILED : HOLD_COPIED);
}

static enum served hold_stage(struct arrays *a, struct group *g, struct hold *h, bool urgent) {
    uint64_t before = h->copy.ticket;
    bool all = stage_queue(a->stage, &h->copy, urgent);
    bool queued = h->copy.ticket != before;
    if (queued)
        g->ticket = h->copy.ticket;
    if (all) {
        hold_result(g, h, HOLD_COPIED);
        hold_unlink(a, h);
        h->state = HOLD_STAGED;
    }
    return all || queued ? SERVED_QUEUED : SERVED_NOTHING;
}

/* Goes on with an owed copy. SERVED_NOTHING: the ring has no room. */
static enum served hold_serve(struct arrays *a, struct group *g, struct hold *h, bool urgent) {
    switch (home_of(a, h->array, h->unit)->place) {
    case ARRAY_IN_DEVICE:
        return hold_stage(a, g, h, urgent);
    case ARRAY_ELSEWHERE:
        hold_read(a, g, h);
        return SERVED_COPIED;
    case ARRAY_IN_HOST:
        break;
    }
    hold_copy(a, g, h);
    hold_unlink(a, h);
    hold_finish(a, h);
    return SERVED_COPIED;
}

static struct hold *group_first_owed(const struct group *g) {
    struct hold *h = g->holds;
    while (h != NULL && h->state != HOLD_OWED)
        h = h->next;
    return h;
}

/* ---- the group's lock */

/* The main thread. Mutexes are not fair: without the announcement a service thread that copies for
 * many readers could take the lock again and again before a waiting writer runs. */
static void group_lock_writer(struct group *g) {
    atomic_fetch_add(&g->writers_waiting, 1);
    pthread_mutex_lock(&g->lock);
    atomic_fetch_sub(&g->writers_waiting, 1);
}

static void group_lock_reader(struct group *g) {
    while (atomic_load(&g->writers_waiting) != 0)
        sched_yield();
    pthread_mutex_lock(&g->lock);
}

/* From here on the group is being written, for all who come. Nothing is written before all owed
 * copies are made or queued: without the lock while the ring has no room, so that the service
 * thread is not kept from other things, among them from making room. writer NULL: nothing will be
 * written before the next begin. */
static void group_begin(struct arrays *a, struct group *g, struct dev_stream *writer) {
    group_lock_writer(g);
    g->writing = true;
    struct hold *h = group_first_owed(g);
    bool finished = h != NULL, hurry = finished && a->stage != NULL;
    if (hurry)
        stage_hurry(a->stage, true);
    for (; h != NULL; h = group_first_owed(g)) {
        if (hold_serve(a, g, h, true) != SERVED_NOTHING)
            continue;
        pthread_mutex_unlock(&g->lock);
        stage_make_room(a->stage);
        group_lock_writer(g);
    }
    if (hurry)
        stage_hurry(a->stage, false);
    if (g->ticket != 0 && writer != NULL) {
        stage_fence(a->stage, g->ticket, writer);
        g->ticket = 0;
    }
    pthread_mutex_unlock(&g->lock);
    if (finished)
        arrays_wake(a);
}

/* New content: what waited for it becomes owed, what waited for an older version has missed it. */
static void group_publish(struct arrays *a, struct group *g, uint64_t gen, uint64_t step) {
    bool wake = false;
    group_lock_writer(g);
    g->writing = false;
    g->valid = true;
    g->gen = gen;
    g->step = step;
    atomic_store(&a->published, true);
    for (struct hold *h = g->holds, *next; h != NULL; h = next) {
        next = h->next;
        if (h->state != HOLD_WAITING || (h->want_gen > gen))
            continue;
        wake = true;
        if (h->want_gen != 0 && h->want_gen != gen) {
            hold_end(a, g, h, HOLD_PASSED);
            continue;
        }
        hold_unlink(a, h);
        hold_owe(a, g, h);
    }
    pthread_mutex_unlock(&g->lock);
    if (wake)
        arrays_wake(a);
}

void arrays_state_begin(struct arrays *a, uint32_t unit) {
    group_begin(a, group_of(a, ARRAY_PARAMS, unit), a->writers[GROUP_STATE]);
}
void arrays_state_end(struct arrays *a, uint32_t unit, uint64_t gen, uint64_t step) {
    group_publish(a, group_of(a, ARRAY_PARAMS, unit), gen, step);
}
void arrays_grads_begin(struct arrays *a, uint32_t unit) {
    group_begin(a, group_of(a, ARRAY_GRADS, unit), a->writers[GROUP_GRADS]);
}
void arrays_grads_end(struct arrays *a, uint32_t unit, uint64_t gen, uint64_t step) {
    group_publish(a, group_of(a, ARRAY_GRADS, unit), gen, step);
}

void arrays_grads_none(struct arrays *a) {
    for (uint32_t u = 0; u < a->unit_count; u++) {
        struct group *g = group_of(a, ARRAY_GRADS, u);
        group_begin(a, g, NULL);
        group_lock_writer(g);
        g->writing = false;
        g->valid = false;
        /* Nothing is under way: a reader who waits would wait for ever in a paused run. */
        for (struct hold *h = g->holds, *next; h != NULL; h = next) {
            next = h->next;
            hold_end(a, g, h, HOLD_NONE);
        }
        pthread_mutex_unlock(&g->lock);
    }
    arrays_wake(a);
}

/* The main thread has the memory to itself: it is between begin and end. */
struct load {
    struct arrays *arrays;
    enum array array;
    uint32_t unit;
    uint64_t lo;
    int (*fill)(void *ctx, uint64_t from, uint64_t elems, float *to);
    void *ctx;
};

static int load_fill(void *ctx, size_t offset, size_t bytes, void *to) {
    const struct load *l = ctx;
    return l->fill(l->ctx, l->lo + offset / TENSOR_ELEM_BYTES, bytes / TENSOR_ELEM_BYTES, to);
}

static int load_elsewhere(const struct load *l, uint64_t hi, struct err *err) {
    const struct array_home *home = home_of(l->arrays, l->array, l->unit);
    float *piece = home->write != NULL ? malloc(PIECE_ELEMS * sizeof(*piece)) : NULL;
    int rc = 0, filled = 0;
    if (piece == NULL)
        return err_set(err, home->write == NULL ? ENOTSUP : ENOMEM, "%s can't be loaded: %s",
                       array_names[l->array],
                       home->write == NULL ? "it is read only where it rests" : "no memory");
    for (uint64_t at = l->lo; at < hi && rc == 0 && filled == 0; at += PIECE_ELEMS) {
        uint64_t elems = hi - at < PIECE_ELEMS ? hi - at : PIECE_ELEMS;
        filled = l->fill(l->ctx, at, elems, piece);
        if (filled == 0)
            rc = home->write(home->ctx, l->array, l->unit, at, at + elems, piece);
    }
    free(piece);
    return rc == 0 ? filled
                   : err_set(err, -rc, "%s can't be written where it rests: %s",
                             array_names[l->array], err_name(-rc));
}

int arrays_load(struct arrays *a, enum array array, uint32_t unit, uint64_t lo, uint64_t hi,
                int (*fill)(void *ctx, uint64_t from, uint64_t elems, float *to), void *ctx,
                struct err *err) {
    struct load l = {.arrays = a, .array = array, .unit = unit, .lo = lo, .fill = fill, .ctx = ctx};
    assert(group_of(a, array, unit)->writing);
    if (lo == hi)
        return 0;
    float *shard = arrays_shard(a, array, unit);
    switch (home_of(a, array, unit)->place) {
    case ARRAY_IN_HOST:
        return fill(ctx, lo, hi - lo, shard + lo);
    case ARRAY_IN_DEVICE:
        return stage_upload(a->stage, shard + lo, (hi - lo) * TENSOR_ELEM_BYTES, load_fill, &l,
                            err);
    case ARRAY_ELSEWHERE:
        return load_elsewhere(&l, hi, err);
    }
    return -EINVAL;
}

/* ---- holds, from outside */

bool arrays_take(struct arrays *a, struct hold *h) {
    struct group *g = group_of(a, h->array, h->unit);
    assert(h->state == HOLD_IDLE);
    bool done = true, owed = false;
    group_lock_reader(g);
    if (!g->valid && !g->writing && h->want_gen <= g->gen) {
        hold_result(g, h, HOLD_NONE);
    } else if (h->want_gen != 0 &&
               (h->want_gen < g->gen || (h->want_gen == g->gen && g->writing))) {
        hold_result(g, h, HOLD_PASSED);
    } else if (!g->valid || g->writing || (h->want_gen != 0 && h->want_gen != g->gen)) {
        /* A version that another rank has already will be here too, though it may not be under way
         * yet. */
        hold_link(a, g, h, HOLD_WAITING);
        done = false;
    } else if (home_of(a, h->array, h->unit)->place != ARRAY_IN_HOST && h->hi > h->lo) {
        hold_owe(a, g, h);
        done = false;
        owed = true;
    } else {
        hold_copy(a, g, h);
    }
    if (done)
        h->state = HOLD_DONE;
    pthread_mutex_unlock(&g->lock);
    if (owed)
        arrays_wake(a);
    return done;
}

void arrays_fix(struct arrays *a, struct hold *h) {
    struct group *g = group_of(a, h->array, h->unit);
    group_lock_writer(g);
    assert(!g->writing); /* at a boundary nothing is being written */
    if (h->state == HOLD_WAITING)
        hold_unlink(a, h);
    if (h->state == HOLD_IDLE || h->state == HOLD_WAITING) {
        if (g->valid) {
            hold_owe(a, g, h);
        } else {
            hold_result(g, h, HOLD_NONE);
            hold_finish(a, h);
        }
    }
    pthread_mutex_unlock(&g->lock);
    arrays_wake(a);
}

void arrays_cancel(struct arrays *a, struct hold *h) {
    struct group *g = group_of(a, h->array, h->unit);
    group_lock_reader(g);
    bool staged =
        h->state == HOLD_STAGED ||
        (h->state == HOLD_OWED && home_of(a, h->array, h->unit)->place == ARRAY_IN_DEVICE);
    if (h->state == HOLD_WAITING || h->state == HOLD_OWED)
        hold_unlink(a, h);
    pthread_mutex_lock(&a->done_lock);
    if (h->done_prev != NULL) {
        *h->done_prev = h->done_next;
        if (h->done_next != NULL)
            h->done_next->done_prev = h->done_prev;
        else
            a->done_last = h->done_prev;
        h->done_next = NULL;
        h->done_prev = NULL;
    }
    pthread_mutex_unlock(&a->done_lock);
    h->state = HOLD_IDLE;
    pthread_mutex_unlock(&g->lock);
    /* Now nobody queues more of it. */
    if (staged)
        stage_cancel(a->stage, &h->copy);
}

/* *full: the ring of the stage has no room. */
static enum served group_serve(struct arrays *a, struct group *g, bool *full) {
    enum served served = SERVED_NOTHING;
    group_lock_reader(g);
    struct hold *h = group_first_owed(g); /* which is none once a write has begun */
    if (h != NULL) {
        served = hold_serve(a, g, h, false);
        *full = served == SERVED_NOTHING;
    }
    pthread_mutex_unlock(&g->lock);
    return served;
}

/* In turn, so that a small copy is not behind all of a large take. */
static enum served arrays_serve_owed(struct arrays *a) {
    uint32_t count = a->unit_count * GROUPS_PER_UNIT;
    bool full = false;
    for (uint32_t i = 0; i < count && !full && atomic_load(&a->owed_count) != 0; i++) {
        uint32_t at = (a->serve_cursor + i) % count;
        enum served served = group_serve(a, &a->groups[at], &full);
        if (served != SERVED_NOTHING) {
            a->serve_cursor = at + 1;
            return served;
        }
    }
    return SERVED_NOTHING;
}

/* For the service thread. */
static struct stage *arrays_stage(const struct arrays *a) {
    return atomic_load(&a->published) ? a->stage : NULL;
}

bool arrays_serve(struct arrays *a) {
    struct stage *stage = arrays_stage(a);
    enum served served;
    bool queued = false;
    /* What can be queued is, before anything is waited for. */
    while ((served = arrays_serve_owed(a)) == SERVED_QUEUED)
        queued = true;
    bool drained = stage != NULL && stage_drain(stage);
    return drained || queued || served == SERVED_COPIED;
}

static struct hold *arrays_next_staged(struct arrays *a) {
    struct stage *stage = arrays_stage(a);
    struct stage_copy *c = stage != NULL ? stage_next_finished(stage) : NULL;
    if (c == NULL)
        return NULL;
    struct hold *h = c->owner;
    struct group *g = group_of(a, h->array, h->unit);
    group_lock_reader(g);
    assert(h->state == HOLD_STAGED);
    h->state = HOLD_DONE;
    if (c->rc != 0) {
        h->result = HOLD_FAILED;
        h->code = EIO;
    }
    pthread_mutex_unlock(&g->lock);
    return h;
}

struct hold *arrays_next_done(struct arrays *a) {
    struct hold *h = arrays_next_staged(a);
    if (h != NULL)
        return h;
    pthread_mutex_lock(&a->done_lock);
    h = a->done_first;
    if (h != NULL) {
        a->done_first = h->done_next;
        if (h->done_next != NULL)
            h->done_next->done_prev = &a->done_first;
        else
            a->done_last = &a->done_first;
        h->done_next = NULL;
        h->done_prev = NULL;
    }
    pthread_mutex_unlock(&a->done_lock);
    return h;
}

int arrays_failed(const struct arrays *a, struct err *err) {
    struct stage *stage = arrays_stage(a);
    return stage != NULL ? stage_failed(stage, err) : 0;
}
