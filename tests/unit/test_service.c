/* test_service.c - the service thread answers a daemon: each answer, each stale or lost message,
 * and daemons that break off, talk nonsense or do not read. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "service_rig.h"

/* Larger than any message, all fields zero. */
static const uint8_t blank[64 << 10];

static int setup(void **state) {
    struct rig *r = calloc(1, sizeof(*r));
    rig_open(r, 0, 2, 1000);
    rig_daemon_connect(r, &r->daemon, 5);
    *state = r;
    return 0;
}

static int teardown(void **state) {
    rig_close(*state);
    free(*state);
    return 0;
}

static bool reply_is(struct rig *r, const struct msg_take_reply *m, enum array array, uint32_t unit,
                     uint64_t gen) {
    return m->gen == gen && m->step == gen - 1 &&
           world_is(array, unit, 0, world_valid(&r->w, unit), gen, rig_data(&r->daemon, m));
}

/* ---- answers */

static void take_is_answered_with_a_copy(void **state) {
    struct rig *r = *state;
    for (uint32_t u = 0; u < WORLD_UNITS; u++) {
        uint64_t n = rig_ask(r, &r->daemon, 0, 1, ARRAY_EXP_AVG, u, 0);
        struct msg_take_reply m = rig_reply(&r->daemon, n, 1, TAKE_COPY);
        assert_true(reply_is(r, &m, ARRAY_EXP_AVG, u, 1));
    }
}

static void take_of_a_range_gets_that_range(void **state) {
    struct rig *r = *state;
    struct msg_take t = {.session = 5,
                         .number = 1,
                         .try = 1,
                         .epoch = RIG_EPOCH,
                         .array = ARRAY_PARAMS,
                         .unit = 0,
                         .lo = 3,
                         .hi = 200};
    rig_tell(&r->daemon, MSG_TAKE, &t);
    struct msg_take_reply m = rig_reply(&r->daemon, 1, 1, TAKE_COPY);
    assert_true(world_is(ARRAY_PARAMS, 0, 3, 200, 1, rig_data(&r->daemon, &m)));
}

static void take_of_a_version_to_come_is_held_then_copied(void **state) {
    struct rig *r = *state;
    uint64_t n = rig_ask(r, &r->daemon, 0, 1, ARRAY_PARAMS, 0, 3);
    (void)rig_reply(&r->daemon, n, 1, TAKE_HELD);
    rig_step(r);
    rig_step(r);
    rig_step(r);
    struct msg_take_reply m = rig_reply(&r->daemon, n, 1, TAKE_COPY);
    assert_true(reply_is(r, &m, ARRAY_PARAMS, 0, 3));
}

static void take_of_the_version_there_is_a_copy(void **state) {
    struct rig *r = *state;
    uint64_t n = rig_ask(r, &r->daemon, 0, 1, ARRAY_PARAMS, 0, 1);
    struct msg_take_reply m = rig_reply(&r->daemon, n, 1, TAKE_COPY);
    assert_true(reply_is(r, &m, ARRAY_PARAMS, 0, 1));
}

static void take_of_a_version_that_is_gone_is_passed(void **state) {
    struct rig *r = *state;
    rig_step(r);
    rig_step(r);
    uint64_t n = rig_ask(r, &r->daemon, 0, 1, ARRAY_PARAMS, 0, 2);
    struct msg_take_reply m = rig_reply(&r->daemon, n, 1, TAKE_PASSED);
    assert_int_equal(m.gen, 3);
}

static void take_while_written_is_held_until_published(void **state) {
    struct rig *r = *state;
    arrays_state_begin(r->w.arrays, 0);
    uint64_t n = rig_ask(r, &r->daemon, 0, 1, ARRAY_PARAMS, 0, 0);
    (void)rig_reply(&r->daemon, n, 1, TAKE_HELD);
    world_fill(&r->w, ARRAY_PARAMS, 0, 2);
    arrays_state_end(r->w.arrays, 0, 2, 1);
    struct msg_take_reply m = rig_reply(&r->daemon, n, 1, TAKE_COPY);
    assert_true(reply_is(r, &m, ARRAY_PARAMS, 0, 2));
}

static void next_try_replaces_the_one_that_waits(void **state) {
    struct rig *r = *state;
    uint64_t n = rig_ask(r, &r->daemon, 0, 1, ARRAY_PARAMS, 0, 9);
    (void)rig_reply(&r->daemon, n, 1, TAKE_HELD);
    rig_ask(r, &r->daemon, n, 2, ARRAY_PARAMS, 0, 2);
    (void)rig_reply(&r->daemon, n, 2, TAKE_HELD);
    rig_step(r);
    struct msg_take_reply m = rig_reply(&r->daemon, n, 2, TAKE_COPY);
    assert_true(reply_is(r, &m, ARRAY_PARAMS, 0, 2));
    while (r->gen < 9)
        rig_step(r);
    rig_daemon_sync(r, &r->daemon); /* no answer to the first */
}

/* ---- FIX */

static void fix_copies_what_is_there_at_the_boundary(void **state) {
    struct rig *r = *state;
    uint64_t n = rig_ask(r, &r->daemon, 0, 1, ARRAY_PARAMS, 0, 100);
    (void)rig_reply(&r->daemon, n, 1, TAKE_HELD);
    rig_ask_fix(&r->daemon, n);
    rig_wait_bell(r);
    rig_step(r);
    rig_boundary(r);
    rig_step(r);
    struct msg_take_reply m = rig_reply(&r->daemon, n, 1, TAKE_COPY);
    assert_true(reply_is(r, &m, ARRAY_PARAMS, 0, 2));
}

/* Some ranks have answered with a copy, some that they have passed the version: all copy again. */
static void fix_after_an_answer_copies_again(void **state) {
    struct rig *r = *state;
    rig_step(r);
    uint64_t copied = rig_ask(r, &r->daemon, 0, 1, ARRAY_PARAMS, 0, 2);
    struct msg_take_reply m = rig_reply(&r->daemon, copied, 1, TAKE_COPY);
    uint64_t passed = rig_ask(r, &r->daemon, 0, 4, ARRAY_PARAMS, 1, 1);
    (void)rig_reply(&r->daemon, passed, 4, TAKE_PASSED);
    rig_ask_fix(&r->daemon, copied);
    rig_wait_bell(r);
    rig_ask_fix(&r->daemon, passed);
    rig_wait_bell(r);
    rig_step(r);
    rig_boundary(r);
    rig_step(r);
    bool seen[2] = {false, false};
    for (int i = 0; i < 2; i++) {
        struct msg_take_reply next;
        rig_answer(&r->daemon, MSG_TAKE_REPLY, &next, NULL);
        bool first = next.number == copied;
        assert_false(seen[first]);
        seen[first] = true;
        assert_int_equal(next.state, TAKE_COPY);
        assert_int_equal(next.try, first ? 1 : 4);
        assert_int_equal(next.segment, m.segment);
        assert_true(reply_is(r, &next, ARRAY_PARAMS, first ? 0 : 1, 3));
    }
    rig_step(r);
    rig_boundary(r);
    rig_daemon_sync(r, &r->daemon); /* once */
}

static void fix_of_gradients_that_are_not_there_is_none(void **state) {
    struct rig *r = *state;
    uint64_t n = rig_ask(r, &r->daemon, 0, 1, ARRAY_GRADS, 0, 2);
    (void)rig_reply(&r->daemon, n, 1, TAKE_HELD);
    rig_ask_fix(&r->daemon, n);
    rig_wait_bell(r);
    rig_boundary(r);
    (void)rig_reply(&r->daemon, n, 1, TAKE_NONE);
}

static void fix_of_an_unknown_or_foreign_take_is_nothing(void **state) {
    struct rig *r = *state;
    rig_ask_fix(&r->daemon, 99);
    rig_wait_bell(r);
    struct msg_take_fix foreign = {.session = 4, .number = 1};
    rig_tell(&r->daemon, MSG_TAKE_FIX, &foreign);
    struct msg_take_fix wide = {.session = 0, .number = 1};
    rig_tell(&r->daemon, MSG_TAKE_FIX, &wide);
    rig_daemon_sync(r, &r->daemon);
    rig_boundary(r);
    assert_int_equal(r->agenda->fix_count, 1);
    rig_daemon_sync(r, &r->daemon);
}

/* ---- gradients */

static void gradients_are_none_before_the_first_step(void **state) {
    struct rig *r = *state;
    uint64_t n = rig_ask(r, &r->daemon, 0, 1, ARRAY_GRADS, 1, 0);
    (void)rig_reply(&r->daemon, n, 1, TAKE_NONE);
}

static void gradients_are_held_while_they_are_made(void **state) {
    struct rig *r = *state;
    arrays_grads_begin(r->w.arrays, 1);
    uint64_t n = rig_ask(r, &r->daemon, 0, 1, ARRAY_GRADS, 1, 0);
    (void)rig_reply(&r->daemon, n, 1, TAKE_HELD);
    world_fill(&r->w, ARRAY_GRADS, 1, 2);
    arrays_grads_end(r->w.arrays, 1, 2, 1);
    struct msg_take_reply m = rig_reply(&r->daemon, n, 1, TAKE_COPY);
    assert_true(reply_is(r, &m, ARRAY_GRADS, 1, 2));
}

static void gradients_are_none_after_a_restore(void **state) {
    struct rig *r = *state;
    rig_step(r);
    arrays_grads_begin(r->w.arrays, 1);
    uint64_t n = rig_ask(r, &r->daemon, 0, 1, ARRAY_GRADS, 1, 0);
    (void)rig_reply(&r->daemon, n, 1, TAKE_HELD);
    arrays_grads_none(r->w.arrays);
    (void)rig_reply(&r->daemon, n, 1, TAKE_NONE);
    n = rig_ask(r, &r->daemon, 0, 1, ARRAY_GRADS, 1, 0);
    (void)rig_reply(&r->daemon, n, 1, TAKE_NONE);
}

/* ---- late, lost, repeated and stale messages */

static void stale_questions_are_not_answered(void **state) {
    struct rig *r = *state;
    struct msg_take t = {.session = 4, .number = 1, .try = 1, .epoch = RIG_EPOCH, .hi = 1};
    rig_tell(&r->daemon, MSG_TAKE, &t); /* of an old session */
    t.session = 5;
    t.epoch = RIG_EPOCH - 1;
    rig_tell(&r->daemon, MSG_TAKE, &t); /* of an old world */
    rig_daemon_sync(r, &r->daemon);
}

static void repeated_and_late_tries_are_not_answered(void **state) {
    struct rig *r = *state;
    uint64_t n = rig_ask(r, &r->daemon, 0, 5, ARRAY_PARAMS, 0, 0);
    (void)rig_reply(&r->daemon, n, 5, TAKE_COPY);
    rig_ask(r, &r->daemon, n, 5, ARRAY_PARAMS, 0, 0);
    rig_ask(r, &r->daemon, n, 4, ARRAY_PARAMS, 0, 0);
    rig_ask(r, &r->daemon, n, 6, ARRAY_EXP_AVG, 0, 0); /* not the take it was */
    rig_daemon_sync(r, &r->daemon);
    rig_ask(r, &r->daemon, n, 6, ARRAY_PARAMS, 0, 0);
    (void)rig_reply(&r->daemon, n, 6, TAKE_COPY);
}

static void released_take_is_not_answered(void **state) {
    struct rig *r = *state;
    uint64_t n = rig_ask(r, &r->daemon, 0, 1, ARRAY_PARAMS, 0, 2);
    (void)rig_reply(&r->daemon, n, 1, TAKE_HELD);
    rig_release(&r->daemon, n);
    rig_release(&r->daemon, n); /* twice, and unknown ones */
    rig_release(&r->daemon, 12345);
    rig_daemon_sync(r, &r->daemon);
    rig_step(r);
    rig_daemon_sync(r, &r->daemon);
}

static void question_beyond_the_shard_is_refused(void **state) {
    struct rig *r = *state;
    const struct msg_take bad[] = {
        {.array = ARRAY_COUNT, .hi = 1},   {.unit = WORLD_UNITS, .hi = 1},
        {.unit = UINT32_MAX, .hi = 1},     {.lo = 2, .hi = 1},
        {.hi = world_valid(&r->w, 0) + 1}, {.lo = UINT64_MAX, .hi = UINT64_MAX},
        {.array = UINT32_MAX, .hi = 1},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct msg_take t = bad[i];
        t.session = 5;
        t.number = 100 + i;
        t.try = 1;
        t.epoch = RIG_EPOCH;
        rig_tell(&r->daemon, MSG_TAKE, &t);
        struct msg_take_reply m = rig_reply(&r->daemon, t.number, 1, TAKE_FAILED);
        assert_int_equal(m.code, EPROTO);
    }
}

static void take_without_memory_fails_with_enobufs(void **state) {
    struct rig *r = *state;
    rig_close(r);
    rig_open_limited(r, 3 * 4096);
    rig_daemon_connect(r, &r->daemon, 5);
    for (uint64_t n = 1; n <= 3; n++) {
        rig_ask(r, &r->daemon, n, 1, ARRAY_PARAMS, 0, 0);
        (void)rig_reply(&r->daemon, n, 1, TAKE_COPY);
    }
    rig_ask(r, &r->daemon, 4, 1, ARRAY_PARAMS, 0, 0);
    struct msg_take_reply m = rig_reply(&r->daemon, 4, 1, TAKE_FAILED);
    assert_int_equal(m.code, ENOBUFS);
    rig_release(&r->daemon, 2);
    rig_ask(r, &r->daemon, 4, 1, ARRAY_PARAMS, 0, 0);
    (void)rig_reply(&r->daemon, 4, 1, TAKE_COPY);
    static const char more[] = "take_memory = 16384\n";
    struct msg_orders orders = {.config = {(const uint8_t *)more, sizeof(more) - 1}};
    rig_order(r, MSG_ORDERS, &orders);
    rig_sync(r);
    rig_ask(r, &r->daemon, 5, 1, ARRAY_PARAMS, 0, 0);
    (void)rig_reply(&r->daemon, 5, 1, TAKE_COPY);
    rig_ask(r, &r->daemon, 6, 1, ARRAY_PARAMS, 0, 0);
    m = rig_reply(&r->daemon, 6, 1, TAKE_FAILED);
    assert_int_equal(m.code, ENOBUFS);
}

/* ---- segments */

static void descriptor_of_a_segment_comes_once_in_each_session(void **state) {
    struct rig *r = *state;
    for (int i = 0; i < 20; i++) {
        uint64_t n = rig_ask(r, &r->daemon, 0, 1, ARRAY_PARAMS, (uint32_t)i % WORLD_UNITS, 0);
        (void)rig_reply(&r->daemon, n, 1, TAKE_COPY);
    }
    assert_int_equal(r->daemon.segments_received, 1);
    struct rig_daemon old = r->daemon;
    rig_daemon_connect(r, &r->daemon, 6);
    for (int i = 0; i < 20; i++) {
        uint64_t n = rig_ask(r, &r->daemon, 0, 1, ARRAY_PARAMS, (uint32_t)i % WORLD_UNITS, 0);
        struct msg_take_reply m = rig_reply(&r->daemon, n, 1, TAKE_COPY);
        assert_true(reply_is(r, &m, ARRAY_PARAMS, (uint32_t)i % WORLD_UNITS, 1));
    }
    assert_int_equal(r->daemon.segments_received, 1);
    rig_daemon_close(&old);
}

/* A daemon whose link was replaced goes on to serve what it was given. */
static void memory_shown_to_one_link_is_not_written_for_the_next(void **state) {
    struct rig *r = *state;
    uint64_t n = rig_ask(r, &r->daemon, 0, 1, ARRAY_PARAMS, 0, 0);
    struct msg_take_reply m = rig_reply(&r->daemon, n, 1, TAKE_COPY);
    struct rig_daemon old = r->daemon;
    rig_daemon_connect(r, &r->daemon, 5);
    rig_ends(&old);
    rig_step(r);
    for (int i = 0; i < 50; i++) {
        uint64_t again = rig_ask(r, &r->daemon, 0, 1, ARRAY_PARAMS, 0, 0);
        struct msg_take_reply fresh = rig_reply(&r->daemon, again, 1, TAKE_COPY);
        assert_true(reply_is(r, &fresh, ARRAY_PARAMS, 0, 2));
    }
    assert_true(world_is(ARRAY_PARAMS, 0, 0, world_valid(&r->w, 0), 1, rig_data(&old, &m)));
    rig_daemon_close(&old);
}

/* ---- daemons that end, and daemons that misbehave */

static void new_daemon_finds_nothing_of_the_old_one(void **state) {
    struct rig *r = *state;
    uint64_t held = rig_ask(r, &r->daemon, 0, 1, ARRAY_PARAMS, 0, 2);
    (void)rig_reply(&r->daemon, held, 1, TAKE_HELD);
    rig_ask_fix(&r->daemon, held);
    rig_wait_bell(r);
    rig_daemon_close(&r->daemon);
    rig_daemon_connect(r, &r->daemon, 6);
    rig_daemon_sync(r, &r->daemon);
    uint64_t other = rig_ask(r, &r->daemon, held, 1, ARRAY_PARAMS, 0, 50);
    (void)rig_reply(&r->daemon, other, 1, TAKE_HELD);
    rig_boundary(r); /* the fix of the old session */
    assert_int_equal(r->agenda->fix_count, 1);
    rig_step(r);
    rig_daemon_sync(r, &r->daemon); /* neither the old hold nor a copy for the new one */
}

static void takes_of_a_dead_daemon_free_their_memory(void **state) {
    struct rig *r = *state;
    uint64_t before = rig_take_bytes(r);
    for (int i = 0; i < 100; i++) {
        uint64_t n = rig_ask(r, &r->daemon, 0, 1, ARRAY_PARAMS, 0, i % 2 ? 0 : 1000);
        (void)rig_reply(&r->daemon, n, 1, i % 2 ? TAKE_COPY : TAKE_HELD);
    }
    assert_true(rig_take_bytes(r) >= before + 100 * 4096);
    rig_daemon_close(&r->daemon);
    for (int i = 0; i < 10 && rig_take_bytes(r) != before; i++)
        ;
    assert_int_equal(rig_take_bytes(r), before);
    rig_daemon_connect(r, &r->daemon, 6);
    rig_daemon_sync(r, &r->daemon);
}

static bool is_message(uint16_t type) { return strcmp(msg_type_name(type), "MSG_UNKNOWN") != 0; }

/* Sends what no daemon would, of the kind of the round. */
static void talk_nonsense(struct rig_daemon *d, uint32_t round, uint32_t *seed) {
    uint8_t bytes[512];
    for (size_t i = 0; i < sizeof(bytes); i++) {
        *seed = *seed * 1664525u + 1013904223u;
        bytes[i] = (uint8_t)(*seed >> 24);
    }
    if (round % 2 == 0) {        /* a good header, a payload of the wrong length */
        size_t len = round % 64; /* MSG_TAKE has 64 bytes */
        int fds[2] = {0, 1};
        assert_int_equal(link_send(d->link, MSG_TAKE, 0, bytes, len, fds, round % 3), 0);
        return;
    }
    bytes[0] = round % 4 == 1 ? LINK_VERSION : 0xee;
    bytes[7] = 0x7f; /* a payload that is too long */
    assert_int_equal(send(link_fd(d->link), bytes, sizeof(bytes), MSG_NOSIGNAL), sizeof(bytes));
}

static void garbage_ends_the_link_and_nothing_else(void **state) {
    struct rig *r = *state;
    uint32_t seed = 1;
    for (uint32_t round = 0; round < 200; round++) {
        rig_daemon_close(&r->daemon);
        rig_daemon_connect(r, &r->daemon, 10 + round);
        talk_nonsense(&r->daemon, round, &seed);
        rig_ends(&r->daemon);
        rig_step(r);
    }
    rig_daemon_close(&r->daemon);
    rig_daemon_connect(r, &r->daemon, 5000);
    rig_daemon_sync(r, &r->daemon);
}

static void message_that_is_not_the_daemons_ends_the_link(void **state) {
    struct rig *r = *state;
    for (uint16_t type = 0; type < 256; type++) {
        if (!is_message(type) || type == MSG_TAKE || type == MSG_TAKE_FIX ||
            type == MSG_TAKE_RELEASE)
            continue;
        rig_daemon_close(&r->daemon);
        rig_daemon_connect(r, &r->daemon, 10 + type);
        rig_tell(&r->daemon, type, blank);
        rig_ends(&r->daemon);
    }
    rig_sync(r);
}

/* Many questions, no answer is ever read, while training goes on. */
static void daemon_that_does_not_read_is_dropped_and_training_goes_on(void **state) {
    struct rig *r = *state;
    struct timespec from, to;
    double longest = 0;
    bool dropped = false;
    uint64_t asked = 0;
    for (int step = 0; step < 20000 && !dropped; step++) {
        clock_gettime(CLOCK_MONOTONIC, &from);
        rig_step(r);
        clock_gettime(CLOCK_MONOTONIC, &to);
        double took =
            (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) * 1e-9;
        longest = took > longest ? took : longest;
        for (int i = 0; i < 20 && !dropped; i++, asked++) {
            struct msg_take t = {.session = 5,
                                 .number = 1 + asked % 64,
                                 .try = 1 + asked,
                                 .epoch = RIG_EPOCH,
                                 .array = (uint32_t)(asked % 4),
                                 .unit = 1,
                                 .hi = 7,
                                 .want_gen = asked % 3 == 0 ? r->gen + 1 : 0};
            dropped = msg_send(r->daemon.link, MSG_TAKE, 0, &t, NULL, 0) != 0;
        }
    }
    print_message("dropped after %llu questions; the longest step took %.1f ms\n",
                  (unsigned long long)asked, longest * 1000);
    assert_true(dropped);
    rig_daemon_close(&r->daemon);
    rig_daemon_connect(r, &r->daemon, 6);
    rig_daemon_sync(r, &r->daemon);
}

/* The outbox is full to the brim, what is owed is finished, and the daemon begins to read: in one
 * turn of the service thread. */
static void daemon_dropped_by_an_answer_is_not_touched_again(void **state) {
    struct rig *r = *state;
    for (uint64_t round = 0; round < 12; round++) {
        rig_daemon_close(&r->daemon);
        rig_daemon_connect(r, &r->daemon, 100 + round);
        enum { HOLDS = 200 };
        for (uint64_t i = 0; i < HOLDS; i++)
            rig_ask(r, &r->daemon, 1 + i, 1, ARRAY_PARAMS, 1, r->gen + 1);
        /* About as many as fit: answers of one try after the other. */
        for (uint64_t i = 0; i < 11000 + round * 150; i++)
            if (link_flush(r->daemon.link) == 0)
                (void)msg_send(r->daemon.link, MSG_TAKE, 0,
                               &(struct msg_take){.session = 100 + round,
                                                  .number = 5000,
                                                  .try = 1 + i,
                                                  .epoch = RIG_EPOCH,
                                                  .hi = 1},
                               NULL, 0);
        for (int i = 0; i < 200 && link_wants_write(r->daemon.link); i++) {
            struct pollfd p = {.fd = link_fd(r->daemon.link), .events = POLLOUT};
            (void)poll(&p, 1, 100);
            if (link_flush(r->daemon.link) != 0)
                break;
        }
        rig_sync(r);
        (void)link_fill(r->daemon.link);
        rig_step(r);
        rig_sync(r);
    }
}

/* ---- the supervisor */

static void ring_waits_for_the_doorbells_of_the_others(void **state) {
    struct rig *r = *state;
    int own = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC),
        other = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    uint64_t rings = 0;
    struct msg_doorbell m = {.rank = 0};
    assert_int_equal(msg_send(r->supervisor, MSG_DOORBELL, 0, &m, &own, 1), 0);
    rig_sync(r); /* its own is there, that of rank 1 is not */
    pthread_t ringer;
    assert_int_equal(pthread_create(&ringer, NULL,
                                    (void *(*)(void *))(void (*)(void))service_ring_others,
                                    r->service),
                     0);
    m.rank = 7; /* none of this world */
    assert_int_equal(msg_send(r->supervisor, MSG_DOORBELL, 0, &m, &own, 1), 0);
    m.rank = 1;
    assert_int_equal(msg_send(r->supervisor, MSG_DOORBELL, 0, &m, &other, 1), 0);
    assert_int_equal(pthread_join(ringer, NULL), 0);
    assert_int_equal(read(other, &rings, sizeof(rings)), sizeof(rings));
    assert_int_equal(rings, 1);
    assert_int_equal(read(own, &rings, sizeof(rings)), -1);
    close(own);
    close(other);
}

static void orders_restore_and_quit_reach_the_agenda(void **state) {
    struct rig *r = *state;
    struct msg_orders orders = {.goal_step = 9, .config = {(const uint8_t *)"lr = 0.5\n", 9}};
    struct msg_restore restore = {.command = 3, .dir = "/snap"};
    struct msg_quit quit = {0};
    rig_order(r, MSG_ORDERS, &orders);
    rig_sync(r);
    rig_boundary(r);
    assert_int_equal(r->agenda->action, AGENDA_STEP);
    assert_int_equal(r->agenda->goal_step, 9);
    assert_string_equal(r->agenda->config, "lr = 0.5\n");
    rig_order(r, MSG_RESTORE, &restore);
    rig_order(r, MSG_QUIT, &quit);
    rig_sync(r);
    rig_boundary(r);
    assert_int_equal(r->agenda->action, AGENDA_RESTORE);
    assert_string_equal(r->agenda->dir, "/snap");
    rig_boundary(r);
    assert_int_equal(r->agenda->action, AGENDA_QUIT);
}

static void malformed_orders_are_ignored(void **state) {
    struct rig *r = *state;
    struct msg_orders orders = {.goal_step = 9, .config = {(const uint8_t *)"nonsense = 1\n", 13}};
    log_set_level(LEVEL_ERROR);
    rig_order(r, MSG_ORDERS, &orders);
    assert_int_equal(link_send(r->supervisor, MSG_ORDERS, 0, "x", 1, NULL, 0), 0);
    assert_int_equal(link_send(r->supervisor, 9999, 0, "x", 1, NULL, 0), 0);
    for (uint16_t type = 0; type < 256; type++) { /* well formed, but none that a rank obeys */
        struct enc e = {0};
        if (type == MSG_QUIT || type == MSG_TAKE_RESERVE || type == MSG_RESTORE ||
            type == MSG_TAKE_WRITE || !is_message(type))
            continue;
        msg_encode(type, blank, &e);
        assert_int_equal(link_send(r->supervisor, type, 0, e.data, e.len_bytes, NULL, 0), 0);
        enc_free(&e);
        rig_sync(r);
    }
    rig_sync(r);
    rig_boundary(r);
    assert_int_equal(r->agenda->action, AGENDA_WAIT);
}

static void signs_of_life_tell_step_and_phase(void **state) {
    struct rig *r = *state;
    struct msg_rank_alive m;
    atomic_store(&r->shared.step, 12);
    atomic_store(&r->shared.micro, 3);
    atomic_store(&r->shared.phase, RANK_BACKWARD);
    rig_sync(r);
    do
        rig_heard(r, MSG_RANK_ALIVE, &m);
    while (m.step != 12);
    assert_int_equal(m.micro, 3);
    assert_int_equal(m.phase, RANK_BACKWARD);
    assert_true(m.rss_bytes > 1 << 20);
}

/* In a process of its own: the end of the supervisor is its end. */
static int status_of(void (*act)(struct rig *)) {
    int status = 0;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct rig r;
        log_set_level(LEVEL_ERROR);
        alarm(30);
        rig_open(&r, 0, 2, 1000);
        act(&r);
        _exit(42);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void act_supervisor_ends(struct rig *r) {
    link_close(r->supervisor);
    for (;;)
        pause();
}

static void act_supervisor_talks_nonsense(struct rig *r) {
    static const uint8_t junk[64] = {0xff};
    if (send(link_fd(r->supervisor), junk, sizeof(junk), MSG_NOSIGNAL) != sizeof(junk))
        _exit(3);
    for (;;)
        pause();
}

static void *close_when_full(void *arg) {
    struct rig *r = arg;
    struct timespec nap = {.tv_nsec = 100 * 1000 * 1000};
    nanosleep(&nap, NULL);
    shutdown(link_fd(r->supervisor), SHUT_RDWR);
    return NULL;
}

/* It has said its last words, and ends with the status that its main thread chooses. */
static void act_supervisor_ends_while_closing(struct rig *r) {
    static struct msg_rank_bye bye;
    pthread_t closer;
    memset(bye.text, 'x', sizeof(bye.text) - 1);
    for (int i = 0; i < 1500; i++)
        service_send(r->service, MSG_RANK_BYE, &bye);
    if (pthread_create(&closer, NULL, close_when_full, r) != 0)
        _exit(3);
    service_close(r->service);
    if (pthread_join(closer, NULL) != 0)
        _exit(3);
}

static void supervisors_end_ends_the_process(void **state) {
    (void)state;
    assert_int_equal(status_of(act_supervisor_ends), 1);
    assert_int_equal(status_of(act_supervisor_talks_nonsense), 1);
}

static void supervisors_end_while_closing_is_no_failure(void **state) {
    (void)state;
    assert_int_equal(status_of(act_supervisor_ends_while_closing), 42);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        T(take_is_answered_with_a_copy),
        T(take_of_a_range_gets_that_range),
        T(take_of_a_version_to_come_is_held_then_copied),
        T(take_of_the_version_there_is_a_copy),
        T(take_of_a_version_that_is_gone_is_passed),
        T(take_while_written_is_held_until_published),
        T(next_try_replaces_the_one_that_waits),
        T(fix_copies_what_is_there_at_the_boundary),
        T(fix_after_an_answer_copies_again),
        T(fix_of_gradients_that_are_not_there_is_none),
        T(fix_of_an_unknown_or_foreign_take_is_nothing),
        T(gradients_are_none_before_the_first_step),
        T(gradients_are_held_while_they_are_made),
        T(gradients_are_none_after_a_restore),
        T(stale_questions_are_not_answered),
        T(repeated_and_late_tries_are_not_answered),
        T(released_take_is_not_answered),
        T(question_beyond_the_shard_is_refused),
        T(take_without_memory_fails_with_enobufs),
        T(descriptor_of_a_segment_comes_once_in_each_session),
        T(memory_shown_to_one_link_is_not_written_for_the_next),
        T(new_daemon_finds_nothing_of_the_old_one),
        T(takes_of_a_dead_daemon_free_their_memory),
        T(garbage_ends_the_link_and_nothing_else),
        T(message_that_is_not_the_daemons_ends_the_link),
        T(daemon_that_does_not_read_is_dropped_and_training_goes_on),
        T(daemon_dropped_by_an_answer_is_not_touched_again),
        T(ring_waits_for_the_doorbells_of_the_others),
        T(orders_restore_and_quit_reach_the_agenda),
        T(malformed_orders_are_ignored),
        T(signs_of_life_tell_step_and_phase),
        cmocka_unit_test(supervisors_end_ends_the_process),
        cmocka_unit_test(supervisors_end_while_closing_is_no_failure),
    };
    alarm(WORLD_DEADLINE_SECONDS);
    log_set_level(LEVEL_ERROR);
    return cmocka_run_group_tests_name("service", tests, NULL, NULL);
}
