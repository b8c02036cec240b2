/* agenda.h - what all ranks do next, agreed at a boundary; and rank 0's inbox, from which it is
 * made.
 *
 * The service thread of rank 0 fills the inbox and rings the main thread's doorbell; at the next
 * boundary the main thread takes what is there and broadcasts it. Other ranks have no inbox. */
#ifndef GFS_ENGINE_AGENDA_H
#define GFS_ENGINE_AGENDA_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/knobs.h"
#include "comm/comm.h"

enum agenda_action { AGENDA_STEP, AGENDA_WAIT, AGENDA_RESTORE, AGENDA_QUIT };
enum { AGENDA_MAX_FIXES = 1024, AGENDA_DIR_BYTES = 4096 };

struct agenda_fix {
    uint64_t session, number;
}; /* session 0: a wide take */

struct agenda {
    uint64_t gen; /* of this boundary */
    uint64_t goal_step;
    enum agenda_action action;
    uint64_t command;           /* AGENDA_RESTORE: whose */
    char dir[AGENDA_DIR_BYTES]; /* AGENDA_RESTORE */
    char *config;               /* live knobs as text, owned; NULL: unchanged */
    uint32_t fix_count;
    struct agenda_fix fixes[AGENDA_MAX_FIXES];
};

struct inbox;
/* doorbell: eventfd that is rung at each put; borrowed. */
struct inbox *inbox_open(int doorbell_fd);
void inbox_close(struct inbox *i);
int inbox_put_orders(struct inbox *i, uint64_t goal_step, const char *config, size_t config_bytes);
/* -ENOBUFS: too many wait. Only then a wide take's displaces one of the daemon's. */
int inbox_put_fix(struct inbox *i, uint64_t session, uint64_t number);
int inbox_put_restore(struct inbox *i, uint64_t command, const char *dir);
void inbox_put_quit(struct inbox *i);
/* After a restore to `step`: a world that rested (step before it >= goal_step) rests there too,
 * unless newer orders came meanwhile. */
void inbox_rest(struct inbox *i, uint64_t goal_step, uint64_t step);

/* Collective. Rank 0 fills it from its inbox for a world at (gen, step); the others receive it.
 * Frees the config of the agenda before. */
int agenda_agree(struct agenda *a, const struct comm_ops *ops, struct comm *comm, uint32_t rank,
                 struct inbox *inbox, uint64_t gen, uint64_t step, struct err *err);

#endif
