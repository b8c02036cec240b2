/* emu_race_shadow.h - for each four bytes of watched memory, who wrote them last and who read them
 * since.
 *
 * A cell names an access by its actor (a stream or a host thread), that actor's clock, and within a
 * kernel by block, barrier and thread. Two accesses of which one writes race unless one happens
 * before the other: the later one's actor knows the earlier one's clock, or, within one kernel, a
 * barrier of their block or a __syncwarp of their warp is between them, or both are atomic.
 *
 * Where the two halves of four bytes are accessed apart they have cells of their own; the bytes of
 * a half have not. What it may miss, to stay small: readers of more than two actors at once.
 */
#ifndef GFS_TESTS_CUDA_EMU_RACE_SHADOW_H
#define GFS_TESTS_CUDA_EMU_RACE_SHADOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { EMU_RACE_ACTORS = 256 };

struct emu_clock {
    uint32_t of[EMU_RACE_ACTORS];
    uint8_t actor; /* whose own clock this is; of copies too */
};

struct emu_cell {
    uint32_t clock, block;
    uint16_t barrier, warp_sync, thread;
    uint8_t actor, flags;
};

enum {
    EMU_CELL_USED = 1,
    EMU_CELL_SPLIT = 2, /* no access: clock is where the cells of the halves are */
    EMU_CELL_ATOMIC = 4,
    EMU_CELL_KERNEL = 8,
    EMU_CELL_LANES = 16, /* several threads of one warp */
    EMU_CELL_WARPS = 32, /* several warps of one block */
    EMU_CELL_BLOCKS = 64 /* several blocks */
};

/* Who accesses memory now. cell: as the access is to be kept. */
struct emu_accessor {
    const struct emu_clock *knows;
    struct emu_cell cell;
};

/* Memory of one's own for what is watched, and the cells of it. */
void *emu_shadow_place(size_t bytes);
/* Watches host memory elsewhere, from here on. */
void emu_shadow_watch(const void *start, size_t bytes);
void emu_shadow_unwatch(const void *start);
/* Whether any of it is watched, in a few instructions. */
bool emu_shadow_watches(const void *p);

/* One access. in_shared: to memory that is another one in each block. True: it races with *other,
 * of which `wrote` says what it was; *at: where. */
bool emu_shadow_access(const struct emu_accessor *a, const void *p, size_t bytes, bool write,
                       bool in_shared, struct emu_cell *other, bool *wrote, const void **at);

#endif
