/* key.h - node ids: which file a number stands for. Pure arithmetic.
 *
 * A static file has the same node id for each daemon of a mount, so that open files survive a
 * restart: it is made of the class, the id of the object (a pin's or a snapshot's, never reused)
 * and the index of the file in it. The same number is the st_ino of each file. A volatile file gets
 * a fresh node id for each LOOKUP: bit 63, the daemon's session, which fixed file it is (so that a
 * successor knows a control file again), and a counter. */
#ifndef GFS_FSMOUNT_KEY_H
#define GFS_FSMOUNT_KEY_H

#include <stdbool.h>
#include <stdint.h>

enum key_class { KEY_FIXED = 1, KEY_RANK, KEY_LIVE, KEY_PIN, KEY_SNAPSHOT, KEY_CLASS_END };

struct key {
    enum key_class class;
    uint32_t object; /* rank, pin or snapshot; else 0 */
    uint32_t index;  /* below 2^24 */
};

/* Index of KEY_FIXED: below 256. */
enum fixed_file {
    FIXED_ROOT,
    FIXED_README,
    FIXED_VERSION,
    FIXED_STATUS,
    FIXED_RANKS,
    FIXED_CONTROL,
    FIXED_PINS,
    FIXED_SNAPSHOTS,
    FIXED_STATUS_FILE = 32,   /* + number of the file in status/ */
    FIXED_CONTROL_FILE = 128, /* + number of the file in control/ */
    FIXED_END = 256,
};

/* Index of KEY_RANK. */
enum rank_file {
    RANK_DIR,
    RANK_STATE,
    RANK_LAST_SEEN,
    RANK_MEMORY,
    RANK_PID,
    RANK_HOLDS,
    RANK_DEVICE,
    RANK_FILE_COUNT
};

/* The files of live/, a pin or a snapshot: index = kind, array, number. */
enum bundle_kind {
    BUNDLE_DIR,
    BUNDLE_ARRAY_DIR, /* array */
    BUNDLE_RAW_DIR,
    BUNDLE_RAW_ARRAY_DIR, /* array */
    BUNDLE_NPY,           /* array, tensor */
    BUNDLE_RAW,           /* array, tensor */
    BUNDLE_WEIGHTS,       /* model.safetensors */
    BUNDLE_HF_DIR,
    BUNDLE_HF_FILE, /* number */
    BUNDLE_TRAIN_STATE,
    BUNDLE_SHARDS_DIR,
    BUNDLE_SHARD_FILE, /* 0 the manifest, 1 + rank */
    BUNDLE_KIND_COUNT,
};
struct bundle_index {
    enum bundle_kind kind;
    uint32_t array, number;
};

/* The inode number of a static file. */
uint64_t key_pack(struct key k);
/* False for a number that no static file has. */
bool key_unpack(uint64_t ino, struct key *out);

/* The index of a key within a pin or snapshot. */
uint32_t bundle_index_pack(struct bundle_index i);
/* False for an index without meaning. */
bool bundle_index_unpack(uint32_t index, struct bundle_index *out);

struct key key_fixed(uint32_t index);
struct key key_bundle(enum key_class class, uint32_t object, enum bundle_kind kind, uint32_t array,
                      uint32_t number);

/* The inode number of a volatile node; the session tells it from those of a dead daemon. */
uint64_t key_volatile(uint64_t session, uint32_t fixed_index, uint64_t counter);
bool key_is_volatile(uint64_t ino);
/* Of a volatile id: the fixed file it stands for, 0 for others. */
uint32_t key_volatile_fixed(uint64_t ino);

#endif
