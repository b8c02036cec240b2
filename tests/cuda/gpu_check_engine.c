/* gpu_check_engine.c - training on the device under test: held against the CPU, against itself, and
 * on several ranks. */
#include "config.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cuda/gpu_check_rig.h"

/* Of one run; a test makes up to three. */
static double run_seconds(const struct check_test *t, const struct check_options *o) {
    return (o->quick ? t->quick_seconds : t->seconds) / 3.0;
}

/* ---- comparing runs */

/* norm(a - b) / norm(b) */
static double difference(const float *a, const float *b, uint64_t elems) {
    double sum = 0, norm = 0;
    for (uint64_t i = 0; i < elems; i++) {
        double d = (double)a[i] - b[i];
        sum += d * d;
        norm += (double)b[i] * b[i];
    }
    return sqrt(sum) / sqrt(norm);
}

static double losses_difference(const struct run_result *a, const struct run_result *b,
                                uint64_t steps) {
    double worst = 0;
    for (uint64_t i = 0; i < steps; i++) {
        double d = fabs(a->losses[i] - b->losses[i]) / fabs(b->losses[i]);
        worst = d <= worst ? worst : d; /* a NaN is the worst */
    }
    return worst;
}

/* Whether the losses say that anything was learnt. */
static bool learnt(const struct run_result *r, uint64_t steps) {
    return r->losses[steps - 1] < r->losses[0];
}

/* Losses and arrays of `got` against `want`. */
static void compare(const char *name, const struct run_spec *spec, const struct run_result *got,
                    const struct run_result *want, double limit) {
    char text[256];
    double worst = losses_difference(got, want, spec->steps);
    int n = snprintf(text, sizeof text, "losses %.1e", worst);
    for (enum array a = ARRAY_PARAMS; a < ARRAY_COUNT; a++) {
        double d =
            difference(got->arrays + a * got->numel, want->arrays + a * want->numel, want->numel);
        n += snprintf(text + n, sizeof text - (size_t)n, ", %s %.1e", array_names[a], d);
        worst = d <= worst ? worst : d;
    }
    if (!learnt(want, spec->steps))
        check_failed(name, "the loss of the reference went from %.4f to %.4f", want->losses[0],
                     want->losses[spec->steps - 1]);
    else if (!(worst <= limit))
        check_failed(name, "%s; the limit is %.0e", text, limit);
    else
        check_passed(name, "%s (limit %.0e)", text, limit);
}

static void compare_bits(const char *name, const struct run_spec *spec,
                         const struct run_result *got, const struct run_result *want) {
    size_t bytes = ARRAY_COUNT * want->numel * sizeof(float);
    if (!learnt(want, spec->steps))
        check_failed(name, "the loss went from %.4f to %.4f", want->losses[0],
                     want->losses[spec->steps - 1]);
    else if (!check_same_bits(got->losses, want->losses, sizeof want->losses))
        check_failed(name, "the losses differ by %.1e", losses_difference(got, want, spec->steps));
    else if (!check_same_bits(got->norms, want->norms, sizeof want->norms))
        check_failed(name, "the norms of the gradients differ");
    else if (!check_same_bits(got->arrays, want->arrays, bytes))
        check_failed(name, "the losses are the same, the arrays are not");
    else
        check_passed(name, "the same bits after %llu steps", (unsigned long long)spec->steps);
}

/* Runs both; false, and the test has failed, unless both came to an end. */
static bool train_both(const struct check_test *t, const struct check_options *o,
                       const struct run_spec *a, const struct run_spec *b,
                       struct run_result *out[2]) {
    struct err err = {0};
    int rc = run_train(a, run_seconds(t, o), &out[0], &err);
    if (rc == 0)
        rc = run_train(b, run_seconds(t, o), &out[1], &err);
    if (rc != 0)
        check_failed(t->name, "%s", err.text);
    return rc == 0;
}

/* What one result may differ from the CPU's in f32. */
static double limit_of(const struct run_spec *s) { return s->dtype == DTYPE_BF16 ? 2e-2 : 1e-4; }

static struct run_spec device_spec(const struct check_test *t, const struct check_options *o) {
    struct run_spec s = run_spec_of(o, check_device, t->dtype);
    s.tensor_cores = t->tensor_cores;
    return s;
}

/* ---- one rank */

void check_engine_cpu(const struct check_test *t, const struct check_options *o) {
    struct run_spec device = device_spec(t, o), cpu = run_spec_of(o, &device_cpu, DTYPE_F32);
    struct run_result *r[2];
    if (train_both(t, o, &device, &cpu, r))
        compare(t->name, &cpu, r[0], r[1], limit_of(&device));
}

void check_engine_repeat(const struct check_test *t, const struct check_options *o) {
    struct run_spec s = device_spec(t, o);
    struct run_result *r[2];
    if (train_both(t, o, &s, &s, r))
        compare_bits(t->name, &s, r[0], r[1]);
}

void check_engine_offload(const struct check_test *t, const struct check_options *o) {
    struct run_spec here = device_spec(t, o), away = here;
    struct run_result *r[2];
    bool file = strcmp(t->offload, "file") == 0;
    snprintf(away.offload, sizeof away.offload, "optimizer=%s%s%s", t->offload, file ? ":" : "",
             file ? o->tmp_dir : "");
    if (train_both(t, o, &away, &here, r))
        compare_bits(t->name, &here, r[0], r[1]);
}

/* ---- several ranks */

void check_ranks_one_gpu(const struct check_test *t, const struct check_options *o) {
    struct run_spec one = device_spec(t, o), many = one;
    struct run_result *r[2];
    many.ranks = t->ranks;
    many.one_gpu = true;
    many.comm = "node";
    if (train_both(t, o, &many, &one, r))
        compare(t->name, &one, r[0], r[1], limit_of(&one));
}

/* False, and said so, unless NCCL can be tried. */
static bool nccl_ranks(const struct check_test *t, uint32_t *ranks) {
    char why[256];
    *ranks = check_gpu_count(why, sizeof why);
    if (*ranks == 0)
        check_failed(t->name, "%s", why);
    else if (*ranks == 1)
        check_not_run(t->name, "one GPU");
    else if (!check_has_nccl())
        check_not_run(t->name, "no NCCL");
    if (*ranks > CHECK_MAX_RANKS)
        *ranks = CHECK_MAX_RANKS;
    return *ranks > 1 && check_has_nccl();
}

static struct run_spec nccl_spec(const struct check_test *t, const struct check_options *o,
                                 uint32_t ranks) {
    struct run_spec s = device_spec(t, o);
    s.ranks = ranks;
    s.comm = "nccl";
    s.global_batch = 2 * ranks + 1;
    s.micro_batch = 2;
    s.reduce_dtype = t->dtype;
    return s;
}

void check_nccl(const struct check_test *t, const struct check_options *o) {
    uint32_t ranks;
    struct run_result *r[2];
    if (!nccl_ranks(t, &ranks))
        return;
    struct run_spec many = nccl_spec(t, o, ranks), cpu = run_spec_of(o, &device_cpu, DTYPE_F32);
    cpu.global_batch = many.global_batch;
    if (train_both(t, o, &many, &cpu, r))
        compare(t->name, &cpu, r[0], r[1], limit_of(&many));
}

/* ---- a peer that dies */

/* The timeout is also how long NCCL may take to begin. */
enum { KILL_BEFORE_STEP = 2, KILLED_TIMEOUT_S = 20, KILLED_SMALL_TIMEOUT_S = 2, SLACK_S = 20 };

struct killed {
    struct run_spec spec;
    double *at; /* shared: check_now() of the death; 0: not yet */
};

/* The last rank dies; the others go on as if nothing were, until they are told. */
static int killed_body(uint32_t rank, void *arg, struct err *err) {
    const struct killed *k = arg;
    struct step_result s;
    struct rig r;
    int rc = rig_open(&r, &k->spec, rank, err);
    if (rc == 0)
        rc = rig_init(&r, err);
    for (uint64_t step = 0; rc == 0 && step < k->spec.steps; step++) {
        if (step == KILL_BEFORE_STEP && rank + 1 == k->spec.ranks) {
            *k->at = check_now();
            (void)raise(SIGKILL);
        }
        rc = rig_step(&r, step, &s, err);
    }
    rig_close(&r);
    return rc;
}

static void killed_verdict(const struct check_test *t, const struct killed *k,
                           const struct rank_end *ends) {
    double last = 0;
    for (uint32_t r = 0; r + 1 < k->spec.ranks; r++) {
        const struct rank_end *e = &ends[r];
        if (e->late || !WIFEXITED(e->status)) {
            check_failed(t->name, "rank %u %s", r, e->late ? "never ended" : "ended by a signal");
            return;
        }
        if (WEXITSTATUS(e->status) == 0 || *k->at == 0) {
            check_failed(t->name, "rank %u did not notice%s%s", r, e->text[0] != '\0' ? ": " : "",
                         e->text);
            return;
        }
        last = e->at > last ? e->at : last;
    }
    double after = last - *k->at;
    if (after > k->spec.comm_timeout + SLACK_S)
        check_failed(t->name, "the others ended after %.1f s; the timeout is %.0f s", after,
                     k->spec.comm_timeout);
    else
        check_passed(t->name, "%u left, ended %.1f s after it (timeout %.0f s): %.150s",
                     k->spec.ranks - 1, after, k->spec.comm_timeout, ends[0].text);
}

void check_nccl_killed(const struct check_test *t, const struct check_options *o) {
    struct rank_end ends[CHECK_MAX_RANKS];
    struct err err = {0};
    uint32_t ranks;
    if (!nccl_ranks(t, &ranks))
        return;
    struct killed k = {.spec = nccl_spec(t, o, ranks), .at = check_shared(sizeof *k.at)};
    k.spec.comm_timeout = o->small ? KILLED_SMALL_TIMEOUT_S : KILLED_TIMEOUT_S;
    if (check_world(ranks, 2 * run_seconds(t, o), killed_body, &k, ends, &err) != 0)
        check_failed(t->name, "%s", err.text);
    else
        killed_verdict(t, &k, ends);
}
