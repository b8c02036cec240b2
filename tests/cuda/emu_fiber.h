/* emu_fiber.h - many small stacks within one host thread: the threads of a block.
 *
 * A fiber runs from emu_fiber_resume until it waits (emu_fiber_wait) or its function returns. All
 * fibers belong to the one host thread that runs a kernel; a fiber that waits must be resumed by
 * the host thread that started it. */
#ifndef GFS_TESTS_CUDA_EMU_FIBER_H
#define GFS_TESTS_CUDA_EMU_FIBER_H

#include <stdbool.h>
#include <stddef.h>

enum { EMU_FIBER_MAX = 1024 }; /* at a time */

struct emu_fiber {
    void *sp;        /* where it waits */
    int stack;       /* its number in the pool, -1: not started or ended */
    void *sanitizer; /* what AddressSanitizer keeps for it */
};

/* Takes a stack for f, runs entry(arg) on it, and returns when that waits or has returned. */
void emu_fiber_start(struct emu_fiber *f, void (*entry)(void *arg), void *arg);
/* Goes on with one that waits. */
void emu_fiber_resume(struct emu_fiber *f);
static inline bool emu_fiber_ended(const struct emu_fiber *f) { return f->stack < 0; }
/* Called within a fiber: back to who started or resumed it. */
void emu_fiber_wait(void);

/* True for an address in the guard below a fiber's stack: it was too small. */
bool emu_fiber_is_guard(const void *p);

#endif
