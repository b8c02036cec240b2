/* The service thread of a rank: it answers the daemon, keeps the holds and never waits. */
#include "model.h"

#include <string.h>

bool what_is_owner(int what, int rank) {
    return (what != WHAT_P0_TAIL && what != WHAT_G0_TAIL) || rank > 0;
}

enum array what_array(int what, int part) {
    switch (what) {
    case WHAT_P1:
        return A_P1;
    case WHAT_G0:
    case WHAT_G0_TAIL:
        return A_G0;
    case WHAT_PIN:
        return part ? A_P1 : A_P0;
    default:
        return A_P0;
    }
}

static bool linked(const struct state *s, int r) {
    return s->up && s->alive && s->rank[r].sess == s->sess && s->conn[r] == s->epoch;
}

/* The outbox outlives a connection here: the worst an implementation may do, and what the session
 * and try checks of the daemon are for. */
static void service_send(struct model *m, struct state *s, int r, enum msg_type type, int num,
                         int part, enum array a) {
    struct rank *k = &s->rank[r];
    const struct hold *h = &k->hold[num];
    struct msg x;

    if (k->out_count == OUTBOX_MAX) {
        m->violation = "bound of the model: outbox";
        return;
    }
    memset(&x, 0, sizeof x);
    x.type = type;
    x.num = (unsigned)num & 1;
    x.part = (unsigned)part & 1;
    x.epoch = s->epoch & 3;
    x.sess = h->sess & 3;
    x.try = h->try & 15;
    x.what = h->what & 7;
    if (type == MSG_COPY) {
        x.label = k->label[a] & 15;
        x.bytes = k->bytes[a] & 15;
    }
    k->out[k->out_count++] = x;
}

static bool is_torn(const struct model *m, const struct rank *k, enum array a) {
    if (k->bytes[a] != VALUE_TORN)
        return false;
    return rule(m, a == A_G0 ? RULE_GRAD_VALID : RULE_UNIT_LOCK);
}

/* No gradient, and none on its way in a step that has begun. */
static bool is_none(const struct rank *k, enum array a) {
    return a == A_G0 && k->bytes[a] == VALUE_NONE;
}

/* Whether a part of a hold can be copied now. */
bool service_ready(const struct model *m, const struct rank *k, int num, int part) {
    const struct hold *h = &k->hold[num];
    enum array a = what_array(h->what, part);

    if (h->mode == HOLD_NONE || !(h->left >> part & 1) || is_torn(m, k, a) || is_none(k, a))
        return false;
    return h->mode == HOLD_ANY || h->want[part] == k->label[a];
}

static void service_copy_part(struct model *m, struct state *s, int r, int num, int part) {
    struct rank *k = &s->rank[r];
    struct hold *h = &k->hold[num];

    service_send(m, s, r, MSG_COPY, num, part, what_array(h->what, part));
    h->left &= (uint8_t) ~(1u << part);
    if (h->left)
        return;
    if (h->what == WHAT_PIN)
        k->pin = PIN_DONE;
    memset(h, 0, sizeof *h);
}

/* Called by the main thread, before it overwrites a. */
void service_copy_before(struct model *m, struct state *s, int r, enum array a) {
    if (!rule(m, RULE_COPY_BEFORE))
        return;
    for (int t = 0; t < TAKES_MAX; t++)
        for (int p = 0; p < UNITS; p++)
            if (service_ready(m, &s->rank[r], t, p) && what_array(s->rank[r].hold[t].what, p) == a)
                service_copy_part(m, s, r, t, p);
}

bool service_copy_enabled(const struct model *m, const struct state *s, int r, int slot) {
    return service_ready(m, &s->rank[r], slot / UNITS, slot % UNITS);
}

void service_copy(struct model *m, struct state *s, int r, int slot) {
    service_copy_part(m, s, r, slot / UNITS, slot % UNITS);
}

/* Without the rule hold-set, an array has room for one hold. */
static void service_displace(const struct model *m, struct rank *k, int num) {
    if (rule(m, RULE_HOLD_SET))
        return;
    for (int t = 0; t < TAKES_MAX; t++)
        if (t != num && what_array(k->hold[t].what, 0) == what_array(k->hold[num].what, 0))
            memset(&k->hold[t], 0, sizeof k->hold[t]);
}

/* An item of the agenda becomes a hold for the content at this boundary. */
static void service_register_item(struct model *m, struct state *s, int r, int num) {
    struct rank *k = &s->rank[r];
    struct hold *h = &k->hold[num];
    const struct item *it = &s->agenda[num];

    if (it->sess != k->sess) {
        if (rule(m, RULE_SESSION_AGENDA))
            return;
        m->violation = "a hold was registered for a dead session: nobody will release its copy";
    }
    if (it->what == WHAT_PIN && (k->pin != PIN_RESERVED || k->pin_sess != it->sess)) {
        if (rule(m, RULE_RESERVE_FIRST))
            return;
        m->violation = "a pin was agreed without memory: it is allocated at the overwrite";
    }
    if (rule(m, RULE_TRY_ORDER) && h->mode != HOLD_NONE && h->sess == it->sess && h->try > it->try)
        return;
    memset(h, 0, sizeof *h);
    h->mode = HOLD_WANT;
    h->what = it->what;
    h->sess = it->sess;
    h->try = it->try;
    h->left = it->what == WHAT_PIN ? 3 : 1;
    for (int p = 0; p < what_parts(it->what); p++)
        h->want[p] = rule(m, RULE_HOLD_BOUNDARY) ? k->label[what_array(it->what, p)] : k->gen;
    service_displace(m, k, num);
    if (is_none(k, what_array(h->what, 0))) {
        service_send(m, s, r, MSG_NODATA, num, 0, A_G0);
        memset(h, 0, sizeof *h);
    }
}

void service_register(struct model *m, struct state *s, int r) {
    for (int t = 0; t < TAKES_MAX; t++)
        if (s->agenda[t].sess && what_is_owner(s->agenda[t].what, r))
            service_register_item(m, s, r, t);
}

bool service_ask_enabled(const struct model *m, const struct state *s, int r, int num) {
    (void)m;
    return s->rank[r].ask[num].try != 0;
}

/* What to answer to a question for one array. want VALUE_NONE: whatever is there. */
static enum msg_type service_answer(const struct model *m, const struct rank *k, enum array a,
                                    int want) {
    int next = k->gen + 1;

    if (is_none(k, a)) {
        /* wanted from a step this rank has not begun: it comes */
        if (want != VALUE_NONE && want > k->gen)
            return MSG_HELD;
        return rule(m, RULE_NONE_AT_ONCE) ? MSG_NODATA : MSG_HELD;
    }
    if (want == VALUE_NONE)
        return is_torn(m, k, a) ? MSG_HELD : MSG_COPY;
    if (k->bytes[a] == VALUE_TORN)
        return want >= next ? MSG_HELD : MSG_PASSED;
    if (k->label[a] == want)
        return MSG_COPY;
    return k->label[a] < want ? MSG_HELD : MSG_PASSED;
}

void service_ask(struct model *m, struct state *s, int r, int num) {
    struct rank *k = &s->rank[r];
    struct hold *h = &k->hold[num];
    struct ask q = k->ask[num];
    enum msg_type answer;

    memset(&k->ask[num], 0, sizeof q);
    memset(h, 0, sizeof *h);
    h->what = q.what;
    h->sess = k->sess;
    h->try = q.try;
    if (q.what == WHAT_PIN) {
        k->pin = PIN_RESERVED;
        k->pin_sess = k->sess;
        answer = MSG_RESERVED;
    } else {
        answer = service_answer(m, k, what_array(q.what, 0), q.want);
    }
    service_send(m, s, r, answer, num, 0, what_array(q.what, 0));
    if (answer != MSG_HELD) {
        memset(h, 0, sizeof *h);
        return;
    }
    h->mode = q.want == VALUE_NONE ? HOLD_ANY : HOLD_WANT;
    h->want[0] = q.want == VALUE_NONE ? 0 : q.want;
    h->left = 1;
    service_displace(m, k, num);
}

/* A rank that has no memory for a pin. */
bool service_nomem_enabled(const struct model *m, const struct state *s, int r, int num) {
    return s->nomem < m->sc->nomem && s->rank[r].ask[num].try &&
           s->rank[r].ask[num].what == WHAT_PIN;
}

void service_nomem(struct model *m, struct state *s, int r, int num) {
    struct rank *k = &s->rank[r];
    struct hold *h = &k->hold[num];

    s->nomem++;
    h->what = WHAT_PIN;
    h->sess = k->sess;
    h->try = k->ask[num].try;
    service_send(m, s, r, MSG_NOMEM, num, 0, A_P0);
    memset(h, 0, sizeof *h);
    memset(&k->ask[num], 0, sizeof k->ask[num]);
}

static void service_unpin(struct rank *k) {
    k->pin = PIN_NONE;
    k->pin_sess = 0;
    for (int t = 0; t < TAKES_MAX; t++)
        if (k->hold[t].what == WHAT_PIN)
            memset(&k->hold[t], 0, sizeof k->hold[t]);
}

bool service_release_enabled(const struct model *m, const struct state *s, int r, int b) {
    (void)m, (void)b;
    /* one stream: a release does not overtake the reservation before it */
    for (int t = 0; t < TAKES_MAX; t++)
        if (s->rank[r].ask[t].try && s->rank[r].ask[t].what == WHAT_PIN)
            return false;
    return s->rank[r].release;
}

void service_release(struct model *m, struct state *s, int r, int b) {
    (void)m, (void)b;
    s->rank[r].release = 0;
    service_unpin(&s->rank[r]);
}

/* The connection is gone: so are the questions on it, the holds and what is reserved for a pin. A
 * finished pin stays, for the next hello. */
void service_forget(struct rank *k) {
    k->sess = 0;
    k->release = k->wake = 0;
    memset(k->ask, 0, sizeof k->ask);
    memset(k->hold, 0, sizeof k->hold);
    if (k->pin == PIN_RESERVED)
        service_unpin(k);
}

bool service_gone_enabled(const struct model *m, const struct state *s, int r, int b) {
    (void)m, (void)b;
    return s->up && s->rank[r].sess && (!s->alive || s->rank[r].sess != s->sess);
}

void service_gone(struct model *m, struct state *s, int r, int b) {
    (void)m, (void)b;
    service_forget(&s->rank[r]);
}

bool service_fix_enabled(const struct model *m, const struct state *s, int num, int b) {
    (void)m, (void)b;
    return s->fix_try[num] && linked(s, 0);
}

/* Rank 0 takes a take on its list and rings its own bell. */
void service_fix(struct model *m, struct state *s, int num, int b) {
    struct item *it = &s->pending[num];

    (void)b;
    it->sess = s->rank[0].sess;
    it->try = s->fix_try[num];
    it->what = s->take[num].what;
    s->fix_try[num] = 0;
    world_ring(m, s, 0);
}

/* Only without the rule bell-from-rank0: the daemon wakes the other ranks. */
bool service_wake_enabled(const struct model *m, const struct state *s, int r, int b) {
    (void)m, (void)b;
    return s->rank[r].wake;
}

void service_wake(struct model *m, struct state *s, int r, int b) {
    (void)b;
    s->rank[r].wake = 0;
    world_ring(m, s, r);
}

/* Only without the rule edit-whole: the daemon sends each rank its part of an edit. */
bool service_part_enabled(const struct model *m, const struct state *s, int r, int b) {
    (void)m, (void)b;
    return s->rank[r].part_sent;
}

void service_part(struct model *m, struct state *s, int r, int b) {
    (void)m, (void)b;
    s->rank[r].part_sent = 0;
    s->rank[r].part = 1;
}
