/* test_recording.c - the recording device lists what a step does, and its checker finds every order
 * that is missing. */
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/recording.h"
#include "model_harness.h"

static const struct device_ops *const ops = &device_recording;
enum { ELEMS = 1000 };

/* A step in miniature: gather writes a buffer, compute uses it and writes a gradient, reduce sends
 * that on; then the buffer is gathered into again, and the host reads the result. */
struct pipeline {
    struct device *d;
    struct dev_stream *gather, *compute, *reduce;
    struct dev_event *gathered, *computed, *reduced;
    float *shard, *unit, *grad, *sum;
};

static void *make(struct device *d, const char *what) {
    void *p = NULL;
    assert_int_equal(ops->alloc(d, DEV_MEM_DEVICE, ELEMS * sizeof(float), what, &p), 0);
    return p;
}

static void pipeline_open(struct pipeline *p) {
    assert_int_equal(ops->open(&(struct device_args){.threads = 1}, &p->d, NULL), 0);
    ops->stream_open(p->d, DEV_STREAM_GATHER, &p->gather);
    ops->stream_open(p->d, DEV_STREAM_COMPUTE, &p->compute);
    ops->stream_open(p->d, DEV_STREAM_REDUCE, &p->reduce);
    ops->event_open(p->d, "gathered", &p->gathered);
    ops->event_open(p->d, "computed", &p->computed);
    ops->event_open(p->d, "reduced", &p->reduced);
    p->shard = make(p->d, "shard");
    p->unit = make(p->d, "unit");
    p->grad = make(p->d, "grad");
    p->sum = make(p->d, "sum");
}

static void pipeline_close(struct pipeline *p) {
    struct dev_stream *streams[] = {p->gather, p->compute, p->reduce};
    struct dev_event *events[] = {p->gathered, p->computed, p->reduced};
    for (size_t i = 0; i < 3; i++) {
        ops->stream_close(p->d, streams[i]);
        ops->event_close(p->d, events[i]);
    }
    ops->close(p->d);
}

static void pipeline_run(struct pipeline *p) {
    struct recording_range sum = {p->sum, ELEMS * sizeof(float)},
                           grad = {p->grad, ELEMS * sizeof(float)};
    for (int round = 0; round < 2; round++) {
        ops->stream_wait(p->d, p->gather, p->computed); /* the buffer is free again */
        ops->copy(p->d, p->gather, p->unit, p->shard, ELEMS * sizeof(float));
        ops->event_record(p->d, p->gather, p->gathered);
        ops->stream_wait(p->d, p->compute, p->gathered);
        ops->stream_wait(p->d, p->compute, p->reduced); /* so is the gradient's */
        ops->copy(p->d, p->compute, p->grad, p->unit, ELEMS * sizeof(float));
        ops->event_record(p->d, p->compute, p->computed);
        ops->stream_wait(p->d, p->reduce, p->computed);
        assert_int_equal(recording_note(p->d, p->reduce, "reduce_scatter", &grad, 1, &sum, 1), 0);
        ops->event_record(p->d, p->reduce, p->reduced);
    }
    ops->event_synchronize(p->d, p->reduced);
    assert_int_equal(recording_note(p->d, NULL, "host reads", &sum, 1, NULL, 0), 0);
}

static void a_right_step_has_no_conflict(void **state) {
    (void)state;
    struct pipeline p;
    struct recording_conflict x;
    pipeline_open(&p);
    pipeline_run(&p);
    assert_int_equal(recording_count(p.d), 22);
    assert_string_equal(recording_at(p.d, 1)->name, "copy");
    assert_ptr_equal(recording_at(p.d, 1)->writes[0].start, p.unit);
    assert_int_equal(recording_at(p.d, 1)->stream, 0);
    assert_string_equal(recording_memory_name(p.d, p.grad + 5), "grad");
    assert_string_equal(recording_memory_name(p.d, &p), "?");
    assert_int_equal(recording_check(p.d, &x), 0);
    recording_clear(p.d);
    assert_int_equal(recording_count(p.d), 0);
    pipeline_close(&p);
}

/* Every wait, record and synchronize that matters: without it the checker sees a conflict in the
 * memory it was there for. */
static void each_forgotten_wait_is_found(void **state) {
    (void)state;
    static const struct {
        size_t entry;
        const char
            *memory; /* NULL: the first round has nothing to wait for, or a later wait covers it */
    } faults[] = {
        {0, NULL},    {2, "unit"},  {3, "unit"},  {4, NULL},    {6, "grad"},
        {7, "grad"},  {9, "grad"},  {10, "unit"}, {12, "unit"}, {13, "unit"},
        {14, "grad"}, {16, "grad"}, {17, "grad"}, {19, "sum"},  {20, "sum"},
    };
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        struct pipeline p;
        struct recording_conflict x;
        pipeline_open(&p);
        pipeline_run(&p);
        assert_true(recording_at(p.d, faults[i].entry)->kind >= RECORDING_EVENT);
        recording_remove(p.d, faults[i].entry);
        int rc = recording_check(p.d, &x);
        if (rc != (faults[i].memory != NULL))
            fail_msg("without entry %zu: %d", faults[i].entry, rc);
        if (rc == 1 && faults[i].memory != NULL) {
            assert_string_equal(recording_memory_name(p.d, x.range.start), faults[i].memory);
            assert_non_null(strstr(x.text, faults[i].memory));
        }
        pipeline_close(&p);
    }
}

static void what_only_reads_or_lies_apart_is_no_conflict(void **state) {
    (void)state;
    struct pipeline p;
    struct recording_conflict x;
    pipeline_open(&p);
    ops->copy(p.d, p.gather, p.unit, p.shard, 400);
    ops->copy(p.d, p.compute, p.grad, p.shard, 400);
    ops->copy(p.d, p.reduce, p.unit + 100, p.shard, 400);
    assert_int_equal(recording_check(p.d, &x), 0);
    ops->fill(p.d, p.reduce, p.unit + 99, DTYPE_F32, 1, 0); /* one element too early */
    assert_int_equal(recording_check(p.d, &x), 1);
    assert_int_equal(x.first, 0);
    assert_int_equal(x.second, 3);
    assert_ptr_equal(x.range.start, p.unit + 99);
    assert_int_equal(x.range.bytes, 4);
    assert_string_equal(x.text, "copy (entry 0, stream 0) and fill (entry 3, stream 2) both touch "
                                "4 bytes of unit, in no order");
    pipeline_close(&p);
}

/* The host's order reaches a stream with what it queues, and a synchronize hands on what the stream
 * knew. */
static void order_through_the_host_counts(void **state) {
    (void)state;
    struct pipeline p;
    struct recording_conflict x;
    pipeline_open(&p);
    struct recording_range shard = {p.shard, 400};
    recording_note(p.d, NULL, "host writes", NULL, 0, &shard, 1);
    ops->copy(p.d, p.gather, p.unit, p.shard, 400);
    ops->event_record(p.d, p.gather, p.gathered);
    ops->event_synchronize(p.d, p.gathered);
    ops->copy(p.d, p.compute, p.grad, p.unit, 400);
    assert_int_equal(recording_check(p.d, &x), 0);
    recording_note(p.d, NULL, "host writes", NULL, 0, &shard, 1); /* gather is done with it */
    assert_int_equal(recording_check(p.d, &x), 0);
    ops->copy(p.d, p.gather, p.unit, p.shard, 400); /* compute may still read unit */
    assert_int_equal(recording_check(p.d, &x), 1);
    pipeline_close(&p);
}

static void a_model_on_one_stream_has_no_conflict(void **state) {
    (void)state;
    struct device *d;
    struct harness h;
    struct recording_conflict x;
    char *config = NULL;
    int32_t tokens[2 * 64] = {0};
    assert_int_equal(ops->open(&(struct device_args){.threads = 1}, &d, NULL), 0);
    assert_int_equal(model_config_text("gpt2:124M", &config, NULL), 0);
    harness_open(&h, ops, d, DTYPE_F32, config, 2, 64); /* gigabytes, of which none is touched */
    struct model_batch batch = {
        .tokens = tokens, .targets = tokens, .B = 2, .T = 64, .loss_scale = 1};
    harness_init(&h, 1);
    recording_clear(d);
    harness_train(&h, &batch, false);
    harness_update(&h, 1e-3, 0.1, 1);
    assert_int_equal(recording_check(d, &x), 0);
    size_t gemms = 0;
    for (size_t i = 0; i < recording_count(d); i++)
        gemms += strcmp(recording_at(d, i)->name, "gemm") == 0;
    assert_int_equal(gemms, 12 * 12 + 3);
    free(config);
    harness_close(&h);
    ops->close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_right_step_has_no_conflict),
        cmocka_unit_test(each_forgotten_wait_is_found),
        cmocka_unit_test(what_only_reads_or_lies_apart_is_no_conflict),
        cmocka_unit_test(order_through_the_host_counts),
        cmocka_unit_test(a_model_on_one_stream_has_no_conflict),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
