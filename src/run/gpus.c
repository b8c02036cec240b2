/* gpus.c - `gatherfs-rank --devices`, and what it says. */
#include "config.h"

#include "run/gpus.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "run/child.h"
#include "run/launch.h"
#include "run/loop.h"

/* A driver that wakes eight GPUs takes some seconds. */
enum { GPUS_TEXT_BYTES = 65536, GPUS_WAIT_MS = 60000 };

/* "INDEX NAME BYTES bytes", and the index is the next one. */
static bool is_gpu(const char *line, uint32_t index) {
    static const char digits[] = "0123456789";
    char start[16];
    int n = snprintf(start, sizeof start, "%" PRIu32 " ", index);
    const char *last = strrchr(line, ' '), *bytes = last;
    if (strncmp(line, start, (size_t)n) != 0 || strcmp(last, " bytes") != 0)
        return false;
    while (bytes > line && bytes[-1] != ' ')
        bytes--;
    return bytes > line + n && strspn(bytes, digits) == (size_t)(last - bytes);
}

uint32_t gpus_parse(char *text, char *why, size_t cap_bytes) {
    uint32_t count = 0;
    why[0] = '\0';
    for (char *line; (line = strsep(&text, "\n")) != NULL;) {
        if (is_gpu(line, count))
            count++;
        else if (*line)
            snprintf(why, cap_bytes, "%s", line);
    }
    if (count > 0)
        why[0] = '\0';
    return count;
}

/* Until the end of the pipe. 0, -ETIMEDOUT, -errno. */
static int read_all(int fd, char *out, size_t cap_bytes) {
    uint64_t start = loop_now_ns();
    size_t n = 0;
    ssize_t got = 1;
    while (got > 0 && n < cap_bytes - 1) {
        uint64_t gone_ms = (loop_now_ns() - start) / 1000000u;
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (gone_ms >= GPUS_WAIT_MS || poll(&p, 1, GPUS_WAIT_MS - (int)gone_ms) == 0)
            return -ETIMEDOUT;
        got = read(fd, out + n, cap_bytes - 1 - n);
        if (got < 0 && errno == EINTR)
            got = 1;
        else if (got > 0)
            n += (size_t)got;
    }
    out[n] = '\0';
    return got < 0 ? -errno : 0;
}

static int ask(const char *device, char *text, size_t cap_bytes, struct err *err) {
    char program[RUNDIR_PATH_BYTES];
    int fds[2];
    pid_t pid;
    int rc = launch_program(program, sizeof program, err);
    if (rc)
        return rc;
    if (pipe2(fds, O_CLOEXEC))
        return err_set(err, errno, "no pipe: %s", strerror(errno));
    const char *argv[] = {program, "--devices", device, NULL};
    struct child_args a = {.argv = argv, .output_fd = fds[1]};
    rc = child_start(&a, &pid, err);
    close(fds[1]);
    if (!rc) {
        rc = read_all(fds[0], text, cap_bytes);
        if (rc) {
            kill(pid, SIGKILL);
            err_set(err, -rc, "%s --devices: %s", program, strerror(-rc));
        }
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    close(fds[0]);
    return rc;
}

int gpus_choose_ranks(struct config *c, struct err *err) {
    uint32_t count = 0;
    if (c->ranks == 0 && strcmp(c->device, "cpu") != 0) {
        bool is_auto = strcmp(c->device, "auto") == 0;
        char why[400], *text = malloc(GPUS_TEXT_BYTES);
        int rc = text ? ask(is_auto ? "cuda" : c->device, text, GPUS_TEXT_BYTES, err)
                      : err_set(err, ENOMEM, "no memory");
        if (!rc)
            count = gpus_parse(text, why, sizeof why);
        free(text);
        if (!rc && count == 0 && !is_auto)
            rc = err_set(err, ENODEV, "device = %s: %s", c->device,
                         *why ? why : "gatherfs-rank --devices lists none");
        if (rc)
            return rc;
    }
    c->ranks = config_ranks(c, count);
    return 0;
}
