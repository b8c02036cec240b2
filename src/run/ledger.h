/* ledger.h - every command of this run of the supervisor, by its idempotence key: it happens once.
 *
 *   ledger_add          commands_execute            ledger_finish
 *   ---------> waiting -----------------> accepted ---------------> done | failed | canceled
 *                 ^                           |
 *                 +------ ledger_retry -------+   the world that carried it out is gone
 */
#ifndef GFS_RUN_LEDGER_H
#define GFS_RUN_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/msg.h"

enum command_state {
    COMMAND_WAITING,
    COMMAND_ACCEPTED,
    COMMAND_DONE,
    COMMAND_FAILED,
    COMMAND_CANCELED
};

struct command {
    struct command *newer; /* in order of number */
    struct command *open_next, *open_prev;
    struct command *hash_next;
    uint64_t number;          /* from 1 */
    char *key, *name, *value; /* owned */
    char *text;               /* owned; "" until there is a result */
    uint32_t uid, code;
    enum command_state state;
    uint64_t step; /* step and target: the absolute step, once accepted */
    bool cut;      /* `run 0` came before the step was reached */
};

struct ledger;

/* Finished commands beyond max_finished are forgotten by ledger_trim, oldest first. */
struct ledger *ledger_open(size_t max_finished);
void ledger_close(struct ledger *l);
struct command *ledger_find(const struct ledger *l, const char *key);
/* NULL: no memory. The key must be new. */
struct command *ledger_add(struct ledger *l, const struct msg_command *m);
/* The result; code ECANCELED makes it canceled. Only once. */
void ledger_finish(struct ledger *l, struct command *c, uint32_t code, const char *text);
void ledger_retry(struct command *c);
/* Forgets what is too old. Invalidates pointers to finished commands: call it from where nobody
 * holds one. */
void ledger_trim(struct ledger *l);
bool command_is_open(const struct command *c); /* waiting or accepted */

/* The open ones in order of number. While walking they may be finished, in any order, and others be
 * added. */
struct command *ledger_first_open(const struct ledger *l);
struct command *ledger_next_open(const struct command *c);
size_t ledger_open_count(const struct ledger *l);
/* The first of the last `back` commands; NULL when there are none. */
struct command *ledger_tail(const struct ledger *l, size_t back);

/* "id" of commands.tsv: the user's, or "u:UNIQUE". */
const char *command_id(const struct command *c);
const char *command_state_name(const struct command *c);

#endif
