/* tensor.c - counting the elements of a shape; tensor names as file names. */
#include "config.h"

#include "tensor/tensor.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define TENSOR_MAX_NUMEL ((UINT64_C(1) << 62) / TENSOR_ELEM_BYTES)

int tensor_numel(const struct tensor_spec *t, uint64_t *numel) {
    if (t->ndim > TENSOR_MAX_DIMS)
        return -EINVAL;
    /* Zero dimensions are left out of the product that is checked: a shape of [0, 2^63, 2^63] has
     * no elements, but readers multiply its other dimensions, and the text of the shape must fit
     * too. */
    uint64_t product = 1;
    bool empty = false;
    for (uint32_t i = 0; i < t->ndim; i++) {
        uint64_t dim = t->shape[i];
        if (dim == 0) {
            empty = true;
            continue;
        }
        if (dim > TENSOR_MAX_NUMEL / product)
            return -EOVERFLOW;
        product *= dim;
    }
    *numel = empty ? 0 : product;
    return 0;
}

static bool tensor_char_needs_code(const char *name, size_t i) {
    unsigned char c = (unsigned char)name[i];
    if (c == '/' || c == '%' || c < 0x20 || c == 0x7f)
        return true;
    /* "." and ".." are no names for files. */
    return i == 0 && (strcmp(name, ".") == 0 || strcmp(name, "..") == 0);
}

int tensor_name_encode(const char *name, char *out, size_t cap_bytes) {
    static const char hex[] = "0123456789ABCDEF";
    size_t n = 0;
    if (name[0] == '\0')
        return -EINVAL;
    for (size_t i = 0; name[i] != '\0'; i++) {
        unsigned char c = (unsigned char)name[i];
        bool code = tensor_char_needs_code(name, i);
        if (n + (code ? 3 : 1) >= cap_bytes)
            return -ENAMETOOLONG;
        if (code) {
            out[n++] = '%';
            out[n++] = hex[c >> 4];
            out[n++] = hex[c & 15];
        } else {
            out[n++] = (char)c;
        }
    }
    out[n] = '\0';
    return 0;
}

static int tensor_hex_digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int tensor_name_decode(const char *file, char *out, size_t cap_bytes) {
    size_t n = 0;
    for (const char *p = file; *p != '\0'; n++) {
        if (n + 1 >= cap_bytes)
            return -EINVAL;
        if (*p != '%') {
            out[n] = *p++;
            continue;
        }
        int hi = tensor_hex_digit(p[1]);
        int lo = hi < 0 ? -1 : tensor_hex_digit(p[2]);
        if (lo < 0 || (hi == 0 && lo == 0))
            return -EINVAL;
        out[n] = (char)(hi * 16 + lo);
        p += 3;
    }
    if (n == 0)
        return -EINVAL;
    out[n] = '\0';
    /* One file name for a tensor, not several: what encode would not have written is refused. */
    for (size_t i = 0, at = 0; i < n; i++) {
        bool coded = file[at] == '%';
        if (coded != tensor_char_needs_code(out, i))
            return -EINVAL;
        at += coded ? 3 : 1;
    }
    return 0;
}

int tensor_shape_print(const struct tensor_spec *t, char *out, size_t cap_bytes) {
    if (t->ndim > TENSOR_MAX_DIMS)
        return -EINVAL;
    size_t n = 0;
    for (uint32_t i = 0; i < t->ndim; i++) {
        int w = snprintf(out + n, cap_bytes - n, "%s%llu", i == 0 ? "" : ",",
                         (unsigned long long)t->shape[i]);
        if (w < 0 || (size_t)w >= cap_bytes - n)
            return -ENAMETOOLONG;
        n += (size_t)w;
    }
    if (t->ndim > 0)
        return 0;
    if (cap_bytes < 3)
        return -ENAMETOOLONG;
    memcpy(out, "()", 3);
    return 0;
}
