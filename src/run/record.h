/* record.h - what a run leaves in writing: metrics.tsv, events, run.db. None of it ever stops
 * training. */
#ifndef GFS_RUN_RECORD_H
#define GFS_RUN_RECORD_H

#include <stdint.h>

#include "base/err.h"
#include "store/catalogue.h"

struct record {
    int metrics_fd, events_fd; /* -1: could not be opened */
    uint64_t metrics_bytes, events_bytes;
    uint64_t last_step, last_gen; /* of the last row of metrics.tsv, 0 if none */
    struct catalogue *catalogue;  /* NULL: could not be opened */
    int warned_code;              /* errno of the last failed write: said once, not for each line */
};

/* Opens or makes the files; a line cut short by a crash is taken away. Fails only when none can be
 * opened. */
int record_open(const char *run_dir, struct record *out, struct err *err);
void record_close(struct record *r);

void record_step(struct record *r, const struct catalogue_step *s);
/* kind: one word. A line `TIME KIND TEXT` in events, and a row of run.db. */
void record_event(struct record *r, const char *kind, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void record_command(struct record *r, const struct catalogue_command *c);
void record_attempt(struct record *r, uint64_t attempt, uint64_t epoch, uint32_t world_size,
                    const char *outcome);
void record_snapshot(struct record *r, const struct snapshot_info *info, bool removed);
void record_flush(struct record *r);

#endif
