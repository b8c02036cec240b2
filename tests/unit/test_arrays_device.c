/* test_arrays_device.c - arrays in memory of a device: each arrow of a hold, what the main thread
 * waits for, failures, and two threads on it. */
#include "config.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "arrays_race.h"
#include "base/log.h"
#include "engine_world.h"

enum { WIDE_ELEMS = 1000, BUFFER_ELEMS = 2048, SLOT_BYTES = 256 };

struct fixture {
    struct world w;
    float buffer[BUFFER_ELEMS], buffers[3][BUFFER_ELEMS];
    struct hold h;
};

/* The TAKE stream is late: what a write does not wait for, it destroys. */
static void open_with(struct fixture *f, uint32_t slots, enum async_order order) {
    const struct world_device on = {.order = order, .slot_bytes = SLOT_BYTES, .slot_count = slots};
    world_open_on(&f->w, 0, 2, WIDE_ELEMS, &on);
}

static int setup_slots(void **state, uint32_t slots) {
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    open_with(f, slots, ASYNC_LATE_TAKE);
    *state = f;
    return 0;
}

/* A shard of unit 0 has 2016 bytes: 8 pieces. */
static int setup(void **state) { return setup_slots(state, 32); }
static int setup_small(void **state) { return setup_slots(state, 2); }

static int teardown(void **state) {
    struct fixture *f = *state;
    world_close(&f->w);
    free(f);
    return 0;
}

static struct hold hold_of(struct fixture *f, enum array array, uint32_t unit, uint64_t want_gen) {
    return (struct hold){.array = array,
                         .unit = unit,
                         .hi = world_valid(&f->w, unit),
                         .dst = (uint8_t *)f->buffer,
                         .want_gen = want_gen};
}

static bool holds_gen(const struct hold *h, uint64_t gen) {
    return h->state == HOLD_DONE && h->result == HOLD_COPIED && h->gen == gen &&
           h->step == gen - 1 && world_is(h->array, h->unit, h->lo, h->hi, gen, h->dst);
}

static bool is_readable(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

static void drain_wake(struct fixture *f) {
    uint64_t n;
    if (is_readable(arrays_wake_fd(f->w.arrays)))
        assert_int_equal(read(arrays_wake_fd(f->w.arrays), &n, sizeof(n)), sizeof(n));
}

/* As the service thread does it, until h comes out. */
static void come_out(struct fixture *f, struct hold *h) {
    struct hold *done;
    while ((done = arrays_next_done(f->w.arrays)) == NULL)
        assert_true(arrays_serve(f->w.arrays));
    assert_ptr_equal(done, h);
}

/* ---- arrows */

static void hold_on_content_is_owed_then_staged_then_done(void **state) {
    struct fixture *f = *state;
    world_write_state(&f->w, 0, 3);
    drain_wake(f);
    f->h = hold_of(f, ARRAY_EXP_AVG, 0, 0);
    assert_false(arrays_take(f->w.arrays, &f->h));
    assert_int_equal(f->h.state, HOLD_OWED);
    assert_true(is_readable(arrays_wake_fd(f->w.arrays)));
    assert_null(arrays_next_done(f->w.arrays));
    assert_true(arrays_serve(f->w.arrays)); /* queued, and one piece is here */
    assert_int_equal(f->h.state, HOLD_STAGED);
    assert_null(arrays_next_done(f->w.arrays));
    come_out(f, &f->h);
    assert_true(holds_gen(&f->h, 3));
    assert_false(arrays_serve(f->w.arrays));
    assert_null(arrays_next_done(f->w.arrays));
}

static void hold_on_an_empty_range_is_done_at_once(void **state) {
    struct fixture *f = *state;
    world_write_state(&f->w, 0, 3);
    f->h = hold_of(f, ARRAY_PARAMS, 0, 3);
    f->h.hi = 0;
    assert_true(arrays_take(f->w.arrays, &f->h));
    assert_int_equal(f->h.result, HOLD_COPIED);
    f->h.state = HOLD_IDLE;
    arrays_fix(f->w.arrays, &f->h);
    come_out(f, &f->h);
    assert_int_equal(f->h.result, HOLD_COPIED);
}

static void hold_copies_its_range_only(void **state) {
    struct fixture *f = *state;
    world_write_state(&f->w, 0, 3);
    memset(f->buffer, 0xff, sizeof(f->buffer));
    f->h = hold_of(f, ARRAY_PARAMS, 0, 3);
    f->h.lo = 5;
    f->h.hi = 200;
    assert_false(arrays_take(f->w.arrays, &f->h));
    come_out(f, &f->h);
    assert_true(holds_gen(&f->h, 3));
    uint32_t after;
    memcpy(&after, &f->buffer[195], sizeof(after));
    assert_int_equal(after, UINT32_MAX);
}

static void begin_queues_what_is_owed_and_does_not_wait(void **state) {
    struct fixture *f = *state;
    world_write_all(&f->w, 3);
    struct hold grads = hold_of(f, ARRAY_GRADS, 0, 0);
    grads.dst = (uint8_t *)f->buffers[0];
    f->h = hold_of(f, ARRAY_PARAMS, 0, 0);
    arrays_fix(f->w.arrays, &f->h);
    arrays_fix(f->w.arrays, &grads);
    drain_wake(f);
    uint64_t waits = async_device_waits();
    arrays_grads_begin(f->w.arrays, 0);
    assert_int_equal(grads.state, HOLD_STAGED);
    assert_true(is_readable(arrays_wake_fd(f->w.arrays)));
    arrays_state_begin(f->w.arrays, 0);
    assert_int_equal(f->h.state, HOLD_STAGED);
    world_fill(&f->w, ARRAY_GRADS, 0, 4);
    world_fill(&f->w, ARRAY_PARAMS, 0, 4);
    world_wait(&f->w, ARRAY_GRADS);
    world_wait(&f->w, ARRAY_PARAMS);
    arrays_grads_end(f->w.arrays, 0, 4, 3);
    arrays_state_end(f->w.arrays, 0, 4, 3);
    assert_int_equal(async_device_waits(), waits);
    come_out(f, &grads);
    come_out(f, &f->h);
    assert_true(holds_gen(&f->h, 3));
    assert_true(holds_gen(&grads, 3));
}

/* Queued by the service thread, not by the one that begins. */
static void begin_is_behind_copies_that_are_under_way(void **state) {
    struct fixture *f = *state;
    world_write_all(&f->w, 3);
    f->h = hold_of(f, ARRAY_PARAMS, 0, 0);
    assert_false(arrays_take(f->w.arrays, &f->h));
    assert_true(arrays_serve(f->w.arrays));
    assert_int_equal(f->h.state, HOLD_STAGED);
    uint64_t waits = async_device_waits();
    world_write_state(&f->w, 0, 4);
    assert_int_equal(async_device_waits(), waits);
    come_out(f, &f->h);
    assert_true(holds_gen(&f->h, 3));
}

static void begin_waits_only_until_the_ring_has_room(void **state) {
    struct fixture *f = *state; /* two slots, eight pieces */
    world_write_state(&f->w, 0, 3);
    f->h = hold_of(f, ARRAY_PARAMS, 0, 0);
    arrays_fix(f->w.arrays, &f->h);
    uint64_t waits = async_device_waits();
    world_write_state(&f->w, 0, 4);
    assert_int_equal(async_device_waits(), waits + 6);
    assert_int_equal(f->h.state, HOLD_STAGED);
    come_out(f, &f->h);
    assert_true(holds_gen(&f->h, 3));
}

static void begin_without_debts_asks_the_device_nothing(void **state) {
    struct fixture *f = *state;
    world_write_all(&f->w, 3);
    uint64_t calls = async_device_calls(f->w.dev);
    world_write_all(&f->w, 4);
    f->h = hold_of(f, ARRAY_PARAMS, 0, 4);
    assert_int_equal(async_device_calls(f->w.dev), calls);
    assert_false(arrays_take(f->w.arrays, &f->h));
    come_out(f, &f->h);
    calls = async_device_calls(f->w.dev);
    world_write_all(&f->w, 5); /* what was drained is no debt */
    assert_int_equal(async_device_calls(f->w.dev), calls);
}

static void fix_leaves_a_staged_hold_alone(void **state) {
    struct fixture *f = *state;
    world_write_state(&f->w, 1, 5);
    f->h = hold_of(f, ARRAY_PARAMS, 1, 0);
    arrays_fix(f->w.arrays, &f->h);
    world_write_state(&f->w, 1, 6);
    assert_int_equal(f->h.state, HOLD_STAGED);
    arrays_fix(f->w.arrays, &f->h);
    assert_int_equal(f->h.state, HOLD_STAGED);
    come_out(f, &f->h);
    assert_true(holds_gen(&f->h, 5));
    assert_false(arrays_serve(f->w.arrays));
}

static void owed_copy_is_queued_before_none_takes_the_gradients(void **state) {
    struct fixture *f = *state;
    world_write_all(&f->w, 4);
    f->h = hold_of(f, ARRAY_GRADS, 0, 0);
    arrays_fix(f->w.arrays, &f->h);
    arrays_grads_none(f->w.arrays);
    assert_int_equal(f->h.state, HOLD_STAGED);
    world_write_grads(&f->w, 0, 5); /* only now a stream has to wait */
    come_out(f, &f->h);
    assert_true(holds_gen(&f->h, 4));
}

static void cancelled_hold_is_never_written_and_can_be_used_again(void **state) {
    struct fixture *f = *state; /* two slots */
    for (int from = 0; from < 6; from++) {
        struct hold other = hold_of(f, ARRAY_EXP_AVG, 0, 0);
        other.dst = (uint8_t *)f->buffers[0];
        world_write_state(&f->w, 0, 3);
        f->h = hold_of(f, ARRAY_PARAMS, 0, 0);
        assert_false(arrays_take(f->w.arrays, &f->h)); /* OWED */
        if (from == 1)
            assert_true(arrays_serve(f->w.arrays)); /* partly queued */
        if (from >= 2)
            world_write_state(&f->w, 0, 4); /* STAGED, partly drained */
        if (from == 3)
            assert_true(arrays_serve(f->w.arrays));
        for (int i = 0; from >= 4 && i < 2; i++)
            assert_true(arrays_serve(f->w.arrays)); /* all bytes are here */
        if (from == 5)
            assert_ptr_equal(arrays_next_done(f->w.arrays), &f->h);
        arrays_cancel(f->w.arrays, &f->h);
        assert_int_equal(f->h.state, HOLD_IDLE);
        memset(f->buffer, 0, sizeof(f->buffer));
        world_write_state(&f->w, 0, 5);
        assert_false(arrays_serve(f->w.arrays));
        assert_null(arrays_next_done(f->w.arrays));
        assert_false(arrays_take(f->w.arrays, &other));
        come_out(f, &other);
        assert_true(holds_gen(&other, 5));
        for (size_t i = 0; i < sizeof(f->buffer); i++)
            assert_int_equal(((uint8_t *)f->buffer)[i], 0);
        assert_false(arrays_take(f->w.arrays, &f->h));
        come_out(f, &f->h);
        assert_true(holds_gen(&f->h, 5));
        arrays_cancel(f->w.arrays, &f->h);
    }
}

static void holds_share_the_ring(void **state) {
    struct fixture *f = *state;
    enum { COUNT = 40 };
    static struct hold h[COUNT];
    static float buffers[COUNT][BUFFER_ELEMS];
    world_write_all(&f->w, 1);
    for (uint32_t i = 0; i < COUNT; i++) {
        h[i] = hold_of(f, (enum array)(i % ARRAY_COUNT), i / 4 % WORLD_UNITS, 2 + i % 5);
        h[i].dst = (uint8_t *)buffers[i];
        assert_false(arrays_take(f->w.arrays, &h[i]));
    }
    for (uint64_t gen = 2; gen < 8; gen++)
        world_write_all(&f->w, gen);
    uint32_t done = 0;
    do {
        while (arrays_next_done(f->w.arrays) != NULL)
            done++;
    } while (arrays_serve(f->w.arrays));
    assert_int_equal(done, COUNT);
    for (uint32_t i = 0; i < COUNT; i++)
        assert_true(holds_gen(&h[i], 2 + i % 5));
}

/* ---- two threads that meet at a certain place */

static void *serve_main(void *arg) {
    struct fixture *f = arg;
    (void)arrays_serve(f->w.arrays);
    return NULL;
}

static void main_thread_goes_on_while_the_service_thread_waits_for_the_device(void **state) {
    struct fixture *f = *state;
    pthread_t service;
    world_write_all(&f->w, 3);
    struct hold other = hold_of(f, ARRAY_EXP_AVG, 0, 0);
    other.dst = (uint8_t *)f->buffers[0];
    f->h = hold_of(f, ARRAY_PARAMS, 0, 0);
    assert_false(arrays_take(f->w.arrays, &f->h));
    async_device_gate(f->w.dev, true);
    assert_int_equal(pthread_create(&service, NULL, serve_main, f), 0);
    async_device_wait_gate(f->w.dev);
    uint64_t waits = async_device_waits();
    arrays_fix(f->w.arrays, &other);
    world_write_all(&f->w, 4);
    world_write_all(&f->w, 5);
    assert_int_equal(async_device_waits(), waits);
    async_device_gate(f->w.dev, false);
    assert_int_equal(pthread_join(service, NULL), 0);
    come_out(f, &f->h);
    come_out(f, &other);
    assert_true(holds_gen(&f->h, 3));
    assert_true(holds_gen(&other, 3));
}

struct stuck {
    struct fixture *f;
    atomic_bool through;
};

static void *begin_main(void *arg) {
    struct stuck *s = arg;
    world_write_state(&s->f->w, 0, 4);
    atomic_store(&s->through, true);
    return NULL;
}

/* The main thread is in the middle of a begin, waiting for room. */
static void service_thread_goes_on_while_the_main_thread_waits_for_room(void **state) {
    struct fixture *f = *state; /* two slots */
    struct stuck s = {.f = f};
    pthread_t main_thread;
    world_write_state(&f->w, 0, 3);
    f->h = hold_of(f, ARRAY_PARAMS, 0, 0);
    arrays_fix(f->w.arrays, &f->h);
    async_device_gate(f->w.dev, true);
    assert_int_equal(pthread_create(&main_thread, NULL, begin_main, &s), 0);
    async_device_wait_gate(f->w.dev);
    struct hold passed = hold_of(f, ARRAY_PARAMS, 0, 3), next = hold_of(f, ARRAY_EXP_AVG, 0, 0);
    struct hold gone = hold_of(f, ARRAY_PARAMS, 0, 9);
    next.dst = (uint8_t *)f->buffers[0];
    assert_true(arrays_take(f->w.arrays, &passed)); /* of the same group */
    assert_int_equal(passed.result, HOLD_PASSED);
    assert_false(arrays_take(f->w.arrays, &next));
    assert_int_equal(next.state, HOLD_WAITING);
    assert_false(arrays_take(f->w.arrays, &gone));
    arrays_cancel(f->w.arrays, &gone);
    assert_false(atomic_load(&s.through));
    assert_true(arrays_serve(f->w.arrays)); /* helps */
    async_device_gate(f->w.dev, false);
    assert_int_equal(pthread_join(main_thread, NULL), 0);
    come_out(f, &f->h);
    come_out(f, &next);
    assert_true(holds_gen(&f->h, 3));
    assert_true(holds_gen(&next, 4));
}

/* A hold whose pieces are all in the ring while the main thread wants room for the next. */
static void cancel_while_the_main_thread_waits_for_room(void **state) {
    struct fixture *f = *state; /* two slots */
    struct stuck s = {.f = f};
    pthread_t main_thread;
    world_write_state(&f->w, 0, 3);
    f->h = hold_of(f, ARRAY_PARAMS, 0, 0);
    struct hold other = hold_of(f, ARRAY_EXP_AVG, 0, 0);
    other.dst = (uint8_t *)f->buffers[0];
    arrays_fix(f->w.arrays, &other);
    arrays_fix(f->w.arrays, &f->h);
    async_device_gate(f->w.dev, true);
    assert_int_equal(pthread_create(&main_thread, NULL, begin_main, &s), 0);
    async_device_wait_gate(f->w.dev);
    async_device_gate(f->w.dev, false); /* else the piece in the main thread's hand never ends */
    arrays_cancel(f->w.arrays, &f->h);
    memset(f->buffer, 0, sizeof(f->buffer));
    assert_int_equal(pthread_join(main_thread, NULL), 0);
    come_out(f, &other);
    assert_true(holds_gen(&other, 3));
    for (size_t i = 0; i < sizeof(f->buffer); i++)
        assert_int_equal(((uint8_t *)f->buffer)[i], 0);
}

/* Else the last bytes of a hold would lie there until something else happens. */
static void threads_of_the_stage_wake_the_service_thread(void **state) {
    struct fixture *f = *state;
    const struct world_device on = {
        .order = ASYNC_LAZY, .slot_bytes = SLOT_BYTES, .slot_count = 32, .threads = 2};
    world_close(&f->w);
    world_open_on(&f->w, 0, 2, WIDE_ELEMS, &on);
    world_write_state(&f->w, 0, 3);
    f->h = hold_of(f, ARRAY_PARAMS, 0, 0);
    arrays_fix(f->w.arrays, &f->h);
    async_device_gate(f->w.dev, true);
    arrays_state_begin(f->w.arrays, 0);
    async_device_wait_gate(f->w.dev);
    drain_wake(f);
    assert_null(arrays_next_done(f->w.arrays));
    async_device_gate(f->w.dev, false);
    struct pollfd p = {.fd = arrays_wake_fd(f->w.arrays), .events = POLLIN};
    struct hold *done = NULL;
    while (done == NULL) {
        assert_int_equal(poll(&p, 1, 20000), 1);
        drain_wake(f);
        done = arrays_next_done(f->w.arrays);
    }
    assert_ptr_equal(done, &f->h);
    assert_true(holds_gen(&f->h, 3));
    arrays_state_end(f->w.arrays, 0, 4, 3);
}

/* ---- failures */

static void copy_that_fails_fails_its_hold(void **state) {
    (void)state;
    uint32_t failed = 0, copied = 0;
    for (uint64_t nth = 1; nth < 40; nth++) {
        for (int begins = 0; begins < 2; begins++) {
            struct fixture *g = calloc(1, sizeof(*g));
            assert_non_null(g);
            open_with(g, 2, ASYNC_LATE_TAKE);
            world_write_all(&g->w, 3);
            g->h = hold_of(g, ARRAY_PARAMS, 0, 0);
            arrays_fix(g->w.arrays, &g->h);
            async_device_fail(g->w.dev, nth, nth % 2 == 0);
            if (begins)
                world_write_all(&g->w, 4);
            come_out(g, &g->h);
            if (g->h.result == HOLD_FAILED) {
                assert_int_equal(g->h.code, EIO);
                failed++;
            } else {
                assert_true(holds_gen(&g->h, 3));
                copied++;
            }
            world_write_all(&g->w, 5);
            world_close(&g->w);
            free(g);
        }
    }
    assert_true(failed > 40);
    assert_true(copied > 10);
}

static void failed_hold_can_be_tried_again(void **state) {
    struct fixture *f = *state;
    world_write_all(&f->w, 3);
    f->h = hold_of(f, ARRAY_PARAMS, 0, 0);
    async_device_fail(f->w.dev, 1, false); /* the copy itself: no slot is lost */
    assert_false(arrays_take(f->w.arrays, &f->h));
    come_out(f, &f->h);
    assert_int_equal(f->h.result, HOLD_FAILED);
    assert_int_equal(f->h.code, EIO);
    arrays_cancel(f->w.arrays, &f->h);
    assert_false(arrays_take(f->w.arrays, &f->h));
    come_out(f, &f->h);
    assert_true(holds_gen(&f->h, 3));
}

/* ---- two threads */

static void race_on(enum async_order order, uint32_t slots, uint32_t threads, uint64_t steps) {
    static struct race r;
    const struct world_device on = {.order = order,
                                    .seed = order * 10 + slots,
                                    .slot_bytes = 200,
                                    .slot_count = slots,
                                    .threads = threads};
    r = (struct race){.may_fail = false};
    race_run(&r, &on, WIDE_ELEMS, steps);
    print_message("order %d, %u slots, %u threads: %llu copied, %llu passed, %llu none, %llu "
                  "waited, %llu cancelled\n",
                  order, slots, threads, (unsigned long long)r.copied, (unsigned long long)r.passed,
                  (unsigned long long)r.none, (unsigned long long)r.waited,
                  (unsigned long long)r.cancelled);
    assert_true(r.copied > 20);
    assert_true(r.waited > 20);
}

static void copies_under_a_writer_are_of_one_version(void **state) {
    (void)state;
    for (int order = 0; order < ASYNC_ORDERS; order++)
        for (uint32_t slots = 1; slots <= 3; slots++)
            race_on((enum async_order)order, slots, 0, 150);
}

static void copies_are_of_one_version_when_threads_of_the_stage_drain(void **state) {
    (void)state;
    for (int order = 0; order < ASYNC_ORDERS; order++)
        race_on((enum async_order)order, 1 + (uint32_t)order, 1 + (uint32_t)order % 2, 150);
}

static void device_that_fails_under_two_threads_hangs_nobody(void **state) {
    (void)state;
    uint64_t failed = 0;
    for (uint64_t nth = 1; nth < 60; nth += 3) {
        static struct race r;
        const struct world_device on = {.order = (enum async_order)(nth % ASYNC_ORDERS),
                                        .seed = nth,
                                        .slot_bytes = 200,
                                        .slot_count = 1 + nth % 3,
                                        .threads = nth % 2,
                                        .fail_at = nth,
                                        .dead = nth % 4 != 0};
        r = (struct race){.may_fail = true};
        race_run(&r, &on, WIDE_ELEMS, 20);
        failed += r.failed;
    }
    assert_true(failed > 20);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
#define T_SMALL(f) cmocka_unit_test_setup_teardown(f, setup_small, teardown)

/* More failures than one wants to read of. */
static int quiet(void **state) {
    (void)state;
    async_device_quiet(true);
    return 0;
}

static int loud(void **state) {
    (void)state;
    async_device_quiet(false);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        T(hold_on_content_is_owed_then_staged_then_done),
        T(hold_on_an_empty_range_is_done_at_once),
        T(hold_copies_its_range_only),
        T(begin_queues_what_is_owed_and_does_not_wait),
        T(begin_is_behind_copies_that_are_under_way),
        T_SMALL(begin_waits_only_until_the_ring_has_room),
        T(begin_without_debts_asks_the_device_nothing),
        T(fix_leaves_a_staged_hold_alone),
        T(owed_copy_is_queued_before_none_takes_the_gradients),
        T_SMALL(cancelled_hold_is_never_written_and_can_be_used_again),
        T_SMALL(holds_share_the_ring),
        T(main_thread_goes_on_while_the_service_thread_waits_for_the_device),
        T_SMALL(service_thread_goes_on_while_the_main_thread_waits_for_room),
        T_SMALL(cancel_while_the_main_thread_waits_for_room),
        T(threads_of_the_stage_wake_the_service_thread),
        cmocka_unit_test_setup_teardown(copy_that_fails_fails_its_hold, quiet, loud),
        T(failed_hold_can_be_tried_again),
        cmocka_unit_test(copies_under_a_writer_are_of_one_version),
        cmocka_unit_test(copies_are_of_one_version_when_threads_of_the_stage_drain),
        cmocka_unit_test_setup_teardown(device_that_fails_under_two_threads_hangs_nobody, quiet,
                                        loud),
    };
    alarm(WORLD_DEADLINE_SECONDS);
    log_set_level(LEVEL_ERROR);
    return cmocka_run_group_tests_name("arrays-device", tests, NULL, NULL);
}
