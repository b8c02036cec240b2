/* properties.c - what a GPU is: its name, its memory, and the most it could do in a second. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "device/cuda/cuda.h"

/* Operations of dense products that one multiprocessor does in a clock, a multiply and an add being
 * two. clock_khz: the clock of the published peak, where the greatest clock of the chip is higher
 * than it sustains with its tensor cores busy. Checked against the published peaks:
 *
 *   8.0  A100 SXM    108 SM, 1410 MHz: f32 19.5, tf32 156, bf16 312 TFLOP/s
 *        (NVIDIA A100 Tensor Core GPU Architecture, table 4)
 *   8.6  A40          84 SM, 1740 MHz: f32 37.4, tf32 74.8, bf16 149.7 (A40 data sheet); GeForce
 *        cards of the chip do half of it by tensor cores (NVIDIA Ampere GA102 Architecture)
 *   8.9  L40S        142 SM, 2520 MHz: f32 91.6, tf32 183, bf16 362 (L40S data sheet); GeForce as
 *        above (NVIDIA Ada GPU Architecture)
 *   9.0  H100 and H200 SXM 132 SM, 1830 MHz: tf32 494.7, bf16 989.4; f32 67 at 1980 MHz
 *        (NVIDIA H100 Tensor Core GPU Architecture, data sheets of both, halves of the sparse
 * peaks) 10.0  B200        148 SM, 1850 MHz: tf32 1125, bf16 2250; f32 75 (HGX B200 data sheet, an
 * eighth)
 */
static const struct {
    int arch;
    int f32, tf32, bf16; /* a multiprocessor, a clock */
    int clock_khz;       /* 0: its greatest */
} peaks[] = {
    {80, 128, 1024, 2048, 0}, {86, 256, 512, 1024, 0},        {87, 256, 512, 1024, 0},
    {89, 256, 512, 1024, 0},  {90, 256, 2048, 4096, 1830000}, {100, 256, 4096, 8192, 1850000},
};

static void set_peaks(const struct device *d, int clock_khz, struct device_properties *p) {
    for (size_t i = 0; i < sizeof(peaks) / sizeof(peaks[0]); i++) {
        if (peaks[i].arch != d->arch)
            continue;
        double hz = 1e3 * clock_khz, tensor_hz = hz;
        if (peaks[i].clock_khz != 0 && peaks[i].clock_khz < clock_khz)
            tensor_hz = 1e3 * peaks[i].clock_khz;
        if (strstr(p->name, "GeForce") != NULL)
            tensor_hz /= 2;
        p->flops[DTYPE_F32] =
            d->sm_count * (d->tensor_cores ? peaks[i].tf32 * tensor_hz : peaks[i].f32 * hz);
        p->flops[DTYPE_BF16] = d->sm_count * (peaks[i].bf16 * tensor_hz);
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
    p.bandwidth = 2e3 * memory_khz * (bus_bits / 8); /* two transfers a clock */
    set_peaks(d, clock_khz, &p);
    *out = p;
    return 0;
}
