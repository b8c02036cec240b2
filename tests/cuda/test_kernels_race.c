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

static const char *chosen; /* by the command line */

static void chosen_operations_have_no_race(void **state) {
    (void)state;
    emulated_cases_check(EMU_ASC, chosen, false, 1);
}

/* An argument is how a name of an operation begins: those alone. */
int main(int argc, char **argv) {
    const struct CMUnitTest all[] = {
        cmocka_unit_test(kernels_have_no_race),
        cmocka_unit_test(attention_by_tensor_cores_has_no_race),
    };
    const struct CMUnitTest some[] = {
        cmocka_unit_test(chosen_operations_have_no_race),
    };
    chosen = argc > 1 ? argv[1] : NULL;
    if (chosen != NULL)
        return cmocka_run_group_tests(some, NULL, NULL);
    return cmocka_run_group_tests(all, NULL, NULL);
}
