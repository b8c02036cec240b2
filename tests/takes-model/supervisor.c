/* The supervisor and its ledger of commands, the client, the faults; and the table of all moves. */
#include "model.h"

#include <string.h>

static void init_ops(struct model *m, const struct scenario *sc) {
    unsigned grads = 1u << WHAT_G0 | 1u << WHAT_G0_TAIL;

    m->op_count = 0;
    if (sc->whats & grads) {
        m->op[m->op_count++] = OP_GRAD_BEGIN;
        m->op[m->op_count++] = OP_GRAD_END;
        if (!rule(m, RULE_CLIP_APART))
            m->op[m->op_count++] = OP_CLIP;
    }
    if (sc->whats & ~grads) {
        m->op[m->op_count++] = OP_P0_BEGIN;
        m->op[m->op_count++] = OP_P0_END;
    }
    if (sc->whats & (1u << WHAT_P1 | 1u << WHAT_PIN)) {
        m->op[m->op_count++] = OP_P1_BEGIN;
        m->op[m->op_count++] = OP_P1_END;
    }
}

void model_init(struct model *m, const struct scenario *sc, uint64_t without, struct state *first) {
    m->sc = sc;
    m->without = without;
    m->violation = NULL;
    m->state_bytes = offsetof(struct state, rank) + (size_t)m->ranks * sizeof(struct rank);
    init_ops(m, sc);
    memset(first, 0, sizeof *first);
    first->epoch = first->alive = first->sess = 1;
    first->goal = sc->trains ? (uint8_t)m->steps : 0;
    world_init(m, first);
    for (int r = 0; r < m->ranks; r++) {
        first->rank[r].sess = first->conn[r] = 1;
        first->rank[r].pc = sc->trains ? PC_WAIT : PC_SLEEP;
    }
}

/* The client writes a command; the daemon hands it to the ledger. */
static void ledger_accept(const struct model *m, struct state *s, int i) {
    s->cmd[i].ledger = LED_ACCEPTED;
    s->cmd[i].order_sent = 1;
    for (int r = 0; r < m->ranks; r++) {
        if (!rule(m, RULE_BELL_RANK0) && r > 0)
            s->rank[r].wake = 1;
        if (!rule(m, RULE_EDIT_WHOLE) && m->sc->cmd[i] == CMD_EDIT)
            s->rank[r].part_sent = 1;
    }
}

static bool client_command_enabled(const struct model *m, const struct state *s, int i, int b) {
    (void)b;
    return s->alive && m->sc->cmd[i] != CMD_NONE && s->cmd[i].client == CLIENT_IDLE;
}

static void client_command(struct model *m, struct state *s, int i, int b) {
    (void)b;
    s->cmd[i].client = CLIENT_WAITS;
    ledger_accept(m, s, i);
}

static bool client_retry_enabled(const struct model *m, const struct state *s, int i, int b) {
    (void)m, (void)b;
    return s->alive && s->cmd[i].client == CLIENT_LOST;
}

/* The same id again: it attaches to what the ledger has. */
static void client_retry(struct model *m, struct state *s, int i, int b) {
    (void)b;
    s->cmd[i].client = s->cmd[i].ledger == LED_DONE ? CLIENT_ANSWERED : CLIENT_WAITS;
    if (!rule(m, RULE_LEDGER_IDS)) {
        s->cmd[i].client = CLIENT_WAITS;
        ledger_accept(m, s, i);
    }
}

static bool client_step_enabled(const struct model *m, const struct state *s, int a, int b) {
    (void)a, (void)b;
    return s->alive && s->goal < m->steps;
}

static void client_step(struct model *m, struct state *s, int a, int b) {
    (void)a, (void)b;
    s->goal++;
    if (!rule(m, RULE_BELL_RANK0))
        for (int r = 1; r < m->ranks; r++)
            s->rank[r].wake = 1;
}

static bool order_goal_enabled(const struct model *m, const struct state *s, int a, int b) {
    (void)m, (void)a, (void)b;
    return s->up && s->world_goal != s->goal;
}

/* An absolute step: it may come twice. */
static void order_goal(struct model *m, struct state *s, int a, int b) {
    (void)a, (void)b;
    s->world_goal = s->goal;
    world_ring(m, s, 0);
}

static bool order_command_enabled(const struct model *m, const struct state *s, int i, int b) {
    (void)m, (void)b;
    return s->up && s->cmd[i].order_sent;
}

static void order_command(struct model *m, struct state *s, int i, int b) {
    (void)b;
    s->cmd[i].order_sent = 0;
    s->cmd[i].taken = s->cmd[i].pending = 1;
    world_ring(m, s, 0);
}

static bool ledger_done_enabled(const struct model *m, const struct state *s, int i, int b) {
    (void)m, (void)b;
    return s->cmd[i].done_epoch != 0;
}

static void ledger_finish(struct cmd *c) {
    c->ledger = LED_DONE;
    c->order_sent = 0;
    if (c->client == CLIENT_WAITS)
        c->client = CLIENT_ANSWERED;
}

static void ledger_done(struct model *m, struct state *s, int i, int b) {
    bool stale = s->cmd[i].done_epoch != s->epoch;

    (void)b;
    s->cmd[i].done_epoch = 0;
    if (stale && rule(m, RULE_EPOCH_REPORT))
        return;
    if (stale)
        m->violation = "a command was answered for a world that had been replaced without it";
    ledger_finish(&s->cmd[i]);
}

static bool supervisor_daemon_enabled(const struct model *m, const struct state *s, int a, int b) {
    (void)m, (void)a, (void)b;
    return !s->alive;
}

static void supervisor_daemon(struct model *m, struct state *s, int a, int b) {
    (void)m, (void)a, (void)b;
    s->alive = 1;
    s->sess++;
}

static bool supervisor_world_enabled(const struct model *m, const struct state *s, int a, int b) {
    (void)m, (void)a, (void)b;
    return !s->up;
}

/* A new world: a new epoch, gen from 0, the goal and the unanswered commands of the ledger. */
static void supervisor_world(struct model *m, struct state *s, int a, int b) {
    (void)a, (void)b;
    s->epoch++;
    world_init(m, s);
}

static bool fault_daemon_enabled(const struct model *m, const struct state *s, int a, int b) {
    (void)a, (void)b;
    return s->alive && s->daemon_deaths < m->sc->daemon_deaths;
}

static void fault_daemon(struct model *m, struct state *s, int a, int b) {
    (void)a, (void)b;
    s->daemon_deaths++;
    daemon_erase(m, s);
    for (int i = 0; i < CMDS_MAX; i++)
        if (s->cmd[i].client == CLIENT_WAITS)
            s->cmd[i].client = CLIENT_LOST;
}

static bool fault_world_enabled(const struct model *m, const struct state *s, int a, int b) {
    (void)a, (void)b;
    return s->up && s->world_deaths < m->sc->world_deaths;
}

static void fault_world_order(struct cmd *c) {
    c->order_sent = c->taken = c->pending = c->executed = c->runs = 0;
}

/* All ranks die. What they sent is still on its way. */
static void fault_world(struct model *m, struct state *s, int a, int b) {
    (void)a, (void)b;
    s->world_deaths++;
    s->up = s->run = s->todo = s->agenda_cmd = 0;
    s->pin_known = s->pin_mask = 0;
    memset(s->pending, 0, sizeof s->pending);
    memset(s->agenda, 0, sizeof s->agenda);
    memset(s->fix_try, 0, sizeof s->fix_try);
    for (int i = 0; i < CMDS_MAX; i++)
        fault_world_order(&s->cmd[i]);
    for (int r = 0; r < m->ranks; r++) {
        struct rank *k = &s->rank[r];
        struct msg out[OUTBOX_MAX];
        uint8_t count = k->out_count;
        memcpy(out, k->out, sizeof out);
        memset(k, 0, sizeof *k);
        memcpy(k->out, out, sizeof out);
        k->out_count = count;
    }
}

static bool fault_link_enabled(const struct model *m, const struct state *s, int r, int b) {
    (void)b;
    return s->up && s->alive && s->rank[r].sess == s->sess && s->links < m->sc->links;
}

/* The connection of rank r to the daemon breaks, as when its outbox was full. */
static void fault_link(struct model *m, struct state *s, int r, int b) {
    (void)m, (void)b;
    s->links++;
    if (r == 0)
        memset(s->fix_try, 0, sizeof s->fix_try);
    service_forget(&s->rank[r]);
}

static bool fault_order_link_enabled(const struct model *m, const struct state *s, int a, int b) {
    (void)a, (void)b;
    return s->up && s->order_links < m->sc->order_links;
}

/* The connection of rank 0 to the supervisor breaks and is made again: messages of both ways are
 * lost, the hello says what has been taken and executed, and the supervisor repeats the rest. */
static void fault_order_link(struct model *m, struct state *s, int a, int b) {
    (void)a, (void)b;
    s->order_links++;
    for (int i = 0; i < CMDS_MAX; i++) {
        struct cmd *c = &s->cmd[i];
        c->done_epoch = 0;
        if (c->ledger != LED_ACCEPTED)
            continue;
        if (c->executed && rule(m, RULE_EXECUTED_IDS))
            ledger_finish(c);
        else
            c->order_sent = !c->taken || !rule(m, c->executed ? RULE_EXECUTED_IDS : RULE_TAKEN_IDS);
    }
}

const struct move_kind move_kinds[] = {
    {"rank wakes up", MOVE_MAIN, ARG_RANK, ARG_NONE, world_sleep_enabled, world_sleep},
    {"rank 0 reports the boundary and sends the agenda", MOVE_MAIN, ARG_NONE, ARG_NONE,
     world_agenda_enabled, world_agenda},
    {"rank receives the agenda, registers its holds", MOVE_MAIN, ARG_RANK, ARG_NONE,
     world_receive_enabled, world_receive},
    {"rank receives the agenda, mutates, then registers", MOVE_MAIN, ARG_RANK, ARG_NONE,
     world_receive_late_enabled, world_receive_late},
    {"rank executes the edit or restore", MOVE_MAIN, ARG_RANK, ARG_NONE, world_mutate_enabled,
     world_mutate},
    {"second barrier, the command is reported", MOVE_MAIN, ARG_NONE, ARG_NONE, world_second_enabled,
     world_second},
    {"rank does the next operation of the step", MOVE_MAIN, ARG_RANK, ARG_NONE, world_op_enabled,
     world_op},
    {"rank receives the question for take", MOVE_SERVICE, ARG_RANK, ARG_TAKE, service_ask_enabled,
     service_ask},
    {"rank makes a promised copy, part", MOVE_SERVICE, ARG_RANK, ARG_PART, service_copy_enabled,
     service_copy},
    {"rank releases its pin", MOVE_SERVICE, ARG_RANK, ARG_NONE, service_release_enabled,
     service_release},
    {"rank sees that its daemon is gone", MOVE_SERVICE, ARG_RANK, ARG_NONE, service_gone_enabled,
     service_gone},
    {"rank says hello to the daemon", MOVE_SERVICE, ARG_RANK, ARG_NONE, daemon_hello_enabled,
     daemon_hello},
    {"rank 0 receives the request to fix take", MOVE_SERVICE, ARG_TAKE, ARG_NONE,
     service_fix_enabled, service_fix},
    {"rank is woken by the daemon", MOVE_SERVICE, ARG_RANK, ARG_NONE, service_wake_enabled,
     service_wake},
    {"rank receives its part of the edit", MOVE_SERVICE, ARG_RANK, ARG_NONE, service_part_enabled,
     service_part},
    {"daemon reads a message of rank", MOVE_DAEMON, ARG_RANK, ARG_SOURCE, daemon_read_enabled,
     daemon_read},
    {"rank 0 receives the goal", MOVE_SUPERVISOR, ARG_NONE, ARG_NONE, order_goal_enabled,
     order_goal},
    {"rank 0 receives the command", MOVE_SUPERVISOR, ARG_CMD, ARG_NONE, order_command_enabled,
     order_command},
    {"supervisor reads that the command is done", MOVE_SUPERVISOR, ARG_CMD, ARG_NONE,
     ledger_done_enabled, ledger_done},
    {"supervisor starts a daemon", MOVE_SUPERVISOR, ARG_NONE, ARG_NONE, supervisor_daemon_enabled,
     supervisor_daemon},
    {"supervisor starts a world", MOVE_SUPERVISOR, ARG_NONE, ARG_NONE, supervisor_world_enabled,
     supervisor_world},
    {"client writes the same command again", MOVE_SUPERVISOR, ARG_CMD, ARG_NONE,
     client_retry_enabled, client_retry},
    {"client opens", MOVE_CLIENT, ARG_WHAT, ARG_NONE, daemon_open_enabled, daemon_open},
    {"client writes the command", MOVE_CLIENT, ARG_CMD, ARG_NONE, client_command_enabled,
     client_command},
    {"client asks for one more step", MOVE_CLIENT, ARG_NONE, ARG_NONE, client_step_enabled,
     client_step},
    {"FAULT: the daemon dies", MOVE_FAULT, ARG_NONE, ARG_NONE, fault_daemon_enabled, fault_daemon},
    {"FAULT: the world of ranks dies", MOVE_FAULT, ARG_NONE, ARG_NONE, fault_world_enabled,
     fault_world},
    {"FAULT: the daemon loses its connection to rank", MOVE_FAULT, ARG_RANK, ARG_NONE,
     fault_link_enabled, fault_link},
    {"FAULT: the supervisor loses its connection to rank 0", MOVE_FAULT, ARG_NONE, ARG_NONE,
     fault_order_link_enabled, fault_order_link},
    {"FAULT: rank has no memory for the pin", MOVE_FAULT, ARG_RANK, ARG_TAKE, service_nomem_enabled,
     service_nomem},
};

const int move_kind_count = sizeof move_kinds / sizeof move_kinds[0];

int move_arg_count(const struct model *m, enum move_arg arg) {
    switch (arg) {
    case ARG_RANK:
        return m->ranks;
    case ARG_TAKE:
        return TAKES_MAX;
    case ARG_CMD:
        return CMDS_MAX;
    case ARG_WHAT:
        return WHATS;
    case ARG_PART:
        return TAKES_MAX * UNITS;
    case ARG_SOURCE:
        return 2;
    default:
        return 1;
    }
}
