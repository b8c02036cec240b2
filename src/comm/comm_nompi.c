/* comm_nompi.c - what stands in the place of MPI in a build without: a world of one rank. */
#include "config.h"

#include <errno.h>
#include <stdlib.h>

#include "comm/comm.h"
#include "comm/world.h"

int world_has_mpi(struct err *err) { return err_set(err, ENOTSUP, "built without MPI"); }

int world_start(struct err *err) { return world_has_mpi(err); }

int world_is_one_host(bool *one_host, struct err *err) {
    (void)err;
    *one_host = true;
    return 0;
}

int comm_world_init(uint32_t expected_world_size, uint32_t *rank, uint32_t *world_size,
                    struct err *err) {
    if (expected_world_size != 1)
        return err_set(err, ENOTSUP, "expected %u ranks, but gatherfs is built without MPI",
                       expected_world_size);
    *rank = 0;
    *world_size = 1;
    return 0;
}

void comm_world_finalize(void) {}

int comm_world_local(uint32_t *local_rank, uint32_t *local_size, struct err *err) {
    (void)err;
    *local_rank = 0;
    *local_size = 1;
    return 0;
}

void comm_world_abort(int status) { _Exit(status); }

static int nompi_open(const struct comm_args *args, struct comm **out, struct err *err) {
    (void)args;
    (void)out;
    return world_has_mpi(err);
}

/* comm_find refuses them before anything but the name and open can be used. */
const struct comm_ops comm_node = {.name = "node", .open = nompi_open};
const struct comm_ops comm_mpi = {.name = "mpi", .open = nompi_open};
