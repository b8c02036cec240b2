/* key.c - node ids from classes, objects and indices, and back. */
#include "config.h"

#include "fsmount/key.h"

#include "shard/layout.h"

enum {
    KEY_CLASS_SHIFT = 56,
    KEY_OBJECT_SHIFT = 24,
    KEY_INDEX_BITS = 24,
    INDEX_KIND_SHIFT = 19,
    INDEX_ARRAY_SHIFT = 17,
    VOLATILE_SESSION_SHIFT = 48,
    VOLATILE_FIXED_SHIFT = 40,
};
#define KEY_INDEX_MASK ((1u << KEY_INDEX_BITS) - 1)
#define INDEX_NUMBER_MASK ((1u << INDEX_ARRAY_SHIFT) - 1)
#define KEY_ROOT UINT64_C(1) /* FUSE_ROOT_ID */
#define KEY_VOLATILE (UINT64_C(1) << 63)
#define VOLATILE_SESSION_MASK UINT64_C(0x7fff)
#define VOLATILE_COUNTER_MASK ((UINT64_C(1) << VOLATILE_FIXED_SHIFT) - 1)

_Static_assert(LAYOUT_MAX_TENSORS <= INDEX_NUMBER_MASK + 1, "a tensor's index fits");
_Static_assert(LAYOUT_MAX_RANKS <= INDEX_NUMBER_MASK, "a rank's file fits");
_Static_assert(ARRAY_COUNT <= 1 << (INDEX_KIND_SHIFT - INDEX_ARRAY_SHIFT), "an array fits");
_Static_assert(BUNDLE_KIND_COUNT <= 1 << (KEY_INDEX_BITS - INDEX_KIND_SHIFT), "a kind fits");

uint64_t key_pack(struct key k) {
    if (k.class == KEY_FIXED && k.index == FIXED_ROOT)
        return KEY_ROOT;
    return (uint64_t)k.class << KEY_CLASS_SHIFT | (uint64_t)k.object << KEY_OBJECT_SHIFT |
           (k.index & KEY_INDEX_MASK);
}

bool key_unpack(uint64_t ino, struct key *out) {
    if (ino == KEY_ROOT) {
        *out = key_fixed(FIXED_ROOT);
        return true;
    }
    uint64_t class = ino >> KEY_CLASS_SHIFT;
    if (class < KEY_FIXED || class >= KEY_CLASS_END)
        return false;
    struct key k = {.class = (enum key_class) class,
                    .object = (uint32_t)(ino >> KEY_OBJECT_SHIFT),
                    .index = (uint32_t)ino & KEY_INDEX_MASK};
    struct bundle_index i;
    if (k.class == KEY_FIXED && (k.object != 0 || k.index == FIXED_ROOT || k.index >= FIXED_END))
        return false;
    if (k.class == KEY_RANK && k.index >= RANK_FILE_COUNT)
        return false;
    if (k.class >= KEY_LIVE && !bundle_index_unpack(k.index, &i))
        return false;
    *out = k;
    return true;
}

uint32_t bundle_index_pack(struct bundle_index i) {
    return (uint32_t)i.kind << INDEX_KIND_SHIFT | i.array << INDEX_ARRAY_SHIFT | i.number;
}

bool bundle_index_unpack(uint32_t index, struct bundle_index *out) {
    uint32_t kind = index >> INDEX_KIND_SHIFT;
    if (kind >= BUNDLE_KIND_COUNT)
        return false;
    out->kind = (enum bundle_kind)kind;
    out->array = index >> INDEX_ARRAY_SHIFT & 3;
    out->number = index & INDEX_NUMBER_MASK;
    return true;
}

struct key key_fixed(uint32_t index) {
    return (struct key){.class = KEY_FIXED, .index = index};
}

struct key key_bundle(enum key_class class, uint32_t object, enum bundle_kind kind, uint32_t array,
                      uint32_t number) {
    struct bundle_index i = {.kind = kind, .array = array, .number = number};
    return (struct key){.class = class, .object = object, .index = bundle_index_pack(i)};
}

uint64_t key_volatile(uint64_t session, uint32_t fixed_index, uint64_t counter) {
    return KEY_VOLATILE | (session & VOLATILE_SESSION_MASK) << VOLATILE_SESSION_SHIFT |
           (uint64_t)(fixed_index & 0xff) << VOLATILE_FIXED_SHIFT |
           (counter & VOLATILE_COUNTER_MASK);
}

bool key_is_volatile(uint64_t ino) { return (ino & KEY_VOLATILE) != 0; }

uint32_t key_volatile_fixed(uint64_t ino) { return (uint32_t)(ino >> VOLATILE_FIXED_SHIFT) & 0xff; }
