/* device_fixture.h - runs a check on the CPU device once for each kind of kernels this processor
 * has, with 1 and with 3 threads. */
#ifndef GFS_TESTS_DEVICE_FIXTURE_H
#define GFS_TESTS_DEVICE_FIXTURE_H

#include "device/device.h"

void each_device(void (*check)(struct device *d));

/* elems values in (-scale, scale), the same for the same seed. The caller frees. */
float *floats(size_t elems, float scale, uint32_t seed);
float *filled(size_t elems, float value);
double *doubles(const float *from, size_t elems);

/* got within tolerance * (1 + |want|) of want, for all elements. */
void assert_close(const char *what, const float *got, const double *want, size_t elems,
                  double tolerance);

/* A scalar function of x (elems). */
typedef double scalar_fn(const double *x, void *arg);
/* got is the gradient of f at x: against central differences, at every stride-th element. */
void assert_gradient(const char *what, const float *got, scalar_fn *f, void *arg, double *x,
                     size_t elems, size_t stride, double tolerance);

#endif
