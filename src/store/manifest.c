/* manifest.c - what stands in manifest.json, and in the header page of a rank's file. */
#include "config.h"

#include "store/manifest.h"
#include "store/manifest_json.h"
#include "store/manifest_state.h"
#include "tensor/jsontext.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* So that the bytes of all arrays stay below 2^63. */
#define MANIFEST_MAX_ELEMS (UINT64_C(1) << 58)
#define MANIFEST_FORMAT "gatherfs snapshot"
/* The last member is the checksum of all bytes before it: SEAL, 16 digits, SEAL_END. */
#define MANIFEST_SEAL ",\n\"xxh3\":\""
#define MANIFEST_SEAL_END "\"}\n"
enum {
    MANIFEST_VERSION = 1,
    MANIFEST_MEMBERS = 21,
    MANIFEST_SEAL_BYTES = sizeof(MANIFEST_SEAL) - 1 + 16 + sizeof(MANIFEST_SEAL_END) - 1,
    MANIFEST_MAX_PADDING_ELEMS = 65536 /* a shard's alignment is below it */
};

/* ---- sections and rank files */

static uint32_t manifest_array_count(uint32_t array_mask) {
    return (uint32_t)__builtin_popcount(array_mask & ARRAY_MASK_ALL);
}

uint32_t manifest_section_count(const struct layout *l, uint32_t array_mask) {
    return manifest_array_count(array_mask) * l->unit_count;
}

struct manifest_section manifest_section_at(const struct layout *l, uint32_t array_mask,
                                            uint32_t rank, uint32_t index) {
    uint32_t array = 0, skip = index / l->unit_count;
    for (; array < ARRAY_COUNT; array++)
        if ((array_mask & ARRAY_BIT(array)) != 0 && skip-- == 0)
            break;
    uint32_t unit = index % l->unit_count;
    return (struct manifest_section){
        .array = (enum array)array,
        .unit = unit,
        .bytes = layout_shard_valid(l, unit, rank) * TENSOR_ELEM_BYTES,
    };
}

void manifest_rank_file(uint32_t rank, char out[MANIFEST_RANK_FILE_BYTES]) {
    snprintf(out, MANIFEST_RANK_FILE_BYTES, "rank-%" PRIu32 ".bin", rank);
}

void manifest_rank_header(const struct layout *l, uint32_t array_mask, uint32_t rank,
                          uint64_t snapshot_id, uint8_t out[SNAPSHOT_HEADER_BYTES]) {
    char arrays[64] = "";
    size_t n = 0;
    for (uint32_t a = 0; a < ARRAY_COUNT; a++)
        if ((array_mask & ARRAY_BIT(a)) != 0)
            n += (size_t)snprintf(arrays + n, sizeof(arrays) - n, " %s", array_names[a]);
    char text[512];
    int len = snprintf(text, sizeof(text),
                       "gatherfs rank file %d\n"
                       "snapshot %" PRIu64 "\nrank %" PRIu32 " of %" PRIu32 "\n"
                       "arrays%s\nunits %" PRIu32 "\nbytes %" PRIu64 "\n"
                       "little-endian f32 from byte %d on\n",
                       MANIFEST_VERSION, snapshot_id, rank, l->world_size, arrays, l->unit_count,
                       layout_dump_bytes(l, array_mask, rank), SNAPSHOT_HEADER_BYTES);
    memset(out, ' ', SNAPSHOT_HEADER_BYTES);
    memcpy(out, text, (size_t)len);
    out[SNAPSHOT_HEADER_BYTES - 1] = '\n';
}

int manifest_put_rank(const struct layout *l, uint32_t array_mask, uint32_t rank,
                      const uint64_t *checksums, struct enc *out) {
    char file[MANIFEST_RANK_FILE_BYTES];
    uint32_t count = manifest_section_count(l, array_mask);
    manifest_rank_file(rank, file);
    enc_printf(out, "{\"rank\":%" PRIu32 ",\"file\":\"%s\",\"bytes\":%" PRIu64 ",\"sections\":[",
               rank, file, SNAPSHOT_HEADER_BYTES + layout_dump_bytes(l, array_mask, rank));
    for (uint32_t i = 0; i < count; i++) {
        struct manifest_section s = manifest_section_at(l, array_mask, rank, i);
        enc_printf(out, "%s\n{\"array\":\"%s\",\"unit\":", i == 0 ? "" : ",", array_names[s.array]);
        if (jsontext_string(out, l->units[s.unit].name) != 0)
            return -EINVAL;
        enc_printf(out, ",\"bytes\":%" PRIu64 ",\"xxh3\":\"%016" PRIx64 "\"}", s.bytes,
                   checksums[i]);
    }
    enc_printf(out, "]}");
    return 0;
}

/* ---- writing */

static int manifest_check_info(const struct snapshot_info *i, const struct layout *l,
                               struct err *err) {
    uint64_t largest = i->id | i->epoch | i->gen | i->step | i->time_ns;
    if (!parse_name_ok(i->name))
        return err_set(err, EINVAL, "\"%.100s\" cannot be the name of a snapshot", i->name);
    if (i->world_size != l->world_size)
        return err_set(err, EINVAL, "a layout of %" PRIu32 " ranks for a world of %" PRIu32,
                       l->world_size, i->world_size);
    if (i->array_mask == 0 || (i->array_mask & ~(uint32_t)ARRAY_MASK_ALL) != 0)
        return err_set(err, EINVAL, "arrays 0x%" PRIx32 " do not exist", i->array_mask);
    if (largest > INT64_MAX)
        return err_set(err, EINVAL, "a number of the snapshot is above 2^63");
    return 0;
}

static int manifest_put_state(const struct snapshot_info *info, const char *given, struct enc *out,
                              struct err *err) {
    char *text = NULL;
    int rc = manifest_state_make(info, given, &text, err);
    if (rc != 0)
        return rc;
    enc_printf(out, ",\n\"train_state\":");
    rc = jsontext_string(out, text);
    free(text);
    return rc == 0 ? 0 : err_set(err, -rc, "the train state is not UTF-8");
}

static uint64_t manifest_total_bytes(const struct layout *l, uint32_t array_mask) {
    uint64_t elems = layout_numel(l) * manifest_array_count(array_mask);
    return (uint64_t)l->world_size * SNAPSHOT_HEADER_BYTES + elems * TENSOR_ELEM_BYTES;
}

static void manifest_put_info(const struct snapshot_info *i, const struct layout *l,
                              struct enc *out) {
    enc_printf(out, "{\"format\":\"" MANIFEST_FORMAT "\",\n\"version\":%d,\n\"name\":\"%s\",\n",
               MANIFEST_VERSION, i->name);
    enc_printf(out, "\"id\":%" PRIu64 ",\n\"epoch\":%" PRIu64 ",\n\"gen\":%" PRIu64 ",\n", i->id,
               i->epoch, i->gen);
    enc_printf(out, "\"step\":%" PRIu64 ",\n\"attempt\":%" PRIu32 ",\n\"time_ns\":%" PRIu64 ",\n",
               i->step, i->attempt, i->time_ns);
    enc_printf(out, "\"automatic\":%s,\n\"world_size\":%" PRIu32 ",\n\"bytes\":%" PRIu64 ",\n",
               i->automatic ? "true" : "false", i->world_size,
               manifest_total_bytes(l, i->array_mask));
    enc_printf(out, "\"header_bytes\":%d,\n\"dtype\":\"f32\",\n\"arrays\":[",
               SNAPSHOT_HEADER_BYTES);
    const char *separator = "";
    for (uint32_t a = 0; a < ARRAY_COUNT; a++) {
        if ((i->array_mask & ARRAY_BIT(a)) == 0)
            continue;
        enc_printf(out, "%s\"%s\"", separator, array_names[a]);
        separator = ",";
    }
    enc_printf(out, "]");
}

static int manifest_put_layout(const struct layout *l, struct enc *out) {
    int rc = 0;
    enc_printf(out, ",\n\"units\":[");
    for (uint32_t u = 0; u < l->unit_count; u++) {
        enc_printf(out, "%s\n{\"name\":", u == 0 ? "" : ",");
        rc |= jsontext_string(out, l->units[u].name);
        enc_printf(out, ",\"numel\":%" PRIu64 ",\"shard_elems\":%" PRIu64 "}", l->units[u].numel,
                   l->units[u].shard_elems);
    }
    enc_printf(out, "],\n\"tensors\":[");
    for (uint32_t i = 0; i < l->tensor_count; i++) {
        const struct layout_tensor *t = &l->tensors[i];
        enc_printf(out, "%s\n{\"name\":", i == 0 ? "" : ",");
        rc |= jsontext_string(out, t->spec.name);
        enc_printf(out, ",\"shape\":[");
        for (uint32_t d = 0; d < t->spec.ndim; d++)
            enc_printf(out, "%s%" PRIu64, d == 0 ? "" : ",", t->spec.shape[d]);
        enc_printf(out, "],\"unit\":%" PRIu32 ",\"offset\":%" PRIu64, t->unit, t->offset_elems);
        enc_printf(out, ",\"module\":%" PRIu32 ",\"decay\":%s}", t->spec.module,
                   t->spec.decay ? "true" : "false");
    }
    enc_printf(out, "]");
    return rc;
}

/* Reads each entry, believes it only if it is that of the layout, and writes it again. */
static int manifest_put_ranks(const struct snapshot_info *info, const struct layout *l,
                              const char *const *entries, struct enc *out, struct err *err) {
    uint32_t count = manifest_section_count(l, info->array_mask);
    uint64_t *checksums = calloc((size_t)count + 1, sizeof(*checksums));
    if (checksums == NULL)
        return err_set(err, ENOMEM, "no memory for %" PRIu32 " checksums", count);
    int rc = 0;
    enc_printf(out, ",\n\"ranks\":[");
    for (uint32_t r = 0; rc == 0 && r < l->world_size; r++) {
        json_t *entry = NULL;
        if (entries[r] == NULL)
            rc = err_set(err, EINVAL, "rank %" PRIu32 " has written nothing", r);
        else
            rc = manifest_json_parse(entries[r], strlen(entries[r]), "a rank's entry", &entry, err);
        if (rc == 0)
            rc = manifest_json_rank(entry, l, info->array_mask, r, checksums, err);
        if (rc == 0) {
            enc_printf(out, "%s\n", r == 0 ? "" : ",");
            manifest_put_rank(l, info->array_mask, r, checksums, out); /* names are checked */
        }
        json_decref(entry);
    }
    enc_printf(out, "]");
    free(checksums);
    return rc;
}

static int manifest_put_config(const char *config, struct enc *out, struct err *err) {
    json_t *v = NULL;
    int rc = manifest_json_parse(config, strlen(config), "the model's config", &v, err);
    if (rc == 0 && !json_is_object(v))
        rc = err_set(err, EINVAL, "the model's config is not an object");
    json_decref(v);
    if (rc != 0)
        return rc;
    /* As a string: the text comes back as it was, to the last digit of its numbers. */
    enc_printf(out, ",\n\"model_config\":");
    return jsontext_string(out, config);
}

int manifest_encode(const struct snapshot_info *info, const struct layout *l,
                    const char *const *entries, const char *train_state, const char *model_config,
                    struct enc *out, struct err *err) {
    int rc = manifest_check_info(info, l, err);
    if (rc != 0)
        return rc;
    manifest_put_info(info, l, out);
    rc = manifest_put_state(info, train_state, out, err);
    if (rc == 0)
        rc = manifest_put_config(model_config, out, err);
    if (rc == 0 && manifest_put_layout(l, out) != 0)
        rc = err_set(err, EINVAL, "a name of the layout is not UTF-8");
    if (rc == 0)
        rc = manifest_put_ranks(info, l, entries, out, err);
    if (rc != 0)
        return rc;
    if (!out->failed) {
        uint64_t sum = XXH3_64bits(out->data, out->len_bytes);
        enc_printf(out, MANIFEST_SEAL "%016" PRIx64 MANIFEST_SEAL_END, sum);
    }
    if (out->failed)
        return err_set(err, ENOMEM, "no memory for the manifest");
    if (out->len_bytes > MANIFEST_MAX_BYTES)
        return err_set(err, EFBIG, "the manifest has %zu bytes", out->len_bytes);
    /* What is published must be readable: reading it now proves it. */
    struct manifest proof;
    rc = manifest_decode((const char *)out->data, out->len_bytes, &proof, err);
    if (rc == 0)
        manifest_free(&proof);
    return rc;
}

/* ---- reading */

static int manifest_check_seal(const char *text, size_t len_bytes, struct err *err) {
    char seal[MANIFEST_SEAL_BYTES + 1];
    if (len_bytes <= MANIFEST_SEAL_BYTES)
        return err_set(err, EIO, "it is cut off");
    size_t body = len_bytes - MANIFEST_SEAL_BYTES;
    snprintf(seal, sizeof(seal), MANIFEST_SEAL "%016" PRIx64 MANIFEST_SEAL_END,
             XXH3_64bits(text, body));
    if (memcmp(text + body, seal, MANIFEST_SEAL_BYTES) != 0)
        return err_set(err, EIO, "its checksum is wrong");
    return 0;
}

static int manifest_read_arrays(const json_t *root, uint32_t *mask, struct err *err) {
    const json_t *names = NULL;
    int rc = manifest_json_array(root, "it", "arrays", 1, ARRAY_COUNT, &names, err);
    uint32_t next = 0;
    *mask = 0;
    for (size_t i = 0; rc == 0 && i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i));
        while (next < ARRAY_COUNT && (name == NULL || strcmp(name, array_names[next]) != 0))
            next++;
        if (next == ARRAY_COUNT)
            return err_set(err, EIO, "its arrays are not in order, or not known");
        *mask |= ARRAY_BIT(next);
        next++;
    }
    return rc;
}

static int manifest_read_info(const json_t *root, struct snapshot_info *i, struct err *err) {
    const char *name = NULL;
    uint64_t v = 0;
    int rc = manifest_json_object(root, "it", MANIFEST_MEMBERS, err);
    if (rc == 0)
        rc = manifest_json_word(root, "it", "format", MANIFEST_FORMAT, err);
    if (rc == 0)
        rc = manifest_json_u64(root, "it", "version", MANIFEST_VERSION, MANIFEST_VERSION, &v, err);
    if (rc == 0)
        rc = manifest_json_word(root, "it", "dtype", "f32", err);
    if (rc == 0)
        rc = manifest_json_u64(root, "it", "header_bytes", SNAPSHOT_HEADER_BYTES,
                               SNAPSHOT_HEADER_BYTES, &v, err);
    if (rc == 0)
        rc = manifest_json_text(root, "it", "name", NAME_MAX_BYTES, &name, err);
    if (rc == 0 && !parse_name_ok(name))
        rc = err_set(err, EIO, "its name cannot be the name of a snapshot");
    if (rc == 0)
        memcpy(i->name, name, strlen(name) + 1);
    static const char *const keys[] = {"id", "epoch", "gen", "step", "time_ns", "bytes"};
    uint64_t *const values[] = {&i->id, &i->epoch, &i->gen, &i->step, &i->time_ns, &i->bytes};
    for (size_t n = 0; rc == 0 && n < sizeof(keys) / sizeof(keys[0]); n++)
        rc = manifest_json_u64(root, "it", keys[n], 0, INT64_MAX, values[n], err);
    if (rc == 0)
        rc = manifest_json_u64(root, "it", "world_size", 1, LAYOUT_MAX_RANKS, &v, err);
    i->world_size = (uint32_t)v;
    if (rc == 0)
        rc = manifest_json_u64(root, "it", "attempt", 0, UINT32_MAX, &v, err);
    i->attempt = (uint32_t)v;
    if (rc == 0)
        rc = manifest_json_bool(root, "it", "automatic", &i->automatic, err);
    if (rc == 0)
        rc = manifest_read_arrays(root, &i->array_mask, err);
    return rc;
}

/* What layout_build takes. */
struct manifest_tables {
    struct tensor_spec *specs;
    uint32_t *unit_of;
    const char **unit_names; /* borrowed from the JSON */
    uint64_t *offsets;
};

static void manifest_tables_free(struct manifest_tables *t) {
    free(t->specs);
    free(t->unit_of);
    free(t->unit_names);
    free(t->offsets);
}

static int manifest_read_tensor(const json_t *v, uint32_t index, uint32_t unit_count,
                                struct manifest_tables *t, struct err *err) {
    struct tensor_spec *spec = &t->specs[index];
    const json_t *shape = NULL;
    const char *name = NULL;
    char what[48];
    uint64_t number = 0;
    snprintf(what, sizeof(what), "tensor %" PRIu32, index);
    int rc = manifest_json_object(v, what, 6, err);
    if (rc == 0)
        rc = manifest_json_text(v, what, "name", TENSOR_NAME_BYTES - 1, &name, err);
    if (rc == 0)
        memcpy(spec->name, name, strlen(name) + 1);
    if (rc == 0)
        rc = manifest_json_u64(v, what, "unit", 0, unit_count - 1, &number, err);
    t->unit_of[index] = (uint32_t)number;
    if (rc == 0)
        rc = manifest_json_u64(v, what, "module", 0, UINT32_MAX, &number, err);
    spec->module = (uint32_t)number;
    if (rc == 0)
        rc = manifest_json_u64(v, what, "offset", 0, INT64_MAX, &t->offsets[index], err);
    if (rc == 0)
        rc = manifest_json_bool(v, what, "decay", &spec->decay, err);
    if (rc == 0)
        rc = manifest_json_array(v, what, "shape", 0, TENSOR_MAX_DIMS, &shape, err);
    spec->ndim = rc == 0 ? (uint32_t)json_array_size(shape) : 0;
    for (uint32_t d = 0; rc == 0 && d < spec->ndim; d++) {
        const json_t *dim = json_array_get(shape, d);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return err_set(err, EIO, "%s: its shape is not made of counts", what);
        spec->shape[d] = (uint64_t)json_integer_value(dim);
    }
    return rc;
}

static int manifest_compare_names(const void *a, const void *b) {
    const char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

/* Tensors are found by name: each has its own. */
static int manifest_check_names(const struct layout *l, struct err *err) {
    const char **names = malloc(((size_t)l->tensor_count + 1) * sizeof(*names));
    if (names == NULL)
        return err_set(err, ENOMEM, "no memory for %" PRIu32 " names", l->tensor_count);
    for (uint32_t i = 0; i < l->tensor_count; i++)
        names[i] = l->tensors[i].spec.name;
    qsort(names, l->tensor_count, sizeof(*names), manifest_compare_names);
    int rc = 0;
    for (uint32_t i = 1; rc == 0 && i < l->tensor_count; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            rc = err_set(err, EIO, "two tensors are named %s", names[i]);
    free(names);
    return rc;
}

/* The sizes that the text repeats must be those of the arithmetic; a shard may be rounded up. */
static int manifest_check_layout(const json_t *units, const struct manifest_tables *t,
                                 struct layout *l, struct err *err) {
    int rc = 0;
    uint64_t numel_left = MANIFEST_MAX_ELEMS;
    for (uint32_t u = 0; rc == 0 && u < l->unit_count; u++) {
        struct layout_unit *unit = &l->units[u];
        if (unit->numel > numel_left)
            return err_set(err, EIO, "its tensors are too large");
        numel_left -= unit->numel;
        const json_t *v = json_array_get(units, u);
        uint64_t least = unit->shard_elems, numel;
        rc = manifest_json_u64(v, unit->name, "numel", unit->numel, unit->numel, &numel, err);
        if (rc == 0)
            rc = manifest_json_u64(v, unit->name, "shard_elems", least,
                                   least + MANIFEST_MAX_PADDING_ELEMS, &unit->shard_elems, err);
    }
    for (uint32_t i = 0; rc == 0 && i < l->tensor_count; i++)
        if (l->tensors[i].offset_elems != t->offsets[i])
            rc = err_set(err, EIO, "tensor %s: offset is %" PRIu64 " instead of %" PRIu64,
                         l->tensors[i].spec.name, t->offsets[i], l->tensors[i].offset_elems);
    return rc == 0 ? manifest_check_names(l, err) : rc;
}

static int manifest_build_layout(const json_t *units, const json_t *tensors, uint32_t world_size,
                                 struct manifest_tables *t, struct layout *l, struct err *err) {
    uint32_t unit_count = (uint32_t)json_array_size(units);
    uint32_t tensor_count = (uint32_t)json_array_size(tensors);
    t->specs = calloc((size_t)tensor_count + 1, sizeof(*t->specs));
    t->unit_of = calloc((size_t)tensor_count + 1, sizeof(*t->unit_of));
    t->offsets = calloc((size_t)tensor_count + 1, sizeof(*t->offsets));
    t->unit_names = calloc((size_t)unit_count + 1, sizeof(*t->unit_names));
    if (t->specs == NULL || t->unit_of == NULL || t->offsets == NULL || t->unit_names == NULL)
        return err_set(err, ENOMEM, "no memory for %" PRIu32 " tensors", tensor_count);
    int rc = 0;
    for (uint32_t u = 0; rc == 0 && u < unit_count; u++) {
        const json_t *v = json_array_get(units, u);
        rc = manifest_json_object(v, "a unit", 3, err);
        if (rc == 0)
            rc = manifest_json_text(v, "a unit", "name", TENSOR_NAME_BYTES - 1, &t->unit_names[u],
                                    err);
    }
    for (uint32_t i = 0; rc == 0 && i < tensor_count; i++)
        rc = manifest_read_tensor(json_array_get(tensors, i), i, unit_count, t, err);
    if (rc != 0)
        return rc;
    struct err why = {0};
    rc = layout_build(t->specs, t->unit_of, tensor_count, t->unit_names, unit_count, world_size, 1,
                      l, &why);
    if (rc != 0)
        return err_set(err, rc == -ENOMEM ? ENOMEM : EIO, "%s", why.text);
    return manifest_check_layout(units, t, l, err);
}

static int manifest_read_layout(const json_t *root, uint32_t world_size, struct layout *l,
                                struct err *err) {
    const json_t *units = NULL, *tensors = NULL;
    struct manifest_tables tables = {0};
    int rc = manifest_json_array(root, "it", "units", 1, LAYOUT_MAX_TENSORS, &units, err);
    if (rc == 0)
        rc = manifest_json_array(root, "it", "tensors", 0, LAYOUT_MAX_TENSORS, &tensors, err);
    if (rc == 0)
        rc = manifest_build_layout(units, tensors, world_size, &tables, l, err);
    manifest_tables_free(&tables);
    return rc;
}

static int manifest_read_ranks(const json_t *root, struct manifest *m, struct err *err) {
    const json_t *ranks = NULL;
    uint32_t world = m->layout.world_size;
    uint64_t total = manifest_total_bytes(&m->layout, m->info.array_mask);
    if (m->info.bytes != total)
        return err_set(err, EIO, "it: bytes is %" PRIu64 " instead of %" PRIu64, m->info.bytes,
                       total);
    int rc = manifest_json_array(root, "it", "ranks", world, world, &ranks, err);
    if (rc != 0)
        return rc;
    m->section_count = manifest_section_count(&m->layout, m->info.array_mask);
    m->checksums = calloc((size_t)world * m->section_count + 1, sizeof(*m->checksums));
    if (m->checksums == NULL)
        return err_set(err, ENOMEM, "no memory for the checksums of %" PRIu32 " ranks", world);
    for (uint32_t r = 0; rc == 0 && r < world; r++)
        rc = manifest_json_rank(json_array_get(ranks, r), &m->layout, m->info.array_mask, r,
                                m->checksums + (size_t)r * m->section_count, err);
    return rc;
}

static int manifest_read_texts(const json_t *root, struct manifest *m, struct err *err) {
    const char *config = "", *state = "";
    int rc = manifest_json_text(root, "it", "train_state", SIZE_MAX, &state, err);
    if (rc == 0)
        rc = manifest_state_read(&m->info, state, &m->train_state, err);
    if (rc == 0)
        rc = manifest_json_text(root, "it", "model_config", SIZE_MAX, &config, err);
    if (rc != 0)
        return rc;
    m->model_config = malloc(strlen(config) + 1);
    if (m->model_config == NULL)
        return err_set(err, ENOMEM, "no memory for the model's config");
    memcpy(m->model_config, config, strlen(config) + 1);
    json_t *object = NULL;
    rc = manifest_json_parse(config, strlen(config), "its model_config", &object, err);
    if (rc == 0 && !json_is_object(object))
        rc = err_set(err, EIO, "its model_config is not an object");
    json_decref(object);
    return rc;
}

int manifest_decode(const char *text, size_t len_bytes, struct manifest *out, struct err *err) {
    struct manifest m = {0};
    json_t *root = NULL;
    int rc = manifest_check_seal(text, len_bytes, err);
    if (rc == 0)
        rc = manifest_json_parse(text, len_bytes, "it", &root, err);
    if (rc == 0)
        rc = manifest_read_info(root, &m.info, err);
    if (rc == 0)
        rc = manifest_read_layout(root, m.info.world_size, &m.layout, err);
    if (rc == 0)
        rc = manifest_read_ranks(root, &m, err);
    if (rc == 0)
        rc = manifest_read_texts(root, &m, err);
    json_decref(root);
    if (rc != 0)
        manifest_free(&m);
    else
        *out = m;
    return rc;
}

void manifest_free(struct manifest *m) {
    layout_free(&m->layout);
    free(m->checksums);
    free(m->train_state);
    free(m->model_config);
    *m = (struct manifest){0};
}
