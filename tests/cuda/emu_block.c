/* emu_block.c - blocks, barriers and warps over fibers. */
#include "config.h"

#include "tests/cuda/emu_block.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/emu_control.h"
#include "tests/cuda/emu_fiber.h"
#include "tests/cuda/emu_race.h"
#include "tests/cuda/emu_shared.h"

enum thread_state { READY, AT_BARRIER, AT_WARP, ENDED };

struct thread {
    struct emu_fiber fiber;
    enum thread_state state;
    uint3 idx;
    /* where it waits, and with what */
    const char *file;
    int line;
    enum emu_warp_op op;
    uint32_t mask, arg, width;
    uint64_t value, result;
};

uint3 emu_thread_idx, emu_block_idx;
dim3 emu_block_dim, emu_grid_dim;

static struct thread threads[EMU_THREADS_MAX];
static uint32_t thread_count, current; /* of the block that runs */
static uint32_t thread_order[EMU_THREADS_MAX];
static const struct emu_kernel *kernel;
static const void *kernel_args;
static enum emu_thread_order order;
static uint64_t random_state = 1;

const char *emu_block_kernel(void) { return kernel == NULL ? NULL : kernel->name; }

static uint32_t draw(uint32_t below) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 16) % below);
}

void emu_trap(const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fflush(stdout);
    fprintf(stderr, "emulation: %s, block (%u,%u,%u), thread (%u,%u,%u): %s\n",
            kernel == NULL ? "no kernel" : kernel->name, emu_block_idx.x, emu_block_idx.y,
            emu_block_idx.z, emu_thread_idx.x, emu_thread_idx.y, emu_thread_idx.z, text);
    abort();
}

static void set_thread_idx(uint32_t t) {
    current = t;
    emu_thread_idx = threads[t].idx;
}

static void thread_main(void *arg) {
    (void)arg;
    kernel->run(kernel_args);
    threads[current].state = ENDED;
}

/* Runs thread t until it waits or ends. */
static void run_thread(uint32_t t) {
    set_thread_idx(t);
    emu_race_thread(t);
    if (emu_fiber_ended(&threads[t].fiber))
        emu_fiber_start(&threads[t].fiber, thread_main, NULL);
    else
        emu_fiber_resume(&threads[t].fiber);
}

/* ---- what stands in a report when threads wait for each other in vain ---- */

static void describe(char *out, size_t cap, uint32_t t) {
    const struct thread *th = &threads[t];
    const char *where = th->state == AT_BARRIER ? "waits in __syncthreads" : "waits in a warp call";
    uint32_t x = th->idx.x, y = th->idx.y, z = th->idx.z;
    if (th->state == ENDED)
        snprintf(out, cap, "thread (%u,%u,%u) has ended", x, y, z);
    else
        snprintf(out, cap, "thread (%u,%u,%u) %s at %s:%d", x, y, z, where, th->file, th->line);
}

static void diverged(uint32_t a, uint32_t b, const char *what) {
    char first[160], second[160];
    describe(first, sizeof first, a);
    describe(second, sizeof second, b);
    set_thread_idx(a);
    emu_trap("%s: %s, but %s", what, first, second);
}

/* ---- barriers ---- */

int emu_syncthreads(int value, const char *file, int line) {
    struct thread *th = &threads[current];
    th->state = AT_BARRIER;
    th->file = file;
    th->line = line;
    th->value = (uint64_t)value;
    emu_fiber_wait();
    return (int)th->result;
}

static bool same_place(const struct thread *a, const struct thread *b) {
    return a->line == b->line && (a->file == b->file || strcmp(a->file, b->file) == 0);
}

/* No thread can run: they are all at one barrier, or the kernel is wrong. */
static void finish_barrier(void) {
    uint64_t sum = 0;
    uint32_t first = thread_count;
    for (uint32_t t = 0; t < thread_count && first == thread_count; t++)
        if (threads[t].state == AT_BARRIER)
            first = t;
    for (uint32_t t = 0; t < thread_count; t++) {
        if (threads[t].state != AT_BARRIER || !same_place(&threads[t], &threads[first]))
            diverged(first, t, "threads of a block part at a barrier");
        sum += threads[t].value;
    }
    for (uint32_t t = 0; t < thread_count; t++) {
        threads[t].result = sum;
        threads[t].state = READY;
    }
    emu_race_barrier();
}

/* ---- warps ---- */

uint64_t emu_warp(enum emu_warp_op op, uint32_t mask, uint64_t value, uint32_t arg, uint32_t width,
                  const char *file, int line) {
    struct thread *th = &threads[current];
    if ((mask >> current % EMU_WARP & 1) == 0)
        emu_trap("%s:%d: mask %08x leaves out the thread that calls", file, line, mask);
    if (width == 0 || width > EMU_WARP || (width & (width - 1)) != 0)
        emu_trap("%s:%d: width %u is not a power of 2 up to 32", file, line, width);
    th->state = AT_WARP;
    th->op = op;
    th->mask = mask;
    th->value = value;
    th->arg = arg;
    th->width = width;
    th->file = file;
    th->line = line;
    emu_fiber_wait();
    return th->result;
}

/* Lanes of the warp that begins with thread `base` and have not ended. */
static uint32_t alive_lanes(uint32_t base) {
    uint32_t alive = 0;
    for (uint32_t l = 0; l < EMU_WARP && base + l < thread_count; l++)
        if (threads[base + l].state != ENDED)
            alive |= 1u << l;
    return alive;
}

uint32_t emu_activemask(void) { return alive_lanes(current / EMU_WARP * EMU_WARP); }

/* The lane that `lane` reads from. */
static uint32_t source_lane(const struct thread *th, uint32_t lane) {
    uint32_t first = lane / th->width * th->width, at = lane - first;
    switch (th->op) {
    case EMU_SHFL:
        return first + th->arg % th->width;
    case EMU_SHFL_UP:
        return th->arg > at ? lane : lane - th->arg;
    case EMU_SHFL_DOWN:
        return (uint64_t)at + th->arg >= th->width ? lane : lane + th->arg;
    default: /* EMU_SHFL_XOR: beyond the own group of `width` lanes, its own value */
        return (lane ^ th->arg) >= first + th->width ? lane : (lane ^ th->arg);
    }
}

static uint64_t warp_result(uint32_t base, uint32_t lane, uint32_t members) {
    const struct thread *th = &threads[base + lane];
    uint64_t bits = 0;
    switch (th->op) {
    case EMU_SYNCWARP:
        return 0;
    case EMU_BALLOT:
    case EMU_MATCH_ANY:
        for (uint32_t l = 0; l < EMU_WARP; l++)
            if ((members >> l & 1) != 0 &&
                (th->op == EMU_BALLOT ? threads[base + l].value != 0
                                      : threads[base + l].value == th->value))
                bits |= 1u << l;
        return bits;
    default: {
        uint32_t from = source_lane(th, lane);
        return from < EMU_WARP && (members >> from & 1) != 0 ? threads[base + from].value
                                                             : UINT64_MAX;
    }
    }
}

/* Lanes of `members` that wait in the very call that th waits in. */
static uint32_t lanes_at(uint32_t base, uint32_t members, const struct thread *th) {
    uint32_t here = 0;
    for (uint32_t left = members; left != 0; left &= left - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(left);
        const struct thread *o = &threads[base + lane];
        if (o->state == AT_WARP && o->op == th->op && o->mask == th->mask && same_place(o, th))
            here |= 1u << lane;
    }
    return here;
}

/* Lets those of a warp go on who wait for each other and are all there. True if there were any. */
static bool finish_warp(uint32_t base) {
    uint32_t alive = alive_lanes(base), seen = 0;
    bool any = false;
    for (uint32_t l = 0; l < EMU_WARP && base + l < thread_count; l++) {
        const struct thread *th = &threads[base + l];
        if (th->state != AT_WARP || (seen >> l & 1) != 0)
            continue;
        uint32_t members = th->mask & alive;
        uint32_t here = lanes_at(base, members, th);
        seen |= here; /* the others of the group find the same */
        if (here != members)
            continue;
        for (uint32_t left = members; left != 0; left &= left - 1) {
            uint32_t lane = (uint32_t)__builtin_ctz(left);
            threads[base + lane].result = warp_result(base, lane, members);
        }
        if (th->op == EMU_SYNCWARP)
            emu_race_syncwarp(base, members);
        for (uint32_t left = members; left != 0; left &= left - 1)
            threads[base + (uint32_t)__builtin_ctz(left)].state = READY;
        any = true;
    }
    return any;
}

/* Some thread waits in a warp call for one that can't come. */
static void warp_is_stuck(uint32_t t) {
    uint32_t base = t / EMU_WARP * EMU_WARP;
    uint32_t members = threads[t].mask & alive_lanes(base);
    for (uint32_t m = 0; m < EMU_WARP; m++) {
        if ((members >> m & 1) == 0)
            continue;
        const struct thread *o = &threads[base + m];
        if (o->state != AT_WARP || o->op != threads[t].op || o->mask != threads[t].mask ||
            !same_place(o, &threads[t]))
            diverged(t, base + m, "threads of a warp part");
    }
}

/* ---- a block ---- */

static void shuffle_threads(void) {
    for (uint32_t i = thread_count - 1; i > 0; i--) {
        uint32_t j = draw(i + 1), t = thread_order[i];
        thread_order[i] = thread_order[j];
        thread_order[j] = t;
    }
}

/* Every thread that can run does, once. Threads that wait in warp calls go on in the next sweep. */
static void sweep(void) {
    if (order == EMU_SHUFFLED)
        shuffle_threads();
    for (uint32_t i = 0; i < thread_count; i++)
        if (threads[thread_order[i]].state == READY)
            run_thread(thread_order[i]);
}

static bool finish_warps(void) {
    bool any = false;
    for (uint32_t base = 0; base < thread_count; base += EMU_WARP)
        any |= finish_warp(base);
    return any;
}

static void run_block(void) {
    uint32_t ended = 0;
    for (uint32_t t = 0; t < thread_count; t++) {
        threads[t].state = READY;
        threads[t].fiber.stack = -1;
    }
    emu_shared_begin_block();
    emu_race_begin_block();
    while (ended < thread_count) {
        sweep();
        if (finish_warps())
            continue;
        ended = 0;
        for (uint32_t t = 0; t < thread_count; t++) {
            if (threads[t].state == AT_WARP)
                warp_is_stuck(t);
            ended += threads[t].state == ENDED;
        }
        if (ended < thread_count)
            finish_barrier();
    }
    emu_shared_end_block();
}

/* ---- a grid ---- */

static void set_block_idx(uint64_t b) {
    emu_block_idx.x = (uint32_t)(b % kernel->grid.x);
    emu_block_idx.y = (uint32_t)(b / kernel->grid.x % kernel->grid.y);
    emu_block_idx.z = (uint32_t)(b / ((uint64_t)kernel->grid.x * kernel->grid.y));
}

static uint64_t common_divisor(uint64_t a, uint64_t b) {
    while (b != 0) {
        uint64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* Blocks come in the order of the threads; random: by steps of a stride that visits each once. */
static void run_blocks(uint64_t count) {
    uint64_t stride = 1, at = 0;
    if (order == EMU_SHUFFLED && count > 2) {
        stride = 1 + draw((uint32_t)(count - 1));
        while (common_divisor(stride, count) != 1)
            stride++;
        at = draw((uint32_t)count);
    } else if (order == EMU_DESC) {
        stride = count - 1;
        at = count - 1;
    }
    for (uint64_t i = 0; i < count; i++) {
        set_block_idx(at);
        run_block();
        at = (at + stride) % count;
    }
}

void emu_block_run_grid(const struct emu_kernel *k, const void *args) {
    struct emu_settings s = emu_get_settings();
    kernel = k;
    kernel_args = args;
    order = s.threads;
    random_state = (random_state * 6364136223846793005u + s.seed * 2) | 1;
    emu_grid_dim = k->grid;
    emu_block_dim = k->block;
    thread_count = k->block.x * k->block.y * k->block.z;
    for (uint32_t i = 0; i < thread_count; i++) {
        threads[i].idx.x = i % k->block.x;
        threads[i].idx.y = i / k->block.x % k->block.y;
        threads[i].idx.z = i / (k->block.x * k->block.y);
        thread_order[i] = order == EMU_DESC ? thread_count - 1 - i : i;
    }
    emu_shared_begin_grid(k);
    emu_race_begin_grid(k, thread_count);
    run_blocks((uint64_t)k->grid.x * k->grid.y * k->grid.z);
    emu_race_end_grid();
    emu_shared_end_grid();
    kernel = NULL;
}
