/* device_fixture.c - each kernel table and number of threads, one after the other. */
#include "config.h"

#include "device_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "device/cpu/cpu.h"

void each_device(void (*check)(struct device *d)) {
    static const uint32_t threads[] = {1, 3};
    for (size_t k = 0; cpu_kernels_all[k] != NULL; k++)
        for (size_t i = 0; i < 2 && cpu_kernels_all[k]->usable(); i++) {
            struct device *d;
            assert_int_equal(cpu_open_with(cpu_kernels_all[k], threads[i], &d), 0);
            check(d);
            device_cpu.close(d);
        }
}

static void *memory(size_t bytes) {
    void *p = malloc(bytes + 1);
    assert_non_null(p);
    return p;
}

float *floats(size_t elems, float scale, uint32_t seed) {
    float *p = memory(elems * sizeof(*p));
    uint32_t x = seed * 2654435761u + 1;
    for (size_t i = 0; i < elems; i++) {
        x = x * 1664525u + 1013904223u;
        p[i] = scale * ((float)(x >> 8) / 8388608.0f - 1.0f);
    }
    return p;
}

float *filled(size_t elems, float value) {
    float *p = memory(elems * sizeof(*p));
    for (size_t i = 0; i < elems; i++)
        p[i] = value;
    return p;
}

double *doubles(const float *from, size_t elems) {
    double *p = memory(elems * sizeof(*p));
    for (size_t i = 0; i < elems; i++)
        p[i] = from[i];
    return p;
}

void assert_close(const char *what, const float *got, const double *want, size_t elems,
                  double tolerance) {
    for (size_t i = 0; i < elems; i++)
        if (!(fabs(got[i] - want[i]) <= tolerance * (1 + fabs(want[i]))))
            fail_msg("%s [%zu of %zu]: %.9g, expected %.9g", what, i, elems, (double)got[i],
                     want[i]);
}

void assert_gradient(const char *what, const float *got, scalar_fn *f, void *arg, double *x,
                     size_t elems, size_t stride, double tolerance) {
    const double h = 1e-5;
    for (size_t i = 0; i < elems; i += stride) {
        double kept = x[i];
        x[i] = kept + h;
        double above = f(x, arg);
        x[i] = kept - h;
        double below = f(x, arg);
        x[i] = kept;
        double want = (above - below) / (2 * h);
        if (!(fabs(got[i] - want) <= tolerance * (1 + fabs(want))))
            fail_msg("%s: gradient [%zu of %zu] is %.9g, by differences %.9g", what, i, elems,
                     (double)got[i], want);
    }
}
