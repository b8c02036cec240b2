/* plugin_find.h - devices that are plugins: finding them, and what they have besides their table.
 */
#ifndef GFS_DEVICE_PLUGIN_FIND_H
#define GFS_DEVICE_PLUGIN_FIND_H

#include "comm/collective.h"
#include "device/device.h"
#include "device/plugin.h"

/* Is a device of this name a plugin's, be it installed or not? */
bool plugin_has(const char *name);

/* The plugin of a device ("cuda": gatherfs_cuda.so), from the folder of this program, else from the
 * libexec folder; it stays open until the process ends. -ENODEV: it is not installed, or not of
 * this build, or what it needs is missing, or there is no device that could be opened; err says
 * which. */
int plugin_find(const char *name, const struct plugin **out, struct err *err);

/* The collectives of the plugin that a table of device_find is from; NULL for a device of the
 * program, or a plugin built without. */
const struct collective_ops *plugin_collectives(const struct device_ops *ops);

#endif
