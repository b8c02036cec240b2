/* gpu_list.h - the GPUs of this host, through the plugin that would open them. None is opened. */
#ifndef GFS_ENGINE_GPU_LIST_H
#define GFS_ENGINE_GPU_LIST_H

#include <stdint.h>

#include "base/err.h"

/* How many devices of this name ("cuda"; "auto" is the same) there are. -ENODEV and why there is
 * none; *out is then 0. */
int gpu_count(const char *device, uint32_t *out, struct err *err);

/* `gatherfs-rank --devices [NAME]`: a line "INDEX NAME BYTES bytes" on stdout for each; or the
 * reason on stdout, and 1. The exit status. */
int gpu_list_main(int argc, char **argv);

#endif
