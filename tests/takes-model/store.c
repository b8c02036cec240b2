/* An open-addressing hash set over states kept in chunks, so that growing never copies them. */
#include "store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static uint64_t store_hash(const unsigned char *p, size_t n) {
    uint64_t h = UINT64_C(0x9e3779b97f4a7c15);
    uint64_t w;

    for (; n >= sizeof w; p += sizeof w, n -= sizeof w) {
        memcpy(&w, p, sizeof w);
        h = (h ^ w) * UINT64_C(0xff51afd7ed558ccd);
        h ^= h >> 32;
    }
    for (w = 0; n; n--)
        w = w << 8 | *p++;
    h = (h ^ w) * UINT64_C(0xc4ceb9fe1a85ec53);
    return h ^ h >> 29;
}

static unsigned char *store_at(const struct store *st, uint32_t i) {
    size_t in_chunk = i & ((1u << STORE_CHUNK_BITS) - 1);

    return st->chunk[i >> STORE_CHUNK_BITS] + in_chunk * st->state_bytes;
}

int store_open(struct store *st, size_t state_bytes) {
    memset(st, 0, sizeof *st);
    st->state_bytes = state_bytes;
    st->slot_count = 1u << 12;
    st->slot = calloc(st->slot_count, sizeof *st->slot);
    return st->slot ? 0 : -ENOMEM;
}

void store_close(struct store *st) {
    for (int i = 0; i < STORE_CHUNKS_MAX && st->chunk[i]; i++)
        free(st->chunk[i]);
    free(st->node);
    free(st->slot);
}

static int store_grow(struct store *st) {
    uint64_t n = st->slot_count * 2;
    uint64_t *slot = calloc(n, sizeof *slot);

    if (!slot)
        return -ENOMEM;
    for (uint64_t i = 0; i < st->slot_count; i++) {
        uint64_t e = st->slot[i];
        if (!e)
            continue;
        uint64_t h = store_hash(store_at(st, (uint32_t)e - 1), st->state_bytes) & (n - 1);
        while (slot[h])
            h = (h + 1) & (n - 1);
        slot[h] = e;
    }
    free(st->slot);
    st->slot = slot;
    st->slot_count = n;
    return 0;
}

static int store_append(struct store *st, const struct state *s, struct store_node node) {
    uint32_t c = st->count >> STORE_CHUNK_BITS;

    if (st->count == st->node_capacity) {
        uint32_t n = st->node_capacity ? st->node_capacity * 2 : 1u << 12;
        struct store_node *grown = realloc(st->node, (size_t)n * sizeof *grown);
        if (!grown)
            return -ENOMEM;
        st->node = grown;
        st->node_capacity = n;
    }
    if (c == STORE_CHUNKS_MAX)
        return -ENOMEM;
    if (!st->chunk[c])
        st->chunk[c] = malloc(st->state_bytes << STORE_CHUNK_BITS);
    if (!st->chunk[c])
        return -ENOMEM;
    st->node[st->count] = node;
    memcpy(store_at(st, st->count), s, st->state_bytes);
    st->count++;
    return 0;
}

int store_add(struct store *st, const struct state *s, struct store_node node, uint32_t *index) {
    uint64_t hash = store_hash((const unsigned char *)s, st->state_bytes);
    uint64_t high = hash >> 32 << 32;
    uint64_t i = hash & (st->slot_count - 1);

    for (; st->slot[i]; i = (i + 1) & (st->slot_count - 1)) {
        uint32_t at = (uint32_t)st->slot[i] - 1;
        if (st->slot[i] >> 32 == hash >> 32 && !memcmp(store_at(st, at), s, st->state_bytes)) {
            *index = at;
            return 0;
        }
    }
    if (store_append(st, s, node))
        return -ENOMEM;
    *index = st->count - 1;
    st->slot[i] = high | st->count;
    if ((uint64_t)st->count * 2 > st->slot_count && store_grow(st))
        return -ENOMEM;
    return 1;
}

void store_get(const struct store *st, uint32_t index, struct state *s) {
    memset(s, 0, sizeof *s);
    memcpy(s, store_at(st, index), st->state_bytes);
}
