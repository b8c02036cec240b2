/* manifest_state.c - text of the train state. */
#include "config.h"

#include "store/manifest_state.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { STATE_ROOM = SNAPSHOT_TRAIN_STATE_BYTES - 1, STATE_INDENT = 2 };

static const char *const state_members[] = {"step", "attempt", "world_size"};
enum { STATE_MEMBERS = sizeof(state_members) / sizeof(state_members[0]) };

/* Integers are parsed as reals: the parser would refuse those above 2^63. Only what kind of text it
 * is matters here. */
static int state_parse(const char *text, int code, json_t **out, struct err *err) {
    json_error_t why;
    json_t *v = json_loads(text, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &why);
    if (v == NULL && json_error_code(&why) == json_error_out_of_memory)
        return err_set(err, ENOMEM, "no memory for the train state");
    if (v == NULL)
        return err_set(err, code, "the train state: line %d: %s", why.line, why.text);
    if (!json_is_object(v)) {
        json_decref(v);
        return err_set(err, code, "the train state is not an object");
    }
    *out = v;
    return 0;
}

static void state_new_line(struct enc *out, int depth) {
    enc_printf(out, "\n%*s", depth * STATE_INDENT, "");
}

/* Writes valid JSON again, with other white space between its tokens. */
static void state_print(const char *text, bool indent, struct enc *out) {
    bool in_string = false, after_open = false;
    int depth = 0;
    for (const char *p = text; *p != '\0'; p++) {
        if (in_string) {
            enc_u8(out, (uint8_t)*p);
            if (*p == '\\')
                enc_u8(out, (uint8_t) * ++p);
            else if (*p == '"')
                in_string = false;
            continue;
        }
        if (strchr(" \t\r\n", *p) != NULL)
            continue;
        bool closes = *p == '}' || *p == ']';
        depth -= closes;
        if (indent && after_open != closes)
            state_new_line(out, depth);
        after_open = *p == '{' || *p == '[';
        depth += after_open;
        enc_u8(out, (uint8_t)*p);
        in_string = *p == '"';
        if (indent && *p == ':')
            enc_u8(out, ' ');
        if (indent && *p == ',')
            state_new_line(out, depth);
    }
}

static int state_print_fitting(const char *text, struct enc *out, struct err *err) {
    state_print(text, true, out);
    if (out->len_bytes > STATE_ROOM) {
        enc_reset(out);
        state_print(text, false, out);
    }
    if (!out->failed && out->len_bytes > STATE_ROOM)
        return err_set(err, E2BIG, "the train state has %zu bytes; %d fit", out->len_bytes,
                       STATE_ROOM);
    enc_u8(out, '\0');
    return out->failed ? err_set(err, ENOMEM, "no memory for the train state") : 0;
}

int manifest_state_make(const struct snapshot_info *info, const char *given, char **out,
                        struct err *err) {
    json_t *object = NULL;
    struct enc whole = {0}, text = {0};
    int rc = state_parse(given, EINVAL, &object, err);
    if (rc != 0)
        return rc;
    for (int i = 0; rc == 0 && i < STATE_MEMBERS; i++)
        if (json_object_get(object, state_members[i]) != NULL)
            rc = err_set(err, EINVAL, "the train state of the ranks has a member %s",
                         state_members[i]);
    enc_printf(&whole, "{\"step\":%" PRIu64 ",\"attempt\":%" PRIu32 ",\"world_size\":%" PRIu32,
               info->step, info->attempt, info->world_size);
    if (json_object_size(object) > 0)
        enc_u8(&whole, ',');
    /* What follows the brace that opens the ranks' object also closes this one. */
    const char *rest = strchr(given, '{') + 1;
    enc_bytes(&whole, rest, strlen(rest) + 1);
    if (rc == 0 && whole.failed)
        rc = err_set(err, ENOMEM, "no memory for the train state");
    if (rc == 0)
        rc = state_print_fitting((const char *)whole.data, &text, err);
    json_decref(object);
    enc_free(&whole);
    if (rc != 0)
        enc_free(&text);
    else
        *out = (char *)text.data;
    return rc;
}

static int state_check(const struct snapshot_info *info, const json_t *object, struct err *err) {
    const uint64_t values[STATE_MEMBERS] = {info->step, info->attempt, info->world_size};
    for (int i = 0; i < STATE_MEMBERS; i++) {
        const json_t *v = json_object_get(object, state_members[i]);
        if (!json_is_real(v) || json_real_value(v) != (double)values[i])
            return err_set(err, EIO, "the train state: %s is not %" PRIu64, state_members[i],
                           values[i]);
    }
    return 0;
}

int manifest_state_read(const struct snapshot_info *info, const char *text, char **out,
                        struct err *err) {
    json_t *object = NULL;
    size_t len = strlen(text);
    if (len > STATE_ROOM)
        return err_set(err, EIO, "the train state has %zu bytes; %d fit", len, STATE_ROOM);
    int rc = state_parse(text, EIO, &object, err);
    if (rc == 0)
        rc = state_check(info, object, err);
    json_decref(object);
    if (rc != 0)
        return rc;
    char *padded = malloc(SNAPSHOT_TRAIN_STATE_BYTES + 1);
    if (padded == NULL)
        return err_set(err, ENOMEM, "no memory for the train state");
    memcpy(padded, text, len);
    memset(padded + len, ' ', STATE_ROOM - len);
    padded[STATE_ROOM] = '\n';
    padded[STATE_ROOM + 1] = '\0';
    *out = padded;
    return 0;
}
