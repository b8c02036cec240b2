/* gpu_list.c - `gatherfs devices`. */
#include "config.h"

#include "engine/gpu_list.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "device/plugin_find.h"

/* each: NULL, or called for every one. */
static int list(const char *device, uint32_t *out,
                void (*each)(uint32_t index, const struct device_properties *p), struct err *err) {
    const struct plugin *plugin;
    struct device_properties p;
    struct err end = {0};
    uint32_t count = 0;
    *out = 0;
    int rc = plugin_find(strcmp(device, "auto") == 0 ? "cuda" : device, &plugin, err);
    if (rc != 0)
        return rc;
    while ((rc = plugin->list(count, &p, &end)) == 0) {
        if (each != NULL)
            each(count, &p);
        count++;
    }
    if (rc != -ENOENT)
        return err_set(err, -rc, "%s", end.text);
    *out = count;
    return 0;
}

int gpu_count(const char *device, uint32_t *out, struct err *err) {
    return list(device, out, NULL, err);
}

static void print_gpu(uint32_t index, const struct device_properties *p) {
    printf("%u %s %" PRIu64 " bytes\n", index, p->name, p->memory_bytes);
}

int gpu_list_main(int argc, char **argv) {
    struct err err = {0};
    uint32_t count;
    if (argc > 1 || (argc == 1 && argv[0][0] == '-')) {
        fprintf(stderr, "usage: gatherfs-rank --devices [NAME]\n");
        return 2;
    }
    if (list(argc == 1 ? argv[0] : "cuda", &count, print_gpu, &err) == 0)
        return 0;
    printf("no GPU: %s\n", err.text);
    return 1;
}
