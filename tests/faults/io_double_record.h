/* io_double_record.h - the record of an I/O double, shared by what writes it and what replays it.
 */
#ifndef GFS_TESTS_IO_DOUBLE_RECORD_H
#define GFS_TESTS_IO_DOUBLE_RECORD_H

#include "io_double.h"

enum {
    DOUBLE_NAME_BYTES = 64,
    DOUBLE_MAX_NODES = 256,
    DOUBLE_MAX_OPS = 4096,
    DOUBLE_MAX_ENTRIES = 64,
    DOUBLE_MAX_FDS = 1024,
    DOUBLE_MAX_CLASSES = 32,
    DOUBLE_ROOT = 0 /* the node of the run directory */
};

enum double_kind { DO_CREATE, DO_MKDIR, DO_RENAME, DO_REMOVE, DO_WRITE, DO_SYNC, DO_MARK };

struct double_op {
    enum double_kind kind;
    int node;                     /* directory of an entry's change; what is written or synced */
    int child;                    /* DO_CREATE, DO_MKDIR */
    char name[DOUBLE_NAME_BYTES]; /* DO_RENAME: the old one; DO_MARK: of the snapshot */
    char to[DOUBLE_NAME_BYTES];
    uint8_t *data; /* owned, DO_WRITE */
    size_t bytes;  /* of data; DO_CREATE: reserved */
    enum io_double_mark mark;
};

struct double_entry {
    char name[DOUBLE_NAME_BYTES];
    int node;
};

struct double_dir {
    struct double_entry entries[DOUBLE_MAX_ENTRIES];
    uint32_t count;
};

struct double_node {
    bool is_dir;
    const char *target;    /* for classes of fsync */
    struct double_dir now; /* what the process sees */
};

struct io_double {
    struct store_io table;
    char run_dir[4096];
    struct double_node nodes[DOUBLE_MAX_NODES];
    int node_count;
    struct double_op ops[DOUBLE_MAX_OPS];
    uint32_t op_count;
    int node_of_fd[DOUBLE_MAX_FDS]; /* -1: none */
    char phase[DOUBLE_NAME_BYTES], drop[2 * DOUBLE_NAME_BYTES];
    char class_texts[DOUBLE_MAX_CLASSES][2 * DOUBLE_NAME_BYTES];
    const char *classes[DOUBLE_MAX_CLASSES];
    uint32_t class_count;
    uint32_t calls, fail_at; /* fail_at: in calls, UINT32_MAX: never */
    int fail_code;
    bool fail_dead;
};

/* Applies the change of an entry; one that is not possible (its name is missing or taken) is
 * ignored. */
void double_dir_apply(struct double_dir *dir, const struct double_op *op);
int double_dir_find(const struct double_dir *dir, const char *name); /* index or -1 */

#endif
