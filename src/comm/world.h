/* world.h - the start of a world and the little that is said before there is a communicator.
 *
 * With MPI: world_mpi.c. Built without: world_nompi.c, a world of one rank. Programs that fork
 * their ranks themselves link world_fork.c instead. */
#ifndef GFS_COMM_WORLD_H
#define GFS_COMM_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Starts MPI unless it is started: a world of one rank has been begun without. */
int world_start(struct err *err);
/* -ENOTSUP and the reason when there can be no other ranks. */
int world_has_peers(struct err *err);
/* Whether all ranks are on this host. A collective. */
int world_is_one_host(bool *one_host, struct err *err);
/* All ranks get what root has. A collective, after world_start. */
int world_broadcast(void *data, size_t bytes, uint32_t root, struct err *err);
/* *rc becomes the least of all ranks'. A collective, after world_start. */
int world_least(int *rc, struct err *err);

#endif
