/* restore.h - loading a snapshot into the arrays, at any world size and wrap policy. */
#ifndef GFS_ENGINE_RESTORE_H
#define GFS_ENGINE_RESTORE_H

#include "comm/comm.h"
#include "engine/arrays.h"

struct restore_args {
    const struct layout *layout; /* of this world */
    uint32_t rank, world_size;
    struct arrays *arrays;
    const struct comm_ops *comm_ops;
    struct comm *comm;
    uint64_t gen; /* the arrays' version after it */
};

/* Collective. All ranks verify (each a share of the files), agree, then overwrite; a second
 * barrier, so that no rank reads another's shard before it is loaded. *step is the snapshot's.
 * Failures before the agreement leave every array as it was, on all ranks: -EBADMSG a broken
 * snapshot, -EINVAL one of another model; *changed is false then. A failure after it (*changed
 * true) must end the world. All ranks return the error of the first that found one. */
int restore_load(const struct restore_args *r, const char *dir, uint64_t *step, bool *changed,
                 struct err *err);

#endif
