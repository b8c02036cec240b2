/* fold.h - sums, minima and maxima of what ranks contribute, taken in one order on every rank. */
#ifndef GFS_COMM_FOLD_H
#define GFS_COMM_FOLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"

/* inout (count) = the fold of parts[r] (count), r < rank_count; part r is at parts + r *
 * stride_bytes. */
void fold_f64(double *inout, const void *parts, size_t stride_bytes, uint32_t rank_count,
              size_t count, enum comm_op op);
void fold_u64(uint64_t *inout, const void *parts, size_t stride_bytes, uint32_t rank_count,
              size_t count, enum comm_op op);

/* dst (elems) = or += (accumulate) parts[0] + parts[1] + ... in this order, in f32; the parts are
 * of t. dst overlaps no part. */
void fold_sum(float *dst, const void *const *parts, enum dtype t, uint32_t part_count, size_t elems,
              bool accumulate);

#endif
