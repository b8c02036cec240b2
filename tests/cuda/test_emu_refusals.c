/* test_emu_refusals.c - uses of the runtime that end the program, each in a child of its own. */
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/cuda/emu_control.h"
#include "tests/cuda/emu_stream.h"
#include "tests/cuda/test_emu.h"

/* What each child starts with. */
struct rig {
    cudaStream_t s;
    cudaEvent_t e;
    char *a, *b;  /* 1000 bytes of device memory */
    char *pinned; /* 1000 bytes */
    char plain[1000];
};

static void default_stream(void *arg) {
    struct rig *r = arg;
    cudaMemcpyAsync(r->a, r->pinned, 8, cudaMemcpyDefault, NULL);
}
static void legacy_stream(void *arg) {
    (void)arg;
    cudaStreamSynchronize(cudaStreamLegacy);
}
static void launch_on_default_stream(void *arg) {
    struct rig *r = arg;
    k_fill_struct(NULL, (float *)(void *)r->a, 4, 1.0f);
}
static void unpinned_copy(void *arg) {
    struct rig *r = arg;
    cudaMemcpyAsync(r->a, r->plain, 8, cudaMemcpyDefault, r->s);
}
static void copy_beyond(void *arg) {
    struct rig *r = arg;
    cudaMemcpyAsync(r->a + 600, r->pinned, 401, cudaMemcpyDefault, r->s);
}
static void set_beyond(void *arg) {
    struct rig *r = arg;
    cudaMemsetAsync(r->a, 0, 1001, r->s);
}
static void wrong_direction(void *arg) {
    struct rig *r = arg;
    cudaMemcpyAsync(r->a, r->pinned, 8, cudaMemcpyDeviceToHost, r->s);
}
static void overlap(void *arg) {
    struct rig *r = arg;
    cudaMemcpyAsync(r->a, r->a + 7, 8, cudaMemcpyDefault, r->s);
}
static void freed_source(void *arg) {
    struct rig *r = arg;
    cudaFree(r->b);
    cudaMemcpyAsync(r->a, r->b, 8, cudaMemcpyDefault, r->s);
}
static void freed_argument(void *arg) {
    struct rig *r = arg;
    cudaFree(r->a);
    k_scale(r->s, (float *)(void *)r->a, (float *)(void *)r->b, 1, 1.0f);
}
static void freed_too_early(void *arg) {
    struct rig *r = arg;
    cudaMemcpyAsync(r->a, r->b, 8, cudaMemcpyDefault, r->s);
    cudaFree(r->b);
    cudaStreamSynchronize(r->s);
}
static void freed_under_a_kernel(void *arg) {
    struct rig *r = arg;
    k_fill_struct(r->s, (float *)(void *)r->a, 4, 1.0f);
    cudaFree(r->a);
    cudaStreamSynchronize(r->s);
}
static void freed_twice(void *arg) {
    struct rig *r = arg;
    cudaFree(r->a);
    cudaFree(r->a);
}
static void freed_inside(void *arg) {
    struct rig *r = arg;
    cudaFree(r->a + 256);
}
static void freed_by_the_other(void *arg) {
    struct rig *r = arg;
    cudaFreeHost(r->a);
}
static void freed_unknown(void *arg) {
    struct rig *r = arg;
    cudaFree(r->plain);
}
static void unregister_unknown(void *arg) {
    struct rig *r = arg;
    cudaHostUnregister(r->pinned);
}
static void destroyed_stream(void *arg) {
    struct rig *r = arg;
    cudaStreamDestroy(r->s);
    cudaStreamSynchronize(r->s);
}
static void destroyed_event(void *arg) {
    struct rig *r = arg;
    cudaEventDestroy(r->e);
    cudaStreamWaitEvent(r->s, r->e, 0);
}
static void destroyed_twice(void *arg) {
    struct rig *r = arg;
    cudaEventDestroy(r->e);
    cudaEventDestroy(r->e);
}
static void stream_for_event(void *arg) {
    struct rig *r = arg;
    cudaEventRecord((cudaEvent_t)(void *)r->s, r->s);
}
static void never_recorded(void *arg) {
    struct rig *r = arg;
    struct emu_settings e = emu_get_settings();
    e.strict = true;
    emu_set_settings(&e);
    cudaStreamWaitEvent(r->s, r->e, 0);
}
static void timing_disabled(void *arg) {
    struct rig *r = arg;
    float ms;
    cudaEventRecord(r->e, r->s);
    cudaStreamSynchronize(r->s);
    cudaEventElapsedTime(&ms, r->e, r->e);
}
static void attribute_unknown(void *arg) {
    int v;
    (void)arg;
    cudaDeviceGetAttribute(&v, cudaDevAttrMaxTexture1DWidth, 0);
}
static void host_reads_device(void *arg) {
    struct rig *r = arg;
    cudaMemsetAsync(r->a, 0, 1000, r->s);
    cudaStreamSynchronize(r->s);
    volatile char *p = r->a;
    _exit(p[10] == 0 ? 1 : 2);
}
static void host_writes_device(void *arg) {
    struct rig *r = arg;
    memset(r->a, 0, 1);
}
static void host_reads_freed(void *arg) {
    struct rig *r = arg;
    cudaFreeHost(r->pinned);
    volatile char *p = r->pinned;
    _exit(p[10] == 0 ? 1 : 2);
}
static void host_writes_beyond(void *arg) {
    struct rig *r = arg;
    r->pinned[1001] = 1;
    cudaFreeHost(r->pinned);
}
static void write_beyond(void *arg) { *(char *)arg = 1; }
static void operation_writes_beyond(void *arg) {
    struct rig *r = arg;
    struct emu_op o = {.name = "an operation",
                       .run = write_beyond,
                       .arg = r->a + 1003,
                       .ranges = {emu_writes(r->a, 1000)},
                       .range_count = 1};
    emu_queue(r->s, &o);
    cudaStreamSynchronize(r->s);
}
static void call_within(void *arg) {
    struct rig *r = arg;
    cudaEventRecord(r->e, r->s);
}
static void call_from_operation(void *arg) {
    struct rig *r = arg;
    cudaLaunchHostFunc(r->s, call_within, r);
    cudaStreamSynchronize(r->s);
}
static void other_device(void *arg) {
    struct rig *r = arg;
    cudaSetDevice(1);
    k_fill_struct(r->s, (float *)(void *)r->a, 4, 1.0f);
}

static const struct refusal {
    void (*fn)(void *arg);
    const char *text;
} refusals[] = {
    {default_stream, "cudaMemcpyAsync: the default stream is not modelled"},
    {legacy_stream, "cudaStreamSynchronize: the default stream is not modelled"},
    {launch_on_default_stream, "fill_struct_kernel: the default stream is not modelled"},
    {unpinned_copy, "cudaMemcpyAsync: src"},
    {copy_beyond, "dst, bytes 600 to 1001, is out of range of device allocation"},
    {set_beyond, "cudaMemsetAsync: dst, bytes 0 to 1001, is out of range"},
    {wrong_direction, "dst is in device allocation 1 (cudaMalloc, 1000 bytes), of the wrong kind"},
    {overlap, "dst and src overlap"},
    {freed_source,
     "src is byte 0 of device allocation 2 (cudaMalloc, 1000 bytes), freed by cudaFree"},
    {freed_argument, "scale_kernel: argument 0 is in device allocation 1"},
    {freed_too_early, "cudaMemcpyAsync: at the time it runs, its memory is byte 0 of device"},
    {freed_under_a_kernel,
     "fill_struct_kernel: a pointer in its arguments is in device allocation"},
    {freed_twice, "freed by cudaFree again"},
    {freed_inside, "is not the start of memory"},
    {freed_by_the_other, "cudaFreeHost"},
    {freed_unknown, "was not allocated"},
    {unregister_unknown, "is not registered"},
    {destroyed_stream, "cudaStreamSynchronize: stream 1 is destroyed"},
    {destroyed_event, "cudaStreamWaitEvent: event 1 is destroyed"},
    {destroyed_twice, "cudaEventDestroy: event 1 is destroyed"},
    {stream_for_event, "is not an event"},
    {never_recorded, "event 1 was never recorded"},
    {timing_disabled, "cudaEventDisableTiming"},
    {attribute_unknown, "is not modelled"},
    {host_reads_device,
     "host code: access to byte 10 of device allocation 1 (cudaMalloc, 1000 bytes): "
     "device memory, while no operation runs"},
    {host_writes_device, "host code: access to byte 0 of device allocation"},
    {host_reads_freed, "host code: access to byte 10 of pinned allocation"},
    {host_writes_beyond, "cudaFreeHost: byte 1 beyond the end of pinned allocation"},
    {operation_writes_beyond, "an operation: byte 3 beyond the end of device allocation 1"},
    {call_from_operation, "cudaEventRecord: called from within an operation"},
    {other_device, "launched on a stream of device 0, and 1 is current"},
};

static void run_refusal(void *arg) {
    const struct refusal *refusal = arg;
    static struct rig r;
    struct emu_settings settings = emu_get_settings();
    settings.devices = 2;
    emu_set_settings(&settings);
    r.s = stream_open();
    r.e = event_open();
    r.a = device_memory(1000);
    r.b = device_memory(1000);
    r.pinned = pinned_memory(1000);
    refusal->fn(&r);
}

/* First in a new process, so that the numbers in the texts are known. */
static void what_is_wrong_or_not_modelled_ends_the_program(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++)
        dies(run_refusal, (void *)(uintptr_t)&refusals[i], refusals[i].text);
}

/* ---- settings by the environment ---- */

static void read_environment(void *arg) {
    (void)arg;
    emu_get_settings();
}

static void fail_third(void *arg) {
    void *p;
    (void)arg;
    setenv("EMU_FAIL_AT", "3:cudaErrorNotSupported", 1);
    setenv("EMU_DEVICES", "4", 1);
    setenv("EMU_MEMORY", "5000", 1);
    setenv("EMU_ORDER", "random", 1);
    setenv("EMU_THREADS", "desc", 1);
    setenv("EMU_SEED", "9", 1);
    setenv("EMU_STRICT", "1", 1);
    struct emu_settings e = emu_get_settings();
    assert_int_equal(e.devices, 4);
    assert_int_equal(e.memory_bytes, 5000);
    assert_int_equal(e.order, EMU_RANDOM);
    assert_int_equal(e.threads, EMU_DESC);
    assert_int_equal(e.seed, 9);
    assert_true(e.strict);
    must(cudaMalloc(&p, 1));
    must(cudaFree(p));
    if (cudaMalloc(&p, 1) != cudaErrorNotSupported)
        _exit(1);
    must(cudaMalloc(&p, 1));
}

static void settings_come_from_the_environment(void **state) {
    (void)state;
    lives(fail_third, NULL);
    static const struct {
        const char *name, *value;
    } wrong[] = {
        {"EMU_ORDER", "backwards"}, {"EMU_THREADS", "up"}, {"EMU_DEVICES", "17"},
        {"EMU_MEMORY", "1G"},       {"EMU_SEED", "-1"},    {"EMU_FAIL_AT", "x:y"},
        {"EMU_FAIL_AT", "0"},       {"EMU_STRICT", "yes"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        setenv(wrong[i].name, wrong[i].value, 1);
        dies(read_environment, NULL, wrong[i].name);
        unsetenv(wrong[i].name);
    }
}

int test_emu_refusals(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(settings_come_from_the_environment),
        cmocka_unit_test(what_is_wrong_or_not_modelled_ends_the_program),
    };
    return cmocka_run_group_tests_name("refusals", tests, NULL, NULL);
}
