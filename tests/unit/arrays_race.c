/* arrays_race.c - the two threads. */
#include "config.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "arrays_race.h"

enum { ENOUGH_ANSWERS = 1000 };

static uint32_t next_random(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static void reader_check(struct race *r, const struct hold *h) {
    atomic_fetch_add(&r->answers, 1);
    if (h->result == HOLD_COPIED) {
        r->copied++;
        if (!world_is(h->array, h->unit, h->lo, h->hi, h->gen, h->dst))
            r->wrong = "a copy is not of one version";
        if (h->want_gen != 0 && h->gen != h->want_gen)
            r->wrong = "a copy is of another version than the one wanted";
        if (h->step != h->gen - 1)
            r->wrong = "step and gen do not belong together";
    } else if (h->result == HOLD_FAILED) {
        r->failed++;
        if (!r->may_fail || h->code != EIO)
            r->wrong = "a copy failed";
    } else if (h->result == HOLD_PASSED) {
        r->passed++;
        if (h->want_gen == 0 || h->gen < h->want_gen)
            r->wrong = "passed, but it was not";
    } else {
        r->none++;
        if (h->array != ARRAY_GRADS)
            r->wrong = "parameters are always there";
    }
}

static void reader_start(struct race *r, struct hold *h, uint32_t *seed) {
    uint64_t gen = atomic_load(&r->gen);
    h->array = (enum array)(next_random(seed) % ARRAY_COUNT);
    h->unit = next_random(seed) % WORLD_UNITS;
    uint64_t valid = world_valid(&r->w, h->unit);
    h->lo = valid != 0 ? next_random(seed) % valid : 0;
    h->hi = h->lo + (valid > h->lo ? next_random(seed) % (valid - h->lo + 1) : 0);
    uint64_t wants[] = {0, gen, gen + 1, gen + 3, gen > 2 ? gen - 1 : 0};
    h->want_gen = wants[next_random(seed) % 5];
    if (arrays_take(r->w.arrays, h)) {
        reader_check(r, h);
        arrays_cancel(r->w.arrays, h);
    } else {
        r->waited++;
    }
}

static void reader_done(struct race *r, struct hold *h) {
    reader_check(r, h);
    arrays_cancel(r->w.arrays, h);
    h->owner = NULL;
}

static void reader_cancel(struct race *r, struct hold *h) {
    uint64_t elems = h->hi - h->lo;
    arrays_cancel(r->w.arrays, h);
    h->owner = NULL;
    r->cancelled++;
    memset(h->dst, 0, elems * sizeof(float));
    (void)arrays_serve(r->w.arrays);
    for (uint64_t i = 0; i < elems * sizeof(float); i++)
        if (h->dst[i] != 0)
            r->wrong = "a cancelled hold was written to";
}

static void *reader_main(void *arg) {
    struct race *r = arg;
    uint32_t seed = 42;
    while (!atomic_load(&r->stop) && r->wrong == NULL) {
        uint32_t i = next_random(&seed) % READER_HOLDS;
        struct hold *h = &r->holds[i];
        /* Its state is the lists' until it was handed out or cancelled: the owner knows it is busy.
         */
        bool busy = h->owner != NULL;
        if (!busy) {
            uint64_t waited = r->waited;
            reader_start(r, h, &seed);
            if (r->waited != waited)
                h->owner = h;
        } else if (next_random(&seed) % 8 == 0) {
            reader_cancel(r, h);
        }
        (void)arrays_serve(r->w.arrays);
        for (struct hold *d; (d = arrays_next_done(r->w.arrays)) != NULL;)
            reader_done(r, d);
    }
    atomic_fetch_add(&r->answers, ENOUGH_ANSWERS); /* there will be no more */
    return NULL;
}

static void writer_step(struct race *r, uint64_t gen) {
    for (uint32_t u = 0; u < WORLD_UNITS; u++) {
        arrays_grads_begin(r->w.arrays, u);
        world_fill(&r->w, ARRAY_GRADS, u, gen);
        world_wait(&r->w, ARRAY_GRADS);
        arrays_grads_end(r->w.arrays, u, gen, gen - 1);
    }
    for (uint32_t u = 0; u < WORLD_UNITS; u++) {
        arrays_state_begin(r->w.arrays, u);
        world_fill(&r->w, ARRAY_PARAMS, u, gen);
        world_fill(&r->w, ARRAY_EXP_AVG, u, gen);
        world_fill(&r->w, ARRAY_EXP_AVG_SQ, u, gen);
        world_wait(&r->w, ARRAY_PARAMS);
        arrays_state_end(r->w.arrays, u, gen, gen - 1);
    }
}

void race_run(struct race *r, const struct world_device *on, uint64_t wide_elems, uint64_t steps) {
    pthread_t reader;
    world_open_on(&r->w, 0, 2, wide_elems, on);
    world_write_all(&r->w, 1);
    if (on != NULL && on->fail_at != 0)
        async_device_fail(r->w.dev, on->fail_at, on->dead);
    atomic_store(&r->gen, 1);
    for (int i = 0; i < READER_HOLDS; i++) {
        r->buffers[i] = malloc(wide_elems * sizeof(float) + 4096);
        assert_non_null(r->buffers[i]);
        r->holds[i].dst = (uint8_t *)r->buffers[i];
    }
    assert_int_equal(pthread_create(&reader, NULL, reader_main, r), 0);
    for (uint64_t gen = 2; gen < 2 + steps || atomic_load(&r->answers) < ENOUGH_ANSWERS; gen++) {
        atomic_store(&r->gen, gen);
        if (gen % 16 == 0)
            arrays_grads_none(r->w.arrays);
        writer_step(r, gen);
        if (gen % 4 == 0) /* so that the reader has its turn on one core too */
            sched_yield();
    }
    atomic_store(&r->stop, true);
    assert_int_equal(pthread_join(reader, NULL), 0);
    if (r->wrong != NULL)
        fail_msg("%s", r->wrong);
    for (int i = 0; i < READER_HOLDS; i++) {
        arrays_cancel(r->w.arrays, &r->holds[i]);
        free(r->buffers[i]);
    }
    world_close(&r->w);
}
