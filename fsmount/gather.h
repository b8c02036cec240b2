/* gather.h - the answer to one READ: pieces of memory in file order, cut to the range that was
 * asked for. */
#ifndef GFS_FSMOUNT_GATHER_H
#define GFS_FSMOUNT_GATHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

enum {
    GATHER_MAX_BYTES = 1 << 20, /* largest READ */
    GATHER_MAX_PIECES = 1000,   /* one writev, with the header of the reply */
    GATHER_SMALL_BYTES = 256,
};

/* Pieces beyond GATHER_MAX_PIECES are copied to the bounce buffer, which is then the last piece. */
struct gather {
    uint64_t offset_bytes; /* first byte wanted */
    size_t want_bytes, have_bytes;
    int error; /* negative errno */
    int piece_count;
    struct iovec pieces[GATHER_MAX_PIECES];
    uint8_t small[GATHER_SMALL_BYTES]; /* for a header that is made for this reply */
    uint8_t *bounce;                   /* owned, GATHER_MAX_BYTES */
    size_t bounce_bytes;
};

/* The bounce buffer: 0 or -ENOMEM. One gather serves all replies, one after the other. */
int gather_open(struct gather *g);
void gather_close(struct gather *g);

/* Begins an answer of `size` bytes at `offset` of a file of file_bytes: cut to the file, and to
 * GATHER_MAX_BYTES. */
void gather_begin(struct gather *g, uint64_t offset_bytes, size_t size_bytes, uint64_t file_bytes);
/* True while bytes of [at, at + len) are wanted. */
bool gather_wants(const struct gather *g, uint64_t at_bytes, uint64_t len_bytes);
/* The file holds `data` at at_bytes. Pieces come in file order without holes; else, or if the
 * memory can't be read, the answer becomes -EIO. The memory must stay until the reply is sent. */
void gather_add(struct gather *g, uint64_t at_bytes, const void *data, uint64_t len_bytes);
/* 0 if all that was wanted is there; else -EIO or what failed. */
int gather_end(const struct gather *g);

#endif
