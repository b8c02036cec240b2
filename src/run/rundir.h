/* rundir.h - the run directory: whose it is, what it remembers, what may not change between two
 * starts. */
#ifndef GFS_RUN_RUNDIR_H
#define GFS_RUN_RUNDIR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/knobs.h"

enum { RUNDIR_PATH_BYTES = 4096 };

/* What a command line and a --config file asked for. */
struct request {
    struct config values;
    bool *given;                        /* owned [knob_count] */
    char mountpoint[RUNDIR_PATH_BYTES]; /* "" with --no-mount and --run-dir alone; absolute */
    char run_dir[RUNDIR_PATH_BYTES];    /* absolute */
};

struct rundir {
    char path[RUNDIR_PATH_BYTES];
    int lock_fd;
    bool is_resumed; /* a config was there */
};

/* Takes the lock. With --new what is there is renamed to PATH.1 (the next free number) first;
 * *moved (may be NULL) says to which number, 0 if nothing was there. -EBUSY names the process that
 * has it; -ENOTEMPTY for a directory that is something else. */
int rundir_open(const char *path, bool fresh, struct rundir *out, unsigned *moved, struct err *err);
void rundir_close(struct rundir *r);
/* The pid of the supervisor that holds the lock of a run directory, 0 when nobody does; -errno. */
int rundir_holder(const char *path, int *pid);

/* Merges command line, file, saved and defaults. Refuses a changed fixed knob by name. */
int rundir_config(struct rundir *r, const struct request *q, struct config *out, struct err *err);
int rundir_save_config(const struct rundir *r, const struct config *c, struct err *err);
/* Sweeps what a killed run left: unpublished snapshots, temporary files. */
int rundir_sweep(const struct rundir *r, struct err *err);
/* What a launcher that was killed left in tmp/; nobody may use it. */
void rundir_clear_tmp(const struct rundir *r);

/* model.json: NULL text while there is none. Caller frees. */
int rundir_model(const struct rundir *r, char **text, struct err *err);
int rundir_save_model(const struct rundir *r, const char *text, size_t len_bytes, struct err *err);
/* Compares with what is kept; the first time keeps it. -EINVAL: the data changed. */
int rundir_fingerprint(const struct rundir *r, uint64_t fingerprint, struct err *err);

/* The last restore: which snapshot, and the gen it made. gen 0 and "" if there was none. */
void rundir_restored(const struct rundir *r, char name[101], uint64_t *gen);
int rundir_save_restored(const struct rundir *r, const char *name, uint64_t gen, struct err *err);

/* Makes path absolute. Its parent must be there; the path itself is never looked at (it may be a
 * dead mount). */
int rundir_absolute(const char *path, char *out, size_t cap_bytes, struct err *err);

#endif
