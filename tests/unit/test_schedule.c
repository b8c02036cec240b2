/* test_schedule.c - shares of the batch, learning rate, clip factor. */
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "engine/schedule.h"
#include "engine/trainer.h"

static void shares_cover_the_batch_once(void **state) {
    (void)state;
    for (uint64_t batch = 1; batch <= 40; batch++)
        for (uint32_t world = 1; world <= 12; world++)
            for (uint64_t micro = 0; micro <= 5; micro++) {
                uint64_t next = 0, counts = 0;
                for (uint32_t rank = 0; rank < world; rank++) {
                    struct batch_share s =
                        batch_share_of(batch, 256, micro, MICRO_TOKENS, rank, world);
                    uint64_t in_micros = 0;
                    assert_int_equal(s.first, next);
                    next += s.count;
                    for (uint64_t m = 0; m < s.micro_count; m++) {
                        assert_true(batch_micro_count(&s, m) <= s.micro);
                        in_micros += batch_micro_count(&s, m);
                    }
                    assert_int_equal(in_micros, s.count);
                    assert_true(micro == 0 ? s.micro <= 4 : s.micro <= micro);
                    if (rank == 0)
                        counts = s.micro_count;
                    assert_int_equal(s.micro_count, counts);
                }
                assert_int_equal(next, batch);
            }
}

static void eight_sequences_on_three_ranks_are_3_3_2(void **state) {
    (void)state;
    const uint64_t want[] = {3, 3, 2};
    for (uint32_t rank = 0; rank < 3; rank++)
        assert_int_equal(batch_share_of(8, 64, 0, MICRO_TOKENS, rank, 3).count, want[rank]);
}

static void microbatches_are_few_and_equal(void **state) {
    (void)state;
    struct batch_share s = batch_share_of(10, 256, 0, MICRO_TOKENS, 0, 1);
    assert_int_equal(s.micro_count, 3);
    assert_int_equal(s.micro, 4);
    s = batch_share_of(9, 256, 0, MICRO_TOKENS, 0, 1);
    assert_int_equal(s.micro_count, 3);
    assert_int_equal(s.micro, 3);
    s = batch_share_of(4, 4096, 0, MICRO_TOKENS, 0, 2);
    assert_int_equal(s.micro_count, 2);
    assert_int_equal(s.micro, 1);
    s = batch_share_of(9, 1024, 0, MICRO_TOKENS_GPU, 0, 1);
    assert_int_equal(s.micro_count, 2);
    assert_int_equal(s.micro, 5);
    s = batch_share_of(9, 1024, 3, MICRO_TOKENS_GPU, 0, 1);
    assert_int_equal(s.micro_count, 3);
    assert_int_equal(s.micro, 3);
}

static void learning_rate_rises_then_falls_to_its_lowest(void **state) {
    (void)state;
    struct config c;
    config_defaults(&c);
    c.schedule_steps = 1000;
    c.warmup_steps = 100;
    c.lr = 1e-3;
    c.min_lr_fraction = 0.1;
    assert_true(trainer_lr(&c, &c, 0) > 0);
    assert_float_equal(trainer_lr(&c, &c, 0), 1e-5, 1e-12);
    assert_float_equal(trainer_lr(&c, &c, 99), 1e-3, 1e-12);
    assert_float_equal(trainer_lr(&c, &c, 100), 1e-3, 1e-12);
    assert_float_equal(trainer_lr(&c, &c, 550), 0.55e-3, 1e-12);
    assert_float_equal(trainer_lr(&c, &c, 1000), 1e-4, 1e-12);
    assert_float_equal(trainer_lr(&c, &c, 50000), 1e-4, 1e-12);
    for (uint64_t step = 1; step < 1100; step++) {
        double change = trainer_lr(&c, &c, step) - trainer_lr(&c, &c, step - 1);
        assert_true(step < 100 ? change > 0 : change <= 0);
    }
}

static void learning_rate_follows_the_live_knob(void **state) {
    (void)state;
    struct config c, live;
    config_defaults(&c);
    c.schedule_steps = 10;
    c.warmup_steps = 0;
    live = c;
    live.lr = 2 * c.lr;
    assert_float_equal(trainer_lr(&c, &live, 3), 2 * trainer_lr(&c, &c, 3), 1e-12);
    c.schedule_steps = 0; /* then the target is the end */
    c.steps = 10;
    assert_float_equal(trainer_lr(&c, &live, 10), live.lr * live.min_lr_fraction, 1e-12);
    c.warmup_steps = 20; /* longer than the schedule */
    assert_float_equal(trainer_lr(&c, &live, 25), live.lr, 1e-12);
}

static void clipping_is_a_factor(void **state) {
    (void)state;
    assert_true(clip_factor_of(0.5, 1) == 1);
    assert_true(clip_factor_of(5, 0) == 1);
    assert_float_equal(clip_factor_of(4, 1), 0.25, 1e-6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_cover_the_batch_once),
        cmocka_unit_test(eight_sequences_on_three_ranks_are_3_3_2),
        cmocka_unit_test(microbatches_are_few_and_equal),
        cmocka_unit_test(learning_rate_rises_then_falls_to_its_lowest),
        cmocka_unit_test(learning_rate_follows_the_live_knob),
        cmocka_unit_test(clipping_is_a_factor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
