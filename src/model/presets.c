/* presets.c - models known by name, as the config.json that Hugging Face transformers reads. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "model/reader.h"

struct preset {
    const char *name;
    unsigned layers, heads, width, context, vocab;
};

/* The small ones have a byte vocabulary: 256 bytes and <|endoftext|>. */
static const struct preset presets[] = {
    {"gpt2:tiny", 4, 4, 128, 128, 257},
    {"gpt2:10M", 6, 6, 384, 256, 257},
    {"gpt2:124M", 12, 12, 768, 1024, 50257},
};
const char preset_names[] = "gpt2:tiny, gpt2:10M, gpt2:124M";

static const char gpt2_format[] = "{\n"
                                  "  \"activation_function\": \"gelu_new\",\n"
                                  "  \"architectures\": [\n    \"GPT2LMHeadModel\"\n  ],\n"
                                  "  \"attn_pdrop\": 0.0,\n"
                                  "  \"bos_token_id\": %u,\n"
                                  "  \"embd_pdrop\": 0.0,\n"
                                  "  \"eos_token_id\": %u,\n"
                                  "  \"initializer_range\": 0.02,\n"
                                  "  \"layer_norm_epsilon\": 1e-05,\n"
                                  "  \"model_type\": \"gpt2\",\n"
                                  "  \"n_ctx\": %u,\n"
                                  "  \"n_embd\": %u,\n"
                                  "  \"n_head\": %u,\n"
                                  "  \"n_inner\": null,\n"
                                  "  \"n_layer\": %u,\n"
                                  "  \"n_positions\": %u,\n"
                                  "  \"reorder_and_upcast_attn\": false,\n"
                                  "  \"resid_pdrop\": 0.0,\n"
                                  "  \"scale_attn_by_inverse_layer_idx\": false,\n"
                                  "  \"scale_attn_weights\": true,\n"
                                  "  \"tie_word_embeddings\": true,\n"
                                  "  \"torch_dtype\": \"float32\",\n"
                                  "  \"use_cache\": true,\n"
                                  "  \"vocab_size\": %u\n"
                                  "}\n";

int preset_config_text(const char *name, char **text) {
    for (size_t i = 0; i < sizeof(presets) / sizeof(presets[0]); i++) {
        const struct preset *p = &presets[i];
        if (strcmp(name, p->name) != 0)
            continue;
        unsigned end_of_text = p->vocab - 1;
        if (asprintf(text, gpt2_format, end_of_text, end_of_text, p->context, p->width, p->heads,
                     p->layers, p->context, p->vocab) < 0)
            return -ENOMEM;
        return 0;
    }
    *text = NULL;
    return 0;
}
