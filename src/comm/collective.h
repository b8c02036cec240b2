/* collective.h - the table of collectives that run on a device, between devices: NCCL.
 *
 * Only the bulk goes this way; what ranks say to each other on the host stays with a host
 * communicator, which also spreads the id. All members are called by the rank's main thread, in the
 * same order on all ranks. */
#ifndef GFS_COMM_COLLECTIVE_H
#define GFS_COMM_COLLECTIVE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "device/device.h"

struct collective;

enum { COLLECTIVE_ID_BYTES = 128 };

struct collective_ops {
    const char *name; /* "nccl" */
    /* One rank makes the id of a new world, and all get it before open. */
    int (*unique_id)(uint8_t id[COLLECTIVE_ID_BYTES], struct err *err);
    /* A collective. Peers that do not come within timeout_s seconds are an error (-ETIMEDOUT), as
     * is two ranks on one device (-ENOTSUP). timeout_s is also how long a queued collective may
     * make no progress once it is the first of its stream. */
    int (*open)(const uint8_t id[COLLECTIVE_ID_BYTES], uint32_t rank, uint32_t world_size,
                struct device *dev, double timeout_s, struct collective **out, struct err *err);
    /* After a failure it aborts what is queued and never waits for a peer. */
    void (*close)(struct collective *c);

    /* recv (world_size * elems) = send (elems) of all ranks. send may be its own part of recv. */
    int (*all_gather)(struct collective *c, struct dev_stream *s, const void *send, void *recv,
                      enum dtype t, size_t elems);
    /* recv (elems) = sum over ranks of the rank-th part of send (world_size * elems), in t. The
     * order of the sum is NCCL's. recv may be its own part of send. */
    int (*reduce_scatter)(struct collective *c, struct dev_stream *s, const void *send, void *recv,
                          enum dtype t, size_t elems);
    /* 0, or -ECOMM and what the watchdog saw: from then on everything queued completes with
     * undefined content and nothing of it may be used. Call it after each synchronize. */
    int (*check)(struct collective *c, struct err *err);
};

#endif
