/* wrap.c - modules to units. */
#include "config.h"

#include "shard/wrap.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/parse.h"

enum wrap_kind { WRAP_NONE, WRAP_BLOCK, WRAP_SIZE };

static int wrap_parse(const char *policy, enum wrap_kind *kind, uint64_t *min_params,
                      struct err *err) {
    *min_params = 0;
    if (strcmp(policy, "none") == 0) {
        *kind = WRAP_NONE;
        return 0;
    }
    if (strcmp(policy, "block") == 0) {
        *kind = WRAP_BLOCK;
        return 0;
    }
    if (strncmp(policy, "size:", 5) == 0 && parse_u64(policy + 5, min_params) == 0 &&
        *min_params > 0) {
        *kind = WRAP_SIZE;
        return 0;
    }
    return err_set(err, EINVAL,
                   "wrap = %s: expected block, none or size:MIN_PARAMS (as size:1000000)", policy);
}

int wrap_check(const char *policy, struct err *err) {
    enum wrap_kind kind;
    uint64_t min_params;
    return wrap_parse(policy, &kind, &min_params, err);
}

/* Unit of each module; returns the number of units. names[u] points into modules or is "root". */
static uint32_t wrap_units(enum wrap_kind kind, uint64_t min_params, const uint64_t *module_numel,
                           const struct wrap_module *modules, uint32_t module_count,
                           uint32_t *unit_of_module, char (*names)[TENSOR_NAME_BYTES]) {
    uint32_t unit = 0;
    uint64_t in_unit = 0;
    int32_t last_block = -1;
    snprintf(names[0], sizeof(names[0]), "root");
    for (uint32_t m = 0; m < module_count; m++) {
        if (modules[m].block < 0 || kind == WRAP_NONE) {
            unit_of_module[m] = 0;
            continue;
        }
        bool fresh = unit == 0 ||
                     (kind == WRAP_BLOCK ? modules[m].block != last_block : in_unit >= min_params);
        if (fresh) {
            unit++;
            in_unit = 0;
            snprintf(names[unit], sizeof(names[unit]), "%s", modules[m].name);
            /* A whole block is named after the block: "transformer.h.3.attn" without its last part.
             */
            char *dot = strrchr(names[unit], '.');
            if (kind == WRAP_BLOCK && dot != NULL)
                *dot = '\0';
        }
        last_block = modules[m].block;
        in_unit += module_numel[m];
        unit_of_module[m] = unit;
    }
    return unit + 1;
}

int wrap_layout(const char *policy, const struct tensor_spec *tensors, uint32_t tensor_count,
                const struct wrap_module *modules, uint32_t module_count, uint32_t world_size,
                struct layout *out, struct err *err) {
    enum wrap_kind kind = WRAP_NONE;
    uint64_t min_params;
    int rc = wrap_parse(policy, &kind, &min_params, err);
    if (rc != 0)
        return rc;
    uint64_t *numel = calloc((size_t)module_count + 1, sizeof(*numel));
    uint32_t *unit_of_module = calloc((size_t)module_count + 1, sizeof(*unit_of_module));
    uint32_t *unit_of = calloc((size_t)tensor_count + 1, sizeof(*unit_of));
    char(*names)[TENSOR_NAME_BYTES] = calloc((size_t)module_count + 1, sizeof(*names));
    const char **name_ptrs = calloc((size_t)module_count + 1, sizeof(*name_ptrs));
    rc = -ENOMEM;
    if (numel == NULL || unit_of_module == NULL || unit_of == NULL || names == NULL ||
        name_ptrs == NULL) {
        err_set(err, ENOMEM, "no memory for the wrap policy");
        goto out;
    }
    for (uint32_t i = 0; i < tensor_count; i++) {
        uint64_t n;
        rc = tensor_numel(&tensors[i], &n);
        if (rc != 0 || tensors[i].module >= module_count) {
            rc = err_set(err, EINVAL, "tensor %s: bad shape or module", tensors[i].name);
            goto out;
        }
        numel[tensors[i].module] += n;
    }
    uint32_t unit_count =
        wrap_units(kind, min_params, numel, modules, module_count, unit_of_module, names);
    for (uint32_t i = 0; i < tensor_count; i++)
        unit_of[i] = unit_of_module[tensors[i].module];
    for (uint32_t u = 0; u < unit_count; u++)
        name_ptrs[u] = names[u];
    rc = layout_build(tensors, unit_of, tensor_count, name_ptrs, unit_count, world_size,
                      LAYOUT_SHARD_ALIGN_ELEMS, out, err);
out:
    free(numel);
    free(unit_of_module);
    free(unit_of);
    free(names);
    free(name_ptrs);
    return rc;
}
