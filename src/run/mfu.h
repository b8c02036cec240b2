/* mfu.h - model FLOPs utilisation: the arithmetic that the model's formula asks for, of what the
 * devices could do at most (Chowdhery et al., 2022, appendix B). */
#ifndef GFS_RUN_MFU_H
#define GFS_RUN_MFU_H

#include <stdint.h>

struct mfu_device {
    double peak_flops; /* a second; 0 unknown */
    const char *id;    /* the same for two ranks that share the device; "" is nobody else's */
};

/* Of the devices of these ranks together, each counted once; 0 if one of them is not known. */
double mfu_peak(const struct mfu_device *ranks, uint32_t count);
/* From 0 to 1; NaN if something of it is not known: 0, or NaN. */
double mfu_share(double flops_per_token, double tokens_per_second, double peak_flops);

#endif
