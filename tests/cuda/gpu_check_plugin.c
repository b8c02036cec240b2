/* gpu_check_plugin.c - the plugin is part of the program: what device/plugin_find.c would open is
 * here at once. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "device/cuda/cuda.h"
#include "device/plugin.h"
#include "device/plugin_find.h"
#include "tests/cuda/gpu_check.h"

const struct device_ops *const check_device = &device_cuda;

bool plugin_has(const char *name) { return strcmp(name, device_cuda.name) == 0; }

int plugin_find(const char *name, const struct plugin **out, struct err *err) {
    const struct plugin *p = gatherfs_device_plugin();
    if (!plugin_has(name))
        return err_set(err, ENODEV, "no device '%s' in this program", name);
    int rc = p->probe(err);
    if (rc == 0)
        *out = p;
    return rc;
}

const struct collective_ops *plugin_collectives(const struct device_ops *ops) {
    return ops == &device_cuda ? gatherfs_device_plugin()->collectives : NULL;
}

const char *check_built(void) { return gatherfs_device_plugin()->built; }
bool check_has_nccl(void) { return gatherfs_device_plugin()->collectives != NULL; }

struct count {
    int gpus; /* shared */
};

static int count_body(uint32_t rank, void *arg, struct err *err) {
    struct count *c = arg;
    (void)rank;
    int rc = cuda_probe(err);
    return rc != 0 ? rc : cuda_count(&c->gpus, err);
}

uint32_t check_gpu_count(char *why, size_t cap_bytes) {
    struct count *c = check_shared(sizeof *c);
    struct err err = {0};
    why[0] = '\0';
    if (check_world_all(1, 60, count_body, c, &err) == 0)
        return (uint32_t)c->gpus;
    strncat(why, err.text, cap_bytes - 1);
    return 0;
}

static int print_gpu(int ordinal, struct err *err) {
    struct device_properties p;
    int major = 0, minor = 0, sms = 0;
    int rc = cuda_list((uint32_t)ordinal, &p, err);
    if (rc != 0)
        return rc;
    cudaError_t e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, ordinal);
    if (e != cudaSuccess)
        return cuda_err(err, e, "cudaDeviceGetAttribute");
    printf("GPU %d: %s, %.1f GB, compute capability %d.%d, %d multiprocessors\n", ordinal, p.name,
           (double)p.memory_bytes / 1e9, major, minor, sms);
    return 0;
}

int check_info(struct err *err) {
    int count = 0, driver = 0;
    int rc = cuda_probe(err);
    if (rc == 0)
        rc = cuda_count(&count, err);
    for (int i = 0; i < count && rc == 0; i++)
        rc = print_gpu(i, err);
    if (rc == 0 && cudaDriverGetVersion(&driver) == cudaSuccess)
        printf("driver for CUDA %d.%d; built with %s\n", driver / 1000, driver % 1000 / 10,
               check_built());
    return rc;
}
