/* emu_queue_internal.h - streams, events and their operations, for emu_queue.c (what they are) and
 * emu_schedule.c (when they run). */
#ifndef GFS_TESTS_CUDA_EMU_QUEUE_INTERNAL_H
#define GFS_TESTS_CUDA_EMU_QUEUE_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/cuda/emu_queue.h"
#include "tests/cuda/emu_race.h"
#include "tests/cuda/emu_stream.h"

/* One cudaEventRecord: what waits refer to. Belongs to the event and to the operations that name
 * it. */
struct emu_record {
    unsigned references;
    bool done;
    bool asked;                 /* a query has answered: not yet */
    struct CUstream_st *stream; /* done when this has run operation number `sequence` */
    uint64_t sequence;
    double seconds; /* of the clock, when done */
    struct emu_clock *clock;
};

enum emu_queue_type { EMU_OP_WORK, EMU_OP_RECORD, EMU_OP_WAIT };

struct emu_queued {
    struct emu_queued *next;
    enum emu_queue_type type;
    uint64_t sequence;
    struct emu_op op;          /* EMU_OP_WORK */
    struct emu_record *record; /* the others */
    struct emu_clock *host;    /* what the host knew when it queued this */
};

/* Streams and events are never freed, so that use after the end is seen. */
struct CUstream_st {
    uint64_t magic;
    struct CUstream_st *next;
    uint32_t number;
    int device, priority;
    unsigned flags;
    bool open;
    struct emu_queued *head, *tail;
    uint64_t queued, done; /* sequence of the last */
    uint64_t asked;        /* a query has answered "not yet" for this many */
    bool blocked;          /* its head waits for a peer, this time round */
    struct emu_clock *clock;
};

struct CUevent_st {
    uint64_t magic;
    struct CUevent_st *next;
    uint32_t number;
    int device;
    unsigned flags;
    bool open;
    struct emu_record *last;
};

extern struct CUstream_st *emu_streams; /* all that ever were */

void emu_record_put(struct emu_record *r); /* may be NULL */

/* Runs what is needed until s has done its operation `sequence`. may_wait: for peers, with the lock
 * let go in between (held once on entry). False: it needs a peer. */
bool emu_schedule_until(struct CUstream_st *s, uint64_t sequence, bool may_wait);
/* After something was queued or asked: runs as much as the order says. */
void emu_schedule_some(void);
/* What is queued on s never runs. */
void emu_schedule_drop(struct CUstream_st *s);
/* s has work that waits for a peer. */
void emu_schedule_peer_work(void);

#endif
