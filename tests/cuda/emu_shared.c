/* emu_shared.c - static and dynamic shared memory with red zones. */
#include "config.h"

#include "tests/cuda/emu_shared.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/cuda/emu_race.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define POISON(p, n) __asan_poison_memory_region(p, n)
#define UNPOISON(p, n) __asan_unpoison_memory_region(p, n)
#else
#define POISON(p, n) ((void)(p), (void)(n))
#define UNPOISON(p, n) ((void)(p), (void)(n))
#endif

enum {
    PAGE = 4096,
    ZONE = 64,
    ZONE_BYTE = 0xa5,
    FRESH_BYTE = 0xff,
    STATIC_BYTES = EMU_SHARED_BYTES + (EMU_STATIC_SHARED_MAX + 1) * (ZONE + 256),
    DYNAMIC_BYTES = EMU_SHARED_OPTIN_BYTES + ZONE,
    STATIC_PAGES = (STATIC_BYTES + PAGE - 1) / PAGE,
    DYNAMIC_PAGES = (DYNAMIC_BYTES + PAGE - 1) / PAGE,
    REGION_BYTES = (STATIC_PAGES + 1 + DYNAMIC_PAGES + 1) * PAGE,
    FUNCTION_MAX = 1024
};

struct array {
    const void *key;
    const char *name;
    size_t offset, bytes;
};

/* What is known of a kernel from one launch to the next. */
struct function {
    const void *function;
    size_t dynamic_allowed, static_bytes;
};

static unsigned char *region;
static struct array arrays[EMU_STATIC_SHARED_MAX]; /* of the kernel that runs */
static size_t array_count, static_end, static_bytes;
static unsigned char *dynamic;
static size_t dynamic_bytes;
static const struct emu_kernel *kernel;
static struct function functions[FUNCTION_MAX];
static size_t function_count;

static struct function *find_function(const void *f) {
    for (size_t i = 0; i < function_count; i++)
        if (functions[i].function == f)
            return &functions[i];
    if (function_count == FUNCTION_MAX) {
        fprintf(stderr, "emulation: more than %d kernels\n", FUNCTION_MAX);
        abort();
    }
    functions[function_count].function = f;
    return &functions[function_count++];
}

void emu_shared_allow(const void *function, size_t bytes) {
    find_function(function)->dynamic_allowed = bytes;
}
size_t emu_shared_allowed(const void *function) { return find_function(function)->dynamic_allowed; }
size_t emu_block_static_bytes(const void *function) {
    return find_function(function)->static_bytes;
}

/* Static part, a page that can't be touched, dynamic part, another. */
static void make_region(void) {
    void *place = emu_race_place(REGION_BYTES);
    region = mmap(place, REGION_BYTES, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | (place == NULL ? 0 : MAP_FIXED), -1, 0);
    if (region == MAP_FAILED) {
        fprintf(stderr, "emulation: no memory for shared memory\n");
        abort();
    }
    mprotect(region + STATIC_PAGES * PAGE, PAGE, PROT_NONE);
    mprotect(region + REGION_BYTES - PAGE, PAGE, PROT_NONE);
}

static void check_limit(void) {
    size_t allowed = find_function(kernel->function)->dynamic_allowed;
    size_t limit =
        allowed >= dynamic_bytes && allowed > 0 ? EMU_SHARED_OPTIN_BYTES : EMU_SHARED_BYTES;
    if (static_bytes > EMU_SHARED_BYTES)
        emu_trap("%zu bytes of static shared memory, more than 48 KiB", static_bytes);
    if (static_bytes + dynamic_bytes > limit)
        emu_trap("%zu bytes of static and %zu of dynamic shared memory: more than %zu KiB%s",
                 static_bytes, dynamic_bytes, limit / 1024,
                 limit == EMU_SHARED_BYTES ? " and cudaFuncSetAttribute does not allow it" : "");
}

void emu_shared_begin_grid(const struct emu_kernel *k) {
    if (region == NULL)
        make_region();
    kernel = k;
    array_count = 0;
    static_bytes = 0;
    static_end = ZONE;
    dynamic_bytes = k->dynamic_bytes;
    dynamic = region + REGION_BYTES - PAGE - (dynamic_bytes + 15) / 16 * 16;
    memset(region, ZONE_BYTE, STATIC_PAGES * PAGE);
    memset(dynamic - ZONE, ZONE_BYTE, ZONE + (dynamic_bytes + 15) / 16 * 16);
    POISON(region, STATIC_PAGES * PAGE);
    POISON(region + (STATIC_PAGES + 1) * PAGE, DYNAMIC_PAGES * PAGE);
    UNPOISON(dynamic, dynamic_bytes);
    check_limit();
}

void *emu_dynamic_shared(void) { return dynamic; }

static struct array *add_array(const void *key, const char *name, size_t bytes, size_t align) {
    if (array_count == EMU_STATIC_SHARED_MAX)
        emu_trap("more than %d arrays of shared memory", EMU_STATIC_SHARED_MAX);
    if (align > 256)
        emu_trap("shared memory %s is aligned to %zu, more than 256", name, align);
    align = align < 16 ? 16 : align;
    size_t offset = (static_end + align - 1) / align * align;
    static_bytes += bytes;
    check_limit();
    struct array *a = &arrays[array_count++];
    *a = (struct array){key, name, offset, bytes};
    static_end = offset + bytes + ZONE;
    UNPOISON(region + offset, bytes);
    memset(region + offset, FRESH_BYTE, bytes);
    struct function *f = find_function(kernel->function);
    f->static_bytes = static_bytes > f->static_bytes ? static_bytes : f->static_bytes;
    return a;
}

void *emu_static_shared(const void *key, const char *name, size_t bytes, size_t align) {
    for (size_t i = 0; i < array_count; i++)
        if (arrays[i].key == key)
            return region + arrays[i].offset;
    return region + add_array(key, name, bytes, align)->offset;
}

void emu_shared_begin_block(void) {
    for (size_t i = 0; i < array_count; i++)
        memset(region + arrays[i].offset, FRESH_BYTE, arrays[i].bytes);
    memset(dynamic, FRESH_BYTE, dynamic_bytes);
}

static void check_zone(const unsigned char *zone, size_t bytes, const char *side,
                       const char *name) {
    for (size_t i = 0; i < bytes; i++)
        if (zone[i] != ZONE_BYTE)
            emu_trap("a thread of this block wrote %s shared memory %s (byte %zu)", side, name, i);
}

void emu_shared_end_block(void) {
    UNPOISON(region, STATIC_PAGES * PAGE);
    UNPOISON(dynamic - ZONE, ZONE + (dynamic_bytes + 15) / 16 * 16);
    for (size_t i = 0; i < array_count; i++) {
        const unsigned char *at = region + arrays[i].offset;
        check_zone(at - ZONE, ZONE, "before", arrays[i].name);
        check_zone(at + arrays[i].bytes, ZONE, "beyond", arrays[i].name);
    }
    check_zone(dynamic - ZONE, ZONE, "before", "that is dynamic");
    check_zone(dynamic + dynamic_bytes, (16 - dynamic_bytes % 16) % 16, "beyond",
               "that is dynamic");
    POISON(region, STATIC_PAGES * PAGE);
    for (size_t i = 0; i < array_count; i++)
        UNPOISON(region + arrays[i].offset, arrays[i].bytes);
    POISON(dynamic - ZONE, ZONE);
}

void emu_shared_end_grid(void) {
    UNPOISON(region, REGION_BYTES);
    kernel = NULL;
}

void emu_shared_region(const unsigned char **start, size_t *bytes) {
    *start = region;
    *bytes = region == NULL ? 0 : REGION_BYTES;
}

bool emu_shared_name(const void *p, const char **name, size_t *offset) {
    size_t at = (size_t)((uintptr_t)p - (uintptr_t)region);
    for (size_t i = 0; i < array_count; i++)
        if (at >= arrays[i].offset && at < arrays[i].offset + arrays[i].bytes) {
            *name = arrays[i].name;
            *offset = at - arrays[i].offset;
            return true;
        }
    if ((uintptr_t)p < (uintptr_t)dynamic || (uintptr_t)p >= (uintptr_t)dynamic + dynamic_bytes)
        return false;
    *name = "dynamic";
    *offset = (size_t)((uintptr_t)p - (uintptr_t)dynamic);
    return true;
}
