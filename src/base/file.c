/* file.c - whole files, replaced durably; trees removed without following links. */
#include "config.h"

#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int file_path(char *out, size_t cap_bytes, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(out, cap_bytes, fmt, ap);
    va_end(ap);
    return n < 0 || (size_t)n >= cap_bytes ? -ENAMETOOLONG : 0;
}

int file_write_all(int fd, const void *data, size_t len_bytes) {
    const uint8_t *p = data;
    while (len_bytes > 0) {
        ssize_t n = write(fd, p, len_bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        p += n;
        len_bytes -= (size_t)n;
    }
    return 0;
}

int file_pread_all(int fd, void *data, size_t len_bytes, uint64_t offset) {
    uint8_t *p = data;
    while (len_bytes > 0) {
        ssize_t n = pread(fd, p, len_bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        p += n;
        offset += (uint64_t)n;
        len_bytes -= (size_t)n;
    }
    return 0;
}

int file_read(const char *path, size_t max_bytes, char **data, size_t *len_bytes, struct err *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, errno, "%s: cannot be read: %s", path, strerror(errno));
    size_t cap = 4096, len = 0;
    char *buf = malloc(cap + 1);
    int rc = buf != NULL ? 0 : -ENOMEM;
    while (rc == 0) {
        ssize_t n = read(fd, buf + len, cap - len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            rc = -errno;
        if (n <= 0)
            break;
        len += (size_t)n;
        if (len > max_bytes) {
            rc = -EFBIG;
            break;
        }
        if (len == cap) {
            char *more = realloc(buf, cap * 2 + 1);
            if (more == NULL) {
                rc = -ENOMEM;
                break;
            }
            buf = more;
            cap *= 2;
        }
    }
    close(fd);
    if (rc != 0) {
        free(buf);
        return err_set(err, -rc, "%s: cannot be read: %s", path,
                       rc == -EFBIG ? "larger than expected" : strerror(-rc));
    }
    buf[len] = '\0';
    *data = buf;
    if (len_bytes != NULL)
        *len_bytes = len;
    return 0;
}

static int file_sync_dir_of(const char *path) {
    char dir[4096];
    int rc = file_path(dir, sizeof(dir), "%s", path);
    if (rc != 0)
        return rc;
    char *slash = strrchr(dir, '/');
    if (slash == NULL)
        memcpy(dir, ".", 2);
    else
        slash[slash == dir ? 1 : 0] = '\0';
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    rc = fsync(fd) == 0 ? 0 : -errno;
    close(fd);
    return rc;
}

int file_replace(const char *path, const void *data, size_t len_bytes, struct err *err) {
    char tmp[4096];
    int rc = file_path(tmp, sizeof(tmp), "%s.tmp", path);
    if (rc != 0)
        return err_set(err, -rc, "%s: the path is too long", path);
    /* One that a crash left behind may have another mode, or a second name: it is not written to.
     */
    unlink(tmp);
    int fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_set(err, errno, "%s: cannot create: %s", path, strerror(errno));
    const char *what = "write";
    rc = file_write_all(fd, data, len_bytes);
    if (rc == 0 && fsync(fd) != 0)
        rc = -errno;
    if (close(fd) != 0 && rc == 0)
        rc = -errno;
    if (rc != 0)
        goto failed;
    what = "rename";
    if (rename(tmp, path) != 0) {
        rc = -errno;
        goto failed;
    }
    what = "sync the folder of";
    rc = file_sync_dir_of(path);
    if (rc == 0)
        return 0;
failed:
    unlink(tmp);
    return err_set(err, -rc, "%s: cannot %s: %s", path, what, strerror(-rc));
}

int file_exe_dir(char *out, size_t cap_bytes) {
    ssize_t n = readlink("/proc/self/exe", out, cap_bytes);
    if (n < 0)
        return -errno;
    if ((size_t)n >= cap_bytes)
        return -ENAMETOOLONG;
    out[n] = '\0';
    char *slash = strrchr(out, '/');
    if (slash == NULL)
        return -ENOENT;
    *slash = '\0';
    return 0;
}

static int file_remove_at(int dirfd, const char *name, int depth) {
    if (unlinkat(dirfd, name, 0) == 0 || errno == ENOENT)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return -errno;
    if (depth > 16)
        return -ELOOP;
    int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    DIR *dir = fdopendir(fd);
    if (dir == NULL) {
        int rc = -errno;
        close(fd);
        return rc;
    }
    int rc = 0;
    struct dirent *entry;
    while (rc == 0 && (entry = readdir(dir)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            rc = file_remove_at(fd, entry->d_name, depth + 1);
    closedir(dir);
    if (rc == 0 && unlinkat(dirfd, name, AT_REMOVEDIR) != 0 && errno != ENOENT)
        rc = -errno;
    return rc;
}

int file_remove_tree(int dirfd, const char *name, struct err *err) {
    /* ".." would lead out of the folder, and links may stand within a longer path. */
    bool one_name = *name != '\0' && strchr(name, '/') == NULL && strcmp(name, ".") != 0 &&
                    strcmp(name, "..") != 0;
    int rc = one_name ? file_remove_at(dirfd, name, 0) : -EINVAL;
    return rc == 0 ? 0 : err_set(err, -rc, "%s: cannot be removed: %s", name, strerror(-rc));
}
