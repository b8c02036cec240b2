/* offload_file.h - inside the offload: a scratch file without a name, read and written by a thread
 * of its own in the order of the jobs. */
#ifndef GFS_ENGINE_OFFLOAD_FILE_H
#define GFS_ENGINE_OFFLOAD_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct offload_file;

enum { OFFLOAD_ALIGN_BYTES = 4096 };

/* All of its bytes are reserved, and read as zeros. */
int offload_file_open(const char *dir, uint64_t bytes, struct offload_file **out, struct err *err);
/* Ends the jobs under way. */
void offload_file_close(struct offload_file *f);

struct offload_job {
    bool write;
    uint64_t offset; /* in the file; these three are multiples of OFFLOAD_ALIGN_BYTES */
    void *data;
    size_t bytes;
    /* Called before the job, by the file's thread: 0 or -errno. NULL: nothing to wait for. */
    int (*before)(void *ctx);
    void *ctx;
};
/* The number of the job, for wait. Jobs run one after the other. At most 4 may be under way. */
uint64_t offload_file_start(struct offload_file *f, const struct offload_job *job);
/* 0, or the failure of the first job that failed: from then on all fail. */
int offload_file_wait(struct offload_file *f, uint64_t job);

/* At once, by any thread, of any range. The range is under no job. */
int offload_file_read(struct offload_file *f, uint64_t offset, size_t bytes, void *dst);
int offload_file_write(struct offload_file *f, uint64_t offset, size_t bytes, const void *src);
const char *offload_file_why(const struct offload_file *f);

#endif
