/* knobs_check.c - settings that depend on each other, and those that stand for a choice. */
#include "config.h"

#include <errno.h>
#include <string.h>

#include "base/knobs.h"

static const char offload_file[] = "optimizer=file:";

/* Without MPI there is nothing that could start a second rank. */
#ifdef HAVE_MPI
enum { MOST_RANKS = KNOB_MAX_RANKS, RANKS_WITHOUT_GPU = 2 };
#else
enum { MOST_RANKS = 1, RANKS_WITHOUT_GPU = 1 };
#endif

const char *config_offload_dir(const char *offload) {
    size_t n = sizeof offload_file - 1;
    return strncmp(offload, offload_file, n) == 0 ? offload + n : NULL;
}

static int check_offload(const char *offload, struct err *err) {
    const char *dir = config_offload_dir(offload);
    if (strcmp(offload, "none") == 0 || strcmp(offload, "optimizer=host") == 0 || (dir && *dir))
        return 0;
    return err_set(err, EINVAL,
                   "offload = %.60s: expected none, optimizer=host or optimizer=file:DIR", offload);
}

int config_check(const struct config *c, struct err *err) {
    if (strcmp(c->reduce_dtype, "bf16") == 0 && strcmp(c->dtype, "bf16") != 0)
        return err_set(err, EINVAL,
                       "reduce_dtype = bf16, and dtype = %s: expected f32, or bf16 for both",
                       c->dtype);
    if (strcmp(c->comm, "nccl") == 0 && strcmp(c->device, "cpu") == 0)
        return err_set(err, EINVAL,
                       "comm = nccl, and device = cpu: expected auto, self, node or mpi");
    return check_offload(c->offload, err);
}

uint64_t config_ranks(const struct config *c, uint32_t gpu_count) {
    if (c->ranks)
        return c->ranks;
    if (gpu_count == 0 || strcmp(c->device, "cpu") == 0)
        return RANKS_WITHOUT_GPU;
    return gpu_count < MOST_RANKS ? gpu_count : MOST_RANKS;
}
