/* The daemon: it opens takes, asks the owners, compares their answers and fixes what was passed.
 *
 *   FREE --daemon_open--> ASKING --daemon_judge: passed--> FIXING --daemon_judge--> ENDED
 *                           |  ^---- daemon_hello of an owner ---+                   ^
 *                           +-- daemon_judge: all of one version, none, or EIO ------+
 */
#include "model.h"

#include <string.h>

static bool linked(const struct state *s, int r) {
    return s->up && s->alive && s->rank[r].sess == s->sess && s->conn[r] == s->epoch;
}

static bool is_open(const struct take *t) {
    return t->phase == TAKE_ASKING || t->phase == TAKE_FIXING;
}

static void daemon_end(struct take *t) {
    uint8_t what = t->what;

    memset(t, 0, sizeof *t);
    t->phase = TAKE_ENDED;
    t->what = what;
}

static void daemon_next_try(struct model *m, struct take *t) {
    if (t->try == TRY_MAX)
        m->violation = "bound of the model: try";
    else
        t->try++;
}

/* A question on a dead connection is lost; the next hello of that rank repeats it. */
static void daemon_ask(struct state *s, int num, int r, int want) {
    struct take *t = &s->take[num];
    struct owner *o = &t->owner[r];

    memset(o, 0, sizeof *o);
    o->st = OWN_ASKED;
    o->try = t->try;
    if (!linked(s, r))
        return;
    s->rank[r].ask[num].try = t->try;
    s->rank[r].ask[num].want = (uint8_t)want;
    s->rank[r].ask[num].what = t->what;
}

static void daemon_ask_all(struct model *m, struct state *s, int num) {
    struct take *t = &s->take[num];

    t->phase = TAKE_ASKING;
    daemon_next_try(m, t);
    for (int r = 0; r < m->ranks; r++)
        if (what_is_owner(t->what, r))
            daemon_ask(s, num, r, VALUE_NONE);
}

static void daemon_fix(struct model *m, struct state *s, int num) {
    struct take *t = &s->take[num];

    t->phase = TAKE_FIXING;
    daemon_next_try(m, t);
    for (int r = 0; r < m->ranks; r++) {
        struct owner *o = &t->owner[r];
        if (!what_is_owner(t->what, r))
            continue;
        memset(o, 0, sizeof *o);
        o->st = OWN_ASKED;
        o->try = t->try;
        if (!rule(m, RULE_BELL_RANK0) && r > 0 && linked(s, r))
            s->rank[r].wake = 1;
    }
    if (linked(s, 0))
        s->fix_try[num] = t->try;
}

static void daemon_release(const struct model *m, struct state *s) {
    for (int r = 0; r < m->ranks; r++)
        if (linked(s, r))
            s->rank[r].release = 1;
}

bool daemon_open_enabled(const struct model *m, const struct state *s, int what, int b) {
    (void)b;
    if (!s->alive || s->opened == m->takes || s->next == TAKES_MAX || !(m->sc->whats >> what & 1) ||
        (what == WHAT_PIN && s->pins))
        return false;
    for (int r = 0; r < m->ranks; r++)
        if (!s->conn[r] || s->conn[r] != s->conn[0])
            return false;
    return true;
}

/* All ranks of one epoch are connected: the take is of that epoch and its layout. */
void daemon_open(struct model *m, struct state *s, int what, int b) {
    int num = s->next++;
    struct take *t = &s->take[num];
    enum array a = what_array(what, 0);

    (void)b;
    memset(t, 0, sizeof *t);
    s->opened++;
    s->pins += what == WHAT_PIN;
    t->what = (uint8_t)what;
    t->epoch = s->conn[0];
    t->floor = s->reported[a];
    t->floor_epoch = s->epoch;
    t->none_ok = a == A_G0 && s->no_grad;
    if (what == WHAT_PIN && !rule(m, RULE_RESERVE_FIRST))
        daemon_fix(m, s, num);
    else
        daemon_ask_all(m, s, num);
}

static int daemon_count(const struct model *m, const struct take *t, int st) {
    int n = 0;

    for (int r = 0; r < m->ranks; r++)
        n += t->owner[r].st == st;
    return n;
}

static int daemon_owners(const struct model *m, const struct take *t) {
    int n = 0;

    for (int r = 0; r < m->ranks; r++)
        n += what_is_owner(t->what, r);
    return n;
}

/* Every answer is here. */
static void daemon_answer(struct model *m, struct state *s, struct take *t) {
    check_answer(m, s, t);
    /* the pin of a dead world is what the daemon has of it, and ends with the daemon */
    if (t->what == WHAT_PIN && s->up && t->epoch == s->epoch) {
        s->pin_known = s->sess;
        s->pin_mask = (uint8_t)model_all(m);
    }
    daemon_end(t);
}

/* The owners whose copy is behind the highest seen are asked for that one: a hold. */
static void daemon_ask_behind(struct model *m, struct state *s, int num) {
    struct take *t = &s->take[num];
    int max = -1, behind = 0;

    for (int r = 0; r < m->ranks; r++)
        if (t->owner[r].st == OWN_COPY && t->owner[r].label[0] > max)
            max = t->owner[r].label[0];
    for (int r = 0; r < m->ranks; r++)
        behind += t->owner[r].st == OWN_COPY && t->owner[r].label[0] < max;
    if (!behind)
        return;
    daemon_next_try(m, t);
    for (int r = 0; r < m->ranks; r++)
        if (t->owner[r].st == OWN_COPY && t->owner[r].label[0] < max)
            daemon_ask(s, num, r, max);
}

static bool daemon_one_version(const struct model *m, const struct take *t) {
    int label = -1;

    for (int r = 0; r < m->ranks; r++) {
        if (t->owner[r].st != OWN_COPY)
            continue;
        if (label >= 0 && label != t->owner[r].label[0])
            return false;
        label = t->owner[r].label[0];
    }
    return true;
}

/* After each answer: does it end the take, or what is to be asked next? */
static void daemon_judge(struct model *m, struct state *s, int num) {
    struct take *t = &s->take[num];
    int owners = daemon_owners(m, t);
    bool all = daemon_count(m, t, OWN_COPY) == owners;

    if (t->phase == TAKE_FIXING) {
        if (all)
            daemon_answer(m, s, t);
        return;
    }
    if (t->what == WHAT_PIN) {
        if (daemon_count(m, t, OWN_RESERVED) == owners)
            daemon_fix(m, s, num);
        return;
    }
    if (daemon_count(m, t, OWN_ASKED))
        return;
    if (daemon_count(m, t, OWN_PASSED)) {
        daemon_fix(m, s, num);
        return;
    }
    if (all && (!rule(m, RULE_COMPARE) || daemon_one_version(m, t)))
        daemon_answer(m, s, t);
    else
        daemon_ask_behind(m, s, num);
}

static void daemon_copy(struct owner *o, const struct take *t, struct msg x) {
    o->label[x.part] = x.label;
    /* bytes of another thing are as wrong as torn ones */
    o->bytes[x.part] = x.what == t->what ? x.bytes : VALUE_TORN;
    o->epoch = x.epoch;
    o->got |= (uint8_t)(1u << x.part);
    if (o->got == (1 << what_parts(t->what)) - 1)
        o->st = OWN_COPY;
}

static void daemon_message(struct model *m, struct state *s, int r, struct msg x) {
    struct take *t = &s->take[x.num];
    struct owner *o = &t->owner[r];

    if (!is_open(t) || o->st == OWN_NOT)
        return;
    if (x.sess != s->sess && rule(m, RULE_SESSION_REPLY))
        return;
    if (x.try != o->try && rule(m, RULE_TRY_CHECK))
        return;
    switch (x.type) {
    case MSG_COPY:
        daemon_copy(o, t, x);
        break;
    case MSG_HELD:
        o->st = OWN_HELD;
        break;
    case MSG_PASSED:
        o->st = OWN_PASSED;
        break;
    case MSG_RESERVED:
        o->st = OWN_RESERVED;
        break;
    case MSG_NOMEM:
        daemon_release(m, s);
        daemon_end(t);
        return;
    case MSG_NODATA:
        if (!t->none_ok)
            m->violation = "a gradient take was answered with none though there was one";
        daemon_end(t);
        return;
    default:
        return;
    }
    daemon_judge(m, s, (int)x.num);
}

/* Index of the first message of the connection source: 0 the older epoch, 1 the newer; or -1. */
static int daemon_find(const struct rank *k, int source) {
    for (int i = 0; i < k->out_count; i++)
        if ((k->out[i].epoch != k->out[0].epoch) == source)
            return i;
    return -1;
}

bool daemon_read_enabled(const struct model *m, const struct state *s, int r, int source) {
    (void)m;
    return s->alive && daemon_find(&s->rank[r], source) >= 0;
}

void daemon_read(struct model *m, struct state *s, int r, int source) {
    struct rank *k = &s->rank[r];
    int i = daemon_find(k, source);
    struct msg x = k->out[i];

    k->out_count--;
    memmove(&k->out[i], &k->out[i + 1], (size_t)(k->out_count - i) * sizeof k->out[0]);
    memset(&k->out[k->out_count], 0, sizeof k->out[0]);
    daemon_message(m, s, r, x);
}

/* Rank r of this epoch connects, again: what it was asked on the old connection is lost, and so is
 * a hold it had. What others answered stays good, but for a take that rank 0 was to fix: nobody
 * knows whether r was there when the agenda ran. */
static void daemon_reask(struct model *m, struct state *s, int num, int r) {
    struct take *t = &s->take[num];
    int max = -1;

    if (t->what == WHAT_PIN) {
        daemon_release(m, s);
        daemon_end(t);
        return;
    }
    if (t->phase == TAKE_FIXING) {
        daemon_ask_all(m, s, num);
        return;
    }
    for (int q = 0; q < m->ranks; q++)
        if (q != r && t->owner[q].st == OWN_COPY && t->owner[q].label[0] > max)
            max = t->owner[q].label[0];
    daemon_next_try(m, t);
    daemon_ask(s, num, r, max < 0 ? VALUE_NONE : max);
}

bool daemon_hello_enabled(const struct model *m, const struct state *s, int r, int b) {
    (void)m, (void)b;
    return s->up && s->alive && s->rank[r].sess == 0;
}

void daemon_hello(struct model *m, struct state *s, int r, int b) {
    struct rank *k = &s->rank[r];

    (void)b;
    k->sess = s->sess;
    s->conn[r] = s->epoch;
    for (int t = 0; t < TAKES_MAX; t++) {
        if (!is_open(&s->take[t]))
            continue;
        if (s->take[t].epoch < s->epoch && rule(m, RULE_EPOCH_TAKES))
            daemon_end(&s->take[t]);
        else if (s->take[t].owner[r].st != OWN_NOT && rule(m, RULE_REASK))
            daemon_reask(m, s, t, r);
        else if (r == 0 && s->take[t].phase == TAKE_FIXING && rule(m, RULE_REFIX))
            daemon_ask_all(m, s, t);
    }
    if (k->pin != PIN_DONE || !rule(m, RULE_OFFER_PINS))
        return;
    if (s->pin_known == k->pin_sess)
        s->pin_mask |= (uint8_t)(1u << r);
    else if (rule(m, RULE_RELEASE_UNKNOWN))
        k->release = 1;
}

/* All that dies with the daemon. */
void daemon_erase(const struct model *m, struct state *s) {
    s->alive = s->next = s->pin_mask = 0;
    memset(s->conn, 0, sizeof s->conn);
    memset(s->fix_try, 0, sizeof s->fix_try);
    memset(s->take, 0, sizeof s->take);
    for (int r = 0; r < m->ranks; r++) {
        struct rank *k = &s->rank[r];
        memset(k->ask, 0, sizeof k->ask);
        k->release = k->wake = k->part_sent = 0;
    }
}
