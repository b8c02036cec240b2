/* world.h - the start of MPI, for the communicators that need it. With MPI: world_mpi.c; built
 * without: comm_nompi.c. */
#ifndef GFS_COMM_WORLD_H
#define GFS_COMM_WORLD_H

#include <stdbool.h>

#include "base/err.h"

/* Starts MPI unless it is started: a world of one rank has been begun without. */
int world_start(struct err *err);
/* -ENOTSUP and the reason when there is no MPI. */
int world_has_mpi(struct err *err);
/* Whether all ranks are on this host. A collective. */
int world_is_one_host(bool *one_host, struct err *err);

#endif
