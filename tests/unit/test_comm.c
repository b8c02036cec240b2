/* test_comm.c - which communicator is chosen, and sums in rank order. */
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "comm/collective.h"
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

/* ---- nccl, where it does not come to be. Two ranks are two threads; the communicator of the host
 * is a barrier and shared memory. */

enum { NEWS_BYTES = 4096 };
static pthread_barrier_t met;
static uint64_t numbers[2];
static uint8_t news[NEWS_BYTES];
static int opens_with[2]; /* errno of the collective on each rank, 0 if it opens */

struct comm { /* of the host, of one rank */
    uint32_t rank;
};
static struct comm hosts[2] = {{0}, {1}};

static int host_open(const struct comm_args *args, struct comm **out, struct err *err) {
    (void)err;
    *out = &hosts[args->rank];
    return 0;
}

static void host_close(struct comm *c) { (void)c; }

static int host_max(struct comm *c, uint64_t *inout, size_t count, enum comm_op op) {
    assert(count == 1 && op == COMM_MAX);
    numbers[c->rank] = *inout;
    (void)pthread_barrier_wait(&met);
    *inout = numbers[0] > numbers[1] ? numbers[0] : numbers[1];
    (void)pthread_barrier_wait(&met);
    return 0;
}

static int host_broadcast(struct comm *c, void *data, size_t bytes, uint32_t root) {
    assert(bytes <= NEWS_BYTES);
    if (c->rank == root)
        memcpy(news, data, bytes);
    (void)pthread_barrier_wait(&met);
    memcpy(data, news, bytes);
    (void)pthread_barrier_wait(&met);
    return 0;
}

static const struct comm_ops host_ops = {.name = "host",
                                         .open = host_open,
                                         .close = host_close,
                                         .all_reduce_u64 = host_max,
                                         .broadcast = host_broadcast};

static int fake_id(uint8_t id[COLLECTIVE_ID_BYTES], struct err *err) {
    (void)err;
    memset(id, 7, COLLECTIVE_ID_BYTES);
    return 0;
}

/* Any pointer will do: nobody looks behind it. */
static int fake_open(const uint8_t id[COLLECTIVE_ID_BYTES], uint32_t rank, uint32_t world_size,
                     struct device *dev, double timeout_s, struct collective **out,
                     struct err *err) {
    (void)dev;
    (void)timeout_s;
    assert(id[0] == 7 && world_size == 2);
    if (opens_with[rank] != 0)
        return err_set(err, opens_with[rank], "rank %u: error %d", rank, opens_with[rank]);
    *out = (struct collective *)&hosts[rank];
    return 0;
}

static void fake_close(struct collective *c) { (void)c; }

static const struct collective_ops fake_collectives = {
    .name = "fake", .unique_id = fake_id, .open = fake_open, .close = fake_close};

static struct err reasons[2]; /* of each rank */

static void *open_nccl(void *arg) {
    uint32_t rank = *(const uint32_t *)arg;
    uint64_t shard_elems = 3;
    struct device_args of_device = {.threads = 1};
    struct comm_args args = {.rank = rank,
                             .world_size = 2,
                             .shard_elems = &shard_elems,
                             .unit_count = 1,
                             .ops = &device_cpu,
                             .host = &host_ops,
                             .collectives = &fake_collectives,
                             .timeout_s = 1};
    struct comm *c = NULL;
    reasons[rank] = (struct err){0};
    if (device_cpu.open(&of_device, &args.dev, &reasons[rank]) != 0)
        return NULL;
    if (comm_nccl.open(&args, &c, &reasons[rank]) == 0)
        comm_nccl.close(c);
    device_cpu.close(args.dev);
    return NULL;
}

static void open_on_both(int first, int second) {
    static const uint32_t ranks[2] = {0, 1};
    pthread_t other;
    opens_with[0] = first;
    opens_with[1] = second;
    assert_int_equal(pthread_barrier_init(&met, NULL, 2), 0);
    assert_int_equal(pthread_create(&other, NULL, open_nccl, (void *)&ranks[1]), 0);
    (void)open_nccl((void *)&ranks[0]);
    assert_int_equal(pthread_join(other, NULL), 0);
    (void)pthread_barrier_destroy(&met);
}

static void both_are_told(uint32_t cause) {
    char text[64];
    snprintf(text, sizeof text, "rank %u: error %d", cause, opens_with[cause]);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(reasons[r].code, opens_with[cause]);
        assert_string_equal(reasons[r].text, text);
    }
}

static void all_ranks_hear_why_one_could_not_join(void **state) {
    (void)state;
    open_on_both(0, 0);
    assert_int_equal(reasons[0].code, 0);
    assert_int_equal(reasons[1].code, 0);
    for (int waits = 0; waits < 2; waits++) {
        /* The other waited in vain, or was aborted: not the cause. */
        static const int in_vain[] = {ETIMEDOUT, ECOMM};
        open_on_both(in_vain[waits], EIO);
        both_are_told(1);
        open_on_both(ENODEV, in_vain[waits]);
        both_are_told(0);
    }
    open_on_both(0, ETIMEDOUT);
    both_are_told(1);
    open_on_both(EIO, 0);
    both_are_told(0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_needs_no_launcher),
        cmocka_unit_test(one_rank_is_its_own_world),
        cmocka_unit_test(what_cannot_be_is_refused_with_what_would),
        cmocka_unit_test(node_and_mpi_are_there_if_built_with_mpi),
        cmocka_unit_test(sums_are_taken_in_rank_order),
        cmocka_unit_test(all_ranks_hear_why_one_could_not_join),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
