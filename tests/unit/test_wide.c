/* test_wide.c - wide takes of the service thread: pins, dumps for snapshots, and writing one. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "service_rig.h"
#include "store/snapshot.h"

static int setup(void **state) {
    struct rig *r = calloc(1, sizeof(*r));
    rig_open(r, 0, 1, 1000);
    rig_daemon_connect(r, &r->daemon, 5);
    rig_daemon_sync(r, &r->daemon);
    *state = r;
    return 0;
}

static int teardown(void **state) {
    rig_close(*state);
    free(*state);
    return 0;
}

static uint32_t reserve(struct rig *r, uint64_t take, uint32_t mask, uint32_t keep) {
    struct msg_take_reserve ask = {.take = take, .array_mask = mask, .keep = keep};
    struct msg_take_reserved answer;
    rig_order(r, MSG_TAKE_RESERVE, &ask);
    rig_heard(r, MSG_TAKE_RESERVED, &answer);
    assert_int_equal(answer.take, take);
    return answer.code;
}

/* Puts it on the agenda and goes through the boundary. */
static void fix(struct rig *r, uint64_t take) {
    struct msg_take_fix m = {.session = 0, .number = take};
    rig_order(r, MSG_TAKE_FIX, &m);
    rig_wait_bell(r);
    rig_boundary(r);
}

static void heard_done(struct rig *r, uint64_t take, uint64_t gen) {
    struct msg_take_done m;
    rig_heard(r, MSG_TAKE_DONE, &m);
    assert_int_equal(m.take, take);
    assert_int_equal(m.code, 0);
    assert_int_equal(m.gen, gen);
    assert_int_equal(m.step, gen - 1);
}

static void release(struct rig *r, uint64_t take) {
    struct msg_take_release m = {.session = 0, .number = take};
    rig_order(r, MSG_TAKE_RELEASE, &m);
    rig_sync(r);
}

/* The daemon was given the dump of that take. */
static struct segment offered(struct rig *r, struct rig_daemon *d, uint64_t take, uint32_t mask,
                              uint64_t gen) {
    struct msg_wide_segment m;
    struct segment dump;
    int fd;
    rig_answer(d, MSG_WIDE_SEGMENT, &m, &fd);
    assert_int_equal(m.take, take);
    assert_int_equal(m.epoch, RIG_EPOCH);
    assert_int_equal(m.gen, gen);
    assert_int_equal(m.step, gen - 1);
    assert_int_equal(m.array_mask, mask);
    assert_int_equal(m.bytes, layout_dump_bytes(&r->w.layout, mask, r->w.rank));
    assert_int_equal(segment_adopt(fd, m.bytes, false, &dump), 0);
    return dump;
}

static void gone(struct rig_daemon *d, uint64_t take) {
    struct msg_wide_gone m;
    rig_answer(d, MSG_WIDE_GONE, &m, NULL);
    assert_int_equal(m.take, take);
}

static void pin_is_copied_when_idle_and_offered(void **state) {
    struct rig *r = *state;
    rig_step(r);
    assert_int_equal(reserve(r, 1, ARRAY_MASK_ALL, 0), 0);
    fix(r, 1);
    heard_done(r, 1, 2);
    struct segment dump = offered(r, &r->daemon, 1, ARRAY_MASK_ALL, 2);
    for (int i = 0; i < 3; i++)
        rig_step(r);
    assert_true(world_is_dump(&r->w, ARRAY_MASK_ALL, 2, 2, dump.base));
    segment_close(&dump);
    rig_sync(r); /* done was said once */
}

static void pin_is_copied_before_it_is_overwritten(void **state) {
    struct rig *r = *state;
    for (uint64_t take = 1; take < 30; take++) {
        assert_int_equal(reserve(r, take, ARRAY_MASK_STATE, 0), 0);
        uint64_t gen = r->gen;
        fix(r, take);
        rig_step(r); /* at once: most copies are owed still */
        heard_done(r, take, gen);
        struct segment dump = offered(r, &r->daemon, take, ARRAY_MASK_STATE, gen);
        assert_true(world_is_dump(&r->w, ARRAY_MASK_STATE, gen, 0, dump.base));
        segment_close(&dump);
        release(r, take);
        gone(&r->daemon, take);
    }
}

static void several_pins_share_a_boundary(void **state) {
    struct rig *r = *state;
    struct msg_take_fix m = {.number = 1};
    for (m.number = 1; m.number <= 5; m.number++)
        assert_int_equal(reserve(r, m.number, ARRAY_BIT(ARRAY_PARAMS), 0), 0);
    for (m.number = 1; m.number <= 5; m.number++)
        rig_order(r, MSG_TAKE_FIX, &m);
    rig_sync(r);
    rig_boundary(r);
    rig_step(r);
    bool seen[6] = {false};
    for (int i = 0; i < 5; i++) {
        struct msg_take_done done;
        rig_heard(r, MSG_TAKE_DONE, &done);
        assert_true(done.take >= 1 && done.take <= 5 && !seen[done.take]);
        assert_int_equal(done.gen, 1);
        seen[done.take] = true;
        struct segment dump = offered(r, &r->daemon, done.take, ARRAY_BIT(ARRAY_PARAMS), 1);
        assert_true(world_is_dump(&r->w, ARRAY_BIT(ARRAY_PARAMS), 1, 0, dump.base));
        segment_close(&dump);
    }
}

static void gradients_that_are_not_there_become_zeros(void **state) {
    struct rig *r = *state;
    /* a dump that has been used, so that zeros are not what lay there before */
    rig_step(r);
    assert_int_equal(reserve(r, 1, ARRAY_MASK_ALL, 1), 0);
    fix(r, 1);
    heard_done(r, 1, 2);
    release(r, 1);
    arrays_grads_none(r->w.arrays);
    assert_int_equal(reserve(r, 2, ARRAY_MASK_ALL, 1), 0);
    fix(r, 2);
    heard_done(r, 2, 2);
    assert_int_equal(reserve(r, 3, ARRAY_MASK_ALL, 0), 0);
    fix(r, 3);
    heard_done(r, 3, 2);
    struct segment dump = offered(r, &r->daemon, 3, ARRAY_MASK_ALL, 2);
    assert_true(world_is_dump(&r->w, ARRAY_MASK_ALL, 2, 0, dump.base));
    segment_close(&dump);
}

static void reservation_is_idempotent_and_bad_masks_are_refused(void **state) {
    struct rig *r = *state;
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int zero = dup2(fd, 0); /* whoever closes a descriptor that is none closes this one */
    assert_int_equal(zero, 0);
    assert_int_equal(reserve(r, 1, ARRAY_MASK_STATE, 0), 0);
    uint64_t used = rig_take_bytes(r);
    assert_int_equal(reserve(r, 1, ARRAY_MASK_STATE, 0), 0);
    assert_int_equal(reserve(r, 2, 0, 0), ENOBUFS);
    assert_int_equal(reserve(r, 3, ARRAY_MASK_ALL << 1, 0), ENOBUFS);
    assert_int_equal(reserve(r, 4, UINT32_MAX, 1), ENOBUFS);
    assert_int_equal(rig_take_bytes(r), used);
    assert_int_not_equal(fcntl(0, F_GETFD), -1);
    close(fd);
}

static void fix_of_an_unknown_or_fixed_take_is_nothing(void **state) {
    struct rig *r = *state;
    fix(r, 9);
    assert_int_equal(reserve(r, 1, ARRAY_MASK_STATE, 0), 0);
    fix(r, 1);
    heard_done(r, 1, 1);
    rig_step(r);
    fix(r, 1);
    rig_step(r);
    rig_sync(r);
    struct segment dump = offered(r, &r->daemon, 1, ARRAY_MASK_STATE, 1);
    assert_true(world_is_dump(&r->w, ARRAY_MASK_STATE, 1, 0, dump.base));
    segment_close(&dump);
}

static void release_ends_it_in_each_state(void **state) {
    struct rig *r = *state;
    uint64_t none = rig_take_bytes(r);
    release(r, 77); /* unknown */
    assert_int_equal(reserve(r, 1, ARRAY_MASK_STATE, 0), 0);
    release(r, 1); /* RESERVED */
    fix(r, 1);
    rig_step(r);
    rig_sync(r); /* it was not done */
    /* FIXED for a while: the array is large. COPIED, if the service thread was quick. */
    for (uint64_t take = 2; take < 12; take++)
        assert_int_equal(reserve(r, take, ARRAY_MASK_STATE, 0), 0);
    for (uint64_t take = 2; take < 12; take++) {
        struct msg_take_fix m = {.session = 0, .number = take};
        struct msg_take_release end = {.session = 0, .number = take};
        rig_order(r, MSG_TAKE_FIX, &m);
        rig_wait_bell(r);
        rig_order(r, MSG_TAKE_RELEASE, &end);
        rig_boundary(r);
        rig_step(r);
    }
    /* What was done before its release is told; all are gone. */
    static struct msg_take_done done;
    struct msg_take_reserved last;
    struct msg_take_reserve ask = {.take = UINT64_MAX};
    rig_order(r, MSG_TAKE_RESERVE, &ask);
    while (rig_heard_any(r, MSG_TAKE_DONE, &done, MSG_TAKE_RESERVED, &last) == MSG_TAKE_DONE)
        assert_true(done.take >= 2 && done.take < 12);
    rig_daemon_close(&r->daemon);
    rig_daemon_connect(r, &r->daemon, 6);
    rig_daemon_sync(r, &r->daemon); /* nothing is offered */
    assert_int_equal(rig_take_bytes(r), none);
}

static void new_daemon_is_offered_finished_pins_only(void **state) {
    struct rig *r = *state;
    assert_int_equal(reserve(r, 1, ARRAY_MASK_STATE, 0), 0);
    fix(r, 1);
    heard_done(r, 1, 1);
    struct segment first = offered(r, &r->daemon, 1, ARRAY_MASK_STATE, 1);
    assert_int_equal(reserve(r, 2, ARRAY_MASK_STATE, 1), 0);
    fix(r, 2);
    heard_done(r, 2, 1);
    assert_int_equal(reserve(r, 3, ARRAY_MASK_STATE, 0), 0); /* not fixed */
    rig_daemon_sync(r, &r->daemon);                          /* a dump for a snapshot is nobody's */
    rig_daemon_close(&r->daemon);
    rig_daemon_connect(r, &r->daemon, 6);
    rig_step(r);
    struct segment again = offered(r, &r->daemon, 1, ARRAY_MASK_STATE, 1);
    assert_true(world_is_dump(&r->w, ARRAY_MASK_STATE, 1, 0, again.base));
    rig_daemon_sync(r, &r->daemon);
    release(r, 2);
    rig_daemon_sync(r, &r->daemon); /* not told of its end either */
    release(r, 1);
    gone(&r->daemon, 1);
    assert_true(world_is_dump(&r->w, ARRAY_MASK_STATE, 1, 0, first.base)); /* who has it keeps it */
    segment_close(&first);
    segment_close(&again);
}

static void daemon_that_does_not_read_loses_no_pin(void **state) {
    struct rig *r = *state;
    bool dropped = false;
    uint64_t asked = 0;
    while (!dropped && asked < 1000000) {
        struct msg_take t = {
            .session = 5, .number = 1, .try = ++asked, .epoch = RIG_EPOCH, .hi = 1};
        dropped = msg_send(r->daemon.link, MSG_TAKE, 0, &t, NULL, 0) != 0;
    }
    assert_true(dropped);
    assert_int_equal(reserve(r, 1, ARRAY_MASK_STATE, 0), 0);
    fix(r, 1);
    heard_done(r, 1, 1);
    rig_daemon_close(&r->daemon);
    rig_daemon_connect(r, &r->daemon, 6);
    struct segment dump = offered(r, &r->daemon, 1, ARRAY_MASK_STATE, 1);
    segment_close(&dump);
}

static void memory_of_a_snapshot_is_kept_for_the_next(void **state) {
    struct rig *r = *state;
    uint64_t used = 0;
    for (uint64_t take = 1; take < 6; take++) {
        assert_int_equal(reserve(r, take, ARRAY_MASK_STATE, 1), 0);
        fix(r, take);
        heard_done(r, take, r->gen);
        release(r, take);
        rig_step(r);
        uint64_t now = rig_take_bytes(r);
        assert_true(used == 0 || now == used);
        used = now;
    }
    assert_true(used >= layout_dump_bytes(&r->w.layout, ARRAY_MASK_STATE, 0));
}

/* ---- writing */

struct disk {
    char run_dir[64], path[MSG_PATH_BYTES];
};

static struct disk disk_open(const char *name) {
    struct disk d;
    struct err err = {0};
    snprintf(d.run_dir, sizeof(d.run_dir), "/tmp/gatherfs-test-wide-XXXXXX");
    assert_non_null(mkdtemp(d.run_dir));
    if (snapshot_begin(&store_io_posix, d.run_dir, name, d.path, sizeof(d.path), &err) != 0)
        fail_msg("%s", err.text);
    return d;
}

static void disk_close(const struct disk *d) {
    char command[128];
    snprintf(command, sizeof(command), "rm -r '%s'", d->run_dir);
    assert_int_equal(system(command), 0);
}

static void write_order(struct rig *r, uint64_t take, uint64_t snapshot, const char *dir) {
    static struct msg_take_write m;
    m = (struct msg_take_write){.take = take, .snapshot = snapshot};
    snprintf(m.dir, sizeof(m.dir), "%s", dir);
    rig_order(r, MSG_TAKE_WRITE, &m);
}

static uint32_t written(struct rig *r, uint64_t take) {
    static struct msg_take_written m;
    rig_heard(r, MSG_TAKE_WRITTEN, &m);
    assert_int_equal(m.take, take);
    if (m.code == 0)
        assert_true(m.entry.len_bytes > 2);
    else
        assert_int_equal(m.entry.len_bytes, 0);
    return m.code;
}

static void written_snapshot_is_what_was_fixed(void **state) {
    struct rig *r = *state;
    struct disk d = disk_open("one");
    static struct msg_take_written m;
    struct err err = {0};
    while (r->gen < 7)
        rig_step(r);
    assert_int_equal(reserve(r, 1, ARRAY_MASK_STATE, 1), 0);
    fix(r, 1);
    heard_done(r, 1, 7);
    write_order(r, 1, 9, d.path);
    rig_step(r);
    rig_heard(r, MSG_TAKE_WRITTEN, &m);
    assert_int_equal(m.code, 0);
    char *entry = strndup((const char *)m.entry.data, m.entry.len_bytes);
    char *train = strndup((const char *)m.state.data, m.state.len_bytes);
    assert_non_null(strstr(train, "philox"));
    assert_non_null(strstr(train, "0000000000001234"));
    struct snapshot_info info = {.id = 9,
                                 .epoch = RIG_EPOCH,
                                 .gen = 7,
                                 .step = 6,
                                 .world_size = 1,
                                 .array_mask = ARRAY_MASK_STATE};
    strcpy(info.name, "one");
    const char *entries[] = {entry};
    if (snapshot_publish(&store_io_posix, d.run_dir, &info, &r->w.layout, entries, train, "{}",
                         &err) != 0)
        fail_msg("%s", err.text);
    struct snapshot *s = NULL;
    assert_int_equal(snapshot_open(d.run_dir, "one", &s, &err), 0);
    assert_int_equal(snapshot_verify(s, NULL, NULL, &err), 0);
    const uint8_t *base;
    uint64_t bytes;
    assert_int_equal(snapshot_map_rank(s, 0, &base, &bytes, &err), 0);
    assert_true(world_is_dump(&r->w, ARRAY_MASK_STATE, 7, 0, base + SNAPSHOT_HEADER_BYTES));
    snapshot_close(s);
    free(entry);
    free(train);
    disk_close(&d);
}

static void write_of_what_is_not_copied_fails(void **state) {
    struct rig *r = *state;
    write_order(r, 1, 1, "/nonexistent");
    assert_int_equal(written(r, 1), ENOENT);
    assert_int_equal(reserve(r, 1, ARRAY_MASK_STATE, 1), 0);
    write_order(r, 1, 1, "/nonexistent");
    assert_int_equal(written(r, 1), ENOENT);
    fix(r, 1);
    heard_done(r, 1, 1);
    write_order(r, 1, 1, "/nonexistent/dir");
    assert_int_equal(written(r, 1), ENOENT); /* the disk says so now */
    /* and a failure is not the end of it */
    struct disk d = disk_open("two");
    write_order(r, 1, 1, d.path);
    assert_int_equal(written(r, 1), 0);
    disk_close(&d);
}

static void release_while_writing_cancels(void **state) {
    struct rig *r = *state;
    struct disk first = disk_open("a"), second = disk_open("b");
    rig_close(r);
    rig_open(r, 0, 1, 8 << 20); /* 96 MiB of state */
    rig_daemon_connect(r, &r->daemon, 5);
    assert_int_equal(reserve(r, 1, ARRAY_MASK_STATE, 1), 0);
    assert_int_equal(reserve(r, 2, ARRAY_MASK_STATE, 1), 0);
    fix(r, 1);
    heard_done(r, 1, 1);
    fix(r, 2);
    heard_done(r, 2, 1);
    write_order(r, 1, 1, first.path);
    write_order(r, 1, 1, first.path); /* repeated */
    struct msg_take_release m = {.session = 0, .number = 1};
    rig_order(r, MSG_TAKE_RELEASE, &m);
    write_order(r, 2, 2, second.path); /* waits for the cancelled one */
    assert_int_equal(written(r, 1), ECANCELED);
    assert_int_equal(written(r, 2), 0);
    write_order(r, 1, 1, first.path);
    assert_int_equal(written(r, 1), ENOENT);
    /* the second one, released after its end, is the memory that is kept */
    release(r, 2);
    assert_true(rig_take_bytes(r) < 2 * layout_dump_bytes(&r->w.layout, ARRAY_MASK_STATE, 0));
    disk_close(&first);
    disk_close(&second);
}

static void second_write_at_once_is_refused(void **state) {
    struct rig *r = *state;
    struct disk first = disk_open("a"), second = disk_open("b");
    rig_close(r);
    rig_open(r, 0, 1, 8 << 20);
    for (uint64_t take = 1; take <= 2; take++) {
        assert_int_equal(reserve(r, take, ARRAY_MASK_STATE, 1), 0);
        fix(r, take);
        heard_done(r, take, 1);
    }
    write_order(r, 1, 1, first.path);
    write_order(r, 2, 2, second.path);
    assert_int_equal(written(r, 2), EBUSY);
    assert_int_equal(written(r, 1), 0);
    disk_close(&first);
    disk_close(&second);
}

static void end_while_writing_waits_for_the_writer(void **state) {
    struct rig *r = *state;
    struct disk d = disk_open("a");
    rig_close(r);
    rig_open(r, 0, 1, 8 << 20);
    assert_int_equal(reserve(r, 1, ARRAY_MASK_STATE, 1), 0);
    fix(r, 1);
    heard_done(r, 1, 1);
    write_order(r, 1, 1, d.path);
    rig_sync(r);
    rig_close(r);
    disk_close(&d);
    rig_open(r, 0, 1, 1000); /* for the teardown */
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        T(pin_is_copied_when_idle_and_offered),
        T(pin_is_copied_before_it_is_overwritten),
        T(several_pins_share_a_boundary),
        T(gradients_that_are_not_there_become_zeros),
        T(reservation_is_idempotent_and_bad_masks_are_refused),
        T(fix_of_an_unknown_or_fixed_take_is_nothing),
        T(release_ends_it_in_each_state),
        T(new_daemon_is_offered_finished_pins_only),
        T(daemon_that_does_not_read_loses_no_pin),
        T(memory_of_a_snapshot_is_kept_for_the_next),
        T(written_snapshot_is_what_was_fixed),
        T(write_of_what_is_not_copied_fails),
        T(release_while_writing_cancels),
        T(second_write_at_once_is_refused),
        T(end_while_writing_waits_for_the_writer),
    };
    alarm(WORLD_DEADLINE_SECONDS);
    log_set_level(LEVEL_ERROR);
    return cmocka_run_group_tests_name("wide", tests, NULL, NULL);
}
