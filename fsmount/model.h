/* model.h - the tensors of a model and the files they make: shared by live/, pins and snapshots of
 * the same layout. */
#ifndef GFS_FSMOUNT_MODEL_H
#define GFS_FSMOUNT_MODEL_H

#include "base/err.h"
#include "fsmount/gather.h"
#include "shard/layout.h"
#include "tensor/hf.h"
#include "tensor/safetensors.h"
#include "wire/msg.h"

enum { FILE_NAME_BYTES = 256 };

struct model; /* counted */

/* From the wire form. `same`, if not NULL and of the same bytes, is counted up instead. */
int model_decode(const struct blob *layout, const struct blob *config, struct model *same,
                 struct model **out, struct err *err);
struct model *model_get(struct model *m);
void model_put(struct model *m); /* NULL is fine */

const struct layout *model_layout(const struct model *m);

/* File name of a tensor with a suffix ("" or ".npy"); -ENAMETOOLONG. find: its index, or -ENOENT.
 */
int model_tensor_file(const struct model *m, uint32_t tensor, const char *suffix,
                      char out[FILE_NAME_BYTES]);
int model_find_file(const struct model *m, const char *file, const char *suffix);
uint64_t model_tensor_bytes(const struct model *m, uint32_t tensor);

/* model.safetensors, and the Hugging Face directory: made at first use; NULL when they can't be
 * (logged once). */
const struct safetensors_plan *model_weights(struct model *m);
const struct hf_dir *model_hf(struct model *m);

/* Where the dumps of the ranks lie (shard/layout.h). dump: sets *data to the dump of a rank, of at
 * least *bytes bytes. */
struct dump_source {
    uint32_t array_mask;
    int (*dump)(void *ctx, uint32_t rank, const uint8_t **data, uint64_t *bytes);
    void *ctx;
};
/* Adds the part of a tensor that g wants; at_bytes is where its data begins in the file. 0 or
 * -errno. */
int model_gather_tensor(const struct model *m, const struct dump_source *from, enum array a,
                        uint32_t tensor, uint64_t at_bytes, struct gather *g);
/* A file of many tensors of params. */
int model_gather_weights(const struct model *m, const struct dump_source *from,
                         const struct safetensors_plan *plan, struct gather *g);

#endif
