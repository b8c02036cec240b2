/* ckpt.c - list, verify and remove the snapshots of a run directory. */
#include "config.h"

#include "base/file.h"
#include "store/ckpt.h"
#include "store/snapshot.h"
#include "store/tree.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { CKPT_OK = 0, CKPT_FAILED = 1, CKPT_USAGE = 2, CKPT_PROGRESS_MS = 200 };

static const char ckpt_help[] =
    "usage: gatherfs ckpt list RUN_DIR\n"
    "       gatherfs ckpt verify RUN_DIR [NAME...]\n"
    "       gatherfs ckpt rm RUN_DIR NAME...\n"
    "\n"
    "list    a table of the snapshots, oldest first\n"
    "verify  read the files of snapshots (all, or NAMEs) and compare checksums\n"
    "rm      delete snapshots; while a run is alive, rmdir them in its mount\n"
    "\n"
    "Exit status: 0; 1 if something failed or is damaged; 2 for a wrong command line.\n";

static int ckpt_usage(const char *problem, const char *what) {
    fprintf(stderr, "gatherfs ckpt: %s%s%s\nTry 'gatherfs ckpt --help'.\n", problem,
            what[0] != '\0' ? ": " : "", what);
    return CKPT_USAGE;
}

static int ckpt_error(const struct err *err) {
    fprintf(stderr, "gatherfs ckpt: %s\n", err->text);
    return CKPT_FAILED;
}

/* A directory that is there but was never a run's is more likely a typing error than an empty run.
 */
static int ckpt_check_run_dir(const char *run_dir) {
    char path[PATH_MAX];
    struct stat st;
    struct err err = {0};
    if (file_path(path, sizeof(path), "%s/snapshots", run_dir) != 0)
        err_set(&err, ENAMETOOLONG, "%s: the path is too long", run_dir);
    else if (stat(run_dir, &st) != 0 || !S_ISDIR(st.st_mode))
        err_set(&err, ENOTDIR, "%s: no such directory", run_dir);
    else if (lstat(path, &st) != 0 || !S_ISDIR(st.st_mode))
        err_set(&err, ENOENT, "%s: has no snapshots/; is it a run directory?", run_dir);
    return err.code == 0 ? CKPT_OK : ckpt_error(&err);
}

/* ---- list */

static void ckpt_format_time(uint64_t time_ns, char *out, size_t cap_bytes) {
    time_t t = (time_t)(time_ns / 1000000000u);
    struct tm tm;
    if (localtime_r(&t, &tm) == NULL || strftime(out, cap_bytes, "%Y-%m-%d %H:%M:%S", &tm) == 0)
        snprintf(out, cap_bytes, "-");
}

static void ckpt_print_table(const struct snapshot_info *list, uint32_t count) {
    int width = 4;
    bool tty = isatty(STDOUT_FILENO) && getenv("NO_COLOR") == NULL;
    for (uint32_t i = 0; i < count; i++)
        if ((int)strlen(list[i].name) > width)
            width = (int)strlen(list[i].name);
    printf("%s%-*s  %10s  %6s  %10s  %5s  %s%s\n", tty ? "\033[1m" : "", width, "NAME", "STEP",
           "EPOCH", "SIZE", "RANKS", "WHEN", tty ? "\033[0m" : "");
    for (uint32_t i = 0; i < count; i++) {
        char size[32], when[32];
        parse_format_bytes(list[i].bytes, size, sizeof(size));
        ckpt_format_time(list[i].time_ns, when, sizeof(when));
        printf("%-*s  %10" PRIu64 "  %6" PRIu64 "  %10s  %5" PRIu32 "  %s\n", width, list[i].name,
               list[i].step, list[i].epoch, size, list[i].world_size, when);
    }
}

/* Calls see for each directory under a final name, in the order of the directory. */
static int ckpt_each_name(const char *run_dir, int (*see)(const char *, const char *)) {
    struct enc names = {0};
    struct err err = {0};
    int fd, status = CKPT_OK;
    int rc = tree_open_snapshots(&store_io_posix, run_dir, &fd, &err);
    if (rc != 0)
        return ckpt_error(&err);
    rc = tree_names(fd, &names, &err);
    if (rc != 0)
        status = ckpt_error(&err);
    for (size_t at = 0; rc == 0 && at < names.len_bytes;) {
        const char *name = (const char *)names.data + at;
        struct stat st;
        at += strlen(name) + 1;
        if (!parse_name_ok(name) || fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISDIR(st.st_mode))
            continue;
        int one = see(run_dir, name);
        status = one > status ? one : status;
    }
    enc_free(&names);
    close(fd);
    return status;
}

static int ckpt_report_broken(const char *run_dir, const char *name) {
    struct snapshot *s;
    struct err err = {0};
    int rc = snapshot_open(run_dir, name, &s, &err);
    if (rc == 0)
        snapshot_close(s);
    return rc == 0 || rc == -ENOENT ? CKPT_OK : ckpt_error(&err);
}

static int ckpt_list(const char *run_dir) {
    struct snapshot_info *list;
    uint32_t count, broken;
    struct err err = {0};
    if (snapshot_list(run_dir, &list, &count, &broken, &err) != 0)
        return ckpt_error(&err);
    if (count > 0)
        ckpt_print_table(list, count);
    else
        fprintf(stderr, "no snapshots\n");
    free(list);
    return broken == 0 ? CKPT_OK : ckpt_each_name(run_dir, ckpt_report_broken);
}

/* ---- verify */

/* Shows how far the verification is, on a terminal. */
struct ckpt_progress {
    const char *name;
    uint64_t total_bytes;
    volatile uint64_t bytes;
    pthread_mutex_t lock;
    pthread_cond_t stop;
    bool stopped;
};

static void *ckpt_show_progress(void *arg) {
    struct ckpt_progress *p = arg;
    pthread_mutex_lock(&p->lock);
    while (!p->stopped) {
        char done[32], total[32];
        struct timespec until;
        parse_format_bytes(p->bytes, done, sizeof(done));
        parse_format_bytes(p->total_bytes, total, sizeof(total));
        fprintf(stderr, "\r\033[K%s: %s of %s", p->name, done, total);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += CKPT_PROGRESS_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        pthread_cond_timedwait(&p->stop, &p->lock, &until);
    }
    pthread_mutex_unlock(&p->lock);
    fputs("\r\033[K", stderr);
    return NULL;
}

static int ckpt_verify_shown(struct snapshot *s, struct err *err) {
    struct ckpt_progress p = {
        .name = snapshot_get_info(s)->name,
        .total_bytes = snapshot_get_info(s)->bytes,
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .stop = PTHREAD_COND_INITIALIZER,
    };
    pthread_t thread;
    if (!isatty(STDERR_FILENO) || pthread_create(&thread, NULL, ckpt_show_progress, &p) != 0)
        return snapshot_verify(s, NULL, NULL, err);
    int rc = snapshot_verify(s, NULL, &p.bytes, err);
    pthread_mutex_lock(&p.lock);
    p.stopped = true;
    pthread_cond_signal(&p.stop);
    pthread_mutex_unlock(&p.lock);
    pthread_join(thread, NULL);
    return rc;
}

static int ckpt_verify_one(const char *run_dir, const char *name) {
    struct snapshot *s;
    struct err err = {0};
    char size[32];
    if (snapshot_open(run_dir, name, &s, &err) != 0) {
        printf("%s: FAILED\n", name);
        fflush(stdout);
        return ckpt_error(&err);
    }
    int rc = ckpt_verify_shown(s, &err);
    parse_format_bytes(snapshot_get_info(s)->bytes, size, sizeof(size));
    if (rc == 0)
        printf("%s: ok, %s\n", name, size);
    else
        printf("%s: FAILED\n", name);
    fflush(stdout);
    snapshot_close(s);
    return rc == 0 ? CKPT_OK : ckpt_error(&err);
}

static int ckpt_verify(const char *run_dir, char **names, int count) {
    int status = CKPT_OK;
    if (count == 0)
        return ckpt_each_name(run_dir, ckpt_verify_one);
    for (int i = 0; i < count; i++) {
        int one = ckpt_verify_one(run_dir, names[i]);
        status = one > status ? one : status;
    }
    return status;
}

/* ---- rm */

/* Holds the lock of the run directory, so that no run starts meanwhile; refuses when one is alive.
 */
static int ckpt_lock(const char *run_dir, int *fd, struct err *err) {
    char path[PATH_MAX];
    if (file_path(path, sizeof(path), "%s/lock", run_dir) != 0)
        return err_set(err, ENAMETOOLONG, "%s: the path is too long", run_dir);
    *fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (*fd < 0)
        return err_set(err, errno, "%s: cannot be opened: %s", path, strerror(errno));
    if (flock(*fd, LOCK_EX | LOCK_NB) == 0)
        return 0;
    int code = errno;
    close(*fd);
    if (code == EWOULDBLOCK)
        return err_set(err, EBUSY,
                       "%s: a run is alive there; remove its snapshots with "
                       "`rmdir MOUNT/snapshots/NAME`",
                       run_dir);
    return err_set(err, code, "%s: cannot be locked: %s", path, strerror(code));
}

static int ckpt_rm(const char *run_dir, char **names, int count) {
    struct err err = {0};
    int lock = -1, status = CKPT_OK;
    if (ckpt_lock(run_dir, &lock, &err) != 0)
        return ckpt_error(&err);
    for (int i = 0; i < count; i++) {
        struct err why = {0};
        if (snapshot_remove(&store_io_posix, run_dir, names[i], &why) != 0)
            status = ckpt_error(&why);
    }
    if (snapshot_sweep_removed(&store_io_posix, run_dir, &err) != 0)
        status = ckpt_error(&err);
    close(lock);
    return status;
}

int ckpt_main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(ckpt_help, stdout);
            return CKPT_OK;
        }
        if (argv[i][0] == '-')
            return ckpt_usage("unknown option", argv[i]);
    }
    if (argc < 2)
        return ckpt_usage("list, verify or rm?", "");
    const char *verb = argv[1];
    bool list = strcmp(verb, "list") == 0, rm = strcmp(verb, "rm") == 0;
    if (!list && !rm && strcmp(verb, "verify") != 0)
        return ckpt_usage("unknown command", verb);
    if (argc < 3)
        return ckpt_usage("which run directory?", "");
    if (rm && argc < 4)
        return ckpt_usage("rm: which snapshot?", "");
    if (list && argc > 3)
        return ckpt_usage("list takes one run directory, not also", argv[3]);
    for (int i = 3; i < argc; i++)
        if (!parse_name_ok(argv[i]))
            return ckpt_usage("this cannot be the name of a snapshot", argv[i]);
    int status = ckpt_check_run_dir(argv[2]);
    if (status != CKPT_OK)
        return status;
    if (list)
        return ckpt_list(argv[2]);
    return rm ? ckpt_rm(argv[2], argv + 3, argc - 3) : ckpt_verify(argv[2], argv + 3, argc - 3);
}
