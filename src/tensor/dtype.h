/* dtype.h - how a number is stored. Arithmetic is in f32 whatever the storage. */
#ifndef GFS_TENSOR_DTYPE_H
#define GFS_TENSOR_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum dtype {
    DTYPE_F32,
    DTYPE_BF16, /* the upper half of an f32 */
    DTYPE_COUNT
};

static inline size_t dtype_bytes(enum dtype t) { return t == DTYPE_BF16 ? 2 : 4; }
static inline const char *dtype_name(enum dtype t) { return t == DTYPE_BF16 ? "bf16" : "f32"; }

static inline float bf16_to_f32(uint16_t v) {
    uint32_t bits = (uint32_t)v << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Round to nearest, ties to even; a NaN stays one. */
static inline uint16_t bf16_from_f32(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#endif
