/* catalogue.c - rows wait in memory until a flush writes them all in one transaction; when that
 * fails they wait on. */
#include "config.h"

#include "base/file.h"
#include "base/log.h"
#include "store/catalogue.h"
#include "store/catalogue_schema.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Bounds of what waits for a database that fails. */
enum {
    CATALOGUE_MAX_STEPS = 65536,
    CATALOGUE_MAX_OTHERS = 16384,
    CATALOGUE_MAX_TEXT_BYTES = 16 << 20,
    CATALOGUE_RETRY_SECONDS = 5
};

enum row_kind {
    ROW_ATTEMPT,
    ROW_STEP,
    ROW_COMMAND,
    ROW_EVENT,
    ROW_SNAPSHOT,
    ROW_REMOVED,
    ROW_ALL_REMOVED,
    ROW_RUN,
    ROW_KIND_COUNT
};

static const char *const row_sql[ROW_KIND_COUNT] = {
    [ROW_ATTEMPT] =
        "INSERT INTO attempts (epoch, attempt, run, world_size, began_ns, ended_ns, outcome)"
        " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (epoch) DO UPDATE SET"
        " ended_ns = excluded.ended_ns, outcome = excluded.outcome",
    [ROW_STEP] = "INSERT OR REPLACE INTO steps (epoch, gen, step, attempt, tokens, time_ns, loss,"
                 " grad_norm, clip_factor, lr, step_seconds)"
                 " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
    [ROW_COMMAND] = "INSERT OR REPLACE INTO commands (run, number, time_ns, id, name, value, state,"
                    " text, code) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    [ROW_EVENT] = "INSERT INTO events (run, time_ns, kind, text) VALUES (?1, ?2, ?3, ?4)",
    [ROW_SNAPSHOT] =
        "INSERT OR REPLACE INTO snapshots (name, id, epoch, gen, step, time_ns, world_size,"
        " array_mask, attempt, automatic, bytes)"
        " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
    [ROW_REMOVED] = "UPDATE snapshots SET removed_ns = ?1 WHERE name = ?2 AND removed_ns IS NULL",
    [ROW_ALL_REMOVED] = "UPDATE snapshots SET removed_ns = ?1 WHERE removed_ns IS NULL",
    [ROW_RUN] = "INSERT INTO runs (started_ns, version, config) VALUES (?1, ?2, ?3)",
};

enum { ROW_MAX_TEXTS = 5 };
struct row {
    struct row *next;
    enum row_kind kind;
    uint64_t time_ns;
    union {
        struct catalogue_step step;
        struct {
            uint64_t attempt, epoch;
            uint32_t world_size;
        } attempt;
        struct {
            uint64_t number;
            int code;
        } command;
        struct snapshot_info snapshot;
    };
    bool has_text[ROW_MAX_TEXTS];
    size_t text_bytes;
    char texts[]; /* ROW_MAX_TEXTS strings, one after the other */
};

struct queue {
    struct row *first, **end;
    uint32_t count, max_count;
    uint64_t dropped;
};

struct catalogue {
    char *run_dir; /* owned */
    sqlite3 *db;   /* owned; NULL while it cannot be opened */
    sqlite3_stmt *insert[ROW_KIND_COUNT];
    struct queue steps, others;
    size_t text_bytes;   /* of all rows that wait */
    struct row *run_row; /* owned; of this run, kept for a database that is made anew */
    sqlite3_int64 run;   /* its number, 0 while it is not in the database */
    bool rebuilding;     /* the rows of catalogue_rebuild_snapshots wait */
    bool failing;
    int last_code;
    time_t retry_at;
};

static uint64_t catalogue_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static time_t catalogue_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec;
}

/* ---- the queue */

static struct row *row_new(enum row_kind kind, const char *const texts[], size_t text_count) {
    size_t bytes = 0;
    for (size_t i = 0; i < ROW_MAX_TEXTS; i++)
        bytes += (i < text_count && texts[i] != NULL ? strlen(texts[i]) : 0) + 1;
    struct row *r = calloc(1, sizeof(*r) + bytes);
    if (r == NULL)
        return NULL;
    char *at = r->texts;
    for (size_t i = 0; i < ROW_MAX_TEXTS; i++) {
        r->has_text[i] = i < text_count && texts[i] != NULL;
        size_t len = r->has_text[i] ? strlen(texts[i]) : 0;
        if (len > 0)
            memcpy(at, texts[i], len);
        at += len + 1;
    }
    r->kind = kind;
    r->text_bytes = bytes;
    r->time_ns = catalogue_now_ns();
    return r;
}

static void queue_drop_first(struct catalogue *c, struct queue *q) {
    struct row *r = q->first;
    q->first = r->next;
    if (q->first == NULL)
        q->end = &q->first;
    q->count--;
    c->text_bytes -= r->text_bytes;
    free(r);
}

static void queue_clear(struct catalogue *c, struct queue *q) {
    while (q->first != NULL)
        queue_drop_first(c, q);
}

/* Takes over r, which is NULL when there was no memory: counted as lost. The oldest steps make
 * room. */
static void queue_add(struct catalogue *c, struct queue *q, struct row *r) {
    if (r == NULL) {
        q->dropped++;
        return;
    }
    *q->end = r;
    q->end = &r->next;
    q->count++;
    c->text_bytes += r->text_bytes;
    for (; q->count > q->max_count; q->dropped++)
        queue_drop_first(c, q);
    for (; c->text_bytes > CATALOGUE_MAX_TEXT_BYTES && c->steps.count > 0; c->steps.dropped++)
        queue_drop_first(c, &c->steps);
    for (; c->text_bytes > CATALOGUE_MAX_TEXT_BYTES && c->others.count > 0; c->others.dropped++)
        queue_drop_first(c, &c->others);
}

void catalogue_run(struct catalogue *c, const char *version, const char *config_text) {
    const char *const texts[] = {version, config_text};
    free(c->run_row);
    c->run_row = row_new(ROW_RUN, texts, 2);
    c->run = 0;
}

void catalogue_attempt(struct catalogue *c, uint64_t attempt, uint64_t epoch, uint32_t world_size,
                       const char *outcome) {
    const char *const texts[] = {outcome};
    struct row *r = row_new(ROW_ATTEMPT, texts, 1);
    if (r != NULL) {
        r->attempt.attempt = attempt;
        r->attempt.epoch = epoch;
        r->attempt.world_size = world_size;
    }
    queue_add(c, &c->others, r);
}

void catalogue_step(struct catalogue *c, const struct catalogue_step *s) {
    struct row *r = row_new(ROW_STEP, NULL, 0);
    if (r != NULL)
        r->step = *s;
    queue_add(c, &c->steps, r);
}

void catalogue_command(struct catalogue *c, const struct catalogue_command *cmd) {
    const char *const texts[] = {cmd->id, cmd->name, cmd->value, cmd->state, cmd->text};
    struct row *r = row_new(ROW_COMMAND, texts, 5);
    if (r != NULL) {
        r->command.number = cmd->number;
        r->command.code = cmd->code;
    }
    queue_add(c, &c->others, r);
}

void catalogue_event(struct catalogue *c, uint64_t time_ns, const char *kind, const char *text) {
    const char *const texts[] = {kind, text};
    struct row *r = row_new(ROW_EVENT, texts, 2);
    if (r != NULL)
        r->time_ns = time_ns;
    queue_add(c, &c->others, r);
}

void catalogue_snapshot(struct catalogue *c, const struct snapshot_info *info, bool removed) {
    struct row *r = row_new(removed ? ROW_REMOVED : ROW_SNAPSHOT, NULL, 0);
    if (r != NULL)
        r->snapshot = *info;
    queue_add(c, &c->others, r);
}

/* The directories are the truth: queues rows that make the table say what they say. */
static void catalogue_rebuild_snapshots(struct catalogue *c) {
    struct snapshot_info *list = NULL;
    uint32_t count = 0;
    struct err err = {0};
    if (c->rebuilding)
        return;
    if (snapshot_list(c->run_dir, &list, &count, NULL, &err) != 0) {
        log_warn("run.db: its list of snapshots may be out of date: %s", err.text);
        return;
    }
    queue_add(c, &c->others, row_new(ROW_ALL_REMOVED, NULL, 0));
    for (uint32_t i = 0; i < count; i++)
        catalogue_snapshot(c, &list[i], false);
    free(list);
    c->rebuilding = true;
}

/* ---- rows into the database */

static void bind_u64(sqlite3_stmt *q, int at, uint64_t v) {
    sqlite3_bind_int64(q, at, v > INT64_MAX ? INT64_MAX : (sqlite3_int64)v);
}

/* Strings that were NULL: as NULL where the column may be, else empty. */
static void bind_texts(sqlite3_stmt *q, int at, const struct row *r, int count, bool null) {
    const char *text = r->texts;
    for (int i = 0; i < count; i++) {
        if (r->has_text[i] || !null)
            sqlite3_bind_text(q, at + i, text, -1, SQLITE_STATIC);
        text += strlen(text) + 1;
    }
}

static void bind_run(const struct catalogue *c, sqlite3_stmt *q, int at) {
    if (c->run != 0)
        sqlite3_bind_int64(q, at, c->run);
}

static void bind_attempt(const struct catalogue *c, sqlite3_stmt *q, const struct row *r) {
    bind_u64(q, 1, r->attempt.epoch);
    bind_u64(q, 2, r->attempt.attempt);
    bind_run(c, q, 3);
    bind_u64(q, 4, r->attempt.world_size);
    bind_u64(q, 5, r->time_ns);
    if (r->has_text[0])
        bind_u64(q, 6, r->time_ns);
    bind_texts(q, 7, r, 1, true);
}

static void bind_step(sqlite3_stmt *q, const struct catalogue_step *s) {
    const uint64_t counts[] = {s->epoch, s->gen, s->step, s->attempt, s->tokens, s->time_ns};
    const double numbers[] = {s->loss, s->grad_norm, s->clip_factor, s->lr, s->step_seconds};
    for (int i = 0; i < 6; i++)
        bind_u64(q, 1 + i, counts[i]);
    for (int i = 0; i < 5; i++)
        sqlite3_bind_double(q, 7 + i, numbers[i]); /* NaN becomes NULL */
}

static void bind_snapshot(sqlite3_stmt *q, const struct snapshot_info *s) {
    const uint64_t counts[] = {s->id,         s->epoch,      s->gen,     s->step,      s->time_ns,
                               s->world_size, s->array_mask, s->attempt, s->automatic, s->bytes};
    sqlite3_bind_text(q, 1, s->name, -1, SQLITE_STATIC);
    for (int i = 0; i < 10; i++)
        bind_u64(q, 2 + i, counts[i]);
}

static void bind_row(const struct catalogue *c, sqlite3_stmt *q, const struct row *r) {
    switch (r->kind) {
    case ROW_ATTEMPT:
        bind_attempt(c, q, r);
        break;
    case ROW_STEP:
        bind_step(q, &r->step);
        break;
    case ROW_COMMAND:
        sqlite3_bind_int64(q, 1, c->run); /* part of the key */
        bind_u64(q, 2, r->command.number);
        bind_u64(q, 3, r->time_ns);
        bind_texts(q, 4, r, 5, false);
        sqlite3_bind_int(q, 9, r->command.code);
        break;
    case ROW_EVENT:
        bind_run(c, q, 1);
        bind_u64(q, 2, r->time_ns);
        bind_texts(q, 3, r, 2, false);
        break;
    case ROW_SNAPSHOT:
        bind_snapshot(q, &r->snapshot);
        break;
    case ROW_REMOVED:
        sqlite3_bind_text(q, 2, r->snapshot.name, -1, SQLITE_STATIC);
        bind_u64(q, 1, r->time_ns);
        break;
    case ROW_ALL_REMOVED:
        bind_u64(q, 1, r->time_ns);
        break;
    default:
        bind_u64(q, 1, r->time_ns);
        bind_texts(q, 2, r, 2, false);
        break;
    }
}

static int catalogue_insert(struct catalogue *c, const struct row *r) {
    sqlite3_stmt *q = c->insert[r->kind];
    if (q == NULL) {
        int rc =
            sqlite3_prepare_v3(c->db, row_sql[r->kind], -1, SQLITE_PREPARE_PERSISTENT, &q, NULL);
        if (rc != SQLITE_OK)
            return rc;
        c->insert[r->kind] = q;
    }
    sqlite3_clear_bindings(q);
    bind_row(c, q, r);
    int rc = sqlite3_step(q);
    sqlite3_reset(q);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

/* A row that the tables do not take is lost alone, and does not keep the others waiting for ever.
 */
static bool catalogue_is_refused(int rc) {
    int primary = rc & 0xff;
    return primary == SQLITE_CONSTRAINT || primary == SQLITE_MISMATCH || primary == SQLITE_TOOBIG;
}

static int catalogue_insert_all(struct catalogue *c, const struct queue *q, uint64_t *refused) {
    int rc = SQLITE_OK;
    for (const struct row *r = q->first; rc == SQLITE_OK && r != NULL; r = r->next) {
        rc = catalogue_insert(c, r);
        if (catalogue_is_refused(rc)) {
            (*refused)++;
            rc = SQLITE_OK;
        }
    }
    return rc;
}

/* What was lost while the database failed stands in it as an event. */
static int catalogue_insert_losses(struct catalogue *c, uint64_t refused) {
    char text[128];
    if (c->steps.dropped + c->others.dropped + refused == 0)
        return SQLITE_OK;
    snprintf(text, sizeof(text), "%" PRIu64 " steps and %" PRIu64 " other rows were not recorded",
             c->steps.dropped, c->others.dropped + refused);
    const char *const texts[] = {"lost", text};
    struct row *r = row_new(ROW_EVENT, texts, 2);
    if (r == NULL)
        return SQLITE_NOMEM;
    int rc = catalogue_insert(c, r);
    free(r);
    return rc;
}

static int catalogue_transaction(struct catalogue *c) {
    sqlite3_int64 run = c->run;
    uint64_t refused = 0;
    int rc = sqlite3_exec(c->db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    if (rc != SQLITE_OK)
        return rc;
    if (c->run == 0 && c->run_row != NULL) {
        rc = catalogue_insert(c, c->run_row);
        if (rc == SQLITE_OK)
            c->run = sqlite3_last_insert_rowid(c->db);
    }
    if (rc == SQLITE_OK)
        rc = catalogue_insert_all(c, &c->others, &refused);
    if (rc == SQLITE_OK)
        rc = catalogue_insert_all(c, &c->steps, &refused);
    if (rc == SQLITE_OK)
        rc = catalogue_insert_losses(c, refused);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(c->db, "COMMIT", NULL, NULL, NULL);
    if (rc == SQLITE_OK) {
        queue_clear(c, &c->steps);
        queue_clear(c, &c->others);
        c->steps.dropped = c->others.dropped = 0;
        c->rebuilding = false;
        return rc;
    }
    c->run = run;
    if (sqlite3_get_autocommit(c->db) == 0)
        sqlite3_exec(c->db, "ROLLBACK", NULL, NULL, NULL);
    return rc;
}

/* ---- opening and flushing */

static void catalogue_close_db(struct catalogue *c) {
    for (int i = 0; i < ROW_KIND_COUNT; i++) {
        sqlite3_finalize(c->insert[i]);
        c->insert[i] = NULL;
    }
    sqlite3_close(c->db);
    c->db = NULL;
}

static int catalogue_open_db(struct catalogue *c, struct err *err) {
    int rc = catalogue_schema_open(c->run_dir, &c->db, err);
    if (rc == 0) {
        c->run = 0; /* it may be another database than before */
        catalogue_rebuild_snapshots(c);
    }
    return rc;
}

/* One word in the log when it begins to fail, one when it is over. */
static int catalogue_failed(struct catalogue *c, int code, const char *text) {
    if (!c->failing)
        log_warn("run.db cannot be written, the history waits in memory: %s", text);
    c->failing = true;
    c->last_code = code;
    c->retry_at = catalogue_clock() + CATALOGUE_RETRY_SECONDS;
    return code;
}

static void catalogue_succeeded(struct catalogue *c) {
    if (c->failing)
        log_info("run.db can be written again");
    c->failing = false;
}

/* A commit in WAL mode with synchronous NORMAL is durable when the WAL is. */
static int catalogue_sync_wal(const struct catalogue *c) {
    char path[PATH_MAX];
    int rc = file_path(path, sizeof(path), "%s/run.db-wal", c->run_dir);
    if (rc != 0)
        return rc;
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno; /* no WAL: all is in the database, which was synced */
    rc = fsync(fd) == 0 ? 0 : -errno;
    close(fd);
    return rc;
}

static bool catalogue_has_work(const struct catalogue *c) {
    return c->steps.count + c->others.count > 0 || (c->run == 0 && c->run_row != NULL) ||
           c->steps.dropped + c->others.dropped > 0;
}

int catalogue_flush(struct catalogue *c, bool durable) {
    struct err err = {0};
    if (c->failing && catalogue_clock() < c->retry_at)
        return c->last_code;
    if (c->db == NULL && catalogue_open_db(c, &err) != 0)
        return catalogue_failed(c, -err.code, err.text);
    if (catalogue_has_work(c)) {
        int rc = catalogue_transaction(c);
        if (catalogue_is_broken(rc)) {
            catalogue_close_db(c);
            if (catalogue_schema_put_aside(c->run_dir, &err) != 0 ||
                catalogue_open_db(c, &err) != 0)
                return catalogue_failed(c, -err.code, err.text);
            rc = catalogue_transaction(c);
        }
        if (rc != SQLITE_OK) {
            /* With fresh descriptors next time: the file may have been taken away or replaced. */
            catalogue_close_db(c);
            return catalogue_failed(c, -catalogue_errno(rc), sqlite3_errstr(rc));
        }
    }
    int rc = durable ? catalogue_sync_wal(c) : 0;
    if (rc != 0)
        return catalogue_failed(c, rc, "its journal cannot be synced");
    catalogue_succeeded(c);
    return 0;
}

int catalogue_open(const char *run_dir, struct catalogue **out, struct err *err) {
    struct catalogue *c = calloc(1, sizeof(*c));
    char *dir = malloc(strlen(run_dir) + 1);
    if (c == NULL || dir == NULL) {
        free(c);
        free(dir);
        return err_set(err, ENOMEM, "no memory for the catalogue");
    }
    memcpy(dir, run_dir, strlen(run_dir) + 1);
    c->run_dir = dir;
    c->steps = (struct queue){.end = &c->steps.first, .max_count = CATALOGUE_MAX_STEPS};
    c->others = (struct queue){.end = &c->others.first, .max_count = CATALOGUE_MAX_OTHERS};
    struct err why = {0};
    if (catalogue_open_db(c, &why) != 0)
        catalogue_failed(c, -why.code, why.text);
    *out = c;
    return 0;
}

void catalogue_close(struct catalogue *c) {
    if (c == NULL)
        return;
    c->retry_at = 0; /* the last chance */
    catalogue_flush(c, true);
    catalogue_close_db(c);
    queue_clear(c, &c->steps);
    queue_clear(c, &c->others);
    free(c->run_row);
    free(c->run_dir);
    free(c);
}
