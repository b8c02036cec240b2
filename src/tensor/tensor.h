/* tensor.h - what a tensor is before anybody asks where it lies: name, shape, numel; and names as
 * file names. */
#ifndef GFS_TENSOR_TENSOR_H
#define GFS_TENSOR_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TENSOR_MAX_DIMS = 4, TENSOR_NAME_BYTES = 128, TENSOR_ELEM_BYTES = 4 /* f32 */ };

struct tensor_spec {
    char name[TENSOR_NAME_BYTES]; /* the Hugging Face name */
    uint32_t ndim;
    uint64_t shape[TENSOR_MAX_DIMS];
    uint32_t module; /* index of the module that uses it; tensors come in module order */
    bool decay;      /* weight decay applies (matrices only) */
};

/* Product of the shape, 1 for a scalar; -EOVERFLOW when the bytes do not fit 2^62 (dimensions of 0
 * left out), -EINVAL for ndim out of range. */
int tensor_numel(const struct tensor_spec *t, uint64_t *numel);

/* File name of a tensor: '/', '%' and control bytes percent-encoded, and the first dot of "." and
 * "..". -ENAMETOOLONG, -EINVAL for "". decode is the inverse; -EINVAL for what encode never writes.
 */
int tensor_name_encode(const char *name, char *out, size_t cap_bytes);
int tensor_name_decode(const char *file, char *out, size_t cap_bytes);

/* The shape as text without spaces: "2,3", "5", "()" for a scalar. -ENAMETOOLONG. */
int tensor_shape_print(const struct tensor_spec *t, char *out, size_t cap_bytes);

#endif
