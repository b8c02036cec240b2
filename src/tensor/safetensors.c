/* safetensors.c - plans a safetensors file: the header's text and where each tensor lies. */
#include "config.h"

#include "tensor/jsontext.h"
#include "tensor/safetensors.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SAFETENSORS_ALIGN_BYTES = 4096, SAFETENSORS_MAX_HEADER_BYTES = 100000000 };

/* What is sorted: the name with its place in the caller's array. */
struct safetensors_key {
    const char *name;
    uint32_t index;
};

static int safetensors_compare(const void *a, const void *b) {
    const struct safetensors_key *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* Fills order[] with the tensors by name; two of one name are an error. */
static int safetensors_sort(const struct tensor_spec *tensors, const uint32_t *indices,
                            uint32_t count, uint32_t *order, struct err *err) {
    struct safetensors_key *keys = malloc(((size_t)count + 1) * sizeof(*keys));
    if (keys == NULL)
        return err_set(err, ENOMEM, "no memory for %u tensors", count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t index = indices != NULL ? indices[i] : i;
        keys[i] = (struct safetensors_key){.name = tensors[index].name, .index = index};
    }
    qsort(keys, count, sizeof(*keys), safetensors_compare);
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < count; i++) {
        order[i] = keys[i].index;
        if (i > 0 && strcmp(keys[i - 1].name, keys[i].name) == 0)
            rc = err_set(err, EINVAL, "two tensors are named %s", keys[i].name);
        if (strcmp(keys[i].name, "__metadata__") == 0)
            rc = err_set(err, EINVAL, "a tensor cannot be named __metadata__");
    }
    free(keys);
    return rc;
}

static int safetensors_put_tensor(struct enc *text, const struct tensor_spec *t, uint64_t begin,
                                  uint64_t *end, struct err *err) {
    uint64_t numel;
    int rc = tensor_numel(t, &numel);
    if (rc != 0 || numel * TENSOR_ELEM_BYTES > INT64_MAX - begin)
        return err_set(err, EOVERFLOW, "tensor %s: its shape is too large", t->name);
    *end = begin + numel * TENSOR_ELEM_BYTES;
    rc = jsontext_string(text, t->name);
    if (rc != 0)
        return err_set(err, -rc, "the name of a tensor is not UTF-8");
    enc_printf(text, ":{\"dtype\":\"F32\",\"shape\":[");
    for (uint32_t d = 0; d < t->ndim; d++)
        enc_printf(text, "%s%llu", d == 0 ? "" : ",", (unsigned long long)t->shape[d]);
    enc_printf(text, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)begin,
               (unsigned long long)*end);
    return 0;
}

/* The JSON of the header into text; offset_bytes[] relative to the start of the data. */
static int safetensors_put_header(const struct tensor_spec *tensors, const char *extra_json,
                                  struct safetensors_plan *p, struct enc *text, struct err *err) {
    enc_printf(text, "{\"__metadata__\":{\"format\":\"pt\"");
    if (extra_json != NULL && extra_json[0] != '\0') {
        enc_u8(text, ',');
        enc_bytes(text, extra_json, strlen(extra_json));
    }
    enc_u8(text, '}');
    p->offset_bytes[0] = 0;
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        enc_u8(text, ',');
        int rc = safetensors_put_tensor(text, &tensors[p->order[i]], p->offset_bytes[i],
                                        &p->offset_bytes[i + 1], err);
        if (rc != 0)
            return rc;
    }
    enc_u8(text, '}');
    if (text->failed)
        return err_set(err, ENOMEM, "no memory for the header of %u tensors", p->tensor_count);
    if (text->len_bytes > SAFETENSORS_MAX_HEADER_BYTES - SAFETENSORS_ALIGN_BYTES)
        return err_set(err, EFBIG, "the header of %u tensors is larger than readers take",
                       p->tensor_count);
    return 0;
}

/* Length and text, padded with spaces so that the data starts on a page. */
static int safetensors_finish(struct safetensors_plan *p, const struct enc *text, struct err *err) {
    uint64_t pages = (8 + text->len_bytes + SAFETENSORS_ALIGN_BYTES - 1) / SAFETENSORS_ALIGN_BYTES;
    p->header_bytes = pages * SAFETENSORS_ALIGN_BYTES;
    p->header = malloc(p->header_bytes);
    if (p->header == NULL)
        return err_set(err, ENOMEM, "no memory for the header");
    uint64_t len_bytes = p->header_bytes - 8;
    for (int i = 0; i < 8; i++)
        p->header[i] = (uint8_t)(len_bytes >> (8 * i));
    memset(p->header + 8, ' ', len_bytes);
    memcpy(p->header + 8, text->data, text->len_bytes);
    for (uint32_t i = 0; i <= p->tensor_count; i++)
        p->offset_bytes[i] += p->header_bytes;
    return 0;
}

int safetensors_plan(const struct tensor_spec *tensors, const uint32_t *indices, uint32_t count,
                     const char *extra_json, struct safetensors_plan *out, struct err *err) {
    struct safetensors_plan p = {.tensor_count = count};
    struct enc text = {0};
    int rc;
    p.order = calloc((size_t)count + 1, sizeof(*p.order));
    p.offset_bytes = calloc((size_t)count + 1, sizeof(*p.offset_bytes));
    if (p.order == NULL || p.offset_bytes == NULL) {
        rc = err_set(err, ENOMEM, "no memory for %u tensors", count);
        goto out;
    }
    rc = safetensors_sort(tensors, indices, count, p.order, err);
    if (rc == 0)
        rc = safetensors_put_header(tensors, extra_json, &p, &text, err);
    if (rc == 0)
        rc = safetensors_finish(&p, &text, err);
out:
    enc_free(&text);
    if (rc != 0)
        safetensors_plan_free(&p);
    else
        *out = p;
    return rc;
}

void safetensors_plan_free(struct safetensors_plan *p) {
    free(p->header);
    free(p->order);
    free(p->offset_bytes);
    *p = (struct safetensors_plan){0};
}

uint32_t safetensors_plan_find(const struct safetensors_plan *p, uint64_t offset) {
    if (offset < p->header_bytes || offset >= p->offset_bytes[p->tensor_count])
        return p->tensor_count;
    /* Invariant: offset_bytes[lo] <= offset < offset_bytes[hi]. It ends past tensors of no bytes.
     */
    uint32_t lo = 0, hi = p->tensor_count;
    while (hi - lo > 1) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (p->offset_bytes[mid] <= offset)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}
