/* stream.c - memory, streams, events and copies of a GPU. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "device/cuda/cuda.h"

int cuda_alloc(struct device *d, enum dev_memory kind, size_t bytes, const char *what, void **out) {
    int rc = cuda_enter(d);
    if (rc != 0)
        return rc;
    void *p = NULL;
    size_t asked = bytes != 0 ? bytes : 1; /* nothing has an address too */
    if (kind == DEV_MEM_DEVICE)
        rc = cuda_check(d, cudaMalloc(&p, asked), "cudaMalloc of %zu bytes for %s", asked, what);
    else
        rc = cuda_check(d, cudaHostAlloc(&p, asked, cudaHostAllocDefault),
                        "cudaHostAlloc of %zu bytes for %s", asked, what);
    if (rc == 0)
        *out = p;
    return rc;
}

void cuda_free(struct device *d, enum dev_memory kind, void *p, size_t bytes) {
    (void)bytes;
    if (p == NULL || cuda_enter(d) != 0)
        return;
    if (kind == DEV_MEM_DEVICE)
        cuda_check(d, cudaFree(p), "cudaFree");
    else
        cuda_check(d, cudaFreeHost(p), "cudaFreeHost");
}

/* What moves data comes before what computes: it is short, and others wait for it. */
static int priority_of(struct device *d, enum dev_stream_kind kind, int *out) {
    int least = 0, greatest = 0;
    int rc = cuda_check(d, cudaDeviceGetStreamPriorityRange(&least, &greatest),
                        "cudaDeviceGetStreamPriorityRange");
    if (rc == 0)
        *out = kind == DEV_STREAM_COMPUTE || kind == DEV_STREAM_OFFLOAD ? least : greatest;
    return rc;
}

static int stream_fill(struct device *d, struct dev_stream *s) {
    int priority;
    int rc = priority_of(d, s->kind, &priority);
    if (rc != 0)
        return rc;
    rc = cuda_check(d,
                    cudaStreamCreateWithPriority(&s->call.stream, cudaStreamNonBlocking, priority),
                    "cudaStreamCreateWithPriority");
    if (rc == 0 && s->kind != DEV_STREAM_TAKE)
        rc = cuda_alloc(d, DEV_MEM_DEVICE, CUDA_WORK_BYTES, "the workspace of a stream",
                        &s->call.work);
    if (rc == 0 && s->kind == DEV_STREAM_COMPUTE)
        rc = cuda_alloc(d, DEV_MEM_DEVICE, CUDA_GEMM_WORK_BYTES, "the workspace of products",
                        &s->gemm_work);
    return rc;
}

int cuda_stream_open(struct device *d, enum dev_stream_kind kind, struct dev_stream **out) {
    int rc = cuda_enter(d);
    if (rc != 0)
        return rc;
    struct dev_stream *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return cuda_refuse(d, ENOMEM, "no memory for a stream");
    s->kind = kind;
    s->call.sm_count = d->sm_count;
    s->call.arch = d->arch;
    s->call.tensor_cores = d->tensor_cores;
    rc = stream_fill(d, s);
    if (rc != 0)
        cuda_stream_close(d, s);
    else
        *out = s;
    return rc;
}

void cuda_stream_close(struct device *d, struct dev_stream *s) {
    if (s == NULL)
        return;
    if (cuda_enter(d) == 0) {
        /* what is queued may still use the workspaces */
        if (s->call.stream != NULL)
            cuda_check(d, cudaStreamSynchronize(s->call.stream), "cudaStreamSynchronize");
        cuda_free(d, DEV_MEM_DEVICE, s->gemm_work, CUDA_GEMM_WORK_BYTES);
        cuda_free(d, DEV_MEM_DEVICE, s->call.work, CUDA_WORK_BYTES);
        if (s->call.stream != NULL)
            cuda_check(d, cudaStreamDestroy(s->call.stream), "cudaStreamDestroy");
    }
    free(s);
}

int cuda_event_open(struct device *d, const char *what, struct dev_event **out) {
    int rc = cuda_enter(d);
    if (rc != 0)
        return rc;
    struct dev_event *e = calloc(1, sizeof(*e));
    if (e == NULL)
        return cuda_refuse(d, ENOMEM, "no memory for an event");
    snprintf(e->what, sizeof(e->what), "%s", what);
    /* who waits sleeps: a run that is paused uses no core */
    rc = cuda_check(
        d, cudaEventCreateWithFlags(&e->event, cudaEventDisableTiming | cudaEventBlockingSync),
        "cudaEventCreateWithFlags for %s", e->what);
    if (rc != 0)
        free(e);
    else
        *out = e;
    return rc;
}

void cuda_event_close(struct device *d, struct dev_event *e) {
    if (e == NULL)
        return;
    if (cuda_enter(d) == 0)
        cuda_check(d, cudaEventDestroy(e->event), "cudaEventDestroy of %s", e->what);
    free(e);
}

int cuda_event_record(struct device *d, struct dev_stream *s, struct dev_event *e) {
    int rc = cuda_enter(d);
    return rc != 0 ? rc
                   : cuda_check(d, cudaEventRecord(e->event, s->call.stream),
                                "cudaEventRecord of %s", e->what);
}

int cuda_stream_wait(struct device *d, struct dev_stream *s, struct dev_event *e) {
    int rc = cuda_enter(d);
    return rc != 0 ? rc
                   : cuda_check(d, cudaStreamWaitEvent(s->call.stream, e->event, 0),
                                "cudaStreamWaitEvent of %s", e->what);
}

int cuda_event_synchronize(struct device *d, struct dev_event *e) {
    int rc = cuda_enter(d);
    return rc != 0 ? rc
                   : cuda_check(d, cudaEventSynchronize(e->event), "cudaEventSynchronize of %s",
                                e->what);
}

int cuda_copy(struct device *d, struct dev_stream *s, void *dst, const void *src, size_t bytes) {
    int rc = bytes == 0 ? 0 : cuda_enter(d);
    if (rc != 0 || bytes == 0)
        return rc;
    return cuda_check(d, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, s->call.stream),
                      "cudaMemcpyAsync of %zu bytes", bytes);
}
