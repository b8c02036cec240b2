/* world_mpi.c - the world that an MPI launcher started. */
#include "config.h"

#include "comm/world.h"

#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <stdlib.h>

#include "comm/comm.h"
#include "comm/mpi_error.h"

/* MPI allocates the temporary of a collective for each call. Without this, malloc gives it back to
 * the kernel each time, and most of the call's time goes into page faults. */
static void world_tune_malloc(void) {
    (void)mallopt(M_MMAP_THRESHOLD, 1 << 30);
    (void)mallopt(M_TRIM_THRESHOLD, INT_MAX);
    (void)mallopt(M_TOP_PAD, 1 << 20);
}

/* How many ranks a launcher says it started, 0 if there was none that we know. */
static long world_launched(void) {
    static const char *const vars[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
    for (size_t i = 0; i < sizeof vars / sizeof *vars; i++) {
        const char *value = getenv(vars[i]);
        if (value != NULL)
            return strtol(value, NULL, 10);
    }
    return 0;
}

int world_has_peers(struct err *err) {
    (void)err;
    return 0;
}

int world_start(struct err *err) {
    int started = 0, provided = 0;
    int rc = mpi_check_err(MPI_Initialized(&started), "MPI_Initialized", err);
    if (rc != 0 || started)
        return rc;
    world_tune_malloc();
    rc = mpi_check_err(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided),
                       "MPI_Init_thread", err);
    if (rc != 0)
        return rc;
    if (provided < MPI_THREAD_FUNNELED)
        return err_set(err, ENOTSUP,
                       "this MPI allows no other threads beside the one that calls it "
                       "(MPI_THREAD_FUNNELED)");
    return mpi_check_err(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN),
                         "MPI_Comm_set_errhandler", err);
}

int comm_world_init(uint32_t expected_world_size, uint32_t *rank, uint32_t *world_size,
                    struct err *err) {
    int size = 1, me = 0;
    long launched = world_launched();
    world_tune_malloc();
    if (expected_world_size != 1 || launched > 1) {
        int rc = world_start(err);
        if (rc == 0)
            rc = mpi_check_err(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size", err);
        if (rc == 0)
            rc = mpi_check_err(MPI_Comm_rank(MPI_COMM_WORLD, &me), "MPI_Comm_rank", err);
        if (rc != 0)
            return rc;
    }
    if (size == 1 && expected_world_size > 1)
        return err_set(
            err, EINVAL,
            "expected %u ranks, but this world has one: gatherfs is built with %s, whose "
            "launcher is %s; that of another MPI starts worlds of one rank",
            expected_world_size, GFS_MPI_NAME, GFS_MPI_LAUNCHER);
    if ((uint32_t)size != expected_world_size)
        return err_set(err, EINVAL, "expected %u ranks, but %s started %d", expected_world_size,
                       GFS_MPI_LAUNCHER, size);
    *rank = (uint32_t)me;
    *world_size = (uint32_t)size;
    return 0;
}

void comm_world_finalize(void) {
    int started = 0, ended = 0;
    if (MPI_Initialized(&started) == MPI_SUCCESS && started &&
        MPI_Finalized(&ended) == MPI_SUCCESS && !ended)
        (void)MPI_Finalize();
}

void comm_world_abort(int status) {
    int started = 0, ended = 0;
    if (MPI_Initialized(&started) == MPI_SUCCESS && started &&
        MPI_Finalized(&ended) == MPI_SUCCESS && !ended)
        (void)MPI_Abort(MPI_COMM_WORLD, status);
    _Exit(status);
}

/* This rank among the ranks that share memory. */
static int host_place(int *rank, int *size, struct err *err) {
    MPI_Comm host = MPI_COMM_NULL;
    int rc = mpi_check_err(
        MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host),
        "MPI_Comm_split_type", err);
    if (rc != 0)
        return rc;
    rc = mpi_check_err(MPI_Comm_size(host, size), "MPI_Comm_size", err);
    if (rc == 0)
        rc = mpi_check_err(MPI_Comm_rank(host, rank), "MPI_Comm_rank", err);
    (void)MPI_Comm_free(&host);
    return rc;
}

int world_is_one_host(bool *one_host, struct err *err) {
    int size = 0, host_size = 0, host_rank = 0;
    int rc = world_start(err);
    if (rc == 0)
        rc = mpi_check_err(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size", err);
    if (rc == 0)
        rc = host_place(&host_rank, &host_size, err);
    if (rc != 0)
        return rc;
    /* Every rank sees a part of the world or all of it: equal sizes mean the same on all ranks. */
    *one_host = host_size == size;
    return 0;
}

int comm_world_local(uint32_t *local_rank, uint32_t *local_size, struct err *err) {
    int started = 0, rank = 0, size = 1;
    int rc = mpi_check_err(MPI_Initialized(&started), "MPI_Initialized", err);
    if (rc == 0 && started)
        rc = host_place(&rank, &size, err);
    *local_rank = (uint32_t)rank;
    *local_size = (uint32_t)size;
    return rc;
}

int world_broadcast(void *data, size_t bytes, uint32_t root, struct err *err) {
    return mpi_check_err(MPI_Bcast(data, (int)bytes, MPI_BYTE, (int)root, MPI_COMM_WORLD),
                         "MPI_Bcast", err);
}

int world_least(int *rc, struct err *err) {
    int mine = *rc;
    return mpi_check_err(MPI_Allreduce(&mine, rc, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD),
                         "MPI_Allreduce", err);
}
