/* offline.c - a supervisor that has a mount and no ranks. */
#include "config.h"

#include "run/offline.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "run/supervisor.h"

enum { OFFLINE_TICK_MS = 50, CONFIG_MAX_BYTES = 1 << 20 };

struct offline {
    struct supervisor *s;
    struct loop_timer timer;
    int ready_fd; /* told when the mount answers, -1: nobody waits */
};

static int usage(void) {
    fputs("usage: gatherfs mount [--background] [--allow-other] RUN_DIR MNT\n", stderr);
    return 2;
}

static int parse(int argc, char **argv, struct request *q, bool *background, struct err *err) {
    const char *paths[2];
    int count = 0;
    *background = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--background") == 0)
            *background = true;
        else if (strcmp(argv[i], "--allow-other") == 0)
            q->values.allow_other = true;
        else if (argv[i][0] == '-' || count == 2)
            return -EINVAL;
        else
            paths[count++] = argv[i];
    }
    if (count != 2)
        return -EINVAL;
    int rc = rundir_absolute(paths[0], q->run_dir, sizeof q->run_dir, err);
    return rc ? rc : rundir_absolute(paths[1], q->mountpoint, sizeof q->mountpoint, err);
}

/* Size of a file of the run, 0 without it. */
static uint64_t size_of(const char *run_dir, const char *name) {
    char path[RUNDIR_PATH_BYTES + 32];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", run_dir, name);
    return stat(path, &st) ? 0 : (uint64_t)st.st_size;
}

/* What is known of a run without running it. */
static int load(struct supervisor *s, bool allow_other, struct err *err) {
    const char *dir = s->request->run_dir;
    char path[RUNDIR_PATH_BYTES + 16], *text;
    int holder;
    if (rundir_holder(dir, &holder))
        return err_set(err, ENOENT, "%s is no run directory", dir);
    if (holder)
        return err_set(err, EBUSY, "%s is being run by process %d: its mount shows the same", dir,
                       holder);
    snprintf(s->rundir.path, sizeof s->rundir.path, "%s", dir);
    snprintf(path, sizeof path, "%s/config", dir);
    config_defaults(&s->config);
    if (file_read(path, CONFIG_MAX_BYTES, &text, NULL, NULL) == 0) {
        int rc = config_parse(&s->config, text, path, NULL, err);
        free(text);
        if (rc)
            return rc;
    }
    s->config.allow_other = allow_other;
    int rc = snapshots_open(s, err);
    s->goal.target = s->config.steps;
    s->goal.step = snapshots_newest_step(s);
    s->record.metrics_bytes = size_of(dir, "metrics.tsv");
    s->record.events_bytes = size_of(dir, "events");
    return rc;
}

static void on_timer(void *arg) {
    struct offline *o = arg;
    if (!o->s->mountd.is_ready) {
        loop_timer_set(o->s->loop, &o->timer, OFFLINE_TICK_MS);
        return;
    }
    progress_say(&o->s->progress, "The snapshots are under %s/snapshots; `umount %s` ends it.",
                 o->s->request->mountpoint, o->s->request->mountpoint);
    if (o->ready_fd < 0)
        return;
    ssize_t n = write(o->ready_fd, "", 1);
    (void)n; /* who waited may be gone */
    close(o->ready_fd);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; null >= 0 && fd <= 2; fd++)
        dup2(null, fd);
}

static int serve(const struct request *q, int ready_fd) {
    struct err err = {0};
    struct supervisor *s = supervisor_make(q, RUN_OFFLINE);
    if (!s)
        return 1;
    struct offline o = {.s = s, .ready_fd = ready_fd, .timer = {.fn = on_timer, .arg = &o}};
    int rc = load(s, q->values.allow_other, &err);
    if (!rc)
        rc = mountd_open(s, &err);
    if (rc)
        fprintf(stderr, "gatherfs: %s\n", err.text);
    loop_timer_set(s->loop, &o.timer, 0);
    if (!rc)
        rc = loop_run(s->loop);
    int code = rc ? 1 : s->stop.exit_code;
    supervisor_close(s);
    return code;
}

/* The parent stays until the mount answers, or the child has failed. */
static int serve_in_background(const struct request *q) {
    int fds[2];
    char byte;
    if (pipe2(fds, O_CLOEXEC))
        return 1;
    pid_t pid = fork();
    if (pid == 0) {
        close(fds[0]);
        setsid();
        _exit(serve(q, fds[1]));
    }
    close(fds[1]);
    ssize_t n = pid > 0 ? read(fds[0], &byte, 1) : 0;
    close(fds[0]);
    return n == 1 ? 0 : 1;
}

int offline_main(int argc, char **argv) {
    struct request *q = calloc(1, sizeof *q);
    struct err err = {0};
    bool background;
    if (!q)
        return 1;
    int code, rc = parse(argc, argv, q, &background, &err);
    if (rc) {
        if (err.code)
            fprintf(stderr, "gatherfs: %s\n", err.text);
        code = err.code ? 1 : usage();
    } else {
        code = background ? serve_in_background(q) : serve(q, -1);
    }
    free(q);
    return code;
}
