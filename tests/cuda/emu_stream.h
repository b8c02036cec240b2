/* emu_stream.h - the queues of the emulated device, for the doubles that put work on them.
 *
 * A stream is a list of operations. When they run depends on EMU_ORDER:
 *   lazy    an operation runs only when a synchronisation needs it, or a stream that one needs
 * waits for an event behind it: what was not ordered comes last; eager   at once, unless it must
 * wait for a peer; random  at any call, some operations of some streams, drawn from EMU_SEED. They
 * run on the host thread that makes the call, under one lock, which all functions here take
 * themselves; it is recursive. Only while an operation runs is device memory open (see
 * double_cudart.h for what other host threads then could do unseen).
 *
 * cudaEventQuery and cudaStreamQuery answer cudaErrorNotReady once and then see to it that the work
 * gets done, so a loop around them ends. Work that waits for a peer is polled by whoever
 * synchronises; if for a while nobody calls, a thread of the emulation does it, since a GPU would
 * not wait for the host either. */
#ifndef GFS_TESTS_CUDA_EMU_STREAM_H
#define GFS_TESTS_CUDA_EMU_STREAM_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>

/* Guards all state of the emulation; a double keeps its own state under it too. Recursive. */
void emu_lock(void);
void emu_unlock(void);

/* A library call was used in a way that is wrong or that the double does not model: prints
 * "emulation: CALL: ..." and aborts. */
void emu_die(const char *call, const char *format, ...)
    __attribute__((noreturn, format(printf, 2, 3)));

/* To be called first by each modelled call that can fail: counts it, and returns true when this is
 * the one that EMU_FAIL_AT makes fail. Then the call does nothing and returns its error, which is
 * emu_fail_error() if that is a name it knows ("CUBLAS_STATUS_ALLOC_FAILED"), else a likely one. A
 * call that releases something releases it even so. */
bool emu_fail(const char *call);
const char *emu_fail_error(void); /* "" if EMU_FAIL_AT names none */

/* Memory that an operation reads or writes: rows of row_bytes, pitch_bytes apart (one row: any).
 * Rows of 0 bytes and 0 rows are nothing. */
struct emu_range {
    const void *start;
    size_t rows, row_bytes, pitch_bytes;
    bool write;
};
static inline struct emu_range emu_reads(const void *start, size_t bytes) {
    return (struct emu_range){start, 1, bytes, bytes, false};
}
static inline struct emu_range emu_writes(const void *start, size_t bytes) {
    return (struct emu_range){start, 1, bytes, bytes, true};
}

enum emu_kind { EMU_DEVICE = 1, EMU_PINNED = 2 };

/* emu_die unless the range lies in one live allocation of a kind in `kinds` (a set). what: which
 * argument. */
void emu_check_range(const char *call, const char *what, const struct emu_range *r, unsigned kinds);
/* emu_die unless s is an open stream; the default streams (0, legacy, per thread) are not. Returns
 * its device's number. */
int emu_check_stream(const char *call, cudaStream_t s);

/* An operation of a stream. name lives as long as the program. ranges (at most EMU_RANGES) are all
 * the memory it touches: checked when it is queued and again before it runs (a buffer freed in
 * between ends the program), and what the race detector goes by. The ranges are of device or pinned
 * memory. */
enum { EMU_RANGES = 8 };
struct emu_op {
    const char *name;
    void (*run)(void *arg);
    /* Or, with run NULL: work that needs a peer. Called again and again with the lock held while
     * the operation is first of its stream; must not wait itself. True: done. Between two calls
     * other streams run, and, where nothing can, the lock is let go for a moment. */
    bool (*poll)(void *arg);
    void (*release)(void *arg); /* after it ran, once; NULL: nothing to do */
    void *arg;
    struct emu_range ranges[EMU_RANGES];
    size_t range_count;
};
/* Copies *op to the end of s. */
void emu_queue(cudaStream_t s, const struct emu_op *op);

/* From a run or poll function: the operation failed on the device. As on a GPU the error is sticky:
 * every later call on this device returns it. */
void emu_operation_failed(cudaError_t error);

/* The error that stuck to the device of this stream, or cudaSuccess: what a library's call on it
 * returns as its own kind of execution failure. */
cudaError_t emu_device_error(cudaStream_t s);

/* For a loop inside a library call that waits for a peer: lets streams of this process go on, then
 * lets the lock go and sleeps, longer with each round (from 0). The lock is held once on entry. */
void emu_wait(unsigned round);

#endif
