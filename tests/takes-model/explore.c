/* Breadth-first search, then a search for cycles.
 *
 * Two facts together prove that what was asked for is answered, whatever the order in which the
 * processes run and without any assumption of fairness: where only the client and faults can
 * move, nothing is unanswered (check_terminal), and without the client and faults no sequence of
 * moves returns to where it was (explore_cycles), so that every such sequence ends.
 */
#include "explore.h"

#include "store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct explore {
    struct model *m;
    struct store store;
    uint32_t max_states;
    uint32_t *succ; /* successors by moves other than the client's and faults */
    uint64_t succ_count, succ_capacity;
    uint64_t *first_succ; /* of state i: succ[first_succ[i]] .. succ[first_succ[i + 1]] */
    uint64_t first_capacity;
    uint64_t edges;
};

static bool explore_inner(struct move mv) {
    enum move_class c = move_kinds[mv.kind].class;

    return c != MOVE_CLIENT && c != MOVE_FAULT;
}

/* The next move that s allows, after *mv in the order of the table; first with kind 0, b -1. */
static bool explore_next(const struct model *m, const struct state *s, int *kind, int *a, int *b) {
    for (; *kind < move_kind_count; (*kind)++, *a = 0, *b = -1) {
        const struct move_kind *mk = &move_kinds[*kind];
        for (; *a < move_arg_count(m, mk->a); (*a)++, *b = -1)
            while (++*b < move_arg_count(m, mk->b))
                if (mk->enabled(m, s, *a, *b))
                    return true;
    }
    return false;
}

static void explore_print(const struct explore *x, uint32_t at) {
    uint32_t n = 0;
    uint32_t *path;
    struct state s;

    for (uint32_t i = at; i != 0; i = x->store.node[i].parent)
        n++;
    path = malloc((n + 1) * sizeof *path);
    if (!path)
        return;
    for (uint32_t i = at, k = n; k > 0; i = x->store.node[i].parent)
        path[--k] = i;
    store_get(&x->store, 0, &s);
    printf("   0  start\n      ");
    trace_state(x->m, &s);
    for (uint32_t k = 0; k < n; k++) {
        printf("%4u  ", k + 1);
        trace_move(x->m, x->store.node[path[k]].move);
        store_get(&x->store, path[k], &s);
        printf("\n      ");
        trace_state(x->m, &s);
    }
    free(path);
}

static int explore_grow(void **p, uint64_t *capacity, uint64_t need, size_t size) {
    uint64_t n = *capacity ? *capacity : 1u << 12;
    void *grown;

    if (need <= *capacity)
        return 0;
    while (n < need)
        n += n / 2;
    grown = realloc(*p, n * size);
    if (!grown)
        return -ENOMEM;
    *p = grown;
    *capacity = n;
    return 0;
}

static int explore_edge(struct explore *x, uint32_t to) {
    void *p = x->succ;
    int rc = explore_grow(&p, &x->succ_capacity, x->succ_count + 1, sizeof *x->succ);

    x->succ = p;
    if (rc)
        return rc;
    x->succ[x->succ_count++] = to;
    return 0;
}

/* All moves of state i. */
static enum explore_end explore_state(struct explore *x, uint32_t i) {
    struct state s, next;
    int kind = 0, a = 0, b = -1;
    bool moves = false;

    store_get(&x->store, i, &s);
    check_state(x->m, &s);
    while (!x->m->violation && explore_next(x->m, &s, &kind, &a, &b)) {
        struct move mv = {(uint8_t)kind, (uint8_t)a, (uint8_t)b};
        uint32_t to;
        memcpy(&next, &s, sizeof next); /* with its padding, which is hashed too */
        move_kinds[kind].apply(x->m, &next, a, b);
        int rc = store_add(&x->store, &next, (struct store_node){i, mv}, &to);
        if (rc < 0)
            return EXPLORE_NOMEM;
        x->edges++;
        if (x->m->violation) {
            explore_print(x, i);
            printf("then  ");
            trace_move(x->m, mv);
            printf("\n");
            return EXPLORE_VIOLATED;
        }
        if (!explore_inner(mv))
            continue;
        moves = true;
        if (explore_edge(x, to))
            return EXPLORE_NOMEM;
    }
    if (!moves && !x->m->violation)
        check_terminal(x->m, &s);
    if (!x->m->violation)
        return EXPLORE_HOLDS;
    explore_print(x, i);
    return EXPLORE_VIOLATED;
}

static enum explore_end explore_breadth(struct explore *x) {
    for (uint32_t i = 0; i < x->store.count; i++) {
        void *p = x->first_succ;
        int rc = explore_grow(&p, &x->first_capacity, (uint64_t)i + 2, sizeof *x->first_succ);
        x->first_succ = p;
        if (rc)
            return EXPLORE_NOMEM;
        x->first_succ[i] = x->succ_count;
        enum explore_end end = explore_state(x, i);
        x->first_succ[i + 1] = x->succ_count;
        if (end != EXPLORE_HOLDS)
            return end;
        if (x->store.count > x->max_states)
            return EXPLORE_STOPPED;
    }
    return EXPLORE_HOLDS;
}

/* Takes the last untried successor of state i from its list. */
static bool explore_pop(const struct explore *x, unsigned char *left, uint32_t i, uint32_t *to) {
    if (left[i] == 0)
        return false;
    *to = x->succ[x->first_succ[i] + --left[i]];
    return true;
}

enum mark { MARK_NEW, MARK_OPEN, MARK_CLOSED };

/* Depth-first: a successor that is still open closes a cycle. */
static enum explore_end explore_cycles(struct explore *x) {
    uint32_t n = x->store.count, top = 0;
    unsigned char *mark = calloc(n, 1);
    uint32_t *stack = malloc((size_t)n * sizeof *stack);
    unsigned char *left = malloc(n);
    enum explore_end end = EXPLORE_NOMEM;

    if (!mark || !stack || !left)
        goto out;
    for (uint32_t i = 0; i < n; i++)
        left[i] = (unsigned char)(x->first_succ[i + 1] - x->first_succ[i]);
    for (uint32_t root = 0; root < n; root++) {
        if (mark[root] != MARK_NEW)
            continue;
        mark[root] = MARK_OPEN;
        stack[top++] = root;
        while (top) {
            uint32_t i = stack[top - 1];
            uint32_t to = i;
            if (!explore_pop(x, left, i, &to)) {
                mark[i] = MARK_CLOSED;
                top--;
            } else if (mark[to] == MARK_OPEN) {
                x->m->violation = "endless: without client and faults a state comes again";
                explore_print(x, to);
                end = EXPLORE_VIOLATED;
                goto out;
            } else if (mark[to] == MARK_NEW) {
                mark[to] = MARK_OPEN;
                stack[top++] = to;
            }
        }
    }
    end = EXPLORE_HOLDS;
out:
    free(left);
    free(stack);
    free(mark);
    return end;
}

static uint32_t explore_depth(const struct explore *x) {
    uint32_t depth = 0;

    for (uint32_t i = x->store.count - 1; i != 0; i = x->store.node[i].parent)
        depth++;
    return depth;
}

enum explore_end explore_run(struct model *m, const struct state *first, uint32_t max_states,
                             struct explore_result *out) {
    static const struct move none = {0, 0, 0};
    struct explore x = {.m = m, .max_states = max_states};
    enum explore_end end = EXPLORE_NOMEM;
    uint32_t at;

    if (store_open(&x.store, m->state_bytes))
        return EXPLORE_NOMEM;
    if (store_add(&x.store, first, (struct store_node){STORE_NONE, none}, &at) == 1)
        end = explore_breadth(&x);
    if (end == EXPLORE_HOLDS)
        end = explore_cycles(&x);
    out->states = x.store.count;
    out->edges = x.edges;
    out->depth = x.store.count ? explore_depth(&x) : 0;
    free(x.first_succ);
    free(x.succ);
    store_close(&x.store);
    return end;
}
