/* gpus.h - how many GPUs this host has, as the program of the ranks says: no device is opened in
 * this process. */
#ifndef GFS_RUN_GPUS_H
#define GFS_RUN_GPUS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/knobs.h"

/* From what `gatherfs-rank --devices` printed: the number of its lines that name a GPU. Where there
 * are none, why has its last line ("" if it said nothing). text is cut. */
uint32_t gpus_parse(char *text, char *why, size_t cap_bytes);

/* ranks = 0 becomes the number that it stands for; the program is asked only where GPUs may be
 * used. -ENODEV: they were asked for by name, and there is none. */
int gpus_choose_ranks(struct config *c, struct err *err);

#endif
