/* mountpoint.c - mountinfo, bdi, umount2 and fusermount3. */
#include "config.h"

#include "fsmount/mountpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "base/log.h"

extern char **environ;

/* In place: \040 and the like are characters that would end a field. */
static void unescape(char *s) {
    char *to = s;
    for (; *s != '\0'; s++, to++) {
        if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' &&
            s[3] >= '0' && s[3] <= '7') {
            *to = (char)((s[1] - '0') * 64 + (s[2] - '0') * 8 + (s[3] - '0'));
            s += 3;
        } else {
            *to = *s;
        }
    }
    *to = '\0';
}

int mountpoint_device(const char *path, char *out, size_t cap_bytes) {
    FILE *f = fopen("/proc/self/mountinfo", "re");
    char *line = NULL;
    size_t cap = 0;
    int rc = -ENOENT;
    if (f == NULL)
        return -errno;
    while (getline(&line, &cap, f) > 0) {
        char *save = NULL, *field[5] = {NULL};
        for (int i = 0; i < 5; i++)
            field[i] = strtok_r(i == 0 ? line : NULL, " ", &save);
        if (field[4] == NULL)
            continue;
        unescape(field[4]);
        if (strcmp(field[4], path) == 0 && strlen(field[2]) < cap_bytes) {
            memcpy(out, field[2], strlen(field[2]) + 1);
            rc = 0;
        }
    }
    free(line);
    fclose(f);
    return rc;
}

void mountpoint_read_ahead(const char *device, unsigned kib) {
    char path[128], value[16];
    snprintf(path, sizeof(path), "/sys/class/bdi/%s/read_ahead_kb", device);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    int n = snprintf(value, sizeof(value), "%u", kib);
    if (write(fd, value, (size_t)n) != n)
        log_debug("%s: %s", path, strerror(errno));
    close(fd);
}

void mountpoint_detach(const char *path, const char *device, pid_t *helper) {
    char now[64];
    *helper = 0;
    if (mountpoint_device(path, now, sizeof(now)) != 0 ||
        (device[0] != '\0' && strcmp(now, device) != 0))
        return;
    if (umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW) == 0)
        return;
    char *argv[] = {"fusermount3", "-u", "-z", "-q", "--", (char *)(size_t)path, NULL};
    int rc = posix_spawnp(helper, "fusermount3", NULL, NULL, argv, environ);
    if (rc != 0) {
        log_error("%s can't be unmounted: fusermount3: %s", path, strerror(rc));
        *helper = 0;
    }
}
