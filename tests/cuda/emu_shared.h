/* emu_shared.h - the shared memory of the block that runs.
 *
 * Each SMEM array lies between red zones, dynamic memory ends at a page that can't be touched. All
 * of it is filled with 0xff when a block begins; a red zone that was written is found when it ends
 * (under AddressSanitizer at once, reads too). */
#ifndef GFS_TESTS_CUDA_EMU_SHARED_H
#define GFS_TESTS_CUDA_EMU_SHARED_H

#include <stdbool.h>
#include <stddef.h>

#include "tests/cuda/emu_block.h"

void emu_shared_begin_grid(const struct emu_kernel *k);
void emu_shared_begin_block(void);
void emu_shared_end_block(void);
void emu_shared_end_grid(void);

/* What cudaFuncSetAttribute allows this kernel; 0: 48 KiB less its static memory. */
void emu_shared_allow(const void *function, size_t dynamic_bytes);
size_t emu_shared_allowed(const void *function);

/* All shared memory lies in [*start, *start + *bytes). */
void emu_shared_region(const unsigned char **start, size_t *bytes);
/* The array that p lies in: its name and the offset; false if none. */
bool emu_shared_name(const void *p, const char **name, size_t *offset);

#endif
