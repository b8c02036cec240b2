/* cmdline.c - parsing `gatherfs run`. */
#include "config.h"

#include "run/cmdline.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

enum { CONFIG_FILE_MAX_BYTES = 1 << 20 };

/* Options that are no knobs. */
static const char *const own_options[] = {"run-dir", "config", "set", "help"};
static const char *const own_help[] = {
    "--run-dir DIR",    "directory of the run (MNT.run)",
    "--config FILE",    "read settings, `knob = value` a line; the command line has precedence",
    "--set KNOB=VALUE", "any setting, also those without an option of their own",
    "--help",           "print this",
};

void cmdline_suggest(const char *word, const char *const *words, size_t count, char *out,
                     size_t cap_bytes) {
    const char *found = NULL;
    unsigned best = ~0u;
    for (size_t i = 0; i < count; i++)
        if (word_is_nearer(word, words[i], &best))
            found = words[i];
    snprintf(out, cap_bytes, "%s%s%s", found ? "; did you mean " : "", found ? found : "",
             found ? "?" : "");
}

static int unknown_option(const char *name, struct err *err) {
    const char *words[128];
    size_t count = 0;
    char hint[120];
    for (size_t i = 0; i < knob_count && count < 100; i++)
        if (knob_table[i].option)
            words[count++] = knob_table[i].option;
    for (size_t i = 0; i < sizeof own_options / sizeof own_options[0]; i++)
        words[count++] = own_options[i];
    const struct knob *k = knob_find(name);
    if (k && !k->option)
        return err_set(err, EINVAL, "there is no option --%s: use --set %s=VALUE", name, name);
    cmdline_suggest(name, words, count, hint, sizeof hint);
    char *at = strstr(hint, "mean ");
    if (at) { /* as it is typed */
        memmove(at + 7, at + 5, strlen(at + 5) + 1);
        at[5] = at[6] = '-';
    }
    return err_set(err, EINVAL, "there is no option --%.60s%s", name, hint);
}

/* ---- values */

/* Paths are kept absolute: the same command from elsewhere means the same. */
static int set_path(struct request *q, const struct knob *k, const char *value, struct err *err) {
    char *path = realpath(value, NULL);
    if (!path)
        return err_set(err, errno, "%s: %s: %s", k->name, value, strerror(errno));
    int rc = config_set(&q->values, k, path, err);
    free(path);
    return rc;
}

/* The directory of a file is kept absolute too; it need not be there yet. */
static int set_offload(struct config *c, const char *value, struct err *err) {
    char absolute[RUNDIR_PATH_BYTES], text[KNOB_TEXT_BYTES];
    const char *dir = config_offload_dir(value);
    if (!dir || !*dir)
        return config_set(c, knob_find("offload"), value, err);
    int rc = rundir_absolute(dir, absolute, sizeof absolute, err);
    if (rc)
        return err_prefix(err, "offload");
    int n = snprintf(text, sizeof text, "%.*s%s", (int)(dir - value), value, absolute);
    if (n < 0 || (size_t)n >= sizeof text)
        return err_set(err, ENAMETOOLONG, "offload: the path is too long");
    return config_set(c, knob_find("offload"), text, err);
}

/* seen: on the command line; its first path replaces those of the file. */
static int set_knob(struct request *q, const struct knob *k, const char *value, bool *seen,
                    struct err *err) {
    size_t i = (size_t)(k - knob_table);
    if (k->type == KNOB_PATHS && !seen[i])
        config_clear_paths(&q->values, k);
    seen[i] = q->given[i] = true;
    if (k->type == KNOB_PATHS)
        return set_path(q, k, value, err);
    if (strcmp(k->name, "model") == 0 && strchr(value, '/'))
        return set_path(q, k, value, err);
    if (strcmp(k->name, "offload") == 0)
        return set_offload(&q->values, value, err);
    return config_set(&q->values, k, value, err);
}

static int set_pair(struct request *q, const char *pair, bool *seen, struct err *err) {
    char name[64];
    size_t n = strcspn(pair, "=");
    if (pair[n] != '=' || n >= sizeof name)
        return err_set(err, EINVAL, "--set %.60s: expected KNOB=VALUE", pair);
    memcpy(name, pair, n);
    name[n] = '\0';
    const struct knob *k = knob_find(name);
    if (!k)
        return knob_unknown(name, err);
    if (k->class == KNOB_ONCE)
        return err_set(err, EINVAL, "--set %s: use --%s", name, k->option);
    return set_knob(q, k, pair + n + 1, seen, err);
}

/* Paths of a file are made absolute like those of the command line. */
static int settle_paths(struct config *c, struct err *err) {
    const struct knob *k = knob_find("data");
    char *list = strdup(c->data), *rest = list;
    if (!list)
        return err_set(err, ENOMEM, "no memory");
    config_clear_paths(c, k);
    int rc = 0;
    for (char *p; !rc && (p = strsep(&rest, "\n"));) {
        char *path = *p ? realpath(p, NULL) : NULL;
        if (path)
            rc = config_set(c, k, path, err);
        else if (*p)
            rc = err_set(err, errno, "data: %s: %s", p, strerror(errno));
        free(path);
    }
    free(list);
    if (!rc && strchr(c->model, '/')) {
        char *path = realpath(c->model, NULL);
        rc = path ? config_set(c, knob_find("model"), path, err)
                  : err_set(err, errno, "model: %s: %s", c->model, strerror(errno));
        free(path);
    }
    char offload[KNOB_TEXT_BYTES];
    memcpy(offload, c->offload, sizeof offload);
    return rc ? rc : set_offload(c, offload, err);
}

static int read_file(struct request *q, const char *path, struct err *err) {
    char *text;
    int rc = file_read(path, CONFIG_FILE_MAX_BYTES, &text, NULL, err);
    if (rc)
        return rc;
    rc = config_parse(&q->values, text, path, q->given, err);
    free(text);
    return rc ? rc : settle_paths(&q->values, err);
}

/* ---- words */

struct words {
    int argc, at;
    char **argv;
};

/* The value of an option: after '=', or the next word; NULL: there is none. */
static const char *take_value(struct words *w, const char *name, const char *inline_value,
                              struct err *err) {
    if (inline_value)
        return inline_value;
    if (w->at + 1 < w->argc)
        return w->argv[++w->at];
    err_set(err, EINVAL, "--%s needs a value", name);
    return NULL;
}

static int take_flag(struct request *q, const struct knob *k, const char *inline_value,
                     struct err *err) {
    if (inline_value)
        return err_set(err, EINVAL, "--%s takes no value", k->option);
    bool off = strncmp(k->option, "no-", 3) == 0;
    q->given[k - knob_table] = true;
    return config_set(&q->values, k, off ? "0" : "1", err);
}

static int take_option(struct request *q, struct words *w, bool *seen, struct err *err) {
    char name[64];
    const char *word = w->argv[w->at] + 2, *equals = strchr(word, '=');
    size_t n = equals ? (size_t)(equals - word) : strlen(word);
    if (n >= sizeof name)
        return unknown_option(word, err);
    memcpy(name, word, n);
    name[n] = '\0';
    const struct knob *k = knob_find_option(name);
    if (k && k->type == KNOB_BOOL)
        return take_flag(q, k, equals ? equals + 1 : NULL, err);
    bool is_own =
        strcmp(name, "run-dir") == 0 || strcmp(name, "config") == 0 || strcmp(name, "set") == 0;
    if (!k && !is_own)
        return unknown_option(name, err);
    const char *value = take_value(w, name, equals ? equals + 1 : NULL, err);
    if (!value)
        return -EINVAL;
    if (k)
        return set_knob(q, k, value, seen, err);
    if (strcmp(name, "set") == 0)
        return set_pair(q, value, seen, err);
    if (strcmp(name, "run-dir") == 0)
        return rundir_absolute(value, q->run_dir, sizeof q->run_dir, err);
    return 0; /* --config was read first */
}

/* The file comes before the rest, wherever it stands. */
static int take_files(struct request *q, int argc, char **argv, struct err *err) {
    int rc = 0;
    for (int i = 0; i < argc && !rc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--config") == 0 && i + 1 < argc)
            rc = read_file(q, argv[++i], err);
        else if (strncmp(argv[i], "--config=", 9) == 0)
            rc = read_file(q, argv[i] + 9, err);
    }
    return rc;
}

static int take_place(struct request *q, const char *word, struct err *err) {
    if (*q->mountpoint)
        return err_set(err, EINVAL, "one mountpoint is enough: %.60s is too much", word);
    return rundir_absolute(word, q->mountpoint, sizeof q->mountpoint, err);
}

/* Where it is mounted, and where it is kept. */
static int settle_places(struct request *q, struct err *err) {
    if (!*q->mountpoint && (q->values.mount || !*q->run_dir))
        return err_set(err, EINVAL,
                       q->values.mount ? "where to mount is missing (or give --no-mount)"
                                       : "--no-mount needs --run-dir, or a name to derive it from");
    if (!*q->run_dir && file_path(q->run_dir, sizeof q->run_dir, "%s.run", q->mountpoint))
        return err_set(err, ENAMETOOLONG, "the path is too long");
    size_t n = strlen(q->mountpoint);
    if (n && strncmp(q->run_dir, q->mountpoint, n) == 0 && (q->run_dir[n] == '/' || !q->run_dir[n]))
        return err_set(err, EINVAL, "the run directory can't lie in the mount");
    return 0;
}

int cmdline_run(int argc, char **argv, struct request *out, struct err *err) {
    struct request *q = out;
    struct words w = {.argc = argc, .argv = argv};
    memset(q, 0, sizeof *q);
    config_defaults(&q->values);
    q->given = calloc(knob_count, sizeof *q->given);
    bool *seen = calloc(knob_count, sizeof *seen);
    int rc = -ENOMEM;
    if (q->given && seen)
        rc = take_files(q, argc, argv, err);
    else
        err_set(err, ENOMEM, "no memory");
    bool only_places = false;
    for (; !rc && w.at < argc; w.at++) {
        const char *word = argv[w.at];
        if (!only_places && strcmp(word, "--") == 0)
            only_places = true;
        else if (!only_places && strncmp(word, "--", 2) == 0)
            rc = take_option(q, &w, seen, err);
        else if (!only_places && word[0] == '-' && word[1])
            rc = err_set(err, EINVAL, "there is no option %.60s", word);
        else
            rc = take_place(q, word, err);
    }
    if (!rc)
        rc = settle_places(q, err);
    free(seen);
    if (rc)
        cmdline_free(q);
    return rc;
}

void cmdline_free(struct request *q) {
    free(q->given);
    q->given = NULL;
}

/* ---- help */

static void help_line(FILE *out, const char *left, const char *help, const char *fallback) {
    fprintf(out, "  %-26s %s%s%s%s\n", left, help, fallback ? " (" : "", fallback ? fallback : "",
            fallback ? ")" : "");
}

static void help_class(FILE *out, enum knob_class class) {
    char left[80];
    for (size_t i = 0; i < knob_count; i++) {
        const struct knob *k = &knob_table[i];
        if (k->class != class)
            continue;
        if (k->type == KNOB_BOOL)
            snprintf(left, sizeof left, "--%s", k->option);
        else if (k->option)
            snprintf(left, sizeof left, "--%s %s", k->option, k->metavar);
        else
            snprintf(left, sizeof left, "--set %s=%s", k->name, k->metavar);
        help_line(out, left, k->help, k->type == KNOB_BOOL || !*k->fallback ? NULL : k->fallback);
    }
}

void cmdline_help(FILE *out) {
    static const char *const titles[] = {
        [KNOB_FIXED] = "Fixed from the first start of a run on:",
        [KNOB_RESUME] = "Kept, and may be given anew at each start:",
        [KNOB_LIVE] = "Kept, and may change while running (control/KNOB):",
        [KNOB_ONCE] = "For this start only:",
    };
    fputs(
        "usage: gatherfs run [OPTION]... MNT\n\n"
        "Trains; the state of the run is under MNT. The same command in the same place goes on.\n",
        out);
    for (int class = KNOB_FIXED; class <= KNOB_ONCE; class ++) {
        fprintf(out, "\n%s\n", titles[class]);
        help_class(out, (enum knob_class) class);
    }
    fputs("\nOthers:\n", out);
    for (size_t i = 0; i < sizeof own_help / sizeof own_help[0]; i += 2)
        help_line(out, own_help[i], own_help[i + 1], NULL);
}

void cmdline_list_options(FILE *out) {
    for (size_t i = 0; i < knob_count; i++)
        if (knob_table[i].option)
            fprintf(out, "--%s\n", knob_table[i].option);
    for (size_t i = 0; i < sizeof own_options / sizeof own_options[0]; i++)
        fprintf(out, "--%s\n", own_options[i]);
}
