/* io_double.c - does, and records. */
#include "config.h"

#include "io_double_record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int double_dir_find(const struct double_dir *dir, const char *name) {
    for (uint32_t i = 0; i < dir->count; i++)
        if (strcmp(dir->entries[i].name, name) == 0)
            return (int)i;
    return -1;
}

void double_dir_apply(struct double_dir *dir, const struct double_op *op) {
    int at = double_dir_find(dir, op->name);
    switch (op->kind) {
    case DO_CREATE:
    case DO_MKDIR:
        if (at >= 0 || dir->count == DOUBLE_MAX_ENTRIES)
            return;
        memcpy(dir->entries[dir->count].name, op->name, DOUBLE_NAME_BYTES);
        dir->entries[dir->count++].node = op->child;
        return;
    case DO_RENAME:
        if (at >= 0 && double_dir_find(dir, op->to) < 0)
            memcpy(dir->entries[at].name, op->to, DOUBLE_NAME_BYTES);
        return;
    case DO_REMOVE:
        if (at >= 0)
            dir->entries[at] = dir->entries[--dir->count];
        return;
    default:
        return;
    }
}

/* ---- recording */

static void double_limit(bool ok, const char *what) {
    if (ok)
        return;
    fprintf(stderr, "io_double: too many %s\n", what);
    exit(99);
}

static struct double_op *double_record(struct io_double *d, enum double_kind kind, int node,
                                       const char *name) {
    double_limit(d->op_count < DOUBLE_MAX_OPS, "operations");
    struct double_op *op = &d->ops[d->op_count++];
    *op = (struct double_op){.kind = kind, .node = node, .child = -1};
    snprintf(op->name, sizeof(op->name), "%s", name);
    return op;
}

/* Records the change of an entry, and applies it to what the process sees. */
static struct double_op *double_change(struct io_double *d, enum double_kind kind, int dir,
                                       const char *name, const char *to, int child) {
    struct double_op *op = double_record(d, kind, dir, name);
    op->child = child;
    snprintf(op->to, sizeof(op->to), "%s", to);
    double_dir_apply(&d->nodes[dir].now, op);
    return op;
}

static int double_node_new(struct io_double *d, bool is_dir, const char *name) {
    double_limit(d->node_count < DOUBLE_MAX_NODES, "nodes");
    struct double_node *n = &d->nodes[d->node_count];
    *n = (struct double_node){.is_dir = is_dir};
    n->target = !is_dir ? (strncmp(name, "rank", 4) == 0 ? "rank" : "manifest")
                : strcmp(name, "snapshots") == 0 ? "snapshots"
                                                 : "tmp";
    return d->node_count++;
}

/* Counts a call; returns the error it must fail with, or 0. */
static int double_call(struct io_double *d) {
    uint32_t call = d->calls++;
    bool fails = call == d->fail_at || (d->fail_dead && call > d->fail_at);
    return fails ? -d->fail_code : 0;
}

/* Turns a path relative to AT_FDCWD or to an open directory into (directory node, last name). */
static int double_resolve(const struct io_double *d, int dirfd, const char *path,
                          const char **name) {
    *name = path;
    if (dirfd != AT_FDCWD)
        return d->node_of_fd[dirfd];
    size_t len = strlen(d->run_dir);
    if (strncmp(path, d->run_dir, len) != 0 || path[len] != '/')
        return -1;
    int node = DOUBLE_ROOT;
    const char *part = path + len + 1;
    for (const char *slash; (slash = strchr(part, '/')) != NULL; part = slash + 1) {
        char one[DOUBLE_NAME_BYTES];
        snprintf(one, sizeof(one), "%.*s", (int)(slash - part), part);
        int at = double_dir_find(&d->nodes[node].now, one);
        if (at < 0)
            return -1;
        node = d->nodes[node].now.entries[at].node;
    }
    *name = part;
    return node;
}

static void double_bind(struct io_double *d, int fd, int node) {
    double_limit(fd < DOUBLE_MAX_FDS, "descriptors");
    d->node_of_fd[fd] = node;
}

static int double_open_dir(void *ctx, int dirfd, const char *path) {
    struct io_double *d = ctx;
    const char *name;
    int rc = double_call(d);
    if (rc != 0)
        return rc;
    int dir = double_resolve(d, dirfd, path, &name);
    int fd = store_io_posix.open_dir(NULL, dirfd, path);
    if (fd < 0)
        return fd;
    int at = dir >= 0 && strcmp(name, ".") != 0 ? double_dir_find(&d->nodes[dir].now, name) : -1;
    double_bind(d, fd, at >= 0 ? d->nodes[dir].now.entries[at].node : dir);
    return fd;
}

static int double_mkdir(void *ctx, int dirfd, const char *path) {
    struct io_double *d = ctx;
    const char *name;
    int rc = double_call(d);
    if (rc == 0)
        rc = store_io_posix.mkdir(NULL, dirfd, path);
    if (rc != 0)
        return rc;
    int dir = double_resolve(d, dirfd, path, &name);
    double_change(d, DO_MKDIR, dir, name, "", double_node_new(d, true, name));
    return 0;
}

static int double_create(void *ctx, int dirfd, const char *name, uint64_t reserve_bytes) {
    struct io_double *d = ctx;
    int rc = double_call(d);
    if (rc != 0)
        return rc;
    int fd = store_io_posix.create(NULL, dirfd, name, reserve_bytes);
    if (fd < 0)
        return fd;
    int node = double_node_new(d, false, name);
    double_change(d, DO_CREATE, d->node_of_fd[dirfd], name, "", node)->bytes = reserve_bytes;
    double_bind(d, fd, node);
    return fd;
}

static int double_write(void *ctx, int fd, const void *data, size_t len_bytes) {
    struct io_double *d = ctx;
    int rc = double_call(d);
    if (rc == 0)
        rc = store_io_posix.write(NULL, fd, data, len_bytes);
    if (rc != 0)
        return rc;
    struct double_op *op = double_record(d, DO_WRITE, d->node_of_fd[fd], "");
    op->data = malloc(len_bytes + 1);
    double_limit(op->data != NULL, "bytes");
    memcpy(op->data, data, len_bytes);
    op->bytes = len_bytes;
    return 0;
}

static int double_fsync(void *ctx, int fd) {
    struct io_double *d = ctx;
    char class[sizeof(d->class_texts[0])];
    int node = d->node_of_fd[fd], rc = double_call(d);
    if (rc != 0)
        return rc;
    snprintf(class, sizeof(class), "%s %s", d->phase, d->nodes[node].target);
    uint32_t i = 0;
    while (i < d->class_count && strcmp(d->classes[i], class) != 0)
        i++;
    if (i == d->class_count) {
        double_limit(i < DOUBLE_MAX_CLASSES, "classes of fsync");
        memcpy(d->class_texts[i], class, sizeof(class));
        d->classes[d->class_count++] = d->class_texts[i];
    }
    if (strcmp(class, d->drop) != 0)
        double_record(d, DO_SYNC, node, "");
    return 0;
}

static int double_rename_new(void *ctx, int dirfd, const char *from, const char *to) {
    struct io_double *d = ctx;
    int rc = double_call(d);
    if (rc == 0)
        rc = store_io_posix.rename_new(NULL, dirfd, from, to);
    if (rc == 0)
        double_change(d, DO_RENAME, d->node_of_fd[dirfd], from, to, -1);
    return rc;
}

static int double_unlink(void *ctx, int dirfd, const char *name) {
    struct io_double *d = ctx;
    int rc = double_call(d);
    if (rc == 0)
        rc = store_io_posix.unlink(NULL, dirfd, name);
    if (rc == 0)
        double_change(d, DO_REMOVE, d->node_of_fd[dirfd], name, "", -1);
    return rc;
}

static int double_rmdir(void *ctx, int dirfd, const char *name) {
    struct io_double *d = ctx;
    int rc = double_call(d);
    if (rc == 0)
        rc = store_io_posix.rmdir(NULL, dirfd, name);
    if (rc == 0)
        double_change(d, DO_REMOVE, d->node_of_fd[dirfd], name, "", -1);
    return rc;
}

static void double_close(void *ctx, int fd) {
    struct io_double *d = ctx;
    d->node_of_fd[fd] = -1;
    store_io_posix.close(NULL, fd);
}

/* ---- the test's side */

struct io_double *io_double_new(const char *run_dir) {
    struct io_double *d = calloc(1, sizeof(*d));
    double_limit(d != NULL, "bytes");
    d->table = (struct store_io){
        .ctx = d,
        .open_dir = double_open_dir,
        .mkdir = double_mkdir,
        .create = double_create,
        .write = double_write,
        .fsync = double_fsync,
        .rename_new = double_rename_new,
        .unlink = double_unlink,
        .rmdir = double_rmdir,
        .close = double_close,
    };
    snprintf(d->run_dir, sizeof(d->run_dir), "%s", run_dir);
    d->nodes[DOUBLE_ROOT] = (struct double_node){.is_dir = true, .target = "run"};
    d->node_count = 1;
    d->fail_at = UINT32_MAX;
    for (int i = 0; i < DOUBLE_MAX_FDS; i++)
        d->node_of_fd[i] = -1;
    return d;
}

void io_double_free(struct io_double *d) {
    for (uint32_t i = 0; i < d->op_count; i++)
        free(d->ops[i].data);
    free(d);
}

const struct store_io *io_double_table(struct io_double *d) { return &d->table; }

void io_double_phase(struct io_double *d, const char *phase) {
    snprintf(d->phase, sizeof(d->phase), "%s", phase);
}

void io_double_drop(struct io_double *d, const char *class) {
    snprintf(d->drop, sizeof(d->drop), "%s", class != NULL ? class : "");
}

uint32_t io_double_classes(const struct io_double *d, const char *const **classes) {
    *classes = d->classes;
    return d->class_count;
}

uint32_t io_double_count(const struct io_double *d) { return d->calls; }

void io_double_fail(struct io_double *d, uint32_t at, int code, bool dead) {
    d->fail_at = d->calls + at;
    d->fail_code = code;
    d->fail_dead = dead;
}

void io_double_revive(struct io_double *d) {
    d->fail_at = UINT32_MAX;
    d->fail_dead = false;
}

void io_double_mark(struct io_double *d, const char *name, enum io_double_mark mark) {
    double_record(d, DO_MARK, -1, name)->mark = mark;
}

uint32_t io_double_points(const struct io_double *d) { return d->op_count + 1; }
