/* test_arrays.c - each arrow of the hold state machine in engine/arrays.h, and two threads on it.
 */
#include "config.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
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
#include "engine_world.h"

enum { WIDE_ELEMS = 1000, BUFFER_ELEMS = 2048 };

struct fixture {
    struct world w;
    float buffer[BUFFER_ELEMS];
    struct hold h;
};

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    world_open(&f->w, 0, 2, WIDE_ELEMS);
    *state = f;
    return 0;
}

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

static bool holds_gen(const struct fixture *f, uint64_t gen) {
    const struct hold *h = &f->h;
    return h->state == HOLD_DONE && h->result == HOLD_COPIED && h->gen == gen &&
           h->step == gen - 1 && world_is(h->array, h->unit, h->lo, h->hi, gen, f->buffer);
}

static bool is_readable(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

/* ---- IDLE */

static void hold_on_content_is_done_at_once(void **state) {
    struct fixture *f = *state;
    world_write_state(&f->w, 0, 3);
    f->h = hold_of(f, ARRAY_EXP_AVG, 0, 0);
    assert_true(arrays_take(f->w.arrays, &f->h));
    assert_true(holds_gen(f, 3));
    assert_null(arrays_next_done(f->w.arrays));
    assert_false(arrays_serve(f->w.arrays));
}

static void hold_copies_its_range_only(void **state) {
    struct fixture *f = *state;
    world_write_state(&f->w, 0, 3);
    memset(f->buffer, 0xff, sizeof(f->buffer));
    f->h = hold_of(f, ARRAY_PARAMS, 0, 3);
    f->h.lo = 5;
    f->h.hi = 17;
    assert_true(arrays_take(f->w.arrays, &f->h));
    assert_true(holds_gen(f, 3));
    uint32_t after;
    memcpy(&after, &f->buffer[12], sizeof(after));
    assert_int_equal(after, UINT32_MAX);
}

static void hold_on_an_empty_range_is_done(void **state) {
    struct fixture *f = *state;
    world_write_state(&f->w, 0, 3);
    f->h = hold_of(f, ARRAY_PARAMS, 0, 0);
    f->h.hi = 0;
    f->h.dst = NULL;
    assert_true(arrays_take(f->w.arrays, &f->h));
    assert_int_equal(f->h.result, HOLD_COPIED);
}

static void hold_on_gradients_before_the_first_step_is_none(void **state) {
    struct fixture *f = *state;
    f->h = hold_of(f, ARRAY_GRADS, 0, 0);
    assert_true(arrays_take(f->w.arrays, &f->h));
    assert_int_equal(f->h.result, HOLD_NONE);
}

/* Another rank has them already: this one will, though its step has not come to them yet. */
static void hold_on_gradients_that_come_waits_before_the_first_step(void **state) {
    struct fixture *f = *state;
    f->h = hold_of(f, ARRAY_GRADS, 0, 2);
    assert_false(arrays_take(f->w.arrays, &f->h));
    world_write_grads(&f->w, 0, 2);
    assert_true(arrays_serve(f->w.arrays));
    assert_ptr_equal(arrays_next_done(f->w.arrays), &f->h);
    assert_true(holds_gen(f, 2));
}

static void hold_on_a_version_that_is_gone_is_passed(void **state) {
    struct fixture *f = *state;
    world_write_state(&f->w, 1, 5);
    f->h = hold_of(f, ARRAY_PARAMS, 1, 4);
    assert_true(arrays_take(f->w.arrays, &f->h));
    assert_int_equal(f->h.result, HOLD_PASSED);
    assert_int_equal(f->h.gen, 5);
}

static void hold_on_the_version_being_overwritten_is_passed(void **state) {
    struct fixture *f = *state;
    world_write_grads(&f->w, 1, 5);
    arrays_grads_begin(f->w.arrays, 1);
    f->h = hold_of(f, ARRAY_GRADS, 1, 5);
    assert_true(arrays_take(f->w.arrays, &f->h));
    assert_int_equal(f->h.result, HOLD_PASSED);
    arrays_grads_end(f->w.arrays, 1, 6, 5);
}

/* ---- WAITING */

static void hold_on_what_is_being_written_waits_for_the_end(void **state) {
    struct fixture *f = *state;
    world_write_state(&f->w, 0, 3);
    arrays_state_begin(f->w.arrays, 0);
    f->h = hold_of(f, ARRAY_PARAMS, 0, 0);
    assert_false(arrays_take(f->w.arrays, &f->h));
    assert_int_equal(f->h.state, HOLD_WAITING);
    world_fill(&f->w, ARRAY_PARAMS, 0, 4);
    assert_false(arrays_serve(f->w.arrays));
    arrays_state_end(f->w.arrays, 0, 4, 3);
    assert_int_equal(f->h.state, HOLD_OWED);
    assert_true(is_readable(arrays_wake_fd(f->w.arrays)));
    assert_true(arrays_serve(f->w.arrays));
    assert_ptr_equal(arrays_next_done(f->w.arrays), &f->h);
    assert_true(holds_gen(f, 4));
    assert_null(arrays_next_done(f->w.arrays));
}

static void hold_waits_for_the_version_it_wants(void **state) {
    struct fixture *f = *state;
    world_write_state(&f->w, 0, 3);
    f->h = hold_of(f, ARRAY_PARAMS, 0, 5);
    assert_false(arrays_take(f->w.arrays, &f->h));
    world_write_state(&f->w, 0, 4);
    assert_int_equal(f->h.state, HOLD_WAITING);
    world_write_state(&f->w, 0, 5);
    assert_int_equal(f->h.state, HOLD_OWED);
    world_write_state(&f->w, 0, 6); /* copied before it is overwritten */
    assert_ptr_equal(arrays_next_done(f->w.arrays), &f->h);
    assert_true(holds_gen(f, 5));
}

static void hold_waiting_for_a_passed_version_ends(void **state) {
    struct fixture *f = *state;
    world_write_state(&f->w, 0, 3);
    f->h = hold_of(f, ARRAY_PARAMS, 0, 4);
    assert_false(arrays_take(f->w.arrays, &f->h));
    world_write_state(&f->w, 0, 5);
    assert_ptr_equal(arrays_next_done(f->w.arrays), &f->h);
    assert_int_equal(f->h.result, HOLD_PASSED);
    assert_int_equal(f->h.gen, 5);
}

static void hold_on_gradients_ends_when_there_will_be_none(void **state) {
    struct fixture *f = *state;
    world_write_all(&f->w, 3);
    arrays_grads_begin(f->w.arrays, 0);
    f->h = hold_of(f, ARRAY_GRADS, 0, 0);
    assert_false(arrays_take(f->w.arrays, &f->h));
    arrays_grads_none(f->w.arrays);
    assert_ptr_equal(arrays_next_done(f->w.arrays), &f->h);
    assert_int_equal(f->h.result, HOLD_NONE);
    assert_int_equal(f->h.state, HOLD_DONE);
    f->h = hold_of(f, ARRAY_GRADS, 0, 3);
    assert_true(arrays_take(f->w.arrays, &f->h));
    assert_int_equal(f->h.result, HOLD_NONE);
}

/* ---- OWED, by a fix at a boundary */

static void fix_owes_what_is_there_whatever_its_version(void **state) {
    struct fixture *f = *state;
    world_write_state(&f->w, 2, 3);
    f->h = hold_of(f, ARRAY_EXP_AVG_SQ, 2, 0);
    arrays_fix(f->w.arrays, &f->h);
    assert_int_equal(f->h.state, HOLD_OWED);
    assert_true(is_readable(arrays_wake_fd(f->w.arrays)));
    world_write_state(&f->w, 2, 9);
    assert_ptr_equal(arrays_next_done(f->w.arrays), &f->h);
    assert_true(holds_gen(f, 3));
}

static void fix_of_a_waiting_hold_owes_what_is_there(void **state) {
    struct fixture *f = *state;
    world_write_state(&f->w, 2, 3);
    f->h = hold_of(f, ARRAY_PARAMS, 2, 7);
    assert_false(arrays_take(f->w.arrays, &f->h));
    arrays_fix(f->w.arrays, &f->h);
    assert_true(arrays_serve(f->w.arrays));
    assert_ptr_equal(arrays_next_done(f->w.arrays), &f->h);
    assert_true(holds_gen(f, 3));
    world_write_state(&f->w, 2, 7);
    assert_null(arrays_next_done(f->w.arrays));
}

static void fix_without_content_is_none(void **state) {
    struct fixture *f = *state;
    f->h = hold_of(f, ARRAY_GRADS, 1, 0);
    arrays_fix(f->w.arrays, &f->h);
    assert_ptr_equal(arrays_next_done(f->w.arrays), &f->h);
    assert_int_equal(f->h.result, HOLD_NONE);
}

static void fix_leaves_a_finished_hold_alone(void **state) {
    struct fixture *f = *state;
    world_write_state(&f->w, 1, 5);
    f->h = hold_of(f, ARRAY_PARAMS, 1, 6);
    assert_false(arrays_take(f->w.arrays, &f->h));
    world_write_state(&f->w, 1, 7);
    arrays_fix(f->w.arrays, &f->h);
    assert_int_equal(f->h.state, HOLD_DONE);
    assert_ptr_equal(arrays_next_done(f->w.arrays), &f->h);
    assert_null(arrays_next_done(f->w.arrays));
}

static void owed_copy_is_made_before_none_takes_the_gradients(void **state) {
    struct fixture *f = *state;
    world_write_all(&f->w, 4);
    f->h = hold_of(f, ARRAY_GRADS, 0, 0);
    arrays_fix(f->w.arrays, &f->h);
    arrays_grads_none(f->w.arrays);
    assert_ptr_equal(arrays_next_done(f->w.arrays), &f->h);
    assert_true(holds_gen(f, 4));
}

/* ---- any -> IDLE */

static void cancel_takes_a_hold_out_of_every_list(void **state) {
    struct fixture *f = *state;
    world_write_state(&f->w, 0, 3);
    for (int from = 0; from < 4; from++) {
        f->h = hold_of(f, ARRAY_PARAMS, 0, from == 0 ? 100 : 0);
        struct hold others[2] = {f->h, f->h};
        float sink[BUFFER_ELEMS];
        others[0].dst = others[1].dst = (uint8_t *)sink;
        others[0].want_gen = others[1].want_gen = 0;
        arrays_fix(f->w.arrays, &others[0]);
        if (from == 0)
            assert_false(arrays_take(f->w.arrays, &f->h)); /* WAITING */
        else if (from < 3)
            arrays_fix(f->w.arrays, &f->h); /* OWED */
        else
            assert_true(arrays_take(f->w.arrays, &f->h));
        arrays_fix(f->w.arrays, &others[1]);
        if (from == 2)
            world_write_state(&f->w, 0, 4); /* DONE, not handed out */
        memset(f->buffer, 0, sizeof(f->buffer));
        arrays_cancel(f->w.arrays, &f->h);
        assert_int_equal(f->h.state, HOLD_IDLE);
        int served = 0, done = 0;
        while (arrays_serve(f->w.arrays))
            served++;
        for (struct hold *h; (h = arrays_next_done(f->w.arrays)) != NULL; done++)
            assert_ptr_not_equal(h, &f->h);
        assert_int_equal(served, from == 2 ? 0 : 2);
        assert_int_equal(done, 2);
        world_write_state(&f->w, 0, 100);
        assert_null(arrays_next_done(f->w.arrays));
        assert_true(f->buffer[0] == 0);
        world_write_state(&f->w, 0, 3);
    }
}

static void cancelled_hold_can_be_used_again(void **state) {
    struct fixture *f = *state;
    world_write_state(&f->w, 0, 3);
    f->h = hold_of(f, ARRAY_PARAMS, 0, 9);
    assert_false(arrays_take(f->w.arrays, &f->h));
    arrays_cancel(f->w.arrays, &f->h);
    f->h.want_gen = 3;
    assert_true(arrays_take(f->w.arrays, &f->h));
    assert_true(holds_gen(f, 3));
}

static void holds_of_an_array_are_a_set(void **state) {
    struct fixture *f = *state;
    enum { COUNT = 50 };
    static struct hold h[COUNT];
    static float buffers[COUNT][BUFFER_ELEMS];
    world_write_state(&f->w, 0, 1);
    for (int i = 0; i < COUNT; i++) {
        h[i] = hold_of(f, i % 2 ? ARRAY_PARAMS : ARRAY_EXP_AVG, 0, 2 + (uint64_t)i % 5);
        h[i].dst = (uint8_t *)buffers[i];
        assert_false(arrays_take(f->w.arrays, &h[i]));
    }
    for (uint64_t gen = 2; gen < 8; gen++)
        world_write_state(&f->w, 0, gen);
    int done = 0;
    while (arrays_next_done(f->w.arrays) != NULL)
        done++;
    assert_int_equal(done, COUNT);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(h[i].gen, 2 + i % 5);
        assert_true(world_is(h[i].array, 0, 0, h[i].hi, h[i].gen, buffers[i]));
    }
}

static void units_and_gradients_have_versions_of_their_own(void **state) {
    struct fixture *f = *state;
    world_write_all(&f->w, 3);
    world_write_grads(&f->w, 1, 4);
    arrays_state_begin(f->w.arrays, 0);
    f->h = hold_of(f, ARRAY_GRADS, 0, 0);
    assert_true(arrays_take(f->w.arrays, &f->h));
    assert_true(holds_gen(f, 3));
    f->h = hold_of(f, ARRAY_GRADS, 1, 0);
    assert_true(arrays_take(f->w.arrays, &f->h));
    assert_true(holds_gen(f, 4));
    f->h = hold_of(f, ARRAY_PARAMS, 1, 0);
    assert_true(arrays_take(f->w.arrays, &f->h));
    assert_true(holds_gen(f, 3));
    arrays_state_end(f->w.arrays, 0, 5, 4);
}

/* ---- two threads */

static void copies_under_a_writer_are_of_one_version(void **state) {
    (void)state;
    static struct race r;
    race_run(&r, NULL, WIDE_ELEMS, 5000);
    print_message("%llu copied, %llu passed, %llu none, %llu waited, %llu cancelled\n",
                  (unsigned long long)r.copied, (unsigned long long)r.passed,
                  (unsigned long long)r.none, (unsigned long long)r.waited,
                  (unsigned long long)r.cancelled);
    assert_true(r.copied > 100);
    assert_true(r.waited > 10);
}

/* A reader that does nothing but copy. */
struct hammer {
    struct world w;
    struct hold h;
    float *buffer;
    atomic_bool stop;
    atomic_uint_fast64_t copies;
};

static void *hammer_main(void *arg) {
    struct hammer *m = arg;
    while (!atomic_load(&m->stop)) {
        if (arrays_take(m->w.arrays, &m->h) && m->h.result == HOLD_COPIED)
            atomic_fetch_add(&m->copies, 1);
        arrays_cancel(m->w.arrays, &m->h);
    }
    return NULL;
}

/* The writer announces itself, so the reader makes at most the copy that it is in, the one for
 * which it had passed the announcement already, and one that it made before but had not counted.
 * More are seen only when this thread lost its core before the announcement. */
static void writer_waits_for_few_copies(void **state) {
    (void)state;
    enum { BEGINS = 2000, ELEMS = 60000 };
    static struct hammer m;
    pthread_t reader;
    uint64_t slow = 0, most = 0;
    world_open(&m.w, 0, 1, ELEMS);
    world_write_state(&m.w, 0, 1);
    m.buffer = malloc((ELEMS + 4096) * sizeof(float));
    assert_non_null(m.buffer);
    m.h = (struct hold){
        .array = ARRAY_PARAMS, .hi = world_valid(&m.w, 0), .dst = (uint8_t *)m.buffer};
    assert_int_equal(pthread_create(&reader, NULL, hammer_main, &m), 0);
    for (uint64_t i = 0; i < BEGINS; i++) {
        uint64_t before = atomic_load(&m.copies);
        arrays_state_begin(m.w.arrays, 0);
        uint64_t made = atomic_load(&m.copies) - before;
        arrays_state_end(m.w.arrays, 0, 2 + i, 1 + i);
        slow += made > 3;
        most = made > most ? made : most;
        while (atomic_load(&m.copies) < before + 4)
            sched_yield();
    }
    atomic_store(&m.stop, true);
    assert_int_equal(pthread_join(reader, NULL), 0);
    print_message("%llu of %u begins with more than three copies, at most %llu\n",
                  (unsigned long long)slow, BEGINS, (unsigned long long)most);
    assert_true(slow * 50 < BEGINS);
    free(m.buffer);
    world_close(&m.w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(hold_on_content_is_done_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(hold_copies_its_range_only, setup, teardown),
        cmocka_unit_test_setup_teardown(hold_on_an_empty_range_is_done, setup, teardown),
        cmocka_unit_test_setup_teardown(hold_on_gradients_before_the_first_step_is_none, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(hold_on_gradients_that_come_waits_before_the_first_step,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(hold_on_a_version_that_is_gone_is_passed, setup, teardown),
        cmocka_unit_test_setup_teardown(hold_on_the_version_being_overwritten_is_passed, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(hold_on_what_is_being_written_waits_for_the_end, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(hold_waits_for_the_version_it_wants, setup, teardown),
        cmocka_unit_test_setup_teardown(hold_waiting_for_a_passed_version_ends, setup, teardown),
        cmocka_unit_test_setup_teardown(hold_on_gradients_ends_when_there_will_be_none, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(fix_owes_what_is_there_whatever_its_version, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(fix_of_a_waiting_hold_owes_what_is_there, setup, teardown),
        cmocka_unit_test_setup_teardown(fix_without_content_is_none, setup, teardown),
        cmocka_unit_test_setup_teardown(fix_leaves_a_finished_hold_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(owed_copy_is_made_before_none_takes_the_gradients, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(cancel_takes_a_hold_out_of_every_list, setup, teardown),
        cmocka_unit_test_setup_teardown(cancelled_hold_can_be_used_again, setup, teardown),
        cmocka_unit_test_setup_teardown(holds_of_an_array_are_a_set, setup, teardown),
        cmocka_unit_test_setup_teardown(units_and_gradients_have_versions_of_their_own, setup,
                                        teardown),
        cmocka_unit_test(copies_under_a_writer_are_of_one_version),
        cmocka_unit_test(writer_waits_for_few_copies),
    };
    alarm(WORLD_DEADLINE_SECONDS);
    return cmocka_run_group_tests_name("arrays", tests, NULL, NULL);
}
