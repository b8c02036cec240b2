/* blas.c - matrix products by OpenBLAS; a build with GFS_NO_BLAS has none of it. */
#include "config.h"

#include "device/cpu/cpu.h"

#ifdef GFS_NO_BLAS

#include <stdlib.h>

bool cpu_blas_there(void) { return false; }

void cpu_blas_multiply(const struct cpu_gemm *g, uint32_t threads) {
    (void)g, (void)threads;
    abort(); /* unreachable: nobody calls what is not there */
}

#else

#include <cblas.h>

bool cpu_blas_there(void) { return true; }

void cpu_blas_multiply(const struct cpu_gemm *g, uint32_t threads) {
    if (openblas_get_num_threads() != (int)threads) /* it belongs to the process */
        openblas_set_num_threads((int)threads);
    cblas_sgemm(CblasRowMajor, g->trans_a ? CblasTrans : CblasNoTrans,
                g->trans_b ? CblasTrans : CblasNoTrans, (int)g->m, (int)g->n, (int)g->k, g->alpha,
                g->a, (int)g->lda, g->b, (int)g->ldb, g->beta, g->c, (int)g->ldc);
}

#endif
