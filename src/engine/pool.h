/* pool.h - memory for takes: parts of shared segments that are touched once and reused. Service
 * thread only. */
#ifndef GFS_ENGINE_POOL_H
#define GFS_ENGINE_POOL_H

#include <stddef.h>
#include <stdint.h>

struct pool;

struct pool_part {
    uint64_t segment;     /* id of the segment, from 1; 0: no part */
    int fd;               /* of the segment; borrowed */
    size_t segment_bytes; /* whole segment */
    size_t offset_bytes;  /* of the part */
    size_t bytes;         /* reserved for it: whole pages */
    uint8_t *base;
};

/* limit_bytes: what all parts together may take. NULL: no memory. */
struct pool *pool_open(size_t limit_bytes);
void pool_close(struct pool *p);
/* May be less than what is handed out: nothing more is until it is below again. */
void pool_set_limit(struct pool *p, size_t limit_bytes);
/* -ENOBUFS beyond the limit or when the host has no memory. */
int pool_get(struct pool *p, size_t bytes, struct pool_part *out);
/* The part may be handed out again at once: whoever reads it must have let go. An empty part is
 * fine. */
void pool_put(struct pool *p, struct pool_part *part);
/* Lets all segments go, with all parts: who has mapped them may keep them, nobody writes them
 * again. Ids go on. */
void pool_forget(struct pool *p);
size_t pool_used_bytes(const struct pool *p);

#endif
