/* philox.c - Philox 4x32-10, and normal deviates from it. */
#include "config.h"

#include "device/philox.h"

#include <math.h>

enum { ROUNDS = 10 };

void philox_4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t a = UINT64_C(0xD2511F53) * c0, b = UINT64_C(0xCD9E8D57) * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

static void normal_pair(uint32_t a, uint32_t b, double out[2]) {
    double radius = sqrt(-2.0 * log(((double)a + 1.0) * 0x1p-32));
    double angle = 6.283185307179586477 * ((double)b * 0x1p-32);
    out[0] = radius * cos(angle);
    out[1] = radius * sin(angle);
}

void philox_normal(float *out, size_t elems, uint64_t seed, uint64_t sequence, uint64_t first,
                   float mean, float std) {
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint64_t i = first, end = first + elems;
    while (i < end) {
        uint64_t block = i / 4;
        uint32_t words[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)sequence,
                             (uint32_t)(sequence >> 32)};
        double normals[4];
        philox_4x32(words, key, words);
        normal_pair(words[0], words[1], normals);
        normal_pair(words[2], words[3], normals + 2);
        for (; i < end && i / 4 == block; i++)
            out[i - first] = (float)(mean + std * normals[i % 4]);
    }
}
