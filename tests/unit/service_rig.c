/* service_rig.c - both ends of the service thread's links. */
#include "config.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "service_rig.h"

static uint64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void rig_start(struct rig *r, uint32_t rank, uint32_t world_size, uint64_t wide_elems,
                      uint64_t take_memory_bytes, const struct world_device *on) {
    int pair[2];
    const uint64_t shard = 16;
    struct err err = {0};
    *r = (struct rig){.gen = 1};
    world_open_on(&r->w, rank, world_size, wide_elems, on);
    for (uint32_t u = 0; u < WORLD_UNITS; u++)
        world_write_state(&r->w, u, 1);
    config_defaults(&r->config);
    r->config.take_memory = take_memory_bytes;
    r->bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    r->agenda = calloc(1, sizeof(*r->agenda));
    assert_non_null(r->agenda);
    const struct comm_args alone = {.world_size = 1, .shard_elems = &shard, .unit_count = 1};
    assert_int_equal(comm_self.open(&alone, &r->comm, &err), 0);
    if (rank == 0)
        r->inbox = inbox_open(r->bell);
    assert_int_equal(link_pair(pair), 0);
    r->supervisor = link_open(pair[0], 1 << 20);
    struct service_args args = {.rank = rank,
                                .world_size = world_size,
                                .epoch = RIG_EPOCH,
                                .config = &r->config,
                                .layout = &r->w.layout,
                                .arrays = r->w.arrays,
                                .inbox = r->inbox,
                                .supervisor = link_open(pair[1], 1 << 20),
                                .shared = &r->shared,
                                .fingerprint = 0x1234};
    if (service_open(&args, &r->service, &err) != 0)
        fail_msg("%s", err.text);
}

void rig_open(struct rig *r, uint32_t rank, uint32_t world_size, uint64_t wide_elems) {
    rig_start(r, rank, world_size, wide_elems, 0, NULL);
}

void rig_open_on(struct rig *r, uint64_t wide_elems, const struct world_device *on) {
    rig_start(r, 0, 1, wide_elems, 0, on);
}

void rig_open_limited(struct rig *r, uint64_t take_memory_bytes) {
    rig_start(r, 0, 2, 1000, take_memory_bytes, NULL);
}

void rig_close(struct rig *r) {
    service_close(r->service);
    rig_daemon_close(&r->daemon);
    link_close(r->supervisor);
    inbox_close(r->inbox);
    comm_self.close(r->comm);
    free(r->agenda->config);
    free(r->agenda);
    close(r->bell);
    world_close(&r->w);
}

/* ---- main thread */

void rig_step(struct rig *r) {
    r->gen++;
    r->step++;
    world_write_all(&r->w, r->gen);
}

void rig_boundary(struct rig *r) {
    struct err err = {0};
    if (agenda_agree(r->agenda, &comm_self, r->comm, 0, r->inbox, r->gen, r->step, &err) != 0)
        fail_msg("%s", err.text);
    service_fix(r->service, r->agenda, r->gen, r->step);
}

void rig_wait_bell(struct rig *r) {
    struct pollfd p = {.fd = r->bell, .events = POLLIN};
    uint64_t rings;
    assert_int_equal(poll(&p, 1, RIG_WAIT_MS), 1);
    assert_int_equal(read(r->bell, &rings, sizeof(rings)), sizeof(rings));
}

/* ---- supervisor */

static bool link_wait(struct link *l, struct frame *f) {
    uint64_t deadline = now_ms() + RIG_WAIT_MS;
    for (;;) {
        int rc = link_next(l, f);
        if (rc == 1)
            return true;
        if (rc < 0 || now_ms() > deadline)
            return false;
        struct pollfd p = {.fd = link_fd(l), .events = POLLIN};
        (void)poll(&p, 1, 1000);
        rc = link_fill(l);
        if (rc != 0 && link_next(l, f) != 1)
            return false;
        if (rc != 0)
            return true;
    }
}

void rig_order(struct rig *r, uint16_t type, const void *msg) {
    assert_int_equal(msg_send(r->supervisor, type, 0, msg, NULL, 0), 0);
}

uint16_t rig_heard_any(struct rig *r, uint16_t type, void *msg, uint16_t other, void *other_msg) {
    struct frame f;
    do {
        if (!link_wait(r->supervisor, &f))
            fail_msg("the supervisor waits for %s and hears nothing", msg_type_name(type));
    } while (f.type == MSG_RANK_ALIVE && type != MSG_RANK_ALIVE);
    if (f.type != type && f.type != other)
        fail_msg("the supervisor waits for %s and hears %s", msg_type_name(type),
                 msg_type_name(f.type));
    void *to = f.type == type ? msg : other_msg;
    assert_int_equal(msg_decode(f.type, f.payload, f.len_bytes, to), 0);
    return f.type;
}

void rig_heard(struct rig *r, uint16_t type, void *msg) {
    (void)rig_heard_any(r, type, msg, type, msg);
}

/* A reservation that cannot be made is answered and leaves nothing behind. */
void rig_sync(struct rig *r) {
    struct msg_take_reserve ask = {.take = UINT64_MAX, .array_mask = 0};
    struct msg_take_reserved answer;
    rig_order(r, MSG_TAKE_RESERVE, &ask);
    rig_heard(r, MSG_TAKE_RESERVED, &answer);
    assert_true(answer.take == UINT64_MAX);
    assert_int_equal(answer.code, ENOBUFS);
}

uint64_t rig_take_bytes(struct rig *r) {
    struct msg_rank_alive m;
    rig_sync(r); /* older signs of life are behind us */
    rig_heard(r, MSG_RANK_ALIVE, &m);
    return m.take_bytes;
}

/* ---- daemon */

void rig_daemon_connect(struct rig *r, struct rig_daemon *d, uint64_t session) {
    int pair[2];
    *d = (struct rig_daemon){.session = session};
    for (int i = 0; i < RIG_MAX_SEGMENTS; i++)
        d->segments[i] = SEGMENT_EMPTY;
    assert_int_equal(link_pair(pair), 0);
    struct msg_daemon_link m = {.session = session};
    assert_int_equal(msg_send(r->supervisor, MSG_DAEMON_LINK, 0, &m, &pair[0], 1), 0);
    close(pair[0]);
    d->link = link_open(pair[1], 16 << 20);
    assert_non_null(d->link);
}

void rig_daemon_close(struct rig_daemon *d) {
    if (d->link == NULL)
        return;
    link_close(d->link);
    d->link = NULL;
    for (int i = 0; i < RIG_MAX_SEGMENTS; i++)
        segment_close(&d->segments[i]);
}

void rig_tell(struct rig_daemon *d, uint16_t type, const void *msg) {
    assert_int_equal(msg_send(d->link, type, 0, msg, NULL, 0), 0);
}

uint64_t rig_ask(struct rig *r, struct rig_daemon *d, uint64_t number, uint64_t try,
                 enum array array, uint32_t unit, uint64_t want_gen) {
    struct msg_take m = {.session = d->session,
                         .number = number != 0 ? number : ++d->numbers,
                         .try = try,
                         .epoch = RIG_EPOCH,
                         .array = array,
                         .unit = unit,
                         .hi = world_valid(&r->w, unit),
                         .want_gen = want_gen};
    rig_tell(d, MSG_TAKE, &m);
    return m.number;
}

void rig_release(struct rig_daemon *d, uint64_t number) {
    struct msg_take_release m = {.session = d->session, .number = number};
    rig_tell(d, MSG_TAKE_RELEASE, &m);
}

void rig_ask_fix(struct rig_daemon *d, uint64_t number) {
    struct msg_take_fix m = {.session = d->session, .number = number};
    rig_tell(d, MSG_TAKE_FIX, &m);
}

void rig_answer(struct rig_daemon *d, uint16_t type, void *msg, int *fd) {
    struct frame f;
    if (!link_wait(d->link, &f))
        fail_msg("the daemon waits for %s and hears nothing", msg_type_name(type));
    if (f.type != type)
        fail_msg("the daemon waits for %s and hears %s", msg_type_name(type),
                 msg_type_name(f.type));
    assert_int_equal(msg_decode(f.type, f.payload, f.len_bytes, msg), 0);
    if (fd != NULL) {
        *fd = f.fds[0];
        f.fds[0] = -1;
    }
}

struct msg_take_reply rig_reply(struct rig_daemon *d, uint64_t number, uint64_t try,
                                enum take_state state) {
    struct msg_take_reply m;
    int fd;
    rig_answer(d, MSG_TAKE_REPLY, &m, &fd);
    assert_true(m.session == d->session);
    assert_int_equal(m.epoch, RIG_EPOCH);
    assert_int_equal(m.number, number);
    assert_int_equal(m.try, try);
    assert_int_equal(m.state, state);
    if (state != TAKE_COPY) {
        assert_int_equal(fd, -1);
        return m;
    }
    assert_true(m.segment >= 1 && m.segment < RIG_MAX_SEGMENTS);
    if (fd >= 0) {
        assert_null(d->segments[m.segment].base); /* with its first use only */
        assert_int_equal(segment_adopt(fd, m.segment_bytes, false, &d->segments[m.segment]), 0);
        d->segments_received++;
    }
    assert_non_null(d->segments[m.segment].base);
    return m;
}

const uint8_t *rig_data(const struct rig_daemon *d, const struct msg_take_reply *m) {
    return d->segments[m->segment].base + m->offset_bytes;
}

void rig_ends(struct rig_daemon *d) {
    struct frame f;
    uint64_t deadline = now_ms() + RIG_WAIT_MS;
    int rc = 0;
    while (rc == 0 && now_ms() < deadline) {
        struct pollfd p = {.fd = link_fd(d->link), .events = POLLIN};
        (void)poll(&p, 1, 1000);
        rc = link_fill(d->link);
        while (link_next(d->link, &f) == 1)
            ;
    }
    assert_int_equal(rc, -EPIPE);
}

void rig_daemon_sync(struct rig *r, struct rig_daemon *d) {
    uint64_t number = rig_ask(r, d, 0, 1, ARRAY_PARAMS, 0, 0);
    (void)rig_reply(d, number, 1, TAKE_COPY);
    rig_release(d, number);
}
