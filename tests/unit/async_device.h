/* async_device.h - a double of a device that runs late and has memory of its own: streams, events,
 * copies, and nothing that computes.
 *
 * What is queued runs at some later call, of any thread, in an order that the seed decides; on one
 * stream it stays in order, and a wait is kept. Device memory can't be touched by the host
 * (PROT_NONE), fresh memory and the target of a copy that has not run hold rubbish. The double
 * aborts on what a device may do anything with: copies to and from memory that is not pinned, out
 * of range, and memory, events or streams closed while they are in use or never. */
#ifndef GFS_TESTS_ASYNC_DEVICE_H
#define GFS_TESTS_ASYNC_DEVICE_H

#include "device/device.h"

enum async_order {
    ASYNC_EAGER,     /* all that can run does, at once */
    ASYNC_LAZY,      /* only what somebody waits for */
    ASYNC_LATE_TAKE, /* the TAKE stream is lazy, all others eager: what lacks a wait goes wrong */
    ASYNC_RANDOM,
    ASYNC_ORDERS
};

/* open is not in it: see below. */
extern const struct device_ops async_device_ops;
struct device *async_device_open(enum async_order order, uint64_t seed);

/* Device memory = src (copied now), in two parts, between which other streams may run. */
void async_device_write(struct device *d, struct dev_stream *s, void *dst, const void *src,
                        size_t bytes);
/* dst = device memory as it is now. */
void async_device_peek(struct device *d, void *dst, const void *src, size_t bytes);
/* What is queued on the streams of a kind. */
uint32_t async_device_pending(struct device *d, enum dev_stream_kind kind);

/* The nth (from 1) call of now on that has to do with the TAKE stream (copy, event_record,
 * stream_wait, event_synchronize, alloc, event_open) fails; with `dead` all after it too. 0: none
 * does. */
void async_device_fail(struct device *d, uint64_t nth, bool dead);
/* How many such calls there were. */
uint64_t async_device_calls(struct device *d);
/* How often the calling thread has called event_synchronize on an event of the TAKE stream. */
uint64_t async_device_waits(void);

/* What goes to stderr from now on goes nowhere, or again where it went before. */
void async_device_quiet(bool quiet);

/* While it is shut, event_synchronize does not return to other threads than the one that shut it.
 * Opening it returns when all who stood there have gone on. */
void async_device_gate(struct device *d, bool shut);
/* Waits until a thread stands at the gate. */
void async_device_wait_gate(struct device *d);
/* Lets those go on who stand at the gate, and waits until a thread stands there again. */
void async_device_next_at_gate(struct device *d);

#endif
