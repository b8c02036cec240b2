/* launch.c - the command line of the ranks, and what the launchers need in their environment. */
#include "config.h"

#include "run/launch.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/file.h"
#include "run/child.h"

enum { LAUNCH_ROOM_BYTES = 5 << 20 }; /* a rank, as Open MPI 4.1 was seen to use */

/* Threads a rank: as set, else the cores we may use divided by the ranks. */
static uint64_t launch_threads(const struct config *c) {
    cpu_set_t set;
    if (c->threads)
        return c->threads;
    int cores = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    uint64_t threads = (uint64_t)cores / c->ranks;
    return threads ? threads : 1;
}

static void add_arg(struct launch *l, size_t *n, const char *arg) {
    if (*n < LAUNCH_MAX_ARGS)
        l->argv[(*n)++] = arg;
    l->argv[*n] = NULL;
}

static void add_env(struct launch *l, size_t *n, const char *name, const char *value) {
    if (*n + 2 <= LAUNCH_MAX_ENV) {
        l->env[(*n)++] = name;
        l->env[(*n)++] = value;
    }
    l->env[*n] = NULL;
}

/* What is needed to start: as root, with more ranks than cores, with all cores for the threads of a
 * rank; what a killed job leaves behind goes to the run directory. */
static void add_launcher(struct launch *l, size_t *args, size_t *env) {
    bool is_openmpi = strcmp(GFS_MPI_NAME, "openmpi") == 0;
    add_arg(l, args, GFS_MPI_LAUNCHER);
    add_arg(l, args, is_openmpi ? "--bind-to" : "-bind-to");
    add_arg(l, args, "none");
    if (is_openmpi) {
        add_arg(l, args, "--oversubscribe");
        add_env(l, env, "OMPI_ALLOW_RUN_AS_ROOT", "1");
        add_env(l, env, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        add_env(l, env, "HWLOC_HIDE_ERRORS", "2"); /* a chroot without /sys */
        add_env(l, env, "OMPI_MCA_orte_tmpdir_base", l->tmp);
        add_env(l, env, "OMPI_MCA_btl_vader_backing_directory", l->tmp);
    }
    add_arg(l, args, "-n");
    add_arg(l, args, l->ranks);
}

/* Open MPI keeps files of some megabytes for each rank there, and hangs without a word when they do
 * not fit. */
static int check_room(const char *run_dir, uint64_t ranks, struct err *err) {
    struct statvfs st;
    if (strcmp(GFS_MPI_NAME, "openmpi") != 0 || statvfs(run_dir, &st) != 0)
        return 0;
    uint64_t free_bytes = (uint64_t)st.f_bavail * st.f_frsize;
    uint64_t needed_bytes = (ranks + 1) * LAUNCH_ROOM_BYTES;
    if (free_bytes >= needed_bytes)
        return 0;
    return err_set(err, ENOSPC,
                   "%s: %" PRIu64 " MB are free there, and starting %" PRIu64
                   " ranks needs %" PRIu64 " MB: make room, or give another --run-dir",
                   run_dir, free_bytes >> 20, ranks, needed_bytes >> 20);
}

int launch_program(char *out, size_t cap_bytes, struct err *err) {
    const char *hook = getenv("GATHERFS_RANK_PROGRAM");
    if (!hook)
        return child_program("gatherfs-rank", out, cap_bytes, err);
    snprintf(out, cap_bytes, "%s", hook);
    return 0;
}

int launch_prepare(const struct config *c, const char *run_dir, uint64_t epoch, struct launch *out,
                   struct err *err) {
    struct launch *l = out;
    size_t args = 0, env = 0;
    memset(l, 0, sizeof *l);
    if (c->ranks > 1 && !*GFS_MPI_LAUNCHER)
        return err_set(err, EINVAL,
                       "ranks = %" PRIu64
                       ": this gatherfs was built without MPI and has one rank only",
                       c->ranks);
    if (c->ranks > 1 && check_room(run_dir, c->ranks, err))
        return -err->code;
    if (launch_program(l->program, sizeof l->program, err))
        return -err->code;
    snprintf(l->run_dir, sizeof l->run_dir, "%s", run_dir);
    snprintf(l->tmp, sizeof l->tmp, "%s/tmp", run_dir);
    snprintf(l->epoch, sizeof l->epoch, "%" PRIu64, epoch);
    snprintf(l->ranks, sizeof l->ranks, "%" PRIu64, c->ranks);
    snprintf(l->threads, sizeof l->threads, "%" PRIu64, launch_threads(c));
    if (c->ranks > 1)
        add_launcher(l, &args, &env);
    static const char *const threads_of[] = {"OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"};
    for (size_t i = 0; i < 2; i++)
        if (!getenv(threads_of[i]))
            add_env(l, &env, threads_of[i], l->threads);
    const char *const rest[] = {l->program, "--run-dir",    l->run_dir, "--epoch",
                                l->epoch,   "--world-size", l->ranks};
    for (size_t i = 0; i < sizeof rest / sizeof rest[0]; i++)
        add_arg(l, &args, rest[i]);
    return 0;
}
