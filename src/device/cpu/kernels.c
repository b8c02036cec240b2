/* kernels.c - which kernels this processor has instructions for. */
#include "config.h"

#include "device/cpu/kernels.h"

#if defined(__x86_64__)
extern const struct cpu_kernels cpu_kernels_v3, cpu_kernels_v4;
const struct cpu_kernels *const cpu_kernels_all[] = {&cpu_kernels_v4, &cpu_kernels_v3,
                                                     &cpu_kernels_base, NULL};
bool cpu_has_bf16(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512bf16");
}
#else
const struct cpu_kernels *const cpu_kernels_all[] = {&cpu_kernels_base, NULL};
bool cpu_has_bf16(void) { return false; }
#endif

const struct cpu_kernels *cpu_kernels_best(void) {
    for (size_t i = 0; cpu_kernels_all[i] != NULL; i++)
        if (cpu_kernels_all[i]->usable())
            return cpu_kernels_all[i];
    return &cpu_kernels_base;
}
