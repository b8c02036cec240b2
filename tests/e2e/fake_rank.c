/* fake_rank.c - a rank without training, for tests of the supervisor: GATHERFS_RANK_PROGRAM names
 * it. It speaks the whole rank side, sleeps instead of stepping, and fails on demand:
 *
 *   FAKE_STEP_MS=N       a step takes N milliseconds (20)
 *   FAKE_BYE=CODE:TEXT   leaves with these last words before it is ready
 *   FAKE_DIE_AT=STEP     is killed by itself when it has made this step
 *   FAKE_BROKEN=NAME     finds the snapshot NAME damaged when it is to start from it
 *   FAKE_FULL=FILE       while FILE exists, snapshots fail with ENOSPC
 *   FAKE_POOR=FILE       while FILE exists, there is no memory for takes
 *   FAKE_WORLD=N         finds itself in a world of N ranks
 *   FAKE_FINGERPRINT=N   of its data (1)
 *   FAKE_PEAK=FLOPS      of its device, a second (0: unknown); a token takes 1000
 *   FAKE_NOTE=TEXT       what it has to say of its device
 *   FAKE_GPUS=N          as many are listed by --devices (0) */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shard/layout.h"
#include "store/snapshot.h"
#include "wire/msg.h"

enum { FAKE_MAX_WIDES = 16, FAKE_OUTBOX_BYTES = 1 << 20, FAKE_TOKENS = 64 };

struct fake_wide {
    uint64_t take;
    uint32_t mask;
    bool used;
};

struct fake {
    struct link *link;
    struct frame frame;
    struct layout layout;
    uint32_t rank, world_size;
    uint64_t epoch, gen, step, goal, reported_goal, step_due_ms;
    bool ready, quit, reported_waiting, stepping;
    struct fake_wide wides[FAKE_MAX_WIDES];
};

static uint64_t number_of(const char *name, uint64_t fallback) {
    const char *value = getenv(name);
    uint64_t n;
    return value && parse_u64(value, &n) == 0 ? n : fallback;
}

static bool file_named_by(const char *name) {
    const char *path = getenv(name);
    return path && access(path, F_OK) == 0;
}

static uint64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void say(struct fake *f, uint16_t type, const void *msg) {
    if (msg_send(f->link, type, 0, msg, NULL, 0))
        exit(1);
}

static void make_layout(struct fake *f) {
    static const char *const units[] = {"root"};
    struct tensor_spec tensors[2] = {{.name = "a.weight", .ndim = 2, .shape = {8, 8}},
                                     {.name = "b.bias", .ndim = 1, .shape = {8}}};
    uint32_t unit_of[2] = {0, 0};
    struct err err = {0};
    if (layout_build(tensors, unit_of, 2, units, 1, f->world_size, LAYOUT_SHARD_ALIGN_ELEMS,
                     &f->layout, &err))
        exit(1);
}

/* ---- boundaries */

static bool is_waiting(const struct fake *f) { return f->step >= f->goal; }

/* Only rank 0 reports; a step, or another goal. */
static void report(struct fake *f, bool stepped) {
    bool waiting = is_waiting(f);
    if (f->rank != 0 || (!stepped && f->goal == f->reported_goal && waiting == f->reported_waiting))
        return;
    struct msg_boundary m = {.epoch = f->epoch,
                             .gen = f->gen,
                             .step = f->step,
                             .goal_step = f->goal,
                             .first_of_step = stepped,
                             .loss = 1.0 / (double)(f->step + 1),
                             .grad_norm = 1,
                             .clip_factor = 1,
                             .lr = 0.001,
                             .step_seconds = (double)number_of("FAKE_STEP_MS", 20) / 1000,
                             .tokens = FAKE_TOKENS,
                             .waiting = waiting};
    f->reported_goal = f->goal;
    f->reported_waiting = waiting;
    say(f, MSG_BOUNDARY, &m);
}

static void make_step(struct fake *f) {
    f->stepping = false;
    f->step++;
    f->gen++;
    report(f, true);
    if (f->step == number_of("FAKE_DIE_AT", 0))
        kill(getpid(), SIGKILL);
}

/* ---- wide takes */

static struct fake_wide *wide_of(struct fake *f, uint64_t take) {
    for (size_t i = 0; i < FAKE_MAX_WIDES; i++)
        if (f->wides[i].used && f->wides[i].take == take)
            return &f->wides[i];
    return NULL;
}

static void on_reserve(struct fake *f, const struct msg_take_reserve *m) {
    struct msg_take_reserved answer = {.take = m->take, .code = ENOBUFS};
    for (size_t i = 0; i < FAKE_MAX_WIDES && answer.code && !file_named_by("FAKE_POOR"); i++) {
        if (f->wides[i].used)
            continue;
        f->wides[i] = (struct fake_wide){.take = m->take, .mask = m->array_mask, .used = true};
        answer.code = 0;
    }
    say(f, MSG_TAKE_RESERVED, &answer);
}

/* One rank: what is fixed is copied at once. */
static void on_fix(struct fake *f, const struct msg_take_fix *m) {
    if (!wide_of(f, m->number))
        return;
    struct msg_take_done done = {.take = m->number, .gen = f->gen, .step = f->step};
    say(f, MSG_TAKE_DONE, &done);
}

static void on_write(struct fake *f, const struct msg_take_write *m) {
    const struct fake_wide *w = wide_of(f, m->take);
    struct err err = {0};
    char state[120], *entry = NULL;
    if (!w)
        return;
    uint8_t *dump = calloc(1, layout_dump_bytes(&f->layout, w->mask, f->rank) + 1);
    snprintf(state, sizeof state, "{\"sequences\":%" PRIu64 "}", f->step);
    if (file_named_by("FAKE_FULL"))
        err_set(&err, ENOSPC, "the disk is full");
    else
        snapshot_write_rank(&store_io_posix, m->dir, &f->layout, f->rank, w->mask, dump,
                            m->snapshot, NULL, NULL, &entry, &err);
    struct msg_take_written written = {.take = m->take, .code = (uint32_t)err.code};
    memcpy(written.text, err.text, sizeof written.text);
    if (entry)
        written.entry = (struct blob){(const uint8_t *)entry, strlen(entry)};
    written.state = (struct blob){(const uint8_t *)state, strlen(state)};
    say(f, MSG_TAKE_WRITTEN, &written);
    free(entry);
    free(dump);
}

/* ---- start, restore */

static void leave(struct fake *f, uint32_t code, const char *text) {
    struct msg_rank_bye m = {.code = code};
    snprintf(m.text, sizeof m.text, "%s", text);
    say(f, MSG_RANK_BYE, &m);
    exit(code ? 1 : 0);
}

static int step_of_snapshot(const char *dir, uint64_t *step, struct err *err) {
    struct snapshot *s;
    int rc = snapshot_open_dir(dir, &s, err);
    if (rc)
        return rc;
    *step = snapshot_get_info(s)->step;
    snapshot_close(s);
    return 0;
}

static void on_restore(struct fake *f, const struct msg_restore *m) {
    struct err err = {0};
    bool rested = is_waiting(f);
    step_of_snapshot(m->dir, &f->step, &err);
    if (rested)
        f->goal = f->step; /* as the real ranks: what rested rests on */
    f->gen++;
    f->reported_goal = ~0ull;
    report(f, false);
    struct msg_restored answer = {
        .command = m->command, .gen = f->gen, .step = f->step, .code = (uint32_t)err.code};
    memcpy(answer.text, err.text, sizeof answer.text);
    say(f, MSG_RESTORED, &answer);
}

static void on_welcome(struct fake *f, const struct msg_rank_welcome *m) {
    const char *bye = getenv("FAKE_BYE"), *broken = getenv("FAKE_BROKEN");
    const char *name = strrchr(m->resume_dir, '/');
    struct err err = {0};
    static const char model[] = "{\"model_type\":\"fake\"}", memory[] = "host/all\t7\n";
    if (bye)
        leave(f, (uint32_t)atoi(bye), strchr(bye, ':') ? strchr(bye, ':') + 1 : "");
    if (broken && name && strcmp(name + 1, broken) == 0)
        leave(f, EBADMSG, "a checksum does not match");
    f->gen = m->gen + 1;
    if (*m->resume_dir && step_of_snapshot(m->resume_dir, &f->step, &err))
        leave(f, (uint32_t)err.code, err.text);
    struct enc layout = {0};
    layout_encode(&f->layout, &layout);
    struct msg_rank_ready ready = {.gen = f->gen,
                                   .step = f->step,
                                   .layout = {layout.data, layout.len_bytes},
                                   .model_config = {(const uint8_t *)model, sizeof model - 1},
                                   .summary = "a double of a rank",
                                   .numel = layout_numel(&f->layout),
                                   .fingerprint = number_of("FAKE_FINGERPRINT", 1),
                                   .flops_per_token = 1000,
                                   .peak_flops = (double)number_of("FAKE_PEAK", 0),
                                   .device = "fake",
                                   .device_name = "a device of tests",
                                   .device_id = "one",
                                   .memory = {(const uint8_t *)memory, sizeof memory - 1}};
    if (getenv("FAKE_NOTE"))
        snprintf(ready.note, sizeof ready.note, "%s", getenv("FAKE_NOTE"));
    say(f, MSG_RANK_READY, &ready);
    enc_free(&layout);
    f->ready = true;
    f->reported_goal = ~0ull;
    report(f, false);
}

static void on_release(struct fake *f, const struct msg_take_release *m) {
    struct fake_wide *w = m->session == 0 ? wide_of(f, m->number) : NULL;
    if (w)
        w->used = false;
}

static bool supervisor_may_send(uint16_t type) {
    switch (type) {
    case MSG_RANK_WELCOME:
    case MSG_ORDERS:
    case MSG_TAKE_RESERVE:
    case MSG_TAKE_FIX:
    case MSG_TAKE_WRITE:
    case MSG_TAKE_RELEASE:
    case MSG_RESTORE:
    case MSG_QUIT:
        return true;
    default: /* what a double needs not */
        return false;
    }
}

static void on_frame(struct fake *f) {
    union {
        struct msg_rank_welcome welcome;
        struct msg_orders orders;
        struct msg_take_reserve reserve;
        struct msg_take_fix fix;
        struct msg_take_write write;
        struct msg_take_release release;
        struct msg_restore restore;
        struct msg_quit quit;
    } m;
    if (!supervisor_may_send(f->frame.type))
        return;
    if (msg_decode(f->frame.type, f->frame.payload, f->frame.len_bytes, &m))
        exit(1);
    switch (f->frame.type) {
    case MSG_RANK_WELCOME:
        on_welcome(f, &m.welcome);
        break;
    case MSG_ORDERS:
        f->goal = m.orders.goal_step;
        break;
    case MSG_TAKE_RESERVE:
        on_reserve(f, &m.reserve);
        break;
    case MSG_TAKE_FIX:
        on_fix(f, &m.fix);
        break;
    case MSG_TAKE_WRITE:
        on_write(f, &m.write);
        break;
    case MSG_TAKE_RELEASE:
        on_release(f, &m.release);
        break;
    case MSG_RESTORE:
        on_restore(f, &m.restore);
        break;
    case MSG_QUIT:
        leave(f, 0, "");
    }
}

static void turn(struct fake *f) {
    uint64_t now = now_ms();
    if (f->ready && !f->stepping && !is_waiting(f)) {
        f->stepping = true;
        f->step_due_ms = now + number_of("FAKE_STEP_MS", 20);
    }
    int left = f->stepping ? (int)(f->step_due_ms > now ? f->step_due_ms - now : 0) : -1;
    struct pollfd p = {.fd = link_fd(f->link), .events = POLLIN};
    poll(&p, 1, left);
    int end = p.revents ? link_fill(f->link) : 0;
    while (link_next(f->link, &f->frame) == 1)
        on_frame(f);
    if (end)
        exit(1);
    if (f->stepping && now_ms() >= f->step_due_ms)
        make_step(f);
    else if (f->ready && !f->stepping)
        report(f, false);
}

static int list_gpus(void) {
    uint64_t count = number_of("FAKE_GPUS", 0);
    for (uint64_t i = 0; i < count; i++)
        printf("%" PRIu64 " a GPU of tests 1024 bytes\n", i);
    if (count == 0)
        puts("no GPU: the double has none");
    return count ? 0 : 1;
}

int main(int argc, char **argv) {
    static struct fake f;
    if (argc > 1 && strcmp(argv[1], "--devices") == 0)
        return list_gpus();
    const char *run_dir = "";
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--run-dir") == 0)
            run_dir = argv[i + 1];
        else if (strcmp(argv[i], "--epoch") == 0)
            parse_u64(argv[i + 1], &f.epoch);
    }
    f.world_size = (uint32_t)number_of("FAKE_WORLD", 1);
    make_layout(&f);
    int fd = link_connect(run_dir, "socket");
    if (fd < 0 || !(f.link = link_open(fd, FAKE_OUTBOX_BYTES)))
        return 1;
    struct msg_rank_hello hello = {.epoch = f.epoch,
                                   .pid = (uint64_t)getpid(),
                                   .world_size = f.world_size,
                                   .build = PACKAGE_VERSION};
    say(&f, MSG_RANK_HELLO, &hello);
    for (;;)
        turn(&f);
}
