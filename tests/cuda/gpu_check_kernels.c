/* gpu_check_kernels.c - the kernel cases, and the instructions of tensor cores, on the device under
 * test. All in this process: a sanitizer follows it. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "tests/cuda/gpu_check.h"
#include "tests/cuda/kernel_cases.h"
#include "tests/cuda/mma_check.h"

enum { OPERATIONS_MAX = 32 };
/* Of products in f32 where TF32 is allowed: 10 bits of each factor are left. */
static const double tf32_limit = 2e-3;

/* The cases of one operation. */
struct operation {
    char name[64];
    size_t run, skipped, failed;
    double error, limit; /* of the case that was nearest to its limit */
    char skipped_why[96];
};

struct operations {
    bool tensor_cores;
    size_t count;
    struct operation list[OPERATIONS_MAX];
};

static struct operation *operation_of(struct operations *all, const char *name) {
    for (size_t i = 0; i < all->count; i++)
        if (strcmp(all->list[i].name, name) == 0)
            return &all->list[i];
    if (all->count == OPERATIONS_MAX)
        return NULL;
    struct operation *o = &all->list[all->count++];
    *o = (struct operation){.limit = 1};
    snprintf(o->name, sizeof o->name, "%s", name);
    return o;
}

/* In f32 with TF32 a product may be further off than the case says: the first thing that is wrong
 * is then its result, and its norm tells how far. */
static bool is_tf32(const struct operations *all, const struct kernel_report *r) {
    return all->tensor_cores && strcmp(r->name, "gemm") == 0 && strncmp(r->shape, "f32", 3) == 0;
}

static bool case_ok(const struct operations *all, const struct kernel_report *r) {
    if (r->ok || !is_tf32(all, r))
        return r->ok;
    bool of_result = strncmp(r->what, "c:", 2) == 0 || strncmp(r->what, "c[", 2) == 0;
    return of_result && r->error > 0 && r->error <= tf32_limit;
}

static void case_report(void *arg, const struct kernel_report *r) {
    struct operations *all = arg;
    struct operation *o = operation_of(all, r->name);
    double limit = is_tf32(all, r) ? tf32_limit : r->limit;
    if (o == NULL)
        return;
    if (r->skipped != NULL) {
        o->skipped++;
        snprintf(o->skipped_why, sizeof o->skipped_why, "%s", r->skipped);
        return;
    }
    o->run++;
    if (limit > 0 && r->error * o->limit >= o->error * limit) {
        o->error = r->error;
        o->limit = limit;
    }
    if (case_ok(all, r))
        return;
    o->failed++;
    if (o->failed <= 5)
        check_note("%s, %s: %s", r->name, r->shape, r->what);
}

static void operation_result(const struct operation *o, bool tensor_cores) {
    char name[96], text[256];
    snprintf(name, sizeof name, "kernels%s/%s", tensor_cores ? "-tc" : "", o->name);
    int n = snprintf(text, sizeof text, "%zu cases", o->run);
    if (o->error > 0)
        n += snprintf(text + n, sizeof text - (size_t)n, ", worst error %.1e of %.0e", o->error,
                      o->limit);
    if (o->skipped > 0)
        snprintf(text + n, sizeof text - (size_t)n, "; %zu not run: %s", o->skipped,
                 o->skipped_why);
    if (o->failed > 0)
        check_failed(name, "%zu of %s", o->failed, text);
    else
        check_passed(name, "%s", text);
}

static int cases_run(const struct check_test *t, const struct check_options *o,
                     struct operations *all, struct err *err) {
    struct device_args reference = {.threads = o->threads};
    struct device_args tested = {.threads = 1, .tensor_cores = t->tensor_cores};
    struct kernel_cases k = {.reference_ops = &device_cpu,
                             .ops = check_device,
                             .only = t->only,
                             .large = !o->small,
                             .report = case_report,
                             .arg = all};
    size_t run, failed;
    int rc = device_cpu.open(&reference, &k.reference, err);
    if (rc != 0)
        return rc;
    rc = check_device->open(&tested, &k.device, err);
    if (rc == 0) {
        rc = kernel_cases_run(&k, &run, &failed);
        if (rc != 0)
            device_failed(check_device, k.device, rc, err, "the memory of the cases");
        check_device->close(k.device);
    }
    device_cpu.close(k.reference);
    return rc;
}

void check_kernels(const struct check_test *t, const struct check_options *o) {
    struct operations all = {.tensor_cores = t->tensor_cores};
    struct err err = {0};
    if (cases_run(t, o, &all, &err) != 0) {
        check_failed(t->name, "%s", err.text);
        return;
    }
    for (size_t i = 0; i < all.count; i++)
        operation_result(&all.list[i], t->tensor_cores);
    if (all.count == 0)
        check_failed(t->name, "no kernel is called %s...", t->only);
}

void check_instructions(const struct check_test *t, const struct check_options *o) {
    char why[160] = "";
    (void)o;
    if (mma_check_run(why, sizeof why) == 0)
        check_passed(t->name, "mma, ldmatrix, cp.async, ex2 as the PTX ISA has them");
    else
        check_failed(t->name, "%s", why);
}
