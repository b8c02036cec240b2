/* gpt2_config.c - the config.json of a GPT-2, field by field. */
#include "config.h"

#include <errno.h>
#include <string.h>

#include "model/gpt2.h"
#include "model/reader.h"

/* Bounds that keep every product of two sizes far from overflow and the number of tensors within a
 * layout's. */
enum { MAX_WIDTH = 1 << 17, MAX_LAYERS = 4096, MAX_CONTEXT = 1 << 20, MAX_VOCAB = 1 << 24 };

static int read_size(const json_t *config, const char *name, size_t max, size_t *out,
                     struct err *err) {
    const json_t *v = json_object_get(config, name);
    if (v == NULL)
        return err_set(err, EINVAL, "%s is missing", name);
    if (!json_is_integer(v) || json_integer_value(v) < 1 || (uint64_t)json_integer_value(v) > max)
        return err_set(err, EINVAL, "%s must be a whole number from 1 to %zu", name, max);
    *out = (size_t)json_integer_value(v);
    return 0;
}

static int read_sizes(const json_t *config, struct gpt2_shape *s, struct err *err) {
    const struct {
        const char *name;
        size_t max, *out;
    } fields[] = {
        {"vocab_size", MAX_VOCAB, &s->vocab}, {"n_positions", MAX_CONTEXT, &s->context},
        {"n_embd", MAX_WIDTH, &s->width},     {"n_layer", MAX_LAYERS, &s->layers},
        {"n_head", MAX_WIDTH, &s->heads},
    };
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        int rc = read_size(config, fields[i].name, fields[i].max, fields[i].out, err);
        if (rc != 0)
            return rc;
    }
    if (s->width % s->heads != 0)
        return err_set(err, EINVAL, "n_embd %zu is not divisible by n_head %zu", s->width,
                       s->heads);
    s->inner = 4 * s->width;
    const json_t *inner = json_object_get(config, "n_inner");
    if (inner != NULL && !json_is_null(inner)) {
        int rc = read_size(config, "n_inner", 8 * (size_t)MAX_WIDTH, &s->inner, err);
        if (rc != 0)
            return rc;
    }
    const json_t *ctx = json_object_get(config, "n_ctx");
    if (ctx != NULL && (!json_is_integer(ctx) || (uint64_t)json_integer_value(ctx) != s->context))
        return err_set(err, EINVAL, "n_ctx differs from n_positions %zu", s->context);
    return 0;
}

/* A number in (0, max]; `absent` if the field is. */
static int read_positive(const json_t *config, const char *name, double absent, double max,
                         float *out, struct err *err) {
    const json_t *v = json_object_get(config, name);
    double x = v == NULL ? absent : json_number_value(v); /* 0 if it is no number */
    if (!(x > 0 && x <= max))
        return err_set(err, EINVAL, "%s must be a number above 0, at most %g", name, max);
    *out = (float)x;
    return 0;
}

/* Where a switch must stand for what is computed here; transformers takes the same value if it is
 * absent. */
static int check_switches(const json_t *config, struct err *err) {
    static const struct {
        const char *name;
        bool wanted;
    } switches[] = {
        {"scale_attn_weights", true},       {"scale_attn_by_inverse_layer_idx", false},
        {"reorder_and_upcast_attn", false}, {"tie_word_embeddings", true},
        {"add_cross_attention", false},     {"is_encoder_decoder", false},
    };
    for (size_t i = 0; i < sizeof(switches) / sizeof(switches[0]); i++) {
        const json_t *v = json_object_get(config, switches[i].name);
        const char *wanted = switches[i].wanted ? "true" : "false";
        if (v != NULL && !json_is_boolean(v))
            return err_set(err, EINVAL, "%s must be true or false", switches[i].name);
        if (v != NULL && json_is_true(v) != switches[i].wanted)
            return err_set(err, ENOTSUP, "%s: only %s is offered", switches[i].name, wanted);
    }
    return 0;
}

/* transformers' default for an absent rate is 0.1; absent here is no dropout. */
static int check_dropout(const json_t *config, struct err *err) {
    static const char *const names[] = {"resid_pdrop", "embd_pdrop", "attn_pdrop"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const json_t *v = json_object_get(config, names[i]);
        if (v != NULL && !json_is_number(v))
            return err_set(err, EINVAL, "%s must be a number", names[i]);
        if (v != NULL && json_number_value(v) != 0)
            return err_set(err, ENOTSUP, "%s is %g: dropout is not offered; set it to 0", names[i],
                           json_number_value(v));
    }
    return 0;
}

static int check_activation(const json_t *config, struct err *err) {
    const json_t *v = json_object_get(config, "activation_function");
    if (v == NULL)
        return 0;
    if (!json_is_string(v))
        return err_set(err, EINVAL, "activation_function must be a string");
    if (strcmp(json_string_value(v), "gelu_new") != 0 &&
        strcmp(json_string_value(v), "gelu_pytorch_tanh") != 0)
        return err_set(err, ENOTSUP, "activation_function '%s' is not offered; gelu_new is",
                       json_string_value(v));
    return 0;
}

static int check_architectures(const json_t *config, struct err *err) {
    const json_t *v = json_object_get(config, "architectures"), *name;
    size_t i;
    if (v == NULL || json_is_null(v))
        return 0;
    json_array_foreach(v, i, name) {
        if (json_is_string(name) && strcmp(json_string_value(name), "GPT2LMHeadModel") == 0)
            return 0;
    }
    return err_set(err, ENOTSUP, "architectures: only GPT2LMHeadModel is offered");
}

/* Every field that transformers' GPT2Config knows and that changes what is computed is checked;
 * what is not offered is refused by name. */
static int gpt2_shape_read(const json_t *config, struct gpt2_shape *out, struct err *err) {
    struct gpt2_shape s = {0};
    int rc = read_sizes(config, &s, err);
    if (rc == 0)
        rc = read_positive(config, "layer_norm_epsilon", 1e-5, 1, &s.norm_eps, err);
    if (rc == 0)
        rc = read_positive(config, "initializer_range", 0.02, 10, &s.init_std, err);
    if (rc == 0)
        rc = check_switches(config, err);
    if (rc == 0)
        rc = check_dropout(config, err);
    if (rc == 0)
        rc = check_activation(config, err);
    if (rc == 0)
        rc = check_architectures(config, err);
    if (rc == 0)
        *out = s;
    return rc;
}

static int open_config(const json_t *config, struct model **out, struct err *err) {
    struct gpt2_shape shape;
    int rc = gpt2_shape_read(config, &shape, err);
    return rc != 0 ? rc : gpt2_open(&shape, out, err);
}

const struct model_reader model_reader_gpt2 = {.name = "gpt2", .open = open_config};
