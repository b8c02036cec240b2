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
    struct hold *holds;  /* HOLD_WAITING and HOLD_OWED */
};

enum { GROUP_STATE, GROUP_GRADS, GROUPS_PER_UNIT };

struct arrays {
    uint32_t unit_count;
    struct group *groups; /* [unit][GROUPS_PER_UNIT] */
    float **shards;       /* [unit][ARRAY_COUNT] */
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
    a->shard_valid_elems = calloc(units + 1, sizeof(*a->shard_valid_elems));
    if (a->wake_fd < 0 || a->groups == NULL || a->shards == NULL || a->shard_valid_elems == NULL) {
        if (a->wake_fd >= 0)
            close(a->wake_fd);
        free(a->groups);
        free(a->shards);
        free(a->shard_valid_elems);
        free(a);
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
    close(a->wake_fd);
    free(a->groups);
    free(a->shards);
    free(a->shard_valid_elems);
    free(a);
}

void arrays_set_shard(struct arrays *a, enum array array, uint32_t unit, float *shard) {
    a->shards[unit * ARRAY_COUNT + array] = shard;
}

float *arrays_shard(const struct arrays *a, enum array array, uint32_t unit) {
    return a->shards[unit * ARRAY_COUNT + array];
}

int arrays_wake_fd(const struct arrays *a) { return a->wake_fd; }

static void arrays_wake(const struct arrays *a) {
    uint64_t one = 1;
    ssize_t n = write(a->wake_fd, &one, sizeof(one));
    (void)n; /* EAGAIN: the counter is full, so it is readable */
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

static void hold_copy(const struct arrays *a, const struct group *g, struct hold *h) {
    assert(g->valid && !g->writing);
    if (h->hi > h->lo)
        memcpy(h->dst, arrays_shard(a, h->array, h->unit) + h->lo,
               (h->hi - h->lo) * TENSOR_ELEM_BYTES);
    h->result = HOLD_COPIED;
    h->gen = g->gen;
    h->step = g->step;
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

struct hold *arrays_next_done(struct arrays *a) {
    pthread_mutex_lock(&a->done_lock);
    struct hold *h = a->done_first;
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

static void hold_result_none(const struct group *g, struct hold *h, enum hold_result result) {
    h->result = result;
    h->gen = g->gen;
    h->step = g->step;
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

/* Makes all owed copies of the group, then marks it as being overwritten. */
static void group_begin(struct arrays *a, struct group *g) {
    bool finished = false;
    group_lock_writer(g);
    for (struct hold *h = g->holds, *next; h != NULL; h = next) {
        next = h->next;
        if (h->state != HOLD_OWED)
            continue;
        hold_copy(a, g, h);
        hold_unlink(a, h);
        hold_finish(a, h);
        finished = true;
    }
    g->writing = true;
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
    for (struct hold *h = g->holds, *next; h != NULL; h = next) {
        next = h->next;
        if (h->state != HOLD_WAITING || (h->want_gen > gen))
            continue;
        wake = true;
        hold_unlink(a, h);
        if (h->want_gen == 0 || h->want_gen == gen) {
            hold_link(a, g, h, HOLD_OWED);
        } else {
            hold_result_none(g, h, HOLD_PASSED);
            hold_finish(a, h);
        }
    }
    pthread_mutex_unlock(&g->lock);
    if (wake)
        arrays_wake(a);
}

void arrays_state_begin(struct arrays *a, uint32_t unit) {
    group_begin(a, group_of(a, ARRAY_PARAMS, unit));
}
void arrays_state_end(struct arrays *a, uint32_t unit, uint64_t gen, uint64_t step) {
    group_publish(a, group_of(a, ARRAY_PARAMS, unit), gen, step);
}
void arrays_grads_begin(struct arrays *a, uint32_t unit) {
    group_begin(a, group_of(a, ARRAY_GRADS, unit));
}
void arrays_grads_end(struct arrays *a, uint32_t unit, uint64_t gen, uint64_t step) {
    group_publish(a, group_of(a, ARRAY_GRADS, unit), gen, step);
}

void arrays_grads_none(struct arrays *a) {
    for (uint32_t u = 0; u < a->unit_count; u++) {
        struct group *g = group_of(a, ARRAY_GRADS, u);
        group_begin(a, g);
        group_lock_writer(g);
        g->writing = false;
        g->valid = false;
        /* Nothing is under way: a reader who waits would wait for ever in a paused run. */
        for (struct hold *h = g->holds, *next; h != NULL; h = next) {
            next = h->next;
            hold_unlink(a, h);
            hold_result_none(g, h, HOLD_NONE);
            hold_finish(a, h);
        }
        pthread_mutex_unlock(&g->lock);
    }
    arrays_wake(a);
}

bool arrays_take(struct arrays *a, struct hold *h) {
    struct group *g = group_of(a, h->array, h->unit);
    assert(h->state == HOLD_IDLE);
    bool done = true;
    group_lock_reader(g);
    if (!g->valid && !g->writing && h->want_gen <= g->gen) {
        hold_result_none(g, h, HOLD_NONE);
    } else if (h->want_gen != 0 &&
               (h->want_gen < g->gen || (h->want_gen == g->gen && g->writing))) {
        hold_result_none(g, h, HOLD_PASSED);
    } else if (!g->valid || g->writing || (h->want_gen != 0 && h->want_gen != g->gen)) {
        /* A version that another rank has already will be here too, though it may not be under way
         * yet. */
        hold_link(a, g, h, HOLD_WAITING);
        done = false;
    } else {
        hold_copy(a, g, h);
    }
    if (done)
        h->state = HOLD_DONE;
    pthread_mutex_unlock(&g->lock);
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
            hold_link(a, g, h, HOLD_OWED);
        } else {
            hold_result_none(g, h, HOLD_NONE);
            hold_finish(a, h);
        }
    }
    pthread_mutex_unlock(&g->lock);
    arrays_wake(a);
}

void arrays_cancel(struct arrays *a, struct hold *h) {
    struct group *g = group_of(a, h->array, h->unit);
    group_lock_reader(g);
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
}

static bool group_serve(struct arrays *a, struct group *g) {
    bool copied = false;
    group_lock_reader(g);
    for (struct hold *h = g->holds; h != NULL && !copied; h = h->next) {
        if (h->state != HOLD_OWED || g->writing)
            continue;
        hold_copy(a, g, h);
        hold_unlink(a, h);
        hold_finish(a, h);
        copied = true;
    }
    pthread_mutex_unlock(&g->lock);
    return copied;
}

bool arrays_serve(struct arrays *a) {
    uint32_t count = a->unit_count * GROUPS_PER_UNIT;
    for (uint32_t i = 0; i < count && atomic_load(&a->owed_count) != 0; i++) {
        uint32_t at = (a->serve_cursor + i) % count;
        if (group_serve(a, &a->groups[at])) {
            a->serve_cursor = at;
            return true;
        }
    }
    return false;
}
