/* double_cudart_device.c - devices and their properties, versions, and how every call begins and
 * ends. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "tests/cuda/double_cudart.h"
#include "tests/cuda/emu_block.h"
#include "tests/cuda/emu_control.h"
#include "tests/cuda/emu_memory.h"
#include "tests/cuda/emu_queue.h"
#include "tests/cuda/emu_shared.h"
#include "tests/cuda/emu_stream.h"

/* Few multiprocessors, so that grids sized by them stay small. */
enum { SM_COUNT = 6, SM_THREADS = 2048, SM_SHARED_BYTES = 228 << 10, BLOCK_RESERVED_BYTES = 1024 };

static _Thread_local int current_device;
static _Thread_local cudaError_t last_error;

int double_device(void) { return current_device; }
void double_set_device(int device) { current_device = device; }

/* ---- calls ---- */

static cudaError_t injected(cudaError_t likely) {
    cudaError_t e = likely;
    if (*emu_fail_error() != '\0')
        double_cudart_error(emu_fail_error(), &e);
    if (double_cudart_sticks(e))
        emu_queue_break(current_device, e);
    return e;
}

cudaError_t double_begin(const char *call, enum double_needs needs, cudaError_t likely) {
    emu_lock();
    if (emu_queue_is_running())
        emu_die(call, "called from within an operation");
    if (emu_fail(call))
        return injected(likely);
    struct emu_settings s = emu_get_settings();
    if (needs == NEEDS_NOTHING)
        return cudaSuccess;
    if (s.driver_old)
        return cudaErrorInsufficientDriver;
    if (s.no_device || s.devices == 0)
        return cudaErrorNoDevice;
    if (needs == NEEDS_DRIVER)
        return cudaSuccess;
    if (s.exclusive)
        return cudaErrorDevicesUnavailable;
    return emu_queue_error(current_device);
}

cudaError_t double_end(cudaError_t e) {
    if (e != cudaSuccess)
        last_error = e;
    emu_unlock();
    return e;
}

/* An error sticks to the thread no longer than to its device, where emu_fail_at forgets it. */
cudaError_t cudaPeekAtLastError(void) {
    if (double_cudart_sticks(last_error) && emu_queue_error(current_device) == cudaSuccess)
        last_error = cudaSuccess;
    return last_error;
}

cudaError_t cudaGetLastError(void) {
    cudaError_t e = cudaPeekAtLastError();
    if (!double_cudart_sticks(e))
        last_error = cudaSuccess;
    return e;
}

/* ---- devices ---- */

static bool is_device(int device) { return device >= 0 && device < emu_get_settings().devices; }

/* As the real ones, it writes no count when it fails. */
cudaError_t cudaGetDeviceCount(int *count) {
    cudaError_t e = double_begin("cudaGetDeviceCount", NEEDS_DRIVER, cudaErrorInitializationError);
    if (e == cudaSuccess)
        *count = emu_get_settings().devices;
    return double_end(e);
}

cudaError_t cudaSetDevice(int device) {
    cudaError_t e = double_begin("cudaSetDevice", NEEDS_DRIVER, cudaErrorInitializationError);
    if (e == cudaSuccess && !is_device(device))
        e = cudaErrorInvalidDevice;
    if (e == cudaSuccess && emu_get_settings().exclusive)
        e = cudaErrorDevicesUnavailable;
    if (e == cudaSuccess)
        e = emu_queue_error(device);
    if (e == cudaSuccess)
        current_device = device;
    return double_end(e);
}

cudaError_t cudaGetDevice(int *device) {
    cudaError_t e = double_begin("cudaGetDevice", NEEDS_DRIVER, cudaErrorInitializationError);
    if (e == cudaSuccess)
        *device = current_device;
    return double_end(e);
}

cudaError_t cudaDriverGetVersion(int *version) {
    cudaError_t e =
        double_begin("cudaDriverGetVersion", NEEDS_NOTHING, cudaErrorInitializationError);
    if (e == cudaSuccess)
        *version = emu_get_settings().driver_old ? 11040 : CUDART_VERSION;
    return double_end(e);
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    cudaError_t e =
        double_begin("cudaRuntimeGetVersion", NEEDS_NOTHING, cudaErrorInitializationError);
    if (e == cudaSuccess)
        *version = CUDART_VERSION;
    return double_end(e);
}

/* ---- properties: of an H100 in what the code may go by, but for SM_COUNT ---- */

static const struct {
    enum cudaDeviceAttr attribute;
    int value;
} attributes[] = {
    {cudaDevAttrMaxThreadsPerBlock, EMU_THREADS_MAX},
    {cudaDevAttrMaxBlockDimX, 1024},
    {cudaDevAttrMaxBlockDimY, 1024},
    {cudaDevAttrMaxBlockDimZ, 64},
    {cudaDevAttrMaxGridDimX, 2147483647},
    {cudaDevAttrMaxGridDimY, 65535},
    {cudaDevAttrMaxGridDimZ, 65535},
    {cudaDevAttrMaxSharedMemoryPerBlock, EMU_SHARED_BYTES},
    {cudaDevAttrMaxSharedMemoryPerBlockOptin, EMU_SHARED_OPTIN_BYTES},
    {cudaDevAttrMaxSharedMemoryPerMultiprocessor, SM_SHARED_BYTES},
    {cudaDevAttrReservedSharedMemoryPerBlock, BLOCK_RESERVED_BYTES},
    {cudaDevAttrTotalConstantMemory, 64 << 10},
    {cudaDevAttrWarpSize, EMU_WARP},
    {cudaDevAttrMaxRegistersPerBlock, 65536},
    {cudaDevAttrMaxRegistersPerMultiprocessor, 65536},
    {cudaDevAttrMaxThreadsPerMultiProcessor, SM_THREADS},
    {cudaDevAttrMaxBlocksPerMultiprocessor, 32},
    {cudaDevAttrMultiProcessorCount, SM_COUNT},
    {cudaDevAttrClockRate, 1980000},       /* kHz */
    {cudaDevAttrMemoryClockRate, 2619000}, /* kHz */
    {cudaDevAttrGlobalMemoryBusWidth, 5120},
    {cudaDevAttrL2CacheSize, 50 << 20},
    {cudaDevAttrComputeCapabilityMajor, 9},
    {cudaDevAttrComputeCapabilityMinor, 0},
    {cudaDevAttrAsyncEngineCount, 3},
    {cudaDevAttrConcurrentKernels, 1},
    {cudaDevAttrUnifiedAddressing, 1},
    {cudaDevAttrCanMapHostMemory, 1},
    {cudaDevAttrHostRegisterSupported, 1},
    {cudaDevAttrCanUseHostPointerForRegisteredMem, 1},
    {cudaDevAttrStreamPrioritiesSupported, 1},
    {cudaDevAttrEccEnabled, 1},
    {cudaDevAttrPciDomainId, 0},
    {cudaDevAttrPciDeviceId, 0},
    {cudaDevAttrPageableMemoryAccess, 0},
    {cudaDevAttrManagedMemory, 0},
    {cudaDevAttrComputeMode, cudaComputeModeDefault},
};

/* The value of one attribute; ends the program for one that is not modelled. */
static int attribute_of(const char *call, enum cudaDeviceAttr attribute, int device) {
    if (attribute == cudaDevAttrPciBusId)
        return device + 1;
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++)
        if (attributes[i].attribute == attribute)
            return attributes[i].value;
    emu_die(call, "attribute %d is not modelled", (int)attribute);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    static const char call[] = "cudaDeviceGetAttribute";
    cudaError_t e = double_begin(call, NEEDS_DRIVER, cudaErrorInitializationError);
    if (e == cudaSuccess && !is_device(device))
        e = cudaErrorInvalidDevice;
    if (e == cudaSuccess)
        *value = attribute_of(call, attribute, device);
    return double_end(e);
}

static void fill_properties(struct cudaDeviceProp *p, int device) {
    static const char call[] = "cudaGetDeviceProperties";
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "Emulated GPU");
    memcpy(p->uuid.bytes, "gatherfs-emu", 12);
    p->uuid.bytes[15] = (char)device;
    p->totalGlobalMem = emu_get_settings().memory_bytes;
#define ATTRIBUTE(field, name) p->field = attribute_of(call, cudaDevAttr##name, device)
    p->sharedMemPerBlock = EMU_SHARED_BYTES;
    p->sharedMemPerBlockOptin = EMU_SHARED_OPTIN_BYTES;
    p->sharedMemPerMultiprocessor = SM_SHARED_BYTES;
    p->reservedSharedMemPerBlock = BLOCK_RESERVED_BYTES;
    p->totalConstMem = 64 << 10;
    ATTRIBUTE(regsPerBlock, MaxRegistersPerBlock);
    ATTRIBUTE(regsPerMultiprocessor, MaxRegistersPerMultiprocessor);
    ATTRIBUTE(warpSize, WarpSize);
    ATTRIBUTE(maxThreadsPerBlock, MaxThreadsPerBlock);
    ATTRIBUTE(maxThreadsDim[0], MaxBlockDimX);
    ATTRIBUTE(maxThreadsDim[1], MaxBlockDimY);
    ATTRIBUTE(maxThreadsDim[2], MaxBlockDimZ);
    ATTRIBUTE(maxGridSize[0], MaxGridDimX);
    ATTRIBUTE(maxGridSize[1], MaxGridDimY);
    ATTRIBUTE(maxGridSize[2], MaxGridDimZ);
    ATTRIBUTE(maxThreadsPerMultiProcessor, MaxThreadsPerMultiProcessor);
    ATTRIBUTE(maxBlocksPerMultiProcessor, MaxBlocksPerMultiprocessor);
    ATTRIBUTE(multiProcessorCount, MultiProcessorCount);
    ATTRIBUTE(major, ComputeCapabilityMajor);
    ATTRIBUTE(minor, ComputeCapabilityMinor);
    ATTRIBUTE(memoryBusWidth, GlobalMemoryBusWidth);
    ATTRIBUTE(l2CacheSize, L2CacheSize);
    ATTRIBUTE(asyncEngineCount, AsyncEngineCount);
    ATTRIBUTE(concurrentKernels, ConcurrentKernels);
    ATTRIBUTE(unifiedAddressing, UnifiedAddressing);
    ATTRIBUTE(canMapHostMemory, CanMapHostMemory);
    ATTRIBUTE(hostRegisterSupported, HostRegisterSupported);
    ATTRIBUTE(canUseHostPointerForRegisteredMem, CanUseHostPointerForRegisteredMem);
    ATTRIBUTE(streamPrioritiesSupported, StreamPrioritiesSupported);
    ATTRIBUTE(ECCEnabled, EccEnabled);
    ATTRIBUTE(pciBusID, PciBusId);
#undef ATTRIBUTE
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device) {
    cudaError_t e =
        double_begin("cudaGetDeviceProperties", NEEDS_DRIVER, cudaErrorInitializationError);
    if (e == cudaSuccess && !is_device(device))
        e = cudaErrorInvalidDevice;
    if (e == cudaSuccess)
        fill_properties(out, device);
    return double_end(e);
}

cudaError_t cudaDeviceGetPCIBusId(char *out, int cap, int device) {
    cudaError_t e =
        double_begin("cudaDeviceGetPCIBusId", NEEDS_DRIVER, cudaErrorInitializationError);
    if (e == cudaSuccess && !is_device(device))
        e = cudaErrorInvalidDevice;
    if (e == cudaSuccess && cap < 13)
        e = cudaErrorInvalidValue;
    if (e == cudaSuccess)
        snprintf(out, (size_t)cap, "0000:%02x:00.0", (unsigned)device + 1);
    return double_end(e);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    cudaError_t e = double_begin("cudaDeviceGetStreamPriorityRange", NEEDS_CONTEXT,
                                 cudaErrorInitializationError);
    if (e == cudaSuccess) {
        *least = 0;
        *greatest = -5;
    }
    return double_end(e);
}

/* ---- functions ---- */

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute,
                                 int value) {
    static const char call[] = "cudaFuncSetAttribute";
    cudaError_t e = double_begin(call, NEEDS_CONTEXT, cudaErrorInvalidValue);
    if (e == cudaSuccess && attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        size_t most = EMU_SHARED_OPTIN_BYTES - emu_block_static_bytes(function);
        if (value < 0 || (size_t)value > most)
            e = cudaErrorInvalidValue;
        else
            emu_shared_allow(function, (size_t)value);
    } else if (e == cudaSuccess && attribute != cudaFuncAttributePreferredSharedMemoryCarveout) {
        emu_die(call, "attribute %d is not modelled", (int)attribute);
    }
    return double_end(e);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *function) {
    cudaError_t e =
        double_begin("cudaFuncGetAttributes", NEEDS_CONTEXT, cudaErrorInvalidDeviceFunction);
    if (e == cudaSuccess) {
        size_t allowed = emu_shared_allowed(function);
        memset(out, 0, sizeof *out);
        out->sharedSizeBytes = emu_block_static_bytes(function);
        out->maxThreadsPerBlock = EMU_THREADS_MAX;
        out->numRegs = 32;
        out->ptxVersion = out->binaryVersion = 90;
        out->maxDynamicSharedSizeBytes =
            allowed > 0 ? (int)allowed : EMU_SHARED_BYTES - (int)out->sharedSizeBytes;
    }
    return double_end(e);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *out, const void *function,
                                                          int threads, size_t dynamic_bytes) {
    cudaError_t e = double_begin("cudaOccupancyMaxActiveBlocksPerMultiprocessor", NEEDS_CONTEXT,
                                 cudaErrorInvalidDeviceFunction);
    if (e == cudaSuccess && (threads < 1 || threads > EMU_THREADS_MAX))
        e = cudaErrorInvalidValue;
    if (e == cudaSuccess) {
        size_t bytes = dynamic_bytes + emu_block_static_bytes(function) + BLOCK_RESERVED_BYTES;
        int by_threads = SM_THREADS / ((threads + EMU_WARP - 1) / EMU_WARP * EMU_WARP);
        int by_shared = (int)(SM_SHARED_BYTES / bytes);
        *out = by_threads < by_shared ? by_threads : by_shared;
        *out = *out > 32 ? 32 : *out;
    }
    return double_end(e);
}
