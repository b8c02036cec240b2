/* test_takes_explore.c - random schedules of a daemon's messages, writes, boundaries, copies and
 * lost links on engine/arrays.h and engine/take.h, in one thread, against a model that says what
 * each answer must be: with memory of the host, and with memory of a device that runs late and may
 * fail.
 *
 * GFS_EXPLORE=N explores N seeds, GFS_EXPLORE_SEED=S that one. */
#include "config.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/segment.h"
#include "engine/take.h"
#include "engine_world.h"

enum {
    SEEDS = 200,
    DEVICE_SEEDS = 150,
    ACTIONS = 1500,
    TAKES = 12,
    EPOCH = 3,
    SEGMENTS = 16,
    GROUPS = 2 * WORLD_UNITS,
    KEPT = 64,
    EXPLORE_SECONDS = 600
};

enum phase { FREE, WAITING, OWED, FINISHED, ANSWERED };

/* What the model knows of a take. FINISHED: its answer is certain, but was not sent. */
struct model_take {
    enum phase phase;
    uint64_t number, try, lo, hi, want;
    enum array array;
    uint32_t unit;
    enum take_state answer; /* of FINISHED and ANSWERED */
    uint64_t gen;           /* of it, and of OWED */
    const uint8_t *data;    /* of ANSWERED, when a copy */
};

struct model_group {
    bool valid, writing;
    uint64_t gen, next; /* next: what is being written */
};

/* A copy that a lost link has shown: it stays what it was. */
struct kept {
    struct segment segment;
    struct model_take take;
};

struct explorer {
    struct world w;
    /* Copies come later than they are promised, and, if it may fail, not always. */
    bool on_device, may_fail;
    struct takes *takes;
    struct link *rank, *daemon;
    struct segment segments[SEGMENTS];
    uint64_t random, session, last_number, gen, served;
    struct model_group groups[GROUPS];
    struct model_take t[TAKES];
    struct kept kept[KEPT];
    uint32_t kept_count;
    char trace[ACTIONS * 64];
    size_t trace_len;
    uint64_t answers[TAKE_FAILED + 1], fixes, drops;
    const char *wrong;
};

static uint32_t dice(struct explorer *x, uint32_t sides) {
    x->random = x->random * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(x->random >> 33) % sides;
}

static void __attribute__((format(printf, 2, 3))) trace(struct explorer *x, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(x->trace + x->trace_len, sizeof(x->trace) - x->trace_len, fmt, ap);
    va_end(ap);
    if (n > 0 && (size_t)n < sizeof(x->trace) - x->trace_len)
        x->trace_len += (size_t)n;
}

static void must(struct explorer *x, bool holds, const char *rule) {
    if (!holds && x->wrong == NULL)
        x->wrong = rule;
}

static struct model_group *group_of(struct explorer *x, const struct model_take *t) {
    return &x->groups[t->unit * 2 + (t->array == ARRAY_GRADS)];
}

static bool in_group(const struct model_take *t, uint32_t g) {
    return t->phase != FREE && t->unit * 2 + (t->array == ARRAY_GRADS) == g;
}

static void finish(struct model_take *t, enum take_state answer, uint64_t gen) {
    t->phase = FINISHED;
    t->answer = answer;
    t->gen = gen;
}

static void owe(struct model_take *t, uint64_t gen) {
    t->phase = OWED;
    t->gen = gen;
}

static bool is_as_shown(const struct model_take *t) {
    return t->phase != ANSWERED || t->answer != TAKE_COPY ||
           world_is(t->array, t->unit, t->lo, t->hi, t->gen, t->data);
}

/* ---- links */

static void connect_daemon(struct explorer *x, uint64_t session) {
    int pair[2];
    must(x, link_pair(pair) == 0, "a pair of sockets");
    struct link *rank = link_open(pair[0], 1 << 20);
    takes_set_daemon(x->takes, rank, session);
    link_close(x->rank);
    link_close(x->daemon);
    x->rank = rank;
    x->daemon = link_open(pair[1], 1 << 20);
    x->session = session;
    for (int i = 0; i < SEGMENTS; i++)
        segment_close(&x->segments[i]);
}

static void keep_shown(struct explorer *x) {
    for (int i = 0; i < TAKES; i++) {
        struct model_take *t = &x->t[i];
        if (t->phase == ANSWERED && t->answer == TAKE_COPY && x->kept_count < KEPT) {
            struct kept *k = &x->kept[x->kept_count++];
            k->take = *t;
            for (int s = 0; s < SEGMENTS; s++) {
                const struct segment *from = &x->segments[s];
                if (from->base == NULL || t->data < from->base ||
                    t->data >= from->base + from->bytes)
                    continue;
                must(x, segment_adopt(dup(from->fd), from->bytes, false, &k->segment) == 0, "map");
                k->take.data = k->segment.base + (t->data - from->base);
            }
        }
        t->phase = FREE;
    }
}

static struct model_take *find(struct explorer *x, uint64_t number) {
    for (int i = 0; i < TAKES; i++)
        if (x->t[i].phase != FREE && x->t[i].number == number)
            return &x->t[i];
    return NULL;
}

static const uint8_t *reply_data(struct explorer *x, const struct msg_take_reply *m,
                                 struct frame *f) {
    if (m->segment >= SEGMENTS)
        return NULL;
    struct segment *s = &x->segments[m->segment];
    must(x, (s->base == NULL) == (f->fd_count == 1), "the descriptor comes with the first use");
    if (f->fd_count == 1 && s->base == NULL) {
        must(x, segment_adopt(f->fds[0], m->segment_bytes, false, s) == 0, "the segment fits");
        f->fds[0] = -1;
    }
    return s->base != NULL ? s->base + m->offset_bytes : NULL;
}

static void read_reply(struct explorer *x, struct frame *f) {
    struct msg_take_reply m;
    must(x, f->type == MSG_TAKE_REPLY, "an answer is an answer");
    must(x, msg_decode(f->type, f->payload, f->len_bytes, &m) == 0, "an answer is well formed");
    if (x->wrong != NULL)
        return;
    struct model_take *t = find(x, m.number);
    trace(x, "  -> take %llu try %llu: %u gen %llu\n", (unsigned long long)m.number,
          (unsigned long long)m.try, m.state, (unsigned long long)m.gen);
    must(x, t != NULL && m.session == x->session && m.epoch == EPOCH, "an answer has a question");
    if (x->wrong != NULL || t == NULL)
        return;
    must(x, m.try == t->try, "an answer is for the newest try");
    x->answers[m.state <= TAKE_FAILED ? m.state : TAKE_FAILED]++;
    if (m.state == TAKE_HELD) {
        must(x, t->phase == WAITING || (x->on_device && t->phase == OWED),
             "held when it must wait");
        return;
    }
    if (x->may_fail && m.state == TAKE_FAILED && m.code == EIO &&
        (t->phase == OWED || (t->phase == FINISHED && t->answer == TAKE_COPY)))
        finish(t, TAKE_FAILED, m.gen);
    if (t->phase == OWED && m.state == TAKE_COPY) {
        must(x, x->on_device || x->served > 0, "somebody made the copy");
        x->served -= !x->on_device;
        finish(t, TAKE_COPY, t->gen);
    }
    must(x, t->phase == FINISHED, "an answer is due");
    must(x, t->answer == (enum take_state)m.state, "the answer is the right one");
    must(x, m.state == TAKE_NONE || m.gen == t->gen, "the version is the right one");
    if (x->wrong != NULL)
        return;
    t->phase = ANSWERED;
    if (m.state == TAKE_COPY) {
        t->data = reply_data(x, &m, f);
        must(x, t->data != NULL && is_as_shown(t), "the content is of that version");
    }
}

static void read_replies(struct explorer *x) {
    struct frame f;
    must(x, link_fill(x->daemon) == 0, "the link lives");
    while (x->wrong == NULL && link_next(x->daemon, &f) == 1)
        read_reply(x, &f);
}

/* ---- actions */

/* What the rank must say to a question now. */
static void model_ask(struct explorer *x, struct model_take *t) {
    const struct model_group *g = group_of(x, t);
    bool comes = t->want > g->gen;
    if (!g->valid && !g->writing && !comes)
        finish(t, TAKE_NONE, g->gen);
    else if (t->want != 0 && !comes && (t->want < g->gen || g->writing))
        finish(t, TAKE_PASSED, g->gen);
    else if (!g->valid || g->writing || comes)
        t->phase = WAITING;
    else if (!x->on_device || t->hi == t->lo)
        finish(t, TAKE_COPY, g->gen);
    else
        owe(t, g->gen);
}

static void send_ask(struct explorer *x, const struct model_take *t, uint64_t try,
                     uint64_t session) {
    struct msg_take m = {.session = session,
                         .number = t->number,
                         .try = try,
                         .epoch = EPOCH,
                         .array = t->array,
                         .unit = t->unit,
                         .lo = t->lo,
                         .hi = t->hi,
                         .want_gen = t->want};
    must(x, takes_request(x->takes, &m) == 0, "the daemon reads");
}

static void act_ask(struct explorer *x) {
    struct model_take *t = &x->t[dice(x, TAKES)];
    if (t->phase == FREE) {
        *t = (struct model_take){.number = ++x->last_number,
                                 .array = (enum array)dice(x, ARRAY_COUNT),
                                 .unit = dice(x, WORLD_UNITS)};
        uint32_t valid = (uint32_t)world_valid(&x->w, t->unit);
        t->lo = dice(x, valid + 1);
        t->hi = t->lo + dice(x, valid + 1 - (uint32_t)t->lo);
    }
    const uint64_t wants[] = {0, 0, x->gen, x->gen + 1, x->gen + 2, x->gen - 1};
    t->want = wants[dice(x, 6)];
    t->try += 1 + dice(x, 2);
    trace(x, "ask take %llu try %llu: array %u unit %u want %llu\n", (unsigned long long)t->number,
          (unsigned long long)t->try, t->array, t->unit, (unsigned long long)t->want);
    model_ask(x, t);
    send_ask(x, t, t->try, x->session);
}

/* Late, repeated, of another session: nothing happens. */
static void act_stale(struct explorer *x) {
    const struct model_take *t = &x->t[dice(x, TAKES)];
    if (t->phase == FREE)
        return;
    if (dice(x, 2) == 0)
        send_ask(x, t, dice(x, (uint32_t)t->try + 1), x->session);
    else
        send_ask(x, t, t->try + 1, x->session - 1);
    takes_release(x->takes, x->session - 1, t->number);
    takes_release(x->takes, x->session, t->number + 100000);
    takes_fix(x->takes, x->session - 1, t->number);
}

static void act_release(struct explorer *x) {
    struct model_take *t = &x->t[dice(x, TAKES)];
    if (t->phase == FREE)
        return;
    trace(x, "release take %llu\n", (unsigned long long)t->number);
    must(x, is_as_shown(t), "a copy stays until its release");
    takes_release(x->takes, x->session, t->number);
    t->phase = FREE;
}

/* One array of a group, half a step's write: the rest follows when it is published. */
static void write_half(struct explorer *x, uint32_t g, bool second) {
    static const enum array arrays[2][2] = {{ARRAY_PARAMS, ARRAY_EXP_AVG_SQ},
                                            {ARRAY_EXP_AVG, ARRAY_EXP_AVG_SQ}};
    if (g % 2 != 0) {
        if (second || x->on_device)
            world_fill(&x->w, ARRAY_GRADS, g / 2, x->groups[g].next);
        return;
    }
    for (int i = 0; i < 2; i++)
        world_fill(&x->w, arrays[second][i], g / 2, x->groups[g].next);
}

static void act_begin(struct explorer *x) {
    uint32_t g = dice(x, GROUPS);
    struct model_group *m = &x->groups[g];
    if (m->writing)
        return;
    trace(x, "begin group %u\n", g);
    for (int i = 0; i < TAKES; i++)
        if (in_group(&x->t[i], g) && x->t[i].phase == OWED)
            finish(&x->t[i], TAKE_COPY, x->t[i].gen);
    m->writing = true;
    m->next = m->gen < x->gen ? x->gen : ++x->gen;
    if (g % 2 != 0)
        arrays_grads_begin(x->w.arrays, g / 2);
    else
        arrays_state_begin(x->w.arrays, g / 2);
    write_half(x, g, false);
}

static void act_publish(struct explorer *x) {
    uint32_t g = dice(x, GROUPS), unit = g / 2;
    struct model_group *m = &x->groups[g];
    if (!m->writing)
        return;
    uint64_t gen = m->next;
    trace(x, "publish group %u gen %llu\n", g, (unsigned long long)gen);
    write_half(x, g, true);
    *m = (struct model_group){.valid = true, .gen = gen};
    for (int i = 0; i < TAKES; i++) {
        struct model_take *t = &x->t[i];
        if (!in_group(t, g) || t->phase != WAITING || t->want > gen)
            continue;
        if (t->want != 0 && t->want < gen)
            finish(t, TAKE_PASSED, gen);
        else
            owe(t, gen);
    }
    world_wait(&x->w, g % 2 != 0 ? ARRAY_GRADS : ARRAY_PARAMS);
    if (g % 2 != 0)
        arrays_grads_end(x->w.arrays, unit, gen, gen);
    else
        arrays_state_end(x->w.arrays, unit, gen, gen);
}

static bool any_writing(const struct explorer *x) {
    for (int g = 0; g < GROUPS; g++)
        if (x->groups[g].writing)
            return true;
    return false;
}

static void act_fix(struct explorer *x) {
    struct model_take *t = &x->t[dice(x, TAKES)];
    if (t->phase == FREE || any_writing(x))
        return;
    trace(x, "fix take %llu\n", (unsigned long long)t->number);
    x->fixes++;
    const struct model_group *g = group_of(x, t);
    if (t->phase == WAITING || t->phase == ANSWERED) {
        owe(t, g->gen);
        if (!g->valid)
            finish(t, TAKE_NONE, g->gen);
    }
    takes_fix(x->takes, x->session, t->number);
}

static void act_none(struct explorer *x) {
    if (dice(x, 4) != 0)
        return;
    trace(x, "no gradients\n");
    arrays_grads_none(x->w.arrays);
    for (uint32_t g = 1; g < GROUPS; g += 2) {
        x->groups[g].valid = x->groups[g].writing = false;
        for (int i = 0; i < TAKES; i++) {
            struct model_take *t = &x->t[i];
            if (in_group(t, g) && t->phase == OWED)
                finish(t, TAKE_COPY, t->gen);
            else if (in_group(t, g) && t->phase == WAITING)
                finish(t, TAKE_NONE, x->groups[g].gen);
        }
    }
}

static bool is_on_the_way(const struct explorer *x, const struct model_take *t) {
    return x->on_device && t->answer == TAKE_COPY;
}

static void pump(struct explorer *x) {
    for (struct hold *h; (h = arrays_next_done(x->w.arrays)) != NULL;)
        must(x, takes_finished(x->takes, h) == 0, "the daemon reads");
    read_replies(x);
    for (int i = 0; i < TAKES; i++)
        must(x, x->t[i].phase != FINISHED || is_on_the_way(x, &x->t[i]),
             "what is certain is answered");
    must(x, x->served == 0, "each copy is answered");
}

static void act_serve(struct explorer *x) {
    bool owed = false;
    for (int i = 0; i < TAKES; i++)
        owed = owed || x->t[i].phase == OWED;
    bool served = arrays_serve(x->w.arrays);
    trace(x, "serve: %d\n", served);
    must(x, served == owed || x->on_device, "a copy is made exactly when one is owed");
    x->served += served && !x->on_device;
    pump(x); /* which one it was shows in the answer */
}

static void act_drop(struct explorer *x) {
    if (dice(x, 60) != 0)
        return;
    trace(x, "the daemon is gone\n");
    x->drops++;
    keep_shown(x);
    if (dice(x, 2) == 0) {
        takes_set_daemon(x->takes, NULL, 0);
        must(x, takes_used_bytes(x->takes) == 0, "nothing is left of a session");
    }
    connect_daemon(x, x->session + dice(x, 2));
}

/* ---- a schedule */

/* A ring of one to three slots that are smaller than most copies. */
static void explorer_world(struct explorer *x, uint64_t seed) {
    const struct world_device on = {.order = (enum async_order)(seed % ASYNC_ORDERS),
                                    .seed = seed,
                                    .slot_bytes = 20 + 44 * (seed % 3),
                                    .slot_count = 1 + (uint32_t)(seed / 3 % 3)};
    world_open_on(&x->w, 0, 2, 96, x->on_device ? &on : NULL);
}

static void explorer_open(struct explorer *x, uint64_t seed, bool on_device, bool may_fail) {
    *x = (struct explorer){
        .random = seed * 2654435761u + 1, .gen = 2, .on_device = on_device, .may_fail = may_fail};
    for (int i = 0; i < SEGMENTS; i++)
        x->segments[i] = SEGMENT_EMPTY;
    for (int i = 0; i < KEPT; i++)
        x->kept[i].segment = SEGMENT_EMPTY;
    explorer_world(x, seed);
    for (uint32_t u = 0; u < WORLD_UNITS; u++) {
        world_write_state(&x->w, u, 2);
        x->groups[2 * u] = (struct model_group){.valid = true, .gen = 2};
    }
    x->takes = takes_open(x->w.arrays, &x->w.layout, 0, EPOCH, 1 << 20);
    assert_non_null(x->takes);
    connect_daemon(x, 10);
    if (may_fail)
        async_device_fail(x->w.dev, 1 + dice(x, 3000), seed % 2 != 0);
}

static void explorer_close(struct explorer *x) {
    takes_close(x->takes);
    link_close(x->rank);
    link_close(x->daemon);
    for (int i = 0; i < SEGMENTS; i++)
        segment_close(&x->segments[i]);
    for (int i = 0; i < KEPT; i++)
        segment_close(&x->kept[i].segment);
    world_close(&x->w);
}

static void explore(struct explorer *x) {
    static void (*const acts[])(struct explorer *) = {
        act_ask,   act_ask,   act_ask,     act_stale,   act_release,
        act_begin, act_begin, act_publish, act_publish, act_publish,
        act_fix,   act_fix,   act_serve,   act_none,    act_drop};
    for (int i = 0; i < ACTIONS && x->wrong == NULL; i++) {
        acts[dice(x, sizeof(acts) / sizeof(acts[0]))](x);
        read_replies(x);
        if (dice(x, 3) == 0)
            pump(x);
        must(x, is_as_shown(&x->t[dice(x, TAKES)]), "a copy stays what it was");
    }
    pump(x);
    for (int i = 0; i < 2 * TAKES && x->wrong == NULL; i++)
        act_serve(x);
    while (x->on_device && arrays_serve(x->w.arrays))
        ;
    pump(x);
    for (int i = 0; i < TAKES; i++)
        must(x, x->t[i].phase != OWED && x->t[i].phase != FINISHED && is_as_shown(&x->t[i]),
             "all that is owed is copied");
    for (uint32_t i = 0; i < x->kept_count; i++)
        must(x, is_as_shown(&x->kept[i].take), "what a lost link was shown is never written again");
}

static char crash_text[64]; /* made beforehand: a handler can't format */
static size_t crash_bytes;

/* The modules' own assertions name their seed too. */
static void on_crash(int number) {
    ssize_t written = write(STDERR_FILENO, crash_text, crash_bytes);
    (void)written;
    signal(number, SIG_DFL);
    raise(number);
}

static void explore_seeds(bool on_device, bool may_fail, uint64_t seeds) {
    static struct explorer x;
    signal(SIGABRT, on_crash);
    signal(SIGSEGV, on_crash);
    const char *count_text = getenv("GFS_EXPLORE"), *seed_text = getenv("GFS_EXPLORE_SEED");
    uint64_t count = count_text != NULL ? strtoull(count_text, NULL, 10) : seeds;
    uint64_t first = seed_text != NULL ? strtoull(seed_text, NULL, 10) : 1, failed = 0;
    uint64_t answers[TAKE_FAILED + 1] = {0}, fixes = 0, drops = 0;
    for (uint64_t seed = first; seed < first + (seed_text != NULL ? 1 : count); seed++) {
        crash_bytes = (size_t)snprintf(crash_text, sizeof(crash_text), "seed %llu: crashed\n",
                                       (unsigned long long)seed);
        explorer_open(&x, seed, on_device, may_fail);
        explore(&x);
        if (x.wrong != NULL) {
            failed++;
            fprintf(stderr, "seed %llu: not so: %s\n%s\n", (unsigned long long)seed, x.wrong,
                    failed == 1 ? x.trace : "");
        }
        for (int i = 0; i <= TAKE_FAILED; i++)
            answers[i] += x.answers[i];
        fixes += x.fixes;
        drops += x.drops;
        explorer_close(&x);
    }
    print_message("%llu copies, %llu none, %llu passed, %llu held, %llu failed, %llu fixes, %llu "
                  "lost links\n",
                  (unsigned long long)answers[TAKE_COPY], (unsigned long long)answers[TAKE_NONE],
                  (unsigned long long)answers[TAKE_PASSED], (unsigned long long)answers[TAKE_HELD],
                  (unsigned long long)answers[TAKE_FAILED], (unsigned long long)fixes,
                  (unsigned long long)drops);
    assert_int_equal(failed, 0);
    if (!may_fail)
        assert_int_equal(answers[TAKE_FAILED], 0);
    else if (seed_text == NULL && count >= seeds)
        assert_true(answers[TAKE_FAILED] > 300);
}

static void every_answer_is_what_the_model_says(void **state) {
    (void)state;
    explore_seeds(false, false, SEEDS);
}

static void every_answer_of_a_late_device_is_what_the_model_says(void **state) {
    (void)state;
    explore_seeds(true, false, DEVICE_SEEDS);
}

static void every_answer_of_a_device_that_fails_is_right_or_an_error(void **state) {
    (void)state;
    explore_seeds(true, true, DEVICE_SEEDS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_answer_is_what_the_model_says),
        cmocka_unit_test(every_answer_of_a_late_device_is_what_the_model_says),
        cmocka_unit_test(every_answer_of_a_device_that_fails_is_right_or_an_error),
    };
    alarm(EXPLORE_SECONDS);
    log_set_level(LEVEL_ERROR);
    return cmocka_run_group_tests_name("takes-explore", tests, NULL, NULL);
}
