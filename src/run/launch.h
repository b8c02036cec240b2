/* launch.h - the command line of the ranks. */
#ifndef GFS_RUN_LAUNCH_H
#define GFS_RUN_LAUNCH_H

#include "base/knobs.h"
#include "run/rundir.h"

enum { LAUNCH_MAX_ARGS = 32, LAUNCH_MAX_ENV = 32 };

struct launch {
    const char
        *argv[LAUNCH_MAX_ARGS + 1]; /* NULL-terminated; point into this struct, or are constants */
    const char *env[LAUNCH_MAX_ENV + 2]; /* pairs, NULL-terminated */
    char program[RUNDIR_PATH_BYTES], run_dir[RUNDIR_PATH_BYTES], tmp[RUNDIR_PATH_BYTES + 8];
    char epoch[24], ranks[24], threads[24];
};

/* Path of the program of the ranks. GATHERFS_RANK_PROGRAM (a hook for tests) names another one. */
int launch_program(char *out, size_t cap_bytes, struct err *err);

/* One rank is started directly, several by the launcher of the MPI that we were built with.
 * c->ranks is not 0. */
int launch_prepare(const struct config *c, const char *run_dir, uint64_t epoch, struct launch *out,
                   struct err *err);

#endif
