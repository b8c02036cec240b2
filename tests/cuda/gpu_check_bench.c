/* gpu_check_bench.c - GPT-2 124M end to end: tokens a second, and what readers and snapshots cost.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/cuda/gpu_check_wide.h"

enum { WARM_STEPS = 4, MAX_STEPS = 400, LARGEST_BATCH = 64 };
/* What the device must have left when all is allocated: code is loaded later. */
#define SPARE_BYTES ((uint64_t)768 << 20)

/* ---- the run */

static struct run_spec train_spec(const struct check_test *t, const struct check_options *o) {
    struct run_spec s = run_spec_of(o, check_device, t->dtype);
    s.tensor_cores = t->tensor_cores;
    s.steps = RUN_MAX_STEPS;
    if (o->small)
        return s;
    s.shape = run_shape_124m();
    s.seq_len = s.shape.context;
    return s;
}

static bool has_room(struct rig *r) {
    struct device_properties p = {.memory_free_bytes = 0};
    struct device *d = trainer_device(r->trainer);
    return r->spec->ops->properties(d, &p) != 0 || p.memory_free_bytes >= SPARE_BYTES;
}

/* With the largest batch that fits: halved until it does. spec is kept by the rig. */
static int open_largest(struct rig *r, struct run_spec *spec, const struct check_options *o,
                        struct err *err) {
    if (o->small)
        return rig_open(r, spec, 0, err);
    for (uint64_t batch = LARGEST_BATCH; batch >= 1; batch /= 2) {
        struct err why = {0};
        spec->global_batch = spec->micro_batch = batch;
        int rc = rig_open(r, spec, 0, &why);
        if (rc == 0 && (has_room(r) || batch == 1))
            return 0;
        rig_close(r);
        if (rc != 0 && (rc != -ENOMEM || batch == 1))
            return err_set(err, -rc, "%s", why.text);
    }
    return err_set(err, ENOMEM, "no batch fits");
}

/* Milliseconds of a step. */
static int timed_step(struct rig *r, uint64_t *step, double *ms, struct err *err) {
    struct step_result s;
    double start = check_now();
    int rc = rig_step(r, *step, &s, err);
    *ms = (check_now() - start) * 1e3;
    (*step)++;
    if (rc == 0 && !isfinite(s.loss))
        rc = err_set(err, EDOM, "the loss of step %llu is %g", (unsigned long long)*step, s.loss);
    return rc;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t count) {
    qsort(values, count, sizeof *values, compare_doubles);
    return count == 0  ? 0
           : count % 2 ? values[count / 2]
                       : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static int warm(struct rig *r, uint64_t *step, struct err *err) {
    double ms;
    int rc = rig_init(r, err);
    for (int i = 0; i < WARM_STEPS && rc == 0; i++)
        rc = timed_step(r, step, &ms, err);
    return rc;
}

/* The median of steps until `seconds` are over, of five at least. */
static int steps_for(struct rig *r, uint64_t *step, double seconds, double *ms, uint32_t *count,
                     struct err *err) {
    static double all[MAX_STEPS];
    double end = check_now() + seconds;
    uint32_t n = 0;
    int rc = 0;
    while (rc == 0 && n < MAX_STEPS && (n < 5 || check_now() < end) && *step < RUN_MAX_STEPS)
        rc = timed_step(r, step, &all[n++], err);
    *ms = median(all, n);
    *count = n;
    return rc;
}

static double seconds_of(const struct check_options *o) { return o->small ? 0 : o->quick ? 4 : 10; }

/* ---- tokens a second */

static int train_measure(struct rig *r, const struct check_test *t, const struct check_options *o,
                         struct err *err) {
    struct device_properties p = {.name = ""};
    const struct run_spec *s = r->spec;
    uint64_t step = 0;
    uint32_t count = 0;
    double ms = 0;
    int rc = warm(r, &step, err);
    if (rc == 0)
        rc = steps_for(r, &step, seconds_of(o), &ms, &count, err);
    if (rc == 0)
        rc = s->ops->properties(trainer_device(r->trainer), &p);
    if (rc != 0)
        return rc;
    double tokens = (double)(s->global_batch * s->seq_len) / (ms / 1e3);
    double flops = model_flops_per_token(r->shape.model, s->seq_len) * tokens;
    char mfu[32] = "unknown";
    if (p.flops[s->dtype] > 0)
        snprintf(mfu, sizeof mfu, "%.1f %%", 100 * flops / p.flops[s->dtype]);
    check_figure(t->name, "", "%.0f tokens/s, %.2f ms/step of %llu x %llu, MFU %s", tokens, ms,
                 (unsigned long long)s->global_batch, (unsigned long long)s->seq_len, mfu);
    check_passed(t->name, "%u steps of %llu x %llu tokens", count,
                 (unsigned long long)s->global_batch, (unsigned long long)s->seq_len);
    return 0;
}

typedef int measure_fn(struct rig *r, const struct check_test *t, const struct check_options *o,
                       struct err *err);

static void measure_with(measure_fn *measure, const struct check_test *t,
                         const struct check_options *o) {
    struct run_spec spec = train_spec(t, o);
    struct err err = {0};
    struct rig r;
    int rc = open_largest(&r, &spec, o, &err);
    if (rc == 0) {
        rc = measure(&r, t, o, &err);
        rig_close(&r);
    }
    if (rc != 0)
        check_failed(t->name, "%s", err.text[0] != '\0' ? err.text : strerror(-rc));
}

void bench_train(const struct check_test *t, const struct check_options *o) {
    measure_with(train_measure, t, o);
}

/* ---- readers */

/* GB/s from the device to pinned memory, by the copies that the stage makes, and nothing else. */
static int pinned_speed(struct rig *r, const struct check_options *o, double *out,
                        struct err *err) {
    enum { COPIES = 16 };
    const size_t bytes = o->small ? 1 << 16 : 64 << 20;
    const struct device_ops *ops = r->spec->ops;
    struct device *d = trainer_device(r->trainer);
    struct dev_stream *s = NULL;
    struct dev_event *e = NULL;
    void *from = NULL, *to = NULL;
    int rc = ops->stream_open(d, DEV_STREAM_TAKE, &s);
    if (rc == 0)
        rc = ops->event_open(d, "pinned", &e);
    if (rc == 0)
        rc = ops->alloc(d, DEV_MEM_DEVICE, bytes, "pinned", &from);
    if (rc == 0)
        rc = ops->alloc(d, DEV_MEM_HOST, bytes, "pinned", &to);
    double start = 0;
    for (int i = -1; i < COPIES && rc == 0; i++) { /* the first is not counted */
        rc = ops->copy(d, s, to, from, bytes);
        if (rc == 0 && i == -1 && (rc = ops->event_record(d, s, e)) == 0)
            rc = ops->event_synchronize(d, e);
        if (i == -1)
            start = check_now();
    }
    if (rc == 0 && (rc = ops->event_record(d, s, e)) == 0)
        rc = ops->event_synchronize(d, e);
    *out = (double)bytes * COPIES / (check_now() - start) / 1e9;
    if (rc != 0)
        device_failed(ops, d, rc, err, "a copy to pinned memory");
    ops->free(d, DEV_MEM_HOST, to, bytes);
    ops->free(d, DEV_MEM_DEVICE, from, bytes);
    if (e != NULL)
        ops->event_close(d, e);
    if (s != NULL)
        ops->stream_close(d, s);
    return rc;
}

/* Copies of all parameters, one after the other, each of what is there. */
struct reading {
    struct rig *rig;
    float *memory;
    atomic_bool stop;
    uint64_t rounds;
    double seconds; /* of all rounds */
    struct err err;
};

/* Until others have moved something, as the service thread of a rank waits. */
static void read_wait(const struct arrays *a) {
    enum { WAIT_MS = 5 };
    struct pollfd p = {.fd = arrays_wake_fd(a), .events = POLLIN};
    uint64_t count;
    if (poll(&p, 1, WAIT_MS) > 0 && read(p.fd, &count, sizeof count) < 0)
        return; /* it was for others */
}

/* All units at once, as a reader of the whole model asks for them. */
static int read_round(struct reading *g, struct hold *holds) {
    const struct layout *l = &g->rig->shape.layout;
    struct arrays *a = g->rig->arrays;
    uint32_t left = 0;
    float *to = g->memory;
    for (uint32_t u = 0; u < l->unit_count; u++) {
        uint64_t elems = layout_shard_valid(l, u, 0);
        holds[u] =
            (struct hold){.array = ARRAY_PARAMS, .unit = u, .hi = elems, .dst = (uint8_t *)to};
        to += elems;
        left += !arrays_take(a, &holds[u]);
    }
    while (left > 0) {
        bool any = arrays_serve(a);
        for (; left > 0 && arrays_next_done(a) != NULL; left--)
            any = true;
        if (!any && left > 0)
            read_wait(a);
    }
    for (uint32_t u = 0; u < l->unit_count; u++)
        if (holds[u].result != HOLD_COPIED)
            return err_set(&g->err, EIO, "a copy of %s failed", l->units[u].name);
    return 0;
}

static void *reading_main(void *arg) {
    struct reading *g = arg;
    struct hold *holds = calloc(g->rig->shape.layout.unit_count, sizeof *holds);
    double start = check_now();
    while (holds != NULL && !atomic_load(&g->stop) && read_round(g, holds) == 0)
        g->rounds++;
    g->seconds = check_now() - start;
    free(holds);
    return NULL;
}

/* GB/s of the reader, and the steps beside it. */
static int read_beside(struct reading *g, uint64_t *step, const struct check_options *o,
                       double *gbs, double *ms, struct err *err) {
    uint64_t bytes = layout_numel(&g->rig->shape.layout) * sizeof(float);
    pthread_t thread;
    uint32_t count = 0;
    g->memory = malloc(bytes);
    if (g->memory == NULL)
        return err_set(err, ENOMEM, "no memory for the parameters");
    memset(g->memory, 1, bytes); /* touched */
    int code = pthread_create(&thread, NULL, reading_main, g);
    int rc = code != 0 ? err_set(err, code, "no thread for a reader") : 0;
    if (code == 0) {
        rc = steps_for(g->rig, step, seconds_of(o), ms, &count, err);
        atomic_store(&g->stop, true);
        (void)pthread_join(thread, NULL);
        *gbs = (double)g->rounds * (double)bytes / g->seconds / 1e9;
    }
    free(g->memory);
    if (rc == 0 && g->err.code != 0)
        rc = err_set(err, g->err.code, "%s", g->err.text);
    return rc;
}

static int read_measure(struct rig *r, const struct check_test *t, const struct check_options *o,
                        struct err *err) {
    double pinned = 0, before = 0, beside = 0, after = 0, gbs = 0;
    struct reading reading = {.rig = r};
    uint64_t step = 0;
    uint32_t count = 0;
    int rc = warm(r, &step, err);
    if (rc == 0)
        rc = pinned_speed(r, o, &pinned, err);
    if (rc == 0)
        rc = steps_for(r, &step, seconds_of(o) / 2, &before, &count, err);
    if (rc == 0)
        rc = read_beside(&reading, &step, o, &gbs, &beside, err);
    if (rc == 0)
        rc = steps_for(r, &step, seconds_of(o) / 2, &after, &count, err);
    if (rc != 0)
        return rc;
    double alone = (before + after) / 2;
    check_figure("pinned memory", "", "%.1f GB/s from the device", pinned);
    check_figure(t->name, "at least 0.80", "%.2f of it: all parameters again and again, %.1f GB/s",
                 gbs / pinned, gbs);
    check_figure("training beside it", "at most 2 %", "%.1f %% slower (%.2f ms/step, alone %.2f)",
                 100 * (beside / alone - 1), beside, alone);
    check_passed(t->name, "%.1f GB/s beside training", gbs);
    return 0;
}

void bench_read(const struct check_test *t, const struct check_options *o) {
    measure_with(read_measure, t, o);
}

/* ---- snapshots */

/* What a copy of the state at a boundary adds to the steps until it is done. */
static int stall_of(struct rig *r, struct wide *w, uint64_t *step, double alone, double *stall_ms,
                    double *seconds, struct err *err) {
    double start = check_now(), ms;
    int rc = 0;
    *stall_ms = 0;
    wide_fix(w, *step);
    do {
        rc = timed_step(r, step, &ms, err);
        *stall_ms += ms - alone;
    } while (rc == 0 && !wide_is_done(w) && *step < RUN_MAX_STEPS);
    *seconds = check_now() - start;
    return rc == 0 ? wide_wait(w, err) : rc;
}

static int stalls(struct rig *r, struct wide *w, const struct check_test *t,
                  const struct check_options *o, struct err *err) {
    enum { MOST = 7 };
    const uint32_t takes = o->small ? 2 : o->quick ? 3 : MOST;
    double alone = 0, stall[MOST], seconds = 0;
    uint64_t step = 0;
    uint32_t count = 0, n = 0;
    int rc = warm(r, &step, err);
    if (rc == 0)
        rc = steps_for(r, &step, seconds_of(o), &alone, &count, err);
    for (; rc == 0 && n < takes; n++) {
        double ms;
        rc = stall_of(r, w, &step, alone, &stall[n], &seconds, err);
        for (int i = 0; i < 2 && rc == 0; i++)
            rc = timed_step(r, &step, &ms, err);
    }
    if (rc != 0)
        return rc;
    check_figure(t->name, "at most 5 %", "%.1f %% of a step of %.2f ms (%.2f GB, copied in %.2f s)",
                 100 * median(stall, n) / alone, alone, (double)w->dump_bytes / 1e9, seconds);
    check_passed(t->name, "%u copies of parameters and moments", n);
    return 0;
}

static int snapshot_measure(struct rig *r, const struct check_test *t,
                            const struct check_options *o, struct err *err) {
    struct wide w;
    int rc = wide_open(&w, r, ARRAY_MASK_STATE, NULL, NULL, err);
    if (rc == 0)
        rc = stalls(r, &w, t, o, err);
    wide_close(&w);
    return rc;
}

void bench_snapshot(const struct check_test *t, const struct check_options *o) {
    measure_with(snapshot_measure, t, o);
}
