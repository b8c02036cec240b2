/* snapshot_publish.c - the life of a name under snapshots/: begun, published, removed, swept; and
 * which ones `keep` lets go.
 *
 *          snapshot_begin             snapshot_publish        snapshot_remove
 *   (none) --------------> .tmp-NAME ----------------> NAME -----------------> .del-NAME
 *     ^                        |                                                   |
 *     +------------------------+ snapshot_abandon, snapshot_sweep                  |
 *     +----------------------------------------------------------------------------+ snapshot_sweep
 *
 * What makes a listed snapshot whole: the files and the entries in their directory are synced
 * before the rename; a rename is synced before anybody is told, and before anything in the renamed
 * directory is deleted. Each fsync here is needed: tests/faults drops them one by one and must see
 * the damage. */
#include "config.h"

#include "base/file.h"
#include "base/log.h"
#include "store/manifest.h"
#include "store/snapshot.h"
#include "store/tree.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PUBLISH_ENTRY_BYTES = NAME_MAX_BYTES + 24, PUBLISH_MAX_DELETED = 1000 };

static void publish_tmp_name(const char *name, char out[PUBLISH_ENTRY_BYTES]) {
    snprintf(out, PUBLISH_ENTRY_BYTES, TREE_TMP_PREFIX "%.*s", NAME_MAX_BYTES, name);
}

static int publish_check_name(const char *name, struct err *err) {
    if (parse_name_ok(name))
        return 0;
    return err_set(err, EINVAL, "\"%.100s\" cannot be the name of a snapshot", name);
}

/* Deletes a directory that lost its name before. The loss is made durable first: after a crash the
 * old name must not come back with half of its files. */
static int publish_delete(const struct store_io *io, int dirfd, const char *entry,
                          struct err *err) {
    int rc = io->fsync(io->ctx, dirfd);
    if (rc != 0)
        return err_set(err, -rc, "snapshots: cannot be synced: %s", strerror(-rc));
    return tree_remove(io, dirfd, entry, err);
}

static bool publish_exists(int dirfd, const char *name) {
    struct stat st;
    return fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

int snapshot_begin(const struct store_io *io, const char *run_dir, const char *name, char *path,
                   size_t cap_bytes, struct err *err) {
    char tmp[PUBLISH_ENTRY_BYTES];
    int fd, rc = publish_check_name(name, err);
    if (rc != 0)
        return rc;
    publish_tmp_name(name, tmp);
    if (file_path(path, cap_bytes, "%s/snapshots/%s", run_dir, tmp) != 0)
        return err_set(err, ENAMETOOLONG, "%s: the path is too long", run_dir);
    rc = tree_make_snapshots(io, run_dir, &fd, err);
    if (rc != 0)
        return rc;
    if (publish_exists(fd, name))
        rc = err_set(err, EEXIST, "a snapshot %s exists already", name);
    if (rc == 0 && publish_exists(fd, tmp))
        rc = publish_delete(io, fd, tmp, err);
    if (rc == 0) {
        rc = io->mkdir(io->ctx, fd, tmp);
        if (rc != 0)
            err_set(err, -rc, "%s: cannot be made: %s", path, strerror(-rc));
    }
    io->close(io->ctx, fd);
    return rc;
}

/* The ranks said that they wrote: look once more that the files are there, with the sizes the
 * layout asks for. */
static int publish_check_files(int dirfd, const struct layout *l, uint32_t array_mask,
                               struct err *err) {
    for (uint32_t r = 0; r < l->world_size; r++) {
        char file[MANIFEST_RANK_FILE_BYTES];
        struct stat st;
        uint64_t bytes = SNAPSHOT_HEADER_BYTES + layout_dump_bytes(l, array_mask, r);
        manifest_rank_file(r, file);
        if (fstatat(dirfd, file, &st, AT_SYMLINK_NOFOLLOW) != 0)
            return err_set(err, EIO, "%s: %s", file, strerror(errno));
        if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != bytes)
            return err_set(err, EIO, "%s has %lld bytes instead of %" PRIu64, file,
                           (long long)st.st_size, bytes);
    }
    return 0;
}

static int publish_write_manifest(const struct store_io *io, int dirfd, const struct enc *text,
                                  struct err *err) {
    const char *step = "create";
    int fd = io->create(io->ctx, dirfd, MANIFEST_FILE, text->len_bytes), rc = fd;
    if (fd >= 0) {
        step = "write";
        rc = io->write(io->ctx, fd, text->data, text->len_bytes);
        if (rc == 0) {
            step = "sync";
            rc = io->fsync(io->ctx, fd);
        }
        io->close(io->ctx, fd);
    }
    if (rc == 0) {
        /* One sync for the entries of all files: nobody looks into the directory before it is
         * renamed. */
        step = "sync the directory of";
        rc = io->fsync(io->ctx, dirfd);
    }
    if (rc >= 0)
        return 0;
    /* EEXIST is for a taken name. */
    return err_set(err, rc == -EEXIST ? EIO : -rc, "cannot %s " MANIFEST_FILE ": %s", step,
                   strerror(-rc));
}

static int publish_fill(const struct store_io *io, int parent, const char *tmp,
                        const struct snapshot_info *info, const struct layout *l,
                        const struct enc *text, struct err *err) {
    int dirfd = io->open_dir(io->ctx, parent, tmp);
    if (dirfd < 0)
        return err_set(err, dirfd == -EEXIST ? EIO : -dirfd, "cannot be opened: %s",
                       strerror(-dirfd));
    int rc = publish_check_files(dirfd, l, info->array_mask, err);
    if (rc == 0)
        rc = publish_write_manifest(io, dirfd, text, err);
    io->close(io->ctx, dirfd);
    return rc;
}

/* Renames and makes it durable, or leaves the old name. */
static int publish_rename(const struct store_io *io, int dirfd, const char *from, const char *to,
                          struct err *err) {
    int rc = io->rename_new(io->ctx, dirfd, from, to);
    if (rc != 0)
        return err_set(err, -rc, rc == -EEXIST ? "%s exists already" : "%s: %s", to, strerror(-rc));
    rc = io->fsync(io->ctx, dirfd);
    if (rc == 0)
        return 0;
    err_set(err, -rc, "snapshots: cannot be synced: %s", strerror(-rc));
    int back = io->rename_new(io->ctx, dirfd, to, from);
    if (back != 0)
        log_error("%s: cannot get its name %s back: %s", to, from, strerror(-back));
    return rc;
}

int snapshot_publish(const struct store_io *io, const char *run_dir,
                     const struct snapshot_info *info, const struct layout *l,
                     const char *const *entries, const char *train_state, const char *model_config,
                     struct err *err) {
    char tmp[PUBLISH_ENTRY_BYTES];
    struct enc text = {0};
    int fd = -1;
    int rc = manifest_encode(info, l, entries, train_state, model_config, &text, err);
    if (rc != 0)
        goto out;
    publish_tmp_name(info->name, tmp);
    rc = tree_open_snapshots(io, run_dir, &fd, err);
    if (rc != 0)
        goto out;
    rc = publish_fill(io, fd, tmp, info, l, &text, err);
    if (rc != 0)
        err_prefix(err, "%s", tmp);
    else
        rc = publish_rename(io, fd, tmp, info->name, err);
    io->close(io->ctx, fd);
out:
    enc_free(&text);
    if (rc != 0)
        err_prefix(err, "snapshot %.*s", NAME_MAX_BYTES, info->name);
    return rc;
}

void snapshot_abandon(const struct store_io *io, const char *run_dir, const char *name) {
    char tmp[PUBLISH_ENTRY_BYTES];
    struct err err = {0};
    int fd;
    if (!parse_name_ok(name))
        return;
    publish_tmp_name(name, tmp);
    int rc = tree_open_snapshots(io, run_dir, &fd, &err);
    if (rc == 0) {
        rc = publish_delete(io, fd, tmp, &err);
        io->close(io->ctx, fd);
    }
    if (rc != 0 && rc != -ENOENT)
        log_warn("snapshot %s was given up, but its files stay until the next sweep: %s", name,
                 err.text);
}

int snapshot_remove(const struct store_io *io, const char *run_dir, const char *name,
                    struct err *err) {
    char deleted[PUBLISH_ENTRY_BYTES];
    int fd, rc = publish_check_name(name, err);
    if (rc != 0)
        return rc;
    rc = tree_open_snapshots(io, run_dir, &fd, err);
    if (rc != 0)
        return rc;
    struct err why = {0};
    /* An earlier snapshot of that name may wait for the sweep. */
    for (int n = 0; n < PUBLISH_MAX_DELETED; n++) {
        snprintf(deleted, sizeof(deleted), TREE_DEL_PREFIX "%s%s%.0d", name, n == 0 ? "" : "~", n);
        why = (struct err){0};
        rc = publish_rename(io, fd, name, deleted, &why);
        if (rc != -EEXIST)
            break;
    }
    io->close(io->ctx, fd);
    if (rc == -ENOENT)
        return err_set(err, ENOENT, "there is no snapshot %s", name);
    return rc == 0 ? 0 : err_set(err, -rc, "snapshot %s: %s", name, why.text);
}

static bool publish_has_prefix(const char *name, const char *prefix) {
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

/* Deletes what has one of the prefixes (b may be NULL), and goes on after a failure. */
static int publish_sweep(const struct store_io *io, const char *run_dir, const char *a,
                         const char *b, struct err *err) {
    struct enc names = {0};
    int fd, rc = tree_open_snapshots(io, run_dir, &fd, NULL);
    if (rc == -ENOENT)
        return 0;
    if (rc != 0)
        return err_set(err, -rc, "%s/snapshots: %s", run_dir, strerror(-rc));
    /* A name that a process gave or took and died before its sync is synced here. */
    rc = io->fsync(io->ctx, fd);
    if (rc != 0)
        err_set(err, -rc, "%s/snapshots: cannot be synced: %s", run_dir, strerror(-rc));
    if (rc == 0)
        rc = tree_names(fd, &names, err);
    bool listed = rc == 0;
    for (size_t at = 0; listed && at < names.len_bytes;) {
        const char *name = (const char *)names.data + at;
        at += strlen(name) + 1;
        if (!publish_has_prefix(name, a) && (b == NULL || !publish_has_prefix(name, b)))
            continue;
        int one = tree_remove(io, fd, name, err);
        rc = rc == 0 ? one : rc;
    }
    enc_free(&names);
    io->close(io->ctx, fd);
    return rc;
}

int snapshot_sweep(const struct store_io *io, const char *run_dir, struct err *err) {
    return publish_sweep(io, run_dir, TREE_DEL_PREFIX, TREE_TMP_PREFIX, err);
}

int snapshot_sweep_removed(const struct store_io *io, const char *run_dir, struct err *err) {
    return publish_sweep(io, run_dir, TREE_DEL_PREFIX, NULL, err);
}

/* ---- retention */

/* Marked automatic, and named so: step-%010d, or step-%010d-N where that name was taken. One that
 * was renamed by hand is the user's. */
static bool retention_is_automatic(const struct snapshot_info *i) {
    static const char digits[] = "0123456789";
    if (!i->automatic || strncmp(i->name, "step-", 5) != 0)
        return false;
    size_t step = strspn(i->name + 5, digits);
    const char *rest = i->name + 5 + step;
    if (step < 10)
        return false;
    return rest[0] == '\0' ||
           (rest[0] == '-' && rest[1] != '\0' && rest[1 + strspn(rest + 1, digits)] == '\0');
}

static bool retention_is_newer(const struct snapshot_info *a, const struct snapshot_info *b) {
    if (a->epoch != b->epoch)
        return a->epoch > b->epoch;
    return a->gen != b->gen ? a->gen > b->gen : a->id > b->id;
}

uint32_t snapshot_retention(const struct snapshot_info *list, uint32_t count, uint64_t keep,
                            bool *drop) {
    uint32_t dropped = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t newer = 0, newer_automatic = 0;
        for (uint32_t k = 0; k < count; k++) {
            if (k == i || !retention_is_newer(&list[k], &list[i]))
                continue;
            newer++;
            newer_automatic += retention_is_automatic(&list[k]);
        }
        drop[i] =
            keep != 0 && newer > 0 && newer_automatic >= keep && retention_is_automatic(&list[i]);
        dropped += drop[i];
    }
    return dropped;
}
