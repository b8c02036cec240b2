/* test_emu_blocks.c - blocks, barriers, warps, atomics and shared memory of the emulation. */
#include "config.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/cuda/emu_control.h"
#include "tests/cuda/test_emu.h"

static cudaStream_t s;

static int set_up(void **state) {
    (void)state;
    settings_reset();
    s = stream_open();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    must(cudaStreamDestroy(s));
    return emu_leaks(true) == 0 ? 0 : -1;
}

static void thread_order(enum emu_thread_order order) {
    struct emu_settings e = emu_get_settings();
    e.threads = order;
    e.seed++;
    emu_set_settings(&e);
}

static void each_element_gets_its_index(void **state) {
    (void)state;
    int *out = pinned_memory(1000 * sizeof *out);
    for (int order = EMU_ASC; order <= EMU_SHUFFLED; order++)
        for (int block = 1; block <= 1024; block += 341) {
            thread_order((enum emu_thread_order)order);
            memset(out, 0, 1000 * sizeof *out);
            k_index(s, out, 999, block);
            must(cudaStreamSynchronize(s));
            for (int i = 0; i < 999; i++)
                assert_int_equal(out[i], i);
            assert_int_equal(out[999], 0);
        }
    must(cudaFreeHost(out));
}

/* in: 1, 2, ... n */
static float sum_of(int n, int barriers) {
    float *in = pinned_memory((size_t)n * sizeof *in), *out = pinned_memory(sizeof *out), sum;
    for (int i = 0; i < n; i++)
        in[i] = (float)(i + 1);
    k_sum(s, out, in, n, barriers);
    must(cudaStreamSynchronize(s));
    sum = out[0];
    must(cudaFreeHost(in));
    must(cudaFreeHost(out));
    return sum;
}

static void a_tree_in_shared_memory_adds_up_in_any_order(void **state) {
    (void)state;
    for (int order = EMU_ASC; order <= EMU_SHUFFLED; order++) {
        thread_order((enum emu_thread_order)order);
        assert_true(sum_of(1024, 1) == 512.0f * 1025.0f);
        assert_true(sum_of(32, 1) == 16.0f * 33.0f);
    }
}

/* Backwards each thread finds what it needs: one order is not enough. */
static void a_missing_barrier_shows(void **state) {
    (void)state;
    thread_order(EMU_ASC);
    assert_false(sum_of(256, 0) == 128.0f * 257.0f);
    thread_order(EMU_SHUFFLED);
    assert_false(sum_of(256, 0) == 128.0f * 257.0f);
}

static int shuffled_by_hand(int kind, int lane, int arg, int width) {
    int first = lane / width * width, from = lane;
    switch (kind) {
    case K_SHFL:
        from = first + ((arg % width) + width) % width;
        break;
    case K_UP:
        from = lane - arg < first ? lane : lane - arg;
        break;
    case K_DOWN:
        from = lane + arg >= first + width ? lane : lane + arg;
        break;
    default:
        from = (lane ^ arg) >= first + width ? lane : lane ^ arg;
    }
    return from;
}

static void shuffles_move_values_between_lanes(void **state) {
    (void)state;
    int *out = pinned_memory(64 * sizeof *out);
    static const int args[] = {0, 1, 2, 5, 16, 31};
    for (int kind = K_SHFL; kind <= K_XOR; kind++)
        for (int width = 8; width <= 32; width *= 2)
            for (size_t a = 0; a < sizeof args / sizeof args[0]; a++) {
                thread_order(EMU_SHUFFLED);
                k_shuffle(s, kind, out, 64, args[a], width);
                must(cudaStreamSynchronize(s));
                for (int t = 0; t < 64; t++)
                    assert_int_equal(out[t], 100 + t / 32 * 32 +
                                                 shuffled_by_hand(kind, t % 32, args[a], width));
            }
    must(cudaFreeHost(out));
}

static void doubles_are_shuffled_whole(void **state) {
    (void)state;
    double *out = pinned_memory(32 * sizeof *out);
    k_shuffle_double(s, out);
    must(cudaStreamSynchronize(s));
    for (int t = 0; t < 32; t++)
        assert_true(fabs(out[t] - 52.8) < 1e-12);
    must(cudaFreeHost(out));
}

static void votes_count_lanes(void **state) {
    (void)state;
    unsigned *out = pinned_memory(4 * sizeof *out);
    k_vote(s, out);
    must(cudaStreamSynchronize(s));
    assert_int_equal(out[0], 0xaaaaaaaau);
    assert_int_equal(out[1], 1);
    assert_int_equal(out[2], 0);
    assert_int_equal(out[3], 0x000000f0u);
    must(cudaFreeHost(out));
}

static void barriers_count_too(void **state) {
    (void)state;
    int *out = pinned_memory(5 * sizeof *out);
    k_count_or_and(s, out);
    must(cudaStreamSynchronize(s));
    assert_int_equal(out[0], 10);
    assert_int_equal(out[1], 1);
    assert_int_equal(out[2], 0);
    assert_int_equal(out[3], 1);
    assert_int_equal(out[4], 0);
    must(cudaFreeHost(out));
}

static void parts_of_a_warp_may_meet_by_themselves(void **state) {
    (void)state;
    int *out = pinned_memory(32 * sizeof *out);
    k_halves(s, out);
    must(cudaStreamSynchronize(s));
    for (int t = 0; t < 32; t++)
        assert_int_equal(out[t], t < 16 ? 3 : 20);
    must(cudaFreeHost(out));
}

static void a_lane_that_ended_gives_nan(void **state) {
    (void)state;
    float *out = pinned_memory(8 * sizeof *out);
    k_shuffle_from_ended(s, out);
    must(cudaStreamSynchronize(s));
    for (int t = 0; t < 8; t++)
        assert_true(t < 4 ? out[t] == 1.0f : isnan(out[t]) != 0);
    must(cudaFreeHost(out));
}

static void atomics_lose_nothing(void **state) {
    (void)state;
    int *i = pinned_memory(5 * sizeof *i);
    unsigned *u = pinned_memory(4 * sizeof *u);
    unsigned long long *l = pinned_memory(2 * sizeof *l);
    float *f = pinned_memory(sizeof *f);
    double *d = pinned_memory(sizeof *d);
    memset(i, 0, 5 * sizeof *i);
    memset(u, 0, 4 * sizeof *u);
    memset(l, 0, 2 * sizeof *l);
    *f = 0.0f;
    *d = 0.0;
    i[4] = 7;
    u[1] = 0xffffffffu;
    k_atomics(s, i, u, l, f, d);
    must(cudaStreamSynchronize(s));
    assert_int_equal(i[0], 2016);
    assert_int_equal(i[1], -2016);
    assert_int_equal(i[2], 63);
    assert_int_equal(i[3], -63);
    assert_int_equal(i[4], 70);
    assert_int_equal(u[0], 0xffffffffu);
    assert_int_equal(u[1], 0xffffff00u);
    assert_int_equal(u[2], 0);
    assert_int_equal(u[3], 5);
    assert_true(l[0] == 64ull << 40);
    assert_true(l[1] == 63ull << 33);
    assert_true(*f == 32.0f);
    assert_true(*d == 16.0);
    must(cudaFreeHost(i));
    must(cudaFreeHost(u));
    must(cudaFreeHost(l));
    must(cudaFreeHost(f));
    must(cudaFreeHost(d));
}

static void shared_memory_is_nan_in_every_block(void **state) {
    (void)state;
    float *out = pinned_memory(2 * sizeof *out);
    out[0] = out[1] = 0.0f;
    k_fresh(s, out);
    must(cudaStreamSynchronize(s));
    assert_true(isnan(out[0]) && isnan(out[1]));
    must(cudaFreeHost(out));
}

/* Whether what[] is 0, 1, ... n-1, that backwards, or neither; each number once. */
static enum emu_thread_order order_of(const int *what, int n) {
    int up = 0, down = 0;
    unsigned seen[8] = {0};
    for (int i = 0; i < n; i++) {
        up += what[i] == i;
        down += what[i] == n - 1 - i;
        assert_in_range(what[i], 0, n - 1);
        seen[what[i] / 32] |= 1u << (what[i] % 32);
    }
    for (int i = 0; i < n; i++)
        assert_true((seen[i / 32] >> (i % 32) & 1) != 0);
    return up == n ? EMU_ASC : down == n ? EMU_DESC : EMU_SHUFFLED;
}

static void blocks_and_threads_run_in_the_order_that_is_set(void **state) {
    (void)state;
    int *out = pinned_memory(200 * sizeof *out), *counter = pinned_memory(sizeof *counter);
    for (int order = EMU_ASC; order <= EMU_SHUFFLED; order++) {
        thread_order((enum emu_thread_order)order);
        *counter = 0;
        k_order(s, out, counter, 200);
        must(cudaStreamSynchronize(s));
        assert_int_equal(order_of(out, 200), order);
        *counter = 0;
        k_thread_order(s, out, counter, 200);
        must(cudaStreamSynchronize(s));
        assert_int_equal(order_of(out, 200), order);
    }
    must(cudaFreeHost(out));
    must(cudaFreeHost(counter));
}

static void arguments_may_be_structs(void **state) {
    (void)state;
    float *dst = device_memory(100 * sizeof *dst), *host = pinned_memory(100 * sizeof *host);
    k_fill_struct(s, dst, 100, 2.5f);
    must(cudaMemcpyAsync(host, dst, 100 * sizeof *host, cudaMemcpyDefault, s));
    must(cudaStreamSynchronize(s));
    for (int i = 0; i < 100; i++)
        assert_true(host[i] == 2.5f);
    must(cudaFree(dst));
    must(cudaFreeHost(host));
}

static void bf16_is_that_of_the_toolkit(void **state) {
    (void)state;
    float *in = pinned_memory(3 * sizeof *in);
    uint16_t *out = pinned_memory(3 * sizeof *out);
    in[0] = 1.0f;
    in[1] = -3.0f;
    in[2] = 1.0f + 1.0f / 256.0f; /* a tie: to even, 1 */
    k_bf16(s, out, in, 3);
    must(cudaStreamSynchronize(s));
    assert_int_equal(out[0], 0x4000);
    assert_int_equal(out[1], 0xc000);
    assert_int_equal(out[2], 0x4000);
    must(cudaFreeHost(in));
    must(cudaFreeHost(out));
}

static void intrinsics_mean_what_cuda_says(void **state) {
    (void)state;
    static const float expected[] = {0.5f, 1.0f,  31.0f, 8.0f, 4.0f, 3.0f, 1.5f,
                                     2.0f, -1.0f, 5.0f,  1.0f, 2.0f, 1.0f};
    float *out = pinned_memory(sizeof expected);
    k_math(s, out);
    must(cudaStreamSynchronize(s));
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
        assert_true(fabsf(out[i] - expected[i]) < 1e-6f);
    must(cudaFreeHost(out));
}

/* ---- kernels that are wrong ---- */

#ifdef __SANITIZE_ADDRESS__
#define SHARED_FAULT(text) "use-after-poison"
/* The sanitizer's reports end by abort(), as ours do. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "abort_on_error=1"; }
#else
#define SHARED_FAULT(text) text
#endif

struct wrong {
    int what;
    float *p;
};

static void run_wrong(void *arg) {
    const struct wrong *w = arg;
    k_wrong(s, w->what, w->p);
    cudaStreamSynchronize(s);
}

static void wrong_kernels_end_the_program_with_their_place(void **state) {
    (void)state;
    static const struct {
        int what;
        const char *text;
    } cases[] = {
        {W_BARRIER_IN_BRANCH,
         "wrong_kernel, block (0,0,0), thread (0,0,0): threads of a block part"},
        {W_TWO_BARRIERS, "but thread (0,1,0) waits in __syncthreads"},
        {W_ENDED, "but thread (3,0,0) has ended"},
        {W_WARP_PARTS, "threads of a warp part: "},
        {W_WARP_MASK, "leaves out the thread"},
        {W_BEYOND_SHARED, SHARED_FAULT("beyond shared memory fixed")},
        {W_BEFORE_SHARED, SHARED_FAULT("before shared memory that is dynamic")},
        {W_BEYOND_DYNAMIC, "access beyond the block's shared memory"},
        {W_BEYOND_DEVICE, "256 bytes beyond the end of device allocation"},
        {W_DEEP, "too much local memory"},
        {W_TRAP, "__trap"},
        {W_WIDTH, "width 5 is not"},
        {W_STATIC_TOO_LARGE, "more than 48 KiB"},
    };
    struct wrong w = {.p = device_memory(16 * sizeof(float))};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        w.what = cases[i].what;
        dies(run_wrong, &w, cases[i].text);
    }
    must(cudaFree(w.p));
}

struct launch {
    dim3 grid, block;
    size_t dynamic_bytes;
    const void *p;
};

static void run_launch(void *arg) {
    const struct launch *l = arg;
    k_launch(s, l->grid, l->block, l->dynamic_bytes, l->p);
    must(cudaStreamSynchronize(s));
}

static void run_launch_allowed(void *arg) {
    const struct launch *l = arg;
    must(k_allow(l->dynamic_bytes));
    run_launch(arg);
    must(k_allow(232448));
    assert_int_equal(k_allow(232449), cudaErrorInvalidValue);
}

static void launches_beyond_the_limits_end_the_program(void **state) {
    (void)state;
    int local;
    static const dim3 one = {1, 1, 1};
    struct launch ok = {one, one, 49152, NULL}, many = {one, {32, 33, 1}, 0, NULL};
    struct launch deep = {one, {1, 1, 65}, 0, NULL}, none = {{0, 1, 1}, one, 0, NULL};
    struct launch tall = {{1, 65536, 1}, one, 0, NULL}, large = {one, one, 49153, NULL};
    struct launch largest = {one, one, 232448, NULL}, host = {one, one, 0, &local};
    lives(run_launch, &ok);
    lives(run_launch_allowed, &largest);
    dies(run_launch, &many, "empty_kernel: a block of (32,33,1) threads");
    dies(run_launch, &deep, "a block of (1,1,65) threads");
    dies(run_launch, &none, "a grid of (0,1,1) blocks");
    dies(run_launch, &tall, "a grid of (1,65536,1) blocks");
    dies(run_launch, &large, "cudaFuncSetAttribute was not called");
    dies(run_launch, &host, "argument 0");
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int test_emu_blocks(void) {
    static const struct CMUnitTest tests[] = {
        /* first: ThreadSanitizer can't follow a fork once a kernel has run */
        T(wrong_kernels_end_the_program_with_their_place),
        T(launches_beyond_the_limits_end_the_program),
        T(each_element_gets_its_index),
        T(a_tree_in_shared_memory_adds_up_in_any_order),
        T(a_missing_barrier_shows),
        T(shuffles_move_values_between_lanes),
        T(doubles_are_shuffled_whole),
        T(votes_count_lanes),
        T(barriers_count_too),
        T(parts_of_a_warp_may_meet_by_themselves),
        T(a_lane_that_ended_gives_nan),
        T(atomics_lose_nothing),
        T(shared_memory_is_nan_in_every_block),
        T(blocks_and_threads_run_in_the_order_that_is_set),
        T(arguments_may_be_structs),
        T(bf16_is_that_of_the_toolkit),
        T(intrinsics_mean_what_cuda_says),
    };
    return cmocka_run_group_tests_name("blocks", tests, NULL, NULL);
}
