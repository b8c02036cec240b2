/* double_cudart.c - memory, streams, events and copies of the runtime's double. */
#include "config.h"

#include "tests/cuda/double_cudart.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/emu_control.h"
#include "tests/cuda/emu_memory.h"
#include "tests/cuda/emu_queue.h"
#include "tests/cuda/emu_stream.h"

/* ---- memory ---- */

static cudaError_t allocate(const char *call, enum emu_kind kind, void **out, size_t bytes) {
    int device = double_device();
    if (bytes == 0) {
        *out = NULL;
        return cudaSuccess;
    }
    size_t left = emu_get_settings().memory_bytes - emu_memory_used(device);
    if (kind == EMU_DEVICE && bytes > left)
        return cudaErrorMemoryAllocation;
    struct emu_allocation *a = emu_memory_add(call, kind, device, bytes);
    if (a == NULL)
        return cudaErrorMemoryAllocation;
    *out = a->start;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes) {
    cudaError_t e = double_begin("cudaMalloc", NEEDS_CONTEXT, cudaErrorMemoryAllocation);
    if (e == cudaSuccess)
        e = allocate("cudaMalloc", EMU_DEVICE, out, bytes);
    return double_end(e);
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags) {
    cudaError_t e = double_begin("cudaHostAlloc", NEEDS_CONTEXT, cudaErrorMemoryAllocation);
    if ((flags & ~(unsigned)(cudaHostAllocPortable | cudaHostAllocMapped)) != 0)
        emu_die("cudaHostAlloc", "flags %#x are not modelled", flags);
    if (e == cudaSuccess)
        e = allocate("cudaHostAlloc", EMU_PINNED, out, bytes);
    return double_end(e);
}

cudaError_t cudaMallocHost(void **out, size_t bytes) {
    cudaError_t e = double_begin("cudaMallocHost", NEEDS_CONTEXT, cudaErrorMemoryAllocation);
    if (e == cudaSuccess)
        e = allocate("cudaMallocHost", EMU_PINNED, out, bytes);
    return double_end(e);
}

/* Memory goes even where the call reports an error, which is that of something before it. */
static void release(const char *call, enum emu_kind kind, void *p) {
    if (p == NULL)
        return;
    char text[160];
    emu_queue_finish_closed();
    struct emu_allocation *a = emu_memory_find(p);
    if (a == NULL)
        emu_die(call, "%p was not allocated", p);
    /* The real call waits for the device. A program must not count on that, unless the wait that it
     * would have made is what failed. */
    if (emu_failed_call()[0] != '\0')
        emu_queue_synchronize_device(a->device);
    emu_memory_describe(a, text, sizeof text);
    if (a->freed)
        emu_die(call, "%s again", text);
    if (a->kind != kind || a->map == NULL || a->start != p)
        emu_die(call, "%p is not the start of memory that this call frees, but in %s", p, text);
    emu_memory_remove(call, a);
}

cudaError_t cudaFree(void *p) {
    cudaError_t e = double_begin("cudaFree", NEEDS_CONTEXT, cudaErrorLaunchFailure);
    release("cudaFree", EMU_DEVICE, p);
    return double_end(e);
}

cudaError_t cudaFreeHost(void *p) {
    cudaError_t e = double_begin("cudaFreeHost", NEEDS_CONTEXT, cudaErrorLaunchFailure);
    release("cudaFreeHost", EMU_PINNED, p);
    return double_end(e);
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags) {
    static const char call[] = "cudaHostRegister";
    cudaError_t e = double_begin(call, NEEDS_CONTEXT, cudaErrorMemoryAllocation);
    if ((flags & ~(unsigned)(cudaHostRegisterPortable | cudaHostRegisterMapped)) != 0)
        emu_die(call, "flags %#x are not modelled", flags);
    if (e == cudaSuccess && (p == NULL || bytes == 0))
        e = cudaErrorInvalidValue;
    if (e == cudaSuccess && !emu_memory_register(call, double_device(), p, bytes))
        e = cudaErrorHostMemoryAlreadyRegistered;
    return double_end(e);
}

cudaError_t cudaHostUnregister(void *p) {
    static const char call[] = "cudaHostUnregister";
    cudaError_t e = double_begin(call, NEEDS_CONTEXT, cudaErrorLaunchFailure);
    emu_queue_finish_closed();
    struct emu_allocation *a = emu_memory_find(p);
    if (a == NULL || a->map != NULL || a->start != p)
        emu_die(call, "%p is not registered", p);
    emu_memory_remove(call, a);
    return double_end(e);
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *total) {
    cudaError_t e = double_begin("cudaMemGetInfo", NEEDS_CONTEXT, cudaErrorInitializationError);
    if (e == cudaSuccess) {
        *total = emu_get_settings().memory_bytes;
        *left = *total - emu_memory_used(double_device());
    }
    return double_end(e);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *p) {
    cudaError_t e = double_begin("cudaPointerGetAttributes", NEEDS_CONTEXT, cudaErrorInvalidValue);
    if (e == cudaSuccess) {
        const struct emu_allocation *a = emu_memory_find(p);
        memset(out, 0, sizeof *out);
        out->device = -1;
        out->type = cudaMemoryTypeUnregistered;
        if (a != NULL && !a->freed && (uintptr_t)p < (uintptr_t)a->start + a->bytes) {
            out->device = a->device;
            out->type = a->kind == EMU_DEVICE ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
            out->devicePointer = (void *)(uintptr_t)p;
            out->hostPointer = a->kind == EMU_PINNED ? (void *)(uintptr_t)p : NULL;
        }
    }
    return double_end(e);
}

/* ---- copies ---- */

struct transfer {
    void *dst;
    const void *src; /* NULL: value */
    size_t bytes;
    int value;
};

static void run_transfer(void *arg) {
    const struct transfer *t = arg;
    if (t->src != NULL)
        memcpy(t->dst, t->src, t->bytes);
    else
        memset(t->dst, t->value, t->bytes);
}

static void queue_transfer(const char *call, cudaStream_t s, const struct transfer *t) {
    struct transfer *copy = malloc(sizeof *copy);
    if (copy == NULL)
        emu_die(call, "no memory");
    *copy = *t;
    struct emu_op op = {.name = call,
                        .run = run_transfer,
                        .release = free,
                        .arg = copy,
                        .ranges = {emu_writes(t->dst, t->bytes), emu_reads(t->src, t->bytes)},
                        .range_count = t->src == NULL ? 1 : 2};
    emu_queue(s, &op);
}

static unsigned kinds_of(const char *call, enum cudaMemcpyKind kind, bool destination) {
    switch (kind) {
    case cudaMemcpyHostToHost:
        return EMU_PINNED;
    case cudaMemcpyHostToDevice:
        return destination ? EMU_DEVICE : EMU_PINNED;
    case cudaMemcpyDeviceToHost:
        return destination ? EMU_PINNED : EMU_DEVICE;
    case cudaMemcpyDeviceToDevice:
        return EMU_DEVICE;
    case cudaMemcpyDefault:
        return EMU_DEVICE | EMU_PINNED;
    }
    emu_die(call, "direction %d", (int)kind);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t s) {
    static const char call[] = "cudaMemcpyAsync";
    cudaError_t e = double_begin(call, NEEDS_CONTEXT, cudaErrorLaunchFailure);
    emu_check_stream(call, s);
    struct emu_range to = emu_writes(dst, bytes), from = emu_reads(src, bytes);
    emu_check_range(call, "dst", &to, kinds_of(call, kind, true));
    emu_check_range(call, "src", &from, kinds_of(call, kind, false));
    if ((uintptr_t)dst < (uintptr_t)src + bytes && (uintptr_t)src < (uintptr_t)dst + bytes)
        emu_die(call, "dst and src overlap");
    if (e == cudaSuccess && bytes > 0) {
        struct transfer t = {.dst = dst, .src = src, .bytes = bytes};
        queue_transfer(call, s, &t);
    }
    return double_end(e);
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t s) {
    static const char call[] = "cudaMemsetAsync";
    cudaError_t e = double_begin(call, NEEDS_CONTEXT, cudaErrorLaunchFailure);
    emu_check_stream(call, s);
    struct emu_range to = emu_writes(dst, bytes);
    emu_check_range(call, "dst", &to, EMU_DEVICE | EMU_PINNED);
    if (e == cudaSuccess && bytes > 0) {
        struct transfer t = {.dst = dst, .bytes = bytes, .value = value};
        queue_transfer(call, s, &t);
    }
    return double_end(e);
}

/* ---- streams ---- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority) {
    cudaError_t e =
        double_begin("cudaStreamCreateWithPriority", NEEDS_CONTEXT, cudaErrorMemoryAllocation);
    if (flags != cudaStreamDefault && flags != cudaStreamNonBlocking)
        emu_die("cudaStreamCreateWithPriority", "flags %#x are not modelled", flags);
    if (e == cudaSuccess)
        *out = emu_queue_open(double_device(), flags, priority);
    return double_end(e);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
    cudaError_t e =
        double_begin("cudaStreamCreateWithFlags", NEEDS_CONTEXT, cudaErrorMemoryAllocation);
    if (flags != cudaStreamDefault && flags != cudaStreamNonBlocking)
        emu_die("cudaStreamCreateWithFlags", "flags %#x are not modelled", flags);
    if (e == cudaSuccess)
        *out = emu_queue_open(double_device(), flags, 0);
    return double_end(e);
}

cudaError_t cudaStreamDestroy(cudaStream_t s) {
    cudaError_t e = double_begin("cudaStreamDestroy", NEEDS_CONTEXT, cudaErrorLaunchFailure);
    emu_queue_close("cudaStreamDestroy", s);
    return double_end(e);
}

/* What a wait found: an operation may have failed meanwhile. */
static cudaError_t after_waiting(int device) { return emu_queue_error(device); }

cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    static const char call[] = "cudaStreamSynchronize";
    cudaError_t e = double_begin(call, NEEDS_CONTEXT, cudaErrorLaunchFailure);
    int device = emu_check_stream(call, s);
    if (e == cudaSuccess) {
        emu_queue_synchronize(call, s);
        e = after_waiting(device);
    }
    return double_end(e);
}

cudaError_t cudaStreamQuery(cudaStream_t s) {
    static const char call[] = "cudaStreamQuery";
    cudaError_t e = double_begin(call, NEEDS_CONTEXT, cudaErrorLaunchFailure);
    int device = emu_check_stream(call, s);
    if (e == cudaSuccess) {
        bool done = emu_queue_query(call, s);
        e = after_waiting(device);
        if (e == cudaSuccess && !done)
            e = cudaErrorNotReady;
    }
    return double_end(e);
}

cudaError_t cudaDeviceSynchronize(void) {
    cudaError_t e = double_begin("cudaDeviceSynchronize", NEEDS_CONTEXT, cudaErrorLaunchFailure);
    if (e == cudaSuccess) {
        emu_queue_synchronize_device(double_device());
        e = after_waiting(double_device());
    }
    return double_end(e);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t event, unsigned flags) {
    static const char call[] = "cudaStreamWaitEvent";
    cudaError_t e = double_begin(call, NEEDS_CONTEXT, cudaErrorLaunchFailure);
    if (flags != cudaEventWaitDefault)
        emu_die(call, "flags %#x are not modelled", flags);
    emu_check_stream(call, s);
    if (e == cudaSuccess)
        emu_event_wait(call, s, event);
    return double_end(e);
}

struct host_call {
    cudaHostFn_t function;
    void *arg;
};

static void run_host_call(void *arg) {
    const struct host_call *c = arg;
    c->function(c->arg);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t function, void *arg) {
    static const char call[] = "cudaLaunchHostFunc";
    cudaError_t e = double_begin(call, NEEDS_CONTEXT, cudaErrorLaunchFailure);
    emu_check_stream(call, s);
    if (e == cudaSuccess) {
        struct host_call *c = malloc(sizeof *c);
        if (c == NULL)
            emu_die(call, "no memory");
        *c = (struct host_call){function, arg};
        struct emu_op op = {.name = call, .run = run_host_call, .release = free, .arg = c};
        emu_queue(s, &op);
    }
    return double_end(e);
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    cudaError_t e =
        double_begin("cudaEventCreateWithFlags", NEEDS_CONTEXT, cudaErrorMemoryAllocation);
    if ((flags & ~(unsigned)(cudaEventBlockingSync | cudaEventDisableTiming)) != 0)
        emu_die("cudaEventCreateWithFlags", "flags %#x are not modelled", flags);
    if (e == cudaSuccess)
        *out = emu_event_open(double_device(), flags);
    return double_end(e);
}

cudaError_t cudaEventCreate(cudaEvent_t *out) {
    cudaError_t e = double_begin("cudaEventCreate", NEEDS_CONTEXT, cudaErrorMemoryAllocation);
    if (e == cudaSuccess)
        *out = emu_event_open(double_device(), cudaEventDefault);
    return double_end(e);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    cudaError_t e = double_begin("cudaEventDestroy", NEEDS_CONTEXT, cudaErrorLaunchFailure);
    emu_event_close("cudaEventDestroy", event);
    return double_end(e);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t s) {
    static const char call[] = "cudaEventRecord";
    cudaError_t e = double_begin(call, NEEDS_CONTEXT, cudaErrorLaunchFailure);
    emu_check_stream(call, s);
    if (e == cudaSuccess)
        e = emu_event_record(call, event, s);
    return double_end(e);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    static const char call[] = "cudaEventSynchronize";
    cudaError_t e = double_begin(call, NEEDS_CONTEXT, cudaErrorLaunchFailure);
    if (e == cudaSuccess) {
        emu_event_synchronize(call, event);
        e = after_waiting(double_device());
    }
    return double_end(e);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    static const char call[] = "cudaEventQuery";
    cudaError_t e = double_begin(call, NEEDS_CONTEXT, cudaErrorLaunchFailure);
    if (e == cudaSuccess) {
        bool done = emu_event_query(call, event);
        e = after_waiting(double_device());
        if (e == cudaSuccess && !done)
            e = cudaErrorNotReady;
    }
    return double_end(e);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    static const char call[] = "cudaEventElapsedTime";
    cudaError_t e = double_begin(call, NEEDS_CONTEXT, cudaErrorLaunchFailure);
    if (e == cudaSuccess)
        e = emu_event_elapsed(call, ms, from, to);
    return double_end(e);
}
