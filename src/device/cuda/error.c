/* error.c - codes of CUDA and cuBLASLt become errno and a sentence with the failed call, here and
 * nowhere else. */
#include "config.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "device/cuda/cuda.h"

/* What to do, where more than the code can be said. All other codes are EIO. */
static const struct {
    cudaError_t code;
    int number; /* errno */
    const char *advice;
} errors[] = {
    {cudaErrorInvalidValue, EINVAL, NULL},
    {cudaErrorMemoryAllocation, ENOMEM, "see who uses the GPU's memory with nvidia-smi"},
    {cudaErrorInitializationError, ENODEV, "see if nvidia-smi works here"},
    {cudaErrorInvalidConfiguration, EINVAL, NULL},
    {cudaErrorStubLibrary, ENODEV,
     "libcuda.so.1 is the stub of the toolkit: take its folder out of LD_LIBRARY_PATH"},
    {cudaErrorInsufficientDriver, ENODEV, "install a newer NVIDIA driver"},
    {cudaErrorCallRequiresNewerDriver, ENODEV, "install a newer NVIDIA driver"},
    {cudaErrorDevicesUnavailable, EBUSY,
     "another process uses the GPU in exclusive mode: start fewer ranks here, or nvidia-smi -c 0"},
    {cudaErrorNoDevice, ENODEV, "see nvidia-smi and CUDA_VISIBLE_DEVICES"},
    {cudaErrorInvalidDevice, ENODEV, "see nvidia-smi and CUDA_VISIBLE_DEVICES"},
    {cudaErrorInvalidKernelImage, ENOEXEC, NULL},
    {cudaErrorNoKernelImageForDevice, ENOTSUP,
     "this build has no code for the GPU: configure with its number in GFS_CUDA_ARCHS"},
    {cudaErrorInvalidPtx, ENOEXEC, NULL},
    {cudaErrorUnsupportedPtxVersion, ENOTSUP, "install a newer NVIDIA driver"},
    {cudaErrorOperatingSystem, ENODEV, "see if nvidia-smi works here, as this user"},
    {cudaErrorInvalidResourceHandle, EINVAL, NULL},
    {cudaErrorNotReady, EAGAIN, NULL},
    {cudaErrorIllegalAddress, EFAULT, NULL},
    {cudaErrorMisalignedAddress, EFAULT, NULL},
    {cudaErrorLaunchOutOfResources, ENOMEM, NULL},
    {cudaErrorLaunchTimeout, ETIMEDOUT, NULL},
    {cudaErrorNotPermitted, EPERM, NULL},
    {cudaErrorNotSupported, ENOTSUP, NULL},
    {cudaErrorSystemNotReady, ENODEV, "see if nvidia-fabricmanager runs"},
    {cudaErrorSystemDriverMismatch, ENODEV,
     "libcuda.so.1 and the kernel's driver are of two versions: restart the machine"},
    {cudaErrorCompatNotSupportedOnDevice, ENODEV, "install a newer NVIDIA driver"},
    {cudaErrorMpsConnectionFailed, ECONNREFUSED, "see if nvidia-cuda-mps-control runs"},
    {cudaErrorMpsServerNotReady, EAGAIN, NULL},
    {cudaErrorMpsMaxClientsReached, EBUSY, "start fewer ranks on this GPU"},
    {cudaErrorMpsMaxConnectionsReached, EBUSY, "start fewer ranks on this GPU"},
    {cudaErrorTimeout, ETIMEDOUT, NULL},
};

/* cuBLASLt's own names are not asked for: they come as codes again where the library is not there.
 */
static const struct {
    cublasStatus_t code;
    int number; /* errno */
    const char *name;
} blas_errors[] = {
    {CUBLAS_STATUS_NOT_INITIALIZED, ENODEV, "CUBLAS_STATUS_NOT_INITIALIZED"},
    {CUBLAS_STATUS_ALLOC_FAILED, ENOMEM, "CUBLAS_STATUS_ALLOC_FAILED"},
    {CUBLAS_STATUS_INVALID_VALUE, EINVAL, "CUBLAS_STATUS_INVALID_VALUE"},
    {CUBLAS_STATUS_ARCH_MISMATCH, ENOTSUP, "CUBLAS_STATUS_ARCH_MISMATCH"},
    {CUBLAS_STATUS_MAPPING_ERROR, EIO, "CUBLAS_STATUS_MAPPING_ERROR"},
    {CUBLAS_STATUS_EXECUTION_FAILED, EIO, "CUBLAS_STATUS_EXECUTION_FAILED"},
    {CUBLAS_STATUS_INTERNAL_ERROR, EIO, "CUBLAS_STATUS_INTERNAL_ERROR"},
    {CUBLAS_STATUS_NOT_SUPPORTED, ENOTSUP, "CUBLAS_STATUS_NOT_SUPPORTED"},
    {CUBLAS_STATUS_LICENSE_ERROR, EPERM, "CUBLAS_STATUS_LICENSE_ERROR"},
};

enum { ERRORS = sizeof(errors) / sizeof(errors[0]) };
enum { BLAS_ERRORS = sizeof(blas_errors) / sizeof(blas_errors[0]) };

static size_t error_at(cudaError_t e) {
    size_t i = 0;
    while (i < ERRORS && errors[i].code != e)
        i++;
    return i;
}

static size_t blas_error_at(cublasStatus_t status) {
    size_t i = 0;
    while (i < BLAS_ERRORS && blas_errors[i].code != status)
        i++;
    return i;
}

int cuda_errno(cudaError_t e) {
    size_t i = error_at(e);
    return e == cudaSuccess ? 0 : i < ERRORS ? errors[i].number : EIO;
}

int cuda_blas_errno(cublasStatus_t status) {
    size_t i = blas_error_at(status);
    return status == CUBLAS_STATUS_SUCCESS ? 0 : i < BLAS_ERRORS ? blas_errors[i].number : EIO;
}

/* What the runtime says of a code, and what to do about it. */
static void describe(cudaError_t e, char *out, size_t cap_bytes) {
    size_t i = error_at(e);
    const char *advice = i < ERRORS ? errors[i].advice : NULL;
    snprintf(out, cap_bytes, "%s (%s)%s%s", cudaGetErrorString(e), cudaGetErrorName(e),
             advice != NULL ? "; " : "", advice != NULL ? advice : "");
}

/* Errors of execution: every later call returns them too, and it was the first that said where. */
static bool sticks(cudaError_t e) {
    switch (e) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorECCUncorrectable:
        return true;
    default:
        return false;
    }
}

static bool is_said(struct device *d, cudaError_t e) {
    pthread_mutex_lock(&d->why_mutex);
    bool said = sticks(e) && strstr(d->why, cudaGetErrorName(e)) != NULL;
    pthread_mutex_unlock(&d->why_mutex);
    return said;
}

static void keep(struct device *d, const char *reason, const char *fmt, va_list ap) {
    struct err text = {0};
    vsnprintf(text.text, sizeof(text.text), fmt, ap);
    size_t n = strlen(text.text);
    if (reason != NULL)
        snprintf(text.text + n, sizeof(text.text) - n, ": %s", reason);
    err_clean(text.text);
    pthread_mutex_lock(&d->why_mutex);
    memcpy(d->why, text.text, sizeof(d->why));
    pthread_mutex_unlock(&d->why_mutex);
}

int cuda_check(struct device *d, cudaError_t e, const char *fmt, ...) {
    if (e == cudaSuccess)
        return 0;
    char reason[ERR_TEXT_BYTES];
    describe(e, reason, sizeof(reason));
    cudaGetLastError(); /* else the next launch would report it again */
    if (is_said(d, e))
        return -cuda_errno(e);
    va_list ap;
    va_start(ap, fmt);
    keep(d, reason, fmt, ap);
    va_end(ap);
    return -cuda_errno(e);
}

int cuda_blas_check(struct device *d, cublasStatus_t status, const char *fmt, ...) {
    if (status == CUBLAS_STATUS_SUCCESS)
        return 0;
    char reason[64];
    size_t i = blas_error_at(status);
    if (i < BLAS_ERRORS)
        snprintf(reason, sizeof(reason), "%s", blas_errors[i].name);
    else
        snprintf(reason, sizeof(reason), "status %d of cuBLAS", (int)status);
    va_list ap;
    va_start(ap, fmt);
    keep(d, reason, fmt, ap);
    va_end(ap);
    return -cuda_blas_errno(status);
}

int cuda_refuse(struct device *d, int code, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    keep(d, NULL, fmt, ap);
    va_end(ap);
    return -code;
}

int cuda_err(struct err *err, cudaError_t e, const char *call) {
    if (e == cudaSuccess)
        return 0;
    char reason[ERR_TEXT_BYTES];
    describe(e, reason, sizeof(reason));
    cudaGetLastError();
    return err_set(err, cuda_errno(e), "%s: %s", call, reason);
}

void cuda_why(struct device *d, char *out, size_t cap_bytes) {
    pthread_mutex_lock(&d->why_mutex);
    snprintf(out, cap_bytes, "%s", d->why);
    pthread_mutex_unlock(&d->why_mutex);
}
