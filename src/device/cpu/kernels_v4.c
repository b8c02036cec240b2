/* kernels_v4.c - the kernels for x86-64 with AVX-512. */
#include "config.h"

#include "device/cpu/kernels.h"

#if defined(__x86_64__)

#include <math.h>

#include "device/cpu/simd_v4.h"

#include "device/cpu/kernels_body.h"

#include "device/cpu/loss_body.h"

#include "device/cpu/attention_body.h"

#include "device/cpu/gemm_body.h"

#include "device/cpu/table_body.h"

extern const struct cpu_gemm_kernel cpu_gemm_v4;

static bool v4_usable(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

const struct cpu_kernels cpu_kernels_v4 = CPU_KERNELS_TABLE(v4_usable, &cpu_gemm_v4);

#endif
