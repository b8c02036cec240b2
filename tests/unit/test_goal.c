/* test_goal.c - the decisions of the supervisor. */
#include "config.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "run/goal.h"

static const struct goal resting = {.target = 100, .step = 10, .ready = true, .waiting = true};

static void a_step_becomes_absolute_when_accepted(void **state) {
    (void)state;
    uint64_t step = 0;
    assert_int_equal(goal_accept_step(&resting, 5, &step, NULL), 0);
    assert_int_equal(step, 15);
    assert_int_equal(goal_accept_step(&resting, 90, &step, NULL), 0);
    assert_int_equal(step, 100);
}

static void a_step_beyond_the_target_says_what_to_do(void **state) {
    (void)state;
    uint64_t step = 7;
    struct err err = {0};
    assert_int_equal(goal_accept_step(&resting, 91, &step, &err), -ERANGE);
    assert_non_null(strstr(err.text, "90 steps are left"));
    assert_non_null(strstr(err.text, "--steps"));
    assert_int_equal(goal_accept_step(&resting, UINT64_MAX, &step, NULL), -ERANGE);
    assert_int_equal(goal_accept_step(&resting, UINT64_MAX - 9, &step, NULL), -ERANGE);
    assert_int_equal(goal_accept_step(&resting, 0, &step, NULL), -ERANGE);
    assert_int_equal(step, 7);
    struct goal at_end = resting;
    at_end.step = 100;
    err = (struct err){0};
    assert_int_equal(goal_accept_step(&at_end, 1, &step, &err), -ERANGE);
    assert_non_null(strstr(err.text, "is reached"));
}

static void a_target_that_was_reached_does_no_harm(void **state) {
    (void)state;
    struct goal g = resting;
    assert_int_equal(goal_accept_target(&g, 0, NULL), 0);
    assert_int_equal(goal_accept_target(&g, 10, NULL), 0);
    assert_int_equal(goal_accept_target(&g, 100, NULL), 0);
    assert_int_equal(goal_accept_target(&g, 101, NULL), -ERANGE);
    g.step = 120; /* of a run that had a larger target */
    assert_int_equal(goal_accept_target(&g, 110, NULL), 0);
}

static void orders_are_one_number(void **state) {
    (void)state;
    struct goal g = resting;
    assert_int_equal(goal_orders(&g, 0), 0);
    assert_int_equal(goal_orders(&g, 20), 20);
    assert_int_equal(goal_orders(&g, 10), 0);
    g.running = true;
    assert_int_equal(goal_orders(&g, 20), 100);
    g.ending = true;
    assert_int_equal(goal_orders(&g, 20), 0);
}

static void the_state_follows_the_ranks(void **state) {
    (void)state;
    struct goal g = resting;
    assert_int_equal(goal_state(&g), RUN_PAUSED);
    g.ordered = 12;
    assert_int_equal(goal_state(&g), RUN_TRAINING);
    g.step = 12;
    assert_int_equal(goal_state(&g), RUN_PAUSED);
    g.waiting = false; /* told to pause, in the middle of a step */
    g.ordered = 0;
    assert_int_equal(goal_state(&g), RUN_TRAINING);
    assert_false(goal_is_resting(&g));
    g.waiting = g.running = true;
    g.step = 100;
    assert_int_equal(goal_state(&g), RUN_DONE);
    assert_true(goal_is_reached(&g));
}

static void a_run_that_stays_has_nothing_to_run_at_its_target(void **state) {
    (void)state;
    struct goal g = resting;
    assert_int_equal(goal_accept_run(&g, true, NULL), 0);
    g.step = 100;
    assert_int_equal(goal_accept_run(&g, true, NULL), -ERANGE);
    assert_int_equal(goal_accept_run(&g, false, NULL), 0);
}

static void expect_origins(const struct goal_origin *list, uint32_t count, uint64_t restored_gen,
                           const char *expected) {
    uint32_t order[8];
    uint32_t n = goal_origins(list, count, restored_gen, order);
    assert_int_equal(n, strlen(expected));
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(order[i], expected[i] - '0');
}

static void a_run_starts_from_the_newest_whole_snapshot(void **state) {
    (void)state;
    struct goal_origin list[] = {{.gen = 5}, {.gen = 9}, {.gen = 20}};
    expect_origins(list, 0, 0, "");
    expect_origins(list, 3, 0, "210");
    list[2].broken = true;
    expect_origins(list, 3, 0, "10");
}

static void a_restore_comes_before_what_was_newer(void **state) {
    (void)state;
    struct goal_origin list[] = {{.gen = 5, .restored = true}, {.gen = 9}, {.gen = 20}};
    expect_origins(list, 3, 25, "021");
    list[2].gen = 30; /* made after the restore */
    expect_origins(list, 3, 25, "201");
    list[0].broken = true;
    expect_origins(list, 3, 25, "21");
    list[0] = (struct goal_origin){.gen = 5}; /* the restored one was removed */
    expect_origins(list, 3, 40, "210");
}

static void restarts_are_counted(void **state) {
    (void)state;
    assert_true(goal_may_restart(0));
    assert_true(goal_may_restart(2));
    assert_false(goal_may_restart(3));
    uint64_t before = 0;
    for (uint32_t n = 1; n < 40; n++) {
        uint64_t delay = goal_restart_delay_ms(n);
        assert_true(delay >= before && delay <= 5000);
        before = delay;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_becomes_absolute_when_accepted),
        cmocka_unit_test(a_step_beyond_the_target_says_what_to_do),
        cmocka_unit_test(a_target_that_was_reached_does_no_harm),
        cmocka_unit_test(orders_are_one_number),
        cmocka_unit_test(the_state_follows_the_ranks),
        cmocka_unit_test(a_run_that_stays_has_nothing_to_run_at_its_target),
        cmocka_unit_test(a_run_starts_from_the_newest_whole_snapshot),
        cmocka_unit_test(a_restore_comes_before_what_was_newer),
        cmocka_unit_test(restarts_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
