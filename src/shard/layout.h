/* layout.h - which rank holds which element: pure arithmetic, no I/O, no state but the tables.
 *
 * A model is a list of tensors. Tensors lie one after the other, without gaps, in units; a unit is
 * one flat array of `numel` elements, padded to world_size * shard_elems. Rank r holds elements [r
 * * shard_elems, (r + 1) * shard_elems) of it; the last ranks may be short or empty. Every sharded
 * array (params, grads, exp_avg, exp_avg_sq) uses the same layout, fp32.
 *
 * A *dump* is the form in which a rank's part of a pin or a snapshot lies in memory and on disk:
 * for each array in the mask (ascending), for each unit (ascending), the valid elements of the
 * rank's shard: no padding. */
#ifndef GFS_SHARD_LAYOUT_H
#define GFS_SHARD_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "tensor/tensor.h"

enum array { ARRAY_PARAMS, ARRAY_GRADS, ARRAY_EXP_AVG, ARRAY_EXP_AVG_SQ, ARRAY_COUNT };
#define ARRAY_BIT(a) (1u << (a))
#define ARRAY_MASK_STATE                                                                           \
    (ARRAY_BIT(ARRAY_PARAMS) | ARRAY_BIT(ARRAY_EXP_AVG) | ARRAY_BIT(ARRAY_EXP_AVG_SQ))
#define ARRAY_MASK_ALL (ARRAY_MASK_STATE | ARRAY_BIT(ARRAY_GRADS))
extern const char *const array_names[ARRAY_COUNT]; /* "params", "grads", "exp_avg", "exp_avg_sq" */

enum { LAYOUT_MAX_RANKS = 4096, LAYOUT_MAX_TENSORS = 65536, LAYOUT_SHARD_ALIGN_ELEMS = 16 };

struct layout_tensor {
    struct tensor_spec spec;
    uint64_t numel;
    uint32_t unit;
    uint64_t offset_elems; /* of its first element in the unit */
};

struct layout_unit {
    char name[TENSOR_NAME_BYTES]; /* "root", "transformer.h.0", ... */
    uint32_t first_tensor, tensor_count;
    uint64_t numel;       /* without padding */
    uint64_t shard_elems; /* elements a rank, padding included */
};

struct layout {
    uint32_t world_size, tensor_count, unit_count;
    struct layout_tensor *tensors; /* owned */
    struct layout_unit *units;     /* owned */
};

/* Builds the layout. unit_of[i] is the unit of tensor i, non-decreasing and without holes (-EINVAL)
 * except that unit 0 (the root) may have none and may recur; tensors keep their index, and within a
 * unit they lie in index order. shard_elems is rounded up to align_elems (1: no rounding).
 * unit_names has unit_count entries. *out owns its tables; layout_free. -EINVAL, -ENOMEM,
 * -EOVERFLOW: more than 2^56 elements. */
int layout_build(const struct tensor_spec *tensors, const uint32_t *unit_of, uint32_t tensor_count,
                 const char *const *unit_names, uint32_t unit_count, uint32_t world_size,
                 uint32_t align_elems, struct layout *out, struct err *err);
void layout_free(struct layout *l);

/* Elements of rank's shard of unit that are not padding (0..shard_elems). */
uint64_t layout_shard_valid(const struct layout *l, uint32_t unit, uint32_t rank);

/* A run of elements of one tensor on one rank. */
struct layout_piece {
    uint32_t rank;
    uint64_t shard_offset_elems;  /* in the rank's shard of the tensor's unit */
    uint64_t tensor_offset_elems; /* in the tensor */
    uint64_t elems;
};
/* The pieces of a tensor in ascending order: at most one a rank. *count is how many there are; at
 * most cap are stored. A tensor of no elements has none. */
void layout_tensor_pieces(const struct layout *l, uint32_t tensor, struct layout_piece *pieces,
                          uint32_t cap, uint32_t *count);
/* The piece of a tensor on one rank; elems 0 if none. */
struct layout_piece layout_tensor_piece(const struct layout *l, uint32_t tensor, uint32_t rank);

/* Bytes before (array, unit) in the dump of rank, and of the whole dump. */
uint64_t layout_dump_offset(const struct layout *l, uint32_t array_mask, uint32_t rank,
                            enum array a, uint32_t unit);
uint64_t layout_dump_bytes(const struct layout *l, uint32_t array_mask, uint32_t rank);

int layout_find_tensor(const struct layout *l, const char *name); /* index or -ENOENT */
uint64_t layout_numel(const struct layout *l);                    /* all tensors */

/* Wire form; decode checks everything (offsets are recomputed, never trusted). */
void layout_encode(const struct layout *l, struct enc *out);
int layout_decode(struct dec *in, struct layout *out, struct err *err);

#endif
