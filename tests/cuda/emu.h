/* emu.h - what kernels need to be compiled by g++ (C++17) and run on the CPU: launches, shared
 * memory, barriers, warps. launch.h includes it in place of the CUDA compiler's own words.
 *
 *   g++ -x c++ -std=c++17 -DGFS_EMULATION -I. -Isrc -isystem $CUDA/include -c kernel.cu
 *
 * Types and bf16 storage come from the real headers. What is not here a kernel may not use.
 *
 * Not seen: registers and __launch_bounds__, warps that run in step (a thread runs until it waits),
 * weak memory order, asynchronous copies, tensor cores, and what PTX does. */
#ifndef GFS_TESTS_CUDA_EMU_H
#define GFS_TESTS_CUDA_EMU_H

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <new>
#include <stddef.h>
#include <stdint.h>
#include <tuple>
#include <type_traits>

#include "tests/cuda/emu_block.h"
#include "tests/cuda/emu_math.h"

#define __launch_bounds__(...)
#define threadIdx emu_thread_idx
#define blockIdx emu_block_idx
#define blockDim emu_block_dim
#define gridDim emu_grid_dim
static const int warpSize = EMU_WARP;

#define GFS_UNWRAP(...) __VA_ARGS__
#define EMU_NAME(...) #__VA_ARGS__
#define LAUNCH(kernel, grid, block, smem_bytes, stream, ...)                                       \
    emu::launch(EMU_NAME kernel, (grid), (block), (smem_bytes), (stream), GFS_UNWRAP kernel,       \
                __VA_ARGS__)
#define LAUNCH_ERROR() cudaGetLastError()
#define SMEM(type, name, dims)                                                                     \
    static const char emu_key_##name = 0;                                                          \
    typedef type emu_type_##name dims;                                                             \
    emu_type_##name &name = *static_cast<emu_type_##name *>(emu_static_shared(                     \
        &emu_key_##name, #name, sizeof(emu_type_##name), alignof(emu_type_##name)))
#define DYN_SMEM(type, name) type *name = static_cast<type *>(emu_dynamic_shared())

namespace emu {

/* The function and its arguments, as the queue keeps them. */
template <class... P> struct closure {
    void (*function)(P...);
    std::tuple<P...> args;

    static void run(const void *self) {
        const closure *c = static_cast<const closure *>(self);
        std::apply(c->function, c->args);
    }
};

template <class T> void note_pointer(emu_argument *out, size_t *count, uint32_t index, T *p) {
    out[*count].pointer = reinterpret_cast<const void *>(p);
    out[*count].index = index;
    (*count)++;
}
template <class T> void note_pointer(emu_argument *, size_t *, uint32_t, const T &) {}

template <class... P, size_t... I>
void note_pointers(emu_argument *out, size_t *count, const std::tuple<P...> &args,
                   std::index_sequence<I...>) {
    (note_pointer(out, count, (uint32_t)I, std::get<I>(args)), ...);
}

/* Arguments are converted to the kernel's own types, as by <<<>>>. */
template <class... P, class... A>
void launch(const char *name, dim3 grid, dim3 block, size_t smem_bytes, cudaStream_t stream,
            void (*function)(P...), A &&...args) {
    static_assert((std::is_trivially_copyable<P>::value && ...), "a kernel's arguments are bytes");
    static_assert(sizeof(std::tuple<P...>) <= 4096, "a kernel takes 4 KiB of arguments");
    /* Zeroed first: what is left of an old pointer between two arguments is none of them. */
    alignas(closure<P...>) unsigned char storage[sizeof(closure<P...>)] = {0};
    __asm__ volatile("" : : "r"(storage) : "memory"); /* or the zeros would be dead stores */
    closure<P...> &c =
        *new (storage) closure<P...>{function, std::tuple<P...>(static_cast<P>(args)...)};
    emu_argument pointers[sizeof...(P) + 1] = {};
    size_t count = 0;
    note_pointers(pointers, &count, c.args, std::index_sequence_for<P...>());
    emu_kernel k = {
        name,      reinterpret_cast<const void *>(function), closure<P...>::run, grid, block,
        smem_bytes};
    emu_launch(&k, stream, &c, sizeof c, pointers, count);
}

template <class T> uint64_t to_bits(T v) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves 4 or 8 bytes");
    uint64_t bits = 0;
    __builtin_memcpy(&bits, &v, sizeof v);
    return bits;
}
template <class T> T from_bits(uint64_t bits) {
    T v;
    __builtin_memcpy(&v, &bits, sizeof v);
    return v;
}

} // namespace emu

/* The runtime's C++ spellings, which take a kernel by its type. */
template <class... P>
cudaError_t cudaFuncSetAttribute(void (*f)(P...), enum cudaFuncAttribute a, int value) {
    return ::cudaFuncSetAttribute(reinterpret_cast<const void *>(f), a, value);
}
template <class... P>
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, void (*f)(P...)) {
    return ::cudaFuncGetAttributes(out, reinterpret_cast<const void *>(f));
}
template <class... P>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *out, void (*f)(P...), int threads,
                                                          size_t dynamic_bytes) {
    return ::cudaOccupancyMaxActiveBlocksPerMultiprocessor(out, reinterpret_cast<const void *>(f),
                                                           threads, dynamic_bytes);
}

/* The place of the call tells one barrier from another. */
#define EMU_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(EMU_PLACE) { emu_syncthreads(0, file, line); }
inline int __syncthreads_count(int v, EMU_PLACE) { return emu_syncthreads(v != 0, file, line); }
inline int __syncthreads_or(int v, EMU_PLACE) { return emu_syncthreads(v != 0, file, line) != 0; }
inline int __syncthreads_and(int v, EMU_PLACE) { return emu_syncthreads(v == 0, file, line) == 0; }

inline void __syncwarp(unsigned mask = 0xffffffffu, EMU_PLACE) {
    emu_warp(EMU_SYNCWARP, mask, 0, 0, EMU_WARP, file, line);
}
inline unsigned __activemask() { return emu_activemask(); }
inline unsigned __ballot_sync(unsigned mask, int v, EMU_PLACE) {
    return (unsigned)emu_warp(EMU_BALLOT, mask, v != 0, 0, EMU_WARP, file, line);
}
inline int __any_sync(unsigned mask, int v, EMU_PLACE) {
    return __ballot_sync(mask, v, file, line) != 0;
}
inline int __all_sync(unsigned mask, int v, EMU_PLACE) {
    return __ballot_sync(mask, !v, file, line) == 0;
}
template <class T> unsigned __match_any_sync(unsigned mask, T v, EMU_PLACE) {
    return (unsigned)emu_warp(EMU_MATCH_ANY, mask, emu::to_bits(v), 0, EMU_WARP, file, line);
}

template <class T> T __shfl_sync(unsigned mask, T v, int lane, int width = EMU_WARP, EMU_PLACE) {
    return emu::from_bits<T>(
        emu_warp(EMU_SHFL, mask, emu::to_bits(v), (uint32_t)lane, (uint32_t)width, file, line));
}
template <class T>
T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = EMU_WARP, EMU_PLACE) {
    return emu::from_bits<T>(
        emu_warp(EMU_SHFL_UP, mask, emu::to_bits(v), delta, (uint32_t)width, file, line));
}
template <class T>
T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = EMU_WARP, EMU_PLACE) {
    return emu::from_bits<T>(
        emu_warp(EMU_SHFL_DOWN, mask, emu::to_bits(v), delta, (uint32_t)width, file, line));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T v, int lane_mask, int width = EMU_WARP, EMU_PLACE) {
    return emu::from_bits<T>(emu_warp(EMU_SHFL_XOR, mask, emu::to_bits(v), (uint32_t)lane_mask,
                                      (uint32_t)width, file, line));
}

/* Fibers switch at barriers only, so a fence has nothing to order. */
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
#define __trap() emu_trap("__trap")

/* Atomics: the builtins, so that the race detector knows them by their names. */
template <class T> T emu_atomic_add(T *p, T v) {
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
inline int atomicAdd(int *p, int v) { return emu_atomic_add(p, v); }
inline unsigned atomicAdd(unsigned *p, unsigned v) { return emu_atomic_add(p, v); }
inline unsigned long long atomicAdd(unsigned long long *p, unsigned long long v) {
    return emu_atomic_add(p, v);
}

/* p = f(p), by compare and exchange of its bits. */
template <class T, class Bits, class F> T emu_atomic_update(T *p, F f) {
    static_assert(sizeof(T) == sizeof(Bits), "bits of another size");
    Bits *b = reinterpret_cast<Bits *>(p);
    Bits old = __atomic_load_n(b, __ATOMIC_RELAXED);
    for (;;) {
        T was;
        __builtin_memcpy(&was, &old, sizeof was);
        T now = f(was);
        Bits want;
        __builtin_memcpy(&want, &now, sizeof want);
        if (__atomic_compare_exchange_n(b, &old, want, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            return was;
    }
}
inline float atomicAdd(float *p, float v) {
    return emu_atomic_update<float, uint32_t>(p, [v](float a) { return a + v; });
}
inline double atomicAdd(double *p, double v) {
    return emu_atomic_update<double, uint64_t>(p, [v](double a) { return a + v; });
}
#define EMU_ATOMIC_INT(type, bits)                                                                 \
    inline type atomicSub(type *p, type v) { return __atomic_fetch_sub(p, v, __ATOMIC_RELAXED); }  \
    inline type atomicAnd(type *p, type v) { return __atomic_fetch_and(p, v, __ATOMIC_RELAXED); }  \
    inline type atomicOr(type *p, type v) { return __atomic_fetch_or(p, v, __ATOMIC_RELAXED); }    \
    inline type atomicXor(type *p, type v) { return __atomic_fetch_xor(p, v, __ATOMIC_RELAXED); }  \
    inline type atomicExch(type *p, type v) {                                                      \
        return __atomic_exchange_n(p, v, __ATOMIC_RELAXED);                                        \
    }                                                                                              \
    inline type atomicMax(type *p, type v) {                                                       \
        return emu_atomic_update<type, bits>(p, [v](type a) { return a > v ? a : v; });            \
    }                                                                                              \
    inline type atomicMin(type *p, type v) {                                                       \
        return emu_atomic_update<type, bits>(p, [v](type a) { return a < v ? a : v; });            \
    }                                                                                              \
    inline type atomicCAS(type *p, type expected, type v) {                                        \
        __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);   \
        return expected;                                                                           \
    }
EMU_ATOMIC_INT(int, uint32_t)
EMU_ATOMIC_INT(unsigned, uint32_t)
EMU_ATOMIC_INT(unsigned long long, uint64_t)
#undef EMU_ATOMIC_INT
inline float atomicExch(float *p, float v) {
    return emu_atomic_update<float, uint32_t>(p, [v](float) { return v; });
}

#endif
