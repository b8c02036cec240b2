/* hf.h - the files of a Hugging Face directory for a model: what transformers needs to load it. */
#ifndef GFS_TENSOR_HF_H
#define GFS_TENSOR_HF_H

#include "tensor/safetensors.h"

enum hf_kind { HF_TEXT, HF_WEIGHTS };
struct hf_file {
    char name[64]; /* config.json, model.safetensors, model-00001-of-00003.safetensors, ... */
    enum hf_kind kind;
    char *text; /* owned, HF_TEXT */
    size_t text_bytes;
    struct safetensors_plan weights; /* HF_WEIGHTS */
};
struct hf_dir {
    struct hf_file *files; /* owned */
    uint32_t file_count;
};

/* config_text: the model's config.json. Weights above max_shard_bytes (0: 5 GB) are split, with an
 * index file; the order[] of each plan counts in `tensors`. Byte-level tokenizer files (vocab.json,
 * merges.txt, tokenizer_config.json) are added for models of byte-level tokens: vocab_size >= 257
 * and eos_token_id 256 (a vocabulary of 50257 has 257 ids too, but they are other tokens). Ids
 * beyond 256 need no entry. -EINVAL (config is not a JSON object), -ENOMEM, and as
 * safetensors_plan. */
int hf_dir_plan(const struct tensor_spec *tensors, uint32_t tensor_count, const char *config_text,
                uint64_t max_shard_bytes, struct hf_dir *out, struct err *err);
void hf_dir_free(struct hf_dir *d);

#endif
