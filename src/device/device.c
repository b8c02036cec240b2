/* device.c - the table of devices. */
#include "config.h"

#include "device/device.h"

#include <errno.h>
#include <string.h>

int device_find(const char *name, const struct device_ops **out, struct err *err) {
    static const struct device_ops *const devices[] = {&device_cpu, &device_recording};
    for (size_t i = 0; i < sizeof(devices) / sizeof(devices[0]); i++)
        if (strcmp(name, devices[i]->name) == 0) {
            *out = devices[i];
            return 0;
        }
    return err_set(err, ENOENT, "no device '%s'; there are: cpu, recording (runs nothing)", name);
}
