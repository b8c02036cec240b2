/* test_trainer_order.c - on a device that runs late, what a step does is in order: shown on the
 * recording device, with a communicator, arrays and data that note what they would touch. */
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/recording.h"
#include "engine/trainer_parts.h"
#include "shard/wrap.h"

enum { WORLD = 2, WORLD_MAX = 4, STEPS = 3 };

/* ---- doubles */

struct arrays {
    struct device *dev;
    const struct layout *layout;
    float **shards; /* [unit][ARRAY_COUNT] */
    bool in_step;
    uint32_t *grads_state; /* by unit: 0 valid or never, 1 being written */
};

struct comm {
    struct device *dev;
    uint64_t shard_elems[64];
    uint32_t world_size;
    size_t param_bytes, reduce_bytes; /* of an element */
    struct trainer *trainer;
};

static struct recording_range range_of(const void *p, size_t elems) {
    return (struct recording_range){p, elems * sizeof(float)};
}

void arrays_set_shard(struct arrays *a, enum array array, uint32_t unit, float *shard) {
    a->shards[unit * ARRAY_COUNT + array] = shard;
}

/* Readers' copies are noted as the host's here, wherever the array rests: that is the strictest. */
void arrays_set_stage(struct arrays *a, struct stage *stage, struct dev_stream *state_writer,
                      struct dev_stream *grads_writer) {
    (void)a, (void)stage, (void)state_writer, (void)grads_writer;
}

void arrays_set_home(struct arrays *a, enum array array, uint32_t unit,
                     const struct array_home *home) {
    (void)a, (void)array, (void)unit;
    assert_int_equal(home->place, ARRAY_IN_HOST);
}

float *arrays_shard(const struct arrays *a, enum array array, uint32_t unit) {
    return a->shards[unit * ARRAY_COUNT + array];
}

/* A reader's copy: at the latest before the write, and at once after it. */
static void reader_copies(struct arrays *a, enum array array, uint32_t unit) {
    struct recording_range r =
        range_of(arrays_shard(a, array, unit), a->layout->units[unit].shard_elems);
    recording_note(a->dev, NULL, "a reader's copy", &r, 1, NULL, 0);
}

static void readers_copy_state(struct arrays *a, uint32_t unit) {
    reader_copies(a, ARRAY_PARAMS, unit);
    reader_copies(a, ARRAY_EXP_AVG, unit);
    reader_copies(a, ARRAY_EXP_AVG_SQ, unit);
}

void arrays_state_begin(struct arrays *a, uint32_t unit) {
    if (a->in_step)
        readers_copy_state(a, unit);
}

void arrays_state_end(struct arrays *a, uint32_t unit, uint64_t gen, uint64_t step) {
    (void)gen;
    (void)step;
    readers_copy_state(a, unit);
}

void arrays_grads_begin(struct arrays *a, uint32_t unit) {
    assert_int_equal(a->grads_state[unit], 0);
    a->grads_state[unit] = 1;
    reader_copies(a, ARRAY_GRADS, unit);
}

void arrays_grads_end(struct arrays *a, uint32_t unit, uint64_t gen, uint64_t step) {
    (void)gen;
    (void)step;
    assert_int_equal(a->grads_state[unit], 1);
    a->grads_state[unit] = 0;
    reader_copies(a, ARRAY_GRADS, unit);
}

void arrays_grads_none(struct arrays *a) { (void)a; }

struct data {
    struct device *dev;
    uint64_t seq_len;
};

int data_sequence(const struct data *d, uint64_t index, int32_t *tokens, int32_t *targets,
                  struct err *err) {
    (void)index;
    (void)err;
    struct recording_range w[2] = {range_of(tokens, d->seq_len), range_of(targets, d->seq_len)};
    return recording_note(d->dev, NULL, "the host's tokens", NULL, 0, w, 2);
}

static int fake_open(const struct comm_args *args, struct comm **out, struct err *err) {
    (void)err;
    struct comm *c = calloc(1, sizeof *c);
    if (c == NULL || args->unit_count > sizeof c->shard_elems / sizeof *c->shard_elems)
        abort();
    c->dev = args->dev;
    c->world_size = args->world_size;
    c->param_bytes = dtype_bytes(args->param_dtype);
    c->reduce_bytes = dtype_bytes(args->reduce_dtype);
    memcpy(c->shard_elems, args->shard_elems, args->unit_count * sizeof *args->shard_elems);
    *out = c;
    return 0;
}

static void fake_close(struct comm *c) { free(c); }

static void *fake_none(struct comm *c, uint32_t i) {
    (void)c;
    (void)i;
    return NULL;
}

static int fake_all_gather(struct comm *c, struct dev_stream *s, uint32_t unit, const void *shard,
                           void *buffer, const void **view) {
    size_t bytes = c->shard_elems[unit] * c->param_bytes;
    struct recording_range r = {shard, bytes}, w = {buffer, bytes * c->world_size};
    *view = buffer;
    return recording_note(c->dev, s, "all_gather", &r, 1, &w, 1);
}

static int fake_reduce_scatter(struct comm *c, struct dev_stream *s, uint32_t unit, void *full,
                               float *shard, bool accumulate) {
    struct recording_range r[2] = {{full, c->shard_elems[unit] * c->world_size * c->reduce_bytes},
                                   range_of(shard, c->shard_elems[unit])};
    return recording_note(c->dev, s, "reduce_scatter", r, accumulate ? 2 : 1, &r[1], 1);
}

static int fake_barrier(struct comm *c) {
    (void)c;
    return 0;
}

static int fake_all_reduce_f64(struct comm *c, double *inout, size_t count, enum comm_op op) {
    struct trainer *t = c->trainer;
    struct recording_range r[2] = {
        {t->losses, t->share.micro_count * sizeof(double)},
        {t->squares, t->unit_count * sizeof(double)},
    };
    (void)inout;
    (void)count;
    (void)op;
    return recording_note(c->dev, NULL, "the host's sums", r, 2, NULL, 0);
}

static const struct comm_ops fake_comm = {
    .name = "fake",
    .open = fake_open,
    .close = fake_close,
    .shard = fake_none,
    .all_gather = fake_all_gather,
    .grad_buffer = fake_none,
    .reduce_scatter = fake_reduce_scatter,
    .all_reduce_f64 = fake_all_reduce_f64,
    .barrier = fake_barrier,
};

/* ---- a trainer of one rank, without the others */

struct kind {
    const char *wrap;
    uint64_t micro_batch;
    uint32_t rank, world_size;
    const char *dtype, *reduce_dtype;
    const char *offload; /* NULL: none */
};

/* The recording device as one whose memory the host can't read. */
static struct device_ops far_device(void) {
    struct device_ops ops = device_recording;
    ops.host_access = false;
    return ops;
}

struct fixture {
    struct config config;
    struct device_ops ops;
    struct model *model;
    struct layout layout;
    struct arrays arrays;
    struct data data;
    struct trainer *t;
};

static void fixture_open_kind(struct fixture *f, const struct kind *k) {
    struct err err = {0};
    char *text = NULL;
    memset(f, 0, sizeof *f);
    config_defaults(&f->config);
    f->config.global_batch = 4;
    f->config.micro_batch = k->micro_batch;
    strcpy(f->config.dtype, k->dtype);
    strcpy(f->config.reduce_dtype, k->reduce_dtype);
    if (k->offload != NULL)
        strcpy(f->config.offload, k->offload);
    f->ops = k->offload != NULL ? far_device() : device_recording;
    f->config.seq_len = 16;
    assert_int_equal(model_config_text("gpt2:tiny", &text, &err), 0);
    assert_int_equal(model_open(text, &f->model, &err), 0);
    free(text);
    uint32_t count = model_tensor_count(f->model);
    struct tensor_spec *specs = calloc(count, sizeof *specs);
    for (uint32_t i = 0; i < count; i++)
        specs[i] = model_tensors(f->model)[i].spec;
    assert_int_equal(wrap_layout(k->wrap, specs, count, model_modules(f->model),
                                 model_module_count(f->model), k->world_size, &f->layout, &err),
                     0);
    free(specs);
    f->arrays.layout = &f->layout;
    f->arrays.shards = calloc((size_t)f->layout.unit_count * ARRAY_COUNT, sizeof(float *));
    f->arrays.grads_state = calloc(f->layout.unit_count, sizeof *f->arrays.grads_state);
    struct trainer_args args = {
        .config = &f->config,
        .model = f->model,
        .layout = &f->layout,
        .rank = k->rank,
        .world_size = k->world_size,
        .ops = &f->ops,
        .comm = &fake_comm,
        .data = &f->data,
        .arrays = &f->arrays,
    };
    if (trainer_open(&args, &f->t, &err) != 0)
        fail_msg("%s", err.text);
    f->t->comm->trainer = f->t;
    f->arrays.dev = f->data.dev = f->t->dev;
    f->data.seq_len = f->config.seq_len;
}

static void fixture_open(struct fixture *f, const char *wrap, uint64_t micro_batch) {
    struct kind k = {wrap, micro_batch, 0, WORLD, "f32", "f32", NULL};
    fixture_open_kind(f, &k);
}

static void fixture_close(struct fixture *f) {
    trainer_close(f->t);
    layout_free(&f->layout);
    model_close(f->model);
    free(f->arrays.shards);
    free(f->arrays.grads_state);
}

static void fixture_run(struct fixture *f) {
    struct err err = {0};
    f->arrays.in_step = false;
    assert_int_equal(trainer_init(f->t, 1, &err), 0);
    f->arrays.in_step = true;
    for (uint64_t step = 0; step < STEPS; step++) {
        struct step_result r;
        if (trainer_step(f->t, step, step + 2, &f->config, &r, &err) != 0)
            fail_msg("%s", err.text);
        for (uint32_t u = 0; u < f->layout.unit_count; u++)
            assert_int_equal(f->arrays.grads_state[u], 0);
    }
}

/* ---- cases */

static void check_kind(const struct kind *k) {
    struct fixture f;
    struct recording_conflict x;
    fixture_open_kind(&f, k);
    fixture_run(&f);
    if (recording_check(f.t->dev, &x) != 0)
        fail_msg("wrap %s, microbatches of %d, rank %u of %u, %s, %s: %s", k->wrap,
                 (int)k->micro_batch, k->rank, k->world_size, k->dtype, k->reduce_dtype, x.text);
    fixture_close(&f);
}

static void a_step_is_in_order_for_every_wrap(void **state) {
    static const char *const wraps[] = {"none", "block", "size:1", "size:400000", "size:600000"};
    (void)state;
    for (size_t w = 0; w < sizeof wraps / sizeof *wraps; w++)
        for (uint64_t micro = 1; micro <= 2; micro++)
            check_kind(&(struct kind){wraps[w], micro, 0, WORLD, "f32", "f32", NULL});
}

static void a_step_is_in_order_on_every_rank_in_every_dtype(void **state) {
    (void)state;
    for (uint32_t world = 1; world <= WORLD_MAX; world++)
        for (uint32_t rank = 0; rank < world; rank++) {
            check_kind(&(struct kind){"block", 1, rank, world, "f32", "f32", NULL});
            check_kind(&(struct kind){"block", 1, rank, world, "bf16", "f32", NULL});
            check_kind(&(struct kind){"block", 1, rank, world, "bf16", "bf16", NULL});
        }
}

static void offloaded_state_comes_and_goes_in_order(void **state) {
    static const char host[] = "optimizer=host";
    (void)state;
    for (uint32_t world = 1; world <= WORLD_MAX; world++) {
        check_kind(&(struct kind){"block", 1, world - 1, world, "f32", "f32", host});
        check_kind(&(struct kind){"block", 1, world - 1, world, "bf16", "f32", host});
        check_kind(&(struct kind){"none", 1, 0, world, "bf16", "bf16", host});
    }
}

static bool is_named(const struct recording_entry *e, const char *name, const char *slots) {
    size_t len = strlen(name);
    return strncmp(e->name, name, len) == 0 &&
           (slots == NULL || (e->name[len] == ' ' && strchr(slots, e->name[len + 1]) != NULL));
}

/* Without the waits for one kind of event the checker finds a conflict: each is there for a reason,
 * and the recording sees what it is there for. */
struct wait {
    enum recording_kind kind;
    const char *name, *slots;
};

static void check_needed(const struct kind *k, const struct wait *w) {
    struct fixture f;
    struct recording_conflict x;
    size_t removed = 0;
    fixture_open_kind(&f, k);
    fixture_run(&f);
    for (size_t i = recording_count(f.t->dev); i-- > 0;) {
        const struct recording_entry *e = recording_at(f.t->dev, i);
        if (e->kind != w->kind || !is_named(e, w->name, w->slots))
            continue;
        recording_remove(f.t->dev, i);
        removed++;
    }
    if (removed == 0 || recording_check(f.t->dev, &x) != 1)
        fail_msg("without the %zu waits for '%s %s' there is no conflict", removed, w->name,
                 w->slots != NULL ? w->slots : "");
    fixture_close(&f);
}

static void every_kind_of_wait_is_needed(void **state) {
    static const struct wait waits[] = {
        {RECORDING_WAIT, "gathered", "0"},  {RECORDING_WAIT, "gathered", "12"},
        {RECORDING_WAIT, "released", "12"}, {RECORDING_WAIT, "ready", "0"},
        {RECORDING_WAIT, "ready", "12"},    {RECORDING_WAIT, "reduced", "0"},
        {RECORDING_WAIT, "reduced", "12"},  {RECORDING_SYNC, "normed", NULL},
        {RECORDING_SYNC, "computed", NULL}, {RECORDING_SYNC, "applied", "01"},
    };
    (void)state;
    for (size_t w = 0; w < sizeof waits / sizeof *waits; w++)
        check_needed(&(struct kind){"block", 1, 0, WORLD, "f32", "f32", NULL}, &waits[w]);
}

static void every_kind_of_wait_of_the_offload_is_needed(void **state) {
    static const struct wait waits[] = {
        {RECORDING_WAIT, "offload here", NULL},
        {RECORDING_WAIT, "offload used", NULL},
        {RECORDING_SYNC, "offload left", NULL},
    };
    (void)state;
    for (size_t w = 0; w < sizeof waits / sizeof *waits; w++)
        check_needed(&(struct kind){"block", 1, 0, WORLD, "bf16", "f32", "optimizer=host"},
                     &waits[w]);
}

/* Counts, by looking at the buffers that hold a unit when a module runs. */
static void the_root_and_two_units_are_gathered_at_most(void **state) {
    struct fixture f;
    size_t gathers = 0, updates = 0;
    (void)state;
    fixture_open(&f, "block", 2);
    fixture_run(&f);
    for (size_t i = 0; i < recording_count(f.t->dev); i++) {
        const struct recording_entry *e = recording_at(f.t->dev, i);
        if (strcmp(e->name, "all_gather") == 0) {
            bool known = false;
            for (uint32_t s = 0; s < SLOT_COUNT; s++)
                known = known || e->writes[0].start == f.t->gathers[s].buffer;
            assert_true(known);
            gathers++;
        }
        updates += strcmp(e->name, "adamw") == 0;
    }
    /* The root once and four blocks forward; backward finds the last two where they were left. */
    assert_int_equal(gathers, STEPS * (1 + 4 + 2));
    assert_true(updates >= STEPS * 5);
    fixture_close(&f);
}

/* The next unit is on its way before the one that is there is used. */
static void units_are_gathered_ahead_of_their_use(void **state) {
    struct fixture f;
    size_t ahead = 0, at_use = 0;
    (void)state;
    fixture_open(&f, "block", 2);
    fixture_run(&f);
    for (size_t i = 0; i + 1 < recording_count(f.t->dev); i++)
        if (strcmp(recording_at(f.t->dev, i)->name, "all_gather") == 0) {
            const struct recording_entry *next = recording_at(f.t->dev, i + 2);
            /* the event of the gather, then a wait for it or something else */
            if (next->kind == RECORDING_WAIT && is_named(next, "gathered", NULL) &&
                next->event == recording_at(f.t->dev, i + 1)->event)
                at_use++;
            else
                ahead++;
        }
    assert_int_equal(at_use, STEPS); /* the root, at the start */
    assert_int_equal(ahead, STEPS * 6);
    fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_in_order_for_every_wrap),
        cmocka_unit_test(a_step_is_in_order_on_every_rank_in_every_dtype),
        cmocka_unit_test(offloaded_state_comes_and_goes_in_order),
        cmocka_unit_test(every_kind_of_wait_is_needed),
        cmocka_unit_test(every_kind_of_wait_of_the_offload_is_needed),
        cmocka_unit_test(the_root_and_two_units_are_gathered_at_most),
        cmocka_unit_test(units_are_gathered_ahead_of_their_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
