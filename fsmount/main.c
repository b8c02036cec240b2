/* main.c - gatherfs-mountd: one loop over the supervisor, /dev/fuse and the ranks. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/parse.h"
#include "fsmount/clock.h"
#include "fsmount/daemon.h"
#include "fsmount/mountpoint.h"

enum {
    SUPERVISOR_OUTBOX_BYTES = 16 << 20,
    TICK_MS = 100,
    FUSE_BATCH = 64,        /* requests in a turn: then ranks and supervisor are heard */
    FIRST_STATUS_MS = 5000, /* after that requests are served without one */
    DETACH_MS = 5000,
};

enum ending { RUNNING, END_UNMOUNTED, END_ORDERED, END_SUPERVISOR, END_FAILED };

struct loop {
    struct daemon d;
    enum ending ending;
    bool serving;
    uint64_t ready_ns, tick_ns;
    char device[64];
    struct pollfd *fds;
    size_t fd_cap;
};

/* ---- from the ranks */

static void on_reply(void *ctx, uint32_t rank, const struct msg_take_reply *m,
                     struct shared *segment) {
    struct daemon *d = ctx;
    takes_reply(d->takes, rank, m, segment);
}

static void on_wide(void *ctx, uint64_t epoch, uint32_t rank, const struct msg_wide_segment *m,
                    struct shared *segment) {
    struct daemon *d = ctx;
    wides_segment(d->wides, epoch, rank, m, segment);
}

static void on_wide_gone(void *ctx, uint64_t epoch, uint32_t rank, uint64_t take) {
    struct daemon *d = ctx;
    wides_gone(d->wides, epoch, rank, take);
}

static void on_complete(void *ctx) {
    struct daemon *d = ctx;
    takes_world(d->takes);
    wides_world(d->wides);
}

/* Its takes are over. If the rank itself lives, the supervisor can make another link; if not, it
 * knows better. */
static void on_lost(void *ctx, uint64_t epoch, uint32_t rank) {
    struct daemon *d = ctx;
    struct msg_rank_link again = {.epoch = epoch, .rank = rank};
    takes_lost(d->takes, epoch, rank);
    wides_lost(d->wides, epoch, rank);
    if (epoch == world_epoch(d->world) && world_is_up(d->world))
        msg_send(d->supervisor, MSG_RANK_LINK, 0, &again, NULL, 0);
}

static void on_replaced(void *ctx, uint32_t rank) {
    struct daemon *d = ctx;
    takes_replaced(d->takes, rank);
}

static const struct world_ops rank_events = {
    .reply = on_reply,
    .wide = on_wide,
    .wide_gone = on_wide_gone,
    .complete = on_complete,
    .lost = on_lost,
    .replaced = on_replaced,
};

/* ---- from the supervisor */

/* Knobs that matter here. */
static void daemon_configure(struct daemon *d) {
    const struct config *c = status_config(d->status);
    uint64_t limit = c->take_memory;
    if (limit == 0) {
        struct sysinfo si = {0};
        sysinfo(&si);
        limit = (uint64_t)si.totalram * si.mem_unit / 4;
        struct model *m = world_model(d->world);
        uint64_t twice = m != NULL ? 2 * layout_numel(model_layout(m)) * TENSOR_ELEM_BYTES : 0;
        limit = twice > limit ? twice : limit;
    }
    takes_configure(d->takes, limit, c->read_timeout);
    wides_configure(d->wides, c->read_timeout);
    bundles_configure(d->bundles, c->read_timeout);
}

union message {
    struct msg_world world;
    struct msg_rank_link rank_link;
    struct msg_status status;
    struct msg_rank_table table;
    struct msg_rank_device device;
    struct msg_command_done done;
    struct msg_command_row row;
    struct msg_snapshot_added added;
    struct msg_snapshot_removed removed;
    struct msg_pin pin;
    struct msg_wide wide;
    struct msg_event event;
    struct msg_unmount unmount;
};

static int on_world(struct daemon *d, const struct msg_world *m, struct err *err) {
    uint64_t before = world_epoch(d->world);
    bool ended = before != 0 && (m->world_size == 0 || m->epoch != before);
    int rc = world_set(d->world, m, err);
    takes_world_changed(d->takes);
    wides_world_changed(d->wides);
    if (ended)
        bundles_world_lost(d->bundles);
    daemon_configure(d);
    return rc;
}

static int on_status(struct loop *l, const struct msg_status *m, struct err *err) {
    struct daemon *d = &l->d;
    int rc = status_set(d->status, m, err);
    takes_status(d->takes, m->epoch, m->gen, status_is_idle(d->status));
    daemon_configure(d);
    l->serving = true;
    return rc;
}

static int on_rank_link(struct daemon *d, const struct msg_rank_link *m, struct frame *f,
                        struct err *err) {
    if (f->fd_count != 1)
        return err_set(err, EPROTO, "a link without descriptor");
    int fd = f->fds[0];
    f->fds[0] = -1;
    int rc = world_add_link(d->world, m, fd);
    return rc == 0 ? 0 : err_set(err, -rc, "the link to rank %u can't be opened", m->rank);
}

static int supervisor_handle(struct loop *l, struct frame *f, struct err *err) {
    struct daemon *d = &l->d;
    union message m;
    if (msg_decode(f->type, f->payload, f->len_bytes, &m) != 0)
        return err_set(err, EPROTO, "malformed");
    switch (f->type) {
    case MSG_WORLD:
        return on_world(d, &m.world, err);
    case MSG_RANK_LINK:
        return on_rank_link(d, &m.rank_link, f, err);
    case MSG_STATUS:
        return on_status(l, &m.status, err);
    case MSG_RANK_TABLE:
        world_table(d->world, &m.table);
        return 0;
    case MSG_RANK_DEVICE:
        world_device(d->world, &m.device);
        return 0;
    case MSG_COMMAND_DONE:
        takes_answered(d->takes);
        control_done(d->control, &m.done);
        return 0;
    case MSG_COMMAND_ROW:
        status_row(d->status, &m.row);
        return 0;
    case MSG_SNAPSHOT_ADDED:
        bundles_add_snapshot(d->bundles, m.added.snapshot, m.added.name);
        return 0;
    case MSG_SNAPSHOT_REMOVED:
        bundles_remove_snapshot(d->bundles, m.removed.snapshot);
        return 0;
    case MSG_PIN:
        return bundles_pin(d->bundles, &m.pin, err);
    case MSG_WIDE:
        wides_answer(d->wides, &m.wide);
        return 0;
    case MSG_EVENT:
        status_events(d->status, m.event.bytes);
        daemon_notify_events(d);
        return 0;
    default: /* MSG_UNMOUNT */
        l->ending = END_ORDERED;
        return 0;
    }
}

static bool supervisor_may_send(uint16_t type) {
    switch (type) {
    case MSG_WORLD:
    case MSG_RANK_LINK:
    case MSG_STATUS:
    case MSG_RANK_TABLE:
    case MSG_RANK_DEVICE:
    case MSG_COMMAND_DONE:
    case MSG_COMMAND_ROW:
    case MSG_SNAPSHOT_ADDED:
    case MSG_SNAPSHOT_REMOVED:
    case MSG_PIN:
    case MSG_WIDE:
    case MSG_EVENT:
    case MSG_UNMOUNT:
        return true;
    default:
        return false;
    }
}

/* A bad message is refused and the mount goes on: ending it would take the mount away from its
 * users. */
static void supervisor_read(struct loop *l) {
    struct frame f;
    int end = link_fill(l->d.supervisor), rc;
    while (l->ending == RUNNING && (rc = link_next(l->d.supervisor, &f)) > 0) {
        struct err err = {0};
        if (!supervisor_may_send(f.type))
            log_error("supervisor: message %u is not for the mount", f.type);
        else if (supervisor_handle(l, &f, &err) != 0)
            log_error("supervisor: %s: %s", msg_type_name(f.type), err.text);
    }
    if (l->ending == RUNNING && (end != 0 || rc < 0))
        l->ending = END_SUPERVISOR;
}

/* ---- start */

static void on_init(void *userdata, const uint8_t *init, size_t init_bytes) {
    struct daemon *d = userdata;
    struct msg_fuse_init m = {.init = {.data = init, .len_bytes = init_bytes}};
    msg_send(d->supervisor, MSG_FUSE_INIT, 0, &m, NULL, 0);
}

/* The kernel can be told to end every request after a while: then nothing may be parked for longer.
 */
static void warn_request_timeout(void) {
    FILE *f = fopen("/proc/sys/fs/fuse/max_request_timeout", "re");
    unsigned seconds = 0;
    if (f == NULL)
        return;
    if (fscanf(f, "%u", &seconds) == 1 && seconds != 0)
        log_warn("fs.fuse.max_request_timeout is %u s: a command that waits longer ends the mount; "
                 "set it to 0",
                 seconds);
    fclose(f);
}

static int start_config(const struct msg_daemon_start *m, struct config *out, struct err *err) {
    config_defaults(out);
    char *text = calloc(1, m->config.len_bytes + 1);
    if (text == NULL)
        return err_set(err, ENOMEM, "no memory for the config");
    if (m->config.len_bytes != 0)
        memcpy(text, m->config.data, m->config.len_bytes);
    int rc = config_parse(out, text, "the supervisor's config", NULL, err);
    free(text);
    return rc;
}

static int start_parts(struct daemon *d, const struct config *config, struct err *err) {
    int rc = world_open(d->number, &rank_events, d, &d->world);
    if (rc == 0)
        rc = takes_open(d->number, d->world, &d->takes);
    if (rc == 0)
        rc = wides_open(d->supervisor, d->world, d->takes, &d->wides);
    if (rc == 0)
        rc = bundles_open(d->run_dir, d->wides, &d->bundles);
    if (rc == 0)
        rc = status_open(d->run_dir, config, &d->status);
    if (rc == 0)
        rc = control_open(d->supervisor, d->status, &d->control);
    if (rc == 0)
        rc = nodes_open(d->number, &d->nodes);
    if (rc == 0)
        rc = gather_open(&d->gather);
    if (rc != 0)
        return err_set(err, -rc, "no memory");
    d->live =
        (struct live){.world = d->world, .takes = d->takes, .wides = d->wides, .status = d->status};
    daemon_configure(d);
    return d->offline ? daemon_load_offline(d, err) : 0;
}

static int start_with(struct loop *l, const struct msg_daemon_start *m, struct frame *f,
                      struct err *err) {
    struct daemon *d = &l->d;
    struct config *config = malloc(sizeof(*config));
    if (config == NULL)
        return err_set(err, ENOMEM, "no memory");
    d->number = m->session;
    d->offline = m->offline != 0;
    d->uid = getuid();
    d->gid = getgid();
    d->start_ns = clock_wall();
    memcpy(d->run_dir, m->run_dir, sizeof(d->run_dir));
    memcpy(d->mountpoint, m->mountpoint, sizeof(d->mountpoint));
    int rc = start_config(m, config, err);
    if (rc == 0)
        rc = start_parts(d, config, err);
    free(config);
    if (rc != 0)
        return rc;
    struct session_setup setup = {.fuse_fd = f->fds[0],
                                  .requests_fd = f->fd_count > 1 ? f->fds[1] : -1,
                                  .mask_resend = m->mask_resend != 0,
                                  .init = m->fuse_init.data,
                                  .init_bytes = m->fuse_init.len_bytes,
                                  .ops = &daemon_ops,
                                  .on_init = on_init,
                                  .userdata = d};
    f->fds[0] = f->fds[1] = -1;
    return session_open(&setup, &d->session, err);
}

/* The first message says everything. Blocks: there is nothing else to do. */
static int start(struct loop *l, struct err *err) {
    struct frame f;
    struct msg_daemon_start *m = malloc(sizeof(*m));
    if (m == NULL)
        return err_set(err, ENOMEM, "no memory");
    int rc;
    while ((rc = link_next(l->d.supervisor, &f)) == 0) {
        struct pollfd p = {.fd = link_fd(l->d.supervisor), .events = POLLIN};
        if (poll(&p, 1, -1) < 0 && errno != EINTR)
            break;
        int end = link_fill(l->d.supervisor);
        if (end != 0 && (rc = link_next(l->d.supervisor, &f)) <= 0) {
            rc = -EPIPE;
            break;
        }
        if (rc > 0)
            break;
    }
    if (rc <= 0)
        rc = err_set(err, EPIPE, "the supervisor said nothing");
    else if (f.type != MSG_DAEMON_START || f.fd_count < 1 ||
             msg_decode(f.type, f.payload, f.len_bytes, m) != 0)
        rc = err_set(err, EPROTO,
                     "the supervisor's first message is no MSG_DAEMON_START with /dev/fuse");
    else
        rc = start_with(l, m, &f, err);
    free(m);
    return rc;
}

/* ---- the loop */

static void loop_ready(struct loop *l) {
    struct msg_daemon_ready m = {.session = l->d.number};
    l->ready_ns = clock_now();
    msg_send(l->d.supervisor, MSG_DAEMON_READY, 0, &m, NULL, 0);
    if (mountpoint_device(l->d.mountpoint, l->device, sizeof(l->device)) == 0)
        mountpoint_read_ahead(l->device, SESSION_MAX_READ_BYTES / 1024);
}

static bool loop_waits(const struct loop *l) {
    const struct daemon *d = &l->d;
    return takes_waiting(d->takes) || wides_waiting(d->wides) || bundles_waiting(d->bundles) ||
           (!l->serving && l->ready_ns != 0);
}

static void loop_tick(struct loop *l) {
    uint64_t now = clock_now();
    struct daemon *d = &l->d;
    if (now - l->tick_ns < TICK_MS * UINT64_C(1000000) || !loop_waits(l))
        return;
    l->tick_ns = now;
    takes_tick(d->takes, now);
    wides_tick(d->wides, now);
    bundles_tick(d->bundles, now);
    if (!l->serving && l->ready_ns != 0 &&
        now - l->ready_ns > FIRST_STATUS_MS * UINT64_C(1000000)) {
        log_warn("no status from the supervisor: serving without");
        l->serving = true;
    }
}

static void loop_fuse(struct loop *l) {
    bool was_ready = session_is_ready(l->d.session);
    int rc = 1;
    for (int i = 0; i < FUSE_BATCH && rc > 0; i++) {
        rc = session_step(l->d.session);
        if (!was_ready)
            break; /* INIT alone: what follows may need what the supervisor has yet to tell */
    }
    if (rc == -ENODEV)
        l->ending = END_UNMOUNTED;
    else if (rc < 0) {
        log_error("/dev/fuse: %s", strerror(-rc));
        l->ending = END_FAILED;
    }
    if (!was_ready && session_is_ready(l->d.session))
        loop_ready(l);
}

static int loop_room(struct loop *l, size_t need) {
    if (need <= l->fd_cap)
        return 0;
    struct pollfd *fds = realloc(l->fds, need * 2 * sizeof(*fds));
    if (fds == NULL)
        return -ENOMEM;
    l->fds = fds;
    l->fd_cap = need * 2;
    return 0;
}

static void loop_turn(struct loop *l) {
    struct daemon *d = &l->d;
    size_t links = world_link_count(d->world);
    if (loop_room(l, links + 2) != 0) {
        l->ending = END_FAILED;
        return;
    }
    bool fuse = l->serving || !session_is_ready(d->session);
    l->fds[0] = (struct pollfd){
        .fd = link_fd(d->supervisor),
        .events = (short)(POLLIN | (link_wants_write(d->supervisor) ? POLLOUT : 0))};
    l->fds[1] = (struct pollfd){.fd = fuse ? session_fd(d->session) : -1, .events = POLLIN};
    world_poll_fill(d->world, l->fds + 2, links);
    int n = poll(l->fds, links + 2, loop_waits(l) ? TICK_MS : -1);
    if (n < 0 && errno != EINTR)
        l->ending = END_FAILED;
    if (n > 0) {
        if ((l->fds[0].revents & POLLOUT) != 0)
            link_flush(d->supervisor);
        if ((l->fds[0].revents & (POLLIN | POLLHUP | POLLERR)) != 0)
            supervisor_read(l);
        world_poll_handle(d->world, l->fds + 2, links);
    }
    world_reap(d->world);
    if (n > 0 && l->fds[1].revents != 0 && l->ending == RUNNING)
        loop_fuse(l);
    if (bundles_waiting(d->bundles))
        daemon_wake_pins(d);
    loop_tick(l);
}

/* ---- the end */

static void stop_parts(struct daemon *d) {
    nodes_close(d->nodes, daemon_end_node);
    control_close(d->control);
    bundles_close(d->bundles);
    wides_close(d->wides);
    takes_close(d->takes);
    world_close(d->world);
    status_close(d->status);
    gather_close(&d->gather);
    session_close(d->session);
    link_close(d->supervisor);
}

/* Callers that come while the helper works are answered: it may need the mount itself. */
static void detach(struct loop *l) {
    pid_t helper;
    uint64_t until = clock_now() + DETACH_MS * UINT64_C(1000000);
    mountpoint_detach(l->d.mountpoint, l->device, &helper);
    while (helper > 0 && clock_now() < until) {
        if (waitpid(helper, NULL, WNOHANG) != 0)
            break;
        struct pollfd p = {.fd = session_fd(l->d.session), .events = POLLIN};
        if (poll(&p, 1, 10) > 0 && session_step(l->d.session) < 0)
            break;
    }
}

static int finish(struct loop *l) {
    struct msg_unmounted m = {0};
    switch (l->ending) {
    case END_UNMOUNTED:
        msg_send(l->d.supervisor, MSG_UNMOUNTED, 0, &m, NULL, 0);
        break;
    case END_ORDERED:
    case END_SUPERVISOR:
        detach(l);
        break;
    default:
        break;
    }
    enum ending ending = l->ending;
    stop_parts(&l->d);
    free(l->fds);
    return ending == END_FAILED ? 1 : 0;
}

static void set_limits(void) {
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0) {
        r.rlim_cur = r.rlim_max;
        setrlimit(RLIMIT_NOFILE, &r);
    }
    /* Ctrl-C is the supervisor's affair: the mount stays until it says so, or is gone. */
    static const int ignored[] = {SIGPIPE, SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
        signal(ignored[i], SIG_IGN);
}

int main(int argc, char **argv) {
    static struct loop loop;
    struct err err = {0};
    uint64_t fd;
    if (argc != 2 || parse_u64(argv[1], &fd) != 0 || fd > 1 << 20) {
        fprintf(stderr,
                "usage: gatherfs-mountd FD\nIt is started by gatherfs run and gatherfs mount.\n");
        return 2;
    }
    log_open("mountd", LEVEL_INFO);
    set_limits();
    loop.d.supervisor = link_open((int)fd, SUPERVISOR_OUTBOX_BYTES);
    if (loop.d.supervisor == NULL) {
        log_error("descriptor %s is no link to a supervisor", argv[1]);
        return 2;
    }
    if (start(&loop, &err) != 0) {
        log_error("%s", err.text);
        return 1;
    }
    warn_request_timeout();
    loop.serving = loop.d.offline;
    if (session_is_ready(loop.d.session))
        loop_ready(&loop);
    while (loop.ending == RUNNING)
        loop_turn(&loop);
    return finish(&loop);
}
