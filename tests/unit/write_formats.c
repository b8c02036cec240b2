/* write_formats.c - writes files of known values, as the mount would serve them, for other programs
 * to read: npy/, one.safetensors, and hf/ and hf-sharded/, directories of a small GPT-2. Usage:
 * write_formats DIR. */
#include "config.h"

#include "base/buf.h"
#include "base/file.h"
#include "tensor/hf.h"
#include "tensor/npy.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { VOCAB = 257, CONTEXT = 32, EMBED = 16, LAYERS = 2, HEADS = 2, MAX_TENSORS = 64 };

static const char config_text[] =
    "{\n  \"model_type\": \"gpt2\",\n  \"architectures\": [\"GPT2LMHeadModel\"],\n"
    "  \"vocab_size\": 257,\n  \"n_positions\": 32,\n  \"n_ctx\": 32,\n  \"n_embd\": 16,\n"
    "  \"n_layer\": 2,\n  \"n_head\": 2,\n  \"n_inner\": null,\n"
    "  \"activation_function\": \"gelu_new\",\n  \"layer_norm_epsilon\": 1e-05,\n"
    "  \"resid_pdrop\": 0.0,\n  \"embd_pdrop\": 0.0,\n  \"attn_pdrop\": 0.0,\n"
    "  \"bos_token_id\": 256,\n  \"eos_token_id\": 256,\n  \"tie_word_embeddings\": true\n}\n";

struct model {
    struct tensor_spec tensors[MAX_TENSORS];
    uint32_t count;
};

static void add(struct model *m, const char *prefix, const char *name, uint64_t rows,
                uint64_t columns) {
    struct tensor_spec *t = &m->tensors[m->count++];
    snprintf(t->name, sizeof(t->name), "transformer.%s%s", prefix, name);
    t->ndim = columns == 0 ? 1 : 2;
    t->shape[0] = rows;
    t->shape[1] = columns;
}

static void add_pair(struct model *m, const char *prefix, const char *name, uint64_t in,
                     uint64_t out) {
    char text[64];
    snprintf(text, sizeof(text), "%s.weight", name);
    if (in == 0)
        add(m, prefix, text, out, 0);
    else
        add(m, prefix, text, in, out);
    snprintf(text, sizeof(text), "%s.bias", name);
    add(m, prefix, text, out, 0);
}

static void make_model(struct model *m) {
    m->count = 0;
    add(m, "", "wte.weight", VOCAB, EMBED);
    add(m, "", "wpe.weight", CONTEXT, EMBED);
    for (int i = 0; i < LAYERS; i++) {
        char prefix[16];
        snprintf(prefix, sizeof(prefix), "h.%d.", i);
        add_pair(m, prefix, "ln_1", 0, EMBED);
        add_pair(m, prefix, "attn.c_attn", EMBED, 3 * EMBED);
        add_pair(m, prefix, "attn.c_proj", EMBED, EMBED);
        add_pair(m, prefix, "ln_2", 0, EMBED);
        add_pair(m, prefix, "mlp.c_fc", EMBED, 4 * EMBED);
        add_pair(m, prefix, "mlp.c_proj", 4 * EMBED, EMBED);
    }
    add_pair(m, "", "ln_f", 0, EMBED);
}

/* Element k of tensor t: small, and different everywhere. */
static void put_data(struct enc *out, const struct tensor_spec *t, uint32_t index) {
    uint64_t numel = 0;
    tensor_numel(t, &numel);
    for (uint64_t k = 0; k < numel; k++) {
        float v = (float)((index * 7919 + k * 31) % 1000) / 10000.0f;
        enc_bytes(out, &v, sizeof(v));
    }
}

static void save(const char *dir, const char *name, struct enc *data) {
    char path[PATH_MAX];
    struct err err = {0};
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    if (data->failed || file_replace(path, data->data, data->len_bytes, &err) != 0) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    enc_free(data);
}

static void save_weights(const char *dir, const char *name, const struct model *m,
                         const struct safetensors_plan *p) {
    struct enc out = {0};
    enc_bytes(&out, p->header, p->header_bytes);
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        if (out.len_bytes != p->offset_bytes[i])
            exit(3);
        put_data(&out, &m->tensors[p->order[i]], p->order[i]);
    }
    if (out.len_bytes != p->offset_bytes[p->tensor_count])
        exit(3);
    save(dir, name, &out);
}

static void save_hf(const char *dir, const struct model *m, uint64_t max_shard_bytes) {
    struct hf_dir d;
    if (mkdir(dir, 0700) != 0 ||
        hf_dir_plan(m->tensors, m->count, config_text, max_shard_bytes, &d, NULL) != 0)
        exit(1);
    for (uint32_t i = 0; i < d.file_count; i++) {
        struct enc text = {0};
        if (d.files[i].kind == HF_WEIGHTS) {
            save_weights(dir, d.files[i].name, m, &d.files[i].weights);
            continue;
        }
        enc_bytes(&text, d.files[i].text, d.files[i].text_bytes);
        save(dir, d.files[i].name, &text);
    }
    hf_dir_free(&d);
}

static void save_npy(const char *dir) {
    static const struct tensor_spec tensors[] = {
        {.name = "scalar", .ndim = 0},
        {.name = "vector", .ndim = 1, .shape = {5}},
        {.name = "matrix", .ndim = 2, .shape = {2, 3}},
        {.name = "empty", .ndim = 3, .shape = {2, 0, 3}},
        {.name = "four", .ndim = 4, .shape = {2, 3, 4, 5}},
    };
    if (mkdir(dir, 0700) != 0)
        exit(1);
    for (uint32_t i = 0; i < 5; i++) {
        uint8_t header[NPY_HEADER_BYTES];
        char name[1024];
        struct enc out = {0};
        npy_header(&tensors[i], header);
        enc_bytes(&out, header, sizeof(header));
        put_data(&out, &tensors[i], i);
        snprintf(name, sizeof(name), "%s.npy", tensors[i].name);
        save(dir, name, &out);
    }
}

int main(int argc, char **argv) {
    static struct model m;
    struct safetensors_plan p;
    char dir[PATH_MAX];
    if (argc != 2)
        return 2;
    make_model(&m);
    snprintf(dir, sizeof(dir), "%s/npy", argv[1]);
    save_npy(dir);
    snprintf(dir, sizeof(dir), "%s/hf", argv[1]);
    save_hf(dir, &m, 0);
    snprintf(dir, sizeof(dir), "%s/hf-sharded", argv[1]);
    save_hf(dir, &m, 10000);
    if (safetensors_plan(m.tensors, NULL, m.count, "\"step\":\"12\"", &p, NULL) != 0)
        return 1;
    save_weights(argv[1], "one.safetensors", &m, &p);
    safetensors_plan_free(&p);
    return 0;
}
