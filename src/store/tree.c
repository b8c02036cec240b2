/* tree.c - directories of the store. */
#include "config.h"

#include "base/file.h"
#include "store/tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

enum { TREE_MAX_DEPTH = 8 };

int tree_open_snapshots(const struct store_io *io, const char *run_dir, int *fd, struct err *err) {
    char path[PATH_MAX];
    int rc = file_path(path, sizeof(path), "%s/snapshots", run_dir);
    if (rc == 0)
        rc = io->open_dir(io->ctx, AT_FDCWD, path);
    if (rc < 0)
        return err_set(err, -rc, "%s/snapshots: cannot be opened: %s", run_dir, strerror(-rc));
    *fd = rc;
    return 0;
}

/* The entry of snapshots/ must be durable before anything in it can be. Whether this or an earlier
 * process made it is not known, so the directory that holds it is synced always. */
static int tree_sync_run_dir(const struct store_io *io, const char *run_dir, struct err *err) {
    char path[PATH_MAX];
    int rc = file_path(path, sizeof(path), "%s/.", run_dir);
    if (rc == 0)
        rc = io->open_dir(io->ctx, AT_FDCWD, path);
    if (rc >= 0) {
        int fd = rc;
        rc = io->fsync(io->ctx, fd);
        io->close(io->ctx, fd);
    }
    return rc == 0 ? 0 : err_set(err, -rc, "%s: cannot be synced: %s", run_dir, strerror(-rc));
}

int tree_make_snapshots(const struct store_io *io, const char *run_dir, int *fd, struct err *err) {
    char path[PATH_MAX];
    int rc = file_path(path, sizeof(path), "%s/snapshots", run_dir);
    if (rc == 0)
        rc = io->mkdir(io->ctx, AT_FDCWD, path);
    if (rc != 0 && rc != -EEXIST)
        return err_set(err, -rc, "%s/snapshots: cannot be made: %s", run_dir, strerror(-rc));
    rc = tree_sync_run_dir(io, run_dir, err);
    return rc == 0 ? tree_open_snapshots(io, run_dir, fd, err) : rc;
}

int tree_names(int dirfd, struct enc *out, struct err *err) {
    /* A descriptor of its own: the position of a directory stream is shared by duplicates. */
    int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (dir == NULL) {
        int code = errno;
        if (fd >= 0)
            close(fd);
        return err_set(err, code, "a directory cannot be listed: %s", strerror(code));
    }
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(dir);
        if (entry == NULL)
            break;
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            enc_bytes(out, entry->d_name, strlen(entry->d_name) + 1);
    }
    int code = errno;
    closedir(dir);
    if (code != 0)
        return err_set(err, code, "a directory cannot be listed: %s", strerror(code));
    return out->failed ? err_set(err, ENOMEM, "no memory for the names in a directory") : 0;
}

static int tree_remove_at(const struct store_io *io, int dirfd, const char *name, int depth,
                          struct err *err);

static int tree_remove_dir(const struct store_io *io, int dirfd, const char *name, int depth,
                           struct err *err) {
    struct enc names = {0};
    int fd = io->open_dir(io->ctx, dirfd, name);
    if (fd < 0)
        return fd == -ENOENT ? 0 : err_set(err, -fd, "%s: %s", name, strerror(-fd));
    int rc = depth < TREE_MAX_DEPTH ? tree_names(fd, &names, err)
                                    : err_set(err, ELOOP, "%s: nested too deep", name);
    for (size_t at = 0; rc == 0 && at < names.len_bytes;) {
        const char *entry = (const char *)names.data + at;
        rc = tree_remove_at(io, fd, entry, depth + 1, err);
        at += strlen(entry) + 1;
    }
    enc_free(&names);
    io->close(io->ctx, fd);
    if (rc != 0)
        return rc;
    rc = io->rmdir(io->ctx, dirfd, name);
    return rc == 0 || rc == -ENOENT ? 0 : err_set(err, -rc, "%s: %s", name, strerror(-rc));
}

static int tree_remove_at(const struct store_io *io, int dirfd, const char *name, int depth,
                          struct err *err) {
    int rc = io->unlink(io->ctx, dirfd, name);
    if (rc == 0 || rc == -ENOENT)
        return 0;
    if (rc != -EISDIR && rc != -EPERM)
        return err_set(err, -rc, "%s: cannot be removed: %s", name, strerror(-rc));
    return tree_remove_dir(io, dirfd, name, depth, err);
}

int tree_remove(const struct store_io *io, int dirfd, const char *name, struct err *err) {
    return tree_remove_at(io, dirfd, name, 0, err);
}
