/* node_memory.h - one sealed memfd for all ranks of a host, made by rank 0 and opened by the
 * others. */
#ifndef GFS_COMM_NODE_MEMORY_H
#define GFS_COMM_NODE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct node_memory {
    int fd;        /* -1 when empty */
    uint8_t *base; /* mapping of all bytes */
    size_t bytes;
    size_t page_bytes; /* of the pages that the host gave */
};

/* Zeroed memory of at least `bytes`, sealed against shrinking and growing, mapped by all ranks. No
 * page of it is there before node_memory_claim. A collective: fails on all ranks or on none. */
int node_memory_open(uint32_t rank, size_t bytes, struct node_memory *out, struct err *err);
/* Gets the pages of [from, from + len) now, so that lack of memory is an error and not a SIGBUS
 * later. */
int node_memory_claim(const struct node_memory *m, size_t from_bytes, size_t len_bytes,
                      struct err *err);
/* Agrees on an outcome, which is also a barrier: rc where it is not 0, the worst of the others
 * elsewhere. A collective. */
int node_memory_agree(int rc, struct err *err);
void node_memory_close(struct node_memory *m);

#endif
