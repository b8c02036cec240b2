/* plugin_find.c - plugins are opened here, and checked before anything of them is used.
 *
 * Opening one twice gives the same: the loader counts, and nothing is kept here. */
#include "config.h"

#include "device/plugin_find.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

/* driver: what has to be there before the plugin is worth the time of opening it (cuBLASLt alone
 * costs a second and 200 MB), or NULL. folder: where it is if not beside this program; that of
 * tests is not installed. */
static const struct {
    const char *name, *file, *driver, *folder;
} plugins[] = {
    {"cuda", "gatherfs_cuda.so", "libcuda.so.1", GFS_LIBEXECDIR},
#ifdef GFS_EMULATION
    {"emulated", "gatherfs_emulated.so", NULL, GFS_BUILD_DIR},
#endif
};
enum { PLUGINS = sizeof(plugins) / sizeof(plugins[0]) };

static size_t plugin_at(const char *name) {
    size_t i = 0;
    while (i < PLUGINS && strcmp(plugins[i].name, name) != 0)
        i++;
    return i;
}

bool plugin_has(const char *name) { return plugin_at(name) < PLUGINS; }

static int plugin_path(size_t at, char *out, size_t cap_bytes, struct err *err) {
    char beside[PATH_MAX];
    int rc = file_exe_dir(beside, sizeof(beside));
    if (rc == 0)
        rc = file_path(out, cap_bytes, "%s/%s", beside, plugins[at].file);
    if (rc == 0 && access(out, R_OK) == 0)
        return 0;
    rc = file_path(out, cap_bytes, "%s/%s", plugins[at].folder, plugins[at].file);
    if (rc == 0 && access(out, R_OK) == 0)
        return 0;
    return err_set(err, ENODEV,
                   "%s is neither beside this program nor in %s: gatherfs was built without it",
                   plugins[at].file, plugins[at].folder);
}

static int plugin_check(const char *path, const struct plugin *p, const char *name,
                        struct err *err) {
    if (p == NULL || p->abi != PLUGIN_ABI)
        return err_set(err, ENODEV, "%s: interface %u, and this program needs %d", path,
                       p != NULL ? p->abi : 0, PLUGIN_ABI);
    if (p->size_bytes != sizeof(*p) || p->version == NULL || p->device == NULL ||
        p->probe == NULL || p->list == NULL)
        return err_set(err, ENODEV, "%s: not laid out as this program needs it", path);
    if (strcmp(p->version, PACKAGE_VERSION) != 0)
        return err_set(err, ENODEV, "%s: of gatherfs %s, and this program is %s", path, p->version,
                       PACKAGE_VERSION);
    if (strcmp(p->device->name, name) != 0)
        return err_set(err, ENODEV, "%s: its device is '%s', not '%s'", path, p->device->name,
                       name);
    return 0;
}

/* flags: of dlopen, besides the usual. NULL: err says why not. */
static const struct plugin *plugin_open(size_t at, int flags, struct err *err) {
    char path[PATH_MAX];
    if (plugin_path(at, path, sizeof(path), err) != 0)
        return NULL;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | flags);
    if (handle == NULL) {
        err_set(err, ENODEV, "%s", dlerror());
        return NULL;
    }
    const struct plugin *(*get)(void);
    void *symbol = dlsym(handle, PLUGIN_SYMBOL);
    if (symbol == NULL) {
        err_set(err, ENODEV, "%s: no %s in it", path, PLUGIN_SYMBOL);
        return NULL;
    }
    memcpy(&get, &symbol, sizeof(get)); /* as POSIX has it */
    const struct plugin *p = get();
    return plugin_check(path, p, plugins[at].name, err) == 0 ? p : NULL;
}

int plugin_find(const char *name, const struct plugin **out, struct err *err) {
    size_t at = plugin_at(name);
    if (at == PLUGINS)
        return err_set(err, ENODEV, "no plugin has a device '%s'", name);
    if (plugins[at].driver != NULL && dlopen(plugins[at].driver, RTLD_NOW | RTLD_LOCAL) == NULL)
        return err_set(err, ENODEV, "no NVIDIA driver here: %s", dlerror());
    const struct plugin *p = plugin_open(at, 0, err);
    if (p == NULL)
        return -ENODEV;
    int rc = p->probe(err);
    if (rc == 0)
        *out = p;
    return rc;
}

const struct collective_ops *plugin_collectives(const struct device_ops *ops) {
    size_t at = plugin_at(ops->name);
    const struct plugin *p = at < PLUGINS ? plugin_open(at, RTLD_NOLOAD, NULL) : NULL;
    return p != NULL && p->device == ops ? p->collectives : NULL;
}
