/* versions.h - the time of each version: what a file's mtime shows. Strictly increasing with
 * (epoch, gen). */
#ifndef GFS_FSMOUNT_VERSIONS_H
#define GFS_FSMOUNT_VERSIONS_H

#include <stdint.h>

enum { VERSIONS_KEPT = 256 };

struct version_time {
    uint64_t epoch, gen, time_ns;
};

/* The newest versions, ascending. Plain data, zero-initialised. */
struct versions {
    struct version_time kept[VERSIONS_KEPT];
    uint32_t count;
};

/* The time of a version. Asked for the first time, it gets time_ns, moved as far as the order of
 * its neighbours demands; after that it never changes while it is kept. */
uint64_t versions_time(struct versions *v, uint64_t epoch, uint64_t gen, uint64_t time_ns);

#endif
