/* test_kernels_race.c - the kernels under the race detector: within a block, between blocks, and
 * between the kernels of a stream. Which order the threads have changes nothing of what it finds.
 */
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/cuda/emulated_cases.h"

/* A race ends the program. */
static void kernels_have_no_race(void **state) {
    (void)state;
    emulated_cases_check(EMU_ASC, "", false, 800);
}

static void attention_by_tensor_cores_has_no_race(void **state) {
    (void)state;
    emulated_cases_check(EMU_ASC, "attention", true, 60);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_have_no_race),
        cmocka_unit_test(attention_by_tensor_cores_has_no_race),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
