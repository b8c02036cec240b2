/* find_device.c - for test_plugin.sh: finds a device by name and says which it is, or why not.
 *
 *   find_device NAME           prints "NAME" and, after ": ", the note of "auto"
 *   find_device NAME --open    also opens it and prints its properties
 *
 * Errors are one line on stderr, exit status 1. Plugins are looked for beside this program, so a
 * copy of it in another folder finds other ones. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "device/device.h"
#include "device/plugin_find.h"

static int show(const struct device_ops *ops, struct err *err) {
    const struct device_args args = {.threads = 1, .local_rank = 0, .local_size = 1};
    struct device *d;
    struct device_properties p;
    int rc = ops->open(&args, &d, err);
    if (rc != 0)
        return rc;
    rc = ops->properties(d, &p);
    if (rc != 0) {
        char why[ERR_TEXT_BYTES];
        ops->why(d, why, sizeof(why));
        err_set(err, -rc, "%s", why);
    } else {
        const struct collective_ops *c = plugin_collectives(ops);
        printf("name %s\nid %s\nmemory %llu\nf32 %.3g\nbf16 %.3g\nbandwidth %.3g\ncollectives %s\n",
               p.name, p.id, (unsigned long long)p.memory_bytes, p.flops[DTYPE_F32],
               p.flops[DTYPE_BF16], p.bandwidth, c != NULL ? c->name : "none");
    }
    ops->close(d);
    return rc;
}

int main(int argc, char **argv) {
    if (argc < 2 || argc > 3 || (argc == 3 && strcmp(argv[2], "--open") != 0)) {
        fprintf(stderr, "usage: find_device NAME [--open]\n");
        return 2;
    }
    const struct device_ops *ops;
    struct err err = {0};
    char note[ERR_TEXT_BYTES];
    int rc = device_find(argv[1], &ops, note, sizeof(note), &err);
    if (rc == 0) {
        printf("%s%s%s\n", ops->name, note[0] != '\0' ? ": " : "", note);
        if (argc == 3)
            rc = show(ops, &err);
    }
    if (rc != 0)
        fprintf(stderr, "find_device: %s\n", err.text);
    return rc != 0;
}
