/* nccl.c - the collectives of a world of GPUs, over NCCL.
 *
 * The communicator is non-blocking: every call returns at once, and what it began is done when
 * ncclCommGetAsyncError no longer says ncclInProgress. Only then has a collective been put on its
 * stream, so the event behind it is recorded after that. NCCL runs the collectives of a
 * communicator one after the other, in the order of the calls, whatever their streams: the oldest
 * that is not done is the one that can be stuck.
 *
 * Threads: the main thread queues. The watchdog looks, and it alone ends the communicator: it
 * aborts after a failure, from whichever thread that came, and takes it down in peace at close.
 * `lock` guards all that both use; neither waits for a peer with it held. */
#include "config.h"

#include <cuda_runtime_api.h>
#include <errno.h>
#include <nccl.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/collective.h"
#include "comm/nccl/nccl.h"
#include "device/cuda/cuda.h"

_Static_assert(sizeof(ncclUniqueId) == COLLECTIVE_ID_BYTES, "an id is what NCCL makes");

enum { FLIGHTS_FIRST = 8 };
static const double POLL_S = 0.1; /* between two looks of the watchdog */
static const double LEAVE_S = 1;  /* for the main thread to leave NCCL before an abort */
static const double PEACE_S = 2;  /* for the last work of a healthy communicator, at close */
static const double ABORT_S = 5;  /* for an abort, before close leaves it behind */

struct order {
    const char *call;
    const void *send;
    void *recv;
    enum dtype t;
    size_t elems;
    uint64_t number; /* of this communicator's collectives, from 1 */
};

/* A collective that was queued and may not be done. */
struct flight {
    cudaEvent_t before, after;
    struct order order;
};

struct collective {
    uint32_t rank;
    struct device *dev; /* borrowed */
    double timeout_s;
    pthread_t watchdog;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* by CLOCK_MONOTONIC */

    ncclComm_t comm;  /* NULL before it is made and once it is given up */
    const char *busy; /* the call of NCCL that the main thread is in, NULL none */
    bool watching;    /* the watchdog has begun */
    bool failed;      /* reason says how; only the watchdog touches comm now */
    bool closing;
    bool ended; /* the watchdog is done */
    struct err reason;

    struct flight *flights; /* a ring: the watchdog takes away at its start, main adds at its end */
    size_t capacity, first, count;
    uint64_t issued;
    int64_t begun_ns; /* when the first of the ring was seen to have begun, 0 not yet */
};

/* ---- time ---- */

static int64_t now_ns(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static double least(double a, double b) { return a < b ? a : b; }

/* Capped at a year: a timeout may be given as "never". */
static int64_t ns_of(double seconds) { return (int64_t)(least(seconds, 3.2e7) * 1e9); }

/* With the lock held: until something changed, at most to that time. Whether the time is not over.
 */
static bool wait_changed(struct collective *c, int64_t until_ns) {
    struct timespec t = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
    return pthread_cond_timedwait(&c->changed, &c->lock, &t) != ETIMEDOUT;
}

/* ---- errors ---- */

static int code_of_nccl(ncclResult_t r) {
    static const int table[ncclNumResults] = {
        [ncclUnhandledCudaError] = EIO, [ncclSystemError] = EIO,     [ncclInternalError] = EIO,
        [ncclInvalidArgument] = EINVAL, [ncclInvalidUsage] = EINVAL, [ncclRemoteError] = ECOMM,
        [ncclInProgress] = ETIMEDOUT,
    };
    int code = r > ncclSuccess && r < ncclNumResults ? table[r] : EIO;
    return code != 0 ? code : EIO;
}

/* Fills *err with what a call returned, and with the sentence that NCCL kept: the text of its last
 * warning, which is of this process and may be older. */
static int fail_nccl(struct err *err, ncclResult_t r, const char *call) {
    const char *last = ncclGetLastError(NULL);
    if (last == NULL)
        last = "";
    if (r == ncclInvalidUsage && strstr(last, "Duplicate GPU") != NULL)
        return err_set(
            err, ENOTSUP,
            "%s: two ranks share a GPU, which NCCL refuses (%s): give each rank a GPU of "
            "its own, or use comm = node or comm = mpi",
            call, last);
    return err_set(err, code_of_nccl(r), "%s: %s%s%s%s", call, ncclGetErrorString(r),
                   *last != '\0' ? " (" : "", last, *last != '\0' ? ")" : "");
}

/* With the lock held, after the reason was filled: nothing more is queued, and the watchdog aborts.
 */
static int give_up(struct collective *c) {
    c->failed = true;
    (void)pthread_cond_broadcast(&c->changed);
    return -c->reason.code;
}

static int give_up_cuda(struct collective *c, cudaError_t e, const char *call) {
    (void)pthread_mutex_lock(&c->lock);
    (void)cuda_err(&c->reason, e, call);
    int rc = give_up(c);
    (void)pthread_mutex_unlock(&c->lock);
    return rc;
}

/* What CUDA and NCCL make is made on the device that is current in the thread. */
static int enter_device(struct collective *c, struct err *err) {
    int rc = cuda_enter(c->dev);
    if (rc == 0)
        return 0;
    char why[ERR_TEXT_BYTES];
    cuda_why(c->dev, why, sizeof why);
    return err_set(err, -rc, "%s", why);
}

/* ---- calls of NCCL ---- */

/* The communicator for a call of the main thread; NULL once it is given up. nccl_leave ends it. */
static ncclComm_t nccl_enter(struct collective *c, const char *call) {
    (void)pthread_mutex_lock(&c->lock);
    ncclComm_t comm = c->failed ? NULL : c->comm;
    c->busy = comm != NULL ? call : NULL;
    (void)pthread_mutex_unlock(&c->lock);
    return comm;
}

/* r is how it ended, ncclInProgress for not in time. */
static int nccl_leave(struct collective *c, ncclResult_t r, const char *call) {
    (void)pthread_mutex_lock(&c->lock);
    c->busy = NULL;
    int rc = 0;
    if (c->failed)
        rc = -ECOMM;
    else if (r == ncclInProgress)
        (void)err_set(&c->reason, ETIMEDOUT, "%s: the peers did not come within %g s", call,
                      c->timeout_s);
    else if (r != ncclSuccess)
        (void)fail_nccl(&c->reason, r, call);
    if (rc == 0 && r != ncclSuccess)
        rc = give_up(c);
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
    return rc;
}

/* Whether it is still going on, and not given up. The lock keeps an abort away meanwhile. */
static bool ask(struct collective *c, ncclComm_t comm, ncclResult_t *r) {
    (void)pthread_mutex_lock(&c->lock);
    bool failed = c->failed;
    ncclResult_t asked = failed ? ncclSuccess : ncclCommGetAsyncError(comm, r);
    (void)pthread_mutex_unlock(&c->lock);
    if (asked != ncclSuccess)
        *r = asked;
    return !failed && *r == ncclInProgress;
}

/* Waits for what a call began: short work of a thread of NCCL's where no peer is asked, and as long
 * as the peers take where they are (at first use they connect). ncclInProgress: not in time, or
 * given up by the watchdog. */
static ncclResult_t settle(struct collective *c, ncclComm_t comm, ncclResult_t r, double within_s) {
    enum { BUSY_TESTS = 200, FIRST_NS = 20 * 1000, LAST_NS = 1000 * 1000 };
    int64_t deadline = now_ns() + ns_of(within_s);
    long pause_ns = FIRST_NS;
    for (unsigned tests = 0; r == ncclInProgress && ask(c, comm, &r); tests++) {
        if (now_ns() >= deadline)
            break;
        if (tests < BUSY_TESTS) {
            (void)sched_yield();
            continue;
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = pause_ns}, NULL);
        pause_ns = pause_ns * 2 < LAST_NS ? pause_ns * 2 : LAST_NS;
    }
    return r;
}

/* ---- the watchdog ---- */

/* With the lock held. Whether the communicator has an error that came by itself. Not while the main
 * thread is in a call: it asks for itself until that is over, and a call asks once more on its way
 * out, without our lock. Who asks first after the end joins and frees the thread that NCCL made for
 * the call, so two who ask at once do that twice. */
static void look_at_comm(struct collective *c) {
    ncclResult_t r = ncclSuccess;
    if (c->comm == NULL || c->failed || c->busy != NULL)
        return;
    ncclResult_t asked = ncclCommGetAsyncError(c->comm, &r);
    if (asked != ncclSuccess)
        r = asked;
    if (r == ncclSuccess || r == ncclInProgress)
        return;
    const char *call = c->count > 0 ? c->flights[c->first].order.call : "ncclCommGetAsyncError";
    (void)fail_nccl(&c->reason, r, call);
    (void)give_up(c);
}

/* With the lock held: whether that point of a stream was reached. An error of the device counts as
 * a failure here: nothing that was queued will be of use. */
static bool reached(struct collective *c, cudaEvent_t event) {
    cudaError_t e = cudaEventQuery(event);
    if (e == cudaSuccess)
        return true;
    if (e != cudaErrorNotReady) {
        (void)cuda_err(&c->reason, e, "cudaEventQuery");
        (void)give_up(c);
    }
    return false;
}

/* With the lock held. Takes away what is done, and looks how long the next one has been the first
 * of its stream. */
static void look_at_flights(struct collective *c) {
    while (!c->failed && c->count > 0 && reached(c, c->flights[c->first].after)) {
        c->first = (c->first + 1) % c->capacity;
        c->count--;
        c->begun_ns = 0;
    }
    if (c->failed || c->count == 0)
        return;
    const struct flight *f = &c->flights[c->first];
    int64_t now = now_ns();
    if (c->begun_ns == 0 && reached(c, f->before))
        c->begun_ns = now;
    if (c->failed || c->begun_ns == 0 || now - c->begun_ns < ns_of(c->timeout_s))
        return;
    (void)err_set(&c->reason, ECOMM,
                  "%s: no progress for %g s in collective %llu of rank %u (%zu %s elements): a "
                  "peer is gone or does not answer",
                  f->order.call, c->timeout_s, (unsigned long long)f->order.number, c->rank,
                  f->order.elems, dtype_name(f->order.t));
    (void)give_up(c);
}

/* Whether the communicator is gone in peace. Its last work is waited for, no peer is: a collective
 * that a peer does not take part in keeps it ncclInProgress until the time is over. */
static bool end_in_peace(struct collective *c, ncclComm_t comm) {
    ncclResult_t r = ncclCommFinalize(comm);
    if (settle(c, comm, r, least(PEACE_S, c->timeout_s)) != ncclSuccess)
        return false;
    (void)ncclCommDestroy(comm); /* ncclInProgress: the rest is freed behind us */
    return true;
}

/* With the lock held, given back for the calls. The main thread is let out of NCCL first; if it
 * does not come out it is stuck, and then an abort is what frees it. */
static void end_comm(struct collective *c) {
    int64_t until = now_ns() + ns_of(LEAVE_S);
    while (c->busy && wait_changed(c, until))
        continue;
    ncclComm_t comm = c->comm;
    bool peace = !c->failed;
    c->comm = NULL;
    (void)pthread_mutex_unlock(&c->lock);
    if (comm != NULL && !(peace && end_in_peace(c, comm)))
        (void)ncclCommAbort(comm);
    (void)pthread_mutex_lock(&c->lock);
}

static void *watch(void *arg) {
    struct collective *c = arg;
    int64_t poll_ns = ns_of(least(POLL_S, c->timeout_s / 4));
    (void)pthread_mutex_lock(&c->lock);
    if (enter_device(c, &c->reason) != 0) /* else a query would make a context on GPU 0 */
        (void)give_up(c);
    c->watching = true;
    (void)pthread_cond_broadcast(&c->changed);
    while (!c->closing && !c->failed) {
        int64_t until = now_ns() + poll_ns;
        while (!c->closing && !c->failed && wait_changed(c, until))
            continue;
        if (c->closing || c->failed)
            break;
        look_at_comm(c);
        look_at_flights(c);
    }
    end_comm(c);
    c->ended = true;
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- the ring ---- */

static void flights_free(struct collective *c) {
    for (size_t i = 0; i < c->capacity; i++) {
        if (c->flights[i].before != NULL)
            (void)cudaEventDestroy(c->flights[i].before);
        if (c->flights[i].after != NULL)
            (void)cudaEventDestroy(c->flights[i].after);
    }
    free(c->flights);
}

/* With the lock held, by the main thread. Room for one more: within a few steps it is as large as a
 * step's collectives ever need. */
static int flights_room(struct collective *c, struct err *err) {
    if (c->count < c->capacity)
        return 0;
    size_t capacity = c->capacity == 0 ? FLIGHTS_FIRST : 2 * c->capacity;
    struct flight *flights = calloc(capacity, sizeof *flights);
    if (flights == NULL)
        return err_set(err, ENOMEM, "no memory for %zu collectives in flight", capacity);
    int rc = enter_device(c, err);
    if (rc != 0) {
        free(flights);
        return rc;
    }
    for (size_t i = 0; i < c->count; i++)
        flights[i] = c->flights[(c->first + i) % c->capacity];
    free(c->flights);
    c->flights = flights;
    c->first = 0;
    c->capacity = capacity;
    cudaError_t e = cudaSuccess;
    for (size_t i = c->count; i < capacity && e == cudaSuccess; i++) {
        e = cudaEventCreateWithFlags(&flights[i].before, cudaEventDisableTiming);
        if (e == cudaSuccess)
            e = cudaEventCreateWithFlags(&flights[i].after, cudaEventDisableTiming);
    }
    return cuda_err(err, e, "cudaEventCreateWithFlags");
}

/* The place of the next collective. It stays where it is while main fills it: the watchdog moves
 * the ring's start and its count by the same amount. */
static int flight_next(struct collective *c, struct flight **out) {
    (void)pthread_mutex_lock(&c->lock);
    int rc = c->failed ? -ECOMM : flights_room(c, &c->reason);
    if (rc == 0)
        *out = &c->flights[(c->first + c->count) % c->capacity];
    else if (!c->failed)
        rc = give_up(c);
    (void)pthread_mutex_unlock(&c->lock);
    return rc;
}

static void flight_add(struct collective *c) {
    (void)pthread_mutex_lock(&c->lock);
    c->count++;
    (void)pthread_mutex_unlock(&c->lock);
}

/* ---- the table ---- */

static int nccl_unique_id(uint8_t id[COLLECTIVE_ID_BYTES], struct err *err) {
    ncclUniqueId made;
    ncclResult_t r = ncclGetUniqueId(&made);
    if (r != ncclSuccess)
        return fail_nccl(err, r, "ncclGetUniqueId");
    memcpy(id, &made, sizeof made);
    return 0;
}

/* The watchdog runs from the start: a communicator that never comes to be is its to abort, too. */
static int world_new(uint32_t rank, struct device *dev, double timeout_s, struct collective **out,
                     struct err *err) {
    struct collective *c = calloc(1, sizeof *c);
    if (c == NULL)
        return err_set(err, ENOMEM, "no memory for the communicator");
    c->rank = rank;
    c->dev = dev;
    c->timeout_s = timeout_s;
    pthread_condattr_t monotonic;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&c->changed, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    (void)pthread_mutex_init(&c->lock, NULL);
    int rc = flights_room(c, err);
    if (rc == 0) {
        int code = pthread_create(&c->watchdog, NULL, watch, c);
        if (code != 0)
            rc = err_set(err, code, "pthread_create: no watchdog for the communicator");
    }
    if (rc != 0) {
        flights_free(c);
        (void)pthread_mutex_destroy(&c->lock);
        (void)pthread_cond_destroy(&c->changed);
        free(c);
        return rc;
    }
    *out = c;
    return 0;
}

static int world_join(struct collective *c, const ncclUniqueId *id, uint32_t world_size) {
    static const char call[] = "ncclCommInitRankConfig";
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    (void)pthread_mutex_lock(&c->lock);
    while (!c->watching)
        (void)pthread_cond_wait(&c->changed, &c->lock);
    int rc = c->failed ? -c->reason.code : 0;
    (void)pthread_mutex_unlock(&c->lock);
    if (rc != 0) /* there is no watchdog any more, which would end it */
        return rc;
    ncclComm_t comm = NULL;
    ncclResult_t r = ncclCommInitRankConfig(&comm, (int)world_size, *id, (int)c->rank, &config);
    (void)pthread_mutex_lock(&c->lock);
    c->comm = comm;
    c->busy = call;
    (void)pthread_mutex_unlock(&c->lock);
    if (comm != NULL)
        r = settle(c, comm, r, c->timeout_s);
    return nccl_leave(c, r, call);
}

static void nccl_close(struct collective *c) {
    if (c == NULL)
        return;
    (void)pthread_mutex_lock(&c->lock);
    c->closing = true;
    (void)pthread_cond_broadcast(&c->changed);
    int64_t until = now_ns() + ns_of(LEAVE_S + PEACE_S + ABORT_S);
    while (!c->ended && wait_changed(c, until))
        continue;
    bool ended = c->ended;
    (void)pthread_mutex_unlock(&c->lock);
    if (!ended) {
        /* NCCL's abort is known to hang at times: then it keeps what it works on, and the process
         * ends without it. */
        (void)pthread_detach(c->watchdog);
        return;
    }
    (void)pthread_join(c->watchdog, NULL);
    flights_free(c);
    (void)pthread_mutex_destroy(&c->lock);
    (void)pthread_cond_destroy(&c->changed);
    free(c);
}

static int nccl_open(const uint8_t id[COLLECTIVE_ID_BYTES], uint32_t rank, uint32_t world_size,
                     struct device *dev, double timeout_s, struct collective **out,
                     struct err *err) {
    struct collective *c = NULL;
    ncclUniqueId made;
    if (rank >= world_size || !(timeout_s > 0))
        return err_set(err, EINVAL, "rank %u of %u, a timeout of %g s: not possible", rank,
                       world_size, timeout_s);
    int rc = world_new(rank, dev, timeout_s, &c, err);
    if (rc != 0 || c == NULL)
        return rc;
    memcpy(&made, id, sizeof made);
    rc = world_join(c, &made, world_size);
    if (rc != 0) {
        (void)pthread_mutex_lock(&c->lock);
        rc = err_set(err, c->reason.code, "%s", c->reason.text);
        (void)pthread_mutex_unlock(&c->lock);
        nccl_close(c);
        return rc;
    }
    *out = c;
    return 0;
}

static int order_run(struct collective *c, struct dev_stream *s, const struct order *o,
                     ncclResult_t (*queue)(const struct order *, ncclComm_t, cudaStream_t)) {
    ncclComm_t comm = nccl_enter(c, o->call);
    if (comm == NULL)
        return -ECOMM;
    ncclResult_t r = queue(o, comm, s->call.stream);
    return nccl_leave(c, settle(c, comm, r, c->timeout_s), o->call);
}

static int record(struct collective *c, cudaEvent_t event, struct dev_stream *s) {
    cudaError_t e = cudaEventRecord(event, s->call.stream);
    return e == cudaSuccess ? 0 : give_up_cuda(c, e, "cudaEventRecord");
}

static int order_queue(struct collective *c, struct dev_stream *s, struct order order,
                       ncclResult_t (*queue)(const struct order *, ncclComm_t, cudaStream_t)) {
    struct flight *f = NULL;
    if (order.elems == 0)
        return 0;
    int rc = flight_next(c, &f);
    if (rc != 0 || f == NULL)
        return rc;
    order.number = ++c->issued;
    f->order = order;
    rc = record(c, f->before, s);
    if (rc == 0)
        rc = order_run(c, s, &order, queue);
    if (rc == 0)
        rc = record(c, f->after, s);
    if (rc == 0)
        flight_add(c);
    return rc;
}

static ncclDataType_t type_of(enum dtype t) { return t == DTYPE_BF16 ? ncclBfloat16 : ncclFloat32; }

static ncclResult_t queue_gather(const struct order *o, ncclComm_t comm, cudaStream_t stream) {
    return ncclAllGather(o->send, o->recv, o->elems, type_of(o->t), comm, stream);
}

static ncclResult_t queue_reduce(const struct order *o, ncclComm_t comm, cudaStream_t stream) {
    return ncclReduceScatter(o->send, o->recv, o->elems, type_of(o->t), ncclSum, comm, stream);
}

static int nccl_all_gather(struct collective *c, struct dev_stream *s, const void *send, void *recv,
                           enum dtype t, size_t elems) {
    struct order order = {
        .call = "ncclAllGather", .send = send, .recv = recv, .t = t, .elems = elems};
    return order_queue(c, s, order, queue_gather);
}

static int nccl_reduce_scatter(struct collective *c, struct dev_stream *s, const void *send,
                               void *recv, enum dtype t, size_t elems) {
    struct order order = {
        .call = "ncclReduceScatter", .send = send, .recv = recv, .t = t, .elems = elems};
    return order_queue(c, s, order, queue_reduce);
}

/* Looks for itself too: an error that came with the last work must not wait for the watchdog. */
static int nccl_check(struct collective *c, struct err *err) {
    (void)pthread_mutex_lock(&c->lock);
    look_at_comm(c);
    int rc = c->failed ? err_set(err, ECOMM, "%s", c->reason.text) : 0;
    (void)pthread_mutex_unlock(&c->lock);
    return rc;
}

const struct collective_ops collective_nccl = {
    .name = "nccl",
    .unique_id = nccl_unique_id,
    .open = nccl_open,
    .close = nccl_close,
    .all_gather = nccl_all_gather,
    .reduce_scatter = nccl_reduce_scatter,
    .check = nccl_check,
};
