/* data_files.h - the files of the training data, found, checked and in memory. */
#ifndef GFS_ENGINE_DATA_FILES_H
#define GFS_ENGINE_DATA_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum data_kind { DATA_TEXT /* a token a byte */, DATA_U16, DATA_U32 };

struct data_file {
    char *path; /* owned */
    enum data_kind kind;
    bool mapped; /* else read, into malloc's memory */
    uint8_t *bytes;
    uint64_t size_bytes;
    const uint8_t *tokens; /* within bytes; not aligned */
    uint64_t token_count;
};

struct data_files {
    struct data_file *files; /* owned, in the order of the stream */
    size_t count, cap;
};

/* paths as in data_open. *out is closed by data_files_close. */
int data_files_open(const char *paths, struct data_files *out, struct err *err);
void data_files_close(struct data_files *files);

#endif
