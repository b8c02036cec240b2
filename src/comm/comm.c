/* comm.c - which communicator a world uses. */
#include "config.h"

#include "comm/comm.h"

#include <errno.h>
#include <string.h>

#include "comm/world.h"

static int find_node(uint32_t world_size, bool must, const struct comm_ops **out, struct err *err) {
    bool one_host = true;
    int rc = world_size > 1 ? world_is_one_host(&one_host, err) : 0;
    if (rc != 0)
        return rc;
    if (!one_host && must)
        return err_set(err, ENOTSUP,
                       "comm = node shares memory, but the ranks are on several hosts: use mpi");
    *out = one_host ? &comm_node : &comm_mpi;
    return 0;
}

int comm_find(const char *name, uint32_t world_size, const struct comm_ops **out, struct err *err) {
    bool automatic = strcmp(name, "auto") == 0;
    if (strcmp(name, "self") == 0 || (automatic && world_size == 1)) {
        if (world_size != 1)
            return err_set(err, ENOTSUP,
                           "comm = self is for one rank, and there are %u: use auto, node or mpi",
                           world_size);
        *out = &comm_self;
        return 0;
    }
    if (!automatic && strcmp(name, "node") != 0 && strcmp(name, "mpi") != 0)
        return err_set(err, EINVAL, "unknown communicator '%s': auto, self, node or mpi", name);
    if (world_has_mpi(NULL) != 0) {
        struct err why = {0};
        (void)world_has_mpi(&why);
        return err_set(err, ENOTSUP, "comm = %s: %s", name, why.text);
    }
    if (strcmp(name, "mpi") != 0)
        return find_node(world_size, !automatic, out, err);
    *out = &comm_mpi;
    return 0;
}
