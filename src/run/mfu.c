/* mfu.c - what part of the devices' arithmetic is the model's. */
#include "config.h"

#include "run/mfu.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static bool is_counted(const struct mfu_device *ranks, uint32_t rank) {
    for (uint32_t r = 0; r < rank && *ranks[rank].id; r++)
        if (strcmp(ranks[r].id, ranks[rank].id) == 0)
            return true;
    return false;
}

double mfu_peak(const struct mfu_device *ranks, uint32_t count) {
    double sum = 0;
    for (uint32_t r = 0; r < count; r++) {
        if (!(ranks[r].peak_flops > 0))
            return 0;
        if (!is_counted(ranks, r))
            sum += ranks[r].peak_flops;
    }
    return sum;
}

double mfu_share(double flops_per_token, double tokens_per_second, double peak_flops) {
    if (!(flops_per_token > 0) || !(peak_flops > 0) || !isfinite(tokens_per_second))
        return NAN;
    return flops_per_token * tokens_per_second / peak_flops;
}
