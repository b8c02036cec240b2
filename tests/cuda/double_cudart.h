/* double_cudart.h - the double of the CUDA runtime: what it is, and what its files share.
 *
 * It is linked in place of libcudart and compiled against its header. It models the calls that
 * double_cudart*.c defines; a program that needs another does not link. It ends the program, with
 * the call and the reason, on what it does not model and on what would be undefined: the default
 * stream, a copy whose host memory is not pinned, a range outside of its allocation, a handle or
 * buffer after its end, a call from within an operation. As on a GPU:
 *   - the current device belongs to the thread; a launch goes to a stream of the current device;
 *   - a failed call leaves its error for cudaGetLastError of that thread, cudaErrorNotReady too;
 *   - an error of execution sticks: all later calls on that device return it;
 *   - freeing waits only for what destroyed streams still had to do: a buffer that work queued on
 *     an open stream uses ends the program when that runs.
 *
 * Device memory can be touched only while operations run. That is by the process: when one host
 * thread runs operations, what other host threads do to device memory meanwhile goes unseen here
 * (the race detector sees it). */
#ifndef GFS_TESTS_CUDA_DOUBLE_CUDART_H
#define GFS_TESTS_CUDA_DOUBLE_CUDART_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

/* The error of a name; false: none is called so. */
bool double_cudart_error(const char *name, cudaError_t *out);
/* It leaves the device unusable. */
bool double_cudart_sticks(cudaError_t e);

enum double_needs {
    NEEDS_NOTHING = 0,
    NEEDS_DRIVER = 1, /* and a device */
    NEEDS_CONTEXT = 2 /* of the current device, which may be another's or broken */
};
/* Every call is `e = double_begin(...); if (e == cudaSuccess) ...; return double_end(e)`. begin
 * takes the lock and answers with the error that the call must return without doing anything;
 * likely: which one that is where a failure is injected without a name. */
cudaError_t double_begin(const char *call, enum double_needs needs, cudaError_t likely);
cudaError_t double_end(cudaError_t e);
int double_device(void); /* current, of this thread */
void double_set_device(int device);

#endif
