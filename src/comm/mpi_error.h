/* mpi_error.h - where errors of MPI become ours. */
#ifndef GFS_COMM_MPI_ERROR_H
#define GFS_COMM_MPI_ERROR_H

#include <mpi.h>

#include "base/err.h"

/* 0, or -errno for what an MPI call returned: logged, with the call's name. */
int mpi_check(int rc, const char *call);
/* The same, with the sentence in *err and not in the log. */
int mpi_check_err(int rc, const char *call, struct err *err);

/* Waits for a small message that peers may be late for, without burning a core. */
int mpi_wait_idle(MPI_Request *request, const char *call);
/* Waits for a large one, which needs this process to move it; yields the core to who has work. */
int mpi_wait_busy(MPI_Request *request, const char *call);

#endif
