/* snapshots.c - what is durable: the list, retention, and the choice of what to start from. The
 * writing is in snapshot_job.c. */
#include "config.h"

#include "run/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "run/snapshot_job.h"

enum { DELETE_CLOSE_FDS = 16384 };

int snapshots_find(const struct supervisor *s, const char *name) {
    for (uint32_t i = 0; i < s->snapshots.count; i++)
        if (strcmp(s->snapshots.list[i].name, name) == 0)
            return (int)i;
    return -1;
}

int snapshots_path(const struct supervisor *s, const char *name, char *out, size_t cap_bytes) {
    return file_path(out, cap_bytes, "%s/snapshots/%s", s->rundir.path, name);
}

static void on_timer(void *arg) {
    struct supervisor *s = arg;
    struct err err = {0};
    if (world_is_ready(s) && s->stop.phase == STOP_NONE && !snapshots_is_running(s) &&
        !snapshots_is_current(s) && s->goal.step > 0 && snapshots_begin(s, NULL, NULL, &err))
        supervisor_error(s, "automatic snapshot: %s", err.text);
    snapshots_start_timer(s);
}

void snapshots_start_timer(struct supervisor *s) {
    struct loop_timer *t = &s->snapshots.timer;
    *t = t->armed ? *t : (struct loop_timer){.fn = on_timer, .arg = s};
    if (s->config.snapshot_every)
        loop_timer_set(s->loop, t, s->config.snapshot_every * 1000);
    else if (t->armed)
        loop_timer_cancel(s->loop, t);
}

/* An id that two directories claim (one was copied by hand) is told apart here. */
static void settle_ids(struct snapshots *n) {
    for (uint32_t i = 0; i < n->count; i++)
        if (n->list[i].id > n->last_id)
            n->last_id = n->list[i].id;
    for (uint32_t i = 0; i < n->count; i++)
        for (uint32_t j = 0; j < i; j++)
            if (n->list[i].id == n->list[j].id)
                n->list[i].id = ++n->last_id;
}

int snapshots_open(struct supervisor *s, struct err *err) {
    struct snapshots *n = &s->snapshots;
    uint32_t broken;
    int rc = snapshot_list(s->rundir.path, &n->list, &n->count, &broken, err);
    if (rc)
        return rc;
    n->broken = calloc(n->count + 1, sizeof *n->broken);
    if (!n->broken)
        return err_set(err, ENOMEM, "no memory");
    if (broken)
        supervisor_error(
            s, "%u directories of %s/snapshots are no whole snapshots: they are left alone", broken,
            s->rundir.path);
    settle_ids(n);
    for (uint32_t i = 0; i < n->count; i++)
        if (n->list[i].gen > s->gen)
            s->gen = n->list[i].gen;
    rundir_restored(&s->rundir, n->restored, &n->restored_gen);
    return 0;
}

void snapshots_close(struct supervisor *s) {
    snapshot_job_drop(s);
    free(s->snapshots.list);
    free(s->snapshots.broken);
    s->snapshots.list = NULL;
    s->snapshots.broken = NULL;
    s->snapshots.count = 0;
}

bool snapshots_is_current(const struct supervisor *s) {
    return s->snapshots.has_saved && s->snapshots.saved_gen == s->gen;
}

uint64_t snapshots_newest_step(const struct supervisor *s) {
    const struct snapshots *n = &s->snapshots;
    return n->count ? n->list[n->count - 1].step : 0;
}

static void tell_added(struct supervisor *s, const struct snapshot_info *info) {
    struct msg_snapshot_added m = {.snapshot = info->id};
    memcpy(m.name, info->name, sizeof m.name);
    mountd_send(s, MSG_SNAPSHOT_ADDED, &m);
}

void snapshots_tell_daemon(struct supervisor *s) {
    for (uint32_t i = 0; i < s->snapshots.count; i++)
        tell_added(s, &s->snapshots.list[i]);
}

/* ---- origin */

static uint32_t origins(const struct supervisor *s, uint32_t *order) {
    const struct snapshots *n = &s->snapshots;
    struct goal_origin *list = calloc(n->count + 1, sizeof *list);
    uint32_t count = 0;
    for (uint32_t i = 0; list && i < n->count; i++)
        list[i] = (struct goal_origin){.gen = n->list[i].gen,
                                       .restored = n->restored_gen > 0 &&
                                                   strcmp(n->list[i].name, n->restored) == 0,
                                       .broken = n->broken[i]};
    if (list)
        count = goal_origins(list, n->count, n->restored_gen, order);
    free(list);
    return count;
}

void snapshots_choose_origin(struct supervisor *s, char name[NAME_MAX_BYTES + 1]) {
    uint32_t *order = calloc(s->snapshots.count + 1, sizeof *order);
    name[0] = '\0';
    if (order && origins(s, order) > 0)
        memcpy(name, s->snapshots.list[order[0]].name, NAME_MAX_BYTES + 1);
    free(order);
}

void snapshots_mark_broken(struct supervisor *s, const char *name) {
    int i = snapshots_find(s, name);
    if (i >= 0)
        s->snapshots.broken[i] = true;
}

void snapshots_restored(struct supervisor *s, const char *name, uint64_t gen) {
    struct err err = {0};
    snprintf(s->snapshots.restored, sizeof s->snapshots.restored, "%s", name);
    s->snapshots.restored_gen = gen;
    s->snapshots.has_saved = true;
    s->snapshots.saved_gen = gen;
    if (rundir_save_restored(&s->rundir, name, gen, &err))
        supervisor_error(s, "%s", err.text);
}

/* ---- removal */

static void on_deleted(void *arg, int status) {
    (void)arg;
    (void)status; /* what is left goes with the sweep of the next start */
}

/* The files go in a process of their own: a big one takes a while. It holds none of our
 * descriptors: neither the lock, nor links whose end somebody waits for. */
static void delete_files(struct supervisor *s, const char *name) {
    pid_t pid = fork();
    if (pid > 0)
        loop_child(s->loop, pid, on_deleted, NULL);
    if (pid != 0)
        return;
    for (int fd = 3; fd < DELETE_CLOSE_FDS; fd++)
        close(fd);
    char path[PATH_MAX], deleted[NAME_MAX_BYTES + 16];
    snprintf(deleted, sizeof deleted, ".del-%s", name);
    int dirfd = file_path(path, sizeof path, "%s/snapshots", s->rundir.path)
                    ? -1
                    : open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _exit(dirfd >= 0 && file_remove_tree(dirfd, deleted, NULL) == 0 ? 0 : 1);
}

static void forget(struct supervisor *s, uint32_t i) {
    struct snapshots *n = &s->snapshots;
    struct msg_snapshot_removed m = {.snapshot = n->list[i].id};
    mountd_send(s, MSG_SNAPSHOT_REMOVED, &m);
    record_snapshot(&s->record, &n->list[i], true);
    n->count--;
    memmove(n->list + i, n->list + i + 1, (n->count - i) * sizeof *n->list);
    memmove(n->broken + i, n->broken + i + 1, (n->count - i) * sizeof *n->broken);
}

int snapshots_remove(struct supervisor *s, const char *name, struct err *err) {
    int i = snapshots_find(s, name);
    if (i < 0)
        return err_set(err, ENOENT, "there is no snapshot %.120s", name);
    int rc = snapshot_remove(&store_io_posix, s->rundir.path, name, err);
    if (rc && rc != -ENOENT)
        return rc;
    forget(s, (uint32_t)i);
    delete_files(s, name);
    supervisor_event(s, "snapshot", "%s is removed", name);
    return 0;
}

/* The snapshot that the run would start from must stay, whatever its name. */
static void retain(struct supervisor *s) {
    struct snapshots *n = &s->snapshots;
    bool *drop = calloc(n->count + 1, sizeof *drop);
    char origin[NAME_MAX_BYTES + 1], name[NAME_MAX_BYTES + 1];
    struct err err = {0};
    snapshots_choose_origin(s, origin);
    if (drop && s->config.keep)
        snapshot_retention(n->list, n->count, s->config.keep, drop);
    for (uint32_t i = n->count; drop && i-- > 0;) {
        if (!drop[i] || n->broken[i] || strcmp(n->list[i].name, origin) == 0)
            continue;
        memcpy(name, n->list[i].name, sizeof name);
        if (snapshots_remove(s, name, &err))
            supervisor_error(s, "%s", err.text);
    }
    free(drop);
}

void snapshots_add(struct supervisor *s, const struct snapshot_info *info) {
    struct snapshots *n = &s->snapshots;
    struct snapshot_info *list = realloc(n->list, (n->count + 1) * sizeof *list);
    if (list)
        n->list = list;
    bool *broken = realloc(n->broken, (n->count + 2) * sizeof *broken);
    if (broken)
        n->broken = broken;
    n->restarts = 0;
    n->has_saved = true;
    n->saved_gen = info->gen;
    record_snapshot(&s->record, info, false);
    tell_added(s, info);
    if (!list || !broken)
        return; /* it is durable; the next start lists it */
    n->list[n->count] = *info;
    n->broken[n->count++] = false;
    retain(s);
}
