/* file.h - small whole files, read with a limit and replaced atomically and durably. */
#ifndef GFS_BASE_FILE_H
#define GFS_BASE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Reads a whole file of at most max_bytes into fresh memory (caller frees), NUL-terminated beyond
 * *len_bytes. len_bytes may be NULL. -EFBIG when larger. */
int file_read(const char *path, size_t max_bytes, char **data, size_t *len_bytes, struct err *err);

/* Writes a fresh temporary sibling (path.tmp, mode 0600), fsyncs, renames over path, fsyncs the
 * directory. One writer at a time for each path. */
int file_replace(const char *path, const void *data, size_t len_bytes, struct err *err);

/* write(2) until all is written; -errno. */
int file_write_all(int fd, const void *data, size_t len_bytes);
/* pread(2) until all is read; -errno, -EIO at a short file. */
int file_pread_all(int fd, void *data, size_t len_bytes, uint64_t offset);

/* snprintf into out for paths; -ENAMETOOLONG when it does not fit. */
int file_path(char *out, size_t cap_bytes, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Directory of the running executable, without a trailing slash. */
int file_exe_dir(char *out, size_t cap_bytes);

/* Removes `name`, which is no path (-EINVAL), from an open directory: a file, or a tree of at most
 * 16 levels (-ELOOP). Never follows links. Missing is success. */
int file_remove_tree(int dirfd, const char *name, struct err *err);

#endif
