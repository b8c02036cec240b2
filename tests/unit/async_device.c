/* async_device.c - queues of copies, records and waits; memory that is mapped twice, once without
 * any right. */
#include "config.h"

#include "async_device.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_BLOCKS = 16, MAX_STREAMS = 8, RUBBISH = 0xa5 };

enum op_kind { OP_COPY, OP_RECORD, OP_WAIT };

struct op {
    struct op *next;
    enum op_kind kind;
    /* of OP_COPY, as the device sees it */
    uint8_t *dst;
    const uint8_t *src;
    size_t bytes;
    uint8_t *own; /* what src lies in, when it is the operation's */
    /* of the others */
    struct dev_event *event;
    uint64_t number;
};

struct dev_stream {
    enum dev_stream_kind kind;
    struct op *first, **last;
    uint32_t pending;
};

struct dev_event {
    uint64_t recorded, complete; /* numbers of records: the last queued, the last that ran */
    enum dev_stream_kind kind;   /* of the stream of the last record */
};

struct block {
    enum dev_memory kind;
    uint8_t *base; /* what the host was given */
    uint8_t *real; /* where the bytes are */
    size_t bytes;
};

struct device {
    enum async_order order;
    uint64_t random, calls, fail_at;
    bool dead;
    uint32_t event_count;
    struct block blocks[MAX_BLOCKS];
    struct dev_stream *streams[MAX_STREAMS];
    pthread_mutex_t lock;
    pthread_cond_t gate_moved;
    bool shut;
    uint32_t at_gate;
    uint64_t arrived, let_through; /* at the gate: in order */
    pthread_t gate_keeper;
};

static _Thread_local uint64_t thread_waits;

static void __attribute__((noreturn)) misuse(const char *what) {
    fprintf(stderr, "async_device: %s\n", what);
    abort();
}

static void must(bool holds, const char *what) {
    if (!holds)
        misuse(what);
}

static uint32_t dice(struct device *d, uint32_t sides) {
    d->random = d->random * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(d->random >> 33) % sides;
}

/* ---- memory; the lock is held */

static uint8_t *real_of(struct device *d, const void *p, size_t bytes, enum dev_memory *kind) {
    const uint8_t *at = p;
    for (int i = 0; i < MAX_BLOCKS; i++) {
        struct block *b = &d->blocks[i];
        if (b->base == NULL || at < b->base || at >= b->base + b->bytes)
            continue;
        must(bytes <= b->bytes - (size_t)(at - b->base), "a copy ends beyond its memory");
        *kind = b->kind;
        return b->real + (at - b->base);
    }
    misuse("a copy of memory that is neither the device's nor pinned");
}

static int block_map(struct block *b) {
    if (b->kind == DEV_MEM_HOST) {
        b->base = b->real = malloc(b->bytes);
        return b->base != NULL ? 0 : -ENOMEM;
    }
    int fd = memfd_create("async-device", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)b->bytes) != 0)
        misuse("memfd");
    void *base = mmap(NULL, b->bytes, PROT_NONE, MAP_SHARED, fd, 0);
    void *real = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    must(base != MAP_FAILED && real != MAP_FAILED, "mmap");
    b->base = base;
    b->real = real;
    return 0;
}

/* ---- running; the lock is held */

static void op_free(struct op *o) {
    free(o->own);
    free(o);
}

static bool op_can_run(const struct op *o) {
    return o->kind != OP_WAIT || o->event->complete >= o->number;
}

static void run_first(struct dev_stream *s) {
    struct op *o = s->first;
    s->first = o->next;
    if (s->first == NULL)
        s->last = &s->first;
    s->pending--;
    if (o->kind == OP_COPY && o->bytes > 0)
        memcpy(o->dst, o->src, o->bytes);
    else if (o->kind == OP_RECORD)
        o->event->complete = o->number;
    op_free(o);
}

static struct dev_stream *stream_of_record(struct device *d, const struct dev_event *e,
                                           uint64_t number) {
    for (int i = 0; i < MAX_STREAMS; i++)
        for (struct op *o = d->streams[i] != NULL ? d->streams[i]->first : NULL; o != NULL;
             o = o->next)
            if (o->kind == OP_RECORD && o->event == e && o->number == number)
                return d->streams[i];
    misuse("a wait for a record that is nowhere");
}

/* No more than is needed. */
static void run_until(struct device *d, const struct dev_event *e, uint64_t number) {
    while (e->complete < number) {
        struct dev_stream *s = stream_of_record(d, e, number);
        if (!op_can_run(s->first))
            run_until(d, s->first->event, s->first->number);
        run_first(s);
    }
}

static void run_eager(struct device *d, bool take_too) {
    for (bool ran = true; ran;) {
        ran = false;
        for (int i = 0; i < MAX_STREAMS; i++) {
            struct dev_stream *s = d->streams[i];
            if (s == NULL || s->first == NULL || (s->kind == DEV_STREAM_TAKE && !take_too))
                continue;
            if (!op_can_run(s->first) && !take_too)
                run_until(d, s->first->event, s->first->number);
            if (op_can_run(s->first)) {
                run_first(s);
                ran = true;
            }
        }
    }
}

static void run_some(struct device *d) {
    if (d->order == ASYNC_EAGER)
        run_eager(d, true);
    if (d->order == ASYNC_LATE_TAKE)
        run_eager(d, false);
    if (d->order != ASYNC_RANDOM)
        return;
    for (uint32_t n = dice(d, 5); n > 0; n--) {
        struct dev_stream *s = d->streams[dice(d, MAX_STREAMS)];
        if (s != NULL && s->first != NULL && op_can_run(s->first))
            run_first(s);
    }
}

static struct op *op_new(struct dev_stream *s, enum op_kind kind) {
    struct op *o = calloc(1, sizeof(*o));
    must(o != NULL, "no memory");
    o->kind = kind;
    *s->last = o;
    s->last = &o->next;
    s->pending++;
    return o;
}

/* A call that has to do with the TAKE stream: does it fail? */
static int fails(struct device *d) {
    d->calls++;
    if (d->fail_at == 0 || d->calls < d->fail_at || (d->calls > d->fail_at && !d->dead))
        return 0;
    return -EIO;
}

/* ---- the table */

static int async_alloc(struct device *d, enum dev_memory kind, size_t bytes, const char *what,
                       void **out) {
    (void)what;
    pthread_mutex_lock(&d->lock);
    int rc = kind == DEV_MEM_HOST ? fails(d) : 0, i = 0;
    while (i < MAX_BLOCKS && d->blocks[i].base != NULL)
        i++;
    must(i < MAX_BLOCKS, "too many blocks");
    if (rc == 0) {
        struct block b = {.kind = kind, .bytes = bytes};
        rc = block_map(&b);
        if (rc == 0) {
            memset(b.real, RUBBISH, bytes);
            d->blocks[i] = b;
            *out = b.base;
        }
    }
    pthread_mutex_unlock(&d->lock);
    return rc;
}

static bool uses(const struct dev_stream *s, const struct block *b) {
    for (const struct op *o = s->first; o != NULL; o = o->next)
        if (o->kind == OP_COPY && ((o->dst >= b->real && o->dst < b->real + b->bytes) ||
                                   (o->src >= b->real && o->src < b->real + b->bytes)))
            return true;
    return false;
}

static void async_free(struct device *d, enum dev_memory kind, void *p, size_t bytes) {
    pthread_mutex_lock(&d->lock);
    int i = 0;
    while (i < MAX_BLOCKS && d->blocks[i].base != p)
        i++;
    must(i < MAX_BLOCKS && d->blocks[i].kind == kind && d->blocks[i].bytes == bytes,
         "freed memory is none, or another");
    struct block *b = &d->blocks[i];
    for (int s = 0; s < MAX_STREAMS; s++)
        must(d->streams[s] == NULL || !uses(d->streams[s], b), "freed memory is still in use");
    if (kind == DEV_MEM_HOST) {
        free(b->base);
    } else {
        munmap(b->base, b->bytes);
        munmap(b->real, b->bytes);
    }
    *b = (struct block){0};
    pthread_mutex_unlock(&d->lock);
}

static int async_stream_open(struct device *d, enum dev_stream_kind kind, struct dev_stream **out) {
    struct dev_stream *s = calloc(1, sizeof(*s));
    must(s != NULL, "no memory");
    s->kind = kind;
    s->last = &s->first;
    pthread_mutex_lock(&d->lock);
    int i = 0;
    while (i < MAX_STREAMS && d->streams[i] != NULL)
        i++;
    must(i < MAX_STREAMS, "too many streams");
    d->streams[i] = s;
    pthread_mutex_unlock(&d->lock);
    *out = s;
    return 0;
}

static void async_stream_close(struct device *d, struct dev_stream *s) {
    pthread_mutex_lock(&d->lock);
    int i = 0;
    while (i < MAX_STREAMS && d->streams[i] != s)
        i++;
    must(i < MAX_STREAMS, "a stream is closed twice");
    /* Only what a dead device was given may be left, or what could not be waited for just now. */
    must(s->first == NULL || d->dead || (d->fail_at != 0 && d->calls < d->fail_at + 2),
         "a stream is closed while it has work");
    while (s->first != NULL)
        run_first(s);
    d->streams[i] = NULL;
    pthread_mutex_unlock(&d->lock);
    free(s);
}

static int async_event_open(struct device *d, const char *what, struct dev_event **out) {
    (void)what;
    pthread_mutex_lock(&d->lock);
    int rc = fails(d);
    struct dev_event *e = rc == 0 ? calloc(1, sizeof(*e)) : NULL;
    must(rc != 0 || e != NULL, "no memory");
    d->event_count += e != NULL;
    if (e != NULL)
        *out = e;
    pthread_mutex_unlock(&d->lock);
    return rc;
}

static void async_event_close(struct device *d, struct dev_event *e) {
    pthread_mutex_lock(&d->lock);
    d->event_count--;
    for (int i = 0; i < MAX_STREAMS; i++) {
        for (struct op *o = d->streams[i] != NULL ? d->streams[i]->first : NULL; o != NULL;
             o = o->next) {
            if (o->event != e)
                continue;
            must(op_can_run(o) || d->dead, "an event is closed while a stream waits for it");
            *o = (struct op){.next = o->next, .kind = OP_COPY}; /* nothing */
        }
    }
    pthread_mutex_unlock(&d->lock);
    free(e);
}

static int async_event_record(struct device *d, struct dev_stream *s, struct dev_event *e) {
    pthread_mutex_lock(&d->lock);
    int rc = s->kind == DEV_STREAM_TAKE ? fails(d) : 0;
    if (rc == 0) {
        struct op *o = op_new(s, OP_RECORD);
        o->event = e;
        o->number = ++e->recorded;
        e->kind = s->kind;
        run_some(d);
    }
    pthread_mutex_unlock(&d->lock);
    return rc;
}

/* For the record that is the last one now, whatever comes after. */
static int async_stream_wait(struct device *d, struct dev_stream *s, struct dev_event *e) {
    pthread_mutex_lock(&d->lock);
    int rc = e->kind == DEV_STREAM_TAKE ? fails(d) : 0;
    if (rc == 0 && e->recorded != 0) {
        struct op *o = op_new(s, OP_WAIT);
        o->event = e;
        o->number = e->recorded;
        run_some(d);
    }
    pthread_mutex_unlock(&d->lock);
    return rc;
}

static int async_event_synchronize(struct device *d, struct dev_event *e) {
    pthread_mutex_lock(&d->lock);
    bool take = e->kind == DEV_STREAM_TAKE;
    thread_waits += take;
    uint64_t number = ++d->arrived;
    d->at_gate++;
    pthread_cond_broadcast(&d->gate_moved);
    while (d->shut && number > d->let_through && !pthread_equal(d->gate_keeper, pthread_self()))
        pthread_cond_wait(&d->gate_moved, &d->lock);
    d->at_gate--;
    pthread_cond_broadcast(&d->gate_moved);
    int rc = take ? fails(d) : 0;
    if (rc == 0) {
        run_until(d, e, e->recorded);
        run_some(d);
    }
    pthread_mutex_unlock(&d->lock);
    return rc;
}

static int async_copy(struct device *d, struct dev_stream *s, void *dst, const void *src,
                      size_t bytes) {
    enum dev_memory to, from;
    pthread_mutex_lock(&d->lock);
    must(s->kind == DEV_STREAM_TAKE, "a copy on another stream than TAKE");
    int rc = fails(d);
    if (rc == 0) {
        struct op *o = op_new(s, OP_COPY);
        o->dst = real_of(d, dst, bytes, &to);
        o->src = real_of(d, src, bytes, &from);
        o->bytes = bytes;
        if (to == DEV_MEM_HOST)
            memset(o->dst, RUBBISH, bytes);
        run_some(d);
    }
    pthread_mutex_unlock(&d->lock);
    return rc;
}

static void async_why(struct device *d, char *out, size_t cap_bytes) {
    (void)d;
    snprintf(out, cap_bytes, "the double was told to fail");
}

static void async_close(struct device *d) {
    for (int i = 0; i < MAX_STREAMS; i++)
        must(d->streams[i] == NULL, "a stream was left open");
    for (int i = 0; i < MAX_BLOCKS; i++)
        must(d->blocks[i].base == NULL, "memory was not freed");
    must(d->event_count == 0, "an event was left open");
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->gate_moved);
    free(d);
}

const struct device_ops async_device_ops = {
    .name = "async",
    .close = async_close,
    .why = async_why,
    .alloc = async_alloc,
    .free = async_free,
    .stream_open = async_stream_open,
    .stream_close = async_stream_close,
    .event_open = async_event_open,
    .event_close = async_event_close,
    .event_record = async_event_record,
    .stream_wait = async_stream_wait,
    .event_synchronize = async_event_synchronize,
    .copy = async_copy,
};

/* ---- for tests */

struct device *async_device_open(enum async_order order, uint64_t seed) {
    struct device *d = calloc(1, sizeof(*d));
    must(d != NULL, "no memory");
    d->order = order;
    d->random = seed * 2654435761u + 12345;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->gate_moved, NULL);
    return d;
}

void async_device_write(struct device *d, struct dev_stream *s, void *dst, const void *src,
                        size_t bytes) {
    enum dev_memory kind;
    size_t half = bytes / 2;
    const uint8_t *from = src;
    pthread_mutex_lock(&d->lock);
    for (int part = 0; part < 2; part++) {
        size_t at = part == 0 ? 0 : half, n = part == 0 ? half : bytes - half;
        if (n == 0)
            continue;
        struct op *o = op_new(s, OP_COPY);
        o->own = malloc(n);
        must(o->own != NULL, "no memory");
        memcpy(o->own, from + at, n);
        o->src = o->own;
        o->dst = real_of(d, (uint8_t *)dst + at, n, &kind);
        must(kind == DEV_MEM_DEVICE, "a write to the host");
        o->bytes = n;
        run_some(d);
    }
    pthread_mutex_unlock(&d->lock);
}

void async_device_peek(struct device *d, void *dst, const void *src, size_t bytes) {
    enum dev_memory kind;
    pthread_mutex_lock(&d->lock);
    memcpy(dst, real_of(d, src, bytes, &kind), bytes);
    pthread_mutex_unlock(&d->lock);
}

uint32_t async_device_pending(struct device *d, enum dev_stream_kind kind) {
    uint32_t pending = 0;
    pthread_mutex_lock(&d->lock);
    for (int i = 0; i < MAX_STREAMS; i++)
        if (d->streams[i] != NULL && d->streams[i]->kind == kind)
            pending += d->streams[i]->pending;
    pthread_mutex_unlock(&d->lock);
    return pending;
}

void async_device_fail(struct device *d, uint64_t nth, bool dead) {
    pthread_mutex_lock(&d->lock);
    d->fail_at = nth != 0 ? d->calls + nth : 0;
    d->dead = dead;
    pthread_mutex_unlock(&d->lock);
}

uint64_t async_device_calls(struct device *d) {
    pthread_mutex_lock(&d->lock);
    uint64_t calls = d->calls;
    pthread_mutex_unlock(&d->lock);
    return calls;
}

uint64_t async_device_waits(void) { return thread_waits; }

void async_device_quiet(bool quiet) {
    static int kept = -1;
    if (quiet == (kept >= 0))
        return;
    fflush(stderr);
    if (quiet) {
        int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
        kept = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
        must(nowhere >= 0 && kept >= 0 && dup2(nowhere, STDERR_FILENO) >= 0, "quiet");
        close(nowhere);
    } else {
        (void)dup2(kept, STDERR_FILENO);
        close(kept);
        kept = -1;
    }
}

void async_device_gate(struct device *d, bool shut) {
    pthread_mutex_lock(&d->lock);
    d->shut = shut;
    d->gate_keeper = pthread_self();
    pthread_cond_broadcast(&d->gate_moved);
    while (!shut && d->at_gate != 0)
        pthread_cond_wait(&d->gate_moved, &d->lock);
    pthread_mutex_unlock(&d->lock);
}

void async_device_next_at_gate(struct device *d) {
    pthread_mutex_lock(&d->lock);
    d->let_through = d->arrived;
    pthread_cond_broadcast(&d->gate_moved);
    while (d->arrived == d->let_through)
        pthread_cond_wait(&d->gate_moved, &d->lock);
    pthread_mutex_unlock(&d->lock);
}

void async_device_wait_gate(struct device *d) {
    pthread_mutex_lock(&d->lock);
    while (d->at_gate == 0)
        pthread_cond_wait(&d->gate_moved, &d->lock);
    pthread_mutex_unlock(&d->lock);
}
