/* onednn.h - bf16 products by oneDNN: the part of it that the CPU device uses, and what differs
 * between its versions 2 and 3. */
#ifndef GFS_DEVICE_CPU_ONEDNN_H
#define GFS_DEVICE_CPU_ONEDNN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/cpu/team.h"
#include "tensor/dtype.h"

/* c (m, n) = alpha op(a) op(b) + beta c; a and b bf16, c of c_dtype; k >= 1. */
struct onednn_shape {
    size_t m, n, k, lda, ldb, ldc;
    float alpha, beta;
    enum dtype c_dtype;
    bool trans_a, trans_b;
};

struct onednn; /* primitives, one for each shape that came, and memory for each thread */

/* Whether this build has oneDNN. */
bool onednn_there(void);
/* -ENOMEM; -ENOTSUP where there is none. */
int onednn_open(uint32_t threads, struct onednn **out);
void onednn_close(struct onednn *o); /* NULL too */
/* The product, by the threads of the team if it is worth it. The first of a shape makes code for
 * it, and allocates. How many threads there are changes no bit of the result. *what: the call that
 * failed. */
int onednn_multiply(struct onednn *o, struct team *team, const struct onednn_shape *s,
                    const void *a, const void *b, void *c, const char **what);

#endif
