/* test_emu_queues.c - streams, events, orders, memory and failures of the emulation. */
#include "config.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "tests/cuda/emu_control.h"
#include "tests/cuda/emu_stream.h"
#include "tests/cuda/test_emu.h"

static int set_up(void **state) {
    (void)state;
    settings_reset();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    settings_reset();
    return emu_leaks(true) == 0 ? 0 : -1;
}

static void set_order(enum emu_order order, uint64_t seed) {
    struct emu_settings e = emu_get_settings();
    e.order = order;
    e.seed = seed;
    emu_set_settings(&e);
}

/* An operation that writes its name: what ran, in which order. */
static char trail[64];
static void leave_name(void *arg) {
    size_t n = strlen(trail);
    assert_true(n + 1 < sizeof trail);
    trail[n] = *(const char *)arg;
    trail[n + 1] = '\0';
}
static void op(cudaStream_t s, const char *name) {
    struct emu_op o = {.name = name, .run = leave_name};
    o.arg = (void *)(uintptr_t)name;
    emu_queue(s, &o);
}
/* What ran since the last call. */
static const char *ran(void) {
    static char copy[sizeof trail];
    memcpy(copy, trail, sizeof trail);
    trail[0] = '\0';
    return copy;
}

static void lazy_runs_what_a_synchronisation_needs(void **state) {
    (void)state;
    cudaStream_t s = stream_open(), t = stream_open();
    cudaEvent_t e = event_open();
    op(t, "a");
    must(cudaEventRecord(e, t));
    op(t, "b");
    op(s, "c");
    must(cudaStreamWaitEvent(s, e, 0));
    op(s, "d");
    assert_string_equal(ran(), "");
    must(cudaStreamSynchronize(s));
    assert_string_equal(ran(), "cad");
    must(cudaStreamSynchronize(s));
    assert_string_equal(ran(), "");
    must(cudaStreamSynchronize(t));
    assert_string_equal(ran(), "b");
    op(s, "e");
    op(t, "f");
    must(cudaDeviceSynchronize());
    assert_int_equal(strlen(ran()), 2);
    must(cudaEventDestroy(e));
    must(cudaStreamDestroy(s));
    must(cudaStreamDestroy(t));
}

static void eager_runs_at_once(void **state) {
    (void)state;
    set_order(EMU_EAGER, 1);
    cudaStream_t s = stream_open();
    op(s, "a");
    assert_string_equal(ran(), "a");
    op(s, "b");
    assert_string_equal(ran(), "b");
    must(cudaStreamDestroy(s));
}

/* Two streams of three operations each. */
static const char *random_trail(uint64_t seed) {
    set_order(EMU_RANDOM, seed);
    cudaStream_t s = stream_open(), t = stream_open();
    op(s, "a");
    op(t, "x");
    op(s, "b");
    op(t, "y");
    op(s, "c");
    op(t, "z");
    must(cudaDeviceSynchronize());
    must(cudaStreamDestroy(s));
    must(cudaStreamDestroy(t));
    return ran();
}

static void random_orders_differ_and_repeat_by_their_seed(void **state) {
    (void)state;
    char seen[8][8];
    unsigned different = 0;
    for (uint64_t seed = 0; seed < 8; seed++) {
        snprintf(seen[seed], sizeof seen[seed], "%s", random_trail(seed));
        assert_int_equal(strlen(seen[seed]), 6);
        assert_true(strchr(seen[seed], 'a') < strchr(seen[seed], 'b'));
        assert_true(strchr(seen[seed], 'b') < strchr(seen[seed], 'c'));
        assert_true(strchr(seen[seed], 'y') < strchr(seen[seed], 'z'));
        assert_string_equal(random_trail(seed), seen[seed]);
        different += strcmp(seen[seed], seen[0]) != 0;
    }
    assert_true(different >= 3);
}

static void a_wait_is_for_the_record_before_it(void **state) {
    (void)state;
    cudaStream_t s = stream_open(), t = stream_open();
    cudaEvent_t e = event_open();
    op(t, "a");
    must(cudaEventRecord(e, t));
    must(cudaStreamWaitEvent(s, e, 0));
    op(t, "b");
    must(cudaEventRecord(e, t)); /* a later one, which that wait does not mean */
    op(s, "c");
    must(cudaStreamSynchronize(s));
    assert_string_equal(ran(), "ac");
    must(cudaEventSynchronize(e));
    assert_string_equal(ran(), "b");
    must(cudaEventDestroy(e));
    must(cudaStreamDestroy(s));
    must(cudaStreamDestroy(t));
}

static void an_event_that_was_never_recorded_is_done(void **state) {
    (void)state;
    cudaStream_t s = stream_open();
    cudaEvent_t e = event_open();
    must(cudaStreamWaitEvent(s, e, 0));
    op(s, "a");
    must(cudaEventSynchronize(e));
    must(cudaEventQuery(e));
    assert_string_equal(ran(), "");
    must(cudaStreamSynchronize(s));
    assert_string_equal(ran(), "a");
    must(cudaEventDestroy(e));
    must(cudaStreamDestroy(s));
}

static void an_event_may_end_before_what_waits_for_it(void **state) {
    (void)state;
    cudaStream_t s = stream_open(), t = stream_open();
    cudaEvent_t e = event_open();
    op(t, "a");
    must(cudaEventRecord(e, t));
    must(cudaStreamWaitEvent(s, e, 0));
    op(s, "b");
    must(cudaEventDestroy(e));
    must(cudaStreamDestroy(t));
    must(cudaStreamSynchronize(s));
    assert_string_equal(ran(), "ab");
    must(cudaStreamDestroy(s));
}

static void a_loop_around_a_query_ends(void **state) {
    (void)state;
    cudaStream_t s = stream_open();
    cudaEvent_t e = event_open();
    op(s, "a");
    must(cudaEventRecord(e, s));
    assert_int_equal(cudaEventQuery(e), cudaErrorNotReady);
    assert_int_equal(cudaGetLastError(), cudaErrorNotReady);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    must(cudaEventQuery(e));
    assert_string_equal(ran(), "a");
    op(s, "b");
    assert_int_equal(cudaStreamQuery(s), cudaErrorNotReady);
    must(cudaStreamQuery(s));
    assert_string_equal(ran(), "b");
    must(cudaEventDestroy(e));
    must(cudaStreamDestroy(s));
}

static void host_functions_run_in_their_stream(void **state) {
    (void)state;
    cudaStream_t s = stream_open();
    op(s, "a");
    must(cudaLaunchHostFunc(s, leave_name, (void *)(uintptr_t) "h"));
    op(s, "b");
    must(cudaStreamSynchronize(s));
    assert_string_equal(ran(), "ahb");
    must(cudaStreamDestroy(s));
}

static void time_passes_between_events(void **state) {
    (void)state;
    float ms = -1.0f;
    cudaStream_t s = stream_open();
    cudaEvent_t from, to;
    must(cudaEventCreate(&from));
    must(cudaEventCreate(&to));
    must(cudaEventRecord(from, s));
    must(cudaEventRecord(to, s));
    assert_int_equal(cudaEventElapsedTime(&ms, from, to), cudaErrorNotReady);
    must(cudaEventSynchronize(to));
    must(cudaEventElapsedTime(&ms, from, to));
    assert_true(ms >= 0.0f && ms < 20000.0f);
    must(cudaEventDestroy(from));
    must(cudaEventDestroy(to));
    must(cudaStreamDestroy(s));
}

/* ---- memory ---- */

static void copies_go_every_way_and_fresh_memory_is_nan(void **state) {
    (void)state;
    cudaStream_t s = stream_open();
    float *a = device_memory(1000 * sizeof *a), *b = device_memory(1000 * sizeof *b);
    float *in = pinned_memory(1000 * sizeof *in), *out = pinned_memory(1000 * sizeof *out);
    assert_int_equal((uintptr_t)a % 256, 0);
    assert_int_equal((uintptr_t)in % 256, 0);
    for (int i = 0; i < 1000; i++)
        assert_true(isnan(in[i]));
    must(cudaMemcpyAsync(out, a, 1000 * sizeof *a, cudaMemcpyDeviceToHost, s));
    must(cudaStreamSynchronize(s));
    for (int i = 0; i < 1000; i++) {
        assert_true(isnan(out[i]));
        in[i] = (float)i;
    }
    must(cudaMemcpyAsync(a, in, 1000 * sizeof *a, cudaMemcpyHostToDevice, s));
    k_scale(s, b, a, 1000, 2.0f);
    must(cudaMemsetAsync(a, 0, 500 * sizeof *a, s));
    must(cudaMemcpyAsync(a + 500, b + 500, 500 * sizeof *a, cudaMemcpyDeviceToDevice, s));
    must(cudaMemcpyAsync(out, a, 1000 * sizeof *a, cudaMemcpyDefault, s));
    must(cudaStreamSynchronize(s));
    for (int i = 0; i < 1000; i++)
        assert_true(out[i] == (i < 500 ? 0.0f : 2.0f * (float)i));
    must(cudaFree(a));
    must(cudaFree(b));
    must(cudaFreeHost(in));
    must(cudaFreeHost(out));
    must(cudaFree(NULL));
    must(cudaStreamDestroy(s));
}

static void a_copy_reads_when_it_runs(void **state) {
    (void)state;
    cudaStream_t s = stream_open();
    int *a = device_memory(sizeof *a), *host = pinned_memory(2 * sizeof *host);
    host[0] = 1;
    must(cudaMemcpyAsync(a, host, sizeof *a, cudaMemcpyDefault, s));
    host[0] = 2; /* too early */
    must(cudaMemcpyAsync(host + 1, a, sizeof *a, cudaMemcpyDefault, s));
    must(cudaStreamSynchronize(s));
    assert_int_equal(host[1], 2);
    must(cudaFree(a));
    must(cudaFreeHost(host));
    must(cudaStreamDestroy(s));
}

static void registered_memory_is_pinned(void **state) {
    (void)state;
    cudaStream_t s = stream_open();
    struct cudaPointerAttributes at;
    float *host = calloc(100, sizeof *host), *a = device_memory(100 * sizeof *a);
    assert_non_null(host);
    must(cudaPointerGetAttributes(&at, host));
    assert_int_equal(at.type, cudaMemoryTypeUnregistered);
    must(cudaHostRegister(host, 100 * sizeof *host, cudaHostRegisterDefault));
    assert_int_equal(cudaHostRegister(host + 99, 8, cudaHostRegisterDefault),
                     cudaErrorHostMemoryAlreadyRegistered);
    must(cudaPointerGetAttributes(&at, host + 7));
    assert_int_equal(at.type, cudaMemoryTypeHost);
    must(cudaPointerGetAttributes(&at, a));
    assert_int_equal(at.type, cudaMemoryTypeDevice);
    k_fill_struct(s, a, 100, 3.0f);
    must(cudaMemcpyAsync(host, a, 100 * sizeof *a, cudaMemcpyDefault, s));
    must(cudaStreamSynchronize(s));
    assert_true(host[99] == 3.0f);
    must(cudaHostUnregister(host));
    must(cudaFree(a));
    free(host);
    must(cudaStreamDestroy(s));
    assert_int_equal(cudaGetLastError(), cudaErrorHostMemoryAlreadyRegistered);
}

static void memory_has_a_limit(void **state) {
    (void)state;
    struct emu_settings e = emu_get_settings(), old = e;
    size_t left, total;
    void *a, *b = NULL;
    e.memory_bytes = 1 << 20;
    emu_set_settings(&e);
    must(cudaMalloc(&a, 600 << 10));
    must(cudaMemGetInfo(&left, &total));
    assert_int_equal(total, 1 << 20);
    assert_int_equal(left, (1 << 20) - (600 << 10));
    assert_int_equal(cudaMalloc(&b, 500 << 10), cudaErrorMemoryAllocation);
    assert_null(b);
    assert_int_equal(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
    must(cudaMallocHost(&b, 2 << 20)); /* the host's memory is another */
    must(cudaFreeHost(b));
    must(cudaFree(a));
    must(cudaMalloc(&a, 1 << 20));
    must(cudaFree(a));
    emu_set_settings(&old);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
}

static void what_a_destroyed_stream_still_does_is_done_before_memory_goes(void **state) {
    (void)state;
    cudaStream_t s = stream_open();
    void *a = device_memory(4000);
    k_fill_struct(s, a, 10, 1.0f);
    op(s, "a");
    must(cudaStreamDestroy(s));
    assert_string_equal(ran(), "");
    must(cudaFree(a));
    assert_string_equal(ran(), "a");
}

static void leaks_are_counted(void **state) {
    (void)state;
    assert_int_equal(emu_leaks(false), 0);
    cudaStream_t s = stream_open();
    cudaEvent_t e = event_open();
    void *a = device_memory(1), *b = pinned_memory(1);
    op(s, "a");
    assert_int_equal(emu_leaks(false), 5);
    must(cudaStreamSynchronize(s));
    must(cudaStreamDestroy(s));
    must(cudaEventDestroy(e));
    assert_int_equal(emu_leaks(false), 2);
    must(cudaFree(a));
    must(cudaFreeHost(b));
    assert_string_equal(ran(), "a");
}

/* ---- devices ---- */

static void devices_are_told_apart(void **state) {
    (void)state;
    struct emu_settings e = emu_get_settings(), old = e;
    struct cudaDeviceProp p, q;
    char id[16], other[16];
    int n = 0, current, sms;
    size_t left, total;
    e.devices = 3;
    emu_set_settings(&e);
    must(cudaGetDeviceCount(&n));
    assert_int_equal(n, 3);
    must(cudaGetDeviceProperties(&p, 0));
    must(cudaGetDeviceProperties(&q, 2));
    assert_memory_not_equal(p.uuid.bytes, q.uuid.bytes, sizeof p.uuid.bytes);
    must(cudaDeviceGetPCIBusId(id, sizeof id, 0));
    must(cudaDeviceGetPCIBusId(other, sizeof other, 2));
    assert_string_not_equal(id, other);
    must(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 1));
    assert_int_equal(sms, p.multiProcessorCount);
    assert_int_equal(cudaSetDevice(3), cudaErrorInvalidDevice);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidDevice);
    must(cudaSetDevice(2));
    must(cudaGetDevice(&current));
    assert_int_equal(current, 2);
    void *a = device_memory(4096);
    cudaStream_t s = stream_open();
    k_fill_struct(s, a, 10, 1.0f);
    must(cudaStreamSynchronize(s));
    must(cudaMemGetInfo(&left, &total));
    assert_int_equal(total - left, 4096);
    must(cudaSetDevice(0));
    must(cudaMemGetInfo(&left, &total));
    assert_int_equal(total - left, 0);
    cudaEvent_t event = event_open();
    assert_int_equal(cudaEventRecord(event, s), cudaErrorInvalidResourceHandle);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidResourceHandle);
    must(cudaEventDestroy(event));
    must(cudaFree(a));
    must(cudaStreamDestroy(s));
    emu_set_settings(&old);
}

static void a_host_without_a_device_says_so_as_cuda_does(void **state) {
    (void)state;
    struct emu_settings e = emu_get_settings();
    int n = 77, version = 0;
    void *p = NULL;
    e.no_device = true;
    emu_set_settings(&e);
    assert_int_equal(cudaGetDeviceCount(&n), cudaErrorNoDevice);
    assert_int_equal(n, 77);
    e.no_device = false;
    e.driver_old = true;
    emu_set_settings(&e);
    assert_int_equal(cudaGetDeviceCount(&n), cudaErrorInsufficientDriver);
    assert_int_equal(n, 77);
    must(cudaDriverGetVersion(&version));
    assert_true(version < CUDART_VERSION);
    e.driver_old = false;
    e.exclusive = true;
    emu_set_settings(&e);
    must(cudaGetDeviceCount(&n));
    assert_int_equal(n, 1);
    assert_int_equal(cudaSetDevice(0), cudaErrorDevicesUnavailable);
    assert_int_equal(cudaMalloc(&p, 1), cudaErrorDevicesUnavailable);
    e.exclusive = false;
    emu_set_settings(&e);
    assert_int_equal(cudaGetLastError(), cudaErrorDevicesUnavailable);
}

/* ---- failures ---- */

/* A program of a few calls that stops at the first error and cleans up; 0 or the error. */
static cudaError_t small_program(void) {
    cudaError_t e;
    cudaStream_t s = NULL;
    cudaEvent_t event = NULL;
    float *a = NULL;
    if ((e = cudaSetDevice(0)) != cudaSuccess)
        return e;
    if ((e = cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking)) != cudaSuccess)
        goto end;
    if ((e = cudaEventCreateWithFlags(&event, cudaEventDisableTiming)) != cudaSuccess)
        goto end;
    if ((e = cudaMalloc((void **)&a, 4096)) != cudaSuccess)
        goto end;
    k_fill_struct(s, a, 10, 1.0f);
    if ((e = cudaGetLastError()) != cudaSuccess)
        goto end;
    if ((e = cudaEventRecord(event, s)) == cudaSuccess)
        e = cudaEventSynchronize(event);
end:
    if (s != NULL && cudaStreamSynchronize(s) != cudaSuccess && e == cudaSuccess)
        e = cudaGetLastError();
    if (event != NULL && cudaEventDestroy(event) != cudaSuccess && e == cudaSuccess)
        e = cudaGetLastError();
    if (a != NULL && cudaFree(a) != cudaSuccess && e == cudaSuccess)
        e = cudaGetLastError();
    if (s != NULL && cudaStreamDestroy(s) != cudaSuccess && e == cudaSuccess)
        e = cudaGetLastError();
    return e;
}

static void each_call_can_be_made_to_fail(void **state) {
    (void)state;
    emu_fail_at(0, NULL);
    must(small_program());
    uint64_t calls = emu_call_count();
    assert_int_equal(calls, 11);
    for (uint64_t n = 1; n <= calls; n++) {
        emu_fail_at(n, n % 2 == 0 ? "" : "cudaErrorOperatingSystem");
        cudaError_t e = small_program();
        assert_int_not_equal(e, cudaSuccess);
        if (n % 2 == 1)
            assert_int_equal(e, cudaErrorOperatingSystem);
        assert_string_not_equal(emu_failed_call(), "");
        emu_fail_at(0, NULL);
        cudaGetLastError();
        assert_int_equal(emu_leaks(true), 0);
    }
    assert_string_equal(emu_failed_call(), "");
    must(small_program());
}

static void an_error_of_execution_sticks(void **state) {
    (void)state;
    cudaStream_t s = stream_open();
    void *p = NULL;
    op(s, "a");
    emu_fail_at(2, "cudaErrorIllegalAddress");
    op(s, "b"); /* counted by nobody: it is the library that counts */
    must(cudaStreamQuery(s) == cudaErrorNotReady ? cudaSuccess : cudaErrorUnknown);
    assert_int_equal(cudaStreamSynchronize(s), cudaErrorIllegalAddress);
    assert_string_equal(emu_failed_call(), "cudaStreamSynchronize");
    assert_int_equal(cudaStreamSynchronize(s), cudaErrorIllegalAddress);
    assert_int_equal(cudaMalloc(&p, 1), cudaErrorIllegalAddress);
    assert_int_equal(cudaGetLastError(), cudaErrorIllegalAddress);
    assert_int_equal(cudaGetLastError(), cudaErrorIllegalAddress);
    assert_int_equal(cudaStreamDestroy(s), cudaErrorIllegalAddress);
    assert_string_equal(ran(), "");
    assert_int_equal(emu_leaks(true), 0);
    emu_fail_at(0, NULL);
    must(cudaMalloc(&p, 1));
    must(cudaFree(p));
}

static void fail_operation(void *arg) {
    (void)arg;
    emu_operation_failed(cudaErrorLaunchFailure);
}

static void a_failed_operation_shows_at_the_next_synchronisation(void **state) {
    (void)state;
    cudaStream_t s = stream_open();
    struct emu_op bad = {.name = "bad", .run = fail_operation};
    emu_queue(s, &bad);
    op(s, "a");
    assert_int_equal(cudaStreamSynchronize(s), cudaErrorLaunchFailure);
    assert_string_equal(ran(), "");
    assert_int_equal(emu_device_error(s), cudaErrorLaunchFailure);
    assert_int_equal(cudaStreamDestroy(s), cudaErrorLaunchFailure);
}

/* ---- peers ---- */

static pthread_mutex_t meeting_lock = PTHREAD_MUTEX_INITIALIZER;
static int meeting[4];

struct peer {
    int place;
    int needed; /* how many must be there */
};

static bool meet(void *arg) {
    struct peer *p = arg;
    pthread_mutex_lock(&meeting_lock);
    if (p->needed > 0) {
        meeting[p->place]++;
        p->needed = -p->needed;
    }
    bool all = meeting[p->place] >= -p->needed;
    pthread_mutex_unlock(&meeting_lock);
    return all;
}

static void meet_on(cudaStream_t s, struct peer *p, int place) {
    *p = (struct peer){place, 2};
    struct emu_op o = {.name = "meet", .poll = meet, .arg = p};
    emu_queue(s, &o);
}

/* Meets at places 1 and 0, each on a stream of its own, and waits for the one at 0. */
static void *other_rank(void *arg) {
    struct peer p[2];
    (void)arg;
    cudaStream_t s = stream_open(), t = stream_open();
    meet_on(s, &p[0], 1);
    meet_on(t, &p[1], 0);
    must(cudaStreamSynchronize(t));
    must(cudaStreamSynchronize(s));
    must(cudaStreamDestroy(s));
    must(cudaStreamDestroy(t));
    return NULL;
}

static void peers_meet_whatever_each_waits_for_first(void **state) {
    (void)state;
    for (int order = EMU_LAZY; order <= EMU_RANDOM; order++) {
        struct peer p[2];
        pthread_t thread;
        set_order((enum emu_order)order, 3);
        memset(meeting, 0, sizeof meeting);
        cudaStream_t s = stream_open(), t = stream_open();
        assert_int_equal(pthread_create(&thread, NULL, other_rank, NULL), 0);
        meet_on(s, &p[0], 0);
        meet_on(t, &p[1], 1);
        must(cudaStreamSynchronize(t)); /* the other waits for s */
        must(cudaStreamSynchronize(s));
        assert_int_equal(pthread_join(thread, NULL), 0);
        must(cudaStreamDestroy(s));
        must(cudaStreamDestroy(t));
    }
}

/* A GPU meets its peer though its host does something else. */
static void a_peer_is_met_while_the_host_is_elsewhere(void **state) {
    (void)state;
    struct peer mine, peers;
    cudaStream_t s = stream_open(), t = stream_open();
    cudaEvent_t e = event_open();
    memset(meeting, 0, sizeof meeting);
    op(t, "a");
    must(cudaEventRecord(e, t));
    must(cudaStreamWaitEvent(s, e, 0));
    meet_on(s, &mine, 0);
    peers = (struct peer){0, 2};
    for (int i = 0; !meet(&peers); i++) {
        struct timespec pause = {0, 10000000};
        assert_true(i < 2000);
        nanosleep(&pause, NULL);
    }
    must(cudaStreamSynchronize(s));
    assert_string_equal(ran(), "a");
    must(cudaEventDestroy(e));
    must(cudaStreamDestroy(s));
    must(cudaStreamDestroy(t));
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int test_emu_queues(void) {
    static const struct CMUnitTest tests[] = {
        T(lazy_runs_what_a_synchronisation_needs),
        T(eager_runs_at_once),
        T(random_orders_differ_and_repeat_by_their_seed),
        T(a_wait_is_for_the_record_before_it),
        T(an_event_that_was_never_recorded_is_done),
        T(an_event_may_end_before_what_waits_for_it),
        T(a_loop_around_a_query_ends),
        T(host_functions_run_in_their_stream),
        T(time_passes_between_events),
        T(copies_go_every_way_and_fresh_memory_is_nan),
        T(a_copy_reads_when_it_runs),
        T(registered_memory_is_pinned),
        T(memory_has_a_limit),
        T(what_a_destroyed_stream_still_does_is_done_before_memory_goes),
        T(leaks_are_counted),
        T(devices_are_told_apart),
        T(a_host_without_a_device_says_so_as_cuda_does),
        T(each_call_can_be_made_to_fail),
        T(an_error_of_execution_sticks),
        T(a_failed_operation_shows_at_the_next_synchronisation),
        T(peers_meet_whatever_each_waits_for_first),
        T(a_peer_is_met_while_the_host_is_elsewhere),
    };
    return cmocka_run_group_tests_name("queues", tests, NULL, NULL);
}
