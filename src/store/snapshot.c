/* snapshot.c - reading snapshots: opening, mapping, elements of tensors, the list of all. */
#include "config.h"

#include "base/file.h"
#include "store/snapshot_open.h"
#include "store/tree.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int snapshot_read_file(int dirfd, char **text, size_t *len_bytes, struct err *err) {
    struct stat st;
    int fd = openat(dirfd, MANIFEST_FILE, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, errno, "cannot be opened: %s", strerror(errno));
    int rc = fstat(fd, &st) == 0 ? 0 : -errno;
    char *buf = NULL;
    if (rc == 0 && (!S_ISREG(st.st_mode) || st.st_size > MANIFEST_MAX_BYTES))
        rc = -EIO;
    if (rc == 0) {
        buf = malloc((size_t)st.st_size + 1);
        rc = buf == NULL ? -ENOMEM : file_pread_all(fd, buf, (size_t)st.st_size, 0);
    }
    close(fd);
    if (rc != 0) {
        free(buf);
        return err_set(err, -rc, "cannot be read: %s", strerror(-rc));
    }
    buf[st.st_size] = '\0';
    *text = buf;
    *len_bytes = (size_t)st.st_size;
    return 0;
}

/* Opens the file of a rank and holds it, so that it stays readable after the snapshot's removal. */
static int snapshot_open_rank(struct snapshot *s, int dirfd, uint32_t rank, struct err *err) {
    char file[MANIFEST_RANK_FILE_BYTES];
    struct snapshot_file *f = &s->files[rank];
    struct stat st;
    manifest_rank_file(rank, file);
    f->bytes = SNAPSHOT_HEADER_BYTES +
               layout_dump_bytes(&s->manifest.layout, s->manifest.info.array_mask, rank);
    f->fd = openat(dirfd, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (f->fd < 0)
        return err_set(err, errno, "%s: cannot be opened: %s", file, strerror(errno));
    if (fstat(f->fd, &st) != 0)
        return err_set(err, errno, "%s: %s", file, strerror(errno));
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != f->bytes)
        return err_set(err, EIO, "%s has %lld bytes instead of %" PRIu64, file,
                       (long long)st.st_size, f->bytes);
    return 0;
}

static int snapshot_open_files(struct snapshot *s, int dirfd, struct err *err) {
    uint32_t world = s->manifest.layout.world_size;
    s->files = calloc(world, sizeof(*s->files));
    if (s->files == NULL)
        return err_set(err, ENOMEM, "no memory for the files of %" PRIu32 " ranks", world);
    s->file_count = world;
    for (uint32_t r = 0; r < world; r++)
        s->files[r].fd = -1;
    int rc = 0;
    for (uint32_t r = 0; rc == 0 && r < world; r++)
        rc = snapshot_open_rank(s, dirfd, r, err);
    return rc;
}

/* Takes over dirfd. label names the snapshot in errors. */
static int snapshot_open_at(int dirfd, const char *label, struct snapshot **out, struct err *err) {
    struct snapshot *s = calloc(1, sizeof(*s));
    int rc = 0;
    if (s == NULL) {
        rc = err_set(err, ENOMEM, "no memory for a snapshot");
        goto out;
    }
    snprintf(s->label, sizeof(s->label), "%s", label);
    rc = snapshot_read_file(dirfd, &s->text, &s->text_bytes, err);
    if (rc == 0)
        rc = manifest_decode(s->text, s->text_bytes, &s->manifest, err);
    if (rc != 0)
        err_prefix(err, MANIFEST_FILE);
    if (rc == 0)
        rc = snapshot_open_files(s, dirfd, err);
out:
    close(dirfd);
    if (rc == 0) {
        *out = s;
        return 0;
    }
    snapshot_close(s);
    /* A directory is there, so the snapshot is damaged: ENOENT is for one that is not there at all.
     */
    if (rc == -ENOENT || rc == -ELOOP) {
        rc = -EIO;
        if (err != NULL)
            err->code = EIO;
    }
    err_prefix(err, "%s", label);
    return rc;
}

int snapshot_open(const char *run_dir, const char *name, struct snapshot **out, struct err *err) {
    int parent, fd;
    if (!parse_name_ok(name))
        return err_set(err, EINVAL, "\"%.100s\" cannot be the name of a snapshot", name);
    int rc = tree_open_snapshots(&store_io_posix, run_dir, &parent, err);
    if (rc != 0)
        return rc;
    fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    rc = fd < 0 ? -errno : 0;
    close(parent);
    if (rc == -ENOENT)
        return err_set(err, ENOENT, "there is no snapshot %s", name);
    if (rc != 0)
        return err_set(err, -rc, "snapshot %s: cannot be opened: %s", name, strerror(-rc));
    rc = snapshot_open_at(fd, name, out, err);
    /* A directory that was renamed by hand is known by the name it has now. */
    if (rc == 0)
        snprintf((*out)->manifest.info.name, sizeof((*out)->manifest.info.name), "%s", name);
    return rc;
}

int snapshot_open_dir(const char *dir, struct snapshot **out, struct err *err) {
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, errno, "%s: cannot be opened: %s", dir, strerror(errno));
    return snapshot_open_at(fd, dir, out, err);
}

void snapshot_close(struct snapshot *s) {
    if (s == NULL)
        return;
    for (uint32_t r = 0; r < s->file_count; r++) {
        if (s->files[r].base != NULL)
            munmap(s->files[r].base, s->files[r].bytes);
        if (s->files[r].fd >= 0)
            close(s->files[r].fd);
    }
    free(s->files);
    manifest_free(&s->manifest);
    free(s->text);
    free(s);
}

const struct snapshot_info *snapshot_get_info(const struct snapshot *s) {
    return &s->manifest.info;
}

const struct layout *snapshot_get_layout(const struct snapshot *s) { return &s->manifest.layout; }

const char *snapshot_get_train_state(const struct snapshot *s) { return s->manifest.train_state; }

const char *snapshot_get_model_config(const struct snapshot *s) { return s->manifest.model_config; }

const char *snapshot_get_manifest(const struct snapshot *s, size_t *len_bytes) {
    *len_bytes = s->text_bytes;
    return s->text;
}

int snapshot_map_rank(struct snapshot *s, uint32_t rank, const uint8_t **base, uint64_t *bytes,
                      struct err *err) {
    if (rank >= s->file_count)
        return err_set(err, EINVAL, "%s: there is no rank %" PRIu32, s->label, rank);
    struct snapshot_file *f = &s->files[rank];
    struct stat st;
    /* Also at each later call: pages beyond the end of a file that was cut off since would be fatal
     * to touch. */
    if (fstat(f->fd, &st) != 0 || (uint64_t)st.st_size < f->bytes)
        return err_set(err, EIO, "%s/rank-%" PRIu32 ".bin: shorter than %" PRIu64 " bytes",
                       s->label, rank, f->bytes);
    if (f->base == NULL) {
        void *p = mmap(NULL, f->bytes, PROT_READ, MAP_SHARED, f->fd, 0);
        if (p == MAP_FAILED)
            return err_set(err, errno, "%s/rank-%" PRIu32 ".bin: cannot be mapped: %s", s->label,
                           rank, strerror(errno));
        f->base = p;
    }
    *base = f->base;
    *bytes = f->bytes;
    return 0;
}

/* ---- elements of a tensor */

/* Copies the part of [lo, hi) that lies on a rank. Reads, and does not map: an error of the disk is
 * then an error, not a signal. */
static int snapshot_read_piece(struct snapshot *s, enum array a, uint32_t tensor, uint32_t rank,
                               uint64_t lo, uint64_t hi, float *dst, struct err *err) {
    const struct layout *l = &s->manifest.layout;
    struct layout_piece p = layout_tensor_piece(l, tensor, rank);
    uint64_t first = p.tensor_offset_elems > lo ? p.tensor_offset_elems : lo;
    uint64_t end = p.tensor_offset_elems + p.elems;
    if (end > hi)
        end = hi;
    if (p.elems == 0 || first >= end)
        return 0;
    uint64_t elem = p.shard_offset_elems + (first - p.tensor_offset_elems);
    uint64_t at =
        SNAPSHOT_HEADER_BYTES + elem * TENSOR_ELEM_BYTES +
        layout_dump_offset(l, s->manifest.info.array_mask, rank, a, l->tensors[tensor].unit);
    int rc = file_pread_all(s->files[rank].fd, dst + (first - lo),
                            (end - first) * TENSOR_ELEM_BYTES, at);
    if (rc == 0)
        return 0;
    return err_set(err, EIO, "%s/rank-%" PRIu32 ".bin: cannot be read at byte %" PRIu64 ": %s",
                   s->label, rank, at, strerror(-rc));
}

int snapshot_read_tensor(struct snapshot *s, enum array a, const char *name, uint64_t lo,
                         uint64_t hi, float *dst, struct err *err) {
    const struct layout *l = &s->manifest.layout;
    int tensor = layout_find_tensor(l, name);
    if (tensor < 0)
        return err_set(err, ENOENT, "%s: has no tensor %s", s->label, name);
    if ((s->manifest.info.array_mask & ARRAY_BIT(a)) == 0)
        return err_set(err, ENOENT, "%s: has no %s", s->label, array_names[a]);
    if (lo > hi || hi > l->tensors[tensor].numel)
        return err_set(err, ERANGE, "%s: %s has %" PRIu64 " elements", s->label, name,
                       l->tensors[tensor].numel);
    int rc = 0;
    for (uint32_t r = 0; rc == 0 && r < l->world_size; r++)
        rc = snapshot_read_piece(s, a, (uint32_t)tensor, r, lo, hi, dst, err);
    return rc;
}

/* ---- all snapshots */

struct snapshot_names {
    struct snapshot_info *list; /* owned */
    uint32_t count, cap, broken;
};

static int snapshot_compare(const void *a, const void *b) {
    const struct snapshot_info *x = a, *y = b;
    if (x->epoch != y->epoch)
        return x->epoch < y->epoch ? -1 : 1;
    if (x->gen != y->gen)
        return x->gen < y->gen ? -1 : 1;
    return x->id != y->id ? (x->id < y->id ? -1 : 1) : strcmp(x->name, y->name);
}

static int snapshot_append(struct snapshot_names *n, const struct snapshot_info *info) {
    if (n->count == n->cap) {
        uint32_t cap = n->cap == 0 ? 16 : n->cap * 2;
        struct snapshot_info *list = realloc(n->list, cap * sizeof(*list));
        if (list == NULL)
            return -ENOMEM;
        n->list = list;
        n->cap = cap;
    }
    n->list[n->count++] = *info;
    return 0;
}

/* Only what says nothing about the snapshot ends the listing: too little memory, too few
 * descriptors. */
static bool snapshot_error_is_ours(int rc) {
    return rc == -ENOMEM || rc == -EMFILE || rc == -ENFILE;
}

static int snapshot_list_one(const char *run_dir, int dirfd, const char *name,
                             struct snapshot_names *n, struct err *err) {
    struct stat st;
    struct snapshot *s = NULL;
    struct err why = {0};
    if (!parse_name_ok(name))
        return 0;
    if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISDIR(st.st_mode))
        return 0;
    int rc = snapshot_open(run_dir, name, &s, &why);
    if (rc == 0) {
        rc = snapshot_append(n, snapshot_get_info(s));
        snapshot_close(s);
        return rc == 0 ? 0 : err_set(err, ENOMEM, "no memory for the list of snapshots");
    }
    if (snapshot_error_is_ours(rc))
        return err_set(err, why.code, "%s", why.text);
    /* One that was removed meanwhile is not broken. */
    if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
        n->broken++;
    return 0;
}

int snapshot_list(const char *run_dir, struct snapshot_info **list, uint32_t *count,
                  uint32_t *broken, struct err *err) {
    struct snapshot_names n = {0};
    struct enc names = {0};
    int fd, rc = tree_open_snapshots(&store_io_posix, run_dir, &fd, NULL);
    if (rc != 0 && rc != -ENOENT)
        return err_set(err, -rc, "%s/snapshots: %s", run_dir, strerror(-rc));
    if (rc == 0) {
        rc = tree_names(fd, &names, err);
        for (size_t at = 0; rc == 0 && at < names.len_bytes;) {
            const char *name = (const char *)names.data + at;
            at += strlen(name) + 1;
            rc = snapshot_list_one(run_dir, fd, name, &n, err);
        }
        close(fd);
        enc_free(&names);
    } else {
        rc = 0; /* a run that never took one */
    }
    if (rc != 0) {
        free(n.list);
        return rc;
    }
    if (n.count > 1)
        qsort(n.list, n.count, sizeof(*n.list), snapshot_compare);
    *list = n.list;
    *count = n.count;
    if (broken != NULL)
        *broken = n.broken;
    return 0;
}
