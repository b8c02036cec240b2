/* status.h - what the supervisor said last, and the files of status/ and ranks/ made from it. */
#ifndef GFS_FSMOUNT_STATUS_H
#define GFS_FSMOUNT_STATUS_H

#include <sys/types.h>

#include "base/knobs.h"
#include "fsmount/key.h"
#include "fsmount/text.h"
#include "fsmount/versions.h"
#include "fsmount/world.h"

struct status;

enum status_kind {
    STATUS_VALUE,   /* made when it is looked up */
    STATUS_GROWING, /* a file of the run directory that grows; one node */
    STATUS_EVENTS,  /* likewise, and poll() tells of it */
};

/* run_dir is borrowed, config copied. 0 or -ENOMEM. */
int status_open(const char *run_dir, const struct config *config, struct status **out);
void status_close(struct status *s);

/* From the supervisor. The config is parsed; a malformed one is refused and the old one stays. */
int status_set(struct status *s, const struct msg_status *m, struct err *err);
void status_row(struct status *s, const struct msg_command_row *m);
void status_events(struct status *s, uint64_t bytes);
/* The newest error in words: a command's, or of what was refused here. */
void status_error(struct status *s, const char *text);

const struct msg_status *status_get(const struct status *s); /* blobs are empty */
const struct config *status_config(const struct status *s);
/* The ranks wait at the goal: nothing but an order changes the arrays. */
bool status_is_idle(const struct status *s);
/* mtime of a version; of the newest one with status_get's epoch and gen. */
uint64_t status_time_ns(struct status *s, uint64_t epoch, uint64_t gen);

/* The files of status/. */
uint32_t status_file_count(void);
const char *status_file_name(uint32_t file);
enum status_kind status_file_kind(uint32_t file);
/* The content of a STATUS_VALUE now; world may be NULL. NULL: no memory, or run.db can't be read.
 */
struct text *status_file_text(struct status *s, uint32_t file, const struct world *world);
/* A growing file: what is shown of it now. 0 when there is none. */
uint64_t status_file_bytes(struct status *s, uint32_t file);
/* Reads from it; may be short at the end. Bytes or -errno. */
ssize_t status_file_read(struct status *s, uint32_t file, uint64_t offset_bytes, void *out,
                         size_t len_bytes);
/* mtime: of the growing file, of run.db; else of the last message. */
uint64_t status_file_time_ns(struct status *s, uint32_t file);

/* The files of ranks/R/ (enum rank_file). */
const char *status_rank_file_name(uint32_t file);
struct text *status_rank_text(const struct world *world, uint32_t rank, uint32_t file);

#endif
