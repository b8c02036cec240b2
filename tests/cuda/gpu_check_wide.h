/* gpu_check_wide.h - a copy of everything at one boundary, as a snapshot takes it: fixed by the
 * main thread, made by a thread of its own while training goes on. */
#ifndef GFS_TESTS_CUDA_GPU_CHECK_WIDE_H
#define GFS_TESTS_CUDA_GPU_CHECK_WIDE_H

#include <pthread.h>
#include <stdatomic.h>

#include "tests/cuda/gpu_check_rig.h"

struct wide {
    struct rig *rig;
    uint32_t array_mask;
    uint8_t *dump; /* (layout_dump_bytes), touched */
    uint64_t dump_bytes;
    struct hold *holds;
    uint32_t hold_count, left; /* left: the thread's */
    uint64_t step;             /* of the boundary */
    /* Called by the thread when all is copied; 0 or -errno. */
    int (*copied)(void *ctx, struct wide *w, struct err *err);
    void *ctx;
    pthread_t thread;
    bool started;
    atomic_bool fixed, done, stop;
    struct err err;
};

/* The rig is open. Starts the thread, which is the only reader of the arrays. copied may be NULL.
 */
int wide_open(struct wide *w, struct rig *r, uint32_t array_mask,
              int (*copied)(void *ctx, struct wide *w, struct err *err), void *ctx,
              struct err *err);
/* Main thread, between two steps, when no copy is under way: what is there now is to be copied. */
void wide_fix(struct wide *w, uint64_t step);
/* Whether the last one is done; *rc how it ended. */
bool wide_is_done(struct wide *w);
/* Waits until it is; 0 or the failure. */
int wide_wait(struct wide *w, struct err *err);
/* Ends the thread. Before rig_close. */
void wide_close(struct wide *w);

#endif
