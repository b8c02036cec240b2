/* test_arrays_elsewhere.c - arrays that are read by a callback from where they rest, and loading of
 * arrays wherever they are. */
#include "config.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "engine_world.h"

enum { PIECE_ELEMS = 1 << 20 /* as in arrays.c */ };

static bool holds_gen(const struct hold *h, uint64_t gen) {
    return h->state == HOLD_DONE && h->result == HOLD_COPIED && h->gen == gen &&
           h->step == gen - 1 && world_is(h->array, h->unit, h->lo, h->hi, gen, h->dst);
}

struct elsewhere {
    struct world w;
    float *rest[WORLD_UNITS]; /* exp_avg */
    bool may_read;
    uint32_t reads, fails_at, writes;
    uint64_t last_hi;
    float *buffer;
    struct hold h;
};

static int rest_read(void *ctx, enum array array, uint32_t unit, uint64_t lo, uint64_t hi,
                     void *dst) {
    struct elsewhere *e = ctx;
    assert_int_equal(array, ARRAY_EXP_AVG);
    assert_true(e->may_read);
    assert_true(hi > lo && hi <= world_valid(&e->w, unit));
    if (++e->reads == e->fails_at)
        return -ENXIO;
    e->last_hi = hi;
    memcpy(dst, e->rest[unit] + lo, (hi - lo) * sizeof(float));
    return 0;
}

static int rest_write(void *ctx, enum array array, uint32_t unit, uint64_t lo, uint64_t hi,
                      const void *src) {
    struct elsewhere *e = ctx;
    assert_int_equal(array, ARRAY_EXP_AVG);
    if (++e->writes == e->fails_at)
        return -ENOSPC;
    memcpy(e->rest[unit] + lo, src, (hi - lo) * sizeof(float));
    return 0;
}

static void rest_fill(struct elsewhere *e, uint32_t unit, uint64_t gen) {
    for (uint64_t i = 0; i < world_valid(&e->w, unit); i++)
        e->rest[unit][i] = world_value(ARRAY_EXP_AVG, unit, i, gen);
}

static void rest_write_all(struct elsewhere *e, uint32_t unit, uint64_t gen) {
    arrays_state_begin(e->w.arrays, unit);
    e->may_read = false;
    rest_fill(e, unit, gen);
    arrays_state_end(e->w.arrays, unit, gen, gen - 1);
    e->may_read = true;
}

/* on NULL: the other arrays are in memory of the host. */
static void elsewhere_open(struct elsewhere *e, uint64_t wide_elems,
                           const struct world_device *on) {
    *e = (struct elsewhere){0};
    world_open_on(&e->w, 0, 1, wide_elems, on);
    const struct array_home home = {
        .place = ARRAY_ELSEWHERE, .read = rest_read, .write = rest_write, .ctx = e};
    for (uint32_t u = 0; u < WORLD_UNITS; u++) {
        e->rest[u] = calloc(world_valid(&e->w, u) + 1, sizeof(float));
        assert_non_null(e->rest[u]);
        arrays_set_home(e->w.arrays, ARRAY_EXP_AVG, u, &home);
        arrays_set_shard(e->w.arrays, ARRAY_EXP_AVG, u, NULL);
    }
    e->buffer = malloc((world_valid(&e->w, 0) + 1) * sizeof(float));
    assert_non_null(e->buffer);
    for (uint32_t u = 0; u < WORLD_UNITS; u++)
        rest_write_all(e, u, 3);
    e->h = (struct hold){
        .array = ARRAY_EXP_AVG, .hi = world_valid(&e->w, 0), .dst = (uint8_t *)e->buffer};
}

static void elsewhere_close(struct elsewhere *e) {
    world_close(&e->w);
    for (uint32_t u = 0; u < WORLD_UNITS; u++)
        free(e->rest[u]);
    free(e->buffer);
}

static const struct world_device late = {
    .order = ASYNC_LATE_TAKE, .slot_bytes = 256, .slot_count = 3};

static void what_rests_elsewhere_is_read_piece_by_piece(void **state) {
    (void)state;
    for (int on = 0; on < 2; on++) {
        static struct elsewhere e;
        elsewhere_open(&e, 2 * PIECE_ELEMS + 100, on ? &late : NULL);
        e.h.lo = 50;
        assert_false(arrays_take(e.w.arrays, &e.h));
        assert_int_equal(e.reads, 0);
        for (uint32_t i = 1; i <= 3; i++) {
            assert_null(arrays_next_done(e.w.arrays));
            assert_true(arrays_serve(e.w.arrays));
            assert_int_equal(e.reads, i);
        }
        assert_ptr_equal(arrays_next_done(e.w.arrays), &e.h);
        assert_true(holds_gen(&e.h, 3));
        assert_false(arrays_serve(e.w.arrays));
        elsewhere_close(&e);
    }
}

static void begin_reads_the_rest_of_what_rests_elsewhere(void **state) {
    (void)state;
    static struct elsewhere e;
    elsewhere_open(&e, 2 * PIECE_ELEMS + 100, NULL);
    assert_false(arrays_take(e.w.arrays, &e.h));
    assert_true(arrays_serve(e.w.arrays));
    rest_write_all(&e, 0, 4);
    assert_int_equal(e.reads, 3);
    assert_ptr_equal(arrays_next_done(e.w.arrays), &e.h);
    assert_true(holds_gen(&e.h, 3));
    elsewhere_close(&e);
}

static void cancel_between_two_pieces_begins_anew(void **state) {
    (void)state;
    static struct elsewhere e;
    elsewhere_open(&e, 2 * PIECE_ELEMS + 100, NULL);
    assert_false(arrays_take(e.w.arrays, &e.h));
    assert_true(arrays_serve(e.w.arrays));
    arrays_cancel(e.w.arrays, &e.h);
    assert_false(arrays_serve(e.w.arrays));
    rest_write_all(&e, 0, 4);
    assert_int_equal(e.reads, 1);
    assert_false(arrays_take(e.w.arrays, &e.h));
    while (arrays_serve(e.w.arrays))
        ;
    assert_ptr_equal(arrays_next_done(e.w.arrays), &e.h);
    assert_true(holds_gen(&e.h, 4));
    elsewhere_close(&e);
}

static void read_that_fails_fails_its_hold(void **state) {
    (void)state;
    for (uint32_t nth = 1; nth <= 3; nth++) {
        for (int begins = 0; begins < 2; begins++) {
            static struct elsewhere e;
            elsewhere_open(&e, 2 * PIECE_ELEMS + 100, NULL);
            e.fails_at = nth;
            assert_false(arrays_take(e.w.arrays, &e.h));
            while (!begins && arrays_serve(e.w.arrays))
                ;
            rest_write_all(&e, 0, 4);
            assert_int_equal(e.reads, nth);
            assert_ptr_equal(arrays_next_done(e.w.arrays), &e.h);
            assert_int_equal(e.h.result, HOLD_FAILED);
            assert_int_equal(e.h.code, EIO);
            assert_null(arrays_next_done(e.w.arrays));
            elsewhere_close(&e);
        }
    }
}

/* ---- load */

struct loading {
    enum array array;
    uint64_t next, fails_at;
    struct err *err;
};

static int loading_fill(void *ctx, uint64_t from, uint64_t elems, float *to) {
    struct loading *l = ctx;
    assert_int_equal(from, l->next);
    l->next += elems;
    if (l->fails_at != 0 && l->next > l->fails_at)
        return err_set(l->err, EBADMSG, "the source is broken");
    for (uint64_t i = 0; i < elems; i++)
        to[i] = world_value(l->array, 0, from + i, 9);
    return 0;
}

static void load_reaches_every_place(void **state) {
    (void)state;
    static const enum array arrays[] = {ARRAY_PARAMS, ARRAY_EXP_AVG};
    for (int on = 0; on < 2; on++) {
        static struct elsewhere e;
        struct err err = {0};
        elsewhere_open(&e, PIECE_ELEMS + 100, on ? &late : NULL);
        world_write_grads(&e.w, 0, 3);
        arrays_state_begin(e.w.arrays, 0);
        uint64_t lo[] = {0, 7, world_valid(&e.w, 0)};
        for (size_t i = 0; i < 4; i++) {
            struct loading l = {.array = arrays[i / 2], .next = lo[i % 2], .err = &err};
            assert_int_equal(arrays_load(e.w.arrays, l.array, 0, lo[i % 2], lo[i % 2 + 1],
                                         loading_fill, &l, &err),
                             0);
            assert_int_equal(l.next, lo[i % 2 + 1]);
        }
        arrays_state_end(e.w.arrays, 0, 9, 8);
        for (int i = 0; i < 2; i++) {
            e.h.array = arrays[i];
            if (!arrays_take(e.w.arrays, &e.h)) {
                while (arrays_serve(e.w.arrays))
                    ;
                assert_ptr_equal(arrays_next_done(e.w.arrays), &e.h);
            }
            assert_true(holds_gen(&e.h, 9));
            arrays_cancel(e.w.arrays, &e.h);
        }
        elsewhere_close(&e);
    }
}

static void load_that_fails_says_why(void **state) {
    (void)state;
    static struct elsewhere e;
    struct err err = {0};
    elsewhere_open(&e, 1000, &late);
    arrays_state_begin(e.w.arrays, 0);
    for (int i = 0; i < 2; i++) {
        struct loading l = {.array = i ? ARRAY_PARAMS : ARRAY_EXP_AVG, .fails_at = 90, .err = &err};
        err = (struct err){0};
        assert_int_equal(arrays_load(e.w.arrays, l.array, 0, 0, 100, loading_fill, &l, &err),
                         -EBADMSG);
        assert_string_equal(err.text, "the source is broken");
        l = (struct loading){.array = l.array, .err = &err};
        err = (struct err){0};
        e.fails_at = e.writes + 1;
        async_device_fail(e.w.dev, i ? 3 : 0, false);
        assert_int_equal(arrays_load(e.w.arrays, l.array, 0, 0, 100, loading_fill, &l, &err),
                         i ? -EIO : -ENOSPC);
        assert_non_null(strstr(err.text, i ? "told to fail" : "ENOSPC"));
    }
    const struct array_home home = {.place = ARRAY_ELSEWHERE, .read = rest_read, .ctx = &e};
    struct loading l = {.array = ARRAY_EXP_AVG, .err = &err};
    arrays_set_home(e.w.arrays, ARRAY_EXP_AVG, 0, &home);
    err = (struct err){0};
    assert_int_equal(arrays_load(e.w.arrays, l.array, 0, 0, 1, loading_fill, &l, &err), -ENOTSUP);
    arrays_state_end(e.w.arrays, 0, 9, 8);
    elsewhere_close(&e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_rests_elsewhere_is_read_piece_by_piece),
        cmocka_unit_test(begin_reads_the_rest_of_what_rests_elsewhere),
        cmocka_unit_test(cancel_between_two_pieces_begins_anew),
        cmocka_unit_test(read_that_fails_fails_its_hold),
        cmocka_unit_test(load_reaches_every_place),
        cmocka_unit_test(load_that_fails_says_why),
    };
    alarm(WORLD_DEADLINE_SECONDS);
    log_set_level(LEVEL_ERROR);
    return cmocka_run_group_tests_name("arrays-elsewhere", tests, NULL, NULL);
}
