/* The state of the modelled take protocol (doc/takes.md), and the moves that lead from one state to
 * the next.
 *
 * Everything that can influence the future is in struct state and nothing else is: two states
 * that compare equal have the same future, which is what makes a hash set of states a proof.
 */
#ifndef TAKES_MODEL_MODEL_H
#define TAKES_MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rules.h"
#include "scenario.h"

enum {
    RANKS_MAX = 3,
    TAKES_MAX = 2,
    CMDS_MAX = 2,
    UNITS = 2,
    OUTBOX_MAX = 8,
    OPS_MAX = 8,
};

/* What a rank stores: the parameters of two units, and the gradient of the first. */
enum array { A_P0, A_P1, A_G0, ARRAYS };

/* Labels and bytes are the gen of a write; these are no gen. */
enum { GEN_MAX = 12, VALUE_CLIPPED = 13, VALUE_TORN = 14, VALUE_NONE = 15, TRY_MAX = 15 };

/* The main thread of a rank. WAIT: arrived at the boundary; WAIT2: at the second barrier. */
enum pc { PC_DEAD, PC_SLEEP, PC_WAIT, PC_MUTATE, PC_WAIT2, PC_STEP };

enum hold_mode { HOLD_NONE, HOLD_ANY, HOLD_WANT };

/* One promised copy. A pin's hold has a part a unit; a take's has part 0 only. */
struct hold {
    uint8_t mode, what, sess, try, left, want[UNITS];
};

enum msg_type { MSG_NONE, MSG_COPY, MSG_NODATA, MSG_PASSED, MSG_HELD, MSG_RESERVED, MSG_NOMEM };

struct msg {
    uint32_t type : 3, num : 1, part : 1, epoch : 2, sess : 2, try:
        4, what : 3, label : 4, bytes : 4, spare : 8;
};

enum pin_state { PIN_NONE, PIN_RESERVED, PIN_DONE };

/* A question on its way to a rank; try 0: none. want VALUE_NONE: any version. */
struct ask {
    uint8_t try, want, what;
};

struct rank {
    uint8_t pc, op, gen, bell, sess; /* sess: the daemon session it is connected to, 0 none */
    uint8_t label[ARRAYS];           /* what the rank believes it holds */
    uint8_t bytes[ARRAYS];           /* what it holds */
    uint8_t pin, pin_sess;
    uint8_t release, wake, part_sent, part; /* messages of the daemon on their way, or here */
    uint8_t out_count;
    struct ask ask[TAKES_MAX];
    struct hold hold[TAKES_MAX];
    struct msg out[OUTBOX_MAX];
};

/* A take that rank 0 shall fix; sess 0: none. */
struct item {
    uint8_t sess, try, what;
};

enum owner_state { OWN_NOT, OWN_ASKED, OWN_HELD, OWN_COPY, OWN_PASSED, OWN_RESERVED };

struct owner {
    uint8_t st, try, got, epoch, label[UNITS], bytes[UNITS];
};

enum take_phase { TAKE_FREE, TAKE_ASKING, TAKE_FIXING, TAKE_ENDED };

struct take {
    uint8_t phase, what, epoch, try, floor, floor_epoch, none_ok;
    struct owner owner[RANKS_MAX];
};

enum ledger { LED_NONE, LED_ACCEPTED, LED_DONE };
enum client { CLIENT_IDLE, CLIENT_WAITS, CLIENT_LOST, CLIENT_ANSWERED };

/* A command of the ledger, and what of it is on its way or known at rank 0. */
struct cmd {
    uint8_t ledger, client, order_sent, taken, pending, executed, done_epoch, runs;
};

struct state {
    uint16_t edits; /* truth for the checks: bit g set if gen g of this epoch was an edit */
    /* supervisor: it outlives the others */
    uint8_t epoch, goal, pin_known;
    uint8_t opened, pins, daemon_deaths, world_deaths, links, order_links, nomem;
    struct cmd cmd[CMDS_MAX];
    /* the world of ranks, as far as it is common or rank 0's */
    uint8_t up, step, world_goal, no_grad, run, todo, agenda_cmd;
    uint8_t reported[ARRAYS]; /* truth: the oldest version a later take may return */
    struct item pending[TAKES_MAX], agenda[TAKES_MAX];
    /* daemon */
    uint8_t alive, sess, next, pin_mask, conn[RANKS_MAX], fix_try[TAKES_MAX];
    struct take take[TAKES_MAX];
    struct rank rank[RANKS_MAX]; /* last: only the ranks in use are stored */
};

enum op { OP_GRAD_BEGIN, OP_GRAD_END, OP_CLIP, OP_P0_BEGIN, OP_P0_END, OP_P1_BEGIN, OP_P1_END };

struct model {
    const struct scenario *sc;
    uint64_t without; /* bit of each enum rule that is left out */
    int ranks, steps, takes;
    int op_count;
    uint8_t op[OPS_MAX];
    size_t state_bytes;
    const char *violation; /* set by a move or a check that finds a rule of the outcome broken */
};

/* MAIN: the training thread of a rank. CLIENT, FAULT: what nobody may rely on to happen. */
enum move_class { MOVE_MAIN, MOVE_SERVICE, MOVE_DAEMON, MOVE_SUPERVISOR, MOVE_CLIENT, MOVE_FAULT };
enum move_arg { ARG_NONE, ARG_RANK, ARG_TAKE, ARG_CMD, ARG_WHAT, ARG_PART, ARG_SOURCE };

struct move {
    uint8_t kind, a, b;
};

struct move_kind {
    const char *name;
    enum move_class class;
    enum move_arg a, b;
    bool (*enabled)(const struct model *m, const struct state *s, int a, int b);
    void (*apply)(struct model *m, struct state *s, int a, int b);
};

extern const struct move_kind move_kinds[];
extern const int move_kind_count;
int move_arg_count(const struct model *m, enum move_arg arg);

static inline bool rule(const struct model *m, enum rule r) { return !(m->without >> r & 1); }
static inline int model_all(const struct model *m) { return (1 << m->ranks) - 1; }

/* A what is a thing the client opens. */
bool what_is_owner(int what, int rank);
enum array what_array(int what, int part);
static inline int what_parts(int what) { return what == WHAT_PIN ? UNITS : 1; }

void model_init(struct model *m, const struct scenario *sc, uint64_t without, struct state *first);

/* world.c: main threads */
void world_init(const struct model *m, struct state *s);
void world_ring(const struct model *m, struct state *s, int rank);
bool world_sleep_enabled(const struct model *m, const struct state *s, int r, int b);
void world_sleep(struct model *m, struct state *s, int r, int b);
bool world_agenda_enabled(const struct model *m, const struct state *s, int a, int b);
void world_agenda(struct model *m, struct state *s, int a, int b);
bool world_receive_enabled(const struct model *m, const struct state *s, int r, int b);
void world_receive(struct model *m, struct state *s, int r, int b);
bool world_receive_late_enabled(const struct model *m, const struct state *s, int r, int b);
void world_receive_late(struct model *m, struct state *s, int r, int b);
bool world_mutate_enabled(const struct model *m, const struct state *s, int r, int b);
void world_mutate(struct model *m, struct state *s, int r, int b);
bool world_second_enabled(const struct model *m, const struct state *s, int a, int b);
void world_second(struct model *m, struct state *s, int a, int b);
bool world_op_enabled(const struct model *m, const struct state *s, int r, int b);
void world_op(struct model *m, struct state *s, int r, int b);

/* service.c: the service thread of a rank */
bool service_ready(const struct model *m, const struct rank *k, int num, int part);
void service_copy_before(struct model *m, struct state *s, int r, enum array a);
void service_register(struct model *m, struct state *s, int r);
void service_forget(struct rank *k);
bool service_ask_enabled(const struct model *m, const struct state *s, int r, int num);
void service_ask(struct model *m, struct state *s, int r, int num);
bool service_nomem_enabled(const struct model *m, const struct state *s, int r, int num);
void service_nomem(struct model *m, struct state *s, int r, int num);
bool service_copy_enabled(const struct model *m, const struct state *s, int r, int slot);
void service_copy(struct model *m, struct state *s, int r, int slot);
bool service_release_enabled(const struct model *m, const struct state *s, int r, int b);
void service_release(struct model *m, struct state *s, int r, int b);
bool service_gone_enabled(const struct model *m, const struct state *s, int r, int b);
void service_gone(struct model *m, struct state *s, int r, int b);
bool service_fix_enabled(const struct model *m, const struct state *s, int num, int b);
void service_fix(struct model *m, struct state *s, int num, int b);
bool service_wake_enabled(const struct model *m, const struct state *s, int r, int b);
void service_wake(struct model *m, struct state *s, int r, int b);
bool service_part_enabled(const struct model *m, const struct state *s, int r, int b);
void service_part(struct model *m, struct state *s, int r, int b);

/* daemon.c */
bool daemon_open_enabled(const struct model *m, const struct state *s, int what, int b);
void daemon_open(struct model *m, struct state *s, int what, int b);
bool daemon_hello_enabled(const struct model *m, const struct state *s, int r, int b);
void daemon_hello(struct model *m, struct state *s, int r, int b);
bool daemon_read_enabled(const struct model *m, const struct state *s, int r, int source);
void daemon_read(struct model *m, struct state *s, int r, int source);
void daemon_erase(const struct model *m, struct state *s);

/* check.c */
void check_answer(struct model *m, const struct state *s, const struct take *t);
void check_state(struct model *m, const struct state *s);
void check_terminal(struct model *m, const struct state *s);

/* trace.c */
void trace_move(const struct model *m, struct move mv);
void trace_state(const struct model *m, const struct state *s);

#endif
