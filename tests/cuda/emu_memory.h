/* emu_memory.h - what is allocated on the emulated devices and pinned on the host.
 *
 * Each allocation is a mapping of its own with a page on either side that can't be touched; it ends
 * at the upper one, less than 256 bytes away (those are a red zone, checked when it is freed and
 * after each operation that was told its range). It is filled with 0xff, a NaN. What is freed stays
 * reserved and untouchable, so no address is ever used twice and late use is seen.
 *
 * All with the lock of emu_stream.h held. */
#ifndef GFS_TESTS_CUDA_EMU_MEMORY_H
#define GFS_TESTS_CUDA_EMU_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/cuda/emu_stream.h"

struct emu_allocation {
    unsigned char *map; /* NULL: registered, the host's own */
    size_t map_bytes;
    unsigned char *start;
    size_t bytes;
    enum emu_kind kind;
    int device;
    bool freed;
    uint32_t number;        /* from 1, in the order of allocation */
    const char *call;       /* that made it */
    const char *freed_call; /* that freed it */
};

/* NULL: the host has no memory. */
struct emu_allocation *emu_memory_add(const char *call, enum emu_kind kind, int device,
                                      size_t bytes);
/* Host memory that lies there already. False: part of it is known. */
bool emu_memory_register(const char *call, int device, void *start, size_t bytes);
void emu_memory_remove(const char *call, struct emu_allocation *a);

/* The allocation, alive or freed, whose bytes p lies in or just behind; NULL: none. */
struct emu_allocation *emu_memory_find(const void *p);
/* The nth of all ever made, NULL at the end: to walk over them. */
struct emu_allocation *emu_memory_at(size_t n);
/* "device allocation 3 (cudaMalloc, 4096 bytes)" */
void emu_memory_describe(const struct emu_allocation *a, char *out, size_t cap);
size_t emu_memory_used(int device); /* bytes of device memory */
/* Ends the program if something wrote behind the allocation's end. */
void emu_memory_check_zone(const char *after, const struct emu_allocation *a);

/* Device memory can be touched between the two. Both may be called again. */
void emu_memory_open(void);
void emu_memory_close(void);

#endif
