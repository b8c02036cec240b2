/* emu_queue.c - streams and events: handles, what is queued, and the errors that stick. */
#include "config.h"

#include "tests/cuda/emu_queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/emu_control.h"
#include "tests/cuda/emu_memory.h"
#include "tests/cuda/emu_queue_internal.h"

static const uint64_t STREAM_MAGIC = 0x6766735f73747265, EVENT_MAGIC = 0x6766735f6576656e;

struct CUstream_st *emu_streams;
static struct CUevent_st *events;
static uint32_t stream_numbers, event_numbers;
static cudaError_t device_errors[EMU_DEVICE_MAX];

static void *must_calloc(size_t bytes) {
    void *p = calloc(1, bytes);
    if (p == NULL)
        emu_die("emulation", "no memory");
    return p;
}

/* ---- handles ---- */

static void must_be_stream(const char *call, cudaStream_t s) {
    if (s == NULL || s == cudaStreamLegacy || s == cudaStreamPerThread)
        emu_die(call, "the default stream is not modelled");
    if (s->magic != STREAM_MAGIC)
        emu_die(call, "%p is not a stream", (void *)s);
    if (!s->open)
        emu_die(call, "stream %u is destroyed", s->number);
}

static void must_be_event(const char *call, cudaEvent_t e) {
    if (e == NULL)
        emu_die(call, "the event is NULL");
    if (e->magic != EVENT_MAGIC)
        emu_die(call, "%p is not an event", (void *)e);
    if (!e->open)
        emu_die(call, "event %u is destroyed", e->number);
}

int emu_check_stream(const char *call, cudaStream_t s) {
    emu_lock();
    must_be_stream(call, s);
    int device = s->device;
    emu_unlock();
    return device;
}

cudaStream_t emu_queue_open(int device, unsigned flags, int priority) {
    struct CUstream_st *s = must_calloc(sizeof *s);
    s->magic = STREAM_MAGIC;
    s->number = ++stream_numbers;
    s->device = device;
    s->flags = flags;
    s->priority = priority;
    s->open = true;
    s->clock = emu_race_stream(s->number);
    s->next = emu_streams;
    emu_streams = s;
    return s;
}

/* A stream that is closed and has nothing left to do is no actor any more. */
static void end_of_stream(struct CUstream_st *s) {
    if (s->open || s->head != NULL || s->clock == NULL)
        return;
    emu_race_stream_gone(s->clock);
    s->clock = NULL;
}

void emu_queue_close(const char *call, cudaStream_t s) {
    must_be_stream(call, s);
    s->open = false;
    end_of_stream(s);
}

cudaEvent_t emu_event_open(int device, unsigned flags) {
    struct CUevent_st *e = must_calloc(sizeof *e);
    e->magic = EVENT_MAGIC;
    e->number = ++event_numbers;
    e->device = device;
    e->flags = flags;
    e->open = true;
    e->next = events;
    events = e;
    return e;
}

void emu_event_close(const char *call, cudaEvent_t e) {
    must_be_event(call, e);
    e->open = false;
    emu_record_put(e->last);
    e->last = NULL;
}

void emu_record_put(struct emu_record *r) {
    if (r == NULL || --r->references > 0)
        return;
    emu_race_clock_free(r->clock);
    free(r);
}

/* ---- memory that operations touch ---- */

static size_t range_span(const struct emu_range *r) {
    return r->rows == 0 || r->row_bytes == 0 ? 0 : (r->rows - 1) * r->pitch_bytes + r->row_bytes;
}

void emu_check_range(const char *call, const char *what, const struct emu_range *r,
                     unsigned kinds) {
    char text[160];
    size_t span = range_span(r);
    if (span == 0)
        return;
    emu_lock();
    const struct emu_allocation *a = emu_memory_find(r->start);
    if (a == NULL)
        emu_die(call, "%s (%p) is neither device nor pinned memory", what, r->start);
    emu_memory_describe(a, text, sizeof text);
    size_t offset = (size_t)((uintptr_t)r->start - (uintptr_t)a->start);
    if (a->freed)
        emu_die(call, "%s is byte %zu of %s", what, offset, text);
    if ((kinds & a->kind) == 0)
        emu_die(call, "%s is in %s, of the wrong kind", what, text);
    if (span > a->bytes - offset)
        emu_die(call, "%s, bytes %zu to %zu, is out of range of %s", what, offset, offset + span,
                text);
    emu_unlock();
}

/* ---- queueing ---- */

static struct emu_queued *append(cudaStream_t s, enum emu_queue_type type) {
    struct emu_queued *q = must_calloc(sizeof *q);
    q->type = type;
    q->sequence = ++s->queued;
    q->host = emu_race_host_now();
    if (s->head == NULL)
        s->head = q;
    else
        s->tail->next = q;
    s->tail = q;
    return q;
}

void emu_queue(cudaStream_t s, const struct emu_op *op) {
    emu_lock();
    must_be_stream(op->name, s);
    if (op->range_count > EMU_RANGES || (op->run == NULL) == (op->poll == NULL))
        emu_die(op->name, "emu_queue: more than %d ranges, or not one of run and poll", EMU_RANGES);
    for (size_t i = 0; i < op->range_count; i++)
        emu_check_range(op->name, op->ranges[i].write ? "what it writes" : "what it reads",
                        &op->ranges[i], EMU_DEVICE | EMU_PINNED);
    append(s, EMU_OP_WORK)->op = *op;
    if (device_errors[s->device] != cudaSuccess)
        emu_schedule_drop(s);
    else if (op->poll != NULL)
        emu_schedule_peer_work();
    emu_schedule_some();
    emu_unlock();
}

cudaError_t emu_event_record(const char *call, cudaEvent_t e, cudaStream_t s) {
    must_be_event(call, e);
    must_be_stream(call, s);
    if (e->device != s->device)
        return cudaErrorInvalidResourceHandle;
    struct emu_record *r = must_calloc(sizeof *r);
    struct emu_queued *q = append(s, EMU_OP_RECORD);
    r->references = 2;
    r->stream = s;
    r->sequence = q->sequence;
    q->record = r;
    emu_record_put(e->last);
    e->last = r;
    emu_schedule_some();
    return cudaSuccess;
}

/* The record that the event stands for now; NULL: none, which CUDA takes for one that is done. */
static struct emu_record *record_of(const char *call, cudaEvent_t e) {
    must_be_event(call, e);
    if (e->last == NULL && emu_get_settings().strict)
        emu_die(call, "event %u was never recorded", e->number);
    return e->last;
}

void emu_event_wait(const char *call, cudaStream_t s, cudaEvent_t e) {
    must_be_stream(call, s);
    struct emu_record *r = record_of(call, e);
    if (r == NULL)
        return;
    r->references++;
    append(s, EMU_OP_WAIT)->record = r;
    emu_schedule_some();
}

/* ---- the host waits ---- */

void emu_queue_synchronize(const char *call, cudaStream_t s) {
    must_be_stream(call, s);
    emu_schedule_until(s, s->queued, true);
    emu_race_host_learns(s->clock);
}

void emu_queue_finish_closed(void) {
    for (struct CUstream_st *s = emu_streams; s != NULL; s = s->next)
        if (!s->open && s->head != NULL) {
            if (!emu_schedule_until(s, s->queued, false))
                emu_schedule_drop(s);
            end_of_stream(s);
        }
}

void emu_queue_synchronize_device(int device) {
    for (struct CUstream_st *s = emu_streams; s != NULL; s = s->next)
        if (s->device == device) {
            emu_schedule_until(s, s->queued, true);
            emu_race_host_learns(s->clock);
        }
}

bool emu_queue_query(const char *call, cudaStream_t s) {
    must_be_stream(call, s);
    bool asked = s->asked == s->queued;
    s->asked = s->queued;
    emu_schedule_some();
    if (s->done < s->queued && (!asked || !emu_schedule_until(s, s->queued, false)))
        return false;
    emu_race_host_learns(s->clock);
    return true;
}

void emu_event_synchronize(const char *call, cudaEvent_t e) {
    struct emu_record *r = record_of(call, e);
    if (r == NULL)
        return;
    r->references++; /* another thread may record again while this one waits */
    if (!r->done)
        emu_schedule_until(r->stream, r->sequence, true);
    emu_race_host_learns(r->clock);
    emu_record_put(r);
}

bool emu_event_query(const char *call, cudaEvent_t e) {
    struct emu_record *r = record_of(call, e);
    if (r == NULL)
        return true;
    bool asked = r->asked;
    r->asked = true;
    emu_schedule_some();
    if (!r->done && (!asked || !emu_schedule_until(r->stream, r->sequence, false)))
        return false;
    emu_race_host_learns(r->clock);
    return true;
}

cudaError_t emu_event_elapsed(const char *call, float *ms, cudaEvent_t from, cudaEvent_t to) {
    must_be_event(call, from);
    must_be_event(call, to);
    if (((from->flags | to->flags) & cudaEventDisableTiming) != 0)
        emu_die(call, "an event that was made with cudaEventDisableTiming");
    if (from->last == NULL || to->last == NULL)
        return cudaErrorInvalidResourceHandle;
    if (!from->last->done || !to->last->done)
        return cudaErrorNotReady;
    *ms = (float)((to->last->seconds - from->last->seconds) * 1e3);
    return cudaSuccess;
}

/* ---- errors that stick ---- */

cudaError_t emu_queue_error(int device) { return device_errors[device]; }

void emu_queue_break(int device, cudaError_t error) {
    if (device_errors[device] != cudaSuccess)
        return;
    device_errors[device] = error;
    for (struct CUstream_st *s = emu_streams; s != NULL; s = s->next)
        if (s->device == device)
            emu_schedule_drop(s);
}

void emu_queue_forget_errors(void) { memset(device_errors, 0, sizeof device_errors); }

cudaError_t emu_device_error(cudaStream_t s) {
    emu_lock();
    must_be_stream("emu_device_error", s);
    cudaError_t error = device_errors[s->device];
    emu_unlock();
    return error;
}

/* ---- what is left ---- */

static size_t count_streams(bool print) {
    size_t n = 0;
    for (const struct CUstream_st *s = emu_streams; s != NULL; s = s->next) {
        if (s->open && print)
            fprintf(stderr, "emulation: stream %u is open\n", s->number);
        n += s->open;
        for (const struct emu_queued *q = s->head; q != NULL; q = q->next) {
            if (q->type != EMU_OP_WORK)
                continue;
            if (print)
                fprintf(stderr, "emulation: %s never ran, on stream %u\n", q->op.name, s->number);
            n++;
        }
    }
    return n;
}

static size_t count_events(bool print) {
    size_t n = 0;
    for (const struct CUevent_st *e = events; e != NULL; e = e->next) {
        if (e->open && print)
            fprintf(stderr, "emulation: event %u is open\n", e->number);
        n += e->open;
    }
    return n;
}

size_t emu_leaks(bool print) {
    emu_lock();
    emu_queue_finish_closed();
    size_t n = count_streams(print) + count_events(print);
    const struct emu_allocation *a;
    for (size_t i = 0; (a = emu_memory_at(i)) != NULL; i++) {
        char text[160];
        if (a->freed)
            continue;
        emu_memory_describe(a, text, sizeof text);
        if (print)
            fprintf(stderr, "emulation: %s is not freed\n", text);
        n++;
    }
    emu_unlock();
    return n;
}
