/* mountpoint.h - mounting and unmounting; the mountpoint is never looked at by stat, which a dead
 * mount may hang. */
#ifndef GFS_RUN_MOUNTPOINT_H
#define GFS_RUN_MOUNTPOINT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

enum mount_kind {
    MOUNT_NONE,    /* nothing is mounted there */
    MOUNT_OURS,    /* a mount of gatherfs */
    MOUNT_FOREIGN, /* something else */
};
/* What /proc/self/mountinfo says of an absolute path: the topmost mount there. device (may be
 * NULL): "MAJOR:MINOR". */
enum mount_kind mountpoint_kind(const char *path, char device[32]);

struct mountpoint {
    char path[4096];
    char device[32]; /* MAJOR:MINOR of our mount, to know it again */
    int fuse_fd;     /* owned */
};
#define MOUNTPOINT_EMPTY ((struct mountpoint){.fuse_fd = -1})

/* Makes the directory if it is missing; refuses one that is not empty; takes a dead mount of
 * gatherfs away. A live one is refused too: how to tell them apart is the caller's: it holds the
 * lock of the run directory. */
int mountpoint_open(const char *path, bool allow_other, struct mountpoint *out, struct err *err);
/* Is our mount still there? */
bool mountpoint_is_mounted(const struct mountpoint *m);
/* Unmounts, lazily if it is busy, and closes the descriptor. *lazy (may be NULL) says how. */
void mountpoint_close(struct mountpoint *m, bool *lazy);

#endif
