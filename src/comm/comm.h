/* comm.h - collectives between the ranks of one world. Called by the rank's main thread only, in
 * the same order on all ranks.
 *
 * Streams and events: a collective is queued on a stream and is done when the stream reaches its
 * end; the CPU communicators run it at once (and the caller has synchronized before). Counts are
 * elements, above INT_MAX is fine. Members return 0 or -errno; the communicator has logged what
 * failed. */
#ifndef GFS_COMM_COMM_H
#define GFS_COMM_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "device/device.h"

struct comm;

enum comm_op { COMM_SUM, COMM_MIN, COMM_MAX };

/* Gradient slots: 0 is for unit 0 (the root), 1 for any other unit, 2 too if there are two or more.
 */
enum { COMM_GRAD_SLOTS = 3 };

/* Started once by the process: MPI_Init or nothing. rank and world_size as the launcher says; fails
 * when it did not start as many ranks as expected. One rank needs no launcher. */
int comm_world_init(uint32_t expected_world_size, uint32_t *rank, uint32_t *world_size,
                    struct err *err);
void comm_world_finalize(void);
/* ends the whole world at once */
void comm_world_abort(int status) __attribute__((noreturn));

struct comm_ops {
    const char *name;
    /* shard_elems[u], u < unit_count: elements of each unit's shard on every rank. Allocates what
     * it shares. A collective: it fails on all ranks or on none. */
    int (*open)(uint32_t rank, uint32_t world_size, const uint64_t *shard_elems,
                uint32_t unit_count, const struct device_ops *ops, struct device *dev,
                struct comm **out, struct err *err);
    void (*close)(struct comm *c);

    /* Where this rank's fp32 parameter shard of a unit lives: in the communicator's memory, zeroed
     * (node: the shared window; others: NULL, and the engine allocates). Only the owner writes it,
     * and only between a full barrier and the next boundary. */
    float *(*shard)(struct comm *c, uint32_t unit);

    /* Makes the whole unit readable: (world_size * shard_elems) floats. *view is `buffer` filled
     * from all shards, or, where the communicator can give one, a view of the shards in place
     * (valid until the boundary; buffer may be NULL then). */
    int (*all_gather)(struct comm *c, struct dev_stream *s, uint32_t unit, const float *shard,
                      float *buffer, const float **view);
    bool gather_is_view; /* buffer of all_gather is not needed */

    /* The full gradient buffer of this rank in a slot, when the communicator wants it in its own
     * memory: as large as the largest unit that uses the slot, zeroed at open. NULL: the engine
     * allocates. */
    float *(*grad_buffer)(struct comm *c, uint32_t slot);
    /* shard (shard_elems) = or += (accumulate) the sum over ranks, in a fixed order, of full's r-th
     * part. full (world_size * shard_elems) is the start of a grad_buffer, if there are such. It
     * may be written again when this is done. */
    int (*reduce_scatter)(struct comm *c, struct dev_stream *s, uint32_t unit, float *full,
                          float *shard, bool accumulate);

    /* Host memory, returns when done. All ranks get the same bits: the sum is taken in rank order.
     */
    int (*all_reduce_f64)(struct comm *c, double *inout, size_t count, enum comm_op op);
    int (*all_reduce_u64)(struct comm *c, uint64_t *inout, size_t count, enum comm_op op);
    int (*broadcast)(struct comm *c, void *data, size_t bytes, uint32_t root); /* host memory */
    int (*barrier)(struct comm *c);
};

extern const struct comm_ops comm_self, comm_node, comm_mpi;
/* "auto": self for one rank, node when all ranks are on one host, else mpi. -ENOTSUP and the reason
 * otherwise. A collective, after comm_world_init. */
int comm_find(const char *name, uint32_t world_size, const struct comm_ops **out, struct err *err);

#endif
