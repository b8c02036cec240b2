/* fake_supervisor.c - the supervisor: status, worlds, pins, snapshots, commands. */
#include "config.h"

#include "fake_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/segment.h"
#include "store/snapshot.h"

/* ---- the supervisor's side of status and world */

void fake_to_daemon(struct fake_world *f, uint16_t type, const void *m, const int *fds,
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
    fake_to_daemon(f, MSG_STATUS, &f->status, NULL, 0);
    f->status.config = (struct blob){0};
    enc_free(&e);
}

void fake_append_line(const struct fake_world *f, const char *name, const char *line) {
    char path[400];
    snprintf(path, sizeof(path), "%s/%s", f->run_dir, name);
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || file_write_all(fd, line, strlen(line)) != 0)
        fake_die(path);
    close(fd);
}

void fake_metrics(struct fake_world *f) {
    char row[256];
    snprintf(row, sizeof(row),
             "%" PRIu64 "\t1\t%" PRIu64 "\t%" PRIu64 "\t%.9g\t1\t1\t0.001\t64\t0.1\t1\n", f->step,
             f->epoch, f->gen, f->status.loss);
    fake_append_line(f, "metrics.tsv", row);
}

void fake_event(struct fake_world *f, const char *line) {
    char path[400];
    struct stat st;
    fake_append_line(f, "events", line);
    snprintf(path, sizeof(path), "%s/events", f->run_dir);
    struct msg_event m = {.bytes = stat(path, &st) == 0 ? (uint64_t)st.st_size : 0};
    fake_to_daemon(f, MSG_EVENT, &m, NULL, 0);
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
    f->status.mfu = 0.25;
    memcpy(f->status.device, "fake", sizeof("fake"));
    f->status.goal_step = f->step;
    f->status.time_ns = fake_now_ns(CLOCK_REALTIME);
    fake_metrics(f);
    fake_send_status(f);
}

static void send_link(struct fake_world *f, uint32_t r) {
    int fds[2];
    struct msg_rank_link m = {.epoch = f->epoch, .rank = r};
    if (link_pair(fds) != 0)
        fake_die("socketpair");
    link_close(f->ranks[r].link);
    f->ranks[r].link = link_open(fds[0], FAKE_OUTBOX_BYTES);
    f->ranks[r].dead = false;
    fake_to_daemon(f, MSG_RANK_LINK, &m, &fds[1], 1);
    close(fds[1]);
}

static void send_device(struct fake_world *f, uint32_t r) {
    static const char memory[] = "device/params\t4096\nhost/batch\t12\n";
    struct msg_rank_device m = {
        .rank = r,
        .device = "fake",
        .device_name = "a device of tests",
        .memory = {.data = (const uint8_t *)memory, .len_bytes = sizeof(memory) - 1}};
    snprintf(m.device_id, sizeof(m.device_id), "id-%u", r);
    fake_to_daemon(f, MSG_RANK_DEVICE, &m, NULL, 0);
}

void fake_send_world(struct fake_world *f) {
    struct enc e = {0};
    layout_encode(&f->layout, &e);
    struct msg_world m = {.epoch = f->epoch,
                          .world_size = f->world_up ? f->world_size : 0,
                          .layout = {.data = e.data, .len_bytes = e.len_bytes},
                          .model_config = {.data = (const uint8_t *)fake_model_config,
                                           .len_bytes = strlen(fake_model_config)}};
    fake_to_daemon(f, MSG_WORLD, &m, NULL, 0);
    enc_free(&e);
    for (uint32_t r = 0; f->world_up && r < f->world_size; r++) {
        send_device(f, r);
        send_link(f, r);
    }
}

void fake_world_down(struct fake_world *f) {
    f->world_up = false;
    for (uint32_t r = 0; r < f->world_size; r++)
        fake_rank_gone(&f->ranks[r]);
    f->status.state = RUN_RESTARTING;
    fake_send_world(f);
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
    fake_send_world(f);
    fake_send_status(f);
}

/* ---- pins, wide opens, snapshots */

void fake_send_pin(struct fake_world *f, const struct fake_pin *p, enum pin_state state,
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
    fake_to_daemon(f, MSG_PIN, &m, NULL, 0);
    enc_free(&e);
}

void fake_pin_fix(struct fake_world *f, struct fake_pin *p) {
    p->epoch = f->epoch;
    p->gen = f->gen;
    p->step = f->step;
    fake_send_pin(f, p, PIN_FIXED, 0);
    if (f->hold_pins < 2)
        fake_send_wide(f, p->take, f->has_grads ? ARRAY_MASK_ALL : ARRAY_MASK_STATE, f->gen);
    fake_send_pin(f, p, PIN_READY, 0);
}

static uint32_t make_pin(struct fake_world *f, const char *name) {
    if (f->pin_count == FAKE_MAX_PINS)
        return ENOSPC;
    struct fake_pin *p = &f->pins[f->pin_count++];
    *p = (struct fake_pin){
        .id = f->next_object++, .take = f->next_take++, .time_ns = fake_now_ns(CLOCK_REALTIME)};
    snprintf(p->name, sizeof(p->name), "%.100s", name);
    fake_send_pin(f, p, PIN_RESERVING, 0);
    if (f->hold_pins == 0 || f->hold_pins == 2)
        fake_pin_fix(f, p);
    return 0;
}

static uint32_t remove_pin(struct fake_world *f, const char *name) {
    for (uint32_t i = 0; i < f->pin_count; i++) {
        if (strcmp(f->pins[i].name, name) != 0)
            continue;
        fake_send_pin(f, &f->pins[i], PIN_GONE, 0);
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
    fake_to_daemon(f, MSG_WIDE, &a, NULL, 0);
    fake_send_wide(f, a.take, m->array_mask, f->gen);
    a.state = PIN_READY;
    fake_to_daemon(f, MSG_WIDE, &a, NULL, 0);
}

int fake_snapshot(struct fake_world *f, const char *name) {
    char path[512];
    char *entries[FAKE_MAX_RANKS] = {NULL};
    struct err err = {0};
    struct snapshot_info info = {.id = f->next_object++,
                                 .epoch = f->epoch,
                                 .gen = f->gen,
                                 .step = f->step,
                                 .time_ns = fake_now_ns(CLOCK_REALTIME),
                                 .world_size = f->world_size,
                                 .array_mask = ARRAY_MASK_STATE,
                                 .attempt = 1};
    snprintf(info.name, sizeof(info.name), "%.100s", name);
    int rc = snapshot_begin(&store_io_posix, f->run_dir, name, path, sizeof(path), &err);
    for (uint32_t r = 0; rc == 0 && r < f->world_size; r++) {
        struct segment s = fake_rank_dump(f, r, info.array_mask, f->gen);
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
    fake_to_daemon(f, MSG_SNAPSHOT_ADDED, &m, NULL, 0);
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
        fake_to_daemon(f, MSG_SNAPSHOT_REMOVED, &m, NULL, 0);
    }
    free(list);
    snapshot_sweep(&store_io_posix, f->run_dir, &err);
    return code;
}

void fake_list_snapshots(struct fake_world *f) {
    struct snapshot_info *list;
    uint32_t count, broken;
    struct err err = {0};
    if (snapshot_list(f->run_dir, &list, &count, &broken, &err) != 0)
        return;
    for (uint32_t i = 0; i < count; i++) {
        struct msg_snapshot_added m = {.snapshot = list[i].id};
        memcpy(m.name, list[i].name, sizeof(m.name));
        fake_to_daemon(f, MSG_SNAPSHOT_ADDED, &m, NULL, 0);
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
    fake_to_daemon(f, MSG_COMMAND_ROW, &row, NULL, 0);
    fake_to_daemon(f, MSG_COMMAND_DONE, &m, NULL, 0);
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
        fake_die("too many commands");
    uint32_t n = f->command_count++;
    f->commands[n] = (struct fake_command){.m = *m, .times_sent = 1};
    if (!f->hold_commands || strncmp(m->name, "rmdir", 5) == 0 ||
        strncmp(m->name, "mkdir", 5) == 0) {
        uint32_t code = execute(f, m);
        fake_finish(f, n, code, code == 0 ? "done" : strerror((int)code));
    }
}

void fake_daemon_frame(struct fake_world *f, struct frame *fr) {
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
        fake_die("a malformed message of the daemon");
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
        fake_die("a strange message of the daemon");
    }
}
