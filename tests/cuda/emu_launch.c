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
    size_t args_bytes;
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

static void must_be_alive(const char *name, const char *what, const struct emu_allocation *a) {
    char text[160];
    if (!a->freed)
        return;
    emu_memory_describe(a, text, sizeof text);
    emu_die(name, "%s is in %s", what, text);
}

/* A pointer may stand at the end of its memory, where a kernel has nothing to do. */
static void check_pointers(const char *name, const struct emu_argument *pointers, size_t count) {
    for (size_t i = 0; i < count; i++) {
        char what[32];
        const void *p = pointers[i].pointer;
        if (p == NULL)
            continue;
        snprintf(what, sizeof what, "argument %u", pointers[i].index);
        const struct emu_allocation *a = emu_memory_find(p);
        if (a == NULL)
            emu_die(name, "%s (%p) is neither device nor pinned memory", what, p);
        must_be_alive(name, what, a);
    }
}

/* The allocation that a word of the arguments points into, if that is what the word is: pointers
 * within structs are known by their values only. */
static struct emu_allocation *word_points_into(const struct launch *l, size_t word) {
    uintptr_t value;
    memcpy(&value, (const char *)l->args + word * sizeof value, sizeof value);
    return emu_memory_find((const void *)value);
}

static void check_words(const struct launch *l, bool after) {
    for (size_t word = 0; (word + 1) * sizeof(uintptr_t) <= l->args_bytes; word++) {
        const struct emu_allocation *a = word_points_into(l, word);
        if (a == NULL)
            continue;
        must_be_alive(l->kernel.name, "a pointer in its arguments", a);
        if (after)
            emu_memory_check_zone(l->kernel.name, a);
    }
}

static void run_launch(void *arg) {
    const struct launch *l = arg;
    check_words(l, false);
    emu_block_run_grid(&l->kernel, l->args);
    check_words(l, true);
}

static void release_launch(void *arg) {
    struct launch *l = arg;
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
        l->args_bytes = args_bytes;
        struct emu_op op = {
            .name = k->name, .run = run_launch, .release = release_launch, .arg = l};
        emu_queue(stream, &op);
    }
    double_end(e);
}
