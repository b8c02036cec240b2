/* properties.c - what a GPU is: its name, its memory, and the most it could do in a second. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "device/cuda/cuda.h"

/* Operations of dense products that one multiprocessor does in a clock, a multiply and an add being
 * two. clock_khz: the clock of the published peak, where the chip's greatest is higher than what it
 * sustains with its tensor cores busy. From NVIDIA's white papers on the architectures (A100,
 * GA102, Ada, H100) and the data sheets of A100, A40, L40S, H100, H200 and HGX B200, halves of the
 * peaks with sparsity; test_host.c compares them. */
static const struct {
    int arch;
    int f32, tf32, bf16; /* a multiprocessor, a clock */
    int clock_khz;       /* 0: its greatest */
} peaks[] = {
    {80, 128, 1024, 2048, 0},       {86, 256, 512, 1024, 0},         {89, 256, 512, 1024, 0},
    {90, 256, 2048, 4096, 1830000}, {100, 256, 4096, 8192, 1850000},
};

void cuda_peaks(const char *name, int arch, int sm_count, int clock_khz, bool tensor_cores,
                double out[DTYPE_COUNT]) {
    for (size_t i = 0; i < sizeof(peaks) / sizeof(peaks[0]); i++) {
        if (peaks[i].arch != arch)
            continue;
        double hz = 1e3 * clock_khz, tensor_hz = hz;
        if (peaks[i].clock_khz != 0 && peaks[i].clock_khz < clock_khz)
            tensor_hz = 1e3 * peaks[i].clock_khz;
        if (strstr(name, "GeForce") != NULL) /* half, where the sum is in f32 */
            tensor_hz /= 2;
        out[DTYPE_F32] = sm_count * (tensor_cores ? peaks[i].tf32 * tensor_hz : peaks[i].f32 * hz);
        out[DTYPE_BF16] = sm_count * (peaks[i].bf16 * tensor_hz);
    }
}

/* As nvidia-smi prints it, without the "GPU-". */
static void set_id(const cudaUUID_t *uuid, char *out, size_t cap_bytes) {
    size_t n = 0;
    for (size_t i = 0; i < sizeof(uuid->bytes) && n < cap_bytes; i++)
        n += (size_t)snprintf(out + n, cap_bytes - n, "%s%02x",
                              i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                              (unsigned)(unsigned char)uuid->bytes[i]);
}

int cuda_list(uint32_t index, struct device_properties *out, struct err *err) {
    struct cudaDeviceProp prop;
    struct device_properties p = {0};
    int count;
    int rc = cuda_count(&count, err);
    if (rc != 0)
        return rc;
    if (index >= (uint32_t)count)
        return err_set(err, ENOENT, "GPU %u: there are %d", index, count);
    cudaError_t e = cudaGetDeviceProperties(&prop, (int)index);
    if (e != cudaSuccess)
        return cuda_err(err, e, "cudaGetDeviceProperties");
    snprintf(p.name, sizeof(p.name), "%.*s", (int)sizeof(p.name) - 1, prop.name);
    set_id(&prop.uuid, p.id, sizeof(p.id));
    p.memory_bytes = prop.totalGlobalMem;
    *out = p;
    return 0;
}

int cuda_properties(struct device *d, struct device_properties *out) {
    struct cudaDeviceProp prop;
    struct device_properties p = {0};
    size_t free_bytes, total_bytes;
    int clock_khz = 0, memory_khz = 0, bus_bits = 0;
    int rc = cuda_enter(d);
    if (rc == 0)
        rc = cuda_check(d, cudaGetDeviceProperties(&prop, d->ordinal), "cudaGetDeviceProperties");
    if (rc == 0)
        rc = cuda_check(d, cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
    if (rc == 0)
        rc = cuda_check(d, cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, d->ordinal),
                        "cudaDeviceGetAttribute");
    if (rc == 0)
        rc = cuda_check(d,
                        cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, d->ordinal),
                        "cudaDeviceGetAttribute");
    if (rc == 0)
        rc = cuda_check(
            d, cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, d->ordinal),
            "cudaDeviceGetAttribute");
    if (rc != 0)
        return rc;
    snprintf(p.name, sizeof(p.name), "%.*s", (int)sizeof(p.name) - 1, prop.name);
    set_id(&prop.uuid, p.id, sizeof(p.id));
    p.memory_bytes = total_bytes;
    p.memory_free_bytes = free_bytes;
    p.bandwidth = 2e3 * memory_khz * bus_bits / 8; /* two transfers a clock */
    cuda_peaks(p.name, d->arch, d->sm_count, clock_khz, d->tensor_cores, p.flops);
    *out = p;
    return 0;
}
