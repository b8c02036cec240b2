/* kernels_base.c - the kernels for any processor. */
#include "config.h"

#include "device/cpu/kernels.h"

#include <math.h>

#include "device/cpu/simd_base.h"

#include "device/cpu/kernels_body.h"

#include "device/cpu/loss_body.h"

#include "device/cpu/attention_body.h"

#include "device/cpu/gemm_body.h"

#include "device/cpu/table_body.h"

static bool base_usable(void) { return true; }

const struct cpu_kernels cpu_kernels_base = CPU_KERNELS_TABLE(base_usable, NULL);
