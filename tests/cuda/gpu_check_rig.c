/* gpu_check_rig.c - the trainer with all that it needs, and whole runs in processes of their own.
 */
#include "config.h"

#include "tests/cuda/gpu_check_rig.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shard/wrap.h"

enum { DATA_SEED = 11 };

/* ---- specs */

/* Of gpt2:tiny's kind, and for the emulation one whose widths are no whole vectors. Context longer
 * than the sequences, sequences that fill no tile, a batch that no number of ranks divides. */
struct run_spec run_spec_of(const struct check_options *o, const struct device_ops *ops,
                            enum dtype t) {
    struct run_spec s = {
        .ops = ops,
        .ranks = 1,
        .comm = "auto",
        .shape = {.layers = 4,
                  .heads = 2,
                  .width = 128,
                  .inner = 512,
                  .context = 128,
                  .vocab = 257,
                  .norm_eps = 1e-5f,
                  .init_std = 0.02f},
        .seq_len = 101,
        .global_batch = 5,
        .micro_batch = 3,
        .steps = 10,
        .lr = 3e-4, /* what differs is to come from the steps, not from where they lead */
        .dtype = t,
        .reduce_dtype = DTYPE_F32,
        .comm_timeout = 60,
        .threads = o->threads,
    };
    if (o->small) {
        s.shape.layers = 2;
        s.shape.heads = 3;
        s.shape.width = 24;
        s.shape.inner = 96;
        s.shape.context = 16;
        s.seq_len = 13;
        s.steps = 4;
        s.lr = 1e-3;
    }
    return s;
}

struct gpt2_shape run_shape_124m(void) {
    return (struct gpt2_shape){.layers = 12,
                               .heads = 12,
                               .width = 768,
                               .inner = 3072,
                               .context = 1024,
                               .vocab = 50257,
                               .norm_eps = 1e-5f,
                               .init_std = 0.02f};
}

static struct config run_config(const struct run_spec *s) {
    struct config c;
    config_defaults(&c);
    c.ranks = s->ranks;
    c.threads = s->threads;
    c.seq_len = s->seq_len;
    c.global_batch = s->global_batch;
    c.micro_batch = s->micro_batch;
    c.steps = s->steps;
    c.warmup_steps = 2;
    c.lr = s->lr;
    c.comm_timeout = s->comm_timeout;
    snprintf(c.comm, sizeof c.comm, "%s", s->comm);
    snprintf(c.dtype, sizeof c.dtype, "%s", dtype_name(s->dtype));
    snprintf(c.reduce_dtype, sizeof c.reduce_dtype, "%s", dtype_name(s->reduce_dtype));
    snprintf(c.tensor_cores, sizeof c.tensor_cores, "%s", s->tensor_cores ? "on" : "off");
    snprintf(c.offload, sizeof c.offload, "%s", s->offload[0] != '\0' ? s->offload : "none");
    return c;
}

/* ---- one rank */

int rig_shape_open(struct rig_shape *s, const struct run_spec *spec, struct err *err) {
    *s = (struct rig_shape){.model = NULL};
    int rc = gpt2_open(&spec->shape, &s->model, err);
    if (rc != 0)
        return rc;
    uint32_t count = model_tensor_count(s->model);
    struct tensor_spec *specs = calloc((size_t)count + 1, sizeof *specs);
    if (specs == NULL)
        return err_set(err, ENOMEM, "no memory for %u tensors", count);
    for (uint32_t i = 0; i < count; i++)
        specs[i] = model_tensors(s->model)[i].spec;
    rc = wrap_layout("block", specs, count, model_modules(s->model), model_module_count(s->model),
                     spec->ranks, &s->layout, err);
    free(specs);
    return rc;
}

void rig_shape_close(struct rig_shape *s) {
    layout_free(&s->layout);
    model_close(s->model);
    *s = (struct rig_shape){.model = NULL};
}

static int rig_trainer(struct rig *r, struct err *err) {
    bool one_gpu = r->spec->one_gpu;
    struct trainer_args args = {
        .config = &r->config,
        .model = r->shape.model,
        .layout = &r->shape.layout,
        .rank = r->rank,
        .world_size = r->spec->ranks,
        .local_rank = one_gpu ? 0 : r->rank,
        .local_size = one_gpu ? 1 : r->spec->ranks,
        .ops = r->spec->ops,
        .data = r->data,
        .arrays = r->arrays,
    };
    return trainer_open(&args, &r->trainer, err);
}

int rig_open(struct rig *r, const struct run_spec *spec, uint32_t rank, struct err *err) {
    *r = (struct rig){.spec = spec, .config = run_config(spec), .rank = rank};
    int rc = rig_shape_open(&r->shape, spec, err);
    if (rc == 0) {
        r->data = run_data_open(spec->seq_len, spec->shape.vocab, DATA_SEED);
        rc = r->data != NULL ? 0 : err_set(err, ENOMEM, "no memory for the data");
    }
    if (rc == 0)
        rc = arrays_open(&r->shape.layout, rank, &r->arrays, err);
    return rc == 0 ? rig_trainer(r, err) : rc;
}

void rig_close(struct rig *r) {
    trainer_close(r->trainer);
    arrays_close(r->arrays);
    run_data_close(r->data);
    rig_shape_close(&r->shape);
    *r = (struct rig){.spec = NULL};
}

static int rig_barrier(struct rig *r, struct err *err) {
    int rc = trainer_comm_ops(r->trainer)->barrier(trainer_comm(r->trainer));
    return rc == 0 ? 0 : err_set(err, -rc, "barrier: %s", strerror(-rc));
}

int rig_init(struct rig *r, struct err *err) {
    int rc = trainer_init(r->trainer, 1, err);
    return rc == 0 ? rig_barrier(r, err) : rc;
}

int rig_step(struct rig *r, uint64_t step, struct step_result *out, struct err *err) {
    int rc = trainer_step(r->trainer, step, step + 2, &r->config, out, err);
    return rc == 0 ? rig_barrier(r, err) : rc;
}

int rig_read(struct rig *r, enum array a, uint32_t unit, uint64_t lo, uint64_t hi, float *dst) {
    struct hold h = {.array = a, .unit = unit, .lo = lo, .hi = hi, .dst = (uint8_t *)dst};
    if (lo == hi)
        return 0;
    if (!arrays_take(r->arrays, &h))
        while (arrays_next_done(r->arrays) == NULL)
            (void)arrays_serve(r->arrays);
    return h.result == HOLD_COPIED ? 0 : h.result == HOLD_FAILED ? -h.code : -EIO;
}

/* ---- a whole run */

struct run_args {
    const struct run_spec *spec;
    struct run_result *result;
};

/* This rank's elements of an array, to their places. */
static int run_collect(struct rig *r, enum array a, float *to) {
    int rc = 0;
    for (uint32_t i = 0; i < r->shape.layout.tensor_count && rc == 0; i++) {
        struct layout_piece p = layout_tensor_piece(&r->shape.layout, i, r->rank);
        rc = rig_read(r, a, r->shape.layout.tensors[i].unit, p.shard_offset_elems,
                      p.shard_offset_elems + p.elems, to + p.tensor_offset_elems);
        to += r->shape.layout.tensors[i].numel;
    }
    return rc;
}

static int run_steps(struct rig *r, struct run_result *result, struct err *err) {
    int rc = rig_init(r, err);
    for (uint64_t step = 0; step < r->spec->steps && rc == 0; step++) {
        struct step_result s;
        rc = rig_step(r, step, &s, err);
        if (rc == 0 && r->rank == 0) {
            result->losses[step] = s.loss;
            result->norms[step] = s.grad_norm;
        }
    }
    for (enum array a = ARRAY_PARAMS; a < ARRAY_COUNT && rc == 0; a++) {
        rc = run_collect(r, a, result->arrays + a * result->numel);
        if (rc != 0)
            err_set(err, -rc, "reading %s after the last step: %s", array_names[a], strerror(-rc));
    }
    return rc;
}

static int run_body(uint32_t rank, void *arg, struct err *err) {
    const struct run_args *a = arg;
    struct rig r;
    int rc = rig_open(&r, a->spec, rank, err);
    if (rc == 0)
        rc = run_steps(&r, a->result, err);
    rig_close(&r);
    return rc;
}

int run_train(const struct run_spec *spec, double seconds, struct run_result **out,
              struct err *err) {
    struct run_args a = {.spec = spec};
    struct rig_shape shape;
    if (spec->steps > RUN_MAX_STEPS)
        return err_set(err, EINVAL, "no such run");
    int rc = rig_shape_open(&shape, spec, err);
    uint64_t numel = rc == 0 ? layout_numel(&shape.layout) : 0;
    rig_shape_close(&shape);
    if (rc != 0)
        return rc;
    a.result = check_shared(sizeof *a.result + ARRAY_COUNT * numel * sizeof(float));
    a.result->numel = numel;
    rc = check_world_all(spec->ranks, seconds, run_body, &a, err);
    if (rc != 0) {
        char what[64];
        snprintf(what, sizeof what, "%u rank%s on %s in %s", spec->ranks,
                 spec->ranks > 1 ? "s" : "", spec->ops->name, dtype_name(spec->dtype));
        return err_prefix(err, "%s", what);
    }
    *out = a.result;
    return 0;
}
