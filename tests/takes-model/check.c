/* What must hold: of each answer, of each state, and of each state in which nothing moves. */
#include "model.h"

/* The parameters of a pin are of one boundary: unit 1 may be older than unit 0 only by edits, the
 * only thing that writes unit 0 alone. */
static bool check_pin(const struct state *s, const struct owner *o) {
    if (o->label[1] > o->label[0])
        return false;
    for (int g = o->label[1] + 1; g <= o->label[0]; g++)
        if (!(s->edits >> g & 1))
            return false;
    return true;
}

void check_answer(struct model *m, const struct state *s, const struct take *t) {
    const struct owner *first = NULL;

    for (int r = 0; r < m->ranks; r++) {
        const struct owner *o = &t->owner[r];
        if (o->st == OWN_NOT)
            continue;
        if (!first)
            first = o;
        for (int p = 0; p < what_parts(t->what); p++) {
            if (o->bytes[p] == VALUE_TORN || o->bytes[p] != o->label[p])
                m->violation = "an answer has bytes that are not those of its version";
            else if (o->label[p] != first->label[p] || o->epoch != first->epoch)
                m->violation = "an answer mixes two versions";
        }
    }
    if (!first || m->violation)
        return;
    if (first->epoch < t->floor_epoch ||
        (first->epoch == t->floor_epoch && first->label[0] < t->floor))
        m->violation = "an answer is older than a boundary reported before its open";
    else if (t->what == WHAT_PIN && first->epoch == s->epoch && !check_pin(s, first))
        m->violation = "a pin mixes two boundaries";
}

/* No move of a training thread may become possible, or impossible, by the daemon's state: the
 * moves possible here and those possible had the daemon died at this instant are the same. */
static bool check_independent(const struct model *m, const struct state *s) {
    struct state dead = *s;

    daemon_erase(m, &dead);
    for (int r = 0; r < m->ranks; r++)
        dead.rank[r].out_count = 0;
    for (int k = 0; k < move_kind_count; k++) {
        const struct move_kind *mk = &move_kinds[k];
        if (mk->class != MOVE_MAIN)
            continue;
        for (int a = 0; a < move_arg_count(m, mk->a); a++)
            if (mk->enabled(m, s, a, 0) != mk->enabled(m, &dead, a, 0))
                return false;
    }
    return true;
}

void check_state(struct model *m, const struct state *s) {
    for (int i = 0; i < CMDS_MAX; i++)
        if (s->cmd[i].runs > 1)
            m->violation = "a command was executed twice";
    if (!m->violation && !check_independent(m, s))
        m->violation = "a training thread waits for the daemon";
}

/* The first that is found is told. */
static void check_fail(struct model *m, const char *what) {
    if (!m->violation)
        m->violation = what;
}

static void check_terminal_pin(struct model *m, const struct state *s) {
    for (int r = 0; r < m->ranks; r++) {
        const struct rank *k = &s->rank[r];
        if (s->pin_known && k->pin == PIN_DONE && k->pin_sess == s->pin_known &&
            !(s->pin_mask >> r & 1))
            check_fail(m, "a finished pin is lost to the new daemon");
        else if (k->pin != PIN_NONE && (!s->pin_known || k->pin_sess != s->pin_known))
            check_fail(m, "a rank keeps memory for a pin that nobody knows");
    }
    if (s->pin_known && s->pin_mask != model_all(m))
        check_fail(m, "a finished pin is lost");
}

/* Only the client and faults can move: everything that was asked for must be done. */
void check_terminal(struct model *m, const struct state *s) {
    for (int t = 0; t < TAKES_MAX; t++)
        if (s->take[t].phase == TAKE_ASKING || s->take[t].phase == TAKE_FIXING)
            check_fail(m, "stuck: a take or pin is never answered");
    for (int i = 0; i < CMDS_MAX; i++)
        if (s->cmd[i].ledger == LED_ACCEPTED || s->cmd[i].client == CLIENT_WAITS)
            check_fail(m, "stuck: a command is never answered");
    if (s->step < s->goal)
        check_fail(m, "stuck: the goal is never reached");
    for (int r = 0; r < m->ranks; r++) {
        if (s->rank[r].pc != PC_SLEEP)
            check_fail(m, "stuck: a rank waits for one that sleeps");
        else if (s->rank[r].hold[0].mode || s->rank[r].hold[1].mode)
            check_fail(m, "stuck: a promised copy is never made");
    }
    check_terminal_pin(m, s);
}
