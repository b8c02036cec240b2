/* comm.h - collectives between the ranks of one world. Called by the rank's main thread only, in
 * the same order on all ranks.
 *
 * Streams and events: a collective is queued on a stream and is done when the stream reaches its
 * end. self, node and mpi work on memory of the host and run it at once, so they are for devices
 * whose memory the host reads (device_ops.host_access). staged puts one of them behind a device
 * with memory of its own, by way of pinned memory: the host then waits for the stream. nccl is
 * queued. Counts are elements, above INT_MAX is fine. Members return 0 or -errno; the communicator
 * has logged what failed.
 *
 * Order of sums: self, node, mpi and staged add the ranks' parts in rank order (mpi: beginning with
 * the own rank, in a fixed order), in f32, and round once: a repeated run gives the same bits. nccl
 * adds in the order of its algorithm and in the dtype of the reduction. */
#ifndef GFS_COMM_COMM_H
#define GFS_COMM_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "device/device.h"

struct comm;
struct comm_ops;
struct collective_ops;

enum comm_op { COMM_SUM, COMM_MIN, COMM_MAX };

/* Gradient slots: 0 is for unit 0 (the root), 1 for any other unit, 2 too if there are two or more.
 */
enum { COMM_GRAD_SLOTS = 3 };

/* Started once by the process: MPI_Init or nothing. rank and world_size as the launcher says; fails
 * when it did not start as many ranks as expected. One rank needs no launcher. */
int comm_world_init(uint32_t expected_world_size, uint32_t *rank, uint32_t *world_size,
                    struct err *err);
void comm_world_finalize(void);
/* This rank among those of its host. A collective, after comm_world_init. */
int comm_world_local(uint32_t *local_rank, uint32_t *local_size, struct err *err);
/* ends the whole world at once */
void comm_world_abort(int status) __attribute__((noreturn));

struct comm_args {
    uint32_t rank, world_size;
    const uint64_t *shard_elems; /* [unit_count]: elements of each unit's shard, on every rank */
    uint32_t unit_count;
    enum dtype param_dtype, reduce_dtype; /* of gathered units; of the gradients that are summed */
    const struct device_ops *ops;         /* borrowed until close */
    struct device *dev;
    const struct comm_ops *host;              /* staged and nccl: the communicator of the host */
    const struct collective_ops *collectives; /* nccl only */
    double timeout_s;                         /* nccl: how long a collective may make no progress */
};

struct comm_ops {
    const char *name;
    /* Allocates what it shares. A collective: it fails on all ranks or on none. */
    int (*open)(const struct comm_args *args, struct comm **out, struct err *err);
    void (*close)(struct comm *c);

    /* Where this rank's shard of a unit, as it is gathered (param_dtype), lies: in the
     * communicator's memory, zeroed (node: the shared window; others: NULL, and the engine
     * allocates). Where param_dtype is f32 it is the master copy as well. Only the owner writes it,
     * and only between a full barrier and the next boundary. */
    void *(*shard)(struct comm *c, uint32_t unit);

    /* Optional. The shards are of another version than at the last all_gather. */
    void (*shards_changed)(struct comm *c);
    /* Makes the whole unit readable: (world_size * shard_elems) of param_dtype. *view is `buffer`
     * filled from all shards, or, where the communicator can give one, a view of the shards in
     * place (valid until the boundary; buffer may be NULL then). */
    int (*all_gather)(struct comm *c, struct dev_stream *s, uint32_t unit, const void *shard,
                      void *buffer, const void **view);
    bool gather_is_view; /* buffer of all_gather is not needed */

    /* The full gradient buffer of this rank in a slot, when the communicator wants it in its own
     * memory: as large as the largest unit that uses the slot, zeroed at open. NULL: the engine
     * allocates. */
    void *(*grad_buffer)(struct comm *c, uint32_t slot);
    /* shard (shard_elems) = or += (accumulate) the sum over ranks of full's r-th part. full
     * (world_size * shard_elems) of reduce_dtype is the start of a grad_buffer, if there are such.
     * It may be written again when this is done, and its content is undefined. */
    int (*reduce_scatter)(struct comm *c, struct dev_stream *s, uint32_t unit, void *full,
                          float *shard, bool accumulate);
    /* Optional. After a synchronize: 0, or the failure of a peer or of the transport, after which
     * nothing that was queued may be used. */
    int (*check)(struct comm *c, struct err *err);

    /* Optional. Tells of each block that is its own. */
    void (*memory)(const struct comm *c, dev_memory_fn *tell, void *ctx);

    /* Host memory, returns when done. All ranks get the same bits: the sum is taken in rank order.
     */
    int (*all_reduce_f64)(struct comm *c, double *inout, size_t count, enum comm_op op);
    int (*all_reduce_u64)(struct comm *c, uint64_t *inout, size_t count, enum comm_op op);
    int (*broadcast)(struct comm *c, void *data, size_t bytes, uint32_t root); /* host memory */
    int (*barrier)(struct comm *c);
};

extern const struct comm_ops comm_self, comm_node, comm_mpi, comm_staged, comm_nccl;
/* Fills in ops of the communicator and args->host, for the device that is open in args. "auto":
 * self for one rank; on a device with memory of its own nccl where every rank has a device to
 * itself; node when all ranks are on one host, else mpi (staged, on such a device). -ENOTSUP and
 * the reason otherwise. A collective, after comm_world_init. */
int comm_find(const char *name, struct comm_args *args, const struct comm_ops **out,
              struct err *err);
/* Whether all ranks came this far: 0, or on each of them the reason of the first that failed by
 * itself (that others waited for it in vain explains nothing). rc, *err: of this rank. A collective
 * of a communicator that is open. */
int comm_agree(const struct comm_ops *ops, struct comm *host, uint32_t rank, int rc,
               struct err *err);

#endif
