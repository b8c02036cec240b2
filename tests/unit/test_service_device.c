/* test_service_device.c - takes, pins and snapshots of arrays in memory of a device, through the
 * service thread. */
#include "config.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "service_rig.h"
#include "store/snapshot.h"

static void open_with(struct rig *r, uint64_t wide_elems, size_t slot_bytes, uint32_t threads) {
    const struct world_device on = {
        .order = ASYNC_LATE_TAKE, .slot_bytes = slot_bytes, .slot_count = 3, .threads = threads};
    rig_open_on(r, wide_elems, &on);
    rig_daemon_connect(r, &r->daemon, 5);
}

static int setup_threads(void **state, uint32_t threads) {
    struct rig *r = calloc(1, sizeof(*r));
    assert_non_null(r);
    open_with(r, 1000, 500, threads);
    *state = r;
    return 0;
}

static int setup(void **state) { return setup_threads(state, 0); }
static int setup_helped(void **state) { return setup_threads(state, 2); }

static int teardown(void **state) {
    rig_close(*state);
    free(*state);
    return 0;
}

/* ---- takes */

static bool reply_is(struct rig *r, const struct msg_take_reply *m, enum array array, uint32_t unit,
                     uint64_t gen) {
    return m->gen == gen && m->step == gen - 1 &&
           world_is(array, unit, 0, world_valid(&r->w, unit), gen, rig_data(&r->daemon, m));
}

static void take_of_what_is_there_is_held_then_copied(void **state) {
    struct rig *r = *state;
    for (uint32_t u = 0; u < WORLD_UNITS; u++) {
        uint64_t n = rig_ask(r, &r->daemon, 0, 1, ARRAY_EXP_AVG, u, 0);
        (void)rig_reply(&r->daemon, n, 1, TAKE_HELD);
        struct msg_take_reply m = rig_reply(&r->daemon, n, 1, TAKE_COPY);
        assert_true(reply_is(r, &m, ARRAY_EXP_AVG, u, 1));
        rig_release(&r->daemon, n);
    }
}

static void takes_during_steps_are_of_one_version(void **state) {
    struct rig *r = *state;
    uint32_t copies = 0;
    for (int round = 0; round < 100; round++) {
        uint64_t n = rig_ask(r, &r->daemon, 0, 1, (enum array)(round % 4), 0, 0);
        for (int i = 0; i < round % 3; i++)
            rig_step(r);
        struct msg_take_reply m;
        int fd = -1;
        do {
            rig_answer(&r->daemon, MSG_TAKE_REPLY, &m, &fd);
            assert_int_equal(m.number, n);
        } while (m.state == TAKE_HELD);
        if (fd >= 0)
            assert_int_equal(
                segment_adopt(fd, m.segment_bytes, false, &r->daemon.segments[m.segment]), 0);
        assert_true(m.state == TAKE_COPY || m.state == TAKE_NONE);
        if (m.state == TAKE_COPY)
            assert_true(reply_is(r, &m, (enum array)(round % 4), 0, m.gen));
        copies += m.state == TAKE_COPY;
        rig_release(&r->daemon, n);
    }
    assert_true(copies >= 75);
}

/* It may rest, so nothing else would tell the supervisor. */
static void heard_of_the_device(struct rig *r) {
    static struct msg_rank_bye bye;
    rig_heard(r, MSG_RANK_BYE, &bye);
    assert_int_equal(bye.code, EIO);
    assert_non_null(strstr(bye.text, "out of the device: the double was told to fail"));
}

static void take_of_a_device_that_fails_is_an_error(void **state) {
    struct rig *r = *state;
    async_device_fail(r->w.dev, 1, true);
    for (int i = 0; i < 3; i++) {
        uint64_t n = rig_ask(r, &r->daemon, 0, 1, ARRAY_PARAMS, 0, 0);
        (void)rig_reply(&r->daemon, n, 1, TAKE_HELD);
        struct msg_take_reply m = rig_reply(&r->daemon, n, 1, TAKE_FAILED);
        assert_int_equal(m.code, EIO);
        rig_release(&r->daemon, n);
        rig_step(r);
    }
    heard_of_the_device(r);
    rig_sync(r);                                                   /* once */
    uint64_t n = rig_ask(r, &r->daemon, 0, 1, ARRAY_PARAMS, 0, 1); /* what needs no copy goes on */
    (void)rig_reply(&r->daemon, n, 1, TAKE_PASSED);
}

/* One call of many: the device is not lost, and nor is the rank. */
static void take_that_fails_alone_ends_nothing(void **state) {
    struct rig *r = *state;
    async_device_fail(r->w.dev, 1, false); /* the copy itself */
    uint64_t n = rig_ask(r, &r->daemon, 0, 1, ARRAY_PARAMS, 0, 0);
    (void)rig_reply(&r->daemon, n, 1, TAKE_HELD);
    assert_int_equal(rig_reply(&r->daemon, n, 1, TAKE_FAILED).code, EIO);
    rig_release(&r->daemon, n);
    rig_sync(r);
    n = rig_ask(r, &r->daemon, 0, 1, ARRAY_PARAMS, 0, 0);
    (void)rig_reply(&r->daemon, n, 1, TAKE_HELD);
    struct msg_take_reply m = rig_reply(&r->daemon, n, 1, TAKE_COPY);
    assert_true(reply_is(r, &m, ARRAY_PARAMS, 0, 1));
}

/* The session ends while copies are at every place between array and segment. */
static void lost_daemon_leaves_no_copy_behind(void **state) {
    struct rig *r = *state;
    for (uint64_t session = 6; session < 30; session++) {
        for (int i = 0; i < 20; i++)
            (void)rig_ask(r, &r->daemon, 0, 1, ARRAY_PARAMS, 0, 0);
        if (session % 2 == 0)
            rig_step(r);
        rig_daemon_close(&r->daemon);
        rig_daemon_connect(r, &r->daemon, session);
    }
    uint64_t n = rig_ask(r, &r->daemon, 0, 1, ARRAY_PARAMS, 0, 0);
    (void)rig_reply(&r->daemon, n, 1, TAKE_HELD);
    struct msg_take_reply m = rig_reply(&r->daemon, n, 1, TAKE_COPY);
    assert_true(reply_is(r, &m, ARRAY_PARAMS, 0, r->gen));
}

/* ---- wide takes */

static void reserve(struct rig *r, uint64_t take, uint32_t mask, uint32_t keep) {
    struct msg_take_reserve ask = {.take = take, .array_mask = mask, .keep = keep};
    struct msg_take_reserved answer;
    rig_order(r, MSG_TAKE_RESERVE, &ask);
    rig_heard(r, MSG_TAKE_RESERVED, &answer);
    assert_int_equal(answer.take, take);
    assert_int_equal(answer.code, 0);
}

static void fix(struct rig *r, uint64_t take) {
    struct msg_take_fix m = {.session = 0, .number = take};
    rig_order(r, MSG_TAKE_FIX, &m);
    rig_wait_bell(r);
    rig_boundary(r);
}

static void heard_done(struct rig *r, uint64_t take, uint64_t gen, uint32_t code) {
    struct msg_take_done m;
    rig_heard(r, MSG_TAKE_DONE, &m);
    assert_int_equal(m.take, take);
    assert_int_equal(m.code, code);
    assert_int_equal(m.gen, gen);
}

static void release(struct rig *r, uint64_t take) {
    struct msg_take_release m = {.session = 0, .number = take};
    rig_order(r, MSG_TAKE_RELEASE, &m);
    rig_sync(r);
}

static void pin_is_of_its_boundary_whatever_follows(void **state) {
    struct rig *r = *state;
    rig_step(r);
    for (uint64_t take = 1; take < 20; take++) {
        struct msg_wide_segment m;
        struct msg_wide_gone gone;
        struct segment dump;
        int fd;
        reserve(r, take, ARRAY_MASK_ALL, 0);
        uint64_t gen = r->gen;
        fix(r, take);
        for (uint64_t i = 0; i < take % 4; i++)
            rig_step(r);
        heard_done(r, take, gen, 0);
        rig_answer(&r->daemon, MSG_WIDE_SEGMENT, &m, &fd);
        assert_int_equal(segment_adopt(fd, m.bytes, false, &dump), 0);
        assert_true(world_is_dump(&r->w, ARRAY_MASK_ALL, gen, gen, dump.base));
        segment_close(&dump);
        release(r, take);
        rig_answer(&r->daemon, MSG_WIDE_GONE, &gone, NULL);
    }
}

static void pin_of_a_device_that_fails_is_told_once_and_released(void **state) {
    struct rig *r = *state;
    uint64_t none = rig_take_bytes(r);
    for (uint64_t take = 1; take < 4; take++) {
        static struct msg_take_written w;
        static struct msg_take_write write;
        reserve(r, take, ARRAY_MASK_STATE, 0);
        async_device_fail(r->w.dev, 4, true);
        fix(r, take);
        rig_step(r);
        if (take == 1)
            heard_of_the_device(r); /* first */
        heard_done(r, take, r->gen - 1, EIO);
        rig_sync(r); /* and nothing else is heard of it */
        write = (struct msg_take_write){.take = take, .snapshot = 1, .dir = "/nonexistent"};
        rig_order(r, MSG_TAKE_WRITE, &write);
        rig_heard(r, MSG_TAKE_WRITTEN, &w);
        assert_int_equal(w.code, ENOENT);
        assert_string_equal(w.text, "there is no such take");
        uint64_t n = rig_ask(r, &r->daemon, 0, 1, ARRAY_PARAMS, 0, r->gen - 1);
        (void)rig_reply(&r->daemon, n, 1, TAKE_PASSED); /* nothing was offered before */
        release(r, take);
    }
    rig_daemon_close(&r->daemon);
    rig_daemon_connect(r, &r->daemon, 6);
    uint64_t n = rig_ask(r, &r->daemon, 0, 1, ARRAY_PARAMS, 0, r->gen - 1);
    (void)rig_reply(&r->daemon, n, 1, TAKE_PASSED); /* nor to the next one */
    rig_release(&r->daemon, n);
    assert_true(rig_take_bytes(r) <= none + 4096);
}

static void written_snapshot_is_what_was_fixed(void **state) {
    struct rig *r = *state;
    struct err err = {0};
    char run_dir[64], path[MSG_PATH_BYTES], command[128];
    static struct msg_take_written m;
    static struct msg_take_write write;
    snprintf(run_dir, sizeof(run_dir), "/tmp/gatherfs-test-device-XXXXXX");
    assert_non_null(mkdtemp(run_dir));
    assert_int_equal(snapshot_begin(&store_io_posix, run_dir, "one", path, sizeof(path), &err), 0);
    while (r->gen < 7)
        rig_step(r);
    reserve(r, 1, ARRAY_MASK_STATE, 1);
    fix(r, 1);
    rig_step(r);
    rig_step(r);
    heard_done(r, 1, 7, 0);
    write = (struct msg_take_write){.take = 1, .snapshot = 9};
    snprintf(write.dir, sizeof(write.dir), "%s", path);
    rig_order(r, MSG_TAKE_WRITE, &write);
    rig_heard(r, MSG_TAKE_WRITTEN, &m);
    assert_int_equal(m.code, 0);
    snprintf(path + strlen(path), sizeof(path) - strlen(path), "/rank-0.bin");
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    size_t bytes = layout_dump_bytes(&r->w.layout, ARRAY_MASK_STATE, 0);
    uint8_t *dump = malloc(bytes);
    assert_non_null(dump);
    assert_int_equal(fseek(f, SNAPSHOT_HEADER_BYTES, SEEK_SET), 0);
    assert_int_equal(fread(dump, 1, bytes, f), bytes);
    assert_true(world_is_dump(&r->w, ARRAY_MASK_STATE, 7, 0, dump));
    fclose(f);
    free(dump);
    snprintf(command, sizeof(command), "rm -r '%s'", run_dir);
    assert_int_equal(system(command), 0);
}

/* Each piece takes longer than copies may go on, and there are more than are let through: what is
 * asked meanwhile is answered while the copy is far from done. */
static void messages_have_their_turn_during_a_long_copy(void **state) {
    struct rig *r = *state;
    const struct msg_take_reserve ask = {.take = 2, .array_mask = ARRAY_BIT(ARRAY_GRADS)};
    struct msg_take_reserved answer;
    reserve(r, 1, ARRAY_MASK_STATE, 0);
    async_device_gate(r->w.dev, true);
    fix(r, 1);
    async_device_wait_gate(r->w.dev);
    rig_order(r, MSG_TAKE_RESERVE, &ask);
    uint64_t n = rig_ask(r, &r->daemon, 0, 1, ARRAY_GRADS, 0, 0);
    for (int i = 0; i < 4; i++) {
        usleep(25000);
        async_device_next_at_gate(r->w.dev);
    }
    rig_heard(r, MSG_TAKE_RESERVED, &answer); /* and not DONE */
    assert_int_equal(answer.take, 2);
    (void)rig_reply(&r->daemon, n, 1, TAKE_NONE);
    async_device_gate(r->w.dev, false);
    heard_done(r, 1, 1, 0);
}

static double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The device is slow 32 times, each time longer than copies may go on: after each break they do at
 * once, and not at the next sign of life, a second later. */
static void copies_go_on_after_a_break(void **state) {
    struct rig *r = *state;
    rig_close(r);
    open_with(r, 2 << 20, 128, 0);
    reserve(r, 1, ARRAY_MASK_STATE, 0);
    fix(r, 1);
    double start = now_seconds();
    async_device_gate(r->w.dev, true);
    async_device_wait_gate(r->w.dev);
    for (int i = 0; i < 32; i++) {
        usleep(25000);
        async_device_next_at_gate(r->w.dev);
    }
    async_device_gate(r->w.dev, false);
    assert_true(now_seconds() - start < 5);
    heard_done(r, 1, 1, 0);
}

/* Copies are in the ring, owed and half queued when the service thread ends. */
static void end_during_a_long_copy_leaves_nothing(void **state) {
    struct rig *r = *state;
    rig_close(r);
    open_with(r, 2 << 20, 128, 0);
    reserve(r, 1, ARRAY_MASK_STATE, 0);
    fix(r, 1);
    (void)rig_ask(r, &r->daemon, 0, 1, ARRAY_PARAMS, 0, 0);
    rig_close(r);
    open_with(r, 1000, 500, 0); /* for the teardown */
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
#define T_HELPED(f)                                                                                \
    (struct CMUnitTest) { #f " (threads)", f, setup_helped, teardown, NULL }

int main(void) {
    const struct CMUnitTest tests[] = {
        T(take_of_what_is_there_is_held_then_copied),
        T(takes_during_steps_are_of_one_version),
        T_HELPED(takes_during_steps_are_of_one_version),
        T(take_of_a_device_that_fails_is_an_error),
        T_HELPED(take_of_a_device_that_fails_is_an_error),
        T(take_that_fails_alone_ends_nothing),
        T(lost_daemon_leaves_no_copy_behind),
        T_HELPED(lost_daemon_leaves_no_copy_behind),
        T(pin_is_of_its_boundary_whatever_follows),
        T_HELPED(pin_is_of_its_boundary_whatever_follows),
        T(pin_of_a_device_that_fails_is_told_once_and_released),
        T(written_snapshot_is_what_was_fixed),
        T(messages_have_their_turn_during_a_long_copy),
        T(copies_go_on_after_a_break),
        T(end_during_a_long_copy_leaves_nothing),
    };
    alarm(WORLD_DEADLINE_SECONDS);
    log_set_level(LEVEL_ERROR);
    return cmocka_run_group_tests_name("service-device", tests, NULL, NULL);
}
