/* manifest.h - the text of manifest.json: written from what was written, checked whole before
 * anything of it is believed. */
#ifndef GFS_STORE_MANIFEST_H
#define GFS_STORE_MANIFEST_H

#include "store/snapshot.h"

#define MANIFEST_FILE "manifest.json"
enum { MANIFEST_MAX_BYTES = 256 << 20, MANIFEST_RANK_FILE_BYTES = 24 };

struct manifest {
    struct snapshot_info info;
    struct layout layout;   /* owned */
    uint32_t section_count; /* of one rank: arrays in the mask * units */
    uint64_t *checksums;    /* owned [world_size][section_count], XXH3-64 */
    char *train_state;      /* owned, SNAPSHOT_TRAIN_STATE_BYTES and a NUL */
    char *model_config;     /* owned */
};

/* A section of a rank's file: the elements of one unit in one array. */
struct manifest_section {
    enum array array;
    uint32_t unit;
    uint64_t bytes;
};

/* Number of sections of a rank, and the index-th of them: arrays of the mask ascending, units
 * ascending. */
uint32_t manifest_section_count(const struct layout *l, uint32_t array_mask);
struct manifest_section manifest_section_at(const struct layout *l, uint32_t array_mask,
                                            uint32_t rank, uint32_t index);

void manifest_rank_file(uint32_t rank, char out[MANIFEST_RANK_FILE_BYTES]);
/* The header page of a rank's file. The manifest determines each byte of it, so that it needs no
 * checksum. */
void manifest_rank_header(const struct layout *l, uint32_t array_mask, uint32_t rank,
                          uint64_t snapshot_id, uint8_t out[SNAPSHOT_HEADER_BYTES]);
/* Appends the JSON object of a rank. checksums[section_count]. -EINVAL when a unit's name is not
 * UTF-8. */
int manifest_put_rank(const struct layout *l, uint32_t array_mask, uint32_t rank,
                      const uint64_t *checksums, struct enc *out);

/* The whole text. entries[r]: the object of rank r, as manifest_put_rank wrote it; each is checked
 * against the layout. */
int manifest_encode(const struct snapshot_info *info, const struct layout *l,
                    const char *const *entries, const char *train_state, const char *model_config,
                    struct enc *out, struct err *err);
/* -EIO for whatever is not exactly what manifest_encode writes, down to the last bit; -ENOMEM. */
int manifest_decode(const char *text, size_t len_bytes, struct manifest *out, struct err *err);
void manifest_free(struct manifest *m);

#endif
