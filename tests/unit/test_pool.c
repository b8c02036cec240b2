/* test_pool.c - memory for takes: parts never overlap, are reused, stay within the limit. */
#include "config.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/segment.h"
#include "engine/pool.h"

enum { PAGE = 4096, MANY = 5000, DEADLINE_SECONDS = 60 };
#define MIB ((size_t)1 << 20)

static bool parts_overlap(const struct pool_part *a, const struct pool_part *b) {
    return a->segment == b->segment && a->offset_bytes < b->offset_bytes + b->bytes &&
           b->offset_bytes < a->offset_bytes + a->bytes;
}

static void part_is_whole_pages_of_its_segment(void **state) {
    (void)state;
    struct pool *p = pool_open(MIB);
    const size_t sizes[] = {0, 1, PAGE - 1, PAGE, PAGE + 1, 100000};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct pool_part part;
        assert_int_equal(pool_get(p, sizes[i], &part), 0);
        assert_true(part.segment >= 1);
        assert_true(part.bytes >= sizes[i] && part.bytes >= PAGE);
        assert_int_equal(part.bytes % PAGE, 0);
        assert_int_equal(part.offset_bytes % PAGE, 0);
        assert_true(part.offset_bytes + part.bytes <= part.segment_bytes);
        memset(part.base, 0x5a, part.bytes);
        /* who has the descriptor sees it at the offset */
        struct segment peer;
        assert_int_equal(segment_adopt(dup(part.fd), part.segment_bytes, false, &peer), 0);
        assert_memory_equal(peer.base + part.offset_bytes, part.base, part.bytes);
        segment_close(&peer);
        assert_int_equal(pool_used_bytes(p), part.bytes);
        pool_put(p, &part);
        assert_int_equal(part.segment, 0);
        assert_int_equal(pool_used_bytes(p), 0);
    }
    pool_close(p);
}

static void empty_part_can_be_put(void **state) {
    (void)state;
    struct pool *p = pool_open(MIB);
    struct pool_part part = {0};
    pool_put(p, &part);
    assert_int_equal(pool_used_bytes(p), 0);
    pool_close(p);
    pool_close(NULL);
}

static void memory_that_was_put_is_handed_out_again(void **state) {
    (void)state;
    struct pool *p = pool_open(64 * MIB);
    struct pool_part first, again;
    assert_int_equal(pool_get(p, 5 * MIB, &first), 0);
    const uint8_t *base = first.base;
    uint64_t segment = first.segment;
    for (int i = 0; i < 100; i++) {
        pool_put(p, &first);
        assert_int_equal(pool_get(p, 5 * MIB, &again), 0);
        assert_ptr_equal(again.base, base);
        assert_int_equal(again.segment, segment);
        first = again;
    }
    pool_close(p);
}

static void many_small_parts_lie_apart_in_few_segments(void **state) {
    (void)state;
    static struct pool_part parts[MANY];
    struct pool *p = pool_open(64 * MIB);
    uint64_t last_segment = 0;
    for (uint32_t i = 0; i < MANY; i++) {
        assert_int_equal(pool_get(p, 100, &parts[i]), 0);
        memcpy(parts[i].base, &i, sizeof(i));
        last_segment = parts[i].segment > last_segment ? parts[i].segment : last_segment;
    }
    for (uint32_t i = 0; i < MANY; i++)
        assert_memory_equal(parts[i].base, &i, sizeof(i));
    assert_true(last_segment <= 2);
    assert_int_equal(pool_used_bytes(p), (size_t)MANY * PAGE);
    for (uint32_t i = 0; i < MANY; i++)
        pool_put(p, &parts[i]);
    assert_int_equal(pool_used_bytes(p), 0);
    pool_close(p);
}

static void holes_are_filled_and_joined(void **state) {
    (void)state;
    enum { COUNT = 4096 };
    static struct pool_part parts[COUNT];
    struct pool *p = pool_open(64 * MIB);
    for (uint32_t i = 0; i < COUNT; i++)
        assert_int_equal(pool_get(p, PAGE, &parts[i]), 0);
    assert_int_equal(parts[COUNT - 1].segment, 1);
    struct pool_part two;
    for (uint32_t i = 0; i < COUNT; i += 2)
        pool_put(p, &parts[i]);
    assert_int_equal(pool_get(p, 2 * PAGE, &two), 0); /* no hole is that large */
    assert_int_equal(two.segment, 2);
    pool_put(p, &two);
    pool_put(p, &parts[101]);
    assert_int_equal(pool_get(p, 3 * PAGE, &two), 0);
    assert_int_equal(two.segment, 1);
    assert_int_equal(two.offset_bytes, 100 * PAGE);
    for (uint32_t i = 0; i < COUNT; i += 2) {
        if (i == 100 || i == 102)
            continue;
        assert_int_equal(pool_get(p, 1, &parts[i]), 0);
        assert_int_equal(parts[i].segment, 1);
    }
    pool_close(p);
}

static void small_parts_leave_large_segments_whole(void **state) {
    (void)state;
    struct pool *p = pool_open(256 * MIB);
    struct pool_part large, small[3];
    assert_int_equal(pool_get(p, 1, &small[0]), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pool_get(p, 40 * MIB, &large), 0);
        assert_int_equal(large.segment, 2);
        pool_put(p, &large);
        assert_int_equal(pool_get(p, 1, &small[1]), 0);
        assert_int_equal(small[1].segment, 1);
    }
    pool_close(p);
}

static void part_larger_than_a_segment_has_one_of_its_own(void **state) {
    (void)state;
    struct pool *p = pool_open(200 * MIB);
    struct pool_part part;
    assert_int_equal(pool_get(p, 100 * MIB + 1, &part), 0);
    assert_true(part.segment_bytes >= 100 * MIB + PAGE);
    part.base[100 * MIB] = 1;
    pool_close(p);
}

static void limit_counts_whole_pages_and_is_exact(void **state) {
    (void)state;
    struct pool *p = pool_open(10 * PAGE);
    struct pool_part parts[11];
    for (int i = 0; i < 10; i++)
        assert_int_equal(pool_get(p, 1, &parts[i]), 0);
    assert_int_equal(pool_get(p, 1, &parts[10]), -ENOBUFS);
    pool_put(p, &parts[3]);
    assert_int_equal(pool_get(p, PAGE + 1, &parts[10]), -ENOBUFS);
    assert_int_equal(pool_get(p, PAGE, &parts[10]), 0);
    assert_int_equal(pool_get(p, SIZE_MAX, &parts[3]), -ENOBUFS);
    assert_int_equal(pool_get(p, SIZE_MAX - PAGE + 2, &parts[3]), -ENOBUFS);
    pool_close(p);
}

static void limit_may_be_moved_at_any_time(void **state) {
    (void)state;
    struct pool *p = pool_open(2 * PAGE);
    struct pool_part parts[6];
    assert_int_equal(pool_get(p, 2 * PAGE, &parts[0]), 0);
    pool_set_limit(p, PAGE);
    assert_int_equal(pool_get(p, 1, &parts[1]), -ENOBUFS);
    pool_set_limit(p, 5 * PAGE);
    for (int i = 1; i < 4; i++)
        assert_int_equal(pool_get(p, 1, &parts[i]), 0);
    assert_int_equal(pool_get(p, 1, &parts[4]), -ENOBUFS);
    pool_set_limit(p, PAGE);
    pool_put(p, &parts[0]);
    assert_int_equal(pool_get(p, 1, &parts[4]), -ENOBUFS);
    for (int i = 1; i < 4; i++)
        pool_put(p, &parts[i]);
    assert_int_equal(pool_get(p, 1, &parts[4]), 0);
    pool_close(p);
}

static void host_without_memory_is_an_answer(void **state) {
    (void)state;
    struct pool *p = pool_open(64 * MIB);
    struct pool_part part;
    struct rlimit old, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    int rc = pool_get(p, 1, &part);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(rc, -ENOBUFS);
    assert_int_equal(pool_used_bytes(p), 0);
    assert_int_equal(pool_get(p, 1, &part), 0);
    pool_close(p);
}

static void forgotten_memory_is_never_written_again(void **state) {
    (void)state;
    struct pool *p = pool_open(64 * MIB);
    struct pool_part part, fresh;
    assert_int_equal(pool_get(p, 100, &part), 0);
    memset(part.base, 1, part.bytes);
    struct segment peer;
    assert_int_equal(segment_adopt(dup(part.fd), part.segment_bytes, false, &peer), 0);
    uint64_t id = part.segment;
    pool_forget(p);
    assert_int_equal(pool_used_bytes(p), 0);
    assert_int_equal(pool_get(p, 100, &fresh), 0);
    assert_true(fresh.segment > id);
    memset(fresh.base, 2, fresh.bytes);
    assert_int_equal(peer.base[part.offset_bytes], 1);
    segment_close(&peer);
    pool_close(p);
}

static void random_use_keeps_parts_apart(void **state) {
    (void)state;
    enum { SLOTS = 64, ROUNDS = 20000 };
    static struct pool_part slots[SLOTS];
    struct pool *p = pool_open(8 * MIB);
    uint32_t seed = 7;
    size_t used = 0;
    for (int i = 0; i < ROUNDS; i++) {
        seed = seed * 1664525u + 1013904223u;
        struct pool_part *at = &slots[(seed >> 8) % SLOTS];
        if (at->segment != 0) {
            used -= at->bytes;
            pool_put(p, at);
        } else {
            size_t want = (seed >> 14) % (400 << 10);
            int rc = pool_get(p, want, at);
            size_t pages = want == 0 ? 1 : (want + PAGE - 1) / PAGE;
            assert_int_equal(rc, used + pages * PAGE > 8 * MIB ? -ENOBUFS : 0);
            if (rc == 0) {
                used += at->bytes;
                for (int s = 0; s < SLOTS; s++)
                    assert_false(&slots[s] != at && slots[s].segment != 0 &&
                                 parts_overlap(&slots[s], at));
            }
        }
        assert_int_equal(pool_used_bytes(p), used);
    }
    pool_close(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(part_is_whole_pages_of_its_segment),
        cmocka_unit_test(empty_part_can_be_put),
        cmocka_unit_test(memory_that_was_put_is_handed_out_again),
        cmocka_unit_test(many_small_parts_lie_apart_in_few_segments),
        cmocka_unit_test(holes_are_filled_and_joined),
        cmocka_unit_test(small_parts_leave_large_segments_whole),
        cmocka_unit_test(part_larger_than_a_segment_has_one_of_its_own),
        cmocka_unit_test(limit_counts_whole_pages_and_is_exact),
        cmocka_unit_test(limit_may_be_moved_at_any_time),
        cmocka_unit_test(host_without_memory_is_an_answer),
        cmocka_unit_test(forgotten_memory_is_never_written_again),
        cmocka_unit_test(random_use_keeps_parts_apart),
    };
    alarm(DEADLINE_SECONDS);
    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
