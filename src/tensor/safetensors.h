/* safetensors.h - the header of a safetensors file of f32 tensors; the data follows in the order of
 * `order`. */
#ifndef GFS_TENSOR_SAFETENSORS_H
#define GFS_TENSOR_SAFETENSORS_H

#include "base/buf.h"
#include "base/err.h"
#include "tensor/tensor.h"

/* Where the tensors lie in the file. */
struct safetensors_plan {
    uint8_t *header; /* owned: u64 length and JSON, padded with spaces so that data starts at a
                        multiple of 4096 */
    uint64_t header_bytes; /* 8 + N: the offset of the data in the file */
    uint32_t tensor_count;
    uint32_t *order;        /* owned [tensor_count]: index into the caller's tensors */
    uint64_t *offset_bytes; /* owned [tensor_count + 1]: file offset of order[i]; the last entry is
                               the file's size */
};

/* Plans a file of `count` tensors (all f32), tensors[indices[i]] or, with indices NULL, tensors[i];
 * sorted by name, "__metadata__": {"format":"pt", ...extra} first. extra_json: members to add to
 * the metadata, e.g. "\"step\":\"000000000012\"" or NULL. Values that change must have a fixed
 * width. -EINVAL (a name twice or not UTF-8), -EOVERFLOW, -EFBIG (header above 100 MB), -ENOMEM. */
int safetensors_plan(const struct tensor_spec *tensors, const uint32_t *indices, uint32_t count,
                     const char *extra_json, struct safetensors_plan *out, struct err *err);
void safetensors_plan_free(struct safetensors_plan *p);
/* The i with offset_bytes[i] <= offset < offset_bytes[i+1] (binary search), never a tensor of no
 * bytes; tensor_count when beyond the end, or in the header. */
uint32_t safetensors_plan_find(const struct safetensors_plan *p, uint64_t offset);

#endif
