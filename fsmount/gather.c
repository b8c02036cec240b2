/* gather.c - cutting pieces to a range; a bounded iovec. */
#include "config.h"

#include "fsmount/gather.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

int gather_open(struct gather *g) {
    *g = (struct gather){0};
    g->bounce = malloc(GATHER_MAX_BYTES);
    return g->bounce != NULL ? 0 : -ENOMEM;
}

void gather_close(struct gather *g) {
    free(g->bounce);
    g->bounce = NULL;
}

void gather_begin(struct gather *g, uint64_t offset_bytes, size_t size_bytes, uint64_t file_bytes) {
    uint64_t left = offset_bytes < file_bytes ? file_bytes - offset_bytes : 0;
    if (size_bytes > GATHER_MAX_BYTES)
        size_bytes = GATHER_MAX_BYTES;
    g->offset_bytes = offset_bytes;
    g->want_bytes = left < size_bytes ? (size_t)left : size_bytes;
    g->have_bytes = 0;
    g->error = 0;
    g->piece_count = 0;
    g->bounce_bytes = 0;
}

bool gather_wants(const struct gather *g, uint64_t at_bytes, uint64_t len_bytes) {
    uint64_t lo = g->offset_bytes, hi = g->offset_bytes + g->want_bytes;
    return at_bytes < hi && at_bytes + len_bytes > lo;
}

/* Through the kernel and not by memcpy: a mapped file that lost its end gives EFAULT, and no
 * SIGBUS. */
static int gather_copy(struct gather *g, const void *data, size_t len) {
    struct iovec to = {.iov_base = g->bounce + g->bounce_bytes, .iov_len = len};
    struct iovec from = {.iov_base = (void *)(uintptr_t)data, .iov_len = len};
    if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) != (ssize_t)len)
        return -EIO;
    g->bounce_bytes += len;
    g->pieces[GATHER_MAX_PIECES - 1] =
        (struct iovec){.iov_base = g->bounce, .iov_len = g->bounce_bytes};
    g->piece_count = GATHER_MAX_PIECES;
    return 0;
}

void gather_add(struct gather *g, uint64_t at_bytes, const void *data, uint64_t len_bytes) {
    uint64_t lo = g->offset_bytes, hi = g->offset_bytes + g->want_bytes;
    if (g->error != 0 || !gather_wants(g, at_bytes, len_bytes))
        return;
    uint64_t from = at_bytes > lo ? at_bytes : lo;
    uint64_t to = at_bytes + len_bytes < hi ? at_bytes + len_bytes : hi;
    if (from != lo + g->have_bytes) {
        g->error = -EIO;
        return;
    }
    const uint8_t *p = (const uint8_t *)data + (from - at_bytes);
    size_t len = (size_t)(to - from);
    if (g->piece_count >= GATHER_MAX_PIECES - 1)
        g->error = gather_copy(g, p, len);
    else
        g->pieces[g->piece_count++] =
            (struct iovec){.iov_base = (void *)(uintptr_t)p, .iov_len = len};
    g->have_bytes += len;
}

int gather_end(const struct gather *g) {
    if (g->error != 0)
        return g->error;
    return g->have_bytes == g->want_bytes ? 0 : -EIO;
}
