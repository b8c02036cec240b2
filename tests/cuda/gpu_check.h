/* gpu_check.h - inside the program of tools/gpu-check: its tests, what they say, and what they
 * share.
 *
 * One process runs one test, so that a test that hangs or breaks the device takes no other with it;
 * the script calls them one after the other, each bounded in time, and makes the tables. What the
 * script reads are lines of words between tabs on stdout:
 *
 *   result  NAME  ok|FAILED|not run  DETAIL       a test can have several
 *   note    TEXT
 *   kernel  NAME  SHAPE  MS  RATE  PERCENT        a row of the table of times
 *   figure  NAME  VALUE  AIM                      a row of the table of figures
 */
#ifndef GFS_TESTS_CUDA_GPU_CHECK_H
#define GFS_TESTS_CUDA_GPU_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "device/device.h"

struct check_options {
    bool quick;          /* shorter */
    bool full;           /* longer */
    bool small;          /* shapes for the emulation, and no figures */
    uint32_t threads;    /* of the reference */
    const char *tmp_dir; /* for what a test writes; exists */
};

struct check_test {
    const char *name;    /* "engine/f32" */
    const char *what;    /* for people */
    const char *only;    /* kernels: prefix of their names */
    const char *offload; /* NULL: none */
    void (*run)(const struct check_test *t, const struct check_options *o);
    unsigned seconds; /* then it hangs */
    unsigned quick_seconds;
    enum dtype dtype;
    uint32_t ranks;
    bool tensor_cores;
    bool bench;     /* makes rows of the tables: it must pass, too */
    bool only_full; /* left out unless everything is wanted */
};

/* The device under test: device_cuda. */
extern const struct device_ops *const check_device;
/* gpu_check_plugin.c: "CUDA 13.0, NCCL 2.27.7, sm_90"; whether NCCL is linked. */
const char *check_built(void);
bool check_has_nccl(void);
/* How many GPUs there are; asked in a process of its own, so that the caller can still fork. 0 and
 * why. */
uint32_t check_gpu_count(char *why, size_t cap_bytes);
/* Prints what the GPUs, the driver and the libraries are, in lines for people; -errno and why there
 * is none. Makes a context on none. */
int check_info(struct err *err);

/* ---- what is said */

void check_passed(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
void check_failed(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
void check_not_run(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
void check_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* limit: the time it must take by the device's properties; 0: unknown. */
void check_kernel_row(const char *name, const char *shape, double ms, const char *rate,
                      double limit_ms);
void check_figure(const char *name, const char *aim, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Whether a test said that it failed. */
bool check_any_failed(void);

double check_now(void); /* seconds, monotonic */
/* Memory that processes forked later share; zeroed. Ends the program where there is none. */
void *check_shared(size_t bytes);
bool check_same_bits(const void *a, const void *b, size_t bytes);
/* splitmix64 (Steele, Lea and Flood, 2014) */
uint64_t check_random(uint64_t *state);

/* ---- ranks as processes (gpu_check_world.c) */

enum { CHECK_MAX_RANKS = 64 };
struct rank_end {
    bool late;  /* it was killed at the deadline */
    int status; /* of waitpid */
    double at;  /* check_now() of its end, as it was seen */
    char text[ERR_TEXT_BYTES];
};
/* What a rank does; *err is told to the caller. */
typedef int rank_body(uint32_t rank, void *arg, struct err *err);

/* Forks ranks, each of which ends after body, and waits for them; kills what is left after
 * `seconds`. ends has CHECK_MAX_RANKS entries. 0 when all ended, however. */
int check_world(uint32_t ranks, double seconds, rank_body *body, void *arg, struct rank_end *ends,
                struct err *err);
/* The same, but where one fails the others are killed, and 0 only when all ended with 0; else the
 * first failure. */
int check_world_all(uint32_t ranks, double seconds, rank_body *body, void *arg, struct err *err);

/* ---- the tests */

void check_instructions(const struct check_test *t, const struct check_options *o);
void check_kernels(const struct check_test *t, const struct check_options *o);
void check_engine_cpu(const struct check_test *t, const struct check_options *o);
void check_engine_repeat(const struct check_test *t, const struct check_options *o);
void check_engine_offload(const struct check_test *t, const struct check_options *o);
void check_ranks_one_gpu(const struct check_test *t, const struct check_options *o);
void check_nccl(const struct check_test *t, const struct check_options *o);
void check_nccl_killed(const struct check_test *t, const struct check_options *o);
void check_takes(const struct check_test *t, const struct check_options *o);
void check_snapshots(const struct check_test *t, const struct check_options *o);
void bench_kernels(const struct check_test *t, const struct check_options *o);
void bench_train(const struct check_test *t, const struct check_options *o);
void bench_read(const struct check_test *t, const struct check_options *o);
void bench_snapshot(const struct check_test *t, const struct check_options *o);

#endif
