/* control.c - lines to commands, commands to parked requests. */
#include "config.h"

#include "fsmount/control.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum value_kind { VALUE_STEPS, VALUE_ABSOLUTE, VALUE_SWITCH, VALUE_ONE, VALUE_NAME };

struct control_command {
    const char *name;
    enum value_kind kind;
};
static const struct control_command control_commands[] = {
    {"step", VALUE_STEPS},    {"target", VALUE_ABSOLUTE}, {"run", VALUE_SWITCH},
    {"snapshot", VALUE_NAME}, {"pin", VALUE_NAME},        {"restore", VALUE_NAME},
    {"abort", VALUE_ONE},     {"stop", VALUE_ONE},
};
enum {
    COMMAND_COUNT = sizeof(control_commands) / sizeof(control_commands[0]),
    COMMAND_STEP = 0,
    COMMAND_TARGET = 1,
    COMMAND_RUN = 2
};

/* A command that somebody waits for. */
struct waiting {
    struct waiting *next;
    struct control *owner;
    char key[sizeof(((struct msg_command *)0)->key)];
    char name[sizeof(((struct msg_command *)0)->name)];
    char value[MSG_VALUE_BYTES];
    struct park_list parked;
    void (*reply)(void *ctx, const struct park *p, const char *value);
    void *ctx;
};

struct control {
    struct link *supervisor;
    struct status *status;
    struct waiting *all;
    char last[COMMAND_COUNT][NAME_MAX_BYTES + 1]; /* last value that succeeded */
};

/* The n-th live knob. */
static const struct knob *control_knob(uint32_t n) {
    for (size_t i = 0; i < knob_count; i++)
        if (knob_table[i].class == KNOB_LIVE && n-- == 0)
            return &knob_table[i];
    return NULL;
}

uint32_t control_file_count(void) {
    uint32_t n = 0;
    while (control_knob(n) != NULL)
        n++;
    return COMMAND_COUNT + n;
}

const char *control_file_name(uint32_t file) {
    if (file < COMMAND_COUNT)
        return control_commands[file].name;
    const struct knob *k = control_knob(file - COMMAND_COUNT);
    return k != NULL ? k->name : NULL;
}

int control_file_find(const char *name) {
    for (uint32_t i = 0; i < control_file_count(); i++)
        if (strcmp(control_file_name(i), name) == 0)
            return (int)i;
    return -ENOENT;
}

/* ---- parsing */

static int check_number(const char *name, const char *value, uint64_t least, uint64_t most,
                        const char *expected, struct err *err) {
    uint64_t n;
    int rc = parse_u64(value, &n);
    if (rc == 0 && (n < least || n > most))
        rc = -ERANGE;
    /* A negative number is no syntax error to who wrote it. */
    double x;
    if (rc == -EINVAL && value[0] == '-' && parse_f64(value, &x) == 0)
        rc = -ERANGE;
    return rc == 0 ? 0
                   : err_set(err, -rc, "control/%s: '%.60s': expected %s", name, value, expected);
}

static int check_command(const struct control_command *c, const char *value, struct err *err) {
    switch (c->kind) {
    case VALUE_STEPS:
        return check_number(c->name, value, 1, UINT64_C(1) << 53, "a number of steps from 1", err);
    case VALUE_ABSOLUTE:
        return check_number(c->name, value, 0, UINT64_C(1) << 53, "a step", err);
    case VALUE_SWITCH:
        return check_number(c->name, value, 0, 1, "1 or 0", err);
    case VALUE_ONE:
        return check_number(c->name, value, 1, 1, "1", err);
    case VALUE_NAME:
        if (parse_name_ok(value))
            return 0;
        return err_set(
            err, EINVAL,
            "control/%s: '%.60s' is no name: expected up to %d letters, digits, '.', '_' and '-', "
            "not '.' or '-' first",
            c->name, value, NAME_MAX_BYTES);
    }
    return err_set(err, EINVAL, "control/%s: no such command", c->name);
}

static int check_knob(const struct knob *k, const char *value, const struct config *config,
                      struct err *err) {
    struct config *copy = malloc(sizeof(*copy));
    if (copy == NULL)
        return err_set(err, ENOMEM, "no memory");
    *copy = *config;
    int rc = config_set(copy, k, value, err);
    free(copy);
    return rc;
}

/* The line without its newline, in two words at most; -EINVAL for what is no line. */
static int split_line(const char *name, const char *data, size_t len, char line[MSG_VALUE_BYTES],
                      char **value, char **id, struct err *err) {
    if (len > 0 && data[len - 1] == '\n')
        len--;
    if (len >= MSG_VALUE_BYTES)
        return err_set(err, EINVAL, "control/%s: %zu bytes are too long for a command", name, len);
    if (memchr(data, '\0', len) != NULL || memchr(data, '\n', len) != NULL)
        return err_set(err, EINVAL, "control/%s: one line 'VALUE [id]' is one command", name);
    memcpy(line, data, len);
    line[len] = '\0';
    char *save = NULL;
    char *first = strtok_r(line, " \t", &save), *second = strtok_r(NULL, " \t", &save);
    if (first == NULL || strtok_r(NULL, " \t", &save) != NULL)
        return err_set(err, EINVAL, "control/%s: expected 'VALUE [id]'", name);
    if (second != NULL && !parse_command_id_ok(second))
        return err_set(err, EINVAL,
                       "control/%s: '%.80s' is no id: expected up to %d of letters, digits, '.', "
                       "'_', ':', '-'",
                       name, second, COMMAND_ID_MAX_BYTES);
    *value = first;
    *id = second;
    return 0;
}

int control_parse(uint32_t file, const char *data, size_t len_bytes, const struct config *config,
                  uint64_t unique, struct msg_command *out, struct err *err) {
    const char *name = control_file_name(file);
    char line[MSG_VALUE_BYTES] = "", *value = line, *id = NULL;
    if (name == NULL)
        return err_set(err, EINVAL, "no such command");
    int rc = split_line(name, data, len_bytes, line, &value, &id, err);
    if (rc == 0)
        rc = file < COMMAND_COUNT
                 ? check_command(&control_commands[file], value, err)
                 : check_knob(control_knob(file - COMMAND_COUNT), value, config, err);
    if (rc != 0)
        return rc;
    memset(out, 0, sizeof(*out));
    if (id != NULL)
        snprintf(out->key, sizeof(out->key), "id:%s", id);
    else
        snprintf(out->key, sizeof(out->key), "u:%" PRIu64, unique);
    snprintf(out->name, sizeof(out->name), "%s", name);
    snprintf(out->value, sizeof(out->value), "%s", value);
    return 0;
}

/* ---- waiting */

int control_open(struct link *supervisor, struct status *status, struct control **out) {
    struct control *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return -ENOMEM;
    c->supervisor = supervisor;
    c->status = status;
    *out = c;
    return 0;
}

static void waiting_free(struct waiting *w) {
    struct waiting **at = &w->owner->all;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    free(w);
}

/* All were interrupted: the command goes on without anybody waiting here. */
static void waiting_left(void *owner) {
    struct waiting *w = owner;
    if (w->parked.first == NULL)
        waiting_free(w);
}

void control_close(struct control *c) {
    if (c == NULL)
        return;
    while (c->all != NULL) {
        park_fail(&c->all->parked, EIO);
        waiting_free(c->all);
    }
    free(c);
}

static struct waiting *control_find(const struct control *c, const char *key) {
    for (struct waiting *w = c->all; w != NULL; w = w->next)
        if (strcmp(w->key, key) == 0)
            return w;
    return NULL;
}

static struct waiting *control_send(struct control *c, const struct msg_command *m) {
    struct waiting *w = calloc(1, sizeof(*w));
    if (w == NULL || msg_send(c->supervisor, MSG_COMMAND, 0, m, NULL, 0) != 0) {
        free(w);
        return NULL;
    }
    w->owner = c;
    memcpy(w->key, m->key, sizeof(w->key));
    memcpy(w->name, m->name, sizeof(w->name));
    memcpy(w->value, m->value, sizeof(w->value));
    w->next = c->all;
    c->all = w;
    return w;
}

void control_submit(struct control *c, fuse_req_t req, const struct msg_command *m,
                    size_t size_bytes,
                    void (*reply)(void *ctx, const struct park *p, const char *value), void *ctx,
                    uint64_t ino) {
    struct waiting *w = control_find(c, m->key);
    if (w != NULL && (strcmp(w->name, m->name) != 0 || strcmp(w->value, m->value) != 0)) {
        char text[MSG_TEXT_BYTES];
        snprintf(text, sizeof(text), "control/%s: the id of another command that waits", m->name);
        status_error(c->status, text);
        fuse_reply_err(req, EINVAL);
        return;
    }
    if (w == NULL)
        w = control_send(c, m);
    if (w == NULL) {
        fuse_reply_err(req, EIO);
        return;
    }
    w->reply = reply;
    w->ctx = ctx;
    struct park *p = park_add(&w->parked, req, waiting_left, w);
    if (p != NULL) {
        p->size_bytes = size_bytes;
        p->ino = ino;
    } else {
        waiting_left(w);
    }
}

void control_done(struct control *c, const struct msg_command_done *m) {
    struct waiting *w = control_find(c, m->key);
    if (m->code != 0 && m->text[0] != '\0')
        status_error(c->status, m->text);
    if (w == NULL)
        return;
    for (uint32_t i = 0; m->code == 0 && i < COMMAND_COUNT; i++)
        if (strcmp(control_commands[i].name, w->name) == 0)
            snprintf(c->last[i], sizeof(c->last[i]), "%.*s", NAME_MAX_BYTES, w->value);
    int code = m->code < 4096 ? (int)m->code : EIO;
    struct park p;
    while (park_pop(&w->parked, &p)) {
        if (code != 0)
            fuse_reply_err(p.req, code);
        else if (w->reply != NULL)
            w->reply(w->ctx, &p, w->value);
        else
            fuse_reply_write(p.req, p.size_bytes);
    }
    waiting_free(w);
}

/* ---- reading */

struct text *control_file_text(const struct control *c, uint32_t file) {
    const struct msg_status *now = status_get(c->status);
    struct enc e = {0};
    char value[KNOB_TEXT_BYTES];
    if (file == COMMAND_STEP)
        enc_printf(&e, "%" PRIu64 "\n", now->step);
    else if (file == COMMAND_TARGET)
        enc_printf(&e, "%" PRIu64 "\n", now->goal_step);
    else if (file == COMMAND_RUN)
        enc_printf(&e, "%d\n", now->state == RUN_TRAINING);
    else if (file < COMMAND_COUNT)
        enc_printf(&e, "%s\n", c->last[file][0] != '\0' ? c->last[file] : "0");
    else if (config_get(status_config(c->status), control_knob(file - COMMAND_COUNT), value,
                        sizeof(value)) == 0)
        enc_printf(&e, "%s\n", value);
    else
        enc_printf(&e, "0\n");
    return text_of_enc(&e);
}
