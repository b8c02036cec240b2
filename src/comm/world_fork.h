/* world_fork.h - a world of processes that one program forks: for programs that have no launcher.
 * In the place of world_mpi.c. */
#ifndef GFS_COMM_WORLD_FORK_H
#define GFS_COMM_WORLD_FORK_H

#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

enum { WORLD_FORK_MAX = 64 };
enum { WORLD_FORK_PARENT = UINT32_MAX };

/* Forks `size` ranks: *rank is the rank in each of them, and WORLD_FORK_PARENT in the caller, who
 * waits for pids[0..size) and ends the others when one fails. Before anything that does not survive
 * a fork: threads, a GPU. */
int world_fork(uint32_t size, pid_t pids[WORLD_FORK_MAX], uint32_t *rank, struct err *err);

#endif
