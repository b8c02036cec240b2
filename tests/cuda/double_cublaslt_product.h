/* double_cublaslt_product.h - the arithmetic of the double of cuBLASLt. */
#ifndef GFS_TESTS_CUDA_DOUBLE_CUBLASLT_PRODUCT_H
#define GFS_TESTS_CUDA_DOUBLE_CUBLASLT_PRODUCT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* d (m,n) = alpha op(a) (m,k) op(b) (k,n) + beta c (m,n), all column-major; ld*: elements from one
 * column to the next. c is of d's dtype and not read where beta is 0; it may be d. Without padding,
 * so that two problems compare as bytes. */
struct product_shape {
    uint64_t m, n, k, lda, ldb, ldc, ldd;
    uint8_t trans_a, trans_b;
    uint8_t ab_bf16, cd_bf16; /* else f32 */
    uint8_t tf32;
    uint8_t zero[3];
};
_Static_assert(sizeof(struct product_shape) == 64, "there is no padding");
struct product {
    struct product_shape shape;
    float alpha, beta;
    const void *a, *b, *c;
    void *d;
};

/* False: no memory. */
bool product_run(const struct product *p);

#endif
