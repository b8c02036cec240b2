/* A set of states, each with the move that first reached it. */
#ifndef TAKES_MODEL_STORE_H
#define TAKES_MODEL_STORE_H

#include "model.h"

#include <stdint.h>

#define STORE_NONE UINT32_MAX

struct store_node {
    uint32_t parent;
    struct move move;
};

enum { STORE_CHUNK_BITS = 14, STORE_CHUNKS_MAX = 1 << 14 };

struct store {
    size_t state_bytes;
    uint32_t count;
    uint64_t *slot; /* high half: hash; low half: index + 1, 0 for an empty slot */
    uint64_t slot_count;
    struct store_node *node;
    uint32_t node_capacity;
    unsigned char *chunk[STORE_CHUNKS_MAX];
};

/* 0 or -ENOMEM. */
int store_open(struct store *st, size_t state_bytes);
void store_close(struct store *st);

/* Finds s or adds it. 1: added, 0: it was there, or -ENOMEM; index is set unless it failed. */
int store_add(struct store *st, const struct state *s, struct store_node node, uint32_t *index);

void store_get(const struct store *st, uint32_t index, struct state *s);

#endif
