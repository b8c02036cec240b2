/* rank_main.c - gatherfs-rank: a rank of a run, the plan of one, or the GPUs that there are for
 * one. Started by `gatherfs run`, `gatherfs plan` and `gatherfs devices`. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/parse.h"
#include "engine/gpu_list.h"
#include "engine/plan.h"
#include "engine/rank.h"
#include "shard/layout.h"

static const char usage[] =
    "usage: gatherfs-rank --run-dir DIR --epoch N --world-size N\n"
    "       gatherfs-rank --plan [OPTION]...\n"
    "       gatherfs-rank --devices [NAME]\n"
    "A rank of a sharded run. It is started by `gatherfs run`, through the MPI launcher when\n"
    "there is more than one; `gatherfs plan` starts it with --plan, `gatherfs devices` with\n"
    "--devices.\n";

static int parse_options(int argc, char **argv, struct rank_options *o) {
    for (int i = 1; i + 1 < argc; i += 2) {
        uint64_t v = 0;
        if (strcmp(argv[i], "--run-dir") == 0)
            o->run_dir = argv[i + 1];
        else if (strcmp(argv[i], "--epoch") == 0 && parse_u64(argv[i + 1], &v) == 0)
            o->epoch = v;
        else if (strcmp(argv[i], "--world-size") == 0 && parse_u64(argv[i + 1], &v) == 0 &&
                 v >= 1 && v <= LAYOUT_MAX_RANKS)
            o->world_size = (uint32_t)v;
        else
            return 2;
    }
    return argc % 2 == 1 && o->run_dir != NULL && o->epoch != 0 && o->world_size != 0 ? 0 : 2;
}

int main(int argc, char **argv) {
    struct rank_options o = {0};
    log_open("rank", LEVEL_INFO);
    if (argc > 1 && strcmp(argv[1], "--plan") == 0)
        return plan_main(argc - 2, argv + 2);
    if (argc > 1 && strcmp(argv[1], "--devices") == 0)
        return gpu_list_main(argc - 2, argv + 2);
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        fputs(usage, stdout);
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        printf("gatherfs-rank %s\n", PACKAGE_VERSION);
        return 0;
    }
    if (parse_options(argc, argv, &o) != 0) {
        fputs(usage, stderr);
        return 2;
    }
    return rank_run(&o);
}
