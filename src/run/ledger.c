/* ledger.c - a hash table of commands by key, threaded by their numbers. */
#include "config.h"

#include "run/ledger.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { LEDGER_BUCKETS = 4096 };

/* Accepted is shown as waiting. */
static const char *const command_state_names[] = {
    [COMMAND_WAITING] = "waiting", [COMMAND_ACCEPTED] = "waiting",  [COMMAND_DONE] = "done",
    [COMMAND_FAILED] = "failed",   [COMMAND_CANCELED] = "canceled",
};

struct ledger {
    struct command *buckets[LEDGER_BUCKETS];
    struct command *oldest, *newest, *open_first, *open_last;
    size_t count, open_count, max_finished;
    uint64_t last_number;
};

static size_t bucket_of(const char *key) {
    uint64_t h = 1469598103934665603u;
    for (const char *p = key; *p; p++)
        h = (h ^ (unsigned char)*p) * 1099511628211u;
    return (size_t)(h % LEDGER_BUCKETS);
}

static void command_free(struct command *c) {
    free(c->key);
    free(c->name);
    free(c->value);
    free(c->text);
    free(c);
}

struct ledger *ledger_open(size_t max_finished) {
    struct ledger *l = calloc(1, sizeof *l);
    if (l)
        l->max_finished = max_finished;
    return l;
}

void ledger_close(struct ledger *l) {
    if (!l)
        return;
    while (l->oldest) {
        struct command *c = l->oldest;
        l->oldest = c->newer;
        command_free(c);
    }
    free(l);
}

bool command_is_open(const struct command *c) {
    return c->state == COMMAND_WAITING || c->state == COMMAND_ACCEPTED;
}

struct command *ledger_find(const struct ledger *l, const char *key) {
    struct command *c = l->buckets[bucket_of(key)];
    while (c && strcmp(c->key, key) != 0)
        c = c->hash_next;
    return c;
}

struct command *ledger_add(struct ledger *l, const struct msg_command *m) {
    struct command *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->key = strdup(m->key);
    c->name = strdup(m->name);
    c->value = strdup(m->value);
    c->text = strdup("");
    if (!c->key || !c->name || !c->value || !c->text) {
        command_free(c);
        return NULL;
    }
    c->uid = m->uid;
    c->number = ++l->last_number;
    struct command **bucket = &l->buckets[bucket_of(c->key)];
    c->hash_next = *bucket;
    *bucket = c;
    if (l->newest)
        l->newest->newer = c;
    else
        l->oldest = c;
    l->newest = c;
    c->open_prev = l->open_last;
    if (l->open_last)
        l->open_last->open_next = c;
    else
        l->open_first = c;
    l->open_last = c;
    l->count++;
    l->open_count++;
    return c;
}

static void unhash(struct ledger *l, const struct command *c) {
    struct command **at = &l->buckets[bucket_of(c->key)];
    while (*at != c)
        at = &(*at)->hash_next;
    *at = c->hash_next;
}

void ledger_trim(struct ledger *l) {
    while (l->count - l->open_count > l->max_finished && l->oldest != l->newest &&
           !command_is_open(l->oldest)) {
        struct command *c = l->oldest;
        l->oldest = c->newer;
        unhash(l, c);
        command_free(c);
        l->count--;
    }
}

void ledger_finish(struct ledger *l, struct command *c, uint32_t code, const char *text) {
    assert(command_is_open(c));
    c->code = code;
    c->state = code == 0 ? COMMAND_DONE : code == ECANCELED ? COMMAND_CANCELED : COMMAND_FAILED;
    char *copy = strdup(text);
    if (copy) {
        free(c->text);
        c->text = copy;
    }
    l->open_count--;
    /* open_next stays: who stands on c finds the way on. */
    if (c->open_prev)
        c->open_prev->open_next = c->open_next;
    else
        l->open_first = c->open_next;
    if (c->open_next)
        c->open_next->open_prev = c->open_prev;
    else
        l->open_last = c->open_prev;
}

void ledger_retry(struct command *c) {
    assert(c->state == COMMAND_ACCEPTED);
    c->state = COMMAND_WAITING;
}

struct command *ledger_first_open(const struct ledger *l) {
    return l->open_first;
}

struct command *ledger_next_open(const struct command *c) {
    struct command *next = c->open_next;
    while (next && !command_is_open(next))
        next = next->open_next;
    return next;
}

size_t ledger_open_count(const struct ledger *l) { return l->open_count; }

struct command *ledger_tail(const struct ledger *l, size_t back) {
    struct command *c = l->oldest;
    for (size_t skip = l->count > back ? l->count - back : 0; c && skip > 0; skip--)
        c = c->newer;
    return c;
}

const char *command_id(const struct command *c) {
    return strncmp(c->key, "id:", 3) == 0 ? c->key + 3 : c->key;
}

const char *command_state_name(const struct command *c) { return command_state_names[c->state]; }
