/* manifest_json.h - strict reading of JSON members: type, range and that no other member is there;
 * and of the ranks' entries. */
#ifndef GFS_STORE_MANIFEST_JSON_H
#define GFS_STORE_MANIFEST_JSON_H

#include <jansson.h>

#include "base/err.h"
#include "shard/layout.h"

/* Parses text; duplicate members and trailing bytes are errors. -EIO, -ENOMEM. */
int manifest_json_parse(const char *text, size_t len_bytes, const char *what, json_t **out,
                        struct err *err);

/* `what` names the object in errors. All return 0, or -EIO with a text. */
int manifest_json_object(const json_t *v, const char *what, size_t members, struct err *err);
int manifest_json_u64(const json_t *object, const char *what, const char *key, uint64_t min,
                      uint64_t max, uint64_t *out, struct err *err);
int manifest_json_bool(const json_t *object, const char *what, const char *key, bool *out,
                       struct err *err);
/* The text of a string; *out lives as long as object. */
int manifest_json_text(const json_t *object, const char *what, const char *key, size_t max_bytes,
                       const char **out, struct err *err);
/* The string must be exactly this. */
int manifest_json_word(const json_t *object, const char *what, const char *key, const char *word,
                       struct err *err);
int manifest_json_array(const json_t *object, const char *what, const char *key, size_t min,
                        size_t max, const json_t **out, struct err *err);

/* Reads a rank's entry, which must be exactly that of `rank`: file, sizes and order of all
 * sections. checksums[section count]. */
int manifest_json_rank(const json_t *entry, const struct layout *l, uint32_t array_mask,
                       uint32_t rank, uint64_t *checksums, struct err *err);

#endif
