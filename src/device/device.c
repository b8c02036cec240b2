/* device.c - the table of devices. */
#include "config.h"

#include "device/device.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "device/plugin_find.h"

#ifdef GFS_EMULATION
#define TEST_DEVICES ", emulated (a GPU, for tests)"
#else
#define TEST_DEVICES ""
#endif

static int find_plugin(const char *name, const struct device_ops **out, struct err *err) {
    const struct plugin *plugin;
    int rc = plugin_find(name, &plugin, err);
    if (rc == 0)
        *out = plugin->device;
    return rc;
}

static void find_best(const struct device_ops **out, char *note, size_t note_bytes) {
    struct err why = {0};
    if (find_plugin("cuda", out, &why) == 0)
        return;
    *out = &device_cpu;
    if (note != NULL && note_bytes > 0)
        snprintf(note, note_bytes, "no GPU is used: %s", why.text);
}

int device_find(const char *name, const struct device_ops **out, char *note, size_t note_bytes,
                struct err *err) {
    static const struct device_ops *const devices[] = {&device_cpu, &device_recording};
    if (note != NULL && note_bytes > 0)
        note[0] = '\0';
    for (size_t i = 0; i < sizeof(devices) / sizeof(devices[0]); i++)
        if (strcmp(name, devices[i]->name) == 0) {
            *out = devices[i];
            return 0;
        }
    if (strcmp(name, "auto") == 0) {
        find_best(out, note, note_bytes);
        return 0;
    }
    if (plugin_has(name)) {
        int rc = find_plugin(name, out, err);
        if (rc != 0)
            err_prefix(err, "device %s", name);
        return rc;
    }
    return err_set(
        err, ENOENT,
        "no device '%s'; there are: auto, cpu, cuda, recording (runs nothing)" TEST_DEVICES, name);
}

int device_failed(const struct device_ops *ops, struct device *d, int rc, struct err *err,
                  const char *format, ...) {
    char what[256], why[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    ops->why(d, why, sizeof why);
    return err_set(err, -rc, "%s on device %s: %s", what, ops->name,
                   why[0] != '\0' ? why : strerror(-rc));
}
