/* emu_race_shadow.c - the cells, and what happens before what. */
#include "config.h"

#include "tests/cuda/emu_race_shadow.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { READERS = 2, GRANULE = 4, PAGE = 4096, ELSEWHERE_MAX = 64, SPLIT_MAX = 1 << 24 };

struct granule {
    struct emu_cell write, read[READERS];
};

/* Watched memory lies in one window, and its cells in another, which is touched as it is used. */
static const uintptr_t WINDOW_START = (uintptr_t)0x200000000000;
static const size_t WINDOW_BYTES = (size_t)16 << 30;
static struct granule *window_cells;
static size_t window_used;

/* The cells of two halves; free ones are listed by write.clock of the first. */
static struct granule (*halves)[2];
static uint32_t halves_used, halves_free;

/* Registered memory is where the host has it. */
static struct elsewhere {
    uintptr_t start;
    size_t bytes;
    struct granule *cells;
} elsewhere[ELSEWHERE_MAX];
static size_t elsewhere_count;

static void *reserve(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED) {
        fprintf(stderr, "races: no memory for the shadow\n");
        abort();
    }
    return p;
}

void *emu_shadow_place(size_t bytes) {
    if (window_cells == NULL) {
        void *window = (void *)WINDOW_START;
        if (mmap(window, WINDOW_BYTES, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1,
                 0) != window) {
            fprintf(stderr, "races: the window is taken\n");
            abort();
        }
        window_cells = reserve(WINDOW_BYTES / GRANULE * sizeof *window_cells);
    }
    size_t span = (bytes + PAGE - 1) / PAGE * PAGE;
    if (span > WINDOW_BYTES - window_used) {
        fprintf(stderr, "races: more memory than can be watched\n");
        abort();
    }
    void *p = (void *)(WINDOW_START + window_used);
    window_used += span;
    return p;
}

void emu_shadow_watch(const void *start, size_t bytes) {
    if ((uintptr_t)start - WINDOW_START < WINDOW_BYTES)
        return;
    if (elsewhere_count == ELSEWHERE_MAX) {
        fprintf(stderr, "races: more than %d registrations\n", ELSEWHERE_MAX);
        abort();
    }
    uintptr_t from = (uintptr_t)start / GRANULE * GRANULE;
    size_t span = (uintptr_t)start + bytes - from;
    elsewhere[elsewhere_count++] = (struct elsewhere){
        from, span, reserve((span + GRANULE - 1) / GRANULE * sizeof(struct granule))};
}

void emu_shadow_unwatch(const void *start) {
    uintptr_t from = (uintptr_t)start / GRANULE * GRANULE;
    for (size_t i = 0; i < elsewhere_count; i++) {
        struct elsewhere *e = &elsewhere[i];
        if (e->start != from)
            continue;
        munmap(e->cells, (e->bytes + GRANULE - 1) / GRANULE * sizeof(struct granule));
        *e = elsewhere[--elsewhere_count];
        return;
    }
}

static struct granule *granule_of(uintptr_t p) {
    if (p - WINDOW_START < window_used)
        return &window_cells[(p - WINDOW_START) / GRANULE];
    for (size_t i = 0; i < elsewhere_count; i++)
        if (p - elsewhere[i].start < elsewhere[i].bytes)
            return &elsewhere[i].cells[(p - elsewhere[i].start) / GRANULE];
    return NULL;
}

bool emu_shadow_watches(const void *p) {
    return (uintptr_t)p - WINDOW_START < window_used ||
           (elsewhere_count > 0 && granule_of((uintptr_t)p) != NULL);
}

/* ---- order ---- */

static bool used(const struct emu_cell *c) { return (c->flags & EMU_CELL_USED) != 0; }

static bool same_operation(const struct emu_cell *c, const struct emu_cell *now) {
    return c->actor == now->actor && c->clock == now->clock;
}

static bool same_warp(const struct emu_cell *c, const struct emu_cell *now) {
    return (c->flags & EMU_CELL_WARPS) == 0 && c->thread / 32 == now->thread / 32;
}

/* Within one operation: c happens before the access that comes now. */
static bool ordered_in_kernel(const struct emu_cell *c, const struct emu_cell *now) {
    if ((c->flags & EMU_CELL_KERNEL) == 0)
        return true; /* a copy does not race with itself */
    if ((c->flags & EMU_CELL_BLOCKS) != 0 || c->block != now->block)
        return false;
    if (c->barrier < now->barrier)
        return true;
    if (!same_warp(c, now))
        return false;
    if (c->warp_sync < now->warp_sync)
        return true;
    return (c->flags & EMU_CELL_LANES) == 0 && c->thread == now->thread;
}

static bool ordered(const struct emu_cell *c, const struct emu_accessor *a) {
    return same_operation(c, &a->cell) ? ordered_in_kernel(c, &a->cell)
                                       : c->clock <= a->knows->of[c->actor];
}

static bool conflicts(const struct emu_cell *c, const struct emu_accessor *a) {
    return used(c) && (c->flags & a->cell.flags & EMU_CELL_ATOMIC) == 0 && !ordered(c, a);
}

/* ---- what is kept ---- */

/* c, of the same operation, stands for the access that comes now as well. */
static void merge(struct emu_cell *c, const struct emu_cell *now) {
    struct emu_cell was = *c;
    *c = *now;
    if (ordered_in_kernel(&was, now))
        return;
    if ((was.flags & EMU_CELL_ATOMIC) == 0)
        c->flags &= (uint8_t)~EMU_CELL_ATOMIC;
    c->flags |= was.flags & (EMU_CELL_LANES | EMU_CELL_WARPS | EMU_CELL_BLOCKS);
    if (was.block != now->block)
        c->flags |= EMU_CELL_BLOCKS;
    else if (!same_warp(&was, now))
        c->flags |= EMU_CELL_WARPS;
    else
        c->flags |= EMU_CELL_LANES;
}

static void keep_write(struct granule *g, const struct emu_cell *now) {
    /* Atomics of one kernel do not replace each other: none of them comes first. */
    if (used(&g->write) && same_operation(&g->write, now) &&
        (g->write.flags & now->flags & EMU_CELL_ATOMIC) != 0)
        merge(&g->write, now);
    else
        g->write = *now;
    for (int r = 0; r < READERS; r++)
        g->read[r].flags = 0;
}

static void keep_read(struct granule *g, const struct emu_accessor *a) {
    int slot = -1;
    for (int r = 0; r < READERS; r++)
        if (used(&g->read[r]) && same_operation(&g->read[r], &a->cell)) {
            merge(&g->read[r], &a->cell);
            return;
        }
    for (int r = 0; r < READERS && slot < 0; r++)
        if (!used(&g->read[r]) || ordered(&g->read[r], a))
            slot = r;
    g->read[slot < 0 ? (int)(a->cell.clock % READERS) : slot] = a->cell;
}

/* ---- halves ---- */

static struct granule *halves_of(const struct granule *g) { return halves[g->write.clock]; }

static struct granule *split(struct granule *g) {
    if (halves == NULL)
        halves = reserve(SPLIT_MAX * sizeof *halves);
    uint32_t at = halves_free;
    if (at != 0) {
        halves_free = halves[at][0].write.clock;
    } else {
        at = ++halves_used;
        if (at == SPLIT_MAX) {
            fprintf(stderr, "races: too many halves\n");
            abort();
        }
    }
    halves[at][0] = halves[at][1] = *g;
    g->write.flags = EMU_CELL_SPLIT;
    g->write.clock = at;
    return halves[at];
}

/* A write of all four bytes has made both the same. */
static void unite(struct granule *g) {
    uint32_t at = g->write.clock;
    *g = halves[at][0];
    halves[at][0].write.clock = halves_free;
    halves_free = at;
}

/* ---- an access ---- */

struct access {
    const struct emu_accessor *by;
    bool write, in_shared;
    /* what it races with */
    bool races, wrote;
    struct emu_cell other;
    uintptr_t at;
};

/* Shared memory of another block or kernel is other memory. */
static void forget_other_blocks(struct granule *g, const struct emu_cell *now) {
    if (!same_operation(&g->write, now) || g->write.block != now->block)
        g->write.flags = 0;
    for (int r = 0; r < READERS; r++)
        if (!same_operation(&g->read[r], now) || g->read[r].block != now->block)
            g->read[r].flags = 0;
}

static void note_race(struct access *a, const struct emu_cell *other, bool wrote, uintptr_t at) {
    if (a->races)
        return;
    a->races = true;
    a->wrote = wrote;
    a->other = *other;
    a->at = at;
}

static void access_cells(struct granule *g, struct access *a, uintptr_t at) {
    if (a->in_shared)
        forget_other_blocks(g, &a->by->cell);
    if (conflicts(&g->write, a->by))
        note_race(a, &g->write, true, at);
    for (int r = 0; a->write && r < READERS; r++)
        if (conflicts(&g->read[r], a->by))
            note_race(a, &g->read[r], false, at);
    if (a->write)
        keep_write(g, &a->by->cell);
    else
        keep_read(g, a->by);
}

/* first, second: which halves of the four bytes at q. */
static void access_granule(struct granule *g, struct access *a, uintptr_t q, bool first,
                           bool second) {
    bool is_split = (g->write.flags & EMU_CELL_SPLIT) != 0;
    if (!is_split && first && second) {
        access_cells(g, a, q);
        return;
    }
    struct granule *h = is_split ? halves_of(g) : split(g);
    if (first)
        access_cells(&h[0], a, q);
    if (second)
        access_cells(&h[1], a, q + 2);
    if (first && second && a->write)
        unite(g);
}

bool emu_shadow_access(const struct emu_accessor *by, const void *p, size_t bytes, bool write,
                       bool in_shared, struct emu_cell *other, bool *wrote, const void **at) {
    struct access a = {.by = by, .write = write, .in_shared = in_shared};
    uintptr_t from = (uintptr_t)p, to = from + bytes;
    for (uintptr_t q = from / GRANULE * GRANULE; q < to; q += GRANULE) {
        struct granule *g = granule_of(q);
        if (g != NULL)
            access_granule(g, &a, q, from<q + 2, to> q + 2);
    }
    if (!a.races)
        return false;
    *other = a.other;
    *wrote = a.wrote;
    *at = (const void *)(a.at < from ? from : a.at);
    return true;
}
