/* rundir.c - lock, configuration and small files of a run directory. */
#include "config.h"

#include "run/rundir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/parse.h"
#include "shard/wrap.h"
#include "store/snapshot.h"

enum { CONFIG_MAX_BYTES = 1 << 20, MODEL_MAX_BYTES = 16 << 20 };

int rundir_absolute(const char *path, char *out, size_t cap_bytes, struct err *err) {
    char copy[PATH_MAX], parent[PATH_MAX];
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    if (n == 0 || n >= sizeof copy)
        return err_set(err, n ? ENAMETOOLONG : EINVAL, "'%.100s' is no path", path);
    memcpy(copy, path, n);
    copy[n] = '\0';
    char *slash = strrchr(copy, '/');
    const char *name = slash ? slash + 1 : copy;
    if (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return err_set(err, EINVAL, "%s: name a directory below, as %s/mnt", path, path);
    const char *dir = ".";
    if (slash == copy) {
        dir = "/";
    } else if (slash) {
        *slash = '\0';
        dir = copy;
    }
    if (!realpath(dir, parent))
        return err_set(err, errno, "%s: %s", dir, strerror(errno));
    if (file_path(out, cap_bytes, "%s/%s", strcmp(parent, "/") == 0 ? "" : parent, name))
        return err_set(err, ENAMETOOLONG, "%.100s...: the path is too long", path);
    return 0;
}

/* ---- lock */

static int read_pid(int fd) {
    char text[32] = "";
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    return n > 0 ? atoi(text) : 0;
}

static int open_lock(const char *path, int flags) {
    char lock[PATH_MAX];
    if (file_path(lock, sizeof lock, "%s/lock", path))
        return -ENAMETOOLONG;
    int fd = open(lock, flags | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
    return fd < 0 ? -errno : fd;
}

int rundir_holder(const char *path, int *pid) {
    int fd = open_lock(path, 0);
    if (fd < 0)
        return fd;
    *pid = 0;
    if (flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK)
        *pid = read_pid(fd);
    close(fd);
    return 0;
}

static bool is_empty_dir(const char *path) {
    DIR *d = opendir(path);
    bool empty = d != NULL;
    for (struct dirent *e; empty && (e = readdir(d));)
        empty = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
    if (d)
        closedir(d);
    return empty;
}

/* A directory with a lock, or an empty one; made if it is missing. */
static int lock_dir(const char *path, int *out, struct err *err) {
    if (mkdir(path, 0700) && errno != EEXIST)
        return err_set(err, errno, "cannot make the run directory %s: %s", path, strerror(errno));
    bool is_new = is_empty_dir(path);
    int fd = open_lock(path, is_new ? O_CREAT : 0);
    if (fd == -ENOENT)
        return err_set(err, ENOTEMPTY,
                       "%s is no run directory, and not empty: give another with --run-dir", path);
    if (fd < 0)
        return err_set(err, -fd, "%s/lock: %s", path, strerror(-fd));
    if (flock(fd, LOCK_EX | LOCK_NB)) {
        int code = errno == EWOULDBLOCK ? EBUSY : errno, pid = read_pid(fd);
        close(fd);
        if (code != EBUSY)
            return err_set(err, code, "%s/lock: %s", path, strerror(code));
        return err_set(err, EBUSY, "%s is in use by process %d: `gatherfs stop %s` ends it", path,
                       pid, path);
    }
    char text[32];
    int n = snprintf(text, sizeof text, "%d\n", (int)getpid());
    if (chmod(path, 0700) || ftruncate(fd, 0) || pwrite(fd, text, (size_t)n, 0) != n) {
        int code = errno;
        close(fd);
        return err_set(err, code, "%s/lock: %s", path, strerror(code));
    }
    *out = fd;
    return 0;
}

static int move_away(const char *path, unsigned *number, struct err *err) {
    char to[PATH_MAX];
    for (unsigned i = 1; i < 100000; i++) {
        if (file_path(to, sizeof to, "%s.%u", path, i))
            return err_set(err, ENAMETOOLONG, "%s: the path is too long", path);
        if (renameat2(AT_FDCWD, path, AT_FDCWD, to, RENAME_NOREPLACE) == 0) {
            *number = i;
            return 0;
        }
        if (errno != EEXIST)
            return err_set(err, errno, "cannot rename %s to %s: %s", path, to, strerror(errno));
    }
    return err_set(err, EEXIST, "%s.N: no number is free", path);
}

int rundir_open(const char *path, bool fresh, struct rundir *out, unsigned *moved,
                struct err *err) {
    unsigned number = 0;
    struct stat st;
    int fd = -1;
    if (fresh && stat(path, &st) == 0) {
        int rc = lock_dir(path, &fd, err); /* nobody else's run is moved away */
        if (rc)
            return rc;
        rc = move_away(path, &number, err);
        close(fd);
        if (rc)
            return rc;
    }
    int rc = lock_dir(path, &fd, err);
    if (rc)
        return rc;
    *out = (struct rundir){.lock_fd = fd};
    snprintf(out->path, sizeof out->path, "%s", path);
    char snapshots[PATH_MAX], config[PATH_MAX];
    if (file_path(snapshots, sizeof snapshots, "%s/snapshots", path) ||
        file_path(config, sizeof config, "%s/config", path)) {
        rundir_close(out);
        return err_set(err, ENAMETOOLONG, "%s: the path is too long", path);
    }
    if (mkdir(snapshots, 0700) && errno != EEXIST) {
        int code = errno;
        rundir_close(out);
        return err_set(err, code, "%s: %s", snapshots, strerror(code));
    }
    out->is_resumed = access(config, F_OK) == 0;
    if (moved)
        *moved = number;
    return 0;
}

void rundir_close(struct rundir *r) {
    if (r->lock_fd >= 0)
        close(r->lock_fd);
    r->lock_fd = -1;
}

/* ---- configuration */

static int read_saved(const struct rundir *r, struct config *c, struct err *err) {
    char path[PATH_MAX], *text;
    file_path(path, sizeof path, "%s/config", r->path);
    int rc = file_read(path, CONFIG_MAX_BYTES, &text, NULL, err);
    if (rc)
        return rc;
    rc = config_parse(c, text, path, NULL, err);
    free(text);
    if (!rc && (wrap_check(c->wrap, err) || config_check(c, err)))
        rc = err_prefix(err, "%s", path);
    return rc;
}

/* The file that --model names must still say what the run began with. */
static int check_model_file(const struct rundir *r, const char *model, struct err *err) {
    char *kept = NULL, *now = NULL;
    if (!strchr(model, '/'))
        return 0;
    int rc = rundir_model(r, &kept, err);
    if (!rc && kept)
        rc = file_read(model, MODEL_MAX_BYTES, &now, NULL, err);
    if (!rc && kept) {
        json_t *a = json_loads(kept, 0, NULL), *b = json_loads(now, 0, NULL);
        const char *key;
        json_t *value;
        json_object_foreach(b, key, value) if (!rc && !json_equal(value, json_object_get(a, key)))
            rc = err_set(err, EINVAL,
                         "model: %s in %s is not what this run began with; --new starts over", key,
                         model);
        json_decref(a);
        json_decref(b);
    }
    free(kept);
    free(now);
    return rc;
}

static int refuse_change(const struct knob *k, const struct config *saved,
                         const struct config *asked, struct err *err) {
    char before[KNOB_TEXT_BYTES], now[KNOB_TEXT_BYTES];
    if (config_get(saved, k, before, sizeof before) || config_get(asked, k, now, sizeof now))
        before[0] = now[0] = '\0';
    return err_set(err, EINVAL,
                   "%s is fixed for a run: it was %.150s, and now is %.150s; --new starts over",
                   k->name, before, now);
}

/* Values that stand for another one are replaced by it before they are saved. */
static void settle(struct config *c, const bool *given) {
    if (c->schedule_steps == 0)
        c->schedule_steps = c->steps;
    const struct knob *warmup = knob_find("warmup_steps");
    if (!given[warmup - knob_table] && c->warmup_steps > c->schedule_steps / 10)
        c->warmup_steps = c->schedule_steps / 10;
}

int rundir_config(struct rundir *r, const struct request *q, struct config *out, struct err *err) {
    struct config c;
    config_defaults(&c);
    int rc = r->is_resumed ? read_saved(r, &c, err) : 0;
    for (size_t i = 0; !rc && i < knob_count; i++) {
        const struct knob *k = &knob_table[i];
        if (!q->given[i] && k->class != KNOB_ONCE)
            continue;
        /* --schedule-steps 0 asks for what was chosen. */
        if (r->is_resumed && strcmp(k->name, "schedule_steps") == 0 &&
            q->values.schedule_steps == 0)
            continue;
        if (r->is_resumed && k->class == KNOB_FIXED && !config_equal(&c, &q->values, k))
            rc = refuse_change(k, &c, &q->values, err);
        else
            memcpy((char *)&c + k->offset, (const char *)&q->values + k->offset, k->size_bytes);
    }
    if (!rc && !r->is_resumed)
        settle(&c, q->given);
    if (!rc && r->is_resumed)
        rc = check_model_file(r, c.model, err);
    if (!rc && !*c.data)
        rc = err_set(err, EINVAL, "what to train on is not known: give --data PATH");
    if (!rc)
        *out = c;
    return rc;
}

int rundir_save_config(const struct rundir *r, const struct config *c, struct err *err) {
    char path[PATH_MAX];
    struct enc e = {0};
    enc_printf(&e,
               "# The settings of this run. Fixed ones can't change; the others are given on the "
               "command line.\n\n");
    config_print(c, true, &e);
    file_path(path, sizeof path, "%s/config", r->path);
    int rc = e.failed ? err_set(err, ENOMEM, "%s: no memory", path)
                      : file_replace(path, e.data, e.len_bytes, err);
    enc_free(&e);
    return rc;
}

void rundir_clear_tmp(const struct rundir *r) {
    int dirfd = open(r->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dirfd < 0)
        return;
    if (file_remove_tree(dirfd, "tmp", NULL) == 0)
        mkdirat(dirfd, "tmp", 0700);
    close(dirfd);
}

int rundir_sweep(const struct rundir *r, struct err *err) {
    int dirfd = open(r->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dirfd < 0)
        return err_set(err, errno, "%s: %s", r->path, strerror(errno));
    int rc = file_remove_tree(dirfd, "tmp", err);
    static const char *const made[] = {"tmp", "log"};
    for (size_t i = 0; i < 2 && !rc; i++)
        if (mkdirat(dirfd, made[i], 0700) && errno != EEXIST)
            rc = err_set(err, errno, "%s/%s: %s", r->path, made[i], strerror(errno));
    close(dirfd);
    return rc ? rc : snapshot_sweep(&store_io_posix, r->path, err);
}

/* ---- small files */

/* *text NULL when there is no such file. */
static int read_optional(const struct rundir *r, const char *name, size_t max_bytes, char **text,
                         struct err *err) {
    char path[PATH_MAX];
    *text = NULL;
    if (file_path(path, sizeof path, "%s/%s", r->path, name))
        return err_set(err, ENAMETOOLONG, "%s: the path is too long", r->path);
    if (access(path, F_OK) && errno == ENOENT)
        return 0;
    return file_read(path, max_bytes, text, NULL, err);
}

static int write_small(const struct rundir *r, const char *name, const char *text, size_t len_bytes,
                       struct err *err) {
    char path[PATH_MAX];
    if (file_path(path, sizeof path, "%s/%s", r->path, name))
        return err_set(err, ENAMETOOLONG, "%s: the path is too long", r->path);
    return file_replace(path, text, len_bytes, err);
}

int rundir_model(const struct rundir *r, char **text, struct err *err) {
    return read_optional(r, "model.json", MODEL_MAX_BYTES, text, err);
}

int rundir_save_model(const struct rundir *r, const char *text, size_t len_bytes, struct err *err) {
    return write_small(r, "model.json", text, len_bytes, err);
}

int rundir_fingerprint(const struct rundir *r, uint64_t fingerprint, struct err *err) {
    char now[20], *kept;
    snprintf(now, sizeof now, "%016" PRIx64 "\n", fingerprint);
    int rc = read_optional(r, "fingerprint", 64, &kept, err);
    if (rc)
        return rc;
    if (!kept)
        return write_small(r, "fingerprint", now, strlen(now), err);
    if (strlen(kept) != strlen(now) || strspn(kept, "0123456789abcdef") != strlen(now) - 1)
        rc = err_set(err, EINVAL,
                     "%s/fingerprint is damaged: write %.16s into it if the data is what the run "
                     "began with",
                     r->path, now);
    else if (strcmp(kept, now) != 0)
        rc = err_set(err, EINVAL,
                     "data is fixed for a run: its fingerprint was %.16s, and now is %.16s; "
                     "--new starts over",
                     kept, now);
    free(kept);
    return rc;
}

void rundir_restored(const struct rundir *r, char name[101], uint64_t *gen) {
    char *text;
    name[0] = '\0';
    *gen = 0;
    if (read_optional(r, "restored", 256, &text, NULL) || !text)
        return;
    char number[32], found[101];
    if (sscanf(text, "%100s %31s", found, number) != 2 || parse_u64(number, gen))
        *gen = 0;
    else if (parse_name_ok(found))
        memcpy(name, found, sizeof found);
    free(text);
}

int rundir_save_restored(const struct rundir *r, const char *name, uint64_t gen, struct err *err) {
    char text[160];
    int n = snprintf(text, sizeof text, "%s %" PRIu64 "\n", name, gen);
    return write_small(r, "restored", text, (size_t)n, err);
}
