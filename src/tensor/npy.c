/* npy.c - the header of a .npy file. */
#include "config.h"

#include "tensor/npy.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { NPY_MAGIC_BYTES = 10 /* magic, version, u16 length */ };

int npy_header(const struct tensor_spec *t, uint8_t out[NPY_HEADER_BYTES]) {
    uint64_t numel;
    int rc = tensor_numel(t, &numel);
    if (rc != 0)
        return rc;
    char shape[TENSOR_MAX_DIMS * 22 + 4] = "(";
    size_t n = 1;
    for (uint32_t i = 0; i < t->ndim; i++)
        n += (size_t)snprintf(shape + n, sizeof(shape) - n, "%s%llu", i == 0 ? "" : ", ",
                              (unsigned long long)t->shape[i]);
    /* A tuple of one needs its comma. */
    snprintf(shape + n, sizeof(shape) - n, "%s)", t->ndim == 1 ? "," : "");

    char text[NPY_HEADER_BYTES + 64];
    int len = snprintf(text, sizeof(text),
                       "{'descr': '<f4', 'fortran_order': False, 'shape': %s, }", shape);
    enum { room = NPY_HEADER_BYTES - NPY_MAGIC_BYTES };
    if (len < 0 || len > room - 1)
        return -EOVERFLOW;
    memcpy(out, "\x93NUMPY\x01\x00", 8);
    out[8] = room;
    out[9] = 0;
    memset(out + NPY_MAGIC_BYTES, ' ', room);
    memcpy(out + NPY_MAGIC_BYTES, text, (size_t)len);
    out[NPY_HEADER_BYTES - 1] = '\n';
    return 0;
}
