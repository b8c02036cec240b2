/* emu_queue.h - the streams and events themselves, for the double of cudart. Handles are checked by
 * the functions here, which end the program for one that is not open. The lock of emu_stream.h is
 * held by the caller, once. */
#ifndef GFS_TESTS_CUDA_EMU_QUEUE_H
#define GFS_TESTS_CUDA_EMU_QUEUE_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { EMU_DEVICE_MAX = 16 };

/* How many times this thread holds the lock that it holds. */
unsigned emu_lock_depth(void);

/* An operation runs in this process, so the caller is one, or was called by one. */
bool emu_queue_is_running(void);

cudaStream_t emu_queue_open(int device, unsigned flags, int priority);
/* What is queued still runs when something needs it. */
void emu_queue_close(const char *call, cudaStream_t s);
/* Runs what is left on streams that are closed. What needs a peer is dropped. */
void emu_queue_finish_closed(void);
/* Runs all that is queued on s now. */
void emu_queue_synchronize(const char *call, cudaStream_t s);
void emu_queue_synchronize_device(int device);
/* False: not done; asked again it will be, if it can be without a peer. */
bool emu_queue_query(const char *call, cudaStream_t s);

cudaEvent_t emu_event_open(int device, unsigned flags);
void emu_event_close(const char *call, cudaEvent_t e);
/* cudaErrorInvalidResourceHandle: event and stream are of different devices. */
cudaError_t emu_event_record(const char *call, cudaEvent_t e, cudaStream_t s);
/* Refers to the last record that was made before this call; if there is none it does nothing. */
void emu_event_wait(const char *call, cudaStream_t s, cudaEvent_t e);
void emu_event_synchronize(const char *call, cudaEvent_t e);
bool emu_event_query(const char *call, cudaEvent_t e);
cudaError_t emu_event_elapsed(const char *call, float *ms, cudaEvent_t from, cudaEvent_t to);

/* The error that stuck to a device, or cudaSuccess. A device that has one runs nothing any more. */
cudaError_t emu_queue_error(int device);
void emu_queue_break(int device, cudaError_t error);
void emu_queue_forget_errors(void);

void emu_queue_seed(uint64_t seed);

#endif
