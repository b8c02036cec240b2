/* fake_world.c - the life of a world: its thread, its daemon, its directories. */
#include "config.h"

#include "fake_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "fake_mount.h"

enum { FAKE_BEAT_MS = 100 };

void fake_die(const char *what) {
    printf("Bail out! fake world: %s: %s\n", what, strerror(errno));
    exit(1);
}

uint64_t fake_now_ns(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- the model: units of odd sizes, a tensor of no elements, a name to encode, one of 4 MB */

static const struct tensor_spec fake_tensors[] = {
    {.name = "transformer.wte.weight", .ndim = 2, .shape = {101, 24}, .decay = true},
    {.name = "transformer.h.0.attn.weight", .ndim = 2, .shape = {67, 33}, .decay = true},
    {.name = "transformer.h.0.attn.bias", .ndim = 1, .shape = {33}},
    {.name = "transformer.h.0.none", .ndim = 2, .shape = {0, 3}},
    {.name = "transformer.h.1.mlp.weight", .ndim = 2, .shape = {1024, 1025}, .decay = true},
    {.name = "odd/name%1", .ndim = 3, .shape = {2, 3, 5}},
    {.name = "scale", .ndim = 0},
    {.name = "transformer.ln_f.weight", .ndim = 1, .shape = {24}},
};
static const uint32_t fake_units[] = {0, 1, 1, 1, 2, 2, 2, 0};
static const char *const fake_unit_names[] = {"root", "transformer.h.0", "transformer.h.1"};
const char fake_model_config[] =
    "{\"model_type\": \"gpt2\", \"vocab_size\": 101, \"n_embd\": 24, \"n_layer\": 2}";

/* ---- the thread */

static void beat(struct fake_world *f) {
    for (uint32_t r = 0; r < f->world_size; r++) {
        struct msg_rank_table m = {.rank = r,
                                   .pid = 1000 + r,
                                   .last_seen_ns = fake_now_ns(CLOCK_REALTIME),
                                   .rss_bytes = 1 << 20,
                                   .take_bytes = 0};
        snprintf(m.state, sizeof(m.state), "waiting");
        if (!f->ranks[r].dead)
            fake_to_daemon(f, MSG_RANK_TABLE, &m, NULL, 0);
    }
}

static void drain(struct fake_world *f, struct link *l, int rank) {
    struct frame fr;
    int end = link_fill(l);
    while (link_next(l, &fr) > 0) {
        if (rank < 0)
            fake_daemon_frame(f, &fr);
        else
            fake_rank_frame(f, (uint32_t)rank, &fr);
        if (rank >= 0 && f->ranks[rank].link != l)
            return; /* hung up by what it said */
    }
    if (end == 0)
        return;
    if (rank < 0) {
        link_close(l);
        f->link = NULL;
    } else {
        fake_rank_gone(&f->ranks[rank]);
    }
}

static void thread_turn(struct fake_world *f, const struct pollfd *fds, int who[], int count) {
    for (int i = 1; i < count; i++) {
        struct link *l = who[i] < 0 ? f->link : f->ranks[who[i]].link;
        if (l == NULL || link_fd(l) != fds[i].fd || fds[i].revents == 0)
            continue;
        if ((fds[i].revents & POLLOUT) != 0)
            link_flush(l);
        if ((fds[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0)
            drain(f, l, who[i]);
    }
}

static int thread_fds(const struct fake_world *f, struct pollfd *fds, int *who) {
    int n = 0;
    fds[n++] = (struct pollfd){.fd = f->wake_read, .events = POLLIN};
    for (int r = -1; r < (int)f->world_size; r++) {
        const struct link *l = r < 0 ? f->link : f->ranks[r].link;
        if (l == NULL)
            continue;
        who[n] = r;
        fds[n++] = (struct pollfd){.fd = link_fd(l),
                                   .events = (short)(POLLIN | (link_wants_write(l) ? POLLOUT : 0))};
    }
    return n;
}

static void *thread_main(void *arg) {
    struct fake_world *f = arg;
    uint64_t last_beat = 0;
    pthread_mutex_lock(&f->mutex);
    while (!f->stop) {
        struct pollfd fds[FAKE_MAX_RANKS + 2];
        int who[FAKE_MAX_RANKS + 2] = {0};
        int n = thread_fds(f, fds, who);
        pthread_mutex_unlock(&f->mutex);
        int got = poll(fds, (nfds_t)n, FAKE_BEAT_MS);
        char byte[64];
        if (got > 0 && fds[0].revents != 0)
            (void)!read(f->wake_read, byte, sizeof(byte));
        pthread_mutex_lock(&f->mutex);
        if (got > 0)
            thread_turn(f, fds, who, n);
        if (fake_now_ns(CLOCK_MONOTONIC) - last_beat > FAKE_BEAT_MS * UINT64_C(1000000)) {
            last_beat = fake_now_ns(CLOCK_MONOTONIC);
            beat(f);
        }
    }
    pthread_mutex_unlock(&f->mutex);
    return NULL;
}

void fake_lock(struct fake_world *f) { pthread_mutex_lock(&f->mutex); }
void fake_unlock(struct fake_world *f) {
    pthread_mutex_unlock(&f->mutex);
    (void)!write(f->wake, "x", 1);
}

bool fake_wait(struct fake_world *f, bool (*is)(struct fake_world *f), double seconds) {
    uint64_t until = fake_now_ns(CLOCK_MONOTONIC) + (uint64_t)(seconds * 1e9);
    for (;;) {
        pthread_mutex_lock(&f->mutex);
        bool done = is(f);
        pthread_mutex_unlock(&f->mutex);
        if (done || fake_now_ns(CLOCK_MONOTONIC) > until)
            return done;
        usleep(2000);
    }
}

/* ---- the daemon */

static bool is_ready(struct fake_world *f) { return f->ready; }

static void send_start(struct fake_world *f) {
    struct msg_daemon_start *m = calloc(1, sizeof(*m));
    struct enc e = {0};
    int fds[2] = {f->fuse_fd, f->requests_fd};
    config_print(&f->config, false, &e);
    m->session = ++f->session;
    m->offline = f->offline;
    m->mask_resend = f->mask_resend;
    snprintf(m->mountpoint, sizeof(m->mountpoint), "%s", f->mnt);
    snprintf(m->run_dir, sizeof(m->run_dir), "%s", f->run_dir);
    m->config = (struct blob){.data = e.data, .len_bytes = e.len_bytes};
    m->fuse_init = (struct blob){.data = f->init, .len_bytes = f->init_bytes};
    fake_to_daemon(f, MSG_DAEMON_START, m, fds, 2);
    enc_free(&e);
    free(m);
}

void fake_start_daemon(struct fake_world *f) {
    int fds[2];
    char path[512], number[16];
    const char *build = getenv("GFS_BUILD");
    snprintf(path, sizeof(path), "%s/gatherfs-mountd", build != NULL ? build : ".");
    if (link_pair(fds) != 0)
        fake_die("socketpair");
    pid_t pid = fork();
    if (pid < 0)
        fake_die("fork");
    if (pid == 0) {
        fcntl(fds[1], F_SETFD, 0);
        snprintf(number, sizeof(number), "%d", fds[1]);
        execl(path, "gatherfs-mountd", number, (char *)NULL);
        _exit(127);
    }
    close(fds[1]);
    fake_lock(f);
    f->daemon = pid;
    f->ready = false;
    f->link = link_open(fds[0], FAKE_OUTBOX_BYTES);
    send_start(f);
    if (!f->offline) {
        fake_list_snapshots(f);
        for (uint32_t i = 0; i < f->pin_count; i++)
            fake_send_pin(f, &f->pins[i], f->pins[i].epoch != 0 ? PIN_READY : PIN_RESERVING, 0);
        fake_send_world(f);
        /* Ranks offer their pins to each new daemon. */
        for (uint32_t i = 0; i < f->pin_count; i++)
            if (f->pins[i].epoch == f->epoch)
                fake_send_wide(f, f->pins[i].take, f->has_grads ? ARRAY_MASK_ALL : ARRAY_MASK_STATE,
                               f->pins[i].gen);
        fake_send_status(f);
    }
    fake_unlock(f);
    if (!fake_wait(f, is_ready, 10))
        fake_die("the daemon did not get ready");
}

void fake_kill_daemon(struct fake_world *f) {
    kill(f->daemon, SIGKILL);
    waitpid(f->daemon, NULL, 0);
    fake_lock(f);
    link_close(f->link);
    f->link = NULL;
    f->daemon = 0;
    fake_unlock(f);
}

/* ---- life */

static struct fake_world *fake_new(void) {
    struct fake_world *f = calloc(1, sizeof(*f));
    int fds[2];
    if (f == NULL || pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0)
        fake_die("fake world");
    f->wake_read = fds[0];
    f->wake = fds[1];
    pthread_mutex_init(&f->mutex, NULL);
    snprintf(f->dir, sizeof(f->dir), "%s/gatherfs-mount-XXXXXX",
             getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp");
    if (mkdtemp(f->dir) == NULL)
        fake_die("mkdtemp");
    snprintf(f->run_dir, sizeof(f->run_dir), "%s/run", f->dir);
    snprintf(f->mnt, sizeof(f->mnt), "%s/mnt", f->dir);
    if (mkdir(f->mnt, 0700) != 0)
        fake_die("mkdir");
    config_defaults(&f->config);
    f->config.read_timeout = 2;
    f->epoch = 3;
    f->gen = 10;
    f->step = 10;
    f->next_take = 100;
    f->next_object = 1;
    f->status.state = RUN_PAUSED;
    f->status.goal_step = 10;
    f->status.loss = f->status.grad_norm = f->status.clip_factor = NAN;
    f->status.lr = 0.001;
    f->status.tokens_per_second = f->status.step_seconds = f->status.eta_seconds = NAN;
    f->status.mfu = NAN;
    f->status.time_ns = fake_now_ns(CLOCK_REALTIME);
    f->fuse_fd = fake_mount(f->mnt, f->config.allow_other);
    f->requests_fd = memfd_create("requests", MFD_CLOEXEC);
    if (f->requests_fd < 0)
        fake_die("memfd_create");
    return f;
}

static void fake_run_dir(struct fake_world *f) {
    char path[400];
    struct err err = {0};
    snprintf(path, sizeof(path), "%s/log", f->run_dir);
    if (mkdir(f->run_dir, 0700) != 0 || mkdir(path, 0700) != 0)
        fake_die("mkdir");
    fake_append_line(f, "metrics.tsv",
                     "step\tattempt\tepoch\tgen\tloss\tgrad_norm\tclip_factor\tlr\ttokens\tstep_"
                     "seconds\ttime\n");
    fake_append_line(f, "events", "started\n");
    fake_append_line(f, "log/run.log", "the first line of the log\n");
    if (catalogue_open(f->run_dir, &f->catalogue, &err) == 0) {
        catalogue_run(f->catalogue, "test", "seed = 1\n");
        catalogue_flush(f->catalogue, true);
    }
    struct enc e = {0};
    config_print(&f->config, false, &e);
    snprintf(path, sizeof(path), "%s/config", f->run_dir);
    file_replace(path, e.data, e.len_bytes, &err);
    enc_free(&e);
}

static void fake_go(struct fake_world *f) {
    if (pthread_create(&f->thread, NULL, thread_main, f) != 0)
        fake_die("thread");
    fake_start_daemon(f);
}

struct fake_world *fake_start(uint32_t world_size, const char *extra_config) {
    struct err err = {0};
    struct fake_world *f = fake_new();
    if (extra_config != NULL && config_parse(&f->config, extra_config, "test", NULL, &err) != 0)
        fake_die(err.text);
    fake_run_dir(f);
    f->world_size = world_size;
    f->world_up = true;
    for (uint32_t r = 0; r < world_size; r++)
        f->ranks[r].gen = f->gen;
    if (layout_build(fake_tensors, fake_units, sizeof(fake_units) / sizeof(fake_units[0]),
                     fake_unit_names, 3, world_size, LAYOUT_SHARD_ALIGN_ELEMS, &f->layout,
                     &err) != 0)
        fake_die(err.text);
    fake_go(f);
    return f;
}

struct fake_world *fake_start_offline(const char *run_dir) {
    struct fake_world *f = fake_new();
    snprintf(f->run_dir, sizeof(f->run_dir), "%s", run_dir);
    f->offline = true;
    fake_go(f);
    return f;
}

void fake_end(struct fake_world *f) {
    struct err err = {0};
    fake_lock(f);
    f->stop = true;
    fake_unlock(f);
    pthread_join(f->thread, NULL);
    fake_unmount(f->mnt);
    if (f->daemon > 0) {
        kill(f->daemon, SIGKILL);
        waitpid(f->daemon, NULL, 0);
    }
    link_close(f->link);
    close(f->fuse_fd);
    close(f->requests_fd);
    for (uint32_t r = 0; r < f->world_size; r++)
        fake_rank_gone(&f->ranks[r]);
    if (f->catalogue != NULL)
        catalogue_close(f->catalogue);
    char *name = strrchr(f->dir, '/');
    *name++ = '\0';
    int at = open(f->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file_remove_tree(at, name, &err) != 0)
        printf("# left behind: %s\n", err.text);
    close(at);
    layout_free(&f->layout);
    free(f->init);
    free(f);
}
