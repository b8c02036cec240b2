/* emulated_cases.h - the kernel cases on the emulated GPU, in cmocka tests. */
#ifndef GFS_TESTS_CUDA_EMULATED_CASES_H
#define GFS_TESTS_CUDA_EMULATED_CASES_H

#include <stdbool.h>
#include <stddef.h>

#include "tests/cuda/emu_control.h"

/* The cases whose name begins with `only` all pass, there are at least `least` of them, and nothing
 * is left open; threads: the order of a block's threads. */
void emulated_cases_check(enum emu_thread_order threads, const char *only, bool tensor_cores,
                          size_t least);

#endif
