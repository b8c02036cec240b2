/* fake_world.c - supervisor and ranks in one thread. */
#include "config.h"

#include "fake_world.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
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
#include "base/segment.h"
#include "fake_mount.h"
#include "store/snapshot.h"

enum { FAKE_OUTBOX_BYTES = 64 << 20, FAKE_BEAT_MS = 100 };

struct fake_hold {
    struct fake_hold *next;
    struct msg_take take;
};

static void die(const char *what) {
    printf("Bail out! fake world: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now_ns(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

float fake_value(uint64_t epoch, uint64_t gen, uint32_t array, uint32_t unit, uint64_t elem) {
    uint64_t x = (epoch * 1000003 + gen) * 64 + array * 16 + unit;
    x = (x ^ elem * UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xbf58476d1ce4e5b9);
    return (float)(x >> 44) * 0.125f; /* 20 bits: exact, and never NaN */
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
static const char fake_model_config[] =
    "{\"model_type\": \"gpt2\", \"vocab_size\": 101, \"n_embd\": 24, \"n_layer\": 2}";

/* ---- ranks */

static void fill(const struct fake_world *f, uint64_t gen, uint32_t array, uint32_t unit,
                 uint64_t first, uint64_t count, float *out) {
    for (uint64_t i = 0; i < count; i++)
        out[i] = fake_value(f->epoch, gen, array, unit, first + i);
}

static void rank_reply(struct fake_world *f, uint32_t r, const struct msg_take_reply *m, int fd) {
    if (f->ranks[r].link != NULL)
        msg_send(f->ranks[r].link, MSG_TAKE_REPLY, 0, m, &fd, fd >= 0 ? 1 : 0);
}

static struct msg_take_reply reply_to(const struct msg_take *t, enum take_state state, uint64_t gen,
                                      uint64_t step) {
    return (struct msg_take_reply){.session = t->session,
                                   .number = t->number,
                                   .try = t->try,
                                   .epoch = t->epoch,
                                   .state = state,
                                   .gen = gen,
                                   .step = step};
}

/* A fresh segment for each copy, with the copy at a place that is not its beginning. */
static void rank_copy(struct fake_world *f, uint32_t r, const struct msg_take *t, uint64_t gen) {
    struct fake_rank *k = &f->ranks[r];
    const struct layout_unit *u = &f->layout.units[t->unit];
    struct msg_take_reply m = reply_to(t, TAKE_COPY, gen, gen);
    struct segment s = SEGMENT_EMPTY;
    uint64_t bytes = (t->hi - t->lo) * TENSOR_ELEM_BYTES;
    if (segment_create("fake-take", bytes + 64, false, &s) != 0)
        die("segment");
    m.offset_bytes = 64;
    fill(f, gen, t->array, t->unit, r * u->shard_elems + t->lo, t->hi - t->lo,
         (float *)(void *)(s.base + 64));
    m.segment = ++k->next_segment;
    m.segment_bytes = s.bytes;
    if (k->mode == FAKE_MISFITS)
        m.offset_bytes = (s.bytes - bytes / 2) & ~(uint64_t)3;
    rank_reply(f, r, &m, s.fd);
    segment_close(&s);
}

static void rank_hold(struct fake_rank *k, const struct msg_take *t) {
    struct fake_hold *h = calloc(1, sizeof(*h));
    h->take = *t;
    h->next = k->holds;
    k->holds = h;
}

static void rank_drop(struct fake_rank *k, uint64_t number) {
    for (struct fake_hold **at = &k->holds; *at != NULL;) {
        struct fake_hold *h = *at;
        if (h->take.number != number) {
            at = &h->next;
            continue;
        }
        *at = h->next;
        free(h);
    }
}

/* Every question is kept, for the agenda may fix it later. */
static void rank_answer(struct fake_world *f, uint32_t r, const struct msg_take *t) {
    struct fake_rank *k = &f->ranks[r];
    rank_drop(k, t->number);
    rank_hold(k, t);
    struct msg_take_reply m = reply_to(t, TAKE_NONE, 0, 0);
    if (t->array == ARRAY_GRADS && !f->has_grads) {
        rank_reply(f, r, &m, -1);
    } else if (t->want_gen > k->gen) {
        m.state = TAKE_HELD;
        rank_reply(f, r, &m, -1);
    } else if (t->want_gen != 0 && t->want_gen < k->gen) {
        m = reply_to(t, TAKE_PASSED, k->gen, k->gen);
        rank_reply(f, r, &m, -1);
    } else {
        rank_copy(f, r, t, k->gen);
    }
}

static void rank_noise(struct fake_world *f, uint32_t r, const struct msg_take *t) {
    struct msg_take strange[5] = {*t, *t, *t, *t, *t};
    strange[0].session++;
    strange[1].number += 1000000;
    strange[2].try += 7;
    strange[3].epoch--;
    strange[4].try--;
    for (int i = 0; i < 5; i++)
        rank_copy(f, r, &strange[i], f->ranks[r].gen + 40);
}

static void rank_send_unsealed(struct fake_world *f, uint32_t r, const struct msg_take *t) {
    int fd = memfd_create("unsealed", MFD_CLOEXEC);
    struct msg_take_reply m = reply_to(t, TAKE_COPY, f->ranks[r].gen, 0);
    m.segment = ++f->ranks[r].next_segment;
    m.segment_bytes = 8 << 20;
    if (fd < 0 || ftruncate(fd, 8 << 20) != 0)
        die("memfd");
    rank_reply(f, r, &m, fd);
    close(fd);
}

static void rank_take(struct fake_world *f, uint32_t r, const struct msg_take *t) {
    struct fake_rank *k = &f->ranks[r];
    struct msg_take_reply m;
    k->takes_asked++;
    switch (k->mode) {
    case FAKE_SILENT:
        rank_hold(k, t);
        return;
    case FAKE_PASSES:
        rank_drop(k, t->number);
        rank_hold(k, t);
        m = reply_to(t, TAKE_PASSED, k->gen, k->gen);
        rank_reply(f, r, &m, -1);
        return;
    case FAKE_FAILS:
        m = reply_to(t, TAKE_FAILED, 0, 0);
        m.code = ENOBUFS;
        rank_reply(f, r, &m, -1);
        return;
    case FAKE_NOISY:
        rank_noise(f, r, t);
        rank_answer(f, r, t);
        rank_copy(f, r, t, k->gen + 50);
        return;
    case FAKE_GARBAGE:
        (void)!write(link_fd(k->link), "this is no frame at all, is it?", 31);
        return;
    case FAKE_UNSEALED:
        rank_send_unsealed(f, r, t);
        return;
    case FAKE_RUNS:
        for (uint32_t i = 0; i < 2 * f->world_size; i++)
            fake_rank_step(f, i % f->world_size);
        rank_answer(f, r, t);
        return;
    default:
        rank_answer(f, r, t);
    }
}

/* The agenda: all ranks at one boundary, the newest that any has reached. */
static void agenda_fix(struct fake_world *f, const struct msg_take_fix *m) {
    uint64_t gen = 0;
    for (uint32_t r = 0; r < f->world_size; r++)
        gen = f->ranks[r].gen > gen ? f->ranks[r].gen : gen;
    f->ranks[0].fixes++;
    for (uint32_t r = 0; r < f->world_size; r++) {
        f->ranks[r].gen = gen;
        for (struct fake_hold *h = f->ranks[r].holds; h != NULL; h = h->next)
            if (h->take.number == m->number)
                rank_copy(f, r, &h->take, gen);
    }
    f->gen = gen > f->gen ? gen : f->gen;
}

static void rank_frame(struct fake_world *f, uint32_t r, struct frame *fr) {
    union {
        struct msg_take take;
        struct msg_take_fix fix;
        struct msg_take_release release;
    } m;
    if (msg_decode(fr->type, fr->payload, fr->len_bytes, &m) != 0)
        die("a malformed message to a rank");
    if (fr->type == MSG_TAKE)
        rank_take(f, r, &m.take);
    else if (fr->type == MSG_TAKE_FIX)
        agenda_fix(f, &m.fix);
    else if (fr->type == MSG_TAKE_RELEASE) {
        f->ranks[r].takes_released++;
        rank_drop(&f->ranks[r], m.release.number);
    }
}

void fake_rank_step(struct fake_world *f, uint32_t r) {
    struct fake_rank *k = &f->ranks[r];
    k->gen++;
    for (struct fake_hold *h = k->holds; h != NULL; h = h->next)
        if (h->take.want_gen == k->gen && k->mode != FAKE_SILENT)
            rank_copy(f, r, &h->take, k->gen);
}

/* The whole dump of a rank at a version. */
static struct segment rank_dump(const struct fake_world *f, uint32_t r, uint32_t mask,
                                uint64_t gen) {
    struct segment s;
    uint64_t bytes = layout_dump_bytes(&f->layout, mask, r);
    if (segment_create("fake-dump", bytes, false, &s) != 0)
        die("segment");
    for (uint32_t a = 0; a < ARRAY_COUNT; a++) {
        for (uint32_t u = 0; (mask >> a & 1) != 0 && u < f->layout.unit_count; u++) {
            uint64_t at = layout_dump_offset(&f->layout, mask, r, (enum array)a, u);
            fill(f, gen, a, u, r * f->layout.units[u].shard_elems,
                 layout_shard_valid(&f->layout, u, r), (float *)(void *)(s.base + at));
        }
    }
    return s;
}

static void send_wide(struct fake_world *f, uint64_t take, uint32_t mask, uint64_t gen) {
    for (uint32_t r = 0; r < f->world_size; r++) {
        struct segment s = rank_dump(f, r, mask, gen);
        struct msg_wide_segment m = {.take = take,
                                     .epoch = f->epoch,
                                     .gen = gen,
                                     .step = gen,
                                     .array_mask = mask,
                                     .bytes = layout_dump_bytes(&f->layout, mask, r)};
        if (f->ranks[r].link != NULL)
            msg_send(f->ranks[r].link, MSG_WIDE_SEGMENT, 0, &m, &s.fd, 1);
        segment_close(&s);
    }
}

/* ---- the supervisor's side of status and world */

static void to_daemon(struct fake_world *f, uint16_t type, const void *m, const int *fds,
                      uint32_t count) {
    if (f->link != NULL)
        msg_send(f->link, type, 0, m, fds, count);
}

void fake_send_status(struct fake_world *f) {
    struct enc e = {0};
    struct stat st;
    char path[400];
    config_print(&f->config, false, &e);
    f->status.epoch = f->epoch;
    f->status.gen = f->gen;
    f->status.step = f->step;
    f->status.world_size = f->world_size;
    snprintf(path, sizeof(path), "%s/metrics.tsv", f->run_dir);
    f->status.metrics_bytes = stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
    f->status.config = (struct blob){.data = e.data, .len_bytes = e.len_bytes};
    to_daemon(f, MSG_STATUS, &f->status, NULL, 0);
    f->status.config = (struct blob){0};
    enc_free(&e);
}

static void append_line(const struct fake_world *f, const char *name, const char *line) {
    char path[400];
    snprintf(path, sizeof(path), "%s/%s", f->run_dir, name);
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || file_write_all(fd, line, strlen(line)) != 0)
        die(path);
    close(fd);
}

void fake_metrics(struct fake_world *f) {
    char row[256];
    snprintf(row, sizeof(row),
             "%" PRIu64 "\t1\t%" PRIu64 "\t%" PRIu64 "\t%.9g\t1\t1\t0.001\t64\t0.1\t1\n", f->step,
             f->epoch, f->gen, f->status.loss);
    append_line(f, "metrics.tsv", row);
}

void fake_event(struct fake_world *f, const char *line) {
    char path[400];
    struct stat st;
    append_line(f, "events", line);
    snprintf(path, sizeof(path), "%s/events", f->run_dir);
    struct msg_event m = {.bytes = stat(path, &st) == 0 ? (uint64_t)st.st_size : 0};
    to_daemon(f, MSG_EVENT, &m, NULL, 0);
}

void fake_step(struct fake_world *f) {
    f->gen++;
    f->step++;
    f->has_grads = true;
    for (uint32_t r = 0; r < f->world_size; r++)
        while (f->ranks[r].gen < f->gen)
            fake_rank_step(f, r);
    f->status.loss = 4.0 / (1.0 + (double)f->step);
    f->status.grad_norm = f->status.clip_factor = 1;
    f->status.goal_step = f->step;
    f->status.time_ns = now_ns(CLOCK_REALTIME);
    fake_metrics(f);
    fake_send_status(f);
}

static void send_link(struct fake_world *f, uint32_t r) {
    int fds[2];
    struct msg_rank_link m = {.epoch = f->epoch, .rank = r};
    if (link_pair(fds) != 0)
        die("socketpair");
    link_close(f->ranks[r].link);
    f->ranks[r].link = link_open(fds[0], FAKE_OUTBOX_BYTES);
    f->ranks[r].dead = false;
    to_daemon(f, MSG_RANK_LINK, &m, &fds[1], 1);
    close(fds[1]);
}

static void send_world(struct fake_world *f) {
    struct enc e = {0};
    layout_encode(&f->layout, &e);
    struct msg_world m = {.epoch = f->epoch,
                          .world_size = f->world_up ? f->world_size : 0,
                          .layout = {.data = e.data, .len_bytes = e.len_bytes},
                          .model_config = {.data = (const uint8_t *)fake_model_config,
                                           .len_bytes = strlen(fake_model_config)}};
    to_daemon(f, MSG_WORLD, &m, NULL, 0);
    enc_free(&e);
    for (uint32_t r = 0; f->world_up && r < f->world_size; r++)
        send_link(f, r);
}

static void rank_gone(struct fake_rank *k) {
    /* A test may have forked: its child has the descriptor too. */
    if (k->link != NULL)
        shutdown(link_fd(k->link), SHUT_RDWR);
    link_close(k->link);
    k->link = NULL;
    k->dead = true;
    while (k->holds != NULL)
        rank_drop(k, k->holds->take.number);
}

void fake_rank_hangup(struct fake_world *f, uint32_t r) { rank_gone(&f->ranks[r]); }

void fake_world_down(struct fake_world *f) {
    f->world_up = false;
    for (uint32_t r = 0; r < f->world_size; r++)
        rank_gone(&f->ranks[r]);
    f->status.state = RUN_RESTARTING;
    send_world(f);
    fake_send_status(f);
}

void fake_world_up(struct fake_world *f) {
    f->epoch++;
    f->world_up = true;
    for (uint32_t r = 0; r < f->world_size; r++) {
        f->ranks[r].gen = f->gen;
        f->ranks[r].mode = FAKE_NORMAL;
    }
    f->status.state = RUN_PAUSED;
    f->status.attempt++;
    send_world(f);
    fake_send_status(f);
}

/* ---- pins, wide opens, snapshots */

static void send_pin(struct fake_world *f, const struct fake_pin *p, enum pin_state state,
                     uint32_t code) {
    struct enc e = {0};
    layout_encode(&f->layout, &e);
    struct msg_pin m = {.pin = p->id,
                        .take = p->take,
                        .state = state,
                        .code = code,
                        .epoch = p->epoch,
                        .gen = p->gen,
                        .step = p->step,
                        .array_mask = f->has_grads ? ARRAY_MASK_ALL : ARRAY_MASK_STATE,
                        .time_ns = p->time_ns,
                        .layout = {.data = e.data, .len_bytes = e.len_bytes},
                        .model_config = {.data = (const uint8_t *)fake_model_config,
                                         .len_bytes = strlen(fake_model_config)}};
    memcpy(m.name, p->name, sizeof(m.name));
    to_daemon(f, MSG_PIN, &m, NULL, 0);
    enc_free(&e);
}

void fake_pin_fix(struct fake_world *f, struct fake_pin *p) {
    p->epoch = f->epoch;
    p->gen = f->gen;
    p->step = f->step;
    send_pin(f, p, PIN_FIXED, 0);
    if (f->hold_pins < 2)
        send_wide(f, p->take, f->has_grads ? ARRAY_MASK_ALL : ARRAY_MASK_STATE, f->gen);
    send_pin(f, p, PIN_READY, 0);
}

static uint32_t make_pin(struct fake_world *f, const char *name) {
    if (f->pin_count == FAKE_MAX_PINS)
        return ENOSPC;
    struct fake_pin *p = &f->pins[f->pin_count++];
    *p = (struct fake_pin){
        .id = f->next_object++, .take = f->next_take++, .time_ns = now_ns(CLOCK_REALTIME)};
    snprintf(p->name, sizeof(p->name), "%.100s", name);
    send_pin(f, p, PIN_RESERVING, 0);
    if (f->hold_pins == 0 || f->hold_pins == 2)
        fake_pin_fix(f, p);
    return 0;
}

static uint32_t remove_pin(struct fake_world *f, const char *name) {
    for (uint32_t i = 0; i < f->pin_count; i++) {
        if (strcmp(f->pins[i].name, name) != 0)
            continue;
        send_pin(f, &f->pins[i], PIN_GONE, 0);
        f->pins[i] = f->pins[--f->pin_count];
        return 0;
    }
    return ENOENT;
}

static void wide_open(struct fake_world *f, const struct msg_wide_open *m) {
    struct msg_wide a = {.request = m->request,
                         .take = f->next_take++,
                         .epoch = f->epoch,
                         .gen = f->gen,
                         .step = f->step,
                         .state = PIN_RESERVING};
    f->wides_open++;
    to_daemon(f, MSG_WIDE, &a, NULL, 0);
    send_wide(f, a.take, m->array_mask, f->gen);
    a.state = PIN_READY;
    to_daemon(f, MSG_WIDE, &a, NULL, 0);
}

int fake_snapshot(struct fake_world *f, const char *name) {
    char path[512];
    char *entries[FAKE_MAX_RANKS] = {NULL};
    struct err err = {0};
    struct snapshot_info info = {.id = f->next_object++,
                                 .epoch = f->epoch,
                                 .gen = f->gen,
                                 .step = f->step,
                                 .time_ns = now_ns(CLOCK_REALTIME),
                                 .world_size = f->world_size,
                                 .array_mask = ARRAY_MASK_STATE,
                                 .attempt = 1};
    snprintf(info.name, sizeof(info.name), "%.100s", name);
    int rc = snapshot_begin(&store_io_posix, f->run_dir, name, path, sizeof(path), &err);
    for (uint32_t r = 0; rc == 0 && r < f->world_size; r++) {
        struct segment s = rank_dump(f, r, info.array_mask, f->gen);
        rc = snapshot_write_rank(&store_io_posix, path, &f->layout, r, info.array_mask, s.base,
                                 info.id, NULL, NULL, &entries[r], &err);
        segment_close(&s);
    }
    if (rc == 0)
        rc = snapshot_publish(&store_io_posix, f->run_dir, &info, &f->layout,
                              (const char *const *)entries, "{\"seed\": 1}", fake_model_config,
                              &err);
    for (uint32_t r = 0; r < f->world_size; r++)
        free(entries[r]);
    if (rc != 0) {
        printf("# snapshot %s: %s\n", name, err.text);
        return rc;
    }
    struct msg_snapshot_added m = {.snapshot = info.id};
    snprintf(m.name, sizeof(m.name), "%.100s", name);
    to_daemon(f, MSG_SNAPSHOT_ADDED, &m, NULL, 0);
    f->status.snapshot_count++;
    fake_send_status(f);
    return 0;
}

static uint32_t remove_snapshot(struct fake_world *f, const char *name) {
    struct snapshot_info *list;
    uint32_t count, broken, code = ENOENT;
    struct err err = {0};
    if (snapshot_list(f->run_dir, &list, &count, &broken, &err) != 0)
        return EIO;
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(list[i].name, name) != 0)
            continue;
        code = (uint32_t)-snapshot_remove(&store_io_posix, f->run_dir, name, &err);
        struct msg_snapshot_removed m = {.snapshot = list[i].id};
        to_daemon(f, MSG_SNAPSHOT_REMOVED, &m, NULL, 0);
    }
    free(list);
    snapshot_sweep(&store_io_posix, f->run_dir, &err);
    return code;
}

static void list_snapshots(struct fake_world *f) {
    struct snapshot_info *list;
    uint32_t count, broken;
    struct err err = {0};
    if (snapshot_list(f->run_dir, &list, &count, &broken, &err) != 0)
        return;
    for (uint32_t i = 0; i < count; i++) {
        struct msg_snapshot_added m = {.snapshot = list[i].id};
        memcpy(m.name, list[i].name, sizeof(m.name));
        to_daemon(f, MSG_SNAPSHOT_ADDED, &m, NULL, 0);
    }
    free(list);
}

/* ---- commands */

static void send_done(struct fake_world *f, const struct fake_command *c, const char *text) {
    struct msg_command_done m = {.code = c->code};
    struct msg_command_row row = {.number = (uint64_t)(c - f->commands) + 1, .code = c->code};
    memcpy(m.key, c->m.key, sizeof(m.key));
    snprintf(m.text, sizeof(m.text), "%s", text);
    memcpy(row.id, c->m.key, sizeof(row.id));
    snprintf(row.state, sizeof(row.state), "%s", c->code == 0 ? "done" : "failed");
    snprintf(row.text, sizeof(row.text), "%s %.64s: %.100s", c->m.name, c->m.value, text);
    to_daemon(f, MSG_COMMAND_ROW, &row, NULL, 0);
    to_daemon(f, MSG_COMMAND_DONE, &m, NULL, 0);
}

void fake_finish(struct fake_world *f, uint32_t command, uint32_t code, const char *text) {
    struct fake_command *c = &f->commands[command];
    c->done = true;
    c->code = code;
    send_done(f, c, text);
}

static uint32_t set_knob(struct fake_world *f, const struct msg_command *m) {
    const struct knob *k = knob_find(m->name);
    if (k == NULL || config_set(&f->config, k, m->value, NULL) != 0)
        return EINVAL;
    fake_send_status(f);
    return 0;
}

static uint32_t execute(struct fake_world *f, const struct msg_command *m) {
    uint64_t n = 0;
    if (strcmp(m->name, "step") == 0 && parse_u64(m->value, &n) == 0) {
        while (n-- > 0)
            fake_step(f);
        return 0;
    }
    if (strcmp(m->name, "snapshot") == 0)
        return (uint32_t)-fake_snapshot(f, m->value);
    if (strcmp(m->name, "pin") == 0 || strcmp(m->name, "mkdir-pin") == 0)
        return make_pin(f, m->value);
    if (strcmp(m->name, "rmdir-pin") == 0)
        return remove_pin(f, m->value);
    if (strcmp(m->name, "rmdir-snapshot") == 0)
        return remove_snapshot(f, m->value);
    if (knob_find(m->name) != NULL)
        return set_knob(f, m);
    return 0;
}

/* The ledger: a key that comes again attaches. */
static void command(struct fake_world *f, const struct msg_command *m) {
    for (uint32_t i = 0; i < f->command_count; i++) {
        struct fake_command *c = &f->commands[i];
        if (strcmp(c->m.key, m->key) != 0)
            continue;
        struct fake_command again = *c;
        again.code = strcmp(c->m.value, m->value) != 0 ? EINVAL : c->code;
        c->times_sent++;
        if (again.code == EINVAL || c->done)
            send_done(f, &again, again.code == EINVAL ? "the id has another value" : "again");
        return;
    }
    if (f->command_count == FAKE_MAX_COMMANDS)
        die("too many commands");
    uint32_t n = f->command_count++;
    f->commands[n] = (struct fake_command){.m = *m, .times_sent = 1};
    if (!f->hold_commands || strncmp(m->name, "rmdir", 5) == 0 ||
        strncmp(m->name, "mkdir", 5) == 0) {
        uint32_t code = execute(f, m);
        fake_finish(f, n, code, code == 0 ? "done" : strerror((int)code));
    }
}

static void daemon_frame(struct fake_world *f, struct frame *fr) {
    union {
        struct msg_fuse_init init;
        struct msg_daemon_ready ready;
        struct msg_command command;
        struct msg_wide_open open;
        struct msg_wide_close close;
        struct msg_rank_link again;
        struct msg_unmounted unmounted;
    } m;
    if (msg_decode(fr->type, fr->payload, fr->len_bytes, &m) != 0)
        die("a malformed message of the daemon");
    switch (fr->type) {
    case MSG_FUSE_INIT:
        free(f->init);
        f->init = malloc(m.init.init.len_bytes);
        memcpy(f->init, m.init.init.data, m.init.init.len_bytes);
        f->init_bytes = m.init.init.len_bytes;
        break;
    case MSG_DAEMON_READY:
        f->ready = true;
        break;
    case MSG_COMMAND:
        command(f, &m.command);
        break;
    case MSG_WIDE_OPEN:
        wide_open(f, &m.open);
        break;
    case MSG_WIDE_CLOSE:
        f->wides_open--;
        break;
    case MSG_RANK_LINK:
        f->links_asked++;
        break;
    case MSG_UNMOUNTED:
        f->unmounted = true;
        break;
    default:
        die("a strange message of the daemon");
    }
}

/* ---- the thread */

static void beat(struct fake_world *f) {
    for (uint32_t r = 0; r < f->world_size; r++) {
        struct msg_rank_table m = {.rank = r,
                                   .pid = 1000 + r,
                                   .last_seen_ns = now_ns(CLOCK_REALTIME),
                                   .rss_bytes = 1 << 20,
                                   .take_bytes = 0};
        snprintf(m.state, sizeof(m.state), "waiting");
        if (!f->ranks[r].dead)
            to_daemon(f, MSG_RANK_TABLE, &m, NULL, 0);
    }
}

static void drain(struct fake_world *f, struct link *l, int rank) {
    struct frame fr;
    int end = link_fill(l);
    while (link_next(l, &fr) > 0) {
        if (rank < 0)
            daemon_frame(f, &fr);
        else
            rank_frame(f, (uint32_t)rank, &fr);
        if (rank >= 0 && f->ranks[rank].link != l)
            return; /* hung up by what it said */
    }
    if (end == 0)
        return;
    if (rank < 0) {
        link_close(l);
        f->link = NULL;
    } else {
        rank_gone(&f->ranks[rank]);
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
        if (now_ns(CLOCK_MONOTONIC) - last_beat > FAKE_BEAT_MS * UINT64_C(1000000)) {
            last_beat = now_ns(CLOCK_MONOTONIC);
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
    uint64_t until = now_ns(CLOCK_MONOTONIC) + (uint64_t)(seconds * 1e9);
    for (;;) {
        pthread_mutex_lock(&f->mutex);
        bool done = is(f);
        pthread_mutex_unlock(&f->mutex);
        if (done || now_ns(CLOCK_MONOTONIC) > until)
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
    to_daemon(f, MSG_DAEMON_START, m, fds, 2);
    enc_free(&e);
    free(m);
}

void fake_start_daemon(struct fake_world *f) {
    int fds[2];
    char path[512], number[16];
    const char *build = getenv("GFS_BUILD");
    snprintf(path, sizeof(path), "%s/gatherfs-mountd", build != NULL ? build : ".");
    if (link_pair(fds) != 0)
        die("socketpair");
    pid_t pid = fork();
    if (pid < 0)
        die("fork");
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
        list_snapshots(f);
        for (uint32_t i = 0; i < f->pin_count; i++)
            send_pin(f, &f->pins[i], f->pins[i].epoch != 0 ? PIN_READY : PIN_RESERVING, 0);
        send_world(f);
        /* Ranks offer their pins to each new daemon. */
        for (uint32_t i = 0; i < f->pin_count; i++)
            if (f->pins[i].epoch == f->epoch)
                send_wide(f, f->pins[i].take, f->has_grads ? ARRAY_MASK_ALL : ARRAY_MASK_STATE,
                          f->pins[i].gen);
        fake_send_status(f);
    }
    fake_unlock(f);
    if (!fake_wait(f, is_ready, 10))
        die("the daemon did not get ready");
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
        die("fake world");
    f->wake_read = fds[0];
    f->wake = fds[1];
    pthread_mutex_init(&f->mutex, NULL);
    snprintf(f->dir, sizeof(f->dir), "%s/gatherfs-mount-XXXXXX",
             getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp");
    if (mkdtemp(f->dir) == NULL)
        die("mkdtemp");
    snprintf(f->run_dir, sizeof(f->run_dir), "%s/run", f->dir);
    snprintf(f->mnt, sizeof(f->mnt), "%s/mnt", f->dir);
    if (mkdir(f->mnt, 0700) != 0)
        die("mkdir");
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
    f->status.time_ns = now_ns(CLOCK_REALTIME);
    f->fuse_fd = fake_mount(f->mnt, f->config.allow_other);
    f->requests_fd = memfd_create("requests", MFD_CLOEXEC);
    if (f->requests_fd < 0)
        die("memfd_create");
    return f;
}

static void fake_run_dir(struct fake_world *f) {
    char path[400];
    struct err err = {0};
    snprintf(path, sizeof(path), "%s/log", f->run_dir);
    if (mkdir(f->run_dir, 0700) != 0 || mkdir(path, 0700) != 0)
        die("mkdir");
    append_line(f, "metrics.tsv",
                "step\tattempt\tepoch\tgen\tloss\tgrad_norm\tclip_factor\tlr\ttokens\tstep_"
                "seconds\ttime\n");
    append_line(f, "events", "started\n");
    append_line(f, "log/run.log", "the first line of the log\n");
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
        die("thread");
    f->threaded = true;
    fake_start_daemon(f);
}

struct fake_world *fake_start(uint32_t world_size, const char *extra_config) {
    struct err err = {0};
    struct fake_world *f = fake_new();
    if (extra_config != NULL && config_parse(&f->config, extra_config, "test", NULL, &err) != 0)
        die(err.text);
    fake_run_dir(f);
    f->world_size = world_size;
    f->world_up = true;
    for (uint32_t r = 0; r < world_size; r++)
        f->ranks[r].gen = f->gen;
    if (layout_build(fake_tensors, fake_units, sizeof(fake_units) / sizeof(fake_units[0]),
                     fake_unit_names, 3, world_size, LAYOUT_SHARD_ALIGN_ELEMS, &f->layout,
                     &err) != 0)
        die(err.text);
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
        rank_gone(&f->ranks[r]);
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
