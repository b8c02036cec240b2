/* gpu_check.c - one test of a GPU, by name; see gpu_check.h. tools/gpu-check builds and calls it.
 *
 *   gpu_check --list [--quick] [--full]       NAME SECONDS KIND WHAT, between tabs
 *   gpu_check --info                          GPUs, driver, libraries
 *   gpu_check --test NAME --tmp DIR [--quick] [--full] [--small]
 *
 * Exit status: 0 if the test passed or was not run, 1 if it failed, 2 if it can't be understood. */
#include "config.h"

#include "tests/cuda/gpu_check.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/log.h"
#include "device/cpu/cpu.h"

/* Seconds: in all, and with --quick. */
#define TEST(name_, what_, seconds_, quick_, ...)                                                  \
    {                                                                                              \
        .name = (name_), .what = (what_), .seconds = (seconds_), .quick_seconds = (quick_),        \
        __VA_ARGS__                                                                                \
    }
#define KERNELS(name_, prefix)                                                                     \
    TEST(name_, "kernels against the CPU", 240, 90, .run = check_kernels, .only = (prefix))
#define BF16 .dtype = DTYPE_BF16

static const struct check_test tests[] = {
    TEST("instructions", "instructions of tensor cores", 60, 60, .run = check_instructions),
    KERNELS("kernels/fill", "fill"),
    KERNELS("kernels/cast", "cast"),
    KERNELS("kernels/add", "add"),
    KERNELS("kernels/copy", "copy"),
    KERNELS("kernels/gemm", "gemm"),
    KERNELS("kernels/embed", "embed_"),
    KERNELS("kernels/layernorm", "layernorm_"),
    KERNELS("kernels/residual", "residual_"),
    KERNELS("kernels/bias", "bias_"),
    KERNELS("kernels/gelu", "gelu_"),
    KERNELS("kernels/attention", "attention_"),
    KERNELS("kernels/softmax", "softmax_"),
    KERNELS("kernels/sum", "sum"),
    KERNELS("kernels/adamw", "adamw"),
    KERNELS("kernels/init_normal", "init_normal"),
    TEST("kernels-tc/gemm", "the same by tensor cores", 240, 90, .run = check_kernels,
         .only = "gemm", .tensor_cores = true),
    TEST("kernels-tc/attention", "the same by tensor cores", 240, 90, .run = check_kernels,
         .only = "attention_", .tensor_cores = true),

    TEST("engine/f32", "training in f32, against the CPU", 180, 90, .run = check_engine_cpu),
    TEST("engine/bf16", "training in bf16, against the CPU in f32", 180, 90,
         .run = check_engine_cpu, BF16),
    TEST("engine/bf16-tc", "the same by tensor cores", 180, 90, .run = check_engine_cpu, BF16,
         .tensor_cores = true),
    TEST("engine/repeat-f32", "training twice, f32: the same bits", 120, 60,
         .run = check_engine_repeat),
    TEST("engine/repeat-bf16-tc", "training twice, bf16, tensor cores: the same bits", 120, 60,
         .run = check_engine_repeat, BF16, .tensor_cores = true),
    TEST("engine/offload-host", "moments in host memory: the same bits", 120, 60,
         .run = check_engine_offload, .offload = "host"),
    TEST("engine/offload-host-bf16", "moments and masters in host memory: the same bits", 120, 60,
         .run = check_engine_offload, BF16, .offload = "host"),
    TEST("engine/offload-file", "moments in a file: the same bits", 120, 60,
         .run = check_engine_offload, .offload = "file"),

    TEST("ranks/2", "2 ranks on one GPU, f32, against one", 180, 60, .run = check_ranks_one_gpu,
         .ranks = 2),
    TEST("ranks/3", "3 ranks on one GPU, f32, against one", 180, 60, .run = check_ranks_one_gpu,
         .ranks = 3),
    TEST("ranks/2-bf16", "2 ranks on one GPU, bf16, against one", 180, 60,
         .run = check_ranks_one_gpu, BF16, .ranks = 2),
    TEST("nccl/f32", "all GPUs by NCCL, f32, against the CPU", 300, 150, .run = check_nccl),
    TEST("nccl/bf16", "all GPUs by NCCL, bf16, against the CPU in f32", 300, 150, .run = check_nccl,
         BF16),
    TEST("nccl/killed", "a peer is killed: the others end within the timeout", 300, 150,
         .run = check_nccl_killed),

    TEST("takes/f32", "a reader all the time: copies of one version, the same losses", 180, 90,
         .run = check_takes),
    TEST("takes/bf16", "the same in bf16", 180, 90, .run = check_takes, BF16),
    TEST("takes/offload", "the same with moments in host memory", 180, 90, .run = check_takes,
         .offload = "host"),
    TEST("snapshots/f32", "snapshots while training: whole, of their step, the same losses", 180,
         90, .run = check_snapshots),
    TEST("snapshots/bf16", "the same in bf16", 180, 90, .run = check_snapshots, BF16),

    TEST("bench/kernels-f32", "times of kernels, f32", 180, 60, .run = bench_kernels,
         .bench = true),
    TEST("bench/kernels-tf32", "times of products in TF32", 120, 60, .run = bench_kernels,
         .tensor_cores = true, .bench = true),
    TEST("bench/kernels-bf16", "times of kernels, bf16", 180, 60, .run = bench_kernels, BF16,
         .bench = true),
    TEST("bench/kernels-bf16-tc", "times of kernels by tensor cores, bf16", 120, 60,
         .run = bench_kernels, BF16, .tensor_cores = true, .bench = true),
    TEST("bench/train-bf16", "GPT-2 124M end to end, bf16", 120, 60, .run = bench_train, BF16,
         .bench = true),
    TEST("bench/train-bf16-tc", "the same by tensor cores", 120, 60, .run = bench_train, BF16,
         .tensor_cores = true, .bench = true),
    TEST("bench/train-f32", "GPT-2 124M end to end, f32", 180, 90, .run = bench_train,
         .bench = true, .only_full = true),
    TEST("bench/train-tf32", "GPT-2 124M end to end, f32 with TF32", 180, 90, .run = bench_train,
         .tensor_cores = true, .bench = true, .only_full = true),
    TEST("bench/read", "reading all parameters while GPT-2 124M trains", 120, 60, .run = bench_read,
         BF16, .tensor_cores = true, .bench = true),
    TEST("bench/snapshot", "what a snapshot costs GPT-2 124M", 120, 60, .run = bench_snapshot, BF16,
         .tensor_cores = true, .bench = true),
};
enum { TESTS = sizeof tests / sizeof *tests };

/* ---- what is said */

static bool failed;

static void say(const char *kind, const char *name, const char *how, const char *format,
                va_list args) __attribute__((format(printf, 4, 0)));
static void say(const char *kind, const char *name, const char *how, const char *format,
                va_list args) {
    char text[512];
    vsnprintf(text, sizeof text, format, args);
    for (char *p = text; *p != '\0'; p++)
        if (*p == '\t' || *p == '\n')
            *p = ' ';
    printf("%s", kind);
    if (name != NULL)
        printf("\t%s", name);
    if (how != NULL)
        printf("\t%s", how);
    printf("\t%s\n", text);
    (void)fflush(stdout);
}

void check_passed(const char *name, const char *format, ...) {
    va_list args;
    va_start(args, format);
    say("result", name, "ok", format, args);
    va_end(args);
}

void check_failed(const char *name, const char *format, ...) {
    va_list args;
    va_start(args, format);
    say("result", name, "FAILED", format, args);
    va_end(args);
    failed = true;
}

void check_not_run(const char *name, const char *format, ...) {
    va_list args;
    va_start(args, format);
    say("result", name, "not run", format, args);
    va_end(args);
}

void check_note(const char *format, ...) {
    va_list args;
    va_start(args, format);
    say("note", NULL, NULL, format, args);
    va_end(args);
}

void check_kernel_row(const char *name, const char *shape, double ms, const char *rate,
                      double limit_ms) {
    char percent[16] = "-";
    if (limit_ms > 0)
        snprintf(percent, sizeof percent, "%.0f %%", 100 * limit_ms / ms);
    printf("kernel\t%s\t%s\t%.4f\t%s\t%s\n", name, shape, ms, rate, percent);
    (void)fflush(stdout);
}

void check_figure(const char *name, const char *aim, const char *format, ...) {
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    printf("figure\t%s\t%s\t%s\n", name, text, aim);
    (void)fflush(stdout);
}

bool check_any_failed(void) { return failed; }

/* ---- what tests share */

double check_now(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void *check_shared(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        check_failed("memory", "no %zu bytes of memory", bytes);
        exit(1);
    }
    return p;
}

bool check_same_bits(const void *a, const void *b, size_t bytes) {
    return memcmp(a, b, bytes) == 0;
}

uint64_t check_random(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* ---- the command line */

static void list(const struct check_options *o) {
    for (size_t i = 0; i < TESTS; i++) {
        const struct check_test *t = &tests[i];
        if (t->only_full && !o->full)
            continue;
        printf("%s\t%u\t%s\t%s\n", t->name, o->quick ? t->quick_seconds : t->seconds,
               t->bench ? "bench" : "test", t->what);
    }
}

static int run_test(const char *name, const struct check_options *o) {
    for (size_t i = 0; i < TESTS; i++)
        if (strcmp(tests[i].name, name) == 0) {
            tests[i].run(&tests[i], o);
            return failed ? 1 : 0;
        }
    fprintf(stderr, "gpu_check: there is no test %s\n", name);
    return 2;
}

static uint32_t cores(void) {
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n > 16 ? 16 : (uint32_t)n;
}

static int info(void) {
    struct err err = {0};
    if (check_info(&err) == 0) {
        printf("the reference's products are by %s\n",
               cpu_blas_there() ? "OpenBLAS" : "plain loops");
        return 0;
    }
    fprintf(stderr, "gpu_check: %s\n", err.text);
    return 1;
}

int main(int argc, char **argv) {
    struct check_options o = {.tmp_dir = "/tmp", .threads = cores()};
    const char *name = NULL, *what = NULL;
    log_open("gpu_check", LEVEL_WARN);
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (strcmp(a, "--quick") == 0)
            o.quick = true;
        else if (strcmp(a, "--full") == 0)
            o.full = true;
        else if (strcmp(a, "--small") == 0)
            o.small = true;
        else if (strcmp(a, "--tmp") == 0 && i + 1 < argc)
            o.tmp_dir = argv[++i];
        else if (strcmp(a, "--test") == 0 && i + 1 < argc)
            what = a, name = argv[++i];
        else if (strcmp(a, "--list") == 0 || strcmp(a, "--info") == 0)
            what = a;
        else {
            fprintf(stderr, "gpu_check: %s: not understood\n", a);
            return 2;
        }
    }
    if (what == NULL || strcmp(what, "--info") == 0)
        return info();
    if (name != NULL)
        return run_test(name, &o);
    list(&o);
    return 0;
}
