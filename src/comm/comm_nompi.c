/* comm_nompi.c - what stands in the place of comm_mpi.c in a build without MPI. */
#include "config.h"

#include <errno.h>

#include "comm/comm.h"

static int nompi_open(const struct comm_args *args, struct comm **out, struct err *err) {
    (void)args, (void)out;
    return err_set(err, ENOTSUP, "built without MPI");
}

/* Nothing but the name and open can be used. */
const struct comm_ops comm_mpi = {.name = "mpi", .open = nompi_open};
