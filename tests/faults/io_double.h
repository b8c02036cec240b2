/* io_double.h - an I/O table that does what it is told on a real directory, records it, and then
 * tells what a crash could have left: every legal loss of what was not synced.
 *
 * The model, stricter than any one filesystem: the data of a file is durable after fsync of the
 * file, an entry of a directory (create, mkdir, rename, unlink, rmdir) after fsync of that
 * directory. Of the entries changed since, any subset may persist in which no change persists
 * without the earlier ones of the same names. Data not synced may be there, missing, zeros, cut off
 * or half there. Directories and files lose independently of each other. */
#ifndef GFS_TESTS_IO_DOUBLE_H
#define GFS_TESTS_IO_DOUBLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/io.h"

struct io_double;

/* run_dir is there, empty, and durable. Ends the program when memory runs out. */
struct io_double *io_double_new(const char *run_dir);
void io_double_free(struct io_double *d);
const struct store_io *io_double_table(struct io_double *d);

/* What the test is doing now; part of the class of an fsync: "PHASE TARGET", where the target is
 * run (the run directory), snapshots, tmp (a directory of a snapshot), rank or manifest (a file).
 */
void io_double_phase(struct io_double *d, const char *phase);
/* fsyncs of this class report success and do nothing. NULL: none. */
void io_double_drop(struct io_double *d, const char *class);
/* The classes of the fsyncs so far, each once, in order. */
uint32_t io_double_classes(const struct io_double *d, const char *const **classes);

/* Operations so far, recorded or failed. */
uint32_t io_double_count(const struct io_double *d);
/* The at-th operation from now (0: the next) fails with this errno and does nothing; with `dead`
 * also all after it, but closing, until io_double_revive: the process has died. */
void io_double_fail(struct io_double *d, uint32_t at, int code, bool dead);
void io_double_revive(struct io_double *d);

/* A point in the record. Marks: what has been reported to somebody by then. */
enum io_double_mark { MARK_PENDING, MARK_PRESENT, MARK_ABSENT };
void io_double_mark(struct io_double *d, const char *name, enum io_double_mark mark);
uint32_t io_double_points(const struct io_double *d);

/* What must hold in a state: the mark of each name that has one. */
struct io_double_claim {
    char name[64];
    enum io_double_mark mark;
};
/* Returns false for a state that must not be. */
typedef bool io_double_check(void *ctx, const char *dir, const struct io_double_claim *claims,
                             uint32_t count);
/* Makes, in scratch/state, the states that a crash at each point from `first` on could leave, and
 * calls check. The same state with the same claims is made once, whatever record it comes from:
 * `seen` remembers. Returns how many were checked; stops at the first that fails: *bad is then its
 * point, else UINT32_MAX. */
struct io_double_seen;
struct io_double_seen *io_double_seen_new(void);
void io_double_seen_free(struct io_double_seen *s);
uint64_t io_double_crash(const struct io_double *d, uint32_t first, const char *scratch,
                         struct io_double_seen *seen, io_double_check *check, void *ctx,
                         uint32_t *bad);

#endif
