/* wrap.h - the wrap policy: which modules form a unit. */
#ifndef GFS_SHARD_WRAP_H
#define GFS_SHARD_WRAP_H

#include "shard/layout.h"

/* What the policy needs to know of a module. The root's modules (embedding, final norm, head) have
 * block = -1; the modules of transformer block i have block = i. */
struct wrap_module {
    char name[TENSOR_NAME_BYTES]; /* "transformer.h.3.attn" */
    int32_t block;
};

/* none: everything is the root unit. block: a unit a block, the rest is the root. size:MIN_PARAMS:
 * consecutive non-root modules are joined until a unit has MIN_PARAMS parameters. Unit 0 is always
 * the root. -EINVAL. */
int wrap_layout(const char *policy, const struct tensor_spec *tensors, uint32_t tensor_count,
                const struct wrap_module *modules, uint32_t module_count, uint32_t world_size,
                struct layout *out, struct err *err);
/* Syntax only. */
int wrap_check(const char *policy, struct err *err);

#endif
