/* mountd.c - the mount's daemon: it may die, the mount does not, for /dev/fuse and the kernel's
 * INIT are kept here.
 *
 *   mountd_open            MSG_DAEMON_READY
 *  -----------> starting ------------------> ready ---> gone (MSG_UNMOUNTED: the run ends)
 *                  ^                           | dies
 *                  +------ mountd_start <------+ five times in a minute: the mount is given up */
#include "config.h"

#include "run/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "run/child.h"

enum {
    MOUNTD_OUTBOX_BYTES = 64 << 20,
    MOUNTD_REQUESTS_BYTES = 1 << 20,
    MOUNTD_STARTS_NS_WINDOW = 60, /* seconds */
    MOUNTD_END_MS = 2000,
};

static int mountd_start(struct supervisor *s, struct err *err);

void mountd_send(struct supervisor *s, uint16_t type, const void *msg) {
    /* Offline the daemon reads all of it from the run directory. */
    bool is_for_it = !s->mountd.is_offline || type == MSG_UNMOUNT || type == MSG_COMMAND_DONE;
    if (s->mountd.is_ready && is_for_it)
        peer_send(s->mountd.peer, type, msg, NULL, 0);
}

bool mountd_is_slow(const struct supervisor *s) { return peer_is_slow(s->mountd.peer); }

bool mountd_is_gone(const struct supervisor *s) {
    return s->mountd.pid == 0 && s->mountd.mount.fuse_fd < 0;
}

/* ---- its end */

static void give_up(struct supervisor *s, const char *why) {
    s->mountd.given_up = true;
    supervisor_error(s, "the mount is given up, training goes on: %s", why);
    mountpoint_close(&s->mountd.mount, NULL);
}

/* True after five starts within a minute. */
static bool starts_too_often(const struct mountd *d) {
    uint64_t oldest = d->starts_ns[0];
    return oldest && loop_now_ns() - oldest < MOUNTD_STARTS_NS_WINDOW * 1000000000ull;
}

static void on_restart_timer(void *arg) {
    struct supervisor *s = arg;
    struct err err = {0};
    if (mountd_start(s, &err))
        give_up(s, err.text);
}

/* Link and process have both ended. */
static void mountd_ended(struct supervisor *s) {
    struct mountd *d = &s->mountd;
    output_close(d->output);
    d->output = NULL;
    loop_timer_cancel(s->loop, &d->end_timer);
    if (s->stop.phase == STOP_UNMOUNTING) {
        stop_step(s);
        return;
    }
    if (d->has_unmounted || (d->mount.fuse_fd >= 0 && !mountpoint_is_mounted(&d->mount))) {
        mountpoint_close(&d->mount, NULL);
        stop_request(s, "unmounted");
    } else if (d->given_up) {
        return;
    } else if (!d->has_been_ready) {
        supervisor_fail(
            s, "the mount's daemon does not start: see log/mountd.log in the run directory");
    } else if (starts_too_often(d)) {
        give_up(s,
                "its daemon died five times in a minute: see log/mountd.log in the run directory");
    } else {
        supervisor_event(s, "mount", "the daemon died and is started again");
        loop_timer_set(s->loop, &d->restart_timer, 0);
    }
}

static void link_ended(struct supervisor *s) {
    struct mountd *d = &s->mountd;
    peer_close(d->peer);
    d->peer = NULL;
    d->is_ready = false;
    wide_daemon_gone(s);
}

static void on_exit_status(void *arg, int status) {
    struct supervisor *s = arg;
    struct mountd *d = &s->mountd;
    d->pid = 0;
    if (WIFSIGNALED(status) && s->stop.phase != STOP_UNMOUNTING)
        log_warn("the mount's daemon was ended by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    if (!d->peer)
        mountd_ended(s); /* else what it said last is read first */
}

static void on_end(void *arg, struct peer *p) {
    struct supervisor *s = arg;
    (void)p;
    link_ended(s);
    if (s->mountd.pid == 0)
        mountd_ended(s);
    else /* it must be on its way out */
        loop_timer_set(s->loop, &s->mountd.end_timer, MOUNTD_END_MS);
}

static void on_end_timer(void *arg) {
    struct supervisor *s = arg;
    if (s->mountd.pid)
        kill(s->mountd.pid, SIGKILL);
}

/* ---- what it says */

static void on_ready(struct supervisor *s) {
    struct mountd *d = &s->mountd;
    bool first = !d->has_been_ready;
    d->is_ready = d->has_been_ready = true;
    /* All that it has to know before it answers requests that are sent again; the status begins it.
     */
    snapshots_tell_daemon(s);
    pins_tell_daemon(s);
    world_meet_daemon(s);
    commands_tell_daemon(s);
    status_tell_ranks(s);
    struct msg_event m = {.bytes = s->record.events_bytes};
    mountd_send(s, MSG_EVENT, &m);
    status_send(s);
    if (!first)
        supervisor_event(s, "mount", "session %" PRIu64 " of the daemon serves", d->session);
}

static void keep_init(struct supervisor *s, const struct msg_fuse_init *m) {
    uint8_t *copy = malloc(m->init.len_bytes + 1);
    if (!copy)
        return;
    memcpy(copy, m->init.data, m->init.len_bytes);
    free(s->mountd.fuse_init);
    s->mountd.fuse_init = copy;
    s->mountd.fuse_init_bytes = m->init.len_bytes;
}

static bool daemon_may_send(uint16_t type) {
    switch (type) {
    case MSG_FUSE_INIT:
    case MSG_DAEMON_READY:
    case MSG_COMMAND:
    case MSG_WIDE_OPEN:
    case MSG_WIDE_CLOSE:
    case MSG_RANK_LINK:
    case MSG_UNMOUNTED:
        return true;
    default:
        return false;
    }
}

static void on_frame(void *arg, struct peer *p, struct frame *f) {
    struct supervisor *s = arg;
    union {
        struct msg_fuse_init init;
        struct msg_daemon_ready ready;
        struct msg_command command;
        struct msg_wide_open open;
        struct msg_wide_close close;
        struct msg_rank_link link;
        struct msg_unmounted unmounted;
    } m;
    if (!daemon_may_send(f->type) || msg_decode(f->type, f->payload, f->len_bytes, &m)) {
        log_warn("the mount's daemon: %s is not understood", msg_type_name(f->type));
        return;
    }
    switch (f->type) {
    case MSG_FUSE_INIT:
        keep_init(s, &m.init);
        break;
    case MSG_DAEMON_READY:
        on_ready(s);
        break;
    case MSG_COMMAND:
        commands_receive(s, p, f->id, &m.command);
        break;
    case MSG_WIDE_OPEN:
        wide_on_open(s, &m.open);
        break;
    case MSG_WIDE_CLOSE:
        wide_on_close(s, &m.close);
        break;
    case MSG_RANK_LINK:
        world_meet_again(s, &m.link);
        break;
    case MSG_UNMOUNTED:
        s->mountd.has_unmounted = true;
        break;
    default:
        break;
    }
}

/* ---- start */

static void on_line(void *arg, const char *line, bool is_ours) {
    struct supervisor *s = arg;
    (void)is_ours;
    progress_say(&s->progress, "%s", line);
}

static void note_start(struct mountd *d) {
    size_t n = sizeof d->starts_ns / sizeof d->starts_ns[0];
    memmove(d->starts_ns, d->starts_ns + 1, (n - 1) * sizeof d->starts_ns[0]);
    d->starts_ns[n - 1] = loop_now_ns();
}

static void say_start(struct supervisor *s) {
    struct mountd *d = &s->mountd;
    struct enc config = {0};
    int fds[] = {d->mount.fuse_fd, d->requests_fd};
    struct msg_daemon_start m = {.session = d->session,
                                 .fuse_init = {d->fuse_init, d->fuse_init_bytes}};
    const char *mask = getenv("GATHERFS_MASK_RESEND"); /* a hook for tests */
    m.offline = d->is_offline;
    m.mask_resend = mask && *mask == '1';
    config_print(&s->config, false, &config);
    m.config = (struct blob){config.data, config.len_bytes};
    snprintf(m.mountpoint, sizeof m.mountpoint, "%s", d->mount.path);
    snprintf(m.run_dir, sizeof m.run_dir, "%s", s->rundir.path);
    peer_send(d->peer, MSG_DAEMON_START, &m, fds, 2);
    enc_free(&config);
}

static int mountd_start(struct supervisor *s, struct err *err) {
    struct mountd *d = &s->mountd;
    char program[RUNDIR_PATH_BYTES];
    int pair[2], output_fd;
    if (child_program("gatherfs-mountd", program, sizeof program, err))
        return -err->code;
    if (link_pair(pair))
        return err_set(err, errno, "no socket pair: %s", strerror(errno));
    if (output_open(s->loop, s->rundir.path, "mountd", on_line, s, &d->output, &output_fd)) {
        close(pair[0]);
        close(pair[1]);
        return err_set(err, errno, "no pipe: %s", strerror(errno));
    }
    const char *argv[] = {program, "3", NULL};
    struct child_args a = {.argv = argv,
                           .fds = &pair[1],
                           .fd_count = 1,
                           .own_session = true,
                           .may_outlive = true,
                           .output_fd = output_fd};
    int rc = child_start(&a, &d->pid, err);
    close(output_fd);
    close(pair[1]);
    if (rc) {
        close(pair[0]);
        return rc;
    }
    loop_child(s->loop, d->pid, on_exit_status, s);
    d->session++;
    note_start(d);
    rc = peer_open(s->loop, pair[0], MOUNTD_OUTBOX_BYTES, on_frame, on_end, s, &d->peer);
    if (rc)
        return err_set(err, -rc, "no link to the mount's daemon");
    say_start(s);
    return 0;
}

int mountd_open(struct supervisor *s, struct err *err) {
    struct mountd *d = &s->mountd;
    d->is_offline = s->state == RUN_OFFLINE;
    d->restart_timer = (struct loop_timer){.fn = on_restart_timer, .arg = s};
    d->end_timer = (struct loop_timer){.fn = on_end_timer, .arg = s};
    d->requests_fd = memfd_create("gatherfs-requests", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (d->requests_fd < 0 || ftruncate(d->requests_fd, MOUNTD_REQUESTS_BYTES) ||
        fcntl(d->requests_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
        return err_set(err, errno, "memory for requests in flight: %s", strerror(errno));
    int rc = mountpoint_open(s->request->mountpoint, s->config.allow_other, &d->mount, err);
    return rc ? rc : mountd_start(s, err);
}

void mountd_unmount(struct supervisor *s) {
    struct mountd *d = &s->mountd;
    bool lazy;
    struct msg_unmount m = {0};
    mountpoint_close(&d->mount, &lazy);
    if (lazy)
        supervisor_event(s, "mount", "unmounted while files are open");
    mountd_send(s, MSG_UNMOUNT, &m);
    loop_timer_cancel(s->loop, &d->restart_timer);
    if (d->pid)
        loop_timer_set(s->loop, &d->end_timer, MOUNTD_END_MS);
}

void mountd_close(struct supervisor *s) {
    struct mountd *d = &s->mountd;
    mountpoint_close(&d->mount, NULL);
    if (d->pid)
        kill(d->pid, SIGKILL);
    peer_close(d->peer);
    d->peer = NULL;
    output_close(d->output);
    d->output = NULL;
    if (d->requests_fd >= 0)
        close(d->requests_fd);
    d->requests_fd = -1;
    free(d->fuse_init);
    d->fuse_init = NULL;
}
