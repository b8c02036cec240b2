/* stage.c - the ring of pinned slots; the states of a slot stand in stage.h. */
#include "config.h"

#include "engine/stage.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

enum slot_state { SLOT_FREE, SLOT_QUEUED, SLOT_DRAINING, SLOT_LOST };
enum { STAGE_UPLOAD_SLOTS = 2 };

struct slot {
    enum slot_state state;
    uint8_t *memory;
    struct dev_event *event;
    uint64_t ticket; /* its event stands behind that piece; 0: behind nothing */
    /* of QUEUED and DRAINING */
    struct stage_copy *copy;
    uint8_t *dst;
    size_t bytes;
};

struct upload_slot {
    uint8_t *memory;
    struct dev_event *event;
    bool in_flight;
};

struct stage {
    struct stage_args args;
    struct dev_stream *stream;
    uint8_t *memory; /* of all slots, those for uploads last */
    struct upload_slot uploads[STAGE_UPLOAD_SLOTS];
    pthread_t *threads;
    uint32_t threads_started;
    pthread_mutex_t lock; /* everything below, and the use of the stream */
    pthread_cond_t drained, queued;
    bool closing, hurry;
    bool told;      /* a failure stands in the log */
    int failed;     /* -errno: the device is of no use any more */
    struct err why; /* if failed */
    /* Tickets count pieces in the order of the stream, so one that is complete says so of all
     * before it. */
    uint64_t last_ticket, complete_ticket;
    struct stage_copy *finished_first, **finished_last;
    void (*wake)(void *ctx);
    void *wake_ctx;
    struct slot slots[];
};

/* ---- slots; the lock is held */

static struct slot *slot_free(struct stage *s) {
    for (uint32_t i = 0; i < s->args.slot_count; i++)
        if (s->slots[i].state == SLOT_FREE)
            return &s->slots[i];
    return NULL;
}

static struct slot *slot_oldest(struct stage *s) {
    struct slot *oldest = NULL;
    for (uint32_t i = 0; i < s->args.slot_count; i++) {
        struct slot *slot = &s->slots[i];
        if (slot->state == SLOT_QUEUED && (oldest == NULL || slot->ticket < oldest->ticket))
            oldest = slot;
    }
    return oldest;
}

/* ---- open and close */

static size_t stage_memory_bytes(const struct stage_args *a) {
    return a->slot_bytes * (a->slot_count + (size_t)STAGE_UPLOAD_SLOTS);
}

void stage_memory(const struct stage *s, dev_memory_fn *tell, void *ctx) {
    tell(ctx, DEV_MEM_HOST, stage_memory_bytes(&s->args), "staging of takes");
}

static int stage_error(const struct stage *s, int rc, const char *what, struct err *err) {
    char why[256] = "";
    s->args.ops->why(s->args.dev, why, sizeof(why));
    return err_set(err, -rc, "%s: %s", what, why[0] != '\0' ? why : err_name(-rc));
}

static int stage_resources(struct stage *s, struct err *err) {
    const struct device_ops *ops = s->args.ops;
    struct device *dev = s->args.dev;
    void *memory = NULL;
    int rc = ops->stream_open(dev, DEV_STREAM_TAKE, &s->stream);
    if (rc == 0)
        rc = ops->alloc(dev, DEV_MEM_HOST, stage_memory_bytes(&s->args), "stage", &memory);
    s->memory = memory;
    for (uint32_t i = 0; i < s->args.slot_count && rc == 0; i++) {
        s->slots[i].memory = s->memory + i * s->args.slot_bytes;
        rc = ops->event_open(dev, "staged", &s->slots[i].event);
    }
    for (uint32_t i = 0; i < STAGE_UPLOAD_SLOTS && rc == 0; i++) {
        s->uploads[i].memory = s->memory + (s->args.slot_count + i) * s->args.slot_bytes;
        rc = ops->event_open(dev, "uploaded", &s->uploads[i].event);
    }
    return rc == 0 ? 0 : stage_error(s, rc, "pinned memory for copies out of the device", err);
}

static void *stage_thread(void *arg) {
    struct stage *s = arg;
    pthread_mutex_lock(&s->lock);
    while (!s->closing) {
        pthread_mutex_unlock(&s->lock);
        bool any = stage_drain(s);
        pthread_mutex_lock(&s->lock);
        if (any && s->wake != NULL)
            s->wake(s->wake_ctx);
        if (slot_oldest(s) == NULL && !s->closing)
            pthread_cond_wait(&s->queued, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static int stage_threads(struct stage *s, struct err *err) {
    s->threads = calloc((size_t)s->args.threads + 1, sizeof(*s->threads));
    int rc = s->threads != NULL ? 0 : ENOMEM;
    while (s->threads_started < s->args.threads && rc == 0) {
        rc = pthread_create(&s->threads[s->threads_started], NULL, stage_thread, s);
        s->threads_started += rc == 0;
    }
    return rc == 0 ? 0 : err_set(err, rc, "the threads of the stage: %s", strerror(rc));
}

int stage_open(const struct stage_args *args, struct stage **out, struct err *err) {
    assert(args->slot_bytes > 0 && args->slot_count > 0);
    struct stage *s = calloc(1, sizeof(*s) + args->slot_count * sizeof(s->slots[0]));
    if (s == NULL)
        return err_set(err, ENOMEM, "no memory for the stage");
    s->args = *args;
    s->finished_last = &s->finished_first;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->drained, NULL);
    pthread_cond_init(&s->queued, NULL);
    int rc = stage_resources(s, err);
    if (rc == 0)
        rc = stage_threads(s, err);
    if (rc != 0) {
        stage_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

/* The device may still be writing what was cancelled. One that is dead writes nothing. */
static void stage_settle(struct stage *s) {
    struct dev_event *e = s->slots[0].event;
    for (uint32_t i = 0; i < s->args.slot_count; i++)
        assert(s->slots[i].copy == NULL);
    if (s->last_ticket != 0 && s->args.ops->event_record(s->args.dev, s->stream, e) == 0)
        (void)s->args.ops->event_synchronize(s->args.dev, e);
}

void stage_close(struct stage *s) {
    if (s == NULL)
        return;
    const struct device_ops *ops = s->args.ops;
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_cond_broadcast(&s->queued);
    pthread_mutex_unlock(&s->lock);
    for (uint32_t i = 0; i < s->threads_started; i++)
        pthread_join(s->threads[i], NULL);
    stage_settle(s);
    for (uint32_t i = 0; i < s->args.slot_count; i++)
        if (s->slots[i].event != NULL)
            ops->event_close(s->args.dev, s->slots[i].event);
    for (uint32_t i = 0; i < STAGE_UPLOAD_SLOTS; i++)
        if (s->uploads[i].event != NULL)
            ops->event_close(s->args.dev, s->uploads[i].event);
    if (s->stream != NULL)
        ops->stream_close(s->args.dev, s->stream);
    if (s->memory != NULL)
        ops->free(s->args.dev, DEV_MEM_HOST, s->memory, stage_memory_bytes(&s->args));
    pthread_cond_destroy(&s->drained);
    pthread_cond_destroy(&s->queued);
    pthread_mutex_destroy(&s->lock);
    free(s->threads);
    free(s);
}

void stage_set_wake(struct stage *s, void (*wake)(void *ctx), void *ctx) {
    pthread_mutex_lock(&s->lock);
    s->wake = wake;
    s->wake_ctx = ctx;
    pthread_mutex_unlock(&s->lock);
}

/* ---- pieces; the lock is held */

/* One word in the log, however many copies fail. lost: no other will succeed. */
static void stage_tell(struct stage *s, const struct err *why, bool lost) {
    if (s->failed != 0)
        return; /* the first cause counts */
    if (lost)
        log_error("%s", why->text);
    else if (!s->told)
        log_warn("%s", why->text);
    s->told = true;
    if (lost) {
        s->failed = -why->code;
        s->why = *why;
    }
}

static void stage_lose(struct stage *s, struct slot *slot, int rc, const char *what) {
    struct err why = {0};
    (void)stage_error(s, rc, what, &why);
    stage_tell(s, &why, true);
    slot->state = SLOT_LOST;
}

static void copy_finish(struct stage *s, struct stage_copy *c) {
    c->next = NULL;
    c->prev = s->finished_last;
    *s->finished_last = c;
    s->finished_last = &c->next;
}

static void copy_unfinish(struct stage *s, struct stage_copy *c) {
    *c->prev = c->next;
    if (c->next != NULL)
        c->next->prev = c->prev;
    else
        s->finished_last = c->prev;
    c->next = NULL;
    c->prev = NULL;
}

/* A call was refused. One that can't even record an event refuses all that follows: an error of
 * execution stays with a device. */
static int slot_refused(struct stage *s, struct slot *slot, int rc, const char *what) {
    struct err why = {0};
    (void)stage_error(s, rc, what, &why);
    stage_tell(s, &why, s->args.ops->event_record(s->args.dev, s->stream, slot->event) != 0);
    return rc;
}

static int slot_queue(struct stage *s, struct slot *slot, struct stage_copy *c) {
    const struct device_ops *ops = s->args.ops;
    size_t left = c->bytes - c->queued_bytes;
    size_t bytes = left < s->args.slot_bytes ? left : s->args.slot_bytes;
    int rc = ops->copy(s->args.dev, s->stream, slot->memory, c->src + c->queued_bytes, bytes);
    if (rc != 0)
        return slot_refused(s, slot, rc, "queueing a copy out of the device");
    slot->ticket = 0; /* what is queued without an event is behind the next one that there is */
    rc = ops->event_record(s->args.dev, s->stream, slot->event);
    if (rc != 0)
        return slot_refused(s, slot, rc, "recording an event behind a copy out of the device");
    slot->state = SLOT_QUEUED;
    slot->ticket = ++s->last_ticket;
    slot->copy = c;
    slot->dst = c->dst + c->queued_bytes;
    slot->bytes = bytes;
    c->queued_bytes += bytes;
    c->ticket = slot->ticket;
    c->pieces++;
    return 0;
}

/* ---- out */

bool stage_queue(struct stage *s, struct stage_copy *c, bool urgent) {
    pthread_mutex_lock(&s->lock);
    uint64_t before = s->last_ticket;
    bool room = true;
    assert(!c->closed);
    while (room && c->rc == 0 && c->queued_bytes < c->bytes) {
        struct slot *slot = slot_free(s);
        if (s->failed != 0)
            c->rc = s->failed;
        else if (slot == NULL || (s->hurry && !urgent))
            room = false;
        else
            c->rc = slot_queue(s, slot, c);
    }
    c->closed = room;
    if (c->closed && c->pieces == 0)
        copy_finish(s, c);
    if (s->last_ticket != before)
        pthread_cond_broadcast(&s->queued);
    pthread_mutex_unlock(&s->lock);
    return room;
}

void stage_hurry(struct stage *s, bool on) {
    pthread_mutex_lock(&s->lock);
    s->hurry = on;
    pthread_mutex_unlock(&s->lock);
}

/* The lock is held, and let go while the device and the bytes are waited for. */
static void slot_drain(struct stage *s, struct slot *slot) {
    slot->state = SLOT_DRAINING;
    pthread_mutex_unlock(&s->lock);
    int rc = s->args.ops->event_synchronize(s->args.dev, slot->event);
    if (rc == 0)
        memcpy(slot->dst, slot->memory, slot->bytes);
    pthread_mutex_lock(&s->lock);
    struct stage_copy *c = slot->copy;
    slot->copy = NULL;
    slot->state = SLOT_FREE;
    if (rc == 0 && slot->ticket > s->complete_ticket)
        s->complete_ticket = slot->ticket;
    if (rc != 0) {
        stage_lose(s, slot, rc, "waiting for a copy out of the device");
        if (c->rc == 0)
            c->rc = rc;
    }
    if (--c->pieces == 0 && c->closed)
        copy_finish(s, c);
    pthread_cond_broadcast(&s->drained);
}

bool stage_drain(struct stage *s) {
    pthread_mutex_lock(&s->lock);
    struct slot *slot = slot_oldest(s);
    if (slot != NULL)
        slot_drain(s, slot);
    pthread_mutex_unlock(&s->lock);
    return slot != NULL;
}

void stage_make_room(struct stage *s) {
    pthread_mutex_lock(&s->lock);
    while (s->failed == 0 && slot_free(s) == NULL) {
        struct slot *slot = slot_oldest(s);
        if (slot != NULL)
            slot_drain(s, slot);
        else
            pthread_cond_wait(&s->drained, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
}

/* The first event that stands behind the piece: its own, or, where its slot was used again, that of
 * a later piece. */
static struct slot *slot_behind(struct stage *s, uint64_t ticket) {
    struct slot *first = NULL;
    for (uint32_t i = 0; i < s->args.slot_count; i++) {
        struct slot *slot = &s->slots[i];
        if (slot->ticket >= ticket && (first == NULL || slot->ticket < first->ticket))
            first = slot;
    }
    return first;
}

void stage_fence(struct stage *s, uint64_t ticket, struct dev_stream *writer) {
    const struct device_ops *ops = s->args.ops;
    pthread_mutex_lock(&s->lock);
    struct slot *slot = ticket > s->complete_ticket ? slot_behind(s, ticket) : NULL;
    int rc = slot != NULL ? ops->stream_wait(s->args.dev, writer, slot->event) : 0;
    if (rc != 0) {
        struct err why = {0};
        (void)stage_error(s, rc, "making a stream wait for a copy out of the device", &why);
        /* If the host can't wait either, it can't be said what the copies under way have read. */
        stage_tell(s, &why, ops->event_synchronize(s->args.dev, slot->event) != 0);
    }
    pthread_mutex_unlock(&s->lock);
}

int stage_failed(struct stage *s, struct err *err) {
    pthread_mutex_lock(&s->lock);
    int rc = s->failed != 0 ? err_set(err, -s->failed, "%s", s->why.text) : 0;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

struct stage_copy *stage_next_finished(struct stage *s) {
    pthread_mutex_lock(&s->lock);
    struct stage_copy *c = s->finished_first;
    if (c != NULL)
        copy_unfinish(s, c);
    pthread_mutex_unlock(&s->lock);
    return c;
}

static bool copy_is_draining(const struct stage *s, const struct stage_copy *c) {
    for (uint32_t i = 0; i < s->args.slot_count; i++)
        if (s->slots[i].copy == c)
            return true;
    return false;
}

/* A slot that is let go may be written by the device once more. What uses it next is queued behind
 * that on the same stream. */
void stage_cancel(struct stage *s, struct stage_copy *c) {
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->args.slot_count; i++) {
        struct slot *slot = &s->slots[i];
        if (slot->copy != c || slot->state != SLOT_QUEUED)
            continue;
        slot->state = SLOT_FREE;
        slot->copy = NULL;
        c->pieces--;
    }
    pthread_cond_broadcast(&s->drained);
    while (copy_is_draining(s, c))
        pthread_cond_wait(&s->drained, &s->lock);
    if (c->prev != NULL)
        copy_unfinish(s, c);
    pthread_mutex_unlock(&s->lock);
}

/* ---- in */

static int upload_wait(struct stage *s, struct upload_slot *u) {
    bool waits = u->in_flight;
    u->in_flight = false;
    return waits ? s->args.ops->event_synchronize(s->args.dev, u->event) : 0;
}

static int upload_piece(struct stage *s, struct upload_slot *u, void *dst, size_t bytes) {
    const struct device_ops *ops = s->args.ops;
    pthread_mutex_lock(&s->lock);
    int rc = ops->copy(s->args.dev, s->stream, dst, u->memory, bytes);
    if (rc == 0)
        rc = ops->event_record(s->args.dev, s->stream, u->event);
    pthread_mutex_unlock(&s->lock);
    u->in_flight = rc == 0;
    return rc;
}

int stage_upload(struct stage *s, void *dst, size_t bytes,
                 int (*fill)(void *ctx, size_t offset, size_t bytes, void *to), void *ctx,
                 struct err *err) {
    static const char what[] = "copying to the device";
    uint8_t *to = dst;
    int rc = 0, filled = 0;
    for (size_t at = 0, turn = 0; at < bytes && rc == 0 && filled == 0; turn++) {
        struct upload_slot *u = &s->uploads[turn % STAGE_UPLOAD_SLOTS];
        size_t n = bytes - at < s->args.slot_bytes ? bytes - at : s->args.slot_bytes;
        rc = upload_wait(s, u);
        if (rc == 0)
            filled = fill(ctx, at, n, u->memory);
        if (rc == 0 && filled == 0)
            rc = upload_piece(s, u, to + at, n);
        at += n;
    }
    for (uint32_t i = 0; i < STAGE_UPLOAD_SLOTS; i++) {
        int waited = upload_wait(s, &s->uploads[i]);
        rc = rc != 0 ? rc : waited;
    }
    return rc != 0 ? stage_error(s, rc, what, err) : filled;
}
