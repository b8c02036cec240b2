/* cuda.h - what the files of the CUDA plugin share: the device, its streams and events, and the way
 * a failed call becomes an errno and a sentence.
 *
 * The same sources make the device "emulated" of test builds, where doubles of the CUDA libraries
 * are linked in their place. */
#ifndef GFS_DEVICE_CUDA_CUDA_H
#define GFS_DEVICE_CUDA_CUDA_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "device/cuda/kernels.h"
#include "device/device.h"

/* The emulated plugin is compiled with another. */
#ifndef CUDA_DEVICE_NAME
#define CUDA_DEVICE_NAME "cuda"
#endif

/* The least compute capability, times ten, of a GPU that can be used: that of bf16. */
enum { CUDA_LEAST_ARCH = 80 };
/* Of each compute stream, for cuBLASLt. */
enum { CUDA_GEMM_WORK_BYTES = 32 << 20 };

struct cuda_gemm;

struct device {
    int ordinal; /* of cudaSetDevice */
    int sm_count;
    int arch;          /* compute capability times ten */
    bool tensor_cores; /* as asked for at open */
    struct cuda_gemm *gemm;
    pthread_mutex_t why_mutex;
    char why[ERR_TEXT_BYTES];
};

struct dev_stream {
    struct cuda_call call; /* call.work is NULL on the take stream, which only copies */
    enum dev_stream_kind kind;
    void *gemm_work; /* CUDA_GEMM_WORK_BYTES, on a compute stream; else NULL */
};

struct dev_event {
    cudaEvent_t event;
    char what[32];
};

/* error.c. The errno of a code, positive; 0 for success. */
int cuda_errno(cudaError_t e);
int cuda_blas_errno(cublasStatus_t status);
/* 0 for success. Else keeps the sentence for why(), with what failed as fmt says it, and returns
 * -errno. Any thread. */
int cuda_check(struct device *d, cudaError_t e, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
int cuda_blas_check(struct device *d, cublasStatus_t status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The same for what no call of CUDA reports: returns -code. */
int cuda_refuse(struct device *d, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The same before there is a device: the sentence goes to err. */
int cuda_err(struct err *err, cudaError_t e, const char *call);
void cuda_why(struct device *d, char *out, size_t cap_bytes);

/* device.c. The calling thread's CUDA calls go to this device from now on: before every call that
 * has no stream, and before every launch. */
int cuda_enter(struct device *d);
/* The number of GPUs, at least 1; else -ENODEV and why there is none. */
int cuda_count(int *out, struct err *err);
/* 0 if a rank of this host could open a device; else -errno and why not. Makes no context. */
int cuda_probe(struct err *err);
int cuda_open(const struct device_args *args, struct device **out, struct err *err);
void cuda_close(struct device *d);

/* properties.c */
int cuda_properties(struct device *d, struct device_properties *out);
/* Operations a second of dense products by dtype; out is left as it is for an unknown arch. */
void cuda_peaks(const char *name, int arch, int sm_count, int clock_khz, bool tensor_cores,
                double out[DTYPE_COUNT]);
int cuda_list(uint32_t index, struct device_properties *out, struct err *err); /* of the plugin */

/* stream.c */
int cuda_alloc(struct device *d, enum dev_memory kind, size_t bytes, const char *what, void **out);
void cuda_free(struct device *d, enum dev_memory kind, void *p, size_t bytes);
int cuda_stream_open(struct device *d, enum dev_stream_kind kind, struct dev_stream **out);
void cuda_stream_close(struct device *d, struct dev_stream *s);
int cuda_event_open(struct device *d, const char *what, struct dev_event **out);
void cuda_event_close(struct device *d, struct dev_event *e);
int cuda_event_record(struct device *d, struct dev_stream *s, struct dev_event *e);
int cuda_stream_wait(struct device *d, struct dev_stream *s, struct dev_event *e);
int cuda_event_synchronize(struct device *d, struct dev_event *e);
int cuda_copy(struct device *d, struct dev_stream *s, void *dst, const void *src, size_t bytes);

/* gemm.c. d->gemm: cuBLASLt's handle and the plans of the shapes seen so far. */
int cuda_gemm_open(struct device *d, struct cuda_gemm **out);
void cuda_gemm_close(struct cuda_gemm *g);
int cuda_gemm(struct device *d, struct dev_stream *s, enum dtype t, enum dtype c_dtype,
              bool trans_a, bool trans_b, size_t m, size_t n, size_t k, float alpha, const void *a,
              size_t lda, const void *b, size_t ldb, float beta, void *c, size_t ldc);

/* ops.c: the table; everything that runs code of ours. */
extern const struct device_ops device_cuda;

#endif
