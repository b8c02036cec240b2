/* emu_race.h - what the emulation tells the race detector. emu_race_none.c does nothing and is for
 * ordinary builds; how the detector works stands in emu_race.c. All with the lock of emu_stream.h
 * held. */
#ifndef GFS_TESTS_CUDA_EMU_RACE_H
#define GFS_TESTS_CUDA_EMU_RACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/cuda/emu_block.h"
#include "tests/cuda/emu_stream.h"

/* Who acts, and what it knows of what others have done: a clock of every stream, operation and host
 * thread. NULL in ordinary builds. */
struct emu_clock;

/* ---- memory: only what lies in these is watched ---- */
/* Where to map memory that will be watched, so that it is quickly told from other; NULL: anywhere.
 */
void *emu_race_place(size_t bytes);
void emu_race_memory(const void *start, size_t bytes);
void emu_race_memory_gone(const void *start, size_t bytes);

/* ---- queues ---- */
/* What a new stream knows: what the calling host thread does. number: for reports. */
struct emu_clock *emu_race_stream(uint32_t number);
/* The stream is closed and has nothing left to do. */
void emu_race_stream_gone(struct emu_clock *stream);
/* What the calling host thread knows now, for an operation that it queues. */
struct emu_clock *emu_race_host_now(void);
/* What the stream knows now, for a record of an event. */
struct emu_clock *emu_race_stream_now(const struct emu_clock *stream);
/* The stream, or the calling host thread, learns what `from` knew. from may be NULL. */
void emu_race_stream_learns(struct emu_clock *stream, const struct emu_clock *from);
void emu_race_host_learns(const struct emu_clock *from);
void emu_race_clock_free(struct emu_clock *c);

/* What this host thread does from here to the end is the stream's doing. */
void emu_race_begin_operation(struct emu_clock *stream, const char *name);
void emu_race_end_operation(void);
/* The operation touches this. For those that are not compiled with instrumentation. */
void emu_race_touch(const struct emu_range *r);

/* ---- kernels ---- */
void emu_race_begin_grid(const struct emu_kernel *k, uint32_t thread_count);
void emu_race_end_grid(void);
void emu_race_begin_block(void);
void emu_race_thread(uint32_t thread);
void emu_race_barrier(void);
void emu_race_syncwarp(uint32_t first_thread, uint32_t members);

/* Races found so far; each is printed on stderr. The program ends at the first, unless `keep`. */
size_t emu_race_count(void);
void emu_race_keep_going(bool keep);

#endif
