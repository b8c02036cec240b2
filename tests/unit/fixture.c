/* fixture.c - temporary directories, descriptor counts, and a small generator (xorshift64*). */
#include "config.h"

#include "fixture.h"

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int fixture_dir_make(void **state) {
    const char *tmp = getenv("TMPDIR");
    char path[4096];
    char *real = realpath(tmp != NULL && *tmp != '\0' ? tmp : "/tmp", NULL);
    if (real == NULL)
        return -1;
    int n = snprintf(path, sizeof(path), "%s/gfs-unit.XXXXXX", real);
    free(real);
    if (n < 0 || (size_t)n >= sizeof(path) || mkdtemp(path) == NULL)
        return -1;
    *state = strdup(path);
    return *state != NULL ? 0 : -1;
}

static int fixture_remove_entry(const char *path, const struct stat *st, int type,
                                struct FTW *where) {
    (void)st;
    (void)type;
    (void)where;
    return remove(path);
}

int fixture_dir_remove(void **state) {
    int rc = nftw(*state, fixture_remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    free(*state);
    return rc;
}

int fixture_fd_count(void) {
    DIR *dir = opendir("/proc/self/fd");
    if (dir == NULL)
        return -1;
    int n = -1; /* that of dir is not counted */
    struct dirent *entry;
    while ((entry = readdir(dir)) != NULL)
        n += entry->d_name[0] != '.';
    closedir(dir);
    return n;
}

uint64_t fixture_random(uint64_t *seed) {
    uint64_t x = *seed;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *seed = x;
    return x * UINT64_C(0x2545F4914F6CDD1D);
}
