/* hf.c - plans the directory of a model as transformers reads it: config, weights, tokenizer. */
#include "config.h"

#include "tensor/hf.h"
#include "tensor/jsontext.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HF_SHARD_BYTES UINT64_C(5000000000)
enum { HF_BYTE_TOKENS = 256, HF_END_OF_TEXT = 256, HF_OTHER_FILES = 8, HF_MAX_SHARDS = 99999 };

static struct hf_file *hf_add(struct hf_dir *d, enum hf_kind kind, const char *name) {
    struct hf_file *f = &d->files[d->file_count++];
    f->kind = kind;
    snprintf(f->name, sizeof(f->name), "%s", name);
    return f;
}

/* Adds a file of text, which is taken over (and freed on failure). */
static int hf_add_text(struct hf_dir *d, const char *name, struct enc *text, struct err *err) {
    if (text->failed) {
        enc_free(text);
        return err_set(err, ENOMEM, "no memory for %s", name);
    }
    struct hf_file *f = hf_add(d, HF_TEXT, name);
    f->text = (char *)text->data;
    f->text_bytes = text->len_bytes;
    return 0;
}

static int hf_add_config(struct hf_dir *d, const char *config_text, struct err *err) {
    struct enc text = {0};
    size_t len = strlen(config_text);
    enc_bytes(&text, config_text, len);
    if (len == 0 || config_text[len - 1] != '\n')
        enc_u8(&text, '\n');
    return hf_add_text(d, "config.json", &text, err);
}

static bool hf_config_u64(const json_t *config, const char *key, uint64_t *out) {
    const json_t *v = json_object_get(config, key);
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return false;
    *out = (uint64_t)json_integer_value(v);
    return true;
}

static int hf_add_generation_config(struct hf_dir *d, const json_t *config, struct err *err) {
    struct enc text = {0};
    uint64_t id;
    enc_printf(&text, "{\n  \"_from_model_config\": true");
    if (hf_config_u64(config, "bos_token_id", &id))
        enc_printf(&text, ",\n  \"bos_token_id\": %llu", (unsigned long long)id);
    if (hf_config_u64(config, "eos_token_id", &id))
        enc_printf(&text, ",\n  \"eos_token_id\": %llu", (unsigned long long)id);
    enc_printf(&text, "\n}\n");
    return hf_add_text(d, "generation_config.json", &text, err);
}

/* ---- the byte-level tokenizer: GPT-2's alphabet of bytes and no merges */

static bool hf_byte_is_printable(int byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

static void hf_put_token(struct enc *text, int code_point, uint32_t id) {
    char utf8[3] = {(char)code_point};
    if (code_point >= 0x80) {
        utf8[0] = (char)(0xc0 | (code_point >> 6));
        utf8[1] = (char)(0x80 | (code_point & 0x3f));
    }
    enc_printf(text, "%s", id == 0 ? "" : ", ");
    jsontext_string(text, utf8); /* cannot be malformed */
    enc_printf(text, ": %u", id);
}

/* Ids are those of GPT-2's own vocabulary: printable bytes stand for themselves and come first, the
 * n-th of the others is chr(256 + n). */
static int hf_add_vocab(struct hf_dir *d, struct err *err) {
    struct enc text = {0};
    uint32_t id = 0;
    enc_u8(&text, '{');
    for (int byte = 0; byte < HF_BYTE_TOKENS; byte++)
        if (hf_byte_is_printable(byte))
            hf_put_token(&text, byte, id++);
    for (int other = 256; id < HF_BYTE_TOKENS; other++)
        hf_put_token(&text, other, id++);
    enc_printf(&text, ", \"<|endoftext|>\": %d}\n", HF_END_OF_TEXT);
    return hf_add_text(d, "vocab.json", &text, err);
}

static int hf_add_tokenizer(struct hf_dir *d, const json_t *config, struct err *err) {
    struct enc merges = {0}, text = {0};
    int rc = hf_add_vocab(d, err);
    if (rc != 0)
        return rc;
    enc_printf(&merges, "#version: 0.2\n");
    rc = hf_add_text(d, "merges.txt", &merges, err);
    if (rc != 0)
        return rc;
    enc_printf(&text, "{\n  \"tokenizer_class\": \"GPT2Tokenizer\",\n"
                      "  \"add_prefix_space\": false,\n"
                      "  \"clean_up_tokenization_spaces\": false,\n"
                      "  \"bos_token\": \"<|endoftext|>\",\n"
                      "  \"eos_token\": \"<|endoftext|>\",\n"
                      "  \"unk_token\": \"<|endoftext|>\"");
    uint64_t length;
    if (hf_config_u64(config, "n_positions", &length) ||
        hf_config_u64(config, "max_position_embeddings", &length))
        enc_printf(&text, ",\n  \"model_max_length\": %llu", (unsigned long long)length);
    enc_printf(&text, "\n}\n");
    return hf_add_text(d, "tokenizer_config.json", &text, err);
}

/* A vocabulary of 50257 has 257 ids too, but they mean something else: its end of text tells. */
static bool hf_is_byte_level(const json_t *config) {
    uint64_t vocab, eos;
    return hf_config_u64(config, "vocab_size", &vocab) && vocab > HF_END_OF_TEXT &&
           hf_config_u64(config, "eos_token_id", &eos) && eos == HF_END_OF_TEXT;
}

/* ---- weights */

/* Cuts the tensors, in order, into files of at most max_bytes; a tensor that is larger has its own.
 * first[] gets the first tensor of each file (cap tensor_count + 1); returns how many files. */
static uint32_t hf_cut(const struct tensor_spec *tensors, uint32_t tensor_count, uint64_t max_bytes,
                       uint32_t *first) {
    uint32_t files = 0;
    uint64_t in_file = 0;
    for (uint32_t i = 0; i < tensor_count; i++) {
        uint64_t numel = 0;
        tensor_numel(&tensors[i], &numel); /* too large: the planner says so */
        uint64_t bytes = numel * TENSOR_ELEM_BYTES;
        if (files == 0 || bytes > max_bytes - in_file) {
            first[files++] = i;
            in_file = 0;
        }
        in_file = bytes > max_bytes ? max_bytes : in_file + bytes;
    }
    if (files == 0)
        first[files++] = 0;
    first[files] = tensor_count;
    return files;
}

static int hf_add_weights(struct hf_dir *d, const struct tensor_spec *tensors,
                          const uint32_t *first, uint32_t files, struct err *err) {
    for (uint32_t i = 0; i < files; i++) {
        char name[64] = "model.safetensors";
        if (files > 1)
            snprintf(name, sizeof(name), "model-%05u-of-%05u.safetensors", i + 1, files);
        struct hf_file *f = hf_add(d, HF_WEIGHTS, name);
        uint32_t count = first[i + 1] - first[i];
        int rc = safetensors_plan(tensors + first[i], NULL, count, NULL, &f->weights, err);
        if (rc != 0)
            return rc;
        for (uint32_t k = 0; k < count; k++)
            f->weights.order[k] += first[i];
    }
    return 0;
}

static int hf_add_index(struct hf_dir *d, const struct tensor_spec *tensors, uint32_t files,
                        struct err *err) {
    if (files < 2)
        return 0;
    struct enc text = {0};
    uint64_t total = 0;
    const struct hf_file *weights = &d->files[d->file_count - files];
    for (uint32_t i = 0; i < files; i++) {
        const struct safetensors_plan *p = &weights[i].weights;
        total += p->offset_bytes[p->tensor_count] - p->header_bytes;
    }
    enc_printf(&text, "{\n  \"metadata\": {\"total_size\": %llu},\n  \"weight_map\": {",
               (unsigned long long)total);
    const char *separator = "";
    for (uint32_t i = 0; i < files; i++) {
        for (uint32_t k = 0; k < weights[i].weights.tensor_count; k++) {
            enc_printf(&text, "%s\n    ", separator);
            jsontext_string(&text, tensors[weights[i].weights.order[k]].name); /* planned: UTF-8 */
            enc_printf(&text, ": \"%s\"", weights[i].name);
            separator = ",";
        }
    }
    enc_printf(&text, "\n  }\n}\n");
    return hf_add_text(d, "model.safetensors.index.json", &text, err);
}

static int hf_plan_files(struct hf_dir *d, const struct tensor_spec *tensors, const uint32_t *first,
                         uint32_t files, const char *config_text, const json_t *config,
                         struct err *err) {
    int rc = hf_add_config(d, config_text, err);
    if (rc == 0)
        rc = hf_add_generation_config(d, config, err);
    if (rc == 0)
        rc = hf_add_weights(d, tensors, first, files, err);
    if (rc == 0)
        rc = hf_add_index(d, tensors, files, err);
    if (rc == 0 && hf_is_byte_level(config))
        rc = hf_add_tokenizer(d, config, err);
    return rc;
}

/* Cuts, and plans the files into *d, which the caller frees also after a failure. */
static int hf_plan_dir(const struct tensor_spec *tensors, uint32_t tensor_count,
                       const char *config_text, const json_t *config, uint64_t max_shard_bytes,
                       struct hf_dir *d, struct err *err) {
    uint32_t *first = calloc((size_t)tensor_count + 2, sizeof(*first));
    if (first == NULL) {
        err_set(err, ENOMEM, "no memory for %u tensors", tensor_count);
        return -ENOMEM;
    }
    int rc;
    uint32_t files = hf_cut(tensors, tensor_count, max_shard_bytes, first);
    if (files > HF_MAX_SHARDS) {
        rc = err_set(err, EINVAL, "%u files of weights: shards are too small", files);
        goto out;
    }
    d->files = calloc((size_t)files + HF_OTHER_FILES, sizeof(*d->files));
    if (d->files == NULL)
        rc = err_set(err, ENOMEM, "no memory for %u files", files);
    else
        rc = hf_plan_files(d, tensors, first, files, config_text, config, err);
out:
    free(first);
    return rc;
}

int hf_dir_plan(const struct tensor_spec *tensors, uint32_t tensor_count, const char *config_text,
                uint64_t max_shard_bytes, struct hf_dir *out, struct err *err) {
    struct hf_dir d = {0};
    json_error_t why;
    json_t *config = json_loads(config_text, JSON_REJECT_DUPLICATES, &why);
    int rc;
    if (config == NULL && json_error_code(&why) == json_error_out_of_memory)
        rc = err_set(err, ENOMEM, "no memory for the model's config");
    else if (config == NULL)
        rc = err_set(err, EINVAL, "the model's config: line %d: %s", why.line, why.text);
    else if (!json_is_object(config))
        rc = err_set(err, EINVAL, "the model's config is not a JSON object");
    else
        rc = hf_plan_dir(tensors, tensor_count, config_text, config,
                         max_shard_bytes != 0 ? max_shard_bytes : HF_SHARD_BYTES, &d, err);
    json_decref(config);
    if (rc != 0)
        hf_dir_free(&d);
    else
        *out = d;
    return rc;
}

void hf_dir_free(struct hf_dir *d) {
    for (uint32_t i = 0; i < d->file_count; i++) {
        free(d->files[i].text);
        safetensors_plan_free(&d->files[i].weights);
    }
    free(d->files);
    *d = (struct hf_dir){0};
}
