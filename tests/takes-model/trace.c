/* Prints moves and states for a reader of a counterexample. */
#include "model.h"

#include <stdio.h>

static const char *const what_names[WHATS] = {
    "unit 0 of all ranks",
    "unit 1 of all ranks",
    "unit 0 of all ranks but 0",
    "the gradient of all ranks",
    "the gradient of all ranks but 0",
    "a pin",
};
static const char *const phase_names[] = {"-", "asking", "fixing", "ended"};
static const char *const owner_names[] = {".", "asked", "held", "copy", "passed", "reserved"};
static const char *const pc_names[] = {"dead", "sleep", "wait", "mutate", "wait2", "step"};

static void trace_arg(enum move_arg arg, int v) {
    switch (arg) {
    case ARG_NONE:
        break;
    case ARG_RANK:
        printf(" [rank %d]", v);
        break;
    case ARG_TAKE:
        printf(" [take %d]", v);
        break;
    case ARG_CMD:
        printf(" [command %d]", v);
        break;
    case ARG_WHAT:
        printf(" [%s]", what_names[v]);
        break;
    case ARG_PART:
        printf(" [take %d, unit %d]", v / UNITS, v % UNITS);
        break;
    case ARG_SOURCE:
        printf(v ? " [of the newer world]" : "");
        break;
    }
}

void trace_move(const struct model *m, struct move mv) {
    const struct move_kind *mk = &move_kinds[mv.kind];

    (void)m;
    printf("%s", mk->name);
    trace_arg(mk->a, mv.a);
    trace_arg(mk->b, mv.b);
}

static void trace_value(int v) {
    if (v == VALUE_TORN)
        printf("torn");
    else if (v == VALUE_NONE)
        printf("none");
    else
        printf("%d", v);
}

static void trace_rank(const struct model *m, const struct rank *k, int r) {
    bool grads = m->op[0] == OP_GRAD_BEGIN;

    printf("  r%d %s", r, pc_names[k->pc]);
    if (k->pc == PC_STEP)
        printf("+%d", k->op);
    for (int a = 0; a < ARRAYS && k->pc != PC_DEAD; a++) {
        static const char *const names[] = {"p0", "p1", "g"};
        if (grads != (a == A_G0))
            continue;
        printf(" %s=", names[a]);
        trace_value(k->bytes[a]);
    }
    for (int t = 0; t < TAKES_MAX; t++)
        if (k->hold[t].mode)
            printf(" hold%d(try %d)", t, k->hold[t].try);
}

void trace_state(const struct model *m, const struct state *s) {
    for (int r = 0; r < m->ranks; r++)
        trace_rank(m, &s->rank[r], r);
    for (int t = 0; t < TAKES_MAX; t++) {
        const struct take *k = &s->take[t];
        if (k->phase == TAKE_FREE)
            continue;
        printf("  t%d %s", t, phase_names[k->phase]);
        for (int r = 0; r < m->ranks && k->phase != TAKE_ENDED; r++) {
            printf("%c%s", r ? ',' : ' ', owner_names[k->owner[r].st]);
            if (k->owner[r].st == OWN_COPY) {
                printf(" ");
                trace_value(k->owner[r].label[0]);
            }
        }
    }
    printf("\n");
}
