/* manifest_json.c - JSON members that are what they must be, or an error that names them. */
#include "config.h"

#include "store/manifest.h"
#include "store/manifest_json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

int manifest_json_parse(const char *text, size_t len_bytes, const char *what, json_t **out,
                        struct err *err) {
    json_error_t why;
    json_t *v = json_loadb(text, len_bytes, JSON_REJECT_DUPLICATES, &why);
    if (v == NULL && json_error_code(&why) == json_error_out_of_memory)
        return err_set(err, ENOMEM, "no memory for %s", what);
    if (v == NULL)
        return err_set(err, EIO, "%s: line %d: %s", what, why.line, why.text);
    *out = v;
    return 0;
}

int manifest_json_object(const json_t *v, const char *what, size_t members, struct err *err) {
    if (!json_is_object(v))
        return err_set(err, EIO, "%s is not an object", what);
    if (json_object_size(v) != members)
        return err_set(err, EIO, "%s has %zu members instead of %zu", what, json_object_size(v),
                       members);
    return 0;
}

int manifest_json_u64(const json_t *object, const char *what, const char *key, uint64_t min,
                      uint64_t max, uint64_t *out, struct err *err) {
    const json_t *v = json_object_get(object, key);
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return err_set(err, EIO, "%s: %s is not a count", what, key);
    uint64_t n = (uint64_t)json_integer_value(v);
    if (n < min || n > max)
        return err_set(err, EIO, "%s: %s is %" PRIu64 " instead of %" PRIu64 " to %" PRIu64, what,
                       key, n, min, max);
    *out = n;
    return 0;
}

int manifest_json_bool(const json_t *object, const char *what, const char *key, bool *out,
                       struct err *err) {
    const json_t *v = json_object_get(object, key);
    if (!json_is_boolean(v))
        return err_set(err, EIO, "%s: %s is not true or false", what, key);
    *out = json_is_true(v);
    return 0;
}

int manifest_json_text(const json_t *object, const char *what, const char *key, size_t max_bytes,
                       const char **out, struct err *err) {
    const json_t *v = json_object_get(object, key);
    if (!json_is_string(v))
        return err_set(err, EIO, "%s: %s is not a string", what, key);
    if (json_string_length(v) > max_bytes)
        return err_set(err, EIO, "%s: %s is longer than %zu bytes", what, key, max_bytes);
    *out = json_string_value(v);
    return 0;
}

int manifest_json_word(const json_t *object, const char *what, const char *key, const char *word,
                       struct err *err) {
    const char *text = "";
    int rc = manifest_json_text(object, what, key, SIZE_MAX, &text, err);
    if (rc == 0 && strcmp(text, word) != 0)
        rc = err_set(err, EIO, "%s: %s is \"%.64s\" instead of \"%s\"", what, key, text, word);
    return rc;
}

int manifest_json_array(const json_t *object, const char *what, const char *key, size_t min,
                        size_t max, const json_t **out, struct err *err) {
    const json_t *v = json_object_get(object, key);
    if (!json_is_array(v))
        return err_set(err, EIO, "%s: %s is not an array", what, key);
    if (json_array_size(v) < min || json_array_size(v) > max)
        return err_set(err, EIO, "%s: %s has %zu entries instead of %zu to %zu", what, key,
                       json_array_size(v), min, max);
    *out = v;
    return 0;
}

/* 16 lower-case hexadecimal digits. */
static int manifest_json_checksum(const json_t *object, const char *what, uint64_t *out,
                                  struct err *err) {
    const char *text = "";
    int rc = manifest_json_text(object, what, "xxh3", 16, &text, err);
    if (rc != 0)
        return rc;
    uint64_t v = 0;
    size_t n = strspn(text, "0123456789abcdef");
    if (n != 16 || text[n] != '\0')
        return err_set(err, EIO, "%s: xxh3 is not 16 hexadecimal digits", what);
    for (size_t i = 0; i < 16; i++)
        v = v << 4 | (uint64_t)(text[i] <= '9' ? text[i] - '0' : text[i] - 'a' + 10);
    *out = v;
    return 0;
}

static int manifest_json_section(const json_t *v, const char *rank, const struct layout *l,
                                 struct manifest_section s, uint64_t *checksum, struct err *err) {
    const char *unit = l->units[s.unit].name;
    char what[TENSOR_NAME_BYTES + 96];
    uint64_t bytes;
    snprintf(what, sizeof(what), "%s: section %s of unit %s", rank, array_names[s.array], unit);
    int rc = manifest_json_object(v, what, 4, err);
    if (rc == 0)
        rc = manifest_json_word(v, what, "array", array_names[s.array], err);
    if (rc == 0)
        rc = manifest_json_word(v, what, "unit", unit, err);
    if (rc == 0)
        rc = manifest_json_u64(v, what, "bytes", s.bytes, s.bytes, &bytes, err);
    if (rc == 0)
        rc = manifest_json_checksum(v, what, checksum, err);
    return rc;
}

int manifest_json_rank(const json_t *entry, const struct layout *l, uint32_t array_mask,
                       uint32_t rank, uint64_t *checksums, struct err *err) {
    char what[48], file[MANIFEST_RANK_FILE_BYTES];
    uint64_t bytes = SNAPSHOT_HEADER_BYTES + layout_dump_bytes(l, array_mask, rank), value;
    uint32_t count = manifest_section_count(l, array_mask);
    const json_t *sections = NULL;
    manifest_rank_file(rank, file);
    snprintf(what, sizeof(what), "the entry of rank %u", rank);
    int rc = manifest_json_object(entry, what, 4, err);
    if (rc == 0)
        rc = manifest_json_u64(entry, what, "rank", rank, rank, &value, err);
    if (rc == 0)
        rc = manifest_json_word(entry, what, "file", file, err);
    if (rc == 0)
        rc = manifest_json_u64(entry, what, "bytes", bytes, bytes, &value, err);
    if (rc == 0)
        rc = manifest_json_array(entry, what, "sections", count, count, &sections, err);
    for (uint32_t i = 0; rc == 0 && i < count; i++)
        rc = manifest_json_section(json_array_get(sections, i), what, l,
                                   manifest_section_at(l, array_mask, rank, i), &checksums[i], err);
    return rc;
}
