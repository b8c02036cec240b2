/* emu_mma.h - the instructions of device/cuda/mma.cuh by the register layouts that the PTX ISA
 * documents, so that tensor-core kernels run as they are.
 *
 * A warp's instruction is an exchange: each lane leaves what it holds in a slot, all meet, each
 * takes what its registers of the result need, all meet again. What cp.async writes is garbage from
 * the copy on; the copy itself comes to pass at once or as late as the wait for its group. Both
 * happen, by EMU_THREADS: late with asc, at once with desc, either with random. So a wait that is
 * missing shows, and a barrier that is missing before memory is used again.
 *
 * Ends the program on: an address that is not aligned, rows of an 8 x 8 matrix that share a bank
 * (on a GPU only slow), a copy that nothing waits for before the thread begins another block. */
#ifndef GFS_TESTS_CUDA_EMU_MMA_H
#define GFS_TESTS_CUDA_EMU_MMA_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "tests/cuda/emu.h"
extern "C" {
#include "tests/cuda/emu_control.h"
}

namespace emu {

struct mma_slot {
    uint32_t a[4], b[2];
    const uint16_t *row;
};

/* Of this thread's warp. One thread runs at a time, and a warp's lanes are in step around it. */
inline mma_slot *mma_slots() {
    static mma_slot slots[EMU_THREADS_MAX / EMU_WARP][EMU_WARP];
    return slots[threadIdx.x / EMU_WARP];
}

inline float bf16_half(uint32_t bits, int high) {
    uint32_t f = high ? bits & 0xffff0000u : bits << 16;
    float v;
    memcpy(&v, &f, sizeof v);
    return v;
}

/* A (row, k) and B (k, column) of m16n8k16, from the lanes that hold them */
inline float mma_a(const mma_slot *s, int row, int k) {
    const mma_slot &lane = s[row % 8 * 4 + k % 8 / 2];
    return bf16_half(lane.a[row / 8 + k / 8 * 2], k % 2);
}
inline float mma_b(const mma_slot *s, int k, int column) {
    return bf16_half(s[column * 4 + k % 8 / 2].b[k / 8], k % 2);
}

inline void ldmatrix_exchange(const void *row) {
    if (reinterpret_cast<uintptr_t>(row) % 16 != 0)
        emu_trap("ldmatrix: %p is not aligned to 16 bytes", row);
    mma_slot *s = mma_slots();
    s[threadIdx.x % EMU_WARP].row = static_cast<const uint16_t *>(row);
    __syncwarp();
    unsigned seen = 0;
    for (unsigned r = 0; r < 8; r++)
        seen |=
            1u << reinterpret_cast<uintptr_t>(s[threadIdx.x % EMU_WARP / 8 * 8 + r].row) / 16 % 8;
    if (seen != 0xff)
        emu_trap("ldmatrix: the eight rows of a matrix share banks");
}

struct async_copy_one {
    void *to;
    const void *from;
    int bytes, valid_bytes;
};

enum { ASYNC_MAX = 256, ASYNC_GROUPS_MAX = 16 };

/* Of one thread: copies not yet done, oldest first, and how many of them each closed group has. */
struct async_queue {
    async_copy_one copies[ASYNC_MAX];
    int count, groups[ASYNC_GROUPS_MAX], group_count, closed;
    uint3 block;
    emu_thread_order order;
    uint32_t random;
};

/* Calls of memset and memcpy with sizes that the compiler does not know: the race detector sees
 * those, and not what they are expanded to. */
inline void __attribute__((noipa)) async_fill(const async_copy_one *c, int value) {
    memset(c->to, value, (size_t)c->bytes);
}
inline void __attribute__((noipa)) async_do(async_copy_one *c) {
    memset(c->to, 0, (size_t)c->bytes);
    memcpy(c->to, c->from, (size_t)c->valid_bytes);
    c->bytes = c->valid_bytes = 0;
}

inline async_queue &async_queue_of_thread() {
    static async_queue queues[EMU_THREADS_MAX];
    async_queue &q = queues[threadIdx.x];
    const bool same = q.block.x == blockIdx.x && q.block.y == blockIdx.y && q.block.z == blockIdx.z;
    if (!same && q.count > 0)
        emu_trap("cp.async: a thread of block %u ended before %d copies were waited for", q.block.x,
                 q.count);
    if (!same)
        q.group_count = q.closed = 0;
    q.block = blockIdx;
    if (q.count == 0) {
        const emu_settings settings = emu_get_settings();
        q.order = settings.threads;
        q.random = (uint32_t)settings.seed * 2654435761u + threadIdx.x + blockIdx.x * 1021u;
    }
    return q;
}

} // namespace emu

inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    emu::mma_slot *s = emu::mma_slots();
    const int lane = threadIdx.x % EMU_WARP;
    memcpy(s[lane].a, a, sizeof a);
    s[lane].b[0] = b0;
    s[lane].b[1] = b1;
    __syncwarp();
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 16; k++)
            c[i] = fmaf(emu::mma_a(s, lane / 4 + i / 2 * 8, k),
                        emu::mma_b(s, k, lane % 4 * 2 + i % 2), c[i]);
    __syncwarp();
}

inline void ldmatrix(uint32_t (&to)[4], const void *row) {
    emu::ldmatrix_exchange(row);
    const emu::mma_slot *s = emu::mma_slots();
    const int lane = threadIdx.x % EMU_WARP;
    for (int i = 0; i < 4; i++)
        memcpy(&to[i], s[8 * i + lane / 4].row + lane % 4 * 2, sizeof to[i]);
    __syncwarp();
}

inline void ldmatrix_transposed(uint32_t (&to)[4], const void *row) {
    emu::ldmatrix_exchange(row);
    const emu::mma_slot *s = emu::mma_slots();
    const int lane = threadIdx.x % EMU_WARP;
    for (int i = 0; i < 4; i++) {
        const uint32_t low = s[8 * i + lane % 4 * 2].row[lane / 4];
        to[i] = low | (uint32_t)s[8 * i + lane % 4 * 2 + 1].row[lane / 4] << 16;
    }
    __syncwarp();
}

template <int BYTES> void async_copy(void *to, const void *from, bool valid) {
    emu::async_queue &q = emu::async_queue_of_thread();
    if (reinterpret_cast<uintptr_t>(to) % BYTES != 0 ||
        reinterpret_cast<uintptr_t>(from) % BYTES != 0)
        emu_trap("cp.async: %p or %p is not aligned to %d bytes", to, from, BYTES);
    if (q.count == emu::ASYNC_MAX)
        emu_trap("cp.async: more than %d copies on their way", q.count);
    emu::async_copy_one *c = &q.copies[q.count++];
    *c = {to, from, BYTES, valid ? BYTES : 0};
    emu::async_fill(c, 0xff);
    q.random = q.random * 1664525u + 1013904223u;
    if (q.order == EMU_DESC || (q.order == EMU_SHUFFLED && q.random >> 31 != 0))
        emu::async_do(c);
}

inline void async_commit() {
    emu::async_queue &q = emu::async_queue_of_thread();
    if (q.group_count == emu::ASYNC_GROUPS_MAX)
        emu_trap("cp.async: more than %d groups on their way", q.group_count);
    q.groups[q.group_count++] = q.count - q.closed;
    q.closed = q.count;
}

template <int but> void async_wait() {
    emu::async_queue &q = emu::async_queue_of_thread();
    int done = 0, groups = q.group_count > but ? q.group_count - but : 0;
    for (int g = 0; g < groups; g++)
        done += q.groups[g];
    for (int i = 0; i < done; i++)
        emu::async_do(&q.copies[i]);
    q.count -= done;
    q.closed -= done;
    q.group_count -= groups;
    memmove(q.copies, q.copies + done, (size_t)q.count * sizeof q.copies[0]);
    memmove(q.groups, q.groups + groups, (size_t)q.group_count * sizeof q.groups[0]);
}

inline float fast_exp2(float x) { return exp2f(x); }

#endif
