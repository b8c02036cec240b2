/* file.h - small whole files, read with a limit and replaced atomically and durably. */
#ifndef GFS_BASE_FILE_H
#define GFS_BASE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Reads a whole file of at most max_bytes into fresh memory (caller frees), NUL-terminated beyond
 * *len_bytes. len_bytes may be NULL. -EFBIG when larger. */
int file_read(const char *path, size_t max_bytes, char **data, size_t *len_bytes, struct err *err);

/* Writes a temporary sibling (mode 0600), fsyncs, renames over path, fsyncs the directory. */
int file_replace(const char *path, const void *data, size_t len_bytes, struct err *err);

/* write(2) until all is written; -errno. pwrite likewise. */
int file_write_all(int fd, const void *data, size_t len_bytes);
int file_pread_all(int fd, void *data, size_t len_bytes,
                   uint64_t offset); /* -EIO at a short file */

/* snprintf into out for paths; -ENAMETOOLONG when it does not fit. */
int file_path(char *out, size_t cap_bytes, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Directory of the running executable, without a trailing slash. */
int file_exe_dir(char *out, size_t cap_bytes);

/* Removes a directory tree below an open directory; never follows links. Missing is success. */
int file_remove_tree(int dirfd, const char *name, struct err *err);

#endif
