/* catalogue.h - run.db, the history of a run in SQLite; written by the supervisor alone. A broken
 * or full database never stops training: every call logs its first failure, and later ones try
 * again at most each few seconds. */
#ifndef GFS_STORE_CATALOGUE_H
#define GFS_STORE_CATALOGUE_H

#include "base/err.h"
#include "store/snapshot.h"

struct catalogue;

/* Opens or makes RUN_DIR/run.db (WAL, synchronous NORMAL; mode 0600). A database that is not ours
 * or broken is renamed to run.db.broken-N and a new one is made; snapshot rows are rebuilt from the
 * directories. Fails for lack of memory only: a database that cannot be opened is tried again by
 * catalogue_flush. Never NULL on success. */
int catalogue_open(const char *run_dir, struct catalogue **out, struct err *err);
void catalogue_close(struct catalogue *c); /* flushes, durably */

struct catalogue_step {
    uint64_t step, attempt, epoch, gen, tokens, time_ns;
    double loss, grad_norm, clip_factor, lr, step_seconds;
};
struct catalogue_command {
    uint64_t number;
    const char *id, *name, *value, *state, *text;
    int code;
};
/* Queued in memory and committed by catalogue_flush (called from a timer and before anything
 * durable is reported). What waits is bounded: the oldest steps are dropped first, and how many
 * rows were lost becomes an event. A command is known by its number within the run: a later call
 * with the same number replaces its row. */
void catalogue_run(struct catalogue *c, const char *version, const char *config_text);
void catalogue_attempt(struct catalogue *c, uint64_t attempt, uint64_t epoch, uint32_t world_size,
                       const char *outcome /* NULL: began */);
void catalogue_step(struct catalogue *c, const struct catalogue_step *s);
void catalogue_command(struct catalogue *c, const struct catalogue_command *cmd);
void catalogue_event(struct catalogue *c, uint64_t time_ns, const char *kind, const char *text);
void catalogue_snapshot(struct catalogue *c, const struct snapshot_info *info, bool removed);
/* One transaction; durable: and an fsync of the WAL. -errno, also while it waits for the next try.
 */
int catalogue_flush(struct catalogue *c, bool durable);

/* Issues the next epoch, from 1: durable in RUN_DIR/epoch before it is returned, and never reused.
 * (Not in the database, which may be lost.) Where the file is missing, above those of the
 * snapshots; -EIO when it holds no number. */
int catalogue_next_epoch(const char *run_dir, uint64_t *epoch, struct err *err);

/* An image of RUN_DIR/run.db that plain sqlite3 opens on a read-only mount (header bytes 18 and 19
 * set to 1). Caller frees. -ENOENT when there is none. For any process that may read the run
 * directory. */
int catalogue_image(const char *run_dir, uint8_t **image, size_t *len_bytes, struct err *err);

#endif
