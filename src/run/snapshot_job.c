/* snapshot_job.c - writing a snapshot: a wide take, then each rank's file, then the name.
 *
 *   snapshots_begin     wide READY       all MSG_TAKE_WRITTEN
 *  ---------------> take ---------> write -------------------> published: listed, answered
 *                     |               |
 *                     +---------------+---> failed: abandoned, the run goes on */
#include "config.h"

#include "run/snapshot_job.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct snapshot_job {
    char name[NAME_MAX_BYTES + 1];
    char dir[MSG_PATH_BYTES];
    bool is_automatic, is_writing;
    uint64_t id, started_ns;
    struct command *command;
    struct wide *wide;
    uint32_t written_count, entry_count;
    char **entries; /* owned [entry_count] */
    char *state;    /* owned */
};

static void job_free(struct snapshot_job *j) {
    for (uint32_t r = 0; r < j->entry_count; r++)
        free(j->entries[r]);
    free(j->entries);
    free(j->state);
    free(j);
}

void snapshot_job_drop(struct supervisor *s) {
    if (!s->snapshots.job)
        return;
    wide_release(s, s->snapshots.job->wide);
    job_free(s->snapshots.job);
    s->snapshots.job = NULL;
}

bool snapshots_is_running(const struct supervisor *s) { return s->snapshots.job != NULL; }

const char *snapshots_running(const struct supervisor *s) {
    return s->snapshots.job ? s->snapshots.job->name : "";
}

static void job_failed(struct supervisor *s, uint32_t code, const char *why) {
    struct snapshot_job *j = s->snapshots.job;
    char text[MSG_TEXT_BYTES];
    if (strncmp(why, "snapshot ", 9) == 0) /* the store has named it */
        snprintf(text, sizeof text, "%s", why);
    else
        snprintf(text, sizeof text, "snapshot %s: %s", j->name, *why ? why : strerror((int)code));
    s->snapshots.job = NULL;
    wide_release(s, j->wide);
    if (j->is_writing)
        snapshot_abandon(&store_io_posix, s->rundir.path, j->name);
    if (j->command)
        commands_finish(s, j->command, code ? code : EIO, "%s", text);
    else
        supervisor_error(s, "%s", text);
    job_free(j);
    stop_snapshot_failed(s, code, text);
    status_send(s);
}

void snapshots_abort(struct supervisor *s) {
    struct snapshot_job *j = s->snapshots.job;
    if (!j || !j->command)
        return;
    commands_finish(s, j->command, ECANCELED, "snapshot %s: aborted", j->name);
    j->command = NULL;
    s->snapshots.job = NULL;
    wide_release(s, j->wide);
    if (j->is_writing)
        snapshot_abandon(&store_io_posix, s->rundir.path, j->name);
    job_free(j);
    status_send(s);
}

/* What was being written is of no use; who asked for it gets it from the next world. */
void snapshots_world_gone(struct supervisor *s) {
    struct snapshot_job *j = s->snapshots.job;
    if (!j)
        return;
    s->snapshots.job = NULL;
    wide_release(s, j->wide);
    if (j->is_writing)
        snapshot_abandon(&store_io_posix, s->rundir.path, j->name);
    if (j->command && command_is_open(j->command))
        ledger_retry(j->command);
    job_free(j);
}

static uint64_t total_bytes(const struct supervisor *s, uint32_t mask) {
    uint64_t bytes = 0;
    for (uint32_t r = 0; r < s->world.size; r++)
        bytes += SNAPSHOT_HEADER_BYTES + layout_dump_bytes(&s->world.layout, mask, r);
    return bytes;
}

static void publish(struct supervisor *s) {
    struct snapshot_job *j = s->snapshots.job;
    const struct wide *w = j->wide;
    struct err err = {0};
    char bytes[32];
    struct snapshot_info info = {.id = j->id,
                                 .epoch = w->epoch,
                                 .gen = w->gen,
                                 .step = w->step,
                                 .time_ns = loop_time_ns(),
                                 .world_size = s->world.size,
                                 .array_mask = w->mask,
                                 .attempt = (uint32_t)w->epoch,
                                 .automatic = j->is_automatic,
                                 .bytes = total_bytes(s, w->mask)};
    memcpy(info.name, j->name, sizeof info.name);
    if (snapshot_publish(&store_io_posix, s->rundir.path, &info, &s->world.layout,
                         (const char *const *)j->entries, j->state ? j->state : "{}",
                         s->world.model_config, &err)) {
        job_failed(s, (uint32_t)err.code, err.text);
        return;
    }
    s->snapshots.job = NULL;
    wide_release(s, j->wide);
    snapshots_add(s, &info);
    parse_format_bytes(info.bytes, bytes, sizeof bytes);
    double seconds = (double)(loop_now_ns() - j->started_ns) / 1e9;
    supervisor_event(s, "snapshot", "%s of step %" PRIu64 " is durable: %s in %.2f s", j->name,
                     info.step, bytes, seconds);
    status_send(s);
    if (j->command)
        commands_finish(s, j->command, 0, "snapshot %s of step %" PRIu64, j->name, info.step);
    job_free(j);
    stop_step(s);
}

/* step-0000000100, or step-0000000100-2 when a restore led to that step again. */
static void automatic_name(const struct supervisor *s, uint64_t step,
                           char name[NAME_MAX_BYTES + 1]) {
    snprintf(name, NAME_MAX_BYTES + 1, "step-%010" PRIu64, step);
    for (unsigned i = 2; snapshots_find(s, name) >= 0 && i < 1000; i++)
        snprintf(name, NAME_MAX_BYTES + 1, "step-%010" PRIu64 "-%u", step, i);
}

static void on_change(struct supervisor *s, struct wide *w) {
    struct snapshot_job *j = w->owner;
    struct err err = {0};
    if (w->state == WIDE_FAILED && !world_is_ready(s))
        return; /* snapshots_world_gone follows */
    if (w->state == WIDE_FAILED) {
        job_failed(s, w->code, w->code == ENOBUFS ? "the ranks have no memory for it" : "");
        return;
    }
    if (w->state != WIDE_READY)
        return;
    if (j->is_automatic)
        automatic_name(s, w->step, j->name); /* the step was a guess until now */
    if (snapshot_begin(&store_io_posix, s->rundir.path, j->name, j->dir, sizeof j->dir, &err)) {
        job_failed(s, (uint32_t)err.code, err.text);
        return;
    }
    j->is_writing = true;
    struct msg_take_write m = {.take = w->id, .snapshot = j->id};
    memcpy(m.dir, j->dir, sizeof m.dir);
    world_send_all(s, MSG_TAKE_WRITE, &m);
}

void snapshots_on_written(struct supervisor *s, uint32_t rank, const struct msg_take_written *m) {
    struct snapshot_job *j = s->snapshots.job;
    if (!j || !j->wide || j->wide->id != m->take || rank >= j->entry_count || j->entries[rank])
        return;
    if (m->code) {
        job_failed(s, m->code, m->text);
        return;
    }
    j->entries[rank] = strndup((const char *)m->entry.data, m->entry.len_bytes);
    if (rank == 0)
        j->state = strndup((const char *)m->state.data, m->state.len_bytes);
    if (!j->entries[rank] || (rank == 0 && !j->state)) {
        job_failed(s, ENOMEM, "no memory");
        return;
    }
    if (++j->written_count == j->entry_count)
        publish(s);
}

int snapshots_begin(struct supervisor *s, const char *name, struct command *command,
                    struct err *err) {
    if (name && !parse_name_ok(name))
        return err_set(err, EINVAL, "'%.120s' is no name of a snapshot: letters, digits, . _ -",
                       name);
    if (name && (snapshots_find(s, name) >= 0 || strcmp(snapshots_running(s), name) == 0))
        return err_set(err, EEXIST, "there is a snapshot %s", name);
    if (s->snapshots.job)
        return err_set(err, EBUSY, "snapshot %s is being written", s->snapshots.job->name);
    struct snapshot_job *j = calloc(1, sizeof *j);
    char **entries = calloc(s->world.size + 1, sizeof *entries);
    if (!j || !entries) {
        free(j);
        free(entries);
        return err_set(err, ENOMEM, "no memory");
    }
    j->entries = entries;
    j->entry_count = s->world.size;
    j->is_automatic = !name;
    j->command = command;
    j->id = ++s->snapshots.last_id;
    j->started_ns = loop_now_ns();
    if (name)
        snprintf(j->name, sizeof j->name, "%s", name);
    else
        automatic_name(s, s->goal.step, j->name);
    uint32_t mask =
        supervisor_arrays(s, s->config.snapshot_grads ? ARRAY_MASK_ALL : ARRAY_MASK_STATE);
    j->wide = wide_start(s, mask, true, on_change, j);
    if (!j->wide) {
        job_free(j);
        return err_set(err, ENOMEM, "no memory");
    }
    s->snapshots.job = j;
    status_send(s);
    return 0;
}
