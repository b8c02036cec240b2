/* double_nccl.h - a double of NCCL: what of nccl.h the program calls, over memory that is shared
 * between the ranks, which are processes (forked or started by a launcher) or threads of one.
 *
 * As NCCL does:
 *   - communicators are non-blocking: a call answers ncclInProgress, and ncclCommGetAsyncError is
 *     asked until it says something else. Only then is a collective on its stream (here on the
 *     second question of the thread that made the call: what is recorded on the stream before that
 *     is recorded too early, every time). Any other call before that is ncclInvalidArgument;
 *   - the collectives of a communicator run one after the other, whatever their streams;
 *   - two ranks on one device: ncclInvalidUsage, "Duplicate GPU detected", to both of them. The
 *     others see no answer, ever;
 *   - a rank that died, hangs or aborted leaves the others waiting until they abort;
 *   - ncclCommAbort may come from any thread, at any time, and frees what waits. What it aborts
 *     leaves 0xff bytes (NaN) in the buffer that was to be filled;
 *   - ncclCommAbort and ncclCommDestroy answer ncclInProgress and the handle is gone.
 *
 * Not as NCCL does: the sum for rank r begins with the part of rank r + 1 and goes round to that of
 * r itself, rounded to the dtype at each step. NCCL's ring has this order for some sizes and others
 * for others; it is neither rank order nor in f32, on purpose: no test may rely on either.
 *
 * What ends the program (emu_die): ranks that do not agree on the kind, count or dtype of a
 * collective or on the world; another dtype than f32 and bf16 and another reduction than a sum;
 * buffers that are not device memory of the communicator's device, or shorter than the call needs,
 * or overlap otherwise than in place; two threads at once in calls of one communicator, but for an
 * abort (NCCL would free the work of the call twice); the default stream, or a stream of another
 * device; a blocking communicator; ncclCommDestroy before a finalize is done; a handle that is
 * gone.
 *
 * Environment, read once: a number is that of a rank's collectives in one communicator, from 1;
 *   NCCL_DOUBLE_HANG=RANK:N         rank's Nth never ends by itself; N 0: it never joins
 *   NCCL_DOUBLE_ASYNC_ERROR=RANK:N  as it runs, ncclRemoteError comes up, and it does not end
 * EMU_FAIL_AT (emu_control.h) counts all calls here but ncclCommGetAsyncError, which is asked as
 * often as time allows, and those that only tell a text or a number. */
#ifndef GFS_TESTS_CUDA_DOUBLE_NCCL_H
#define GFS_TESTS_CUDA_DOUBLE_NCCL_H

#include <stddef.h>
#include <stdint.h>

/* The same as the environment's; rank -1: none. For communicators made before and after. */
void double_nccl_hang(int rank, uint64_t call);
void double_nccl_async_error(int rank, uint64_t call);
/* How long the call of a collective takes until it comes back; 0: no time. */
void double_nccl_slow_calls(unsigned ms);

/* Communicators of this process that are neither destroyed nor aborted. */
size_t double_nccl_open_count(void);

#endif
