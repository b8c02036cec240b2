/* fake_mount.h - mounting through fusermount3, and taking mounts away whatever happened. */
#ifndef GFS_TESTS_FAKE_MOUNT_H
#define GFS_TESTS_FAKE_MOUNT_H

#include <stdbool.h>

/* The descriptor of /dev/fuse of a new mount. Exits 77 with the reason where nothing can be
 * mounted. */
int fake_mount(const char *mnt, bool allow_other);
/* Lazily. Also at exit and by signals for the newest mount. */
void fake_unmount(const char *mnt);

#endif
