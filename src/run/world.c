/* world.c - starting the ranks, welcoming them, watching them, ending them.
 *
 *   world_start        all MSG_RANK_READY           world_quit
 *  NONE ------> STARTING --------------> READY ------------------> LEAVING
 *   ^              |                       |  world_kill              | all said bye and are gone
 *   |              +-------> ENDING <------+                          |
 *   +--------------------------+--------------------------------------+  world_check_gone */
#include "config.h"

#include "run/supervisor.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "run/child.h"
#include "run/launch.h"
#include "run/mfu.h"
#include "store/catalogue.h"

enum {
    WORLD_END_MS = 10000,   /* so long we wait for killed processes to be gone */
    WORLD_LEAVE_MS = 60000, /* so long a world may take to leave after MSG_QUIT */
    DOUBT_MS = 1500,
    SILENCE_MIN_S = 10, /* of a rank that speaks each second, on a machine that is busy */
};

/* ---- ends */

static bool is_gone(const struct world *w) {
    if (w->launcher)
        return false;
    for (uint32_t r = 0; r < w->size; r++)
        if (w->ranks[r].pidfd >= 0)
            return false;
    return true;
}

static void rank_drop(struct supervisor *s, struct rank *r) {
    peer_close(r->peer);
    r->peer = NULL;
    if (r->pidfd >= 0) {
        loop_unwatch(s->loop, r->pidfd);
        close(r->pidfd);
    }
    r->pidfd = -1;
    if (r->doorbell_fd >= 0)
        close(r->doorbell_fd);
    r->doorbell_fd = -1;
}

static void world_check_gone(struct supervisor *s) {
    struct world *w = &s->world;
    if ((w->state != WORLD_ENDING && w->state != WORLD_LEAVING) || !is_gone(w))
        return;
    loop_timer_cancel(s->loop, &w->end_timer);
    for (uint32_t r = 0; r < w->size; r++)
        rank_drop(s, &w->ranks[r]);
    output_close(w->output);
    w->output = NULL;
    w->state = WORLD_NONE;
    supervisor_world_gone(s);
}

static void on_pidfd(void *arg, short revents) {
    struct supervisor *s = arg;
    (void)revents;
    /* Find out whose: few ranks, rare event. */
    for (uint32_t r = 0; r < s->world.size; r++) {
        struct rank *rank = &s->world.ranks[r];
        struct pollfd p = {.fd = rank->pidfd, .events = POLLIN};
        if (rank->pidfd < 0 || poll(&p, 1, 0) != 1)
            continue;
        loop_unwatch(s->loop, rank->pidfd);
        close(rank->pidfd);
        rank->pidfd = -1;
    }
    world_check_gone(s);
}

static void on_end_timer(void *arg) {
    struct supervisor *s = arg;
    struct world *w = &s->world;
    if (w->state == WORLD_LEAVING) {
        log_warn("the ranks do not leave: they are ended");
        world_kill(s);
        return;
    }
    log_warn("processes of the last world are still there");
    if (w->launcher)
        kill(w->launcher, SIGKILL);
    for (uint32_t r = 0; r < w->size; r++)
        rank_drop(s, &w->ranks[r]);
    w->launcher = 0;
    w->state = WORLD_ENDING;
    world_check_gone(s);
}

static void kill_processes(struct world *w) {
    for (uint32_t r = 0; r < w->size; r++)
        if (w->ranks[r].pidfd >= 0)
            syscall(SYS_pidfd_send_signal, w->ranks[r].pidfd, SIGKILL, NULL, 0);
    if (w->launcher) {
        kill(-w->launcher, SIGKILL); /* its own session and group */
        kill(w->launcher, SIGKILL);
    }
}

void world_lose(struct supervisor *s) {
    if (s->world.state != WORLD_NONE)
        s->world.state = WORLD_ENDING;
}

void world_kill(struct supervisor *s) {
    struct world *w = &s->world;
    if (w->state == WORLD_NONE)
        return;
    w->state = WORLD_ENDING;
    kill_processes(w);
    for (uint32_t r = 0; r < w->size; r++) {
        peer_close(w->ranks[r].peer);
        w->ranks[r].peer = NULL;
    }
    loop_timer_set(s->loop, &w->end_timer, WORLD_END_MS);
    world_check_gone(s);
}

static void free_ranks(struct world *w) {
    for (uint32_t r = 0; r < w->size; r++)
        enc_free(&w->ranks[r].memory);
    free(w->ranks);
    w->ranks = NULL;
    w->size = 0;
}

void world_close(struct supervisor *s) {
    struct world *w = &s->world;
    kill_processes(w);
    for (uint32_t r = 0; r < w->size; r++)
        rank_drop(s, &w->ranks[r]);
    output_close(w->output);
    w->output = NULL;
    free_ranks(w);
    layout_free(&w->layout);
    enc_free(&w->layout_bytes);
    free(w->model_config);
    w->model_config = NULL;
}

static void describe_exit(int status, char out[80]) {
    if (WIFSIGNALED(status))
        snprintf(out, 80, "was ended by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(out, 80, "ended with status %d", WEXITSTATUS(status));
}

/* After what the ranks said last was heard. */
static void on_exit_timer(void *arg) {
    struct supervisor *s = arg;
    struct world *w = &s->world;
    char how[80], why[512];
    if (w->state == WORLD_STARTING || w->state == WORLD_READY) {
        describe_exit(w->launcher_status, how);
        snprintf(why, sizeof why, "%s %s%s", w->size > 1 ? GFS_MPI_LAUNCHER : "the rank", how,
                 w->state == WORLD_STARTING
                     ? " before all ranks were ready: see log/ in the run directory"
                     : "");
        supervisor_world_failed(s, why, false);
    }
    world_check_gone(s);
}

static void on_launcher_exit(void *arg, int status) {
    struct supervisor *s = arg;
    s->world.launcher = 0;
    s->world.launcher_status = status;
    loop_timer_set(s->loop, &s->world.exit_timer, 0);
}

/* ---- start */

/* An error of a rank comes with its last words too, and is shown then. What a launcher says is of
 * interest while it starts; of what ended we speak ourselves. */
static void on_launcher_line(void *arg, const char *line, bool is_ours) {
    struct supervisor *s = arg;
    if (is_ours ? strstr(line, ": error: ") != NULL : s->world.state != WORLD_STARTING)
        return;
    progress_say(&s->progress, "%s", line);
}

static int make_ranks(struct world *w, uint32_t size, struct err *err) {
    free_ranks(w);
    w->ranks = calloc(size, sizeof *w->ranks);
    if (!w->ranks)
        return err_set(err, ENOMEM, "no memory");
    w->size = size;
    for (uint32_t r = 0; r < size; r++)
        w->ranks[r].pidfd = w->ranks[r].doorbell_fd = -1;
    for (uint32_t r = 0; r < size; r++)
        if ((w->ranks[r].doorbell_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
            return err_set(err, errno, "eventfd: %s", strerror(errno));
    return 0;
}

int world_start(struct supervisor *s, struct err *err) {
    struct world *w = &s->world;
    struct launch *l = malloc(sizeof *l);
    int output_fd = -1;
    if (!l)
        return err_set(err, ENOMEM, "no memory");
    w->end_timer = (struct loop_timer){.fn = on_end_timer, .arg = s};
    w->exit_timer = (struct loop_timer){.fn = on_exit_timer, .arg = s};
    w->is_broken_snapshot = false;
    w->doubtful_ns = 0;
    int rc = make_ranks(w, (uint32_t)s->config.ranks, err);
    if (!rc)
        rc = catalogue_next_epoch(s->rundir.path, &w->epoch, err);
    rundir_clear_tmp(&s->rundir);
    if (!rc)
        rc = launch_prepare(&s->config, s->rundir.path, w->epoch, l, err);
    if (!rc &&
        output_open(s->loop, s->rundir.path, "run", on_launcher_line, s, &w->output, &output_fd))
        rc = err_set(err, errno, "no pipe: %s", strerror(errno));
    if (!rc) {
        snapshots_choose_origin(s, w->resume_name);
        struct child_args a = {
            .argv = l->argv, .env = l->env, .own_session = true, .output_fd = output_fd};
        rc = child_start(&a, &w->launcher, err);
        close(output_fd);
    }
    free(l);
    if (!rc && loop_child(s->loop, w->launcher, on_launcher_exit, s))
        rc = err_set(err, ENOMEM, "no memory");
    if (rc)
        return rc;
    w->state = WORLD_STARTING;
    record_attempt(&s->record, w->epoch, w->epoch, w->size, NULL);
    supervisor_event(s, "world", "epoch %" PRIu64 " of %u ranks starts %s%s", w->epoch, w->size,
                     *w->resume_name ? "from snapshot " : "from the beginning", w->resume_name);
    return 0;
}

/* ---- ranks */

static uint32_t rank_number(const struct supervisor *s, const struct peer *p) {
    uint32_t r = 0;
    while (r < s->world.size && s->world.ranks[r].peer != p)
        r++;
    return r;
}

static void welcome(struct supervisor *s, uint32_t r) {
    struct world *w = &s->world;
    struct msg_rank_welcome m = {.gen = s->gen};
    struct enc config = {0};
    char *model = NULL;
    config_print(&s->config, false, &config);
    rundir_model(&s->rundir, &model, NULL);
    snprintf(m.run_dir, sizeof m.run_dir, "%s", s->rundir.path);
    if (*w->resume_name)
        snapshots_path(s, w->resume_name, m.resume_dir, sizeof m.resume_dir);
    m.config = (struct blob){config.data, config.len_bytes};
    if (model)
        m.model_config = (struct blob){(const uint8_t *)model, strlen(model)};
    peer_send(w->ranks[r].peer, MSG_RANK_WELCOME, &m, &w->ranks[r].doorbell_fd, 1);
    for (uint32_t i = 0; r == 0 && i < w->size; i++) {
        struct msg_doorbell d = {.rank = i};
        peer_send(w->ranks[r].peer, MSG_DOORBELL, &d, &w->ranks[i].doorbell_fd, 1);
    }
    free(model);
    enc_free(&config);
}

static int take_layout(struct world *w, const struct msg_rank_ready *m, struct err *err) {
    struct dec d = dec_of(m->layout.data, m->layout.len_bytes);
    struct layout layout;
    int rc = layout_decode(&d, &layout, err);
    if (rc)
        return rc;
    if (layout.world_size != w->size) {
        layout_free(&layout);
        return err_set(err, EPROTO, "rank 0 speaks of %u ranks", layout.world_size);
    }
    char *model = strndup((const char *)m->model_config.data, m->model_config.len_bytes);
    enc_reset(&w->layout_bytes);
    enc_bytes(&w->layout_bytes, m->layout.data, m->layout.len_bytes);
    if (!model || w->layout_bytes.failed) {
        free(model);
        layout_free(&layout);
        return err_set(err, ENOMEM, "no memory");
    }
    if (w->has_layout)
        layout_free(&w->layout);
    free(w->model_config);
    w->layout = layout;
    w->has_layout = true;
    w->model_config = model;
    return 0;
}

/* What is fixed from the first start on is kept now that it is known to work. */
static int keep_first(struct supervisor *s, const struct msg_rank_ready *m, struct err *err) {
    char *kept = NULL;
    int rc = rundir_fingerprint(&s->rundir, m->fingerprint, err);
    if (!rc)
        rc = rundir_model(&s->rundir, &kept, err);
    if (!rc && !kept)
        rc = rundir_save_model(&s->rundir, s->world.model_config, strlen(s->world.model_config),
                               err);
    free(kept);
    return rc;
}

/* What a rank says of its device; of what there is no memory to keep, nothing is shown. */
static void take_device(struct rank *rank, uint32_t r, const struct msg_rank_ready *m) {
    struct msg_rank_device *d = &rank->device;
    rank->peak_flops = m->peak_flops;
    d->rank = r;
    memcpy(d->device, m->device, sizeof d->device);
    memcpy(d->device_name, m->device_name, sizeof d->device_name);
    memcpy(d->device_id, m->device_id, sizeof d->device_id);
    enc_reset(&rank->memory);
    enc_bytes(&rank->memory, m->memory.data, m->memory.len_bytes);
    if (!rank->memory.failed)
        d->memory = (struct blob){rank->memory.data, rank->memory.len_bytes};
}

/* All ranks are ready. */
static void sum_devices(struct world *w) {
    struct mfu_device *devices = calloc(w->size, sizeof *devices);
    for (uint32_t r = 0; devices && r < w->size; r++)
        devices[r] = (struct mfu_device){w->ranks[r].peak_flops, w->ranks[r].device.device_id};
    w->peak_flops = devices ? mfu_peak(devices, w->size) : 0;
    free(devices);
}

static void on_ready(struct supervisor *s, uint32_t r, const struct msg_rank_ready *m) {
    struct world *w = &s->world;
    struct err err = {0};
    if (w->state != WORLD_STARTING)
        return;
    if (r == 0) {
        if (take_layout(w, m, &err) || keep_first(s, m, &err)) {
            supervisor_world_failed(s, err.text, true);
            return;
        }
        s->goal.step = m->step;
        s->gen = m->gen > s->gen ? m->gen : s->gen;
        snprintf(s->progress.summary, sizeof s->progress.summary, "%s", m->summary);
        w->flops_per_token = m->flops_per_token;
        memcpy(w->device, m->device, sizeof w->device);
        memcpy(w->note, m->note, sizeof w->note);
    }
    take_device(&w->ranks[r], r, m);
    w->ranks[r].ready = true;
    for (uint32_t i = 0; i < w->size; i++)
        if (!w->ranks[i].ready)
            return;
    sum_devices(w);
    w->state = WORLD_READY;
    w->was_ready = true;
    supervisor_world_ready(s, s->gen, s->goal.step, s->progress.summary);
}

/* Rank 0 says that it rests, while no boundary said so: then there was nothing to report. */
static void check_doubt(struct supervisor *s, const struct msg_rank_alive *m) {
    struct world *w = &s->world;
    bool doubtful = w->state == WORLD_READY && m->phase == RANK_WAITING && !s->goal.waiting &&
                    s->goal.ordered <= m->step && m->step == s->goal.step;
    uint64_t now = loop_now_ns();
    if (!doubtful)
        w->doubtful_ns = 0;
    else if (!w->doubtful_ns)
        w->doubtful_ns = now;
    else if (now - w->doubtful_ns > DOUBT_MS * 1000000ull) {
        w->doubtful_ns = 0;
        supervisor_rests(s);
    }
}

static void on_alive(struct supervisor *s, uint32_t r, const struct msg_rank_alive *m) {
    s->world.ranks[r].alive = *m;
    if (r == 0)
        check_doubt(s, m);
}

static void on_bye(struct supervisor *s, uint32_t r, const struct msg_rank_bye *m) {
    struct world *w = &s->world;
    w->ranks[r].said_bye = true;
    if (w->state == WORLD_LEAVING && m->code == 0)
        return;
    char why[MSG_TEXT_BYTES + 32];
    if (m->code == EBADMSG && w->state == WORLD_STARTING)
        w->is_broken_snapshot = true;
    snprintf(why, sizeof why, "%s%s",
             *m->text ? m->text : "a rank left: ", *m->text ? "" : err_name((int)m->code));
    /* What a rank says of its configuration before it is ready is not going to change. */
    supervisor_world_failed(s, why, !w->was_ready && !w->is_broken_snapshot);
}

static bool rank_may_send(uint16_t type) {
    switch (type) {
    case MSG_RANK_READY:
    case MSG_RANK_ALIVE:
    case MSG_RANK_BYE:
    case MSG_BOUNDARY:
    case MSG_TAKE_RESERVED:
    case MSG_TAKE_DONE:
    case MSG_TAKE_WRITTEN:
    case MSG_RESTORED:
        return true;
    default:
        return false;
    }
}

static void on_rank_frame(void *arg, struct peer *p, struct frame *f) {
    struct supervisor *s = arg;
    union {
        struct msg_rank_ready ready;
        struct msg_rank_alive alive;
        struct msg_rank_bye bye;
        struct msg_boundary boundary;
        struct msg_take_reserved reserved;
        struct msg_take_done done;
        struct msg_take_written written;
        struct msg_restored restored;
    } m;
    uint32_t r = rank_number(s, p);
    if (r == s->world.size)
        return;
    s->world.ranks[r].last_seen_ns = loop_time_ns();
    s->world.ranks[r].silent_s = 0;
    if (!rank_may_send(f->type) || msg_decode(f->type, f->payload, f->len_bytes, &m)) {
        log_warn("rank %u: %s is not understood", r, msg_type_name(f->type));
        return;
    }
    switch (f->type) {
    case MSG_RANK_READY:
        on_ready(s, r, &m.ready);
        break;
    case MSG_RANK_ALIVE:
        on_alive(s, r, &m.alive);
        break;
    case MSG_RANK_BYE:
        on_bye(s, r, &m.bye);
        break;
    case MSG_BOUNDARY:
        supervisor_on_boundary(s, &m.boundary);
        break;
    case MSG_TAKE_RESERVED:
        wide_on_reserved(s, &m.reserved);
        break;
    case MSG_TAKE_DONE:
        wide_on_done(s, &m.done);
        break;
    case MSG_TAKE_WRITTEN:
        snapshots_on_written(s, r, &m.written);
        break;
    case MSG_RESTORED:
        commands_on_restored(s, &m.restored);
        break;
    default:
        break;
    }
}

static void on_rank_end(void *arg, struct peer *p) {
    struct supervisor *s = arg;
    struct world *w = &s->world;
    uint32_t r = rank_number(s, p);
    if (r == w->size)
        return;
    bool expected = w->state == WORLD_LEAVING || w->state == WORLD_ENDING;
    peer_close(p);
    w->ranks[r].peer = NULL;
    if (expected) {
        world_check_gone(s);
        return;
    }
    char why[80];
    snprintf(why, sizeof why, "rank %u (process %" PRId64 ") is gone", r, w->ranks[r].pid);
    supervisor_world_failed(s, why, false);
}

/* Counted, not timed: when all were stopped together nobody was silent. */
void world_tick(struct supervisor *s) {
    double limit = s->config.comm_timeout;
    char why[128];
    if (limit < SILENCE_MIN_S)
        limit = SILENCE_MIN_S;
    for (uint32_t r = 0; r < s->world.size && world_is_ready(s); r++) {
        struct rank *rank = &s->world.ranks[r];
        if (++rank->silent_s <= limit)
            continue;
        snprintf(why, sizeof why, "rank %u (process %" PRId64 ") gave no sign of life for %.0f s",
                 r, rank->pid, limit);
        supervisor_world_failed(s, why, false);
    }
}

static bool check_hello(struct supervisor *s, const struct msg_rank_hello *m, char why[256]) {
    const struct world *w = &s->world;
    why[0] = '\0';
    if (w->state != WORLD_STARTING || m->epoch != w->epoch)
        return false; /* of a world that is over: not worth a word */
    if (strcmp(m->build, PACKAGE_VERSION) != 0)
        snprintf(why, 256, "gatherfs-rank is of build %s, this is %s", m->build, PACKAGE_VERSION);
    else if (m->world_size != w->size)
        snprintf(
            why, 256,
            "rank %u finds itself in a world of %u, not of %u: the ranks were built with another "
            "MPI than that of %s",
            m->rank, m->world_size, w->size, GFS_MPI_LAUNCHER);
    else if (m->rank >= w->size || w->ranks[m->rank].peer)
        snprintf(why, 256, "there is more than one rank %u", m->rank);
    return !*why;
}

void world_adopt(struct supervisor *s, struct peer *p, const struct msg_rank_hello *hello) {
    char why[256];
    if (!check_hello(s, hello, why)) {
        peer_close(p);
        if (*why)
            supervisor_world_failed(s, why, true);
        return;
    }
    struct rank *r = &s->world.ranks[hello->rank];
    struct ucred cred;
    socklen_t len = sizeof cred;
    r->peer = p;
    r->pid = (int64_t)hello->pid;
    r->last_seen_ns = loop_time_ns();
    if (getsockopt(peer_fd(p), SOL_SOCKET, SO_PEERCRED, &cred, &len) == 0)
        r->pidfd = (int)syscall(SYS_pidfd_open, cred.pid, 0);
    if (r->pidfd >= 0)
        loop_watch(s->loop, r->pidfd, POLLIN, on_pidfd, s);
    peer_set_handlers(p, on_rank_frame, on_rank_end, s);
    welcome(s, hello->rank);
}

/* ---- talking to them */

bool world_is_ready(const struct supervisor *s) { return s->world.state == WORLD_READY; }

void world_send(struct supervisor *s, uint32_t rank, uint16_t type, const void *msg) {
    if (rank < s->world.size)
        peer_send(s->world.ranks[rank].peer, type, msg, NULL, 0);
}

void world_send_all(struct supervisor *s, uint16_t type, const void *msg) {
    for (uint32_t r = 0; r < s->world.size; r++)
        world_send(s, r, type, msg);
}

void world_orders(struct supervisor *s) {
    if (!world_is_ready(s))
        return;
    struct enc config = {0};
    char value[KNOB_TEXT_BYTES];
    for (size_t i = 0; i < knob_count; i++)
        if (knob_table[i].class == KNOB_LIVE &&
            !config_get(&s->config, &knob_table[i], value, sizeof value))
            enc_printf(&config, "%s = %s\n", knob_table[i].name, value);
    struct msg_orders m = {.goal_step = s->goal.ordered, .config = {config.data, config.len_bytes}};
    world_send_all(s, MSG_ORDERS, &m);
    enc_free(&config);
}

void world_quit(struct supervisor *s) {
    struct msg_quit m = {0};
    s->world.state = WORLD_LEAVING;
    world_send(s, 0, MSG_QUIT, &m);
    loop_timer_set(s->loop, &s->world.end_timer, WORLD_LEAVE_MS);
}

static void meet(struct supervisor *s, uint32_t r) {
    int pair[2];
    if (link_pair(pair)) {
        log_warn("no socket pair between rank %u and the mount: %s", r, strerror(errno));
        return;
    }
    struct msg_daemon_link to_rank = {.session = s->mountd.session};
    struct msg_rank_link to_daemon = {.epoch = s->world.epoch, .rank = r};
    peer_send(s->world.ranks[r].peer, MSG_DAEMON_LINK, &to_rank, &pair[0], 1);
    peer_send(s->mountd.peer, MSG_RANK_LINK, &to_daemon, &pair[1], 1);
    close(pair[0]);
    close(pair[1]);
}

void world_meet_daemon(struct supervisor *s) {
    struct world *w = &s->world;
    if (!s->mountd.is_ready)
        return;
    struct msg_world m = {.epoch = w->epoch};
    if (world_is_ready(s)) {
        m.world_size = w->size;
        m.layout = (struct blob){w->layout_bytes.data, w->layout_bytes.len_bytes};
        m.model_config = (struct blob){(const uint8_t *)w->model_config, strlen(w->model_config)};
    }
    mountd_send(s, MSG_WORLD, &m);
    for (uint32_t r = 0; m.world_size && r < w->size; r++) {
        mountd_send(s, MSG_RANK_DEVICE, &w->ranks[r].device);
        meet(s, r);
    }
}

void world_meet_again(struct supervisor *s, const struct msg_rank_link *m) {
    const struct world *w = &s->world;
    if (s->mountd.is_ready && world_is_ready(s) && m->epoch == w->epoch && m->rank < w->size &&
        w->ranks[m->rank].peer)
        meet(s, m->rank);
}
