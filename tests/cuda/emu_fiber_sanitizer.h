/* emu_fiber_sanitizer.h - what sanitizers must be told when the stack changes; for emu_fiber.c.
 *
 * ThreadSanitizer takes each stack for a thread of its own, made once, and a switch orders what
 * comes before it and after. Once there are such threads it can't follow a fork. */
#ifndef GFS_TESTS_CUDA_EMU_FIBER_SANITIZER_H
#define GFS_TESTS_CUDA_EMU_FIBER_SANITIZER_H

#include <stddef.h>

#include "tests/cuda/emu_fiber.h"

/* The host's stack, or the sanitizer's thread. */
struct emu_fiber_host {
    void *handle;
    const void *bottom;
    size_t bytes;
};

#if defined(__SANITIZE_ADDRESS__)

#include <sanitizer/common_interface_defs.h>

enum { EMU_FIBER_STACK_BYTES = 256 << 10 };

/* The host is about to enter f, whose stack is at bottom. */
static inline void emu_fiber_entering(struct emu_fiber_host *h, struct emu_fiber *f,
                                      const void *bottom) {
    (void)f;
    __sanitizer_start_switch_fiber(&h->handle, bottom, EMU_FIBER_STACK_BYTES);
}
/* Within f: come from the host. */
static inline void emu_fiber_entered(struct emu_fiber_host *h, struct emu_fiber *f) {
    __sanitizer_finish_switch_fiber(f->sanitizer, &h->bottom, &h->bytes);
}
/* Within f: about to go to the host; ending: for the last time. */
static inline void emu_fiber_leaving(struct emu_fiber_host *h, struct emu_fiber *f, bool ending) {
    __sanitizer_start_switch_fiber(ending ? NULL : &f->sanitizer, h->bottom, h->bytes);
}
/* The host is back. */
static inline void emu_fiber_left(struct emu_fiber_host *h) {
    __sanitizer_finish_switch_fiber(h->handle, NULL, NULL);
}

#elif defined(__SANITIZE_THREAD__)

#include <sanitizer/tsan_interface.h>

enum { EMU_FIBER_STACK_BYTES = 256 << 10 };

static inline void emu_fiber_entering(struct emu_fiber_host *h, struct emu_fiber *f,
                                      const void *bottom) {
    static void *threads[EMU_FIBER_MAX];
    (void)bottom;
    if (threads[f->stack] == NULL)
        threads[f->stack] = __tsan_create_fiber(0);
    h->handle = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(threads[f->stack], 0);
}
static inline void emu_fiber_entered(struct emu_fiber_host *h, struct emu_fiber *f) {
    (void)h, (void)f;
}
static inline void emu_fiber_leaving(struct emu_fiber_host *h, struct emu_fiber *f, bool ending) {
    (void)f, (void)ending;
    __tsan_switch_to_fiber(h->handle, 0);
}
static inline void emu_fiber_left(struct emu_fiber_host *h) { (void)h; }

#else

enum { EMU_FIBER_STACK_BYTES = 64 << 10 };

static inline void emu_fiber_entering(struct emu_fiber_host *h, struct emu_fiber *f,
                                      const void *bottom) {
    (void)h, (void)f, (void)bottom;
}
static inline void emu_fiber_entered(struct emu_fiber_host *h, struct emu_fiber *f) {
    (void)h, (void)f;
}
static inline void emu_fiber_leaving(struct emu_fiber_host *h, struct emu_fiber *f, bool ending) {
    (void)h, (void)f, (void)ending;
}
static inline void emu_fiber_left(struct emu_fiber_host *h) { (void)h; }

#endif

#endif
