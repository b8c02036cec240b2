/* slots.h - requests in flight, in memory that outlives the daemon: uniques at fixed places. */
#ifndef GFS_FSMOUNT_SLOTS_H
#define GFS_FSMOUNT_SLOTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where a unique stands is derived from it, or is the next free place after that. */
struct slots {
    uint64_t *at; /* mapped, shared; NULL: nothing is recorded */
    size_t count;
};

enum { SLOTS_DEFAULT_BYTES = 512 << 10 };

/* Maps the memfd, of any size (an empty one is made SLOTS_DEFAULT_BYTES large). Takes over fd. */
int slots_open(int fd, struct slots *out);
void slots_close(struct slots *s);

/* False when all places are taken. */
bool slots_add(struct slots *s, uint64_t unique);
void slots_remove(struct slots *s, uint64_t unique);
bool slots_has(const struct slots *s, uint64_t unique);

#endif
