/* versions.c - a short sorted list of versions and the times they got. */
#include "config.h"

#include "fsmount/versions.h"

#include <string.h>

static int version_compare(const struct version_time *a, uint64_t epoch, uint64_t gen) {
    if (a->epoch != epoch)
        return a->epoch < epoch ? -1 : 1;
    return a->gen == gen ? 0 : a->gen < gen ? -1 : 1;
}

/* How many of the kept ones come before (epoch, gen). */
static uint32_t versions_before(const struct versions *v, uint64_t epoch, uint64_t gen) {
    uint32_t i = v->count;
    while (i > 0 && version_compare(&v->kept[i - 1], epoch, gen) >= 0)
        i--;
    return i;
}

uint64_t versions_time(struct versions *v, uint64_t epoch, uint64_t gen, uint64_t time_ns) {
    uint32_t at = versions_before(v, epoch, gen);
    if (at < v->count && version_compare(&v->kept[at], epoch, gen) == 0)
        return v->kept[at].time_ns;
    uint64_t least = at > 0 ? v->kept[at - 1].time_ns + 1 : 0;
    uint64_t most = at < v->count ? v->kept[at].time_ns - 1 : UINT64_MAX;
    if (time_ns > most)
        time_ns = most;
    if (time_ns < least)
        time_ns = least;
    if (at == 0 && v->count == VERSIONS_KEPT)
        return time_ns; /* older than all that are kept */
    if (v->count == VERSIONS_KEPT) {
        memmove(&v->kept[0], &v->kept[1], (VERSIONS_KEPT - 1) * sizeof(v->kept[0]));
        v->count--;
        at--;
    }
    memmove(&v->kept[at + 1], &v->kept[at], (v->count - at) * sizeof(v->kept[0]));
    v->kept[at] = (struct version_time){.epoch = epoch, .gen = gen, .time_ns = time_ns};
    v->count++;
    return time_ns;
}
