/* kernels_v3.c - the kernels for x86-64 with AVX2 and FMA. */
#include "config.h"

#include "device/cpu/kernels.h"

#if defined(__x86_64__)

#include <math.h>

#include "device/cpu/simd_v3.h"

#include "device/cpu/kernels_body.h"

#include "device/cpu/loss_body.h"

#include "device/cpu/attention_body.h"

#include "device/cpu/gemm_body.h"

#include "device/cpu/table_body.h"

static bool v3_usable(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

const struct cpu_kernels cpu_kernels_v3 = CPU_KERNELS_TABLE(v3_usable, NULL);

#endif
