/* snapshot_job.h - the snapshot that is being written. */
#ifndef GFS_RUN_SNAPSHOT_JOB_H
#define GFS_RUN_SNAPSHOT_JOB_H

#include "run/supervisor.h"

/* Forgets it without a word: the end of the supervisor. */
void snapshot_job_drop(struct supervisor *s);

/* snapshots.c: one more is durable. Tells the daemon, and lets the oldest automatic ones go. */
void snapshots_add(struct supervisor *s, const struct snapshot_info *info);

#endif
