/* io.h - the table of file operations of the store: the real ones, or the test double that records
 * and loses. */
#ifndef GFS_STORE_IO_H
#define GFS_STORE_IO_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* All return -errno. dirfd-relative, like the system calls they stand for. */
struct store_io {
    void *ctx;
    int (*open_dir)(void *ctx, int dirfd, const char *name);
    int (*mkdir)(void *ctx, int dirfd, const char *name);
    int (*create)(void *ctx, int dirfd, const char *name,
                  uint64_t reserve_bytes); /* O_EXCL 0600, fallocate; fd */
    int (*write)(void *ctx, int fd, const void *data, size_t len_bytes); /* all of it */
    int (*fsync)(void *ctx, int fd);                                     /* file or directory */
    int (*rename_new)(void *ctx, int dirfd, const char *from,
                      const char *to); /* never replaces: -EEXIST */
    int (*unlink)(void *ctx, int dirfd, const char *name);
    int (*rmdir)(void *ctx, int dirfd, const char *name);
    void (*close)(void *ctx, int fd);
};
extern const struct store_io store_io_posix;

#endif
