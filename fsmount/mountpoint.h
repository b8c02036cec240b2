/* mountpoint.h - the mount as the kernel knows it: its device, its read-ahead, its end. Never by
 * stat, which would ask us. */
#ifndef GFS_FSMOUNT_MOUNTPOINT_H
#define GFS_FSMOUNT_MOUNTPOINT_H

#include <stddef.h>
#include <sys/types.h>

/* "MAJOR:MINOR" of what is mounted at a path last, from /proc/self/mountinfo. -ENOENT. */
int mountpoint_device(const char *path, char *out, size_t cap_bytes);
/* Larger reads than the kernel would make by itself: root only, else nothing happens. */
void mountpoint_read_ahead(const char *device, unsigned kib);
/* Begins a lazy unmount if `device` is still mounted there. *helper: a child to wait for, or 0 when
 * it is done. */
void mountpoint_detach(const char *path, const char *device, pid_t *helper);

#endif
