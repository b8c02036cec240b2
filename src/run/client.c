/* client.c - a client of RUN_DIR/socket. */
#include "config.h"

#include "run/client.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "run/loop.h"
#include "run/mountpoint.h"
#include "run/rundir.h"
#include "wire/link.h"
#include "wire/msg.h"

enum { CLIENT_OUTBOX_BYTES = 1 << 20, CLIENT_HELLO_MS = 10000, CLIENT_ASK_MS = 300 };

struct client {
    struct link *link;
    struct frame frame; /* lives as long as the link */
    struct msg_status status;
    char run_dir[RUNDIR_PATH_BYTES];
};

/* Next frame of a type; others are dropped. 0, -ETIMEDOUT, -EPIPE. */
static int wait_frame(struct client *c, uint16_t type, int timeout_ms) {
    uint64_t start = loop_now_ns();
    int ended = 0;
    for (;;) {
        int rc;
        while ((rc = link_next(c->link, &c->frame)) == 1)
            if (c->frame.type == type)
                return 0;
        if (rc < 0 || ended)
            return rc < 0 ? rc : ended;
        int left = -1;
        if (timeout_ms >= 0) {
            left = timeout_ms - (int)((loop_now_ns() - start) / 1000000u);
            if (left <= 0)
                return -ETIMEDOUT;
        }
        struct pollfd p = {.fd = link_fd(c->link), .events = POLLIN};
        poll(&p, 1, left);
        ended = link_fill(c->link);
    }
}

/* A path with a socket in it is a run directory; else MNT.run, as `gatherfs run` chooses it. */
static int find_run_dir(const char *what, char out[RUNDIR_PATH_BYTES], struct err *err) {
    char path[PATH_MAX], absolute[RUNDIR_PATH_BYTES];
    int rc = rundir_absolute(what, absolute, sizeof absolute, err);
    if (rc)
        return rc;
    /* A mountpoint is not looked into: it may hang. */
    if (mountpoint_kind(absolute, NULL) == MOUNT_NONE &&
        file_path(path, sizeof path, "%s/lock", absolute) == 0 && access(path, F_OK) == 0) {
        snprintf(out, RUNDIR_PATH_BYTES, "%s", absolute);
        return 0;
    }
    errno = 0;
    if (file_path(path, sizeof path, "%s.run/lock", absolute) == 0 && access(path, F_OK) == 0 &&
        file_path(out, RUNDIR_PATH_BYTES, "%s.run", absolute) == 0)
        return 0;
    if (errno == EACCES)
        return err_set(err, EACCES, "%s: %s", what, strerror(errno));
    return err_set(err, ENOENT, "neither %s nor %s.run is a run directory", what, what);
}

/* For the status of now. */
static int client_ask(struct client *c, struct err *err) {
    struct msg_client_hello m = {.build = PACKAGE_VERSION};
    int rc = msg_send(c->link, MSG_CLIENT_HELLO, 0, &m, NULL, 0);
    if (!rc)
        rc = wait_frame(c, MSG_STATUS, CLIENT_HELLO_MS);
    if (!rc)
        rc = msg_decode(MSG_STATUS, c->frame.payload, c->frame.len_bytes, &c->status);
    return rc ? err_set(err, -rc, "%s: the supervisor does not answer: %s", c->run_dir,
                        strerror(-rc))
              : 0;
}

static void client_close(struct client *c) {
    if (!c)
        return;
    link_close(c->link);
    free(c);
}

/* dir_or_mount: a run directory, or the mountpoint of a run whose directory is beside it (MNT.run).
 * -ENOENT, -ECONNREFUSED when nobody runs it. */
static int client_open(const char *dir_or_mount, struct client **out, struct err *err) {
    struct client *c = calloc(1, sizeof *c);
    int fd = -1;
    if (!c) {
        err_set(err, ENOMEM, "no memory");
        return -ENOMEM;
    }
    int rc = find_run_dir(dir_or_mount, c->run_dir, err);
    if (!rc && (fd = link_connect(c->run_dir, "socket")) < 0)
        rc = err_set(err, -fd, "nothing runs in %s", c->run_dir);
    if (!rc && !(c->link = link_open(fd, CLIENT_OUTBOX_BYTES)))
        rc = err_set(err, ENOMEM, "no memory");
    if (!rc)
        rc = client_ask(c, err);
    if (rc) {
        client_close(c);
        return rc;
    }
    *out = c;
    return 0;
}

/* One command; waits for its result at most timeout_ms (-1: for ever). id may be NULL. Returns
 * -errno of the command. */
static int client_command(struct client *c, const char *name, const char *value, const char *id,
                          int timeout_ms, struct err *err) {
    struct msg_command m = {.uid = (uint32_t)geteuid(), .pid = (uint32_t)getpid()};
    struct msg_command_done done;
    if (id)
        snprintf(m.key, sizeof m.key, "id:%.64s", id);
    else
        snprintf(m.key, sizeof m.key, "c:%d.%" PRIu64, (int)getpid(), loop_time_ns());
    snprintf(m.name, sizeof m.name, "%s", name);
    snprintf(m.value, sizeof m.value, "%s", value);
    int rc = msg_send(c->link, MSG_CLIENT_COMMAND, 1, &m, NULL, 0);
    do {
        if (!rc)
            rc = wait_frame(c, MSG_COMMAND_DONE, timeout_ms);
        if (!rc)
            rc = msg_decode(MSG_COMMAND_DONE, c->frame.payload, c->frame.len_bytes, &done);
    } while (!rc && strcmp(done.key, m.key) != 0);
    if (rc)
        return err_set(err, -rc, "%s: no answer: %s", name, strerror(-rc));
    return done.code ? err_set(err, (int)done.code, "%s", done.text) : 0;
}

/* Waits until the supervisor is gone. -ETIMEDOUT. */
static int client_wait_end(struct client *c, int timeout_ms) {
    int rc = wait_frame(c, 0xffff, timeout_ms);
    return rc == -ETIMEDOUT ? rc : 0;
}

/* ---- commands of the command line */

static int say_error(const struct err *err) {
    fprintf(stderr, "gatherfs: %s\n", err->text);
    return 1;
}

static int wrong_usage(const char *usage) {
    fprintf(stderr, "usage: gatherfs %s\n", usage);
    return 2;
}

/* Until the supervisor is gone, or has called it off since its last snapshot failed. */
static int wait_stopped(struct client *c, struct err *err) {
    while (client_wait_end(c, CLIENT_ASK_MS) == -ETIMEDOUT) {
        if (client_ask(c, NULL))
            return 0;
        bool ends = c->status.state == RUN_STOPPING || c->status.state == RUN_FAILED ||
                    c->status.state == RUN_OFFLINE;
        if (!ends)
            return err_set(err, EIO, "%s goes on, paused: %s", c->run_dir, c->status.last_error);
    }
    return 0;
}

int client_stop_main(int argc, char **argv) {
    struct client *c;
    struct err err = {0};
    if (argc != 2 || argv[1][0] == '-')
        return wrong_usage("stop MNT|RUN_DIR");
    if (client_open(argv[1], &c, &err))
        return say_error(&err);
    int rc = client_command(c, "stop", "1", NULL, CLIENT_HELLO_MS, &err);
    if (rc == -EBUSY) /* it is stopping already */
        rc = 0;
    if (!rc)
        rc = wait_stopped(c, &err);
    client_close(c);
    return rc ? say_error(&err) : 0;
}

static void print_number(const char *name, double x, const char *unit) {
    if (!isnan(x))
        printf("%-18s %.6g%s\n", name, x, unit);
}

int client_status_main(int argc, char **argv) {
    struct client *c;
    struct err err = {0};
    if (argc != 2 || argv[1][0] == '-')
        return wrong_usage("status MNT|RUN_DIR");
    if (client_open(argv[1], &c, &err))
        return say_error(&err);
    const struct msg_status *m = &c->status;
    printf("%-18s %s\n", "run directory", c->run_dir);
    printf("%-18s %s\n", "state",
           m->state < RUN_STATE_COUNT ? run_state_names[m->state] : "unknown");
    printf("%-18s %" PRIu64 " of %" PRIu64 "\n", "step", m->step, m->target);
    print_number("loss", m->loss, "");
    print_number("gradient norm", m->grad_norm, "");
    print_number("learning rate", m->lr, "");
    print_number("tokens/s", m->tokens_per_second, "");
    print_number("MFU", m->mfu * 100, "%");
    print_number("seconds left", m->eta_seconds, "");
    printf("%-18s %u (attempt %u)\n", "ranks", m->world_size, m->attempt);
    if (*m->device)
        printf("%-18s %s\n", "device", m->device);
    printf("%-18s %" PRIu64 "%s%s\n", "snapshots", m->snapshot_count,
           *m->snapshot_running ? ", now writing " : "", m->snapshot_running);
    if (*m->last_error)
        printf("%-18s %s\n", "last error", m->last_error);
    client_close(c);
    return 0;
}

int client_command_main(int argc, char **argv) {
    struct client *c;
    struct err err = {0};
    if ((argc != 4 && argc != 5) || argv[1][0] == '-')
        return wrong_usage("command MNT|RUN_DIR NAME VALUE [ID]");
    if (client_open(argv[1], &c, &err))
        return say_error(&err);
    int rc = client_command(c, argv[2], argv[3], argc == 5 ? argv[4] : NULL, -1, &err);
    client_close(c);
    if (!rc)
        return 0;
    fprintf(stderr, "gatherfs: %s: %s\n", err_name(-rc), err.text);
    return 1;
}
