/* reader.h - inside src/model: kinds of models as their config.json describes them. Apart from
 * kind.h, so that a model can be made without JSON. */
#ifndef GFS_MODEL_READER_H
#define GFS_MODEL_READER_H

#include <jansson.h>

#include "model/model.h"

struct model_reader {
    const char *name; /* "model_type" of config.json */
    /* config: the whole object. *out is closed by model_close. */
    int (*open)(const json_t *config, struct model **out, struct err *err);
};

extern const struct model_reader model_reader_gpt2;

/* The config.json of a preset ("gpt2:tiny"); NULL if there is none. The caller frees. -ENOMEM. */
int preset_config_text(const char *name, char **text);
extern const char preset_names[]; /* for people: "gpt2:tiny, ..." */

#endif
