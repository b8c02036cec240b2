/* double_cublaslt.h - a double of cuBLASLt: what of cublasLt.h the program calls, computed by loops
 * when the stream runs it.
 *
 * As cuBLASLt does:
 *   - descriptors start with the defaults of the header (column-major, no transpose, an alignment
 * of 256 bytes and no workspace in a preference);
 *   - products of f32 in f32 or TF32 (whose inputs are rounded to 10 bits), of bf16 in f32, from
 *     bf16 to bf16 or f32. Other dtypes, or another type of computation for them, are
 *     CUBLAS_STATUS_NOT_SUPPORTED, from the heuristic as from the product;
 *   - shapes that do not fit, a leading dimension that is too short, a workspace that is shorter
 *     than the algorithm needs or not aligned to 256 bytes, an attribute of another size:
 *     CUBLAS_STATUS_INVALID_VALUE;
 *   - an algorithm is chosen for one problem and a least alignment, and may need a workspace (here
 *     nearly always, if the preference allows one). What is in it afterwards is garbage.
 *
 * Sums are in f32, in parts of 256 along k; the result is rounded once.
 *
 * What ends the program (emu_die): attributes and values that are not modelled (row-major order,
 * batches, epilogues, pointers to device memory for alpha and beta, empty matrices, no algorithm
 * given); an algorithm used for another problem, or with pointers that are less aligned, than it
 * was chosen for; matrices or a workspace that are not device memory, or too short; a result that
 * overlaps an operand; a workspace that another stream's unfinished product uses; the default
 * stream, or a stream of another device than that of the handle; a descriptor or handle that is
 * gone. EMU_FAIL_AT (emu_control.h) counts all calls that return a status. */
#ifndef GFS_TESTS_CUDA_DOUBLE_CUBLASLT_H
#define GFS_TESTS_CUDA_DOUBLE_CUBLASLT_H

#include <stddef.h>

/* Handles, descriptors, layouts and preferences that were created and not destroyed. */
size_t double_cublaslt_open_count(void);

#endif
