/* test_kernels.c - every operation of the emulated GPU against the CPU, with the threads of a block
 * in different orders. */
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/cuda/emulated_cases.h"

static void kernels_agree_with_the_reference(void **state) {
    (void)state;
    emulated_cases_check(EMU_ASC, "", false, 800);
}

/* What a missing barrier lets through in one order it seldom does in the other. These have some. */
static void the_last_thread_may_run_first(void **state) {
    (void)state;
    static const char *const names[] = {"embed_backward", "layernorm_", "residual_",
                                        "bias_backward",  "sum",        "attention_",
                                        "softmax_"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        emulated_cases_check(EMU_DESC, names[i], false, 20);
}

static void attention_by_tensor_cores_agrees_with_the_reference(void **state) {
    (void)state;
    emulated_cases_check(EMU_DESC, "attention", true, 60);
}

static const char *chosen; /* by the command line */

static void chosen_operations_agree_in_both_orders(void **state) {
    (void)state;
    emulated_cases_check(EMU_ASC, chosen, false, 1);
    emulated_cases_check(EMU_DESC, chosen, false, 1);
    if (strncmp(chosen, "attention", strlen("attention")) == 0)
        emulated_cases_check(EMU_DESC, chosen, true, 1);
}

/* An argument is how a name of an operation begins: those alone. */
int main(int argc, char **argv) {
    const struct CMUnitTest all[] = {
        cmocka_unit_test(kernels_agree_with_the_reference),
        cmocka_unit_test(the_last_thread_may_run_first),
        cmocka_unit_test(attention_by_tensor_cores_agrees_with_the_reference),
    };
    const struct CMUnitTest some[] = {
        cmocka_unit_test(chosen_operations_agree_in_both_orders),
    };
    chosen = argc > 1 ? argv[1] : NULL;
    if (chosen != NULL)
        return cmocka_run_group_tests(some, NULL, NULL);
    return cmocka_run_group_tests(all, NULL, NULL);
}
