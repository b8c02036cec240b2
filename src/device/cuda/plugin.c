/* plugin.c - the one symbol that the plugin exports. */
#include "config.h"

#include "device/plugin.h"

#include "device/cuda/cuda.h"
#include "device/cuda/plugin_parts.h"

__attribute__((visibility("default"))) const struct plugin *gatherfs_device_plugin(void) {
    static const struct plugin plugin = {
        .abi = PLUGIN_ABI,
        .size_bytes = sizeof(plugin),
        .version = PACKAGE_VERSION,
        .built = PLUGIN_BUILT,
        .probe = cuda_probe,
        .list = cuda_list,
        .device = &device_cuda,
        .collectives = PLUGIN_COLLECTIVES,
    };
    return &plugin;
}
