/* snapshot_open.h - an open snapshot, for the files that read it. */
#ifndef GFS_STORE_SNAPSHOT_OPEN_H
#define GFS_STORE_SNAPSHOT_OPEN_H

#include "store/manifest.h"

struct snapshot_file {
    int fd;         /* owned; -1 before it is open */
    uint64_t bytes; /* header and dump */
    uint8_t *base;  /* mapping of all of it, NULL before the first use */
};

struct snapshot {
    struct manifest manifest;
    char *text; /* owned: the manifest as on disk */
    size_t text_bytes;
    struct snapshot_file *files; /* owned [file_count], one a rank */
    uint32_t file_count;
    char label[512]; /* names it in errors */
};

#endif
