/* emu_race_sync.h - what instrumented code tells the race detector. Any host thread. */
#ifndef GFS_TESTS_CUDA_EMU_RACE_SYNC_H
#define GFS_TESTS_CUDA_EMU_RACE_SYNC_H

#include <stdbool.h>
#include <stddef.h>

struct emu_clock;

/* Whether an access to p means anything here. */
bool emu_race_watches(const void *p);
void emu_race_access(const void *p, size_t bytes, bool write, bool atomic);
/* *place, NULL at first, gets what the caller knows; whoever acquires it later learns that. */
void emu_race_release(struct emu_clock **place);
void emu_race_acquire(struct emu_clock *const *place);

#endif
