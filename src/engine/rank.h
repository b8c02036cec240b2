/* rank.h - one rank of a world, from hello to bye. */
#ifndef GFS_ENGINE_RANK_H
#define GFS_ENGINE_RANK_H

#include <stdint.h>

struct rank_options {
    const char *run_dir;
    uint64_t epoch;
    uint32_t world_size; /* as the supervisor expects it */
};

/* Runs until the agenda says quit. The exit status of the process. */
int rank_run(const struct rank_options *o);

#endif
