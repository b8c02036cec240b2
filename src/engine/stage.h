/* stage.h - copies between memory that only the device can read and any memory of the host, by way
 * of pinned memory.
 *
 * Out: a copy is cut into pieces. stage_queue puts a piece on the TAKE stream, into a free slot of
 * a ring of pinned memory; stage_drain waits for it and moves it from the slot to where it belongs.
 * What is queued is safe from a write on another stream as soon as that stream has to wait for it
 * (stage_fence): the host need not wait, and the slots are drained at leisure. Several threads may
 * drain, each another piece.
 *
 *   SLOT_FREE -----> SLOT_QUEUED     stage_queue: the copy and its event are on the stream
 *   SLOT_QUEUED ---> SLOT_DRAINING   stage_drain, the oldest first
 *   SLOT_DRAINING -> SLOT_FREE       stage_drain: the bytes are where they belong
 *   SLOT_QUEUED ---> SLOT_FREE       stage_cancel: nobody wants them
 *   SLOT_DRAINING -> SLOT_LOST       stage_drain: the device failed
 *
 * A lost slot is never used again, as the device may still write to it. With the first one, or when
 * the device refuses all it is told, the stage has failed: what is queued later fails at once, and
 * nobody waits for a device that is dead.
 *
 * In: stage_upload, through two slots of its own, on the same stream.
 *
 * Any thread may call, if not said otherwise. No lock of the stage is held while somebody waits for
 * the device (but for a device that fails, in stage_fence). */
#ifndef GFS_ENGINE_STAGE_H
#define GFS_ENGINE_STAGE_H

#include "base/err.h"
#include "device/device.h"

struct stage;

/* What a rank uses: 32 MiB in flight, and a second pair of hands, since one core moves bytes slower
 * than they come. */
enum { STAGE_SLOT_BYTES = 4 << 20, STAGE_SLOT_COUNT = 8, STAGE_THREAD_COUNT = 2 };

struct stage_args {
    const struct device_ops *ops; /* borrowed, as is the device */
    struct device *dev;
    size_t slot_bytes;   /* >= 1 */
    uint32_t slot_count; /* >= 1 */
    uint32_t threads;    /* that only drain; 0: whoever calls stage_drain does it all */
};

/* One copy out of the device. Zeroed, then src, dst and bytes set, before the first stage_queue. */
struct stage_copy {
    const uint8_t *src; /* device memory; unchanged until all is queued and fenced */
    uint8_t *dst;       /* host memory, until it has come out of stage_next_finished or cancelled */
    size_t bytes;
    void *owner; /* the caller's */
    /* the stage's */
    size_t queued_bytes;
    uint64_t ticket; /* of the piece that was queued last, for stage_fence; 0: none */
    uint32_t pieces; /* in slots */
    bool closed;     /* stage_queue has returned true */
    int rc;          /* of the first failure */
    struct stage_copy *next, **prev; /* in the list of the finished */
};

/* The streams and all memory; starts the threads. */
int stage_open(const struct stage_args *args, struct stage **out, struct err *err);
/* Every copy is finished or cancelled, no other thread calls. Waits for the device. NULL is fine.
 */
void stage_close(struct stage *s);
/* Tells of its pinned memory. */
void stage_memory(const struct stage *s, dev_memory_fn *tell, void *ctx);
/* wake is called by the threads of the stage whenever a slot is free again or a copy is finished,
 * and must not call the stage. NULL: nobody is told. */
void stage_set_wake(struct stage *s, void (*wake)(void *ctx), void *ctx);

/* Queues as many pieces as there are free slots; never waits. True: all pieces are queued, or the
 * copy has failed: it will come out of stage_next_finished. False: no room for the rest, or someone
 * else is in a hurry (stage_hurry). One thread at a time for one copy. */
bool stage_queue(struct stage *s, struct stage_copy *c, bool urgent);
/* While it is on, stage_queue takes slots for urgent copies only. One thread at a time. */
void stage_hurry(struct stage *s, bool on);
/* Waits until there may be a free slot: drains a piece, or waits for who is draining one. */
void stage_make_room(struct stage *s);
/* What is queued on `writer` from now on runs after the piece of that ticket, and all before it,
 * have been read. The host waits only if the device can't be told to. `writer` is used by the
 * calling thread. */
void stage_fence(struct stage *s, uint64_t ticket, struct dev_stream *writer);

/* Waits for the oldest piece that nobody drains yet and moves it. False: there is none. */
bool stage_drain(struct stage *s);
/* 0; or -errno and the sentence, once the stage has failed. */
int stage_failed(struct stage *s, struct err *err);
/* The next copy that is complete (rc 0: all bytes are at dst) or has failed (rc -errno: the content
 * of dst is undefined); NULL: none. */
struct stage_copy *stage_next_finished(struct stage *s);
/* Takes a copy out, whatever its state; afterwards nobody touches it or its dst. Waits for pieces
 * that are being drained. */
void stage_cancel(struct stage *s, struct stage_copy *c);

/* dst (bytes of device memory) = what fill gives, piece by piece in ascending order: bytes
 * [offset, offset + bytes) to `to`, which is host memory; a failure of it (-errno) ends the upload.
 * Done when it returns. One thread at a time. */
int stage_upload(struct stage *s, void *dst, size_t bytes,
                 int (*fill)(void *ctx, size_t offset, size_t bytes, void *to), void *ctx,
                 struct err *err);

#endif
