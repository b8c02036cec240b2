/* catalogue_schema.c - the tables of run.db, and what is done with a file that does not have them.
 */
#include "config.h"

#include <stdbool.h>

#include "store/catalogue_schema.h"

#include "base/file.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SCHEMA_BUSY_MS = 250, SCHEMA_MAX_BROKEN = 1000 };

/* "gfs1", and the version of the tables. */
#define SCHEMA_APPLICATION_ID "1734767409"
#define SCHEMA_VERSION "1"

static const char schema_sql[] =
    "BEGIN IMMEDIATE;"
    "CREATE TABLE runs (run INTEGER PRIMARY KEY, started_ns INTEGER NOT NULL, version TEXT NOT "
    "NULL,"
    " config TEXT NOT NULL);"
    "CREATE TABLE attempts (epoch INTEGER PRIMARY KEY, attempt INTEGER NOT NULL, run INTEGER,"
    " world_size INTEGER NOT NULL, began_ns INTEGER NOT NULL, ended_ns INTEGER, outcome TEXT);"
    "CREATE TABLE steps (epoch INTEGER NOT NULL, gen INTEGER NOT NULL, step INTEGER NOT NULL,"
    " attempt INTEGER NOT NULL, tokens INTEGER NOT NULL, time_ns INTEGER NOT NULL, loss REAL,"
    " grad_norm REAL, clip_factor REAL, lr REAL, step_seconds REAL, PRIMARY KEY (epoch, gen))"
    " WITHOUT ROWID;"
    "CREATE TABLE snapshots (name TEXT NOT NULL, id INTEGER NOT NULL, epoch INTEGER NOT NULL,"
    " gen INTEGER NOT NULL, step INTEGER NOT NULL, time_ns INTEGER NOT NULL,"
    " world_size INTEGER NOT NULL, array_mask INTEGER NOT NULL, attempt INTEGER NOT NULL,"
    " automatic INTEGER NOT NULL, bytes INTEGER NOT NULL, removed_ns INTEGER,"
    " PRIMARY KEY (name, epoch, gen, id));"
    "CREATE TABLE commands (run INTEGER NOT NULL, number INTEGER NOT NULL, time_ns INTEGER NOT "
    "NULL,"
    " id TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, state TEXT NOT NULL,"
    " code INTEGER NOT NULL, text TEXT NOT NULL, PRIMARY KEY (run, number));"
    "CREATE TABLE events (event INTEGER PRIMARY KEY, run INTEGER, time_ns INTEGER NOT NULL,"
    " kind TEXT NOT NULL, text TEXT NOT NULL);"
    "PRAGMA application_id = " SCHEMA_APPLICATION_ID ";"
    "PRAGMA user_version = " SCHEMA_VERSION ";"
    "COMMIT;";

int catalogue_errno(int sqlite_code) {
    static const struct {
        int sqlite, code;
    } table[] = {
        {SQLITE_OK, 0},           {SQLITE_DONE, 0},
        {SQLITE_FULL, ENOSPC},    {SQLITE_NOMEM, ENOMEM},
        {SQLITE_BUSY, EBUSY},     {SQLITE_LOCKED, EBUSY},
        {SQLITE_PERM, EACCES},    {SQLITE_AUTH, EACCES},
        {SQLITE_READONLY, EROFS}, {SQLITE_CANTOPEN, EACCES},
        {SQLITE_TOOBIG, EFBIG},   {SQLITE_MISUSE, EINVAL},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (table[i].sqlite == (sqlite_code & 0xff))
            return table[i].code;
    return EIO;
}

bool catalogue_is_broken(int sqlite_code) {
    int primary = sqlite_code & 0xff;
    return primary == SQLITE_CORRUPT || primary == SQLITE_NOTADB || primary == SQLITE_SCHEMA ||
           primary == SQLITE_FORMAT;
}

/* What stands in the file decides; "broken" covers what is of another program or of a later
 * version. */
enum schema_state { SCHEMA_OURS, SCHEMA_EMPTY, SCHEMA_FOREIGN };

static int schema_number(sqlite3 *db, const char *sql, sqlite3_int64 *out) {
    sqlite3_stmt *q;
    int rc = sqlite3_prepare_v2(db, sql, -1, &q, NULL);
    if (rc != SQLITE_OK)
        return rc;
    rc = sqlite3_step(q);
    if (rc == SQLITE_ROW)
        *out = sqlite3_column_int64(q, 0);
    int end = sqlite3_finalize(q);
    return rc == SQLITE_ROW ? SQLITE_OK : rc == SQLITE_DONE ? SQLITE_CORRUPT : end;
}

static int schema_look(sqlite3 *db, enum schema_state *state) {
    sqlite3_int64 application = 0, version = 0, tables = 0, ours = 0;
    int rc = schema_number(db, "PRAGMA application_id", &application);
    if (rc == SQLITE_OK)
        rc = schema_number(db, "PRAGMA user_version", &version);
    if (rc == SQLITE_OK)
        rc = schema_number(db, "SELECT count(*) FROM sqlite_schema", &tables);
    if (rc == SQLITE_OK)
        rc = schema_number(db,
                           "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name IN "
                           "('runs', 'attempts', 'steps', 'snapshots', 'commands', 'events')",
                           &ours);
    if (rc != SQLITE_OK)
        return rc;
    bool matches = application == atoll(SCHEMA_APPLICATION_ID) && version == atoll(SCHEMA_VERSION);
    *state = matches && ours == 6                              ? SCHEMA_OURS
             : tables == 0 && application == 0 && version == 0 ? SCHEMA_EMPTY
                                                               : SCHEMA_FOREIGN;
    return SQLITE_OK;
}

static int schema_exec(sqlite3 *db, const char *sql) {
    return sqlite3_exec(db, sql, NULL, NULL, NULL);
}

/* The file is made here, for its mode: SQLite gives its journals the same. */
static int schema_path(const char *run_dir, char path[PATH_MAX], struct err *err) {
    char *dir =
        realpath(run_dir, NULL); /* SQLITE_OPEN_NOFOLLOW refuses links anywhere in the path */
    if (dir == NULL)
        return err_set(err, errno, "%s: %s", run_dir, strerror(errno));
    int rc = file_path(path, PATH_MAX, "%s/run.db", dir);
    free(dir);
    if (rc != 0)
        return err_set(err, -rc, "%s: the path is too long", run_dir);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0)
        close(fd);
    else if (errno != EEXIST)
        return err_set(err, errno, "%s: cannot be made: %s", path, strerror(errno));
    return 0;
}

/* Returns a code of SQLite: OK with a database of ours, NOTADB for one that must be put aside. */
static int schema_prepare(sqlite3 *db) {
    enum schema_state state = SCHEMA_FOREIGN;
    sqlite3_extended_result_codes(db, 1);
    sqlite3_busy_timeout(db, SCHEMA_BUSY_MS);
    int rc = schema_look(db, &state);
    if (rc == SQLITE_OK && state == SCHEMA_FOREIGN)
        return SQLITE_NOTADB;
    if (rc == SQLITE_OK)
        rc = schema_exec(db, "PRAGMA journal_mode = WAL");
    if (rc == SQLITE_OK)
        rc = schema_exec(db, "PRAGMA synchronous = NORMAL");
    if (rc == SQLITE_OK && state == SCHEMA_EMPTY)
        rc = schema_exec(db, schema_sql);
    return rc;
}

static int schema_try(const char *path, sqlite3 **out) {
    sqlite3 *db = NULL;
    int rc = sqlite3_open_v2(
        path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOFOLLOW | SQLITE_OPEN_NOMUTEX, NULL);
    if (rc == SQLITE_OK)
        rc = schema_prepare(db);
    if (rc == SQLITE_OK) {
        *out = db;
        return rc;
    }
    sqlite3_close(db);
    return rc;
}

int catalogue_schema_put_aside(const char *run_dir, struct err *err) {
    static const char *const suffixes[] = {"", "-wal", "-shm"};
    char from[PATH_MAX], to[PATH_MAX];
    struct stat st;
    int n = 1;
    for (; n < SCHEMA_MAX_BROKEN; n++) {
        int rc = file_path(to, sizeof(to), "%s/run.db.broken-%d", run_dir, n);
        if (rc != 0)
            return err_set(err, -rc, "%s: the path is too long", run_dir);
        if (lstat(to, &st) != 0)
            break;
    }
    for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
        if (file_path(from, sizeof(from), "%s/run.db%s", run_dir, suffixes[i]) != 0 ||
            file_path(to, sizeof(to), "%s/run.db.broken-%d%s", run_dir, n, suffixes[i]) != 0)
            return err_set(err, ENAMETOOLONG, "%s: the path is too long", run_dir);
        if (rename(from, to) != 0 && errno != ENOENT)
            return err_set(err, errno, "%s: cannot be put aside: %s", from, strerror(errno));
    }
    log_warn("%s/run.db is broken, or not of this program: it is now run.db.broken-%d", run_dir, n);
    return 0;
}

int catalogue_schema_open(const char *run_dir, sqlite3 **db, struct err *err) {
    char path[PATH_MAX];
    int code = SQLITE_OK;
    for (int i = 0; i < 2; i++) {
        int rc = schema_path(run_dir, path, err);
        if (rc != 0)
            return rc;
        code = schema_try(path, db);
        if (!catalogue_is_broken(code))
            break;
        rc = catalogue_schema_put_aside(run_dir, err);
        if (rc != 0)
            return rc;
    }
    if (code == SQLITE_OK)
        return 0;
    return err_set(err, catalogue_errno(code), "%s: %s", path, sqlite3_errstr(code));
}
