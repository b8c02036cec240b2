/* npy.h - the header of a .npy file (format 1.0) of little-endian f32. */
#ifndef GFS_TENSOR_NPY_H
#define GFS_TENSOR_NPY_H

#include "tensor/tensor.h"

enum { NPY_HEADER_BYTES = 128 }; /* fits every tensor of up to TENSOR_MAX_DIMS dimensions */

/* Writes the NPY_HEADER_BYTES bytes of the header. */
int npy_header(const struct tensor_spec *t, uint8_t out[NPY_HEADER_BYTES]);

#endif
