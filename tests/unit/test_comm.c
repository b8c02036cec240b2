/* test_comm.c - which communicator is chosen, and sums in rank order. */
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "comm/comm.h"
#include "comm/fold.h"
#include "comm/world.h"

static int find(const char *name, uint32_t world_size, const struct comm_ops **out,
                struct err *err) {
    struct comm_args args = {.world_size = world_size, .ops = &device_cpu};
    return comm_find(name, &args, out, err);
}

static void one_rank_needs_no_launcher(void **state) {
    (void)state;
    uint32_t rank = 7, size = 7;
    struct err err = {0};
    assert_int_equal(comm_world_init(1, &rank, &size, &err), 0);
    assert_int_equal(rank, 0);
    assert_int_equal(size, 1);
}

static void one_rank_is_its_own_world(void **state) {
    (void)state;
    const struct comm_ops *ops = NULL;
    struct err err = {0};
    assert_int_equal(find("auto", 1, &ops, &err), 0);
    assert_ptr_equal(ops, &comm_self);
    assert_int_equal(find("self", 1, &ops, &err), 0);
    assert_ptr_equal(ops, &comm_self);
}

static void what_cannot_be_is_refused_with_what_would(void **state) {
    (void)state;
    const struct comm_ops *ops = NULL;
    struct err err = {0};
    assert_int_equal(find("self", 2, &ops, &err), -ENOTSUP);
    assert_non_null(strstr(err.text, "use auto"));
    err.code = 0;
    assert_int_equal(find("nccl", 2, &ops, &err), -ENOTSUP);
    assert_non_null(strstr(err.text, "the device is cpu"));
    err.code = 0;
    assert_int_equal(find("gloo", 2, &ops, &err), -EINVAL);
    assert_non_null(strstr(err.text, "gloo"));
    assert_non_null(strstr(err.text, "auto, self, node, mpi or nccl"));
    assert_null(ops);
}

static void node_and_mpi_are_there_if_built_with_mpi(void **state) {
    (void)state;
    const struct comm_ops *ops = NULL;
    struct err err = {0};
    uint32_t rank, size;
    if (world_has_peers(NULL) == 0) {
        assert_int_equal(find("node", 1, &ops, &err), 0);
        assert_ptr_equal(ops, &comm_node);
        assert_int_equal(find("mpi", 1, &ops, &err), 0);
        assert_ptr_equal(ops, &comm_mpi);
        return;
    }
    assert_int_equal(find("node", 1, &ops, &err), -ENOTSUP);
    assert_non_null(strstr(err.text, "built without MPI"));
    err.code = 0;
    assert_int_equal(comm_world_init(2, &rank, &size, &err), -ENOTSUP);
    assert_non_null(strstr(err.text, "built without MPI"));
}

static void sums_are_taken_in_rank_order(void **state) {
    (void)state;
    /* (1e8 + 1) - 1e8 is 0 in f32; another order would give 1 */
    float a[3] = {1e8F, 1, 2}, b[3] = {1, 2, 3}, c[3] = {-1e8F, 4, 5}, out[3] = {9, 9, 9};
    const void *const parts[] = {a, b, c};
    fold_sum(out, parts, DTYPE_F32, 3, 3, false);
    assert_true(out[0] == 0 && out[1] == 7 && out[2] == 10);
    fold_sum(out, parts, DTYPE_F32, 3, 2, true);
    assert_true(out[1] == 14 && out[2] == 10);
    /* in f32 whatever the parts are: 256 + 1 is no bf16 */
    const uint16_t p[] = {bf16_from_f32(256)}, q[] = {bf16_from_f32(1)};
    fold_sum(out, (const void *const[]){p, q}, DTYPE_BF16, 2, 1, true);
    assert_true(out[0] == 257);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_needs_no_launcher),
        cmocka_unit_test(one_rank_is_its_own_world),
        cmocka_unit_test(what_cannot_be_is_refused_with_what_would),
        cmocka_unit_test(node_and_mpi_are_there_if_built_with_mpi),
        cmocka_unit_test(sums_are_taken_in_rank_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
