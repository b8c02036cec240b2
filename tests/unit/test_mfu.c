/* test_mfu.c - what part of the devices' arithmetic is the model's. */
#include "config.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "run/mfu.h"

static void the_peak_is_the_sum_over_the_ranks(void **state) {
    (void)state;
    const struct mfu_device ranks[] = {{1e12, "a"}, {2e12, "b"}, {4e12, "c"}};
    assert_true(mfu_peak(ranks, 3) == 7e12);
    assert_true(mfu_peak(ranks, 1) == 1e12);
    assert_true(mfu_peak(ranks, 0) == 0);
}

static void a_device_that_ranks_share_counts_once(void **state) {
    (void)state;
    const struct mfu_device ranks[] = {{1e12, "a"}, {2e12, "b"}, {1e12, "a"}, {1e12, "a"}};
    assert_true(mfu_peak(ranks, 4) == 3e12);
}

static void a_device_without_id_is_nobody_elses(void **state) {
    (void)state;
    const struct mfu_device ranks[] = {{1e12, ""}, {1e12, ""}};
    assert_true(mfu_peak(ranks, 2) == 2e12);
}

static void one_unknown_peak_makes_all_unknown(void **state) {
    (void)state;
    const struct mfu_device zero[] = {{1e12, "a"}, {0, "b"}};
    const struct mfu_device nan[] = {{NAN, "a"}, {1e12, "b"}};
    const struct mfu_device negative[] = {{-1, "a"}};
    assert_true(mfu_peak(zero, 2) == 0);
    assert_true(mfu_peak(nan, 2) == 0);
    assert_true(mfu_peak(negative, 1) == 0);
}

static void the_share_is_what_the_formula_says(void **state) {
    (void)state;
    /* GPT-2 124M at 6 N: 250,000 tokens a second are 0.186 of 1e15 */
    assert_true(fabs(mfu_share(6 * 124e6, 250e3, 1e15) - 0.186) < 1e-12);
    assert_true(mfu_share(1, 0, 1) == 0);
}

static void what_is_not_known_gives_no_share(void **state) {
    (void)state;
    assert_true(isnan(mfu_share(0, 1, 1)));
    assert_true(isnan(mfu_share(1, NAN, 1)));
    assert_true(isnan(mfu_share(1, INFINITY, 1)));
    assert_true(isnan(mfu_share(1, 1, 0)));
    assert_true(isnan(mfu_share(NAN, 1, 1)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_peak_is_the_sum_over_the_ranks),
        cmocka_unit_test(a_device_that_ranks_share_counts_once),
        cmocka_unit_test(a_device_without_id_is_nobody_elses),
        cmocka_unit_test(one_unknown_peak_makes_all_unknown),
        cmocka_unit_test(the_share_is_what_the_formula_says),
        cmocka_unit_test(what_is_not_known_gives_no_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
