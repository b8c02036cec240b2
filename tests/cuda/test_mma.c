/* test_mma.c - the emulation's tensor-core instructions and asynchronous copies: as the PTX ISA has
 * them, and with an eye for what is wrong. */
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/cuda/emu_control.h"
#include "tests/cuda/mma_check.h"
#include "tests/cuda/test_emu.h"
#include "tests/cuda/test_mma.h"

static void threads_order(enum emu_thread_order order, uint64_t seed) {
    struct emu_settings s = emu_get_settings();
    s.threads = order;
    s.seed = seed;
    emu_set_settings(&s);
}

static void instructions_do_what_is_documented_in_every_order(void **state) {
    (void)state;
    static const enum emu_thread_order orders[] = {EMU_ASC, EMU_DESC, EMU_SHUFFLED, EMU_SHUFFLED};
    char why[128] = "";
    for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
        threads_order(orders[i], i);
        if (mma_check_run(why, sizeof why) != 0)
            fail_msg("order %zu: %s", i, why);
    }
    settings_reset();
}

/* ---- in a child: the kernel's run ends the program ---- */

struct rows {
    int step, offset_bytes;
};

static void load_rows(void *arg) {
    const struct rows *r = arg;
    cudaStream_t s = stream_open();
    mma_wrong_rows(s, device_memory(32 * sizeof(uint32_t)), r->step, r->offset_bytes);
    must(cudaStreamSynchronize(s));
}

static void rows_of_a_matrix_do_not_share_banks(void **state) {
    (void)state;
    static const int odd[] = {1, 3, 5, 7}, even[] = {2, 4, 6, 8};
    for (size_t i = 0; i < 4; i++) {
        lives(load_rows, &(struct rows){odd[i], 0});
        dies(load_rows, &(struct rows){even[i], 0}, "share banks");
    }
    dies(load_rows, &(struct rows){1, 8}, "not aligned to 16 bytes");
}

/* What comes out of mma_wrong_copy of 42 */
static uint32_t copied(int what, enum emu_thread_order order) {
    threads_order(order, 1);
    cudaStream_t s = stream_open();
    uint32_t *host = pinned_memory(64), *in = device_memory(64), *out = device_memory(64);
    host[0] = 42;
    must(cudaMemcpyAsync(in, host, 64, cudaMemcpyDefault, s));
    mma_wrong_copy(s, out, in, what);
    must(cudaMemcpyAsync(host, out, sizeof *host, cudaMemcpyDefault, s));
    must(cudaStreamSynchronize(s));
    uint32_t got = host[0];
    must(cudaFree(in));
    must(cudaFree(out));
    must(cudaFreeHost(host));
    must(cudaStreamDestroy(s));
    settings_reset();
    return got;
}

static void a_copy_comes_at_once_or_as_late_as_its_wait(void **state) {
    (void)state;
    assert_int_equal(copied(MMA_WRONG_GROUP, EMU_ASC), 42);
    assert_int_equal(copied(MMA_WRONG_GROUP, EMU_DESC), 42);
    assert_int_not_equal(copied(MMA_WRONG_WAIT, EMU_ASC), 42);
    assert_int_equal(copied(MMA_WRONG_WAIT, EMU_DESC), 42);
}

static void copy(void *arg) { copied(*(const int *)arg, EMU_ASC); }

static void a_copy_is_waited_for_and_aligned(void **state) {
    (void)state;
    int end = MMA_WRONG_END, alignment = MMA_WRONG_ALIGNMENT;
    dies(copy, &end, "were waited for");
    dies(copy, &alignment, "not aligned to 16 bytes");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_a_matrix_do_not_share_banks),
        cmocka_unit_test(a_copy_is_waited_for_and_aligned),
        cmocka_unit_test(a_copy_comes_at_once_or_as_late_as_its_wait),
        cmocka_unit_test(instructions_do_what_is_documented_in_every_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
