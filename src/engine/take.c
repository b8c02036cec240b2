/* take.c - one hold, one piece of pool memory and one answer for each take. */
#include "config.h"

#include "engine/take.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "engine/pool.h"

enum { TAKES_BUCKETS = 1024, TAKES_MAX_SEGMENT_IDS = 4096 };

struct take {
    struct hold_owner owner; /* first: a hold's owner points here */
    struct take *next;
    uint64_t session, number, try;
    struct hold hold;
    struct pool_part part;
    bool answered; /* the newest try has its last answer: the hold is in nobody's hands */
};

struct takes {
    struct arrays *arrays;
    const struct layout *layout;
    uint32_t rank;
    uint64_t epoch;
    struct pool *pool;
    struct link *daemon;
    uint64_t session;
    uint8_t *segment_sent; /* by segment id: the daemon of this session has its descriptor */
    bool segments_shown;   /* any */
    /* The buckets, and who has the hold of a take in hand: the main thread fixes while the service
     * thread asks again or answers. */
    pthread_mutex_t lock;
    struct take *buckets[TAKES_BUCKETS];
};

/* The first reader should not pay for touching fresh memory. */
static void takes_warm(struct takes *t) {
    struct pool_part warm;
    if (pool_get(t->pool, 1, &warm) == 0)
        pool_put(t->pool, &warm);
}

struct takes *takes_open(struct arrays *a, const struct layout *l, uint32_t rank, uint64_t epoch,
                         size_t limit_bytes) {
    struct takes *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return NULL;
    t->arrays = a;
    t->layout = l;
    t->rank = rank;
    t->epoch = epoch;
    t->pool = pool_open(limit_bytes);
    t->segment_sent = calloc(TAKES_MAX_SEGMENT_IDS, 1);
    if (t->pool == NULL || t->segment_sent == NULL) {
        pool_close(t->pool);
        free(t->segment_sent);
        free(t);
        return NULL;
    }
    pthread_mutex_init(&t->lock, NULL);
    takes_warm(t);
    return t;
}

void takes_set_limit(struct takes *t, size_t limit_bytes) { pool_set_limit(t->pool, limit_bytes); }

static struct take **takes_slot(struct takes *t, uint64_t session, uint64_t number) {
    struct take **at = &t->buckets[(number ^ session * 0x9e3779b97f4a7c15ull) % TAKES_BUCKETS];
    while (*at != NULL && ((*at)->session != session || (*at)->number != number))
        at = &(*at)->next;
    return at;
}

static void take_free(struct takes *t, struct take *k) {
    arrays_cancel(t->arrays, &k->hold);
    pool_put(t->pool, &k->part);
    free(k);
}

static void takes_drop_all(struct takes *t) {
    for (size_t b = 0; b < TAKES_BUCKETS; b++) {
        pthread_mutex_lock(&t->lock);
        struct take *k = t->buckets[b];
        t->buckets[b] = NULL;
        pthread_mutex_unlock(&t->lock);
        while (k != NULL) {
            struct take *next = k->next;
            take_free(t, k);
            k = next;
        }
    }
}

void takes_close(struct takes *t) {
    if (t == NULL)
        return;
    takes_drop_all(t);
    pthread_mutex_destroy(&t->lock);
    pool_close(t->pool);
    free(t->segment_sent);
    free(t);
}

void takes_set_daemon(struct takes *t, struct link *daemon, uint64_t session) {
    takes_drop_all(t);
    /* A daemon whose link was lost may live on and serve what it was given: memory that it has seen
     * is never written again. */
    if (t->segments_shown) {
        pool_forget(t->pool);
        takes_warm(t);
        memset(t->segment_sent, 0, TAKES_MAX_SEGMENT_IDS);
        t->segments_shown = false;
    }
    t->daemon = daemon;
    t->session = session;
}

static int takes_reply(struct takes *t, const struct take *k, enum take_state state, int code) {
    struct msg_take_reply r = {.session = k->session,
                               .number = k->number,
                               .try = k->try,
                               .epoch = t->epoch,
                               .state = state,
                               .code = (uint32_t)code};
    int fd = -1;
    if (state != TAKE_HELD) { /* a hold that waits is the main thread's */
        r.gen = k->hold.gen;
        r.step = k->hold.step;
    }
    if (state == TAKE_COPY) {
        r.offset_bytes = k->part.offset_bytes;
        r.segment = k->part.segment;
        r.segment_bytes = k->part.segment_bytes;
        if (r.segment >= TAKES_MAX_SEGMENT_IDS || !t->segment_sent[r.segment])
            fd = k->part.fd;
    }
    if (t->daemon == NULL)
        return 0;
    t->segments_shown = t->segments_shown || fd >= 0;
    int rc = msg_send(t->daemon, MSG_TAKE_REPLY, 0, &r, &fd, fd >= 0 ? 1 : 0);
    if (rc == 0 && fd >= 0 && r.segment < TAKES_MAX_SEGMENT_IDS)
        t->segment_sent[r.segment] = 1;
    return rc;
}

static int takes_reply_done(struct takes *t, struct take *k) {
    static const enum take_state states[] = {
        [HOLD_COPIED] = TAKE_COPY,
        [HOLD_NONE] = TAKE_NONE,
        [HOLD_PASSED] = TAKE_PASSED,
        [HOLD_FAILED] = TAKE_FAILED,
    };
    k->answered = true;
    return takes_reply(t, k, states[k->hold.result],
                       k->hold.result == HOLD_FAILED ? k->hold.code : 0);
}

static int takes_refuse(struct takes *t, const struct msg_take *m, int code) {
    struct take k = {.session = m->session, .number = m->number, .try = m->try};
    return takes_reply(t, &k, TAKE_FAILED, code);
}

/* What a peer asks for must lie in what this rank has. */
static bool take_valid(const struct takes *t, const struct msg_take *m) {
    return m->array < ARRAY_COUNT && m->unit < t->layout->unit_count && m->lo <= m->hi &&
           m->hi <= layout_shard_valid(t->layout, m->unit, t->rank);
}

static int takes_create(struct takes *t, const struct msg_take *m, struct take **out) {
    struct take *k = calloc(1, sizeof(*k));
    if (k == NULL)
        return -ENOBUFS;
    int rc = pool_get(t->pool, (m->hi - m->lo) * TENSOR_ELEM_BYTES, &k->part);
    if (rc != 0) {
        free(k);
        return rc;
    }
    k->owner.kind = OWNER_TAKE;
    k->session = m->session;
    k->number = m->number;
    k->hold = (struct hold){.array = (enum array)m->array,
                            .unit = m->unit,
                            .lo = m->lo,
                            .hi = m->hi,
                            .dst = k->part.base,
                            .owner = &k->owner};
    pthread_mutex_lock(&t->lock);
    struct take **slot = takes_slot(t, m->session, m->number);
    k->next = *slot;
    *slot = k;
    pthread_mutex_unlock(&t->lock);
    *out = k;
    return 0;
}

int takes_request(struct takes *t, const struct msg_take *m) {
    if (m->session != t->session || m->epoch != t->epoch)
        return 0; /* stale: of a daemon or a world that is gone */
    if (!take_valid(t, m)) {
        log_warn(
            "the daemon asked for elements %llu to %llu of array %u of unit %u, which are not here",
            (unsigned long long)m->lo, (unsigned long long)m->hi, m->array, m->unit);
        return takes_refuse(t, m, EPROTO);
    }
    struct take *k = *takes_slot(t, m->session, m->number);
    if (k == NULL) {
        int rc = takes_create(t, m, &k);
        if (rc != 0)
            return takes_refuse(t, m, -rc);
    } else if (m->try <= k->try || k->hold.array != (enum array)m->array ||
               k->hold.unit != m->unit || k->hold.lo != m->lo || k->hold.hi != m->hi) {
        return 0; /* repeated or late: the newest try counts */
    }
    pthread_mutex_lock(&t->lock);
    arrays_cancel(t->arrays, &k->hold);
    k->try = m->try;
    k->hold.want_gen = m->want_gen;
    k->answered = false;
    int rc =
        arrays_take(t->arrays, &k->hold) ? takes_reply_done(t, k) : takes_reply(t, k, TAKE_HELD, 0);
    pthread_mutex_unlock(&t->lock);
    return rc;
}

int takes_finished(struct takes *t, struct hold *h) {
    pthread_mutex_lock(&t->lock);
    int rc = takes_reply_done(t, (struct take *)h->owner);
    pthread_mutex_unlock(&t->lock);
    return rc;
}

void takes_release(struct takes *t, uint64_t session, uint64_t number) {
    pthread_mutex_lock(&t->lock);
    struct take **slot = takes_slot(t, session, number);
    struct take *k = *slot;
    if (k != NULL)
        *slot = k->next;
    pthread_mutex_unlock(&t->lock);
    if (k != NULL)
        take_free(t, k);
}

void takes_fix(struct takes *t, uint64_t session, uint64_t number) {
    pthread_mutex_lock(&t->lock);
    struct take *k = *takes_slot(t, session, number);
    if (k != NULL) {
        /* What was answered is not what the others have: all copy again. */
        if (k->answered)
            k->hold.state = HOLD_IDLE;
        k->answered = false;
        arrays_fix(t->arrays, &k->hold);
    }
    pthread_mutex_unlock(&t->lock);
}

size_t takes_used_bytes(struct takes *t) { return pool_used_bytes(t->pool); }
