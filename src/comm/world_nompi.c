/* world_nompi.c - the world of a build without MPI: one rank. */
#include "config.h"

#include <errno.h>
#include <stdlib.h>

#include "comm/comm.h"
#include "comm/world.h"

int world_has_peers(struct err *err) { return err_set(err, ENOTSUP, "built without MPI"); }

int world_start(struct err *err) { return world_has_peers(err); }

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

int world_broadcast(void *data, size_t bytes, uint32_t root, struct err *err) {
    (void)data, (void)bytes, (void)root, (void)err;
    return 0;
}

int world_least(int *rc, struct err *err) {
    (void)rc, (void)err;
    return 0;
}
