/* plugin.h - what a device plugin exports: gatherfs_cuda.so, and in test builds
 * gatherfs_emulated.so, which is made of the same sources.
 *
 * The plugin links with no file of the program: it reports through struct err and returns codes. It
 * is opened only where libcuda.so.1 is found (the emulated one always), and never closed. */
#ifndef GFS_DEVICE_PLUGIN_H
#define GFS_DEVICE_PLUGIN_H

#include <stdint.h>

#include "comm/collective.h"
#include "device/device.h"

/* Raised when a table or a struct of it changes in any way. */
enum { PLUGIN_ABI = 3 };
#define PLUGIN_SYMBOL "gatherfs_device_plugin"

struct plugin {
    uint32_t abi;        /* PLUGIN_ABI */
    uint32_t size_bytes; /* of this struct */
    const char *version; /* of the package that it was built with */
    const char *built;   /* for people: "CUDA 13.0, NCCL 2.27.7, sm_80 sm_90 sm_100" */
    /* 0 if a rank could open a device here; else -errno and why not. Makes no context, so that
     * "auto" may ask. */
    int (*probe)(struct err *err);
    /* The device of this index, from 0: its name, id and memory_bytes; the rest of *out is zero.
     * -ENOENT: there are no more. Makes no context either. */
    int (*list)(uint32_t index, struct device_properties *out, struct err *err);
    const struct device_ops *device;
    const struct collective_ops *collectives; /* NULL: built without NCCL */
};

/* The only symbol that is exported. */
const struct plugin *gatherfs_device_plugin(void);

#endif
