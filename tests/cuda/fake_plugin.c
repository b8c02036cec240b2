/* fake_plugin.c - for test_plugin.sh: a plugin for GPUs that has none, and is wrong in one point.
 * GFS_FAKE says in which: abi, size, version, name, null, none. */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "device/plugin.h"

static int fake_probe(struct err *err) {
    if (err != NULL && err->code == 0) {
        err->code = ENODEV;
        strcpy(err->text, "the fake has no GPU");
    }
    return -ENODEV;
}

static int fake_list(uint32_t index, struct device_properties *out, struct err *err) {
    (void)index, (void)out, (void)err;
    return -ENOENT;
}

__attribute__((visibility("default"))) const struct plugin *gatherfs_device_plugin(void) {
    static struct device_ops ops = {.name = "cuda"};
    static struct plugin plugin = {.abi = PLUGIN_ABI,
                                   .size_bytes = sizeof(plugin),
                                   .version = PACKAGE_VERSION,
                                   .built = "nothing",
                                   .probe = fake_probe,
                                   .list = fake_list,
                                   .device = &ops};
    const char *wrong = getenv("GFS_FAKE");
    if (wrong == NULL || strcmp(wrong, "none") == 0)
        return &plugin;
    if (strcmp(wrong, "null") == 0)
        return NULL;
    if (strcmp(wrong, "abi") == 0)
        plugin.abi++;
    else if (strcmp(wrong, "size") == 0)
        plugin.size_bytes += 8;
    else if (strcmp(wrong, "version") == 0)
        plugin.version = "9.9.9";
    else if (strcmp(wrong, "name") == 0)
        ops.name = "abacus";
    return &plugin;
}
