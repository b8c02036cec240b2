/* segment.h - shared memory segments: sealed memfds of fixed size, touched before they are used. */
#ifndef GFS_BASE_SEGMENT_H
#define GFS_BASE_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct segment {
    int fd;        /* owned; -1 when empty */
    uint8_t *base; /* mapping of all bytes; NULL when not mapped */
    size_t bytes;  /* a multiple of the page size */
};

#define SEGMENT_EMPTY ((struct segment){.fd = -1})

/* A fresh segment of at least `bytes`: memfd, fallocated (-ENOMEM early, never SIGBUS later),
 * sealed against shrinking and growing, mapped read-write; all pages touched (with huge pages where
 * the host has them) if touch. */
int segment_create(const char *name, size_t bytes, bool touch, struct segment *out);

/* Maps a peer's segment read-only. Checks that it is a memfd sealed against shrinking and at least
 * min_bytes large: -EPROTO else. Takes over fd, also on failure. */
int segment_adopt(int fd, size_t min_bytes, bool writable, struct segment *out);

void segment_close(struct segment *s);

/* Anonymous private memory, huge-page backed, for big long-lived buffers; zeroed. NULL on failure.
 */
void *segment_private_alloc(size_t bytes);
void segment_private_free(void *p, size_t bytes);

#endif
