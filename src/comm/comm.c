/* comm.c - which communicator a world uses. */
#include "config.h"

#include "comm/comm.h"

#include <errno.h>
#include <string.h>

#include "comm/world.h"

/* node or mpi, as asked or as the hosts allow. */
static int find_host(const char *name, uint32_t world_size, const struct comm_ops **out,
                     struct err *err) {
    bool one_host = true;
    if (world_has_peers(NULL) != 0) {
        struct err why = {0};
        (void)world_has_peers(&why);
        return err_set(err, ENOTSUP, "comm = %s: %s", name, why.text);
    }
    *out = &comm_mpi;
    if (strcmp(name, "mpi") == 0)
        return 0;
    int rc = world_size > 1 ? world_is_one_host(&one_host, err) : 0;
    if (rc != 0)
        return rc;
    if (!one_host && strcmp(name, "node") == 0)
        return err_set(err, ENOTSUP,
                       "comm = node shares memory, but the ranks are on several hosts: use mpi");
    if (one_host)
        *out = &comm_node;
    return 0;
}

/* What a rank says of its device. */
struct device_news {
    struct device_properties properties;
    struct err why; /* code 0: they are known */
};

/* Whether two ranks have the same device; a device without an id is nobody else's. A collective: if
 * a rank can't ask its device, all hear why. */
static int devices_shared(const struct comm_args *args, bool *shared, struct err *err) {
    struct comm_args alone = *args;
    struct comm *comm = NULL;
    struct device_news mine = {0}, other;
    struct err why = {0};
    alone.unit_count = 0;
    *shared = false;
    int rc = args->host->open(&alone, &comm, err);
    if (rc != 0)
        return rc;
    int asked = args->ops->properties(args->dev, &mine.properties);
    if (asked != 0)
        (void)device_failed(args->ops, args->dev, asked, &mine.why, "asking the device of rank %u",
                            args->rank);
    for (uint32_t r = 0; r < args->world_size && rc == 0; r++) {
        other = mine;
        rc = args->host->broadcast(comm, &other, sizeof other, r);
        if (rc == 0 && why.code == 0)
            why = other.why;
        if (r != args->rank && other.properties.id[0] != '\0' &&
            strcmp(other.properties.id, mine.properties.id) == 0)
            *shared = true;
    }
    uint64_t any = *shared;
    if (rc == 0)
        rc = args->host->all_reduce_u64(comm, &any, 1, COMM_MAX);
    args->host->close(comm);
    *shared = any != 0;
    if (rc != 0)
        return err_set(err, -rc, "the ranks could not compare their devices");
    return why.code != 0 ? err_set(err, why.code, "%s", why.text) : 0;
}

int comm_agree(const struct comm_ops *ops, struct comm *host, uint32_t rank, int rc,
               struct err *err) {
    uint64_t weight = rc == 0 ? 0 : rc == -ETIMEDOUT || rc == -ECOMM ? 1 : 2;
    uint64_t worst = weight << 32 | (UINT32_MAX - rank);
    struct err why = {0};
    int agreed = ops->all_reduce_u64(host, &worst, 1, COMM_MAX);
    if (agreed == 0 && worst >> 32 == 0)
        return 0;
    uint32_t cause = UINT32_MAX - (uint32_t)worst;
    if (agreed == 0 && cause == rank)
        why = *err;
    if (agreed == 0)
        agreed = ops->broadcast(host, &why, sizeof why, cause);
    if (agreed != 0)
        return rc != 0 ? rc
                       : err_set(err, -agreed, "the ranks could not agree on the communicator");
    why.text[sizeof why.text - 1] = '\0';
    *err = (struct err){0};
    return err_set(err, why.code != 0 ? why.code : ECOMM, "%s", why.text);
}

/* For a device whose memory the host can't read. */
static int find_device(const char *name, struct comm_args *args, const struct comm_ops **out,
                       struct err *err) {
    bool nccl = strcmp(name, "nccl") == 0, shared = false;
    int rc = find_host(nccl ? "auto" : name, args->world_size, &args->host, err);
    if (rc != 0)
        return rc;
    *out = &comm_staged;
    if (!nccl && strcmp(name, "auto") != 0)
        return 0;
    if (args->collectives == NULL)
        return nccl ? err_set(err, ENOTSUP,
                              "comm = nccl: device %s was built without NCCL; use node or mpi",
                              args->ops->name)
                    : 0;
    rc = devices_shared(args, &shared, err);
    if (rc == 0 && nccl && shared)
        return err_set(err, ENOTSUP,
                       "comm = nccl: two ranks share a GPU, which NCCL refuses; use comm = node or "
                       "mpi, or no more ranks than GPUs");
    if (!shared)
        *out = &comm_nccl;
    return rc;
}

int comm_find(const char *name, struct comm_args *args, const struct comm_ops **out,
              struct err *err) {
    static const char *const names[] = {"auto", "self", "node", "mpi", "nccl"};
    bool known = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        known = known || strcmp(name, names[i]) == 0;
    if (!known)
        return err_set(err, EINVAL, "unknown communicator '%s': auto, self, node, mpi or nccl",
                       name);
    if (strcmp(name, "self") == 0 && args->world_size != 1)
        return err_set(err, ENOTSUP,
                       "comm = self is for one rank, and there are %u: use auto, node or mpi",
                       args->world_size);
    if (strcmp(name, "self") == 0 || (strcmp(name, "auto") == 0 && args->world_size == 1)) {
        *out = &comm_self;
        return 0;
    }
    if (!args->ops->host_access)
        return find_device(name, args, out, err);
    if (strcmp(name, "nccl") == 0)
        return err_set(err, ENOTSUP, "comm = nccl is for GPUs, and the device is %s: use auto",
                       args->ops->name);
    return find_host(name, args->world_size, out, err);
}
