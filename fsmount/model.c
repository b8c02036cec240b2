/* model.c - names, plans and the arithmetic from files to dumps. */
#include "config.h"

#include "fsmount/model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

struct model {
    uint32_t refs;
    struct layout layout;
    struct tensor_spec *specs; /* [tensor_count] */
    uint32_t *by_name;         /* indices sorted by name */
    uint8_t *encoded;          /* as it came: layout, then config */
    size_t layout_bytes, config_bytes;
    char *config;
    struct safetensors_plan weights;
    struct hf_dir hf;
    bool weights_tried, weights_ok, hf_tried, hf_ok;
};

static int compare_names(const void *a, const void *b, void *specs) {
    const struct tensor_spec *s = specs;
    return strcmp(s[*(const uint32_t *)a].name, s[*(const uint32_t *)b].name);
}

static bool model_is(const struct model *m, const struct blob *layout, const struct blob *config) {
    return m->layout_bytes == layout->len_bytes && m->config_bytes == config->len_bytes &&
           memcmp(m->encoded, layout->data, layout->len_bytes) == 0 &&
           (config->len_bytes == 0 || memcmp(m->config, config->data, config->len_bytes) == 0);
}

static int model_index(struct model *m) {
    uint32_t count = m->layout.tensor_count;
    m->specs = calloc((size_t)count + 1, sizeof(*m->specs));
    m->by_name = calloc((size_t)count + 1, sizeof(*m->by_name));
    if (m->specs == NULL || m->by_name == NULL)
        return -ENOMEM;
    for (uint32_t i = 0; i < count; i++) {
        m->specs[i] = m->layout.tensors[i].spec;
        m->by_name[i] = i;
    }
    qsort_r(m->by_name, count, sizeof(*m->by_name), compare_names, m->specs);
    return 0;
}

int model_decode(const struct blob *layout, const struct blob *config, struct model *same,
                 struct model **out, struct err *err) {
    if (same != NULL && model_is(same, layout, config)) {
        *out = model_get(same);
        return 0;
    }
    struct model *m = calloc(1, sizeof(*m));
    if (m == NULL)
        return err_set(err, ENOMEM, "no memory for the model");
    m->refs = 1;
    int rc = -ENOMEM;
    m->encoded = malloc(layout->len_bytes + 1);
    m->config = calloc(1, config->len_bytes + 1);
    if (m->encoded == NULL || m->config == NULL) {
        err_set(err, ENOMEM, "no memory for the model");
        goto failed;
    }
    m->layout_bytes = layout->len_bytes;
    m->config_bytes = config->len_bytes;
    if (layout->len_bytes != 0)
        memcpy(m->encoded, layout->data, layout->len_bytes);
    if (config->len_bytes != 0)
        memcpy(m->config, config->data, config->len_bytes);
    struct dec d = dec_of(layout->data, layout->len_bytes);
    rc = layout_decode(&d, &m->layout, err);
    if (rc == 0 && !dec_done(&d))
        rc = err_set(err, EPROTO, "bytes are left over after the layout");
    if (rc == 0 && (rc = model_index(m)) != 0)
        err_set(err, -rc, "no memory for the model");
    if (rc != 0)
        goto failed;
    *out = m;
    return 0;
failed:
    model_put(m);
    return rc;
}

struct model *model_get(struct model *m) {
    m->refs++;
    return m;
}

void model_put(struct model *m) {
    if (m == NULL || --m->refs != 0)
        return;
    if (m->weights_ok)
        safetensors_plan_free(&m->weights);
    if (m->hf_ok)
        hf_dir_free(&m->hf);
    layout_free(&m->layout);
    free(m->specs);
    free(m->by_name);
    free(m->encoded);
    free(m->config);
    free(m);
}

const struct layout *model_layout(const struct model *m) { return &m->layout; }

int model_tensor_file(const struct model *m, uint32_t tensor, const char *suffix,
                      char out[FILE_NAME_BYTES]) {
    size_t n = strlen(suffix);
    int rc = tensor_name_encode(m->specs[tensor].name, out, FILE_NAME_BYTES - n);
    if (rc == 0)
        memcpy(out + strlen(out), suffix, n + 1);
    return rc;
}

int model_find_file(const struct model *m, const char *file, const char *suffix) {
    size_t len = strlen(file), n = strlen(suffix);
    char stem[FILE_NAME_BYTES], name[FILE_NAME_BYTES];
    if (len <= n || len >= sizeof(stem) || strcmp(file + len - n, suffix) != 0)
        return -ENOENT;
    memcpy(stem, file, len - n);
    stem[len - n] = '\0';
    if (tensor_name_decode(stem, name, sizeof(name)) != 0)
        return -ENOENT;
    uint32_t lo = 0, hi = m->layout.tensor_count;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        int c = strcmp(m->specs[m->by_name[mid]].name, name);
        if (c == 0)
            return (int)m->by_name[mid];
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return -ENOENT;
}

uint64_t model_tensor_bytes(const struct model *m, uint32_t tensor) {
    return m->layout.tensors[tensor].numel * TENSOR_ELEM_BYTES;
}

const struct safetensors_plan *model_weights(struct model *m) {
    if (!m->weights_tried) {
        m->weights_tried = true;
        struct err err = {0};
        m->weights_ok =
            safetensors_plan(m->specs, NULL, m->layout.tensor_count, NULL, &m->weights, &err) == 0;
        if (!m->weights_ok)
            log_error("model.safetensors is left out: %s", err.text);
    }
    return m->weights_ok ? &m->weights : NULL;
}

const struct hf_dir *model_hf(struct model *m) {
    if (!m->hf_tried) {
        m->hf_tried = true;
        struct err err = {0};
        m->hf_ok = hf_dir_plan(m->specs, m->layout.tensor_count, m->config, 0, &m->hf, &err) == 0;
        if (!m->hf_ok)
            log_error("hf/ is left out: %s", err.text);
    }
    return m->hf_ok ? &m->hf : NULL;
}

int model_gather_tensor(const struct model *m, const struct dump_source *from, enum array a,
                        uint32_t tensor, uint64_t at_bytes, struct gather *g) {
    const struct layout *l = &m->layout;
    const struct layout_tensor *t = &l->tensors[tensor];
    uint64_t shard = l->units[t->unit].shard_elems;
    if (t->numel == 0 || !gather_wants(g, at_bytes, t->numel * TENSOR_ELEM_BYTES))
        return 0;
    uint64_t skip =
        g->offset_bytes > at_bytes ? (g->offset_bytes - at_bytes) / TENSOR_ELEM_BYTES : 0;
    uint64_t rank = (t->offset_elems + skip) / shard;
    for (; rank < l->world_size; rank++) {
        struct layout_piece p = layout_tensor_piece(l, tensor, (uint32_t)rank);
        uint64_t at = at_bytes + p.tensor_offset_elems * TENSOR_ELEM_BYTES;
        if (p.elems == 0 || !gather_wants(g, at, p.elems * TENSOR_ELEM_BYTES))
            break;
        const uint8_t *dump;
        uint64_t dump_bytes;
        int rc = from->dump(from->ctx, (uint32_t)rank, &dump, &dump_bytes);
        if (rc != 0)
            return rc;
        uint64_t begin = layout_dump_offset(l, from->array_mask, (uint32_t)rank, a, t->unit) +
                         p.shard_offset_elems * TENSOR_ELEM_BYTES;
        uint64_t len = p.elems * TENSOR_ELEM_BYTES;
        if (begin > dump_bytes || len > dump_bytes - begin)
            return -EIO;
        gather_add(g, at, dump + begin, len);
    }
    return 0;
}

int model_gather_weights(const struct model *m, const struct dump_source *from,
                         const struct safetensors_plan *plan, struct gather *g) {
    gather_add(g, 0, plan->header, plan->header_bytes);
    uint64_t first = g->offset_bytes > plan->header_bytes ? g->offset_bytes : plan->header_bytes;
    for (uint32_t i = safetensors_plan_find(plan, first); i < plan->tensor_count; i++) {
        if (plan->offset_bytes[i] >= g->offset_bytes + g->want_bytes)
            break;
        int rc =
            model_gather_tensor(m, from, ARRAY_PARAMS, plan->order[i], plan->offset_bytes[i], g);
        if (rc != 0)
            return rc;
    }
    return 0;
}
