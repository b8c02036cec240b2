/* trainer_driver.c - runs the trainer without supervisor and mount, for tests and for measuring.
 *
 *   LAUNCHER -n N trainer_driver [--dump DIR] [--memory] ranks=N KNOB=VALUE...
 *   trainer_driver --compare DIR_A DIR_B
 *
 * Prints a line a step: "step 1 loss 5.5 norm 1.2 clip 0.8 lr 0.001 ms 12.3 cpu 11.9" (cpu: the
 * milliseconds that the process of rank 0 computed). --dump writes each array to DIR/ARRAY.f32, all
 * tensors in the model's order, each rank its own elements; --compare prints for each array the
 * norm of the difference over the norm. --memory prints what the ranks hold. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/knobs.h"
#include "base/log.h"
#include "comm/comm.h"
#include "engine/arrays.h"
#include "engine/data.h"
#include "engine/trainer.h"
#include "model/model.h"
#include "shard/wrap.h"

enum { LAST_WORDS_US = 300000 };

struct driver {
    struct config config;
    const char *dump_dir;
    bool memory;
    uint64_t base_bytes; /* resident before the trainer was opened */
    uint32_t rank, world_size;
    struct model *model;
    struct layout layout;
    struct data *data;
    struct arrays *arrays;
    const struct device_ops *device;
    const struct comm_ops *comm_ops;
    struct trainer *trainer;
};

static double now_ms(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* A line "NAME: N kB" of a file of /proc, in bytes. */
static uint64_t proc_bytes(const char *path, const char *name) {
    char line[256];
    unsigned long long kib = 0;
    size_t len = strlen(name);
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return 0;
    while (fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, name, len) == 0 && line[len] == ':')
            kib = strtoull(line + len + 1, NULL, 10);
    fclose(f);
    return kib * 1024;
}

static int driver_options(struct driver *d, int argc, char **argv, struct err *err) {
    config_defaults(&d->config);
    for (int i = 1; i < argc; i++) {
        char *equals = strchr(argv[i], '=');
        if (strcmp(argv[i], "--memory") == 0) {
            d->memory = true;
            continue;
        }
        if (strcmp(argv[i], "--dump") == 0 && i + 1 < argc) {
            d->dump_dir = argv[++i];
            continue;
        }
        if (equals == NULL)
            return err_set(err, EINVAL, "%s: expected KNOB=VALUE", argv[i]);
        *equals = '\0';
        const struct knob *k = knob_find(argv[i]);
        if (k == NULL)
            return err_set(err, EINVAL, "there is no knob %s", argv[i]);
        int rc = config_set(&d->config, k, equals + 1, err);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int driver_model(struct driver *d, struct err *err) {
    char *text = NULL;
    int rc = model_config_text(d->config.model, &text, err);
    if (rc == 0)
        rc = model_open(text, &d->model, err);
    free(text);
    if (rc != 0)
        return rc;
    uint32_t count = model_tensor_count(d->model);
    struct tensor_spec *specs = calloc(count, sizeof *specs);
    if (specs == NULL)
        return err_set(err, ENOMEM, "no memory");
    for (uint32_t i = 0; i < count; i++)
        specs[i] = model_tensors(d->model)[i].spec;
    rc = wrap_layout(d->config.wrap, specs, count, model_modules(d->model),
                     model_module_count(d->model), d->world_size, &d->layout, err);
    free(specs);
    return rc;
}

static int driver_open(struct driver *d, struct err *err) {
    int rc = comm_world_init((uint32_t)d->config.ranks, &d->rank, &d->world_size, err);
    if (rc == 0)
        rc = driver_model(d, err);
    if (rc != 0)
        return rc;
    if (d->config.seq_len == 0)
        d->config.seq_len = model_context(d->model);
    rc = data_open(d->config.data, d->config.seq_len, model_vocab(d->model), d->config.seed,
                   &d->data, err);
    if (rc == 0)
        rc = device_find(d->config.device, &d->device, NULL, 0, err);
    uint32_t local_rank = 0, local_size = 1;
    if (rc == 0)
        rc = comm_world_local(&local_rank, &local_size, err);
    if (rc == 0)
        rc = arrays_open(&d->layout, d->rank, &d->arrays, err);
    if (rc != 0)
        return rc;
    struct trainer_args args = {
        .config = &d->config,
        .model = d->model,
        .layout = &d->layout,
        .rank = d->rank,
        .world_size = d->world_size,
        .local_rank = local_rank,
        .local_size = local_size,
        .ops = d->device,
        .data = d->data,
        .arrays = d->arrays,
    };
    d->base_bytes = proc_bytes("/proc/self/smaps_rollup", "Pss");
    rc = trainer_open(&args, &d->trainer, err);
    if (rc == 0)
        d->comm_ops = trainer_comm_ops(d->trainer);
    return rc;
}

static void driver_close(struct driver *d) {
    trainer_close(d->trainer);
    arrays_close(d->arrays);
    data_close(d->data);
    layout_free(&d->layout);
    model_close(d->model);
}

static int driver_barrier(struct driver *d, struct err *err) {
    int rc = d->comm_ops->barrier(trainer_comm(d->trainer));
    return rc == 0 ? 0 : err_set(err, -rc, "barrier: %s", strerror(-rc));
}

static int driver_steps(struct driver *d, struct err *err) {
    uint64_t micro, seq_len, micro_count;
    int rc = trainer_init(d->trainer, 1, err);
    if (rc == 0)
        rc = driver_barrier(d, err);
    trainer_microbatch(d->trainer, &micro, &seq_len, &micro_count);
    if (rc == 0 && d->rank == 0)
        printf("# comm %s, %u units, %llu microbatches of %llu x %llu tokens\n", d->comm_ops->name,
               d->layout.unit_count, (unsigned long long)micro_count, (unsigned long long)micro,
               (unsigned long long)seq_len);
    for (uint64_t step = 0; step < d->config.steps && rc == 0; step++) {
        struct step_result r;
        double start = now_ms(CLOCK_MONOTONIC), cpu_start = now_ms(CLOCK_PROCESS_CPUTIME_ID);
        rc = trainer_step(d->trainer, step, step + 2, &d->config, &r, err);
        if (rc == 0)
            rc = driver_barrier(d, err);
        if (rc == 0 && d->rank == 0)
            printf("step %llu loss %.9g norm %.9g clip %.9g lr %.9g ms %.1f cpu %.1f%s\n",
                   (unsigned long long)step + 1, r.loss, r.grad_norm, r.clip_factor, r.lr,
                   now_ms(CLOCK_MONOTONIC) - start, now_ms(CLOCK_PROCESS_CPUTIME_ID) - cpu_start,
                   r.skipped ? " skipped" : "");
        fflush(stdout);
    }
    return rc;
}

/* ---- dump and compare */

/* [lo, hi) of this rank's shard, as a reader gets it, wherever it rests. */
static int shard_read(struct driver *d, enum array a, uint32_t unit, uint64_t lo, uint64_t hi,
                      float *dst) {
    struct hold h = {.array = a, .unit = unit, .lo = lo, .hi = hi, .dst = (uint8_t *)dst};
    if (arrays_take(d->arrays, &h))
        return h.result == HOLD_COPIED ? 0 : -EIO;
    while (arrays_next_done(d->arrays) == NULL)
        (void)arrays_serve(d->arrays);
    return h.result == HOLD_COPIED ? 0 : -EIO;
}

static int dump_piece(struct driver *d, enum array a, uint32_t tensor, int fd,
                      uint64_t tensor_base) {
    struct layout_piece p = layout_tensor_piece(&d->layout, tensor, d->rank);
    size_t bytes = p.elems * sizeof(float);
    off_t at = (off_t)((tensor_base + p.tensor_offset_elems) * sizeof(float));
    float *data = malloc(bytes + 1);
    if (data == NULL)
        return -ENOMEM;
    int rc = p.elems == 0 ? 0
                          : shard_read(d, a, d->layout.tensors[tensor].unit, p.shard_offset_elems,
                                       p.shard_offset_elems + p.elems, data);
    if (rc == 0 && p.elems > 0 && pwrite(fd, data, bytes, at) != (ssize_t)bytes)
        rc = -EIO;
    free(data);
    return rc;
}

static int dump_array(struct driver *d, enum array a, struct err *err) {
    char path[1024];
    uint64_t tensor_base = 0;
    int rc = file_path(path, sizeof path, "%s/%s.f32", d->dump_dir, array_names[a]);
    int fd = rc == 0 ? open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (fd < 0)
        return err_set(err, errno, "%s: %s", path, strerror(errno));
    for (uint32_t i = 0; i < d->layout.tensor_count && rc == 0; i++) {
        rc = dump_piece(d, a, i, fd, tensor_base);
        if (rc != 0)
            rc = err_set(err, -rc, "%s: %s", path, strerror(-rc));
        tensor_base += d->layout.tensors[i].numel;
    }
    close(fd);
    return rc;
}

static int driver_dump(struct driver *d, struct err *err) {
    int rc = 0;
    for (enum array a = ARRAY_PARAMS; a < ARRAY_COUNT && rc == 0; a++)
        rc = dump_array(d, a, err);
    return rc == 0 ? driver_barrier(d, err) : rc;
}

static int compare_array(const char *dir_a, const char *dir_b, enum array a, struct err *err) {
    char path[1024];
    char *data[2] = {NULL, NULL};
    size_t bytes[2] = {0, 0};
    const char *const dirs[2] = {dir_a, dir_b};
    int rc = 0;
    for (int i = 0; i < 2 && rc == 0; i++) {
        rc = file_path(path, sizeof path, "%s/%s.f32", dirs[i], array_names[a]);
        if (rc == 0)
            rc = file_read(path, (size_t)1 << 33, &data[i], &bytes[i], err);
    }
    if (rc == 0 && bytes[0] != bytes[1])
        rc = err_set(err, EINVAL, "%s: %zu and %zu bytes", array_names[a], bytes[0], bytes[1]);
    double difference = 0, norm = 0;
    for (size_t i = 0; i < bytes[0] / sizeof(float) && rc == 0; i++) {
        float x, y;
        memcpy(&x, data[0] + i * sizeof x, sizeof x);
        memcpy(&y, data[1] + i * sizeof y, sizeof y);
        difference += ((double)x - y) * ((double)x - y);
        norm += (double)x * x;
    }
    if (rc == 0)
        printf("%s %zu %.3g\n", array_names[a], bytes[0] / sizeof(float), sqrt(difference / norm));
    free(data[0]);
    free(data[1]);
    return rc;
}

/* ---- memory */

/* What the trainer of all ranks should need: 16 bytes a parameter, on each rank the root and two
 * others gathered with their gradients, and activations. */
static uint64_t memory_expected(const struct driver *d) {
    uint64_t micro, seq_len, micro_count, largest = 0;
    for (uint32_t u = 1; u < d->layout.unit_count; u++)
        if (largest < d->layout.units[u].numel)
            largest = d->layout.units[u].numel;
    uint64_t gathered = d->layout.units[0].numel + largest * (d->layout.unit_count > 2 ? 2 : 1);
    trainer_microbatch(d->trainer, &micro, &seq_len, &micro_count);
    uint64_t arena = model_arena_bytes(d->model, d->device, trainer_device(d->trainer), DTYPE_F32,
                                       micro, seq_len);
    return 16 * layout_numel(&d->layout) + d->world_size * (2 * 4 * gathered + arena);
}

static int driver_memory(struct driver *d, struct err *err) {
    uint64_t pss = proc_bytes("/proc/self/smaps_rollup", "Pss");
    uint64_t sums[2] = {pss, d->base_bytes};
    uint64_t largest = proc_bytes("/proc/self/status", "RssAnon");
    struct comm *c = trainer_comm(d->trainer);
    int rc = d->comm_ops->all_reduce_u64(c, sums, 2, COMM_SUM);
    if (rc == 0)
        rc = d->comm_ops->all_reduce_u64(c, &largest, 1, COMM_MAX);
    if (rc != 0)
        return err_set(err, -rc, "all_reduce: %s", strerror(-rc));
    uint64_t state = 16 * layout_numel(&d->layout);
    if (d->rank == 0)
        printf("memory pss %llu before %llu expected %llu largest %llu state %llu\n",
               (unsigned long long)sums[0], (unsigned long long)sums[1],
               (unsigned long long)memory_expected(d), (unsigned long long)largest,
               (unsigned long long)state);
    return 0;
}

static int driver_run(struct driver *d, struct err *err) {
    int rc = driver_open(d, err);
    if (rc == 0)
        rc = driver_steps(d, err);
    if (rc == 0 && d->memory)
        rc = driver_memory(d, err);
    if (rc == 0 && d->dump_dir != NULL)
        rc = driver_dump(d, err);
    return rc;
}

static int compare(const char *dir_a, const char *dir_b) {
    struct err err = {0};
    for (enum array a = ARRAY_PARAMS; a < ARRAY_COUNT; a++)
        if (compare_array(dir_a, dir_b, a, &err) != 0) {
            fprintf(stderr, "trainer_driver: %s\n", err.text);
            return 1;
        }
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "--compare") == 0)
        return compare(argv[2], argv[3]);
    struct driver d = {0};
    struct err err = {0};
    log_open("driver", LEVEL_WARN);
    int rc = driver_options(&d, argc, argv, &err);
    if (rc == 0)
        rc = driver_run(&d, &err);
    if (rc != 0) {
        fprintf(stderr, "trainer_driver: rank %u: %s\n", d.rank, err.text);
        usleep(
            LAST_WORDS_US); /* a launcher that ends the world may drop what it has not read yet */
        comm_world_abort(1);
    }
    driver_close(&d);
    comm_world_finalize();
    return 0;
}
