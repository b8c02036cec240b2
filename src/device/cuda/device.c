/* device.c - opening a GPU: which one, whether it can be used, and why not. */
#include "config.h"

#include <errno.h>
#include <stdlib.h>

#include "device/cuda/cuda.h"

/* What cudaSetDevice was last told in this thread. Nothing else in the process calls it, but for
 * libraries that put it back. */
static _Thread_local int current = -1;

int cuda_enter(struct device *d) {
    if (current == d->ordinal)
        return 0;
    int rc = cuda_check(d, cudaSetDevice(d->ordinal), "cudaSetDevice(%d)", d->ordinal);
    if (rc == 0)
        current = d->ordinal;
    return rc;
}

int cuda_count(int *out, struct err *err) {
    int n = 0; /* cudaGetDeviceCount leaves it as it is where it fails */
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e == cudaErrorInsufficientDriver) {
        int driver = 0;
        if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
            return err_set(err, ENODEV,
                           "cudaGetDeviceCount: no NVIDIA driver is loaded (%s); see if nvidia-smi "
                           "works here",
                           cudaGetErrorName(e));
        return err_set(err, ENODEV,
                       "cudaGetDeviceCount: the driver knows CUDA %d.%d and this build needs %d.%d "
                       "(%s); install a newer NVIDIA driver",
                       driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                       CUDART_VERSION % 1000 / 10, cudaGetErrorName(e));
    }
    if (e != cudaSuccess) {
        struct err cause = {0};
        cuda_err(&cause, e, "cudaGetDeviceCount");
        return err_set(err, ENODEV, "%s", cause.text);
    }
    if (n < 1)
        return err_set(err, ENODEV,
                       "cudaGetDeviceCount: no GPU; see nvidia-smi and CUDA_VISIBLE_DEVICES");
    *out = n;
    return 0;
}

static int arch_of(int ordinal, int *out, struct err *err) {
    int major = 0, minor = 0;
    cudaError_t e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal);
    if (e != cudaSuccess)
        return cuda_err(err, e, "cudaDeviceGetAttribute");
    *out = major * 10 + minor;
    if (*out < CUDA_LEAST_ARCH)
        return err_set(err, ENODEV,
                       "GPU %d has compute capability %d.%d, and %d.%d is the least that can be "
                       "used; leave it out by CUDA_VISIBLE_DEVICES",
                       ordinal, major, minor, CUDA_LEAST_ARCH / 10, CUDA_LEAST_ARCH % 10);
    return 0;
}

int cuda_probe(struct err *err) {
    int count = 0, arch;
    int rc = cuda_count(&count, err);
    for (int i = 0; rc == 0 && i < count; i++)
        rc = arch_of(i, &arch, err);
    return rc;
}

/* Makes the context: in use by others, out of memory and the like show here. */
static int enter_first(struct device *d, struct err *err) {
    int rc = cuda_enter(d);
    return rc != 0 ? err_set(err, -rc, "%s", d->why) : 0;
}

static int device_fill(struct device *d, const struct device_args *args, struct err *err) {
    int count = 1;
    int rc = cuda_count(&count, err);
    if (rc != 0)
        return rc;
    d->ordinal = (int)(args->local_rank % (uint32_t)count);
    d->tensor_cores = args->tensor_cores;
    rc = arch_of(d->ordinal, &d->arch, err);
    if (rc != 0)
        return rc;
    cudaError_t e =
        cudaDeviceGetAttribute(&d->sm_count, cudaDevAttrMultiProcessorCount, d->ordinal);
    if (e != cudaSuccess)
        return cuda_err(err, e, "cudaDeviceGetAttribute");
    rc = enter_first(d, err);
    if (rc != 0)
        return rc;
    rc = cuda_gemm_open(d, &d->gemm);
    return rc != 0 ? err_set(err, -rc, "%s", d->why) : 0;
}

int cuda_open(const struct device_args *args, struct device **out, struct err *err) {
    struct device *d = calloc(1, sizeof(*d));
    if (d == NULL)
        return err_set(err, ENOMEM, "no memory for a device");
    pthread_mutex_init(&d->why_mutex, NULL);
    int rc = device_fill(d, args, err);
    if (rc != 0)
        cuda_close(d);
    else
        *out = d;
    return rc;
}

void cuda_close(struct device *d) {
    if (d == NULL)
        return;
    cuda_gemm_close(d->gemm);
    pthread_mutex_destroy(&d->why_mutex);
    free(d);
}
