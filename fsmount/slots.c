/* slots.c - an open-addressed table without tombstones: removal searches past holes. */
#include "config.h"

#include "fsmount/slots.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int slots_open(int fd, struct slots *out) {
    struct stat st;
    int rc = 0;
    *out = (struct slots){0};
    if (fstat(fd, &st) != 0)
        goto failed;
    if (st.st_size == 0) {
        st.st_size = SLOTS_DEFAULT_BYTES;
        if (ftruncate(fd, st.st_size) != 0)
            goto failed;
    }
    out->count = (size_t)st.st_size / sizeof(uint64_t);
    void *base = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED || out->count == 0)
        goto failed;
    out->at = base;
    close(fd);
    return 0;
failed:
    rc = errno != 0 ? -errno : -EINVAL;
    *out = (struct slots){0};
    close(fd);
    return rc;
}

void slots_close(struct slots *s) {
    if (s->at != NULL)
        munmap(s->at, s->count * sizeof(*s->at));
    *s = (struct slots){0};
}

/* Uniques are even and ascend; bit 63 marks one that was sent again. */
static size_t slots_home(const struct slots *s, uint64_t unique) {
    return (size_t)((unique & ~(UINT64_C(1) << 63)) / 2 % s->count);
}

/* The first place from the home of `unique` on that holds `what`; count when there is none. */
static size_t slots_find(const struct slots *s, uint64_t unique, uint64_t what) {
    size_t home = s->count != 0 ? slots_home(s, unique) : 0;
    for (size_t i = 0; i < s->count; i++) {
        size_t at = home + i < s->count ? home + i : home + i - s->count;
        if (s->at[at] == what)
            return at;
    }
    return s->count;
}

bool slots_add(struct slots *s, uint64_t unique) {
    size_t at = slots_find(s, unique, 0);
    if (at == s->count)
        return false;
    s->at[at] = unique;
    return true;
}

/* Ends at the place itself, mostly at once: a request that is recorded stands somewhere from its
 * home on. */
void slots_remove(struct slots *s, uint64_t unique) {
    size_t at = slots_find(s, unique, unique);
    if (at != s->count)
        s->at[at] = 0;
}

bool slots_has(const struct slots *s, uint64_t unique) {
    return s->count != 0 && slots_find(s, unique, unique) != s->count;
}
