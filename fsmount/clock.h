/* clock.h - now, in nanoseconds: of the monotonic clock for deadlines, of the real one for mtimes.
 */
#ifndef GFS_FSMOUNT_CLOCK_H
#define GFS_FSMOUNT_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_ns(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}
static inline uint64_t clock_now(void) { return clock_ns(CLOCK_MONOTONIC); }
static inline uint64_t clock_wall(void) { return clock_ns(CLOCK_REALTIME); }

#endif
