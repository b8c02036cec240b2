/* io.c - the real file operations of the store. */
#include "config.h"

#include "base/file.h"
#include "store/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static int io_open_dir(void *ctx, int dirfd, const char *name) {
    (void)ctx;
    int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd >= 0 ? fd : -errno;
}

static int io_mkdir(void *ctx, int dirfd, const char *name) {
    (void)ctx;
    return mkdirat(dirfd, name, 0700) == 0 ? 0 : -errno;
}

/* Reserving is what makes a full disk an early error; a filesystem that cannot reserve says ENOSPC
 * at a write. */
static int io_reserve(int fd, uint64_t bytes) {
    int rc;
    if (bytes == 0)
        return 0;
    do
        rc = fallocate(fd, 0, 0, (off_t)bytes) == 0 ? 0 : -errno;
    while (rc == -EINTR);
    return rc == -EOPNOTSUPP || rc == -ENOSYS ? 0 : rc;
}

static int io_create(void *ctx, int dirfd, const char *name, uint64_t reserve_bytes) {
    (void)ctx;
    int fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    int rc = io_reserve(fd, reserve_bytes);
    if (rc == 0)
        return fd;
    close(fd);
    unlinkat(dirfd, name, 0);
    return rc;
}

static int io_write(void *ctx, int fd, const void *data, size_t len_bytes) {
    (void)ctx;
    return file_write_all(fd, data, len_bytes);
}

static int io_fsync(void *ctx, int fd) {
    (void)ctx;
    return fsync(fd) == 0 ? 0 : -errno;
}

static int io_rename_new(void *ctx, int dirfd, const char *from, const char *to) {
    (void)ctx;
    if (renameat2(dirfd, from, dirfd, to, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -errno;
    /* This filesystem cannot rename without replacing. What is renamed here is a directory that is
     * not empty, and so is whatever may appear under the new name after this look: then the rename
     * fails. */
    struct stat st;
    if (fstatat(dirfd, to, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return -EEXIST;
    if (errno != ENOENT)
        return -errno;
    if (renameat(dirfd, from, dirfd, to) == 0)
        return 0;
    return errno == ENOTEMPTY || errno == ENOTDIR ? -EEXIST : -errno;
}

static int io_unlink(void *ctx, int dirfd, const char *name) {
    (void)ctx;
    return unlinkat(dirfd, name, 0) == 0 ? 0 : -errno;
}

static int io_rmdir(void *ctx, int dirfd, const char *name) {
    (void)ctx;
    return unlinkat(dirfd, name, AT_REMOVEDIR) == 0 ? 0 : -errno;
}

static void io_close(void *ctx, int fd) {
    (void)ctx;
    close(fd);
}

const struct store_io store_io_posix = {
    .open_dir = io_open_dir,
    .mkdir = io_mkdir,
    .create = io_create,
    .write = io_write,
    .fsync = io_fsync,
    .rename_new = io_rename_new,
    .unlink = io_unlink,
    .rmdir = io_rmdir,
    .close = io_close,
};
