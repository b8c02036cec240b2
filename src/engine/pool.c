/* pool.c - first fit over the pages of a few segments. Takes are few and large or many and small: a
 * segment of its own for each would run into the limit of descriptors, one segment for all into the
 * cost of touching it. */
#include "config.h"

#include "engine/pool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/segment.h"

enum { POOL_PAGE_BYTES = 4096, POOL_SEGMENT_BYTES = 16 << 20 };

struct pool_segment {
    struct pool_segment *next;
    uint64_t id;
    struct segment memory;
    size_t page_count, free_pages, hint; /* hint: no free page before it */
    uint8_t *used;                       /* a byte a page */
};

struct pool {
    struct pool_segment *segments;
    uint64_t last_id;
    size_t limit_bytes, used_bytes;
};

struct pool *pool_open(size_t limit_bytes) {
    struct pool *p = calloc(1, sizeof(*p));
    if (p != NULL)
        p->limit_bytes = limit_bytes;
    return p;
}

void pool_set_limit(struct pool *p, size_t limit_bytes) { p->limit_bytes = limit_bytes; }

static void pool_segment_free(struct pool_segment *s) {
    segment_close(&s->memory);
    free(s->used);
    free(s);
}

void pool_forget(struct pool *p) {
    while (p->segments != NULL) {
        struct pool_segment *s = p->segments;
        p->segments = s->next;
        pool_segment_free(s);
    }
    p->used_bytes = 0;
}

void pool_close(struct pool *p) {
    if (p == NULL)
        return;
    pool_forget(p);
    free(p);
}

/* First page of a run of `pages` free ones, or page_count. */
static size_t pool_segment_find(struct pool_segment *s, size_t pages) {
    if (s->free_pages < pages)
        return s->page_count;
    size_t run = 0;
    for (size_t i = s->hint; i < s->page_count; i++) {
        run = s->used[i] != 0 ? 0 : run + 1;
        if (run == pages)
            return i + 1 - pages;
    }
    return s->page_count;
}

static struct pool_segment *pool_grow(struct pool *p, size_t pages) {
    size_t bytes = pages * POOL_PAGE_BYTES;
    size_t usual = POOL_SEGMENT_BYTES; /* more than the limit is never used */
    if (usual > p->limit_bytes)
        usual = p->limit_bytes / POOL_PAGE_BYTES * POOL_PAGE_BYTES;
    if (bytes < usual)
        bytes = usual;
    struct pool_segment *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return NULL;
    s->memory = SEGMENT_EMPTY;
    s->used = calloc(bytes / POOL_PAGE_BYTES, 1);
    if (s->used == NULL || segment_create("gatherfs-take", bytes, true, &s->memory) != 0) {
        pool_segment_free(s);
        return NULL;
    }
    s->page_count = s->free_pages = bytes / POOL_PAGE_BYTES;
    s->id = ++p->last_id;
    /* Small ones first, so that small parts do not break up the large ones. */
    struct pool_segment **at = &p->segments;
    while (*at != NULL && (*at)->page_count <= s->page_count)
        at = &(*at)->next;
    s->next = *at;
    *at = s;
    return s;
}

int pool_get(struct pool *p, size_t bytes, struct pool_part *out) {
    size_t pages = bytes / POOL_PAGE_BYTES + (bytes % POOL_PAGE_BYTES != 0);
    if (pages == 0)
        pages = 1;
    size_t size = pages * POOL_PAGE_BYTES;
    if (bytes > p->limit_bytes || p->used_bytes > p->limit_bytes ||
        size > p->limit_bytes - p->used_bytes)
        return -ENOBUFS;
    struct pool_segment *s = p->segments;
    size_t at = 0;
    for (; s != NULL; s = s->next) {
        at = pool_segment_find(s, pages);
        if (at < s->page_count)
            break;
    }
    if (s == NULL) {
        s = pool_grow(p, pages);
        at = 0;
    }
    if (s == NULL)
        return -ENOBUFS;
    memset(s->used + at, 1, pages);
    s->free_pages -= pages;
    if (at == s->hint)
        s->hint = at + pages;
    p->used_bytes += size;
    *out = (struct pool_part){.segment = s->id,
                              .fd = s->memory.fd,
                              .segment_bytes = s->memory.bytes,
                              .offset_bytes = at * POOL_PAGE_BYTES,
                              .bytes = size,
                              .base = s->memory.base + at * POOL_PAGE_BYTES};
    return 0;
}

void pool_put(struct pool *p, struct pool_part *part) {
    if (part->segment == 0)
        return;
    for (struct pool_segment *s = p->segments; s != NULL; s = s->next) {
        if (s->id != part->segment)
            continue;
        size_t at = part->offset_bytes / POOL_PAGE_BYTES, pages = part->bytes / POOL_PAGE_BYTES;
        memset(s->used + at, 0, pages);
        s->free_pages += pages;
        if (at < s->hint)
            s->hint = at;
        p->used_bytes -= part->bytes;
        break;
    }
    *part = (struct pool_part){0};
}

size_t pool_used_bytes(const struct pool *p) { return p->used_bytes; }
