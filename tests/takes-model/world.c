/* The main threads of the ranks: steps, the boundary, and the agenda that rank 0 sends down.
 *
 *   SLEEP --world_sleep--> WAIT --world_agenda (all are there), world_receive--+--> STEP
 *     ^                     ^                                                  |     | world_op
 *     |                     +-------------------- after the last operation ----|-----+
 *     +-- nothing to do ---------------------------------------------------+---+
 *                                                                          |   |
 *                              world_second (all are there) <-- WAIT2 <-- MUTATE (world_mutate)
 */
#include "model.h"

#include <string.h>

void world_init(const struct model *m, struct state *s) {
    s->up = 1;
    s->step = 0;
    s->world_goal = s->goal;
    s->no_grad = 1;
    s->run = s->todo = s->agenda_cmd = 0;
    s->edits = 0;
    memset(s->pending, 0, sizeof s->pending);
    memset(s->agenda, 0, sizeof s->agenda);
    s->reported[A_P0] = s->reported[A_P1] = 0;
    s->reported[A_G0] = 1;
    for (int r = 0; r < m->ranks; r++) {
        struct rank *k = &s->rank[r];
        k->pc = PC_WAIT;
        k->label[A_G0] = k->bytes[A_G0] = VALUE_NONE;
    }
    for (int i = 0; i < CMDS_MAX; i++) {
        struct cmd *c = &s->cmd[i];
        c->order_sent = c->ledger == LED_ACCEPTED;
        c->taken = c->pending = c->executed = c->runs = 0;
    }
}

void world_ring(const struct model *m, struct state *s, int rank) {
    if (rule(m, RULE_BELL_LATCH) || s->rank[rank].pc == PC_SLEEP)
        s->rank[rank].bell = 1;
}

/* What a take opened from now on may not fall behind. */
static void world_report(const struct model *m, struct state *s) {
    (void)m;
    for (int a = 0; a < ARRAYS; a++)
        s->reported[a] = s->rank[0].label[a];
    if (s->no_grad)
        s->reported[A_G0] = s->rank[0].gen + 1;
}

bool world_sleep_enabled(const struct model *m, const struct state *s, int r, int b) {
    (void)m, (void)b;
    return s->rank[r].pc == PC_SLEEP && s->rank[r].bell;
}

/* A sleeper finds its bell rung. Rank 0 then rings everybody: whoever dies outside the world, no
 * rank is left asleep while another waits for it. */
void world_sleep(struct model *m, struct state *s, int r, int b) {
    (void)b;
    s->rank[r].bell = 0;
    s->rank[r].pc = PC_WAIT;
    if (r == 0 && rule(m, RULE_BELL_RANK0))
        for (int q = 1; q < m->ranks; q++)
            world_ring(m, s, q);
}

static bool world_all(const struct model *m, const struct state *s, int pc) {
    for (int r = 0; r < m->ranks; r++)
        if (s->rank[r].pc != pc)
            return false;
    return true;
}

bool world_agenda_enabled(const struct model *m, const struct state *s, int a, int b) {
    (void)a, (void)b;
    if (s->todo || s->rank[0].pc != PC_WAIT)
        return false;
    return !rule(m, RULE_BARRIER) || world_all(m, s, PC_WAIT);
}

/* Rank 0 at the boundary: it reports what is behind and writes what comes next. */
void world_agenda(struct model *m, struct state *s, int a, int b) {
    bool left = false;

    (void)a, (void)b;
    if (s->run) {
        s->step++;
        s->no_grad = 0;
    }
    world_report(m, s);
    s->rank[0].bell = 0;
    memcpy(s->agenda, s->pending, sizeof s->agenda);
    memset(s->pending, 0, sizeof s->pending);
    s->agenda_cmd = 0;
    for (int i = 0; i < CMDS_MAX; i++) {
        if (!s->cmd[i].pending)
            continue;
        if (s->agenda_cmd) {
            left = true;
            continue;
        }
        s->agenda_cmd = (uint8_t)(i + 1);
        s->cmd[i].pending = 0;
        if (m->sc->cmd[i] == CMD_RESTORE)
            s->step = 0;
        else
            s->edits |= (uint16_t)(1u << (s->rank[0].gen + 1));
    }
    s->run = s->world_goal > s->step;
    s->todo = (uint8_t)model_all(m);
    if (left && !s->run)
        world_ring(m, s, 0);
}

static void world_go_on(const struct state *s, struct rank *k) {
    k->pc = s->run ? PC_STEP : PC_SLEEP;
    k->op = 0;
}

static void world_mutate_array(struct model *m, struct state *s, int r, enum array a, int bytes) {
    service_copy_before(m, s, r, a);
    s->rank[r].label[a] = (uint8_t)(s->rank[r].gen + 1);
    s->rank[r].bytes[a] = (uint8_t)bytes;
}

static void world_restore_grad(struct model *m, struct state *s, int r) {
    struct rank *k = &s->rank[r];

    s->no_grad = 1;
    for (int t = 0; t < TAKES_MAX; t++)
        if (s->take[t].phase == TAKE_ASKING || s->take[t].phase == TAKE_FIXING)
            s->take[t].none_ok = 1;
    if (!rule(m, RULE_GRAD_NONE))
        return;
    service_copy_before(m, s, r, A_G0);
    k->label[A_G0] = k->bytes[A_G0] = VALUE_NONE;
}

/* The edit or restore of the agenda, at one rank. */
static void world_execute(struct model *m, struct state *s, int r) {
    struct rank *k = &s->rank[r];
    int next = k->gen + 1;

    if (m->sc->cmd[s->agenda_cmd - 1] == CMD_RESTORE) {
        world_mutate_array(m, s, r, A_P0, next);
        world_mutate_array(m, s, r, A_P1, next);
        world_restore_grad(m, s, r);
    } else {
        bool have = rule(m, RULE_EDIT_WHOLE) || k->part;
        world_mutate_array(m, s, r, A_P0, have ? next : k->bytes[A_P0]);
        k->part = 0;
    }
    k->gen = (uint8_t)next;
}

/* Rank 0 has done the command: it is reported, and remembered for the next hello. */
static void world_executed(const struct model *m, struct state *s) {
    struct cmd *c = &s->cmd[s->agenda_cmd - 1];

    c->executed = 1;
    c->runs++;
    c->done_epoch = s->epoch;
    world_report(m, s);
}

static void world_mutated(struct model *m, struct state *s, int r) {
    world_execute(m, s, r);
    if (rule(m, RULE_SECOND_BARRIER)) {
        s->rank[r].pc = PC_WAIT2;
        return;
    }
    if (r == 0)
        world_executed(m, s);
    world_go_on(s, &s->rank[r]);
}

bool world_receive_enabled(const struct model *m, const struct state *s, int r, int b) {
    (void)m, (void)b;
    return (s->todo >> r & 1) && s->rank[r].pc == PC_WAIT;
}

static void world_received(struct state *s, int r) {
    s->todo &= (uint8_t) ~(1u << r);
    if (!s->todo)
        memset(s->agenda, 0, sizeof s->agenda);
}

void world_receive(struct model *m, struct state *s, int r, int b) {
    (void)b;
    service_register(m, s, r);
    if (s->agenda_cmd)
        s->rank[r].pc = PC_MUTATE;
    else
        world_go_on(s, &s->rank[r]);
    world_received(s, r);
}

/* Only without the rule register-first: the mutation comes before the holds. */
bool world_receive_late_enabled(const struct model *m, const struct state *s, int r, int b) {
    return !rule(m, RULE_REGISTER_FIRST) && s->agenda_cmd && world_receive_enabled(m, s, r, b);
}

void world_receive_late(struct model *m, struct state *s, int r, int b) {
    (void)b;
    world_mutated(m, s, r);
    service_register(m, s, r);
    world_received(s, r);
}

/* Without the rule outbox, who must copy waits for room to send. */
static bool world_may_overwrite(const struct model *m, const struct state *s, int r, enum array a) {
    const struct rank *k = &s->rank[r];

    if (rule(m, RULE_OUTBOX) || k->out_count == 0)
        return true;
    for (int t = 0; t < TAKES_MAX; t++)
        for (int p = 0; p < UNITS; p++)
            if (service_ready(m, k, t, p) && what_array(k->hold[t].what, p) == a)
                return false;
    return true;
}

bool world_mutate_enabled(const struct model *m, const struct state *s, int r, int b) {
    const struct rank *k = &s->rank[r];

    (void)b;
    if (k->pc != PC_MUTATE || !world_may_overwrite(m, s, r, A_P0))
        return false;
    /* without the rule edit-whole the rank waits for its part while one may come */
    return rule(m, RULE_EDIT_WHOLE) || m->sc->cmd[s->agenda_cmd - 1] != CMD_EDIT || k->part ||
           !k->part_sent;
}

void world_mutate(struct model *m, struct state *s, int r, int b) {
    (void)b;
    world_mutated(m, s, r);
}

bool world_second_enabled(const struct model *m, const struct state *s, int a, int b) {
    (void)a, (void)b;
    return world_all(m, s, PC_WAIT2);
}

/* All have mutated. Leaving is local and its delay is the delay of what follows: one move. */
void world_second(struct model *m, struct state *s, int a, int b) {
    (void)a, (void)b;
    world_executed(m, s);
    s->agenda_cmd = 0;
    for (int r = 0; r < m->ranks; r++)
        world_go_on(s, &s->rank[r]);
}

static bool world_op_begins(int op, enum array *a) {
    switch (op) {
    case OP_GRAD_BEGIN:
        *a = A_G0;
        return true;
    case OP_P0_BEGIN:
        *a = A_P0;
        return true;
    case OP_P1_BEGIN:
        *a = A_P1;
        return true;
    default:
        return false;
    }
}

bool world_op_enabled(const struct model *m, const struct state *s, int r, int b) {
    const struct rank *k = &s->rank[r];
    enum array a;

    (void)b;
    if (k->pc != PC_STEP)
        return false;
    return !world_op_begins(m->op[k->op], &a) || world_may_overwrite(m, s, r, a);
}

static void world_write(struct rank *k, enum array a) {
    k->label[a] = k->bytes[a] = (uint8_t)(k->gen + 1);
}

/* One operation of the step. Parameters are torn from the first byte of their update to the last;
 * a gradient from the first microbatch, which overwrites, to the last collective of the last. */
void world_op(struct model *m, struct state *s, int r, int b) {
    struct rank *k = &s->rank[r];
    enum array a;

    (void)b;
    if (world_op_begins(m->op[k->op], &a)) {
        service_copy_before(m, s, r, a);
        k->bytes[a] = VALUE_TORN;
    }
    switch (m->op[k->op]) {
    case OP_GRAD_END:
        world_write(k, A_G0);
        break;
    case OP_P0_END:
        world_write(k, A_P0);
        break;
    case OP_P1_END:
        world_write(k, A_P1);
        break;
    case OP_CLIP:
        k->bytes[A_G0] = VALUE_CLIPPED;
        break;
    default:
        break;
    }
    if (++k->op == m->op_count) {
        k->op = 0;
        k->gen++;
        k->pc = PC_WAIT;
    }
    if (k->gen > GEN_MAX)
        m->violation = "bound of the model: gen";
}
