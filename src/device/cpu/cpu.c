/* cpu.c - the CPU device: every operation is done when it returns, so streams and events are only
 * names. */
#include "config.h"

#include "device/cpu/cpu.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/segment.h"

struct dev_stream {
    enum dev_stream_kind kind;
};

struct dev_event {
    const char *what;
};

int cpu_fail(struct device *d, int code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    pthread_mutex_lock(&d->why_lock);
    vsnprintf(d->why, sizeof(d->why), format, args);
    pthread_mutex_unlock(&d->why_lock);
    va_end(args);
    return -code;
}

static void cpu_why(struct device *d, char *out, size_t cap_bytes) {
    pthread_mutex_lock(&d->why_lock);
    snprintf(out, cap_bytes, "%s", d->why);
    pthread_mutex_unlock(&d->why_lock);
}

int cpu_open_with(const struct cpu_kernels *kernels, uint32_t threads, struct device **out) {
    struct device *d = calloc(1, sizeof(*d));
    if (d == NULL)
        return -ENOMEM;
    d->kernels = kernels;
    d->gemm = kernels->gemm != NULL ? kernels->gemm : cpu_blas_there() ? NULL : kernels->gemm_plain;
    pthread_mutex_init(&d->why_lock, NULL);
    int rc = team_open(threads, &d->team);
    if (rc != 0)
        goto no_team;
    if (d->gemm != NULL) {
        d->gemm_scratch_bytes = team_threads(d->team) * d->gemm->scratch_elems() * sizeof(float);
        d->gemm_scratch = segment_private_alloc(d->gemm_scratch_bytes);
        rc = d->gemm_scratch != NULL ? 0 : -ENOMEM;
        if (rc != 0)
            goto no_scratch;
    }
    *out = d;
    return 0;
no_scratch:
    team_close(d->team);
no_team:
    pthread_mutex_destroy(&d->why_lock);
    free(d);
    return rc;
}

static int cpu_open(const struct device_args *args, struct device **out, struct err *err) {
    enum { MOST_THREADS = 4096 };
    uint32_t threads = args->threads;
    if (threads < 1 || threads > MOST_THREADS)
        return err_set(err, EINVAL, "%u threads: expected 1 to %d", threads, MOST_THREADS);
    int rc = cpu_open_with(cpu_kernels_best(), threads, out);
    if (rc != 0)
        return err_set(err, -rc, "cannot start %u threads", threads);
    return 0;
}

static void cpu_close(struct device *d) {
    if (d == NULL)
        return;
    if (d->gemm_scratch != NULL)
        segment_private_free(d->gemm_scratch, d->gemm_scratch_bytes);
    onednn_close(d->onednn);
    team_close(d->team);
    pthread_mutex_destroy(&d->why_lock);
    free(d);
}

/* The value of a line "key : value" of a file of /proc into out; false if there is none. */
static bool proc_value(const char *path, const char *key, char *out, size_t cap_bytes) {
    FILE *f = fopen(path, "re");
    char line[256];
    bool found = false;
    while (f != NULL && !found && fgets(line, sizeof(line), f) != NULL) {
        char *colon = strchr(line, ':');
        if (colon == NULL || strncmp(line, key, strlen(key)) != 0)
            continue;
        colon += 1 + strspn(colon + 1, " \t");
        colon[strcspn(colon, "\n")] = '\0';
        snprintf(out, cap_bytes, "%s", colon);
        found = true;
    }
    if (f != NULL)
        fclose(f);
    return found;
}

static uint64_t memory_kib(const char *key) {
    char text[64];
    if (!proc_value("/proc/meminfo", key, text, sizeof(text)))
        return 0;
    return strtoull(text, NULL, 10);
}

static int cpu_properties(struct device *d, struct device_properties *out) {
    (void)d;
    struct device_properties p = {.memory_bytes = memory_kib("MemTotal") * 1024,
                                  .memory_free_bytes = memory_kib("MemAvailable") * 1024};
    if (!proc_value("/proc/cpuinfo", "model name", p.name, sizeof(p.name)))
        snprintf(p.name, sizeof(p.name), "processor");
    *out = p;
    return 0;
}

/* Products of bf16 want oneDNN and the processor's instructions for them: without, they are slower
 * than f32. */
static int cpu_supports(struct device *d, enum dtype t, struct err *err) {
    if (t == DTYPE_F32)
        return 0;
    if (t != DTYPE_BF16)
        return err_set(err, ENOTSUP, "no dtype %d on this device: use dtype = f32", (int)t);
    if (!cpu_has_bf16())
        return err_set(err, ENOTSUP,
                       "this processor has no AVX512_BF16 (it has: %s): use dtype = f32",
                       d->kernels->name);
    if (!onednn_there())
        return err_set(err, ENOTSUP, "built without oneDNN: use dtype = f32");
    return 0;
}

static int cpu_alloc(struct device *d, enum dev_memory kind, size_t bytes, const char *what,
                     void **out) {
    (void)kind;
    void *p = segment_private_alloc(bytes);
    if (p == NULL)
        return cpu_fail(d, ENOMEM, "%s: no %zu bytes of memory", what, bytes);
    *out = p;
    return 0;
}

static void cpu_free(struct device *d, enum dev_memory kind, void *p, size_t bytes) {
    (void)d, (void)kind;
    if (p != NULL)
        segment_private_free(p, bytes);
}

static int cpu_stream_open(struct device *d, enum dev_stream_kind kind, struct dev_stream **out) {
    (void)d;
    struct dev_stream *s = malloc(sizeof(*s));
    if (s == NULL)
        return -ENOMEM;
    s->kind = kind;
    *out = s;
    return 0;
}

static void cpu_stream_close(struct device *d, struct dev_stream *s) {
    (void)d;
    free(s);
}

static int cpu_event_open(struct device *d, const char *what, struct dev_event **out) {
    (void)d;
    struct dev_event *e = malloc(sizeof(*e));
    if (e == NULL)
        return -ENOMEM;
    e->what = what;
    *out = e;
    return 0;
}

static void cpu_event_close(struct device *d, struct dev_event *e) {
    (void)d;
    free(e);
}

static int cpu_event_record(struct device *d, struct dev_stream *s, struct dev_event *e) {
    (void)d, (void)s, (void)e;
    return 0;
}

static int cpu_stream_wait(struct device *d, struct dev_stream *s, struct dev_event *e) {
    (void)d, (void)s, (void)e;
    return 0;
}

static int cpu_event_synchronize(struct device *d, struct dev_event *e) {
    (void)d, (void)e;
    return 0;
}

const struct device_ops device_cpu = {
    .name = "cpu",
    .host_access = true,
    .open = cpu_open,
    .close = cpu_close,
    .properties = cpu_properties,
    .supports = cpu_supports,
    .why = cpu_why,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .stream_open = cpu_stream_open,
    .stream_close = cpu_stream_close,
    .event_open = cpu_event_open,
    .event_close = cpu_event_close,
    .event_record = cpu_event_record,
    .stream_wait = cpu_stream_wait,
    .event_synchronize = cpu_event_synchronize,
    .copy = cpu_copy,
    .fill = cpu_fill,
    .cast = cpu_cast,
    .add = cpu_add,
    .gemm = cpu_gemm,
    .embed_forward = cpu_embed_forward,
    .embed_backward = cpu_embed_backward,
    .layernorm_forward = cpu_layernorm_forward,
    .residual_layernorm_forward = cpu_residual_layernorm_forward,
    .layernorm_backward = cpu_layernorm_backward,
    .bias_forward = cpu_bias_forward,
    .bias_backward = cpu_bias_backward,
    .bias_gelu_forward = cpu_bias_gelu_forward,
    .gelu_backward = cpu_gelu_backward,
    .attention_scratch_bytes = cpu_attention_scratch_bytes,
    .attention_forward = cpu_attention_forward,
    .attention_backward = cpu_attention_backward,
    .softmax_xent = cpu_softmax_xent,
    .sum = cpu_sum,
    .sum_squares = cpu_sum_squares,
    .adamw = cpu_adamw,
    .init_normal = cpu_init_normal,
};
