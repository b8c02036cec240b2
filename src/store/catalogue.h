/* catalogue.h - run.db, the history of a run in SQLite; written by the supervisor alone. A broken or full database never stops
 * training: every call logs its first failure, and later ones try again at most each few seconds. */
#ifndef GFS_STORE_CATALOGUE_H
#define GFS_STORE_CATALOGUE_H

#include "base/err.h"
#include "store/snapshot.h"

struct catalogue;

/* Opens or makes RUN_DIR/run.db (WAL, synchronous NORMAL; mode 0600). A database that is not ours or broken is renamed to
 * run.db.broken-N and a new one is made; snapshot rows are rebuilt from the directories. Never NULL on success. */
int catalogue_open(const char *run_dir, struct catalogue **out, struct err *err);
void catalogue_close(struct catalogue *c);

struct catalogue_step {
    uint64_t step, attempt, epoch, gen, tokens, time_ns;
    double loss, grad_norm, clip_factor, lr, step_seconds;
};
struct catalogue_command {
    uint64_t number;
    const char *id, *name, *value, *state, *text;
    int code;
};
/* Queued in memory and committed by catalogue_flush (called from a timer and before anything durable is reported). */
void catalogue_run(struct catalogue *c, const char *version, const char *config_text);
void catalogue_attempt(struct catalogue *c, uint64_t attempt, uint64_t epoch, uint32_t world_size, const char *outcome /* NULL: began */);
void catalogue_step(struct catalogue *c, const struct catalogue_step *s);
void catalogue_command(struct catalogue *c, const struct catalogue_command *cmd);
void catalogue_event(struct catalogue *c, uint64_t time_ns, const char *kind, const char *text);
void catalogue_snapshot(struct catalogue *c, const struct snapshot_info *info, bool removed);
int catalogue_flush(struct catalogue *c, bool durable); /* durable: fsync of the WAL */

/* Persistent counters: the epoch is never reused. (Also kept in a file of the run directory, RUN_DIR/epoch, replaced atomically: the
 * truth, since the database may be lost.) */
int catalogue_next_epoch(const char *run_dir, uint64_t *epoch, struct err *err);

/* An image of RUN_DIR/run.db that plain sqlite3 opens on a read-only mount (header bytes 18 and 19 set to 1). Caller frees. */
int catalogue_image(const char *run_dir, uint8_t **image, size_t *len_bytes, struct err *err);

#endif
