/* injection.c - each call of CUDA and cuBLASLt that a small run makes fails once: opening,
 * initialising, two steps with a reader between them, closing.
 *
 *   injection          50 calls, chosen by $GFS_TEST_SEED
 *   injection --all    every call, each with the likely error and with one that sticks
 *
 * Expected of a failure: an error that names the call, and an end that leaves nothing open. A run
 * that did not notice must have the bits of one in which nothing failed. Prints TAP. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "device/cuda/cuda.h"
#include "engine/trainer.h"
#include "shard/wrap.h"
#include "tests/cuda/emu_control.h"

enum { CHOSEN = 50, STEPS = 2, ALARM_SECONDS = 60 };

static const char config_text[] =
    "{\"model_type\": \"gpt2\", \"vocab_size\": 257, \"n_positions\": 8, \"n_embd\": 8, "
    "\"n_layer\": 1, "
    "\"n_head\": 1, \"activation_function\": \"gelu_new\", \"layer_norm_epsilon\": 1e-5, "
    "\"resid_pdrop\": 0.0, \"embd_pdrop\": 0.0, \"attn_pdrop\": 0.0}";

struct rig {
    struct config config;
    struct model *model;
    struct layout layout;
    struct data *data;
};

/* What a run ends with. */
struct outcome {
    int rc;
    char text[512];
    double loss[STEPS];
    float *params; /* (numel), NULL unless rc is 0 */
};

static void must(int rc, const struct err *err) {
    if (rc == 0)
        return;
    printf("Bail out! %s\n", err->text);
    exit(1);
}

static void rig_open(struct rig *r, const char *data, const char *dtype, const char *offload) {
    struct err err = {0};
    memset(r, 0, sizeof *r);
    config_defaults(&r->config);
    r->config.global_batch = 2;
    r->config.micro_batch = 1;
    r->config.seq_len = 5;
    snprintf(r->config.dtype, sizeof r->config.dtype, "%s", dtype);
    snprintf(r->config.offload, sizeof r->config.offload, "%s", offload);
    must(model_open(config_text, &r->model, &err), &err);
    uint32_t count = model_tensor_count(r->model);
    struct tensor_spec *specs = calloc((size_t)count + 1, sizeof *specs);
    if (specs == NULL)
        exit(1);
    for (uint32_t i = 0; i < count; i++)
        specs[i] = model_tensors(r->model)[i].spec;
    must(wrap_layout("block", specs, count, model_modules(r->model), model_module_count(r->model),
                     1, &r->layout, &err),
         &err);
    free(specs);
    must(data_open(data, r->config.seq_len, 257, 1, &r->data, &err), &err);
}

static void rig_close(struct rig *r) {
    data_close(r->data);
    layout_free(&r->layout);
    model_close(r->model);
}

/* A reader's copy of a unit's parameters. */
static int unit_read(struct arrays *a, uint32_t unit, uint64_t elems, float *dst) {
    struct hold h = {.array = ARRAY_PARAMS, .unit = unit, .hi = elems, .dst = (uint8_t *)dst};
    if (!arrays_take(a, &h)) {
        struct hold *done;
        while ((done = arrays_next_done(a)) == NULL)
            (void)arrays_serve(a);
    }
    return h.result == HOLD_COPIED ? 0 : h.result == HOLD_FAILED ? -h.code : -EIO;
}

static int params_read(struct rig *r, struct arrays *a, float *dst) {
    int rc = 0;
    for (uint32_t u = 0; u < r->layout.unit_count && rc == 0; u++) {
        uint64_t elems = layout_shard_valid(&r->layout, u, 0);
        rc = unit_read(a, u, elems, dst);
        dst += elems;
    }
    return rc;
}

static int steps_run(struct rig *r, struct trainer *t, struct arrays *a, struct outcome *o,
                     struct err *err) {
    int rc = trainer_init(t, 1, err);
    for (uint64_t s = 0; s < STEPS && rc == 0; s++) {
        struct step_result result;
        rc = trainer_step(t, s, s + 2, &r->config, &result, err);
        if (rc == 0)
            o->loss[s] = result.loss;
        if (rc == 0 && (rc = params_read(r, a, o->params)) != 0)
            err_set(err, -rc, "a reader's copy of the device's memory failed: %s", strerror(-rc));
    }
    return rc;
}

static struct outcome run(struct rig *r) {
    struct outcome o = {.params = calloc(layout_numel(&r->layout) + 1, sizeof *o.params)};
    struct err err = {0};
    struct arrays *arrays = NULL;
    struct trainer *t = NULL;
    must(arrays_open(&r->layout, 0, &arrays, &err), &err);
    struct trainer_args args = {.config = &r->config,
                                .model = r->model,
                                .layout = &r->layout,
                                .world_size = 1,
                                .ops = &device_cuda,
                                .data = r->data,
                                .arrays = arrays};
    o.rc = trainer_open(&args, &t, &err);
    if (o.rc == 0)
        o.rc = steps_run(r, t, arrays, &o, &err);
    trainer_close(t);
    arrays_close(arrays);
    snprintf(o.text, sizeof o.text, "%s", err.text);
    return o;
}

static bool same(const struct rig *r, const struct outcome *a, const struct outcome *b) {
    return memcmp(a->loss, b->loss, sizeof a->loss) == 0 &&
           memcmp(a->params, b->params, layout_numel(&r->layout) * sizeof *a->params) == 0;
}

/* What a launcher calls is known by the operation's name. */
static bool is_named(const char *text, const char *call) {
    if (strcmp(call, "cudaLaunchKernel") == 0 || strcmp(call, "cudaFuncSetAttribute") == 0)
        return strstr(text, "(cudaError") != NULL;
    if (strcmp(call, "cudaGetDevice") == 0 && strstr(text, "cublasLt") != NULL)
        return true; /* the library's own */
    return call[0] == '\0' || strstr(text, call) != NULL || strstr(text, "a reader's copy") != NULL;
}

/* The nth call fails. Returns true if all is as expected. */
static bool check(struct rig *r, const struct outcome *whole, uint64_t nth, const char *error) {
    emu_fail_at(nth, error);
    struct outcome o = run(r);
    const char *call = emu_failed_call();
    bool ok = true;
    if (o.rc != 0 && !is_named(o.text, call)) {
        printf("# call %llu, %s: the error does not name it: %s\n", (unsigned long long)nth, call,
               o.text);
        ok = false;
    }
    if (o.rc == 0 && !same(r, whole, &o)) {
        printf("# call %llu, %s: went on, with other results\n", (unsigned long long)nth, call);
        ok = false;
    }
    emu_fail_at(0, NULL);
    if (emu_leaks(true) != 0) {
        printf("# call %llu, %s: something is still open\n", (unsigned long long)nth, call);
        ok = false;
    }
    free(o.params);
    return ok;
}

/* In a process of its own: the emulation keeps what was freed, and ends the program on misuse. */
static bool check_apart(struct rig *r, const struct outcome *whole, uint64_t nth,
                        const char *error) {
    int status = 0;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(ALARM_SECONDS); /* a hang is a failure */
        bool ok = check(r, whole, nth, error);
        fflush(stdout);
        _exit(ok ? 0 : 1);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return false;
    if (WIFSIGNALED(status))
        printf("# call %llu: ended by signal %d\n", (unsigned long long)nth, WTERMSIG(status));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Splitmix64 (Steele, Lea and Flood, 2014). */
static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int sweep(const char *data, const char *dtype, const char *offload, bool all, uint64_t *seed,
                 int number) {
    struct rig r;
    rig_open(&r, data, dtype, offload);
    emu_fail_at(0, NULL);
    struct outcome whole = run(&r);
    uint64_t calls = emu_call_count(), tried = all ? calls : CHOSEN;
    bool ok = whole.rc == 0 && emu_leaks(true) == 0;
    if (!ok)
        printf("# nothing failed, but: %s\n", whole.text);
    for (uint64_t i = 0; i < tried && whole.rc == 0; i++) {
        uint64_t nth = all ? i + 1 : next_random(seed) % calls + 1;
        ok = check_apart(&r, &whole, nth, NULL) && ok;
        if (all || i % 8 == 0)
            ok = check_apart(&r, &whole, nth, "cudaErrorIllegalAddress") && ok;
    }
    printf("%sok %d - %s, offload %s: %llu of %llu calls fail\n", ok ? "" : "not ", number, dtype,
           strncmp(offload, "optimizer=file", 14) == 0 ? "to a file" : offload,
           (unsigned long long)tried, (unsigned long long)calls);
    fflush(stdout);
    free(whole.params);
    rig_close(&r);
    return ok ? 0 : 1;
}

int main(int argc, char **argv) {
    char data[] = "/tmp/gfs-injection-XXXXXX", file[64];
    const char *text = getenv("GFS_TEST_SEED");
    uint64_t seed = text != NULL ? strtoull(text, NULL, 10) : 1;
    bool all = argc > 1 && strcmp(argv[1], "--all") == 0;
    int fd = mkstemp(data), failed = 0;
    log_open("injection", LEVEL_ERROR);
    for (int i = 0; i < 200 && fd >= 0; i++)
        if (dprintf(fd, "%d bottles of beer ", i) < 0)
            return 1;
    if (fd < 0)
        return 1;
    close(fd);
    snprintf(file, sizeof file, "optimizer=file:/tmp");
    printf("# seed %llu\n", (unsigned long long)seed);
    failed += sweep(data, "f32", "none", all, &seed, 1);
    failed += sweep(data, "bf16", "optimizer=host", all, &seed, 2);
    failed += sweep(data, "bf16", file, all, &seed, 3);
    printf("1..3\n");
    unlink(data);
    return failed > 0;
}
