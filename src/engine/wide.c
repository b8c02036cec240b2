/* wide.c - dumps of this rank: memory, holds, and the thread that writes one to disk. */
#include "config.h"

#include "engine/wide.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/segment.h"
#include "engine/take.h"
#include "store/snapshot.h"

enum wide_state { WIDE_RESERVED, WIDE_FIXED, WIDE_COPIED, WIDE_FAILED };

struct wide {
    struct hold_owner owner; /* first: a hold's owner points here */
    struct wide *next;
    uint64_t take;
    uint32_t array_mask;
    bool keep, released;
    enum wide_state state;
    struct segment memory;
    struct hold *holds; /* one for each (array in the mask, unit) */
    uint32_t hold_count, left_count;
    uint64_t gen, step; /* of the boundary that fixed it */
};

/* What a writer thread works on; owned by it until `finished`. */
struct writer {
    struct wides *wides;
    struct wide *wide;
    pthread_t thread;
    struct msg_take_write order;
    char *train_state;
    atomic_bool cancel;
    atomic_bool finished;
};

struct wides {
    struct service *service;
    struct arrays *arrays;
    const struct layout *layout;
    uint32_t rank;
    uint64_t epoch;
    /* The list, and `released`, state and version of its members: the main thread fixes. Only the
     * service thread changes the list. */
    pthread_mutex_t lock;
    struct wide *list;
    struct segment spare;  /* memory of the last snapshot, for the next one */
    struct writer *writer; /* NULL: none runs */
    struct writer *next;   /* starts when the one that runs, which is cancelled, has ended */
    atomic_size_t used_bytes;
};

struct wides *wides_open(struct service *s, struct arrays *a, const struct layout *l, uint32_t rank,
                         uint64_t epoch) {
    struct wides *w = calloc(1, sizeof(*w));
    if (w == NULL)
        return NULL;
    w->service = s;
    w->arrays = a;
    w->layout = l;
    w->rank = rank;
    w->epoch = epoch;
    w->spare = SEGMENT_EMPTY;
    pthread_mutex_init(&w->lock, NULL);
    return w;
}

static enum wide_state wide_state(struct wides *w, const struct wide *x) {
    pthread_mutex_lock(&w->lock);
    enum wide_state state = x->state;
    pthread_mutex_unlock(&w->lock);
    return state;
}

static struct wide *wides_find(struct wides *w, uint64_t take) {
    struct wide *x = w->list;
    while (x != NULL && (x->take != take || x->released))
        x = x->next;
    return x;
}

/* Memory of a snapshot was never shown to the daemon, so it can be reused at once; memory of a pin
 * may still be mapped by readers and must not be written again. */
static void wide_free(struct wides *w, struct wide *x) {
    for (uint32_t i = 0; i < x->hold_count; i++)
        arrays_cancel(w->arrays, &x->holds[i]);
    free(x->holds);
    atomic_fetch_sub(&w->used_bytes, x->memory.bytes);
    if (x->keep && x->memory.base != NULL) {
        atomic_fetch_sub(&w->used_bytes, w->spare.bytes);
        segment_close(&w->spare);
        w->spare = x->memory;
        atomic_fetch_add(&w->used_bytes, w->spare.bytes);
    } else {
        segment_close(&x->memory);
    }
    free(x);
}

static void wides_unlink(struct wides *w, struct wide *x) {
    pthread_mutex_lock(&w->lock);
    for (struct wide **at = &w->list; *at != NULL; at = &(*at)->next) {
        if (*at == x) {
            *at = x->next;
            break;
        }
    }
    pthread_mutex_unlock(&w->lock);
}

static int wide_memory(struct wides *w, struct wide *x) {
    size_t bytes = layout_dump_bytes(w->layout, x->array_mask, w->rank);
    if (x->keep && w->spare.base != NULL && w->spare.bytes >= bytes) {
        x->memory = w->spare;
        w->spare = SEGMENT_EMPTY;
        return 0;
    }
    int rc =
        segment_create(x->keep ? "gatherfs-snapshot" : "gatherfs-pin", bytes, true, &x->memory);
    if (rc == 0)
        atomic_fetch_add(&w->used_bytes, x->memory.bytes);
    return rc;
}

static int wide_holds(struct wides *w, struct wide *x) {
    x->holds = calloc((size_t)ARRAY_COUNT * w->layout->unit_count + 1, sizeof(*x->holds));
    if (x->holds == NULL)
        return -ENOMEM;
    size_t offset = 0;
    for (uint32_t a = 0; a < ARRAY_COUNT; a++) {
        for (uint32_t u = 0; u < w->layout->unit_count && (x->array_mask & ARRAY_BIT(a)) != 0;
             u++) {
            struct hold *h = &x->holds[x->hold_count++];
            h->array = (enum array)a;
            h->unit = u;
            h->hi = layout_shard_valid(w->layout, u, w->rank);
            h->dst = x->memory.base + offset;
            h->owner = &x->owner;
            offset += h->hi * TENSOR_ELEM_BYTES;
        }
    }
    x->left_count = x->hold_count;
    return 0;
}

void wides_reserve(struct wides *w, const struct msg_take_reserve *m) {
    struct msg_take_reserved answer = {.take = m->take};
    if (wides_find(w, m->take) != NULL) {
        service_send(w->service, MSG_TAKE_RESERVED, &answer);
        return;
    }
    struct wide *x = calloc(1, sizeof(*x));
    int rc = -ENOMEM;
    if (x != NULL) {
        x->memory = SEGMENT_EMPTY;
        rc = (m->array_mask & ~ARRAY_MASK_ALL) == 0 && m->array_mask != 0 ? 0 : -EINVAL;
    }
    if (rc == 0) {
        x->owner.kind = OWNER_WIDE;
        x->take = m->take;
        x->array_mask = m->array_mask;
        x->keep = m->keep != 0;
        rc = wide_memory(w, x);
    }
    if (rc == 0)
        rc = wide_holds(w, x);
    if (rc == 0) {
        pthread_mutex_lock(&w->lock);
        x->next = w->list;
        w->list = x;
        pthread_mutex_unlock(&w->lock);
    } else if (x != NULL) {
        log_warn("no memory for take %llu of %llu bytes: %s", (unsigned long long)m->take,
                 (unsigned long long)layout_dump_bytes(w->layout, m->array_mask & ARRAY_MASK_ALL,
                                                       w->rank),
                 err_name(-rc));
        wide_free(w, x);
    }
    answer.code = rc == 0 ? 0 : ENOBUFS;
    service_send(w->service, MSG_TAKE_RESERVED, &answer);
}

void wides_fix(struct wides *w, uint64_t take, uint64_t gen, uint64_t step) {
    pthread_mutex_lock(&w->lock);
    struct wide *x = wides_find(w, take);
    if (x != NULL && x->state == WIDE_RESERVED) {
        x->state = WIDE_FIXED;
        x->gen = gen;
        x->step = step;
        for (uint32_t i = 0; i < x->hold_count; i++)
            arrays_fix(w->arrays, &x->holds[i]);
    }
    pthread_mutex_unlock(&w->lock);
}

static int wide_offer(struct wides *w, const struct wide *x, struct link *daemon) {
    struct msg_wide_segment m = {.take = x->take,
                                 .epoch = w->epoch,
                                 .gen = x->gen,
                                 .step = x->step,
                                 .array_mask = x->array_mask,
                                 .bytes = layout_dump_bytes(w->layout, x->array_mask, w->rank)};
    return daemon != NULL ? msg_send(daemon, MSG_WIDE_SEGMENT, 0, &m, &x->memory.fd, 1) : 0;
}

int wides_offer_all(struct wides *w, struct link *daemon) {
    int rc = 0;
    for (struct wide *x = w->list; x != NULL && rc == 0; x = x->next)
        if (!x->keep && !x->released && wide_state(w, x) == WIDE_COPIED)
            rc = wide_offer(w, x, daemon);
    return rc;
}

int wides_finished(struct wides *w, struct hold *h) {
    struct wide *x = (struct wide *)h->owner;
    /* An array without content (gradients right after a restore): the dump has zeros, never what
     * lay there before. */
    if (h->result == HOLD_NONE)
        memset(h->dst, 0, (h->hi - h->lo) * TENSOR_ELEM_BYTES);
    /* One array that can't be read is the end of the whole. Its release follows. */
    bool failed = h->result == HOLD_FAILED;
    x->left_count--;
    if (wide_state(w, x) == WIDE_FAILED || (x->left_count > 0 && !failed))
        return 0;
    pthread_mutex_lock(&w->lock);
    x->state = failed ? WIDE_FAILED : WIDE_COPIED;
    pthread_mutex_unlock(&w->lock);
    struct msg_take_done done = {
        .take = x->take, .gen = x->gen, .step = x->step, .code = failed ? (uint32_t)h->code : 0};
    service_send(w->service, MSG_TAKE_DONE, &done);
    return x->keep || failed ? 0 : wide_offer(w, x, service_daemon(w->service));
}

static void *writer_main(void *arg) {
    struct writer *r = arg;
    struct wides *w = r->wides;
    struct msg_take_written *m = calloc(1, sizeof(*m));
    struct err err = {0};
    char *entry = NULL;
    int rc = m == NULL ? -ENOMEM
                       : snapshot_write_rank(&store_io_posix, r->order.dir, w->layout, w->rank,
                                             r->wide->array_mask, r->wide->memory.base,
                                             r->order.snapshot, &r->cancel, NULL, &entry, &err);
    if (m != NULL) {
        m->take = r->order.take;
        m->code = (uint32_t)-rc;
        memcpy(m->text, err.text, sizeof(m->text));
        if (rc == 0) {
            m->entry = (struct blob){(const uint8_t *)entry, strlen(entry)};
            if (r->train_state != NULL)
                m->state = (struct blob){(const uint8_t *)r->train_state, strlen(r->train_state)};
        }
        service_send(w->service, MSG_TAKE_WRITTEN, m);
    }
    free(m);
    free(entry);
    atomic_store(&r->finished, true);
    service_wake(w->service);
    return NULL;
}

static void wides_write_failed(struct wides *w, uint64_t take, int code, const char *why) {
    struct msg_take_written *m = calloc(1, sizeof(*m));
    if (m == NULL)
        return;
    m->take = take;
    m->code = (uint32_t)code;
    strncpy(m->text, why, sizeof(m->text) - 1);
    service_send(w->service, MSG_TAKE_WRITTEN, m);
    free(m);
}

static void writer_free(struct writer *r) {
    if (r == NULL)
        return;
    free(r->train_state);
    free(r);
}

static struct writer *writer_new(struct wides *w, struct wide *x,
                                 const struct msg_take_write *order, const char *train_state) {
    struct writer *r = calloc(1, sizeof(*r));
    if (r == NULL)
        return NULL;
    r->wides = w;
    r->wide = x;
    r->order = *order;
    if (train_state != NULL && (r->train_state = strdup(train_state)) == NULL) {
        writer_free(r);
        return NULL;
    }
    return r;
}

static void writer_start(struct wides *w, struct writer *r) {
    int rc = pthread_create(&r->thread, NULL, writer_main, r);
    if (rc != 0) {
        wides_write_failed(w, r->order.take, rc, "the writer thread could not be started");
        writer_free(r);
        return;
    }
    w->writer = r;
}

void wides_write(struct wides *w, const struct msg_take_write *order, const char *train_state) {
    wides_reap(w);
    struct wide *x = wides_find(w, order->take);
    if (x == NULL || wide_state(w, x) != WIDE_COPIED) {
        wides_write_failed(w, order->take, ENOENT, "there is no such take");
        return;
    }
    if ((w->writer != NULL && w->writer->wide == x) || (w->next != NULL && w->next->wide == x))
        return; /* repeated */
    /* A cancelled writer may still be in its fsync: the next one waits for it. */
    if (w->writer != NULL && (!w->writer->wide->released || w->next != NULL)) {
        wides_write_failed(w, order->take, EBUSY, "another snapshot is being written");
        return;
    }
    struct writer *r = writer_new(w, x, order, train_state);
    if (r == NULL)
        wides_write_failed(w, order->take, ENOMEM, "no memory for the writer");
    else if (w->writer != NULL)
        w->next = r;
    else
        writer_start(w, r);
}

void wides_reap(struct wides *w) {
    struct writer *r = w->writer;
    if (r == NULL || !atomic_load(&r->finished))
        return;
    pthread_join(r->thread, NULL);
    struct wide *x = r->wide;
    writer_free(r);
    r = w->next;
    w->writer = w->next = NULL;
    if (x->released) {
        wides_unlink(w, x);
        wide_free(w, x);
    }
    if (r != NULL)
        writer_start(w, r);
}

int wides_release(struct wides *w, uint64_t take) {
    struct wide *x = wides_find(w, take);
    if (x == NULL)
        return 0;
    if (w->writer != NULL && w->writer->wide == x) {
        pthread_mutex_lock(&w->lock);
        x->released = true; /* freed when its writer has ended */
        pthread_mutex_unlock(&w->lock);
        w->writer->cancel = true;
        wides_reap(w);
        return 0;
    }
    if (w->next != NULL && w->next->wide == x) {
        writer_free(w->next);
        w->next = NULL;
    }
    struct link *daemon = service_daemon(w->service);
    int rc = 0;
    if (!x->keep && daemon != NULL && wide_state(w, x) == WIDE_COPIED) {
        struct msg_wide_gone gone = {.take = take};
        rc = msg_send(daemon, MSG_WIDE_GONE, 0, &gone, NULL, 0);
    }
    wides_unlink(w, x);
    wide_free(w, x);
    return rc;
}

bool wides_step(struct wides *w, uint64_t take, uint64_t *step) {
    struct wide *x = wides_find(w, take);
    if (x == NULL || wide_state(w, x) == WIDE_RESERVED)
        return false;
    *step = x->step;
    return true;
}

size_t wides_used_bytes(const struct wides *w) { return atomic_load(&w->used_bytes); }

void wides_close(struct wides *w) {
    if (w == NULL)
        return;
    if (w->writer != NULL) {
        w->writer->cancel = true;
        pthread_join(w->writer->thread, NULL);
        writer_free(w->writer);
    }
    writer_free(w->next);
    while (w->list != NULL) {
        struct wide *x = w->list;
        w->list = x->next;
        wide_free(w, x);
    }
    segment_close(&w->spare);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
