/* fake_ranks.c - the ranks: they answer as their mode says. */
#include "config.h"

#include "fake_parts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/segment.h"

struct fake_hold {
    struct fake_hold *next;
    struct msg_take take;
};

float fake_value(uint64_t epoch, uint64_t gen, uint32_t array, uint32_t unit, uint64_t elem) {
    uint64_t x = (epoch * 1000003 + gen) * 64 + array * 16 + unit;
    x = (x ^ elem * UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xbf58476d1ce4e5b9);
    return (float)(x >> 44) * 0.125f; /* 20 bits: exact, and never NaN */
}

static void fill(const struct fake_world *f, uint64_t gen, uint32_t array, uint32_t unit,
                 uint64_t first, uint64_t count, float *out) {
    for (uint64_t i = 0; i < count; i++)
        out[i] = fake_value(f->epoch, gen, array, unit, first + i);
}

static void rank_reply(struct fake_world *f, uint32_t r, const struct msg_take_reply *m, int fd) {
    if (f->ranks[r].link != NULL)
        msg_send(f->ranks[r].link, MSG_TAKE_REPLY, 0, m, &fd, fd >= 0 ? 1 : 0);
}

static struct msg_take_reply reply_to(const struct msg_take *t, enum take_state state, uint64_t gen,
                                      uint64_t step) {
    return (struct msg_take_reply){.session = t->session,
                                   .number = t->number,
                                   .try = t->try,
                                   .epoch = t->epoch,
                                   .state = state,
                                   .gen = gen,
                                   .step = step};
}

/* A fresh segment for each copy, with the copy at a place that is not its beginning. */
static void rank_copy(struct fake_world *f, uint32_t r, const struct msg_take *t, uint64_t gen) {
    struct fake_rank *k = &f->ranks[r];
    const struct layout_unit *u = &f->layout.units[t->unit];
    struct msg_take_reply m = reply_to(t, TAKE_COPY, gen, gen);
    struct segment s = SEGMENT_EMPTY;
    uint64_t bytes = (t->hi - t->lo) * TENSOR_ELEM_BYTES;
    if (segment_create("fake-take", bytes + 64, false, &s) != 0)
        fake_die("segment");
    m.offset_bytes = 64;
    fill(f, gen, t->array, t->unit, r * u->shard_elems + t->lo, t->hi - t->lo,
         (float *)(void *)(s.base + 64));
    m.segment = ++k->next_segment;
    m.segment_bytes = s.bytes;
    if (k->mode == FAKE_MISFITS)
        m.offset_bytes = (s.bytes - bytes / 2) & ~(uint64_t)3;
    rank_reply(f, r, &m, s.fd);
    segment_close(&s);
}

static void rank_hold(struct fake_rank *k, const struct msg_take *t) {
    struct fake_hold *h = calloc(1, sizeof(*h));
    h->take = *t;
    h->next = k->holds;
    k->holds = h;
}

static void rank_drop(struct fake_rank *k, uint64_t number) {
    for (struct fake_hold **at = &k->holds; *at != NULL;) {
        struct fake_hold *h = *at;
        if (h->take.number != number) {
            at = &h->next;
            continue;
        }
        *at = h->next;
        free(h);
    }
}

/* Every question is kept, for the agenda may fix it later. */
static void rank_answer(struct fake_world *f, uint32_t r, const struct msg_take *t) {
    struct fake_rank *k = &f->ranks[r];
    rank_drop(k, t->number);
    rank_hold(k, t);
    struct msg_take_reply m = reply_to(t, TAKE_NONE, 0, 0);
    if (t->array == ARRAY_GRADS && !f->has_grads) {
        rank_reply(f, r, &m, -1);
    } else if (t->want_gen > k->gen) {
        m.state = TAKE_HELD;
        rank_reply(f, r, &m, -1);
    } else if (t->want_gen != 0 && t->want_gen < k->gen) {
        m = reply_to(t, TAKE_PASSED, k->gen, k->gen);
        rank_reply(f, r, &m, -1);
    } else {
        rank_copy(f, r, t, k->gen);
    }
}

static void rank_noise(struct fake_world *f, uint32_t r, const struct msg_take *t) {
    struct msg_take strange[5] = {*t, *t, *t, *t, *t};
    strange[0].session++;
    strange[1].number += 1000000;
    strange[2].try += 7;
    strange[3].epoch--;
    strange[4].try--;
    for (int i = 0; i < 5; i++)
        rank_copy(f, r, &strange[i], f->ranks[r].gen + 40);
}

static void rank_send_unsealed(struct fake_world *f, uint32_t r, const struct msg_take *t) {
    int fd = memfd_create("unsealed", MFD_CLOEXEC);
    struct msg_take_reply m = reply_to(t, TAKE_COPY, f->ranks[r].gen, 0);
    m.segment = ++f->ranks[r].next_segment;
    m.segment_bytes = 8 << 20;
    if (fd < 0 || ftruncate(fd, 8 << 20) != 0)
        fake_die("memfd");
    rank_reply(f, r, &m, fd);
    close(fd);
}

static void rank_take(struct fake_world *f, uint32_t r, const struct msg_take *t) {
    struct fake_rank *k = &f->ranks[r];
    struct msg_take_reply m;
    k->takes_asked++;
    switch (k->mode) {
    case FAKE_SILENT:
        rank_hold(k, t);
        return;
    case FAKE_PASSES:
        rank_drop(k, t->number);
        rank_hold(k, t);
        m = reply_to(t, TAKE_PASSED, k->gen, k->gen);
        rank_reply(f, r, &m, -1);
        return;
    case FAKE_FAILS:
        m = reply_to(t, TAKE_FAILED, 0, 0);
        m.code = ENOBUFS;
        rank_reply(f, r, &m, -1);
        return;
    case FAKE_NOISY:
        rank_noise(f, r, t);
        rank_answer(f, r, t);
        rank_copy(f, r, t, k->gen + 50);
        return;
    case FAKE_GARBAGE:
        (void)!write(link_fd(k->link), "this is no frame at all, is it?", 31);
        return;
    case FAKE_UNSEALED:
        rank_send_unsealed(f, r, t);
        return;
    case FAKE_RUNS:
        for (uint32_t i = 0; i < 2 * f->world_size; i++)
            fake_rank_step(f, i % f->world_size);
        rank_answer(f, r, t);
        return;
    default:
        rank_answer(f, r, t);
    }
}

/* The agenda: all ranks at one boundary, the newest that any has reached. */
static void agenda_fix(struct fake_world *f, const struct msg_take_fix *m) {
    uint64_t gen = 0;
    for (uint32_t r = 0; r < f->world_size; r++)
        gen = f->ranks[r].gen > gen ? f->ranks[r].gen : gen;
    f->ranks[0].fixes++;
    for (uint32_t r = 0; r < f->world_size; r++) {
        f->ranks[r].gen = gen;
        for (struct fake_hold *h = f->ranks[r].holds; h != NULL; h = h->next)
            if (h->take.number == m->number)
                rank_copy(f, r, &h->take, gen);
    }
    f->gen = gen > f->gen ? gen : f->gen;
}

void fake_rank_frame(struct fake_world *f, uint32_t r, struct frame *fr) {
    union {
        struct msg_take take;
        struct msg_take_fix fix;
        struct msg_take_release release;
    } m;
    if (msg_decode(fr->type, fr->payload, fr->len_bytes, &m) != 0)
        fake_die("a malformed message to a rank");
    if (fr->type == MSG_TAKE)
        rank_take(f, r, &m.take);
    else if (fr->type == MSG_TAKE_FIX)
        agenda_fix(f, &m.fix);
    else if (fr->type == MSG_TAKE_RELEASE) {
        f->ranks[r].takes_released++;
        rank_drop(&f->ranks[r], m.release.number);
    }
}

void fake_rank_step(struct fake_world *f, uint32_t r) {
    struct fake_rank *k = &f->ranks[r];
    k->gen++;
    for (struct fake_hold *h = k->holds; h != NULL; h = h->next)
        if (h->take.want_gen == k->gen && k->mode != FAKE_SILENT)
            rank_copy(f, r, &h->take, k->gen);
}

/* The whole dump of a rank at a version. */
struct segment fake_rank_dump(const struct fake_world *f, uint32_t r, uint32_t mask, uint64_t gen) {
    struct segment s;
    uint64_t bytes = layout_dump_bytes(&f->layout, mask, r);
    if (segment_create("fake-dump", bytes, false, &s) != 0)
        fake_die("segment");
    for (uint32_t a = 0; a < ARRAY_COUNT; a++) {
        for (uint32_t u = 0; (mask >> a & 1) != 0 && u < f->layout.unit_count; u++) {
            uint64_t at = layout_dump_offset(&f->layout, mask, r, (enum array)a, u);
            fill(f, gen, a, u, r * f->layout.units[u].shard_elems,
                 layout_shard_valid(&f->layout, u, r), (float *)(void *)(s.base + at));
        }
    }
    return s;
}

void fake_send_wide(struct fake_world *f, uint64_t take, uint32_t mask, uint64_t gen) {
    for (uint32_t r = 0; r < f->world_size; r++) {
        struct segment s = fake_rank_dump(f, r, mask, gen);
        struct msg_wide_segment m = {.take = take,
                                     .epoch = f->epoch,
                                     .gen = gen,
                                     .step = gen,
                                     .array_mask = mask,
                                     .bytes = layout_dump_bytes(&f->layout, mask, r)};
        if (f->ranks[r].link != NULL)
            msg_send(f->ranks[r].link, MSG_WIDE_SEGMENT, 0, &m, &s.fd, 1);
        segment_close(&s);
    }
}

void fake_rank_gone(struct fake_rank *k) {
    /* A test may have forked: its child has the descriptor too. */
    if (k->link != NULL)
        shutdown(link_fd(k->link), SHUT_RDWR);
    link_close(k->link);
    k->link = NULL;
    k->dead = true;
    while (k->holds != NULL)
        rank_drop(k, k->holds->take.number);
}

void fake_rank_hangup(struct fake_world *f, uint32_t r) { fake_rank_gone(&f->ranks[r]); }
