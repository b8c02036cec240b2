/* emu_launch.c - a kernel's way onto a stream: limits, arguments, the queue. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/double_cudart.h"
#include "tests/cuda/emu_block.h"
#include "tests/cuda/emu_memory.h"
#include "tests/cuda/emu_shared.h"
#include "tests/cuda/emu_stream.h"

struct launch {
    struct emu_kernel kernel;
    size_t pointer_count;
    struct emu_argument *pointers;
    void *args;
};

static void check_limits(const struct emu_kernel *k) {
    dim3 g = k->grid, b = k->block;
    size_t allowed = emu_shared_allowed(k->function);
    size_t most = allowed > 0 ? allowed : EMU_SHARED_BYTES;
    if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > 2147483647u || g.y > 65535 || g.z > 65535)
        emu_die(k->name, "a grid of (%u,%u,%u) blocks", g.x, g.y, g.z);
    if (b.x == 0 || b.y == 0 || b.z == 0 || b.x > 1024 || b.y > 1024 || b.z > 64 ||
        b.x * b.y * b.z > EMU_THREADS_MAX)
        emu_die(k->name, "a block of (%u,%u,%u) threads", b.x, b.y, b.z);
    if (k->dynamic_bytes > most)
        emu_die(k->name, "%zu bytes of dynamic shared memory: more than %zu%s", k->dynamic_bytes,
                most, allowed > 0 ? "" : ", and cudaFuncSetAttribute was not called");
}

/* A pointer may stand at the end of its memory, where a kernel has nothing to do. */
static void check_pointers(const char *name, const struct emu_argument *pointers, size_t count) {
    for (size_t i = 0; i < count; i++) {
        char text[160];
        const void *p = pointers[i].pointer;
        const struct emu_allocation *a = p == NULL ? NULL : emu_memory_find(p);
        if (p == NULL)
            continue;
        if (a == NULL)
            emu_die(name, "argument %u (%p) is neither device nor pinned memory", pointers[i].index,
                    p);
        emu_memory_describe(a, text, sizeof text);
        if (a->freed)
            emu_die(name, "argument %u is in %s", pointers[i].index, text);
    }
}

static void check_zones(const struct launch *l) {
    for (size_t i = 0; i < l->pointer_count; i++)
        if (l->pointers[i].pointer != NULL && !l->pointers[i].is_const)
            emu_memory_check_zone(l->kernel.name, emu_memory_find(l->pointers[i].pointer));
}

static void run_launch(void *arg) {
    const struct launch *l = arg;
    check_pointers(l->kernel.name, l->pointers, l->pointer_count);
    emu_block_run_grid(&l->kernel, l->args);
    check_zones(l);
}

static void release_launch(void *arg) {
    struct launch *l = arg;
    free(l->pointers);
    free(l->args);
    free(l);
}

static void *copy_of(const void *from, size_t bytes) {
    void *p = malloc(bytes + 1);
    if (p == NULL)
        emu_die("emulation", "no memory");
    memcpy(p, from, bytes);
    return p;
}

void emu_launch(const struct emu_kernel *k, cudaStream_t stream, const void *args,
                size_t args_bytes, const struct emu_argument *pointers, size_t pointer_count) {
    cudaError_t e = double_begin("cudaLaunchKernel", NEEDS_CONTEXT, cudaErrorLaunchFailure);
    if (emu_check_stream(k->name, stream) != double_device())
        emu_die(k->name, "launched on a stream of device %d, and %d is current",
                emu_check_stream(k->name, stream), double_device());
    check_limits(k);
    check_pointers(k->name, pointers, pointer_count);
    if (e == cudaSuccess) {
        struct launch *l = copy_of(&(struct launch){.kernel = *k}, sizeof *l);
        l->args = copy_of(args, args_bytes);
        l->pointers = copy_of(pointers, pointer_count * sizeof *pointers);
        l->pointer_count = pointer_count;
        struct emu_op op = {
            .name = k->name, .run = run_launch, .release = release_launch, .arg = l};
        emu_queue(stream, &op);
    }
    double_end(e);
}
