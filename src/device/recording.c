/* recording.c - a device that computes nothing and notes what it was asked. */
#include "config.h"

#include "device/recording.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/recording_list.h"

int recording_grow(void **array, size_t count, size_t *cap, size_t elem_bytes) {
    if (count < *cap)
        return 0;
    size_t wanted = *cap == 0 ? 64 : 2 * *cap;
    void *p = reallocarray(*array, wanted, elem_bytes);
    if (p == NULL)
        return -ENOMEM;
    *array = p;
    *cap = wanted;
    return 0;
}

int recording_add(struct device *d, const struct recording_entry *e) {
    pthread_mutex_lock(&d->lock);
    int rc = recording_grow((void **)&d->entries, d->count, &d->cap, sizeof(*d->entries));
    if (rc == 0)
        d->entries[d->count++] = *e;
    pthread_mutex_unlock(&d->lock);
    return rc;
}

size_t recording_count(const struct device *d) { return d->count; }
const struct recording_entry *recording_at(const struct device *d, size_t i) {
    return &d->entries[i];
}
void recording_clear(struct device *d) { d->count = 0; }

void recording_remove(struct device *d, size_t i) {
    memmove(d->entries + i, d->entries + i + 1, (d->count - i - 1) * sizeof(*d->entries));
    d->count--;
}

int recording_note(struct device *d, struct dev_stream *s, const char *name,
                   const struct recording_range *reads, size_t read_count,
                   const struct recording_range *writes, size_t write_count) {
    struct recording_entry e = {.kind = s != NULL ? RECORDING_OPERATION : RECORDING_HOST,
                                .name = name,
                                .stream = s != NULL ? s->index : RECORDING_NONE,
                                .event = RECORDING_NONE};
    if (read_count > RECORDING_RANGES_MAX || write_count > RECORDING_RANGES_MAX)
        return -E2BIG;
    for (size_t i = 0; i < read_count; i++)
        if (reads[i].start != NULL && reads[i].bytes > 0)
            e.reads[e.read_count++] = reads[i];
    for (size_t i = 0; i < write_count; i++)
        if (writes[i].start != NULL && writes[i].bytes > 0)
            e.writes[e.write_count++] = writes[i];
    return recording_add(d, &e);
}

const char *recording_memory_name(const struct device *d, const void *p) {
    for (size_t i = 0; i < d->memory_count; i++) {
        uintptr_t start = (uintptr_t)d->memory[i].start;
        if ((uintptr_t)p >= start && (uintptr_t)p - start < d->memory[i].bytes)
            return d->memory[i].what;
    }
    return "?";
}

static bool overlap(const struct recording_range *a, const struct recording_range *b,
                    struct recording_range *both) {
    uintptr_t start = (uintptr_t)a->start, end = start + a->bytes;
    uintptr_t other = (uintptr_t)b->start, other_end = other + b->bytes;
    uintptr_t last = end < other_end ? end : other_end;
    const void *first = start > other ? a->start : b->start;
    if ((uintptr_t)first >= last)
        return false;
    *both = (struct recording_range){first, last - (uintptr_t)first};
    return true;
}

static bool overlap_any(const struct recording_range *a, uint32_t a_count,
                        const struct recording_range *b, uint32_t b_count,
                        struct recording_range *both) {
    for (uint32_t i = 0; i < a_count; i++)
        for (uint32_t j = 0; j < b_count; j++)
            if (overlap(&a[i], &b[j], both))
                return true;
    return false;
}

/* Do two entries touch the same bytes, one of them writing? */
static bool collide(const struct recording_entry *a, const struct recording_entry *b,
                    struct recording_range *both) {
    return overlap_any(a->writes, a->write_count, b->writes, b->write_count, both) ||
           overlap_any(a->writes, a->write_count, b->reads, b->read_count, both) ||
           overlap_any(a->reads, a->read_count, b->writes, b->write_count, both);
}

/* Vector clocks: a line is a stream, the last is the host. clock[line] of a line is what it knows
 * to be done of each. */
struct clocks {
    size_t lines;
    uint64_t *line; /* (lines, lines) */
    uint64_t
        *event; /* (events, lines): what the stream knew at the last event_record; zeros before */
    uint64_t *done_at; /* (entries): the entry's own time on its line */
    uint32_t *on_line; /* (entries) */
};

static void clocks_close(struct clocks *c) {
    free(c->line);
    free(c->event);
    free(c->done_at);
    free(c->on_line);
}

static int clocks_open(struct clocks *c, const struct device *d) {
    size_t lines = (size_t)d->stream_count + 1;
    *c = (struct clocks){.lines = lines,
                         .line = calloc(lines * lines, sizeof(uint64_t)),
                         .event = calloc(d->event_count * lines + 1, sizeof(uint64_t)),
                         .done_at = calloc(d->count + 1, sizeof(uint64_t)),
                         .on_line = calloc(d->count + 1, sizeof(uint32_t))};
    if (c->line != NULL && c->event != NULL && c->done_at != NULL && c->on_line != NULL)
        return 0;
    clocks_close(c);
    return -ENOMEM;
}

static void join(uint64_t *into, const uint64_t *from, size_t lines) {
    for (size_t i = 0; i < lines; i++)
        into[i] = into[i] > from[i] ? into[i] : from[i];
}

/* Brings the clocks to just before entry i runs; true if it touches memory. */
static bool clocks_step(struct clocks *c, const struct device *d, size_t i) {
    const struct recording_entry *e = &d->entries[i];
    size_t host = c->lines - 1, line = e->stream == RECORDING_NONE ? host : e->stream;
    uint64_t *mine = c->line + line * c->lines;
    uint64_t *event = e->event == RECORDING_NONE ? NULL : c->event + e->event * c->lines;
    join(mine, c->line + host * c->lines, c->lines); /* the host queued it after all that it knew */
    if (event == NULL) {
        c->done_at[i] = ++mine[line];
        c->on_line[i] = (uint32_t)line;
        return true;
    }
    if (e->kind == RECORDING_EVENT)
        memcpy(event, mine, c->lines * sizeof(*event));
    else
        join(mine, event, c->lines);
    return false;
}

static void describe(const struct device *d, struct recording_conflict *x) {
    const struct recording_entry *a = &d->entries[x->first], *b = &d->entries[x->second];
    char where[2][32] = {"host", "host"};
    if (a->stream != RECORDING_NONE)
        snprintf(where[0], sizeof(where[0]), "stream %u", a->stream);
    if (b->stream != RECORDING_NONE)
        snprintf(where[1], sizeof(where[1]), "stream %u", b->stream);
    snprintf(x->text, sizeof(x->text),
             "%s (entry %zu, %s) and %s (entry %zu, %s) both touch %zu bytes of %s, in no order",
             a->name, x->first, where[0], b->name, x->second, where[1], x->range.bytes,
             recording_memory_name(d, x->range.start));
}

int recording_check(const struct device *d, struct recording_conflict *out) {
    struct clocks c;
    int rc = clocks_open(&c, d);
    for (size_t i = 0; rc == 0 && i < d->count; i++) {
        if (!clocks_step(&c, d, i))
            continue;
        const uint64_t *known = c.line + c.on_line[i] * c.lines;
        for (size_t j = 0; rc == 0 && j < i; j++) {
            struct recording_range both;
            if (c.done_at[j] <= known[c.on_line[j]] ||
                !collide(&d->entries[j], &d->entries[i], &both))
                continue;
            *out = (struct recording_conflict){.first = j, .second = i, .range = both};
            describe(d, out);
            rc = 1;
        }
    }
    if (rc >= 0)
        clocks_close(&c);
    return rc;
}
