/* trainer.c - a step: microbatches forward and backward over gathered units, then norm and update.
 */
#include "config.h"

#include "engine/trainer.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/plugin_find.h"
#include "engine/trainer_parts.h"
#include "wire/msg.h"

/* ---- marks */

int mark_record(struct trainer *t, enum dev_stream_kind stream, struct mark *m) {
    int rc = t->ops->event_record(t->dev, t->streams[stream], m->event);
    if (rc == 0)
        m->set = true;
    return rc;
}

int mark_wait(struct trainer *t, enum dev_stream_kind stream, const struct mark *m) {
    return m->set ? t->ops->stream_wait(t->dev, t->streams[stream], m->event) : 0;
}

int mark_synchronize(struct trainer *t, const struct mark *m) {
    return m->set ? t->ops->event_synchronize(t->dev, m->event) : 0;
}

static void trainer_phase(struct trainer *t, uint32_t phase) {
    if (t->phase != NULL)
        atomic_store_explicit(t->phase, phase, memory_order_relaxed);
}

void trainer_doing(struct trainer *t, const char *doing, const char *what) {
    t->doing = doing;
    t->doing_what = what;
}

/* ---- open */

static uint32_t trainer_threads(const struct trainer *t) {
    cpu_set_t set;
    if (t->config.threads != 0)
        return (uint32_t)t->config.threads;
    uint32_t cores = sched_getaffinity(0, sizeof set, &set) == 0 ? (uint32_t)CPU_COUNT(&set) : 1;
    uint32_t ranks = t->world_size > 0 ? t->world_size : 1;
    return cores > ranks ? cores / ranks : 1;
}

/* The unit that a module's tensors are in; -EINVAL if they are in two beside the root. */
static int module_unit(const struct trainer *t, uint32_t module, uint32_t *unit, struct err *err) {
    const uint32_t *tensors;
    uint32_t count = model_module_tensors(t->model, module, &tensors), found = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t u = t->layout->tensors[tensors[i]].unit;
        if (u != 0 && found != 0 && u != found)
            return err_set(err, EINVAL, "module %s has tensors in two units, %s and %s",
                           model_modules(t->model)[module].name, t->layout->units[found].name,
                           t->layout->units[u].name);
        found = u != 0 ? u : found;
    }
    *unit = found;
    return 0;
}

static int visits_plan(struct trainer *t, struct err *err) {
    uint32_t module_count = model_module_count(t->model);
    t->visits = calloc((size_t)module_count + 1, sizeof *t->visits);
    if (t->visits == NULL)
        return err_set(err, ENOMEM, "no memory for the plan of a step");
    for (uint32_t m = 0; m < module_count; m++) {
        struct visit *last = t->visit_count > 0 ? &t->visits[t->visit_count - 1] : NULL;
        uint32_t unit = 0;
        int rc = module_unit(t, m, &unit, err);
        if (rc != 0)
            return rc;
        if (last != NULL && last->unit == unit) {
            last->module_count++;
            continue;
        }
        /* Its gradient would be reduced twice. */
        for (uint32_t v = 0; v < t->visit_count; v++)
            if (unit != 0 && t->visits[v].unit == unit)
                return err_set(err, EINVAL, "the modules of unit %s do not follow each other",
                               t->layout->units[unit].name);
        t->visits[t->visit_count++] =
            (struct visit){.unit = unit, .first_module = m, .module_count = 1};
    }
    return 0;
}

static int trainer_check(const struct trainer *t, struct err *err) {
    if (t->layout->world_size != t->world_size || t->rank >= t->world_size)
        return err_set(err, EINVAL, "the layout is for %u ranks, but this is rank %u of %u",
                       t->layout->world_size, t->rank, t->world_size);
    if (t->layout->tensor_count != model_tensor_count(t->model))
        return err_set(err, EINVAL, "the layout is of another model");
    if (t->seq_len > model_context(t->model))
        return err_set(err, ERANGE, "seq_len = %llu, but the model's context is %zu tokens",
                       (unsigned long long)t->seq_len, model_context(t->model));
    if (t->config.global_batch == 0)
        return err_set(err, ERANGE, "global_batch = 0: a step needs a sequence");
    return 0;
}

/* Own kernels on tensor cores: "auto" will be true of architectures where they are confirmed, and
 * none is yet. */
static bool tensor_cores_wanted(const struct config *c) {
    return strcmp(c->tensor_cores, "on") == 0;
}

static int dtypes_choose(struct trainer *t, struct err *err) {
    t->dtype = strcmp(t->config.dtype, "bf16") == 0 ? DTYPE_BF16 : DTYPE_F32;
    t->grad_dtype = strcmp(t->config.reduce_dtype, "bf16") == 0 ? DTYPE_BF16 : DTYPE_F32;
    if (t->dtype == DTYPE_F32 && t->grad_dtype == DTYPE_BF16)
        return err_set(err, EINVAL, "reduce_dtype = bf16 needs dtype = bf16, and that is f32");
    int rc = t->ops->supports(t->dev, t->dtype, err);
    return rc != 0 ? rc : model_supported(t->model, t->ops, err);
}

static int device_open(struct trainer *t, const struct trainer_args *args, struct err *err) {
    struct device_args device = {.threads = trainer_threads(t),
                                 .local_rank = args->local_rank,
                                 .local_size = args->local_size,
                                 .tensor_cores = tensor_cores_wanted(&t->config)};
    int rc = t->ops->open(&device, &t->dev, err);
    for (uint32_t s = 0; s < DEV_STREAM_TAKE && rc == 0; s++) {
        rc = t->ops->stream_open(t->dev, s, &t->streams[s]);
        if (rc != 0)
            rc = device_failed(t->ops, t->dev, rc, err, "a stream");
    }
    return rc;
}

static int trainer_comm_open(struct trainer *t, const struct comm_ops *comm, struct err *err) {
    uint64_t *shard_elems = calloc((size_t)t->unit_count + 1, sizeof *shard_elems);
    if (shard_elems == NULL)
        return err_set(err, ENOMEM, "no memory for the communicator");
    for (uint32_t u = 0; u < t->unit_count; u++)
        shard_elems[u] = t->layout->units[u].shard_elems;
    struct comm_args args = {.rank = t->rank,
                             .world_size = t->world_size,
                             .shard_elems = shard_elems,
                             .unit_count = t->unit_count,
                             .param_dtype = t->dtype,
                             .reduce_dtype = t->grad_dtype,
                             .ops = t->ops,
                             .dev = t->dev,
                             .collectives = plugin_collectives(t->ops),
                             .timeout_s = t->config.comm_timeout};
    int rc = comm != NULL ? 0 : comm_find(t->config.comm, &args, &comm, err);
    if (rc == 0) {
        t->comm_ops = comm;
        rc = comm->open(&args, &t->comm, err);
    }
    free(shard_elems);
    return rc;
}

int trainer_open(const struct trainer_args *args, struct trainer **out, struct err *err) {
    struct trainer *t = calloc(1, sizeof *t);
    if (t == NULL)
        return err_set(err, ENOMEM, "no memory for the trainer");
    t->config = *args->config;
    t->model = args->model;
    t->layout = args->layout;
    t->rank = args->rank;
    t->world_size = args->world_size;
    t->ops = args->ops;
    t->data = args->data;
    t->arrays = args->arrays;
    t->phase = args->phase;
    t->micro = args->micro;
    t->unit_count = args->layout->unit_count;
    t->seq_len = t->config.seq_len != 0 ? t->config.seq_len : model_context(t->model);
    int rc = trainer_check(t, err);
    if (rc == 0) {
        t->share = batch_share_of(t->config.global_batch, t->seq_len, t->config.micro_batch,
                                  t->ops->host_access ? MICRO_TOKENS : MICRO_TOKENS_GPU, t->rank,
                                  t->world_size);
        rc = visits_plan(t, err);
    }
    if (rc == 0)
        rc = optimizer_plan(t, err);
    if (rc == 0)
        rc = device_open(t, args, err);
    if (rc == 0)
        rc = dtypes_choose(t, err);
    if (rc == 0)
        rc = trainer_comm_open(t, args->comm, err);
    if (rc == 0)
        rc = trainer_memory_open(t, err);
    if (rc != 0) {
        trainer_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

void trainer_close(struct trainer *t) {
    if (t == NULL)
        return;
    trainer_memory_close(t);
    if (t->comm != NULL)
        t->comm_ops->close(t->comm);
    for (uint32_t s = 0; s < DEV_STREAM_COUNT; s++)
        if (t->streams[s] != NULL)
            t->ops->stream_close(t->dev, t->streams[s]);
    if (t->dev != NULL)
        t->ops->close(t->dev);
    free(t->visits);
    free(t->runs);
    free(t);
}

struct comm *trainer_comm(struct trainer *t) {
    return t->comm;
}
const struct comm_ops *trainer_comm_ops(const struct trainer *t) { return t->comm_ops; }
struct device *trainer_device(struct trainer *t) {
    return t->dev;
}
enum dtype trainer_dtype(const struct trainer *t) { return t->dtype; }

void trainer_microbatch(const struct trainer *t, uint64_t *sequences, uint64_t *seq_len,
                        uint64_t *micro_count) {
    *sequences = t->share.micro;
    *seq_len = t->seq_len;
    *micro_count = t->share.micro_count;
}

/* ---- one microbatch */

struct micro {
    struct model_batch batch; /* B = 0: this rank has no sequences left */
    bool first;
    uint32_t root_slot;
};

static struct module_call module_call_of(const struct trainer *t, const struct micro *mi) {
    return (struct module_call){
        .ops = t->ops,
        .dev = t->dev,
        .stream = t->streams[DEV_STREAM_COMPUTE],
        .dtype = t->dtype,
        .grad_dtype = t->grad_dtype,
        .arena = t->arena,
        .batch = &mi->batch,
        .params = t->params,
        .grads = t->param_grads,
        .accumulate = t->accumulate,
    };
}

static void module_params(struct trainer *t, uint32_t module) {
    const uint32_t *tensors;
    uint32_t count = model_module_tensors(t->model, module, &tensors);
    for (uint32_t i = 0; i < count; i++) {
        const struct layout_tensor *lt = &t->layout->tensors[tensors[i]];
        t->params[i] =
            (const uint8_t *)units_view(t, lt->unit) + lt->offset_elems * dtype_bytes(t->dtype);
    }
}

/* The first module to write a tensor's gradient in a microbatch overwrites what was there. */
static void module_grads(struct trainer *t, uint32_t module, uint32_t root_slot, uint32_t slot) {
    const uint32_t *tensors;
    uint32_t count = model_module_tensors(t->model, module, &tensors);
    for (uint32_t i = 0; i < count; i++) {
        const struct layout_tensor *lt = &t->layout->tensors[tensors[i]];
        const struct grad_slot *g = &t->grads[lt->unit == 0 ? root_slot : slot];
        t->param_grads[i] = (uint8_t *)g->full + lt->offset_elems * dtype_bytes(t->grad_dtype);
        t->accumulate[i] = t->touched[tensors[i]];
        t->touched[tensors[i]] = true;
    }
}

/* The unit after the one of visit v, in the direction of the pass; the root is there anyway. */
static int visit_gather_next(struct trainer *t, uint32_t v, bool backward) {
    while (backward ? v-- > 0 : ++v < t->visit_count)
        if (t->visits[v].unit != 0)
            return units_gather(t, t->visits[v].unit);
    return 0;
}

/* Brings a visit's unit, and starts to bring the next one. */
static int visit_enter(struct trainer *t, uint32_t v, bool backward) {
    uint32_t unit = t->visits[v].unit;
    int rc = units_gather(t, unit);
    if (rc == 0)
        rc = units_use(t, unit);
    return rc != 0 ? rc : visit_gather_next(t, v, backward);
}

static int forward_visit(struct trainer *t, const struct micro *mi, uint32_t v) {
    const struct visit *visit = &t->visits[v];
    int rc = visit_enter(t, v, false);
    for (uint32_t i = 0; i < visit->module_count && rc == 0 && mi->batch.B > 0; i++) {
        uint32_t module = visit->first_module + i;
        struct module_call call = module_call_of(t, mi);
        module_params(t, module);
        trainer_doing(t, "forward of", model_modules(t->model)[module].name);
        rc = model_forward(t->model, module, &call);
    }
    if (rc == 0 && visit->unit != 0)
        rc = units_release(t, visit->unit);
    return rc;
}

static int backward_visit(struct trainer *t, const struct micro *mi, uint32_t v) {
    const struct visit *visit = &t->visits[v];
    uint32_t slot = mi->root_slot;
    int rc = visit_enter(t, v, true);
    if (rc == 0 && visit->unit != 0)
        rc = grads_begin(t, visit->unit, mi->batch.B == 0, &slot);
    for (uint32_t i = visit->module_count; i-- > 0 && rc == 0 && mi->batch.B > 0;) {
        uint32_t module = visit->first_module + i;
        struct module_call call = module_call_of(t, mi);
        module_params(t, module);
        module_grads(t, module, mi->root_slot, slot);
        trainer_doing(t, "backward of", model_modules(t->model)[module].name);
        rc = model_backward(t->model, module, &call);
    }
    if (rc != 0 || visit->unit == 0)
        return rc;
    rc = units_release(t, visit->unit);
    return rc != 0 ? rc : grads_reduce(t, visit->unit, slot, mi->first);
}

static int micro_forward(struct trainer *t, const struct micro *mi) {
    /* The root is gathered once a step, whatever unit the first module is in. */
    int rc = units_gather(t, 0);
    if (rc == 0)
        rc = units_use(t, 0);
    for (uint32_t v = 0; v < t->visit_count && rc == 0; v++)
        rc = forward_visit(t, mi, v);
    return rc;
}

/* After backward: the head makes the losses there. */
static int micro_loss(struct trainer *t, const struct micro *mi, uint64_t m) {
    struct module_call call = module_call_of(t, mi);
    t->losses[m] = 0;
    if (mi->batch.B == 0)
        return 0;
    trainer_doing(t, "loss of the", "batch");
    return model_loss(t->model, &call, &t->losses[m]);
}

static int micro_backward(struct trainer *t, struct micro *mi) {
    memset(t->touched, 0, t->layout->tensor_count * sizeof *t->touched);
    int rc = grads_begin(t, 0, mi->batch.B == 0, &mi->root_slot);
    for (uint32_t v = t->visit_count; v-- > 0 && rc == 0;)
        rc = backward_visit(t, mi, v);
    return rc != 0 ? rc : grads_reduce(t, 0, mi->root_slot, mi->first);
}

static int micro_run(struct trainer *t, uint64_t m) {
    uint64_t at = m * t->share.micro * t->seq_len;
    struct micro mi = {
        .batch =
            {
                .B = batch_micro_count(&t->share, m),
                .T = t->seq_len,
                .loss_scale = (float)(1.0 / ((double)t->config.global_batch * (double)t->seq_len)),
            },
        .first = m == 0,
    };
    if (mi.batch.B > 0) {
        mi.batch.tokens = t->tokens + at;
        mi.batch.targets = t->targets + at;
    }
    trainer_phase(t, RANK_FORWARD);
    int rc = micro_forward(t, &mi);
    trainer_phase(t, RANK_BACKWARD);
    if (rc == 0)
        rc = micro_backward(t, &mi);
    if (rc == 0)
        rc = micro_loss(t, &mi, m);
    if (rc == 0 && t->micro != NULL)
        atomic_store_explicit(t->micro, m + 1, memory_order_relaxed);
    return rc;
}

/* ---- the step */

static int step_batch(struct trainer *t, uint64_t step, struct err *err) {
    size_t bytes = t->share.count * t->seq_len * sizeof(int32_t);
    struct dev_stream *s = t->streams[DEV_STREAM_COMPUTE];
    uint64_t first = step * t->config.global_batch + t->share.first;
    int rc = 0;
    trainer_doing(t, "copying the", "tokens");
    for (uint64_t i = 0; i < t->share.count && rc == 0; i++)
        rc = data_sequence(t->data, first + i, t->host_tokens + i * t->seq_len,
                           t->host_targets + i * t->seq_len, err);
    if (rc == 0 && bytes > 0)
        rc = t->ops->copy(t->dev, s, t->tokens, t->host_tokens, bytes);
    if (rc == 0 && bytes > 0)
        rc = t->ops->copy(t->dev, s, t->targets, t->host_targets, bytes);
    return rc;
}

/* Loss and norm over all ranks. The host waits for the device here, once a step. */
static int step_verdict(struct trainer *t, struct step_result *r, struct err *err) {
    double sums[2] = {0, 0};
    int rc = mark_record(t, DEV_STREAM_COMPUTE, &t->computed);
    if (rc == 0)
        rc = optimizer_norm(t);
    trainer_doing(t, "waiting for the", "gradients");
    if (rc == 0)
        rc = mark_synchronize(t, &t->computed);
    if (rc == 0)
        rc = mark_synchronize(t, &t->normed);
    if (rc == 0 && t->comm_ops->check != NULL)
        rc = t->comm_ops->check(t->comm, err);
    if (rc != 0)
        return rc;
    for (uint64_t m = 0; m < t->share.micro_count; m++)
        sums[0] += t->losses[m];
    for (uint32_t u = 0; u < t->unit_count; u++)
        sums[1] += t->squares[u];
    trainer_doing(t, "summing loss and norm over", "the ranks");
    rc = t->comm_ops->all_reduce_f64(t->comm, sums, 2, COMM_SUM);
    r->loss = sums[0];
    r->grad_norm = sqrt(sums[1]);
    return rc;
}

static int step_run(struct trainer *t, uint64_t step, uint64_t gen, const struct config *live,
                    struct step_result *r, struct err *err) {
    if (t->micro != NULL)
        atomic_store_explicit(t->micro, 0, memory_order_relaxed);
    int rc = units_refresh(t, gen - 1); /* the shards have been updated or restored since */
    if (rc == 0)
        rc = step_batch(t, step, err);
    for (uint64_t m = 0; m < t->share.micro_count && rc == 0; m++)
        rc = micro_run(t, m);
    trainer_phase(t, RANK_UPDATE);
    if (rc == 0)
        rc = state_fetch(t, 0); /* it comes while the last gradients are reduced */
    if (rc == 0)
        rc = step_verdict(t, r, err);
    if (rc != 0)
        return rc;
    for (uint32_t u = 0; u < t->unit_count; u++)
        arrays_grads_end(t->arrays, u, gen, step + 1);
    r->skipped = !isfinite(r->grad_norm);
    r->clip_factor = r->skipped ? 1 : clip_factor_of(r->grad_norm, live->clip);
    r->lr = trainer_lr(&t->config, live, step);
    r->tokens = t->config.global_batch * t->seq_len;
    if (!r->skipped)
        rc = optimizer_update(t, step, gen, live, r);
    if (rc == 0)
        t->copied_gen = gen;
    return rc;
}

int trainer_failed(struct trainer *t, int rc, struct err *err) {
    char why[ERR_TEXT_BYTES];
    struct err cause = {0};
    t->ops->why(t->dev, why, sizeof why);
    /* A communicator keeps its reasons to itself, those of a device that failed it too. */
    if ((why[0] == '\0' || rc == -ECOMM) && t->comm_ops->check != NULL &&
        t->comm_ops->check(t->comm, &cause) != 0)
        memcpy(why, cause.text, sizeof why);
    if (why[0] == '\0' && t->offload != NULL)
        snprintf(why, sizeof why, "%s", offload_why(t->offload));
    return err_set(err, -rc, "%s %s: %s", t->doing, t->doing_what,
                   why[0] != '\0' ? why : strerror(-rc));
}

int trainer_step(struct trainer *t, uint64_t step, uint64_t gen, const struct config *live,
                 struct step_result *out, struct err *err) {
    struct step_result r = {0};
    struct err cause = {0};
    int rc = step_run(t, step, gen, live, &r, &cause);
    if (rc != 0 && cause.code == 0)
        trainer_failed(t, rc, &cause);
    if (rc != 0)
        return err_set(err, cause.code, "step %llu: %s", (unsigned long long)step + 1, cause.text);
    *out = r;
    return 0;
}
