/* host_part.h - inside communicators of devices: what they leave to a communicator of the host.
 *
 * Each begins its struct comm with a struct host_part; these functions are members of its comm_ops.
 */
#ifndef GFS_COMM_HOST_PART_H
#define GFS_COMM_HOST_PART_H

#include "comm/comm.h"

struct host_part {
    const struct comm_ops *ops;
    struct comm *comm; /* owned: NULL until it is open */
};

int host_all_reduce_f64(struct comm *c, double *inout, size_t count, enum comm_op op);
int host_all_reduce_u64(struct comm *c, uint64_t *inout, size_t count, enum comm_op op);
int host_broadcast(struct comm *c, void *data, size_t bytes, uint32_t root);
int host_barrier(struct comm *c);
/* For shard and grad_buffer: the engine allocates. */
void *host_no_memory(struct comm *c, uint32_t unit_or_slot);

#endif
