/* read.c - from a config.json to a model of the kind it names. */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "model/reader.h"

enum { CONFIG_MAX_BYTES = 1 << 20 };

static const struct model_reader *const readers[] = {&model_reader_gpt2};

static int config_text_of_file(const char *path, char **text, struct err *err) {
    struct stat st;
    if (stat(path, &st) != 0)
        return err_set(err, errno, "model %s: no such preset (%s), and as a config.json: %s", path,
                       preset_names, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return err_set(err, ENOTSUP,
                       "model %s is a directory: loading weights is not offered yet; its "
                       "config.json alone is (a new "
                       "model of that shape)",
                       path);
    char *data;
    size_t len_bytes;
    int rc = file_read(path, CONFIG_MAX_BYTES, &data, &len_bytes, err);
    if (rc != 0)
        return rc;
    struct model *m = NULL;
    rc = strlen(data) == len_bytes ? model_open(data, &m, err)
                                   : err_set(err, EINVAL, "not JSON: a zero byte");
    if (rc != 0) {
        err_prefix(err, "%s", path);
        free(data);
        return rc;
    }
    model_close(m);
    *text = data;
    return 0;
}

int model_config_text(const char *what, char **text, struct err *err) {
    char *preset;
    int rc = preset_config_text(what, &preset);
    if (rc != 0)
        return err_set(err, -rc, "model %s: out of memory", what);
    if (preset != NULL) {
        *text = preset;
        return 0;
    }
    if (strncmp(what, "gpt2:", strlen("gpt2:")) == 0)
        return err_set(err, EINVAL, "no preset '%s'; there are: %s", what, preset_names);
    return config_text_of_file(what, text, err);
}

static int read_kind(const json_t *config, struct model **out, struct err *err) {
    const json_t *type = json_object_get(config, "model_type");
    if (!json_is_object(config))
        return err_set(err, EINVAL, "not a JSON object");
    if (!json_is_string(type))
        return err_set(err, EINVAL, "no model_type: is this the config.json of a model?");
    for (size_t i = 0; i < sizeof(readers) / sizeof(readers[0]); i++)
        if (strcmp(json_string_value(type), readers[i]->name) == 0)
            return readers[i]->open(config, out, err);
    return err_set(err, ENOTSUP, "model_type '%s' is not offered; gpt2 is",
                   json_string_value(type));
}

int model_open(const char *config_text, struct model **out, struct err *err) {
    json_error_t where;
    json_t *config = json_loads(config_text, JSON_REJECT_DUPLICATES, &where);
    if (config == NULL)
        return err_set(err, EINVAL, "line %d, column %d: %s", where.line, where.column, where.text);
    int rc = read_kind(config, out, err);
    json_decref(config);
    return rc;
}
