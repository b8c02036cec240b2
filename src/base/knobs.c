/* knobs.c - the table of settings, and configurations as text. */
#include "config.h"

#include "base/knobs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/parse.h"

const char *const knob_class_names[] = {
    [KNOB_FIXED] = "fixed",
    [KNOB_RESUME] = "resume",
    [KNOB_LIVE] = "live",
    [KNOB_ONCE] = "once",
};

enum { KNOB_VALUE_BYTES = KNOB_PATHS_BYTES };
static const double count_max = 1e15; /* exact as a double, and far from any overflow */
static const double u64_max = 18446744073709551615.0;

/* The emulation of a GPU is a device in builds for tests only. */
#ifdef GFS_EMULATION
#define DEVICE_OF_TESTS "|emulated"
#else
#define DEVICE_OF_TESTS ""
#endif

/* Name, type and class; where the value lies. */
#define FIELD(f) .offset = offsetof(struct config, f), .size_bytes = sizeof(((struct config *)0)->f)

const struct knob knob_table[] = {
    {.name = "model",
     .option = "model",
     .type = KNOB_TEXT,
     .class = KNOB_FIXED,
     FIELD(model),
     .fallback = "gpt2:tiny",
     .metavar = "MODEL",
     .help = "gpt2:tiny, gpt2:10M, gpt2:124M, or the path of a Hugging Face config.json"},
    {.name = "seed",
     .option = "seed",
     .type = KNOB_U64,
     .class = KNOB_FIXED,
     FIELD(seed),
     .fallback = "1",
     .max = u64_max,
     .metavar = "N",
     .help = "seed of the initial weights and of the order of the data"},
    {.name = "global_batch",
     .option = "global-batch",
     .type = KNOB_U64,
     .class = KNOB_FIXED,
     FIELD(global_batch),
     .fallback = "16",
     .min = 1,
     .max = 1 << 20,
     .metavar = "N",
     .help = "sequences a step, over all ranks"},
    {.name = "seq_len",
     .option = "seq-len",
     .type = KNOB_U64,
     .class = KNOB_FIXED,
     FIELD(seq_len),
     .fallback = "0",
     .max = 1 << 20,
     .metavar = "N",
     .help = "tokens a sequence; 0: the model's context"},
    {.name = "schedule_steps",
     .option = "schedule-steps",
     .type = KNOB_U64,
     .class = KNOB_FIXED,
     FIELD(schedule_steps),
     .fallback = "0",
     .max = count_max,
     .metavar = "N",
     .help = "steps until the learning rate is at its lowest; 0: the first --steps"},
    {.name = "warmup_steps",
     .option = "warmup-steps",
     .type = KNOB_U64,
     .class = KNOB_FIXED,
     FIELD(warmup_steps),
     .fallback = "100",
     .max = count_max,
     .metavar = "N",
     .help =
         "steps over which the learning rate rises, at most a tenth of the schedule unless set"},
    {.name = "beta1",
     .type = KNOB_F64,
     .class = KNOB_FIXED,
     FIELD(beta1),
     .fallback = "0.9",
     .max = 0.9999999,
     .metavar = "X",
     .help = "decay of AdamW's first moment"},
    {.name = "beta2",
     .type = KNOB_F64,
     .class = KNOB_FIXED,
     FIELD(beta2),
     .fallback = "0.99",
     .max = 0.9999999,
     .metavar = "X",
     .help = "decay of AdamW's second moment"},
    {.name = "eps",
     .type = KNOB_F64,
     .class = KNOB_FIXED,
     FIELD(eps),
     .fallback = "1e-08",
     .min = 1e-30,
     .max = 1,
     .metavar = "X",
     .help = "term that keeps AdamW from dividing by zero"},

    {.name = "data",
     .option = "data",
     .type = KNOB_PATHS,
     .class = KNOB_RESUME,
     FIELD(data),
     .fallback = "",
     .metavar = "PATH",
     .help = "text, directory of texts, or .bin file of tokens; may be given several times"},
    {.name = "ranks",
     .option = "ranks",
     .type = KNOB_U64,
     .class = KNOB_RESUME,
     FIELD(ranks),
     .fallback = "0",
     .max = KNOB_MAX_RANKS,
     .metavar = "N",
     .help = "processes over which the model is sharded; 0: one a GPU, else 2"},
    {.name = "threads",
     .option = "threads",
     .type = KNOB_U64,
     .class = KNOB_RESUME,
     FIELD(threads),
     .fallback = "0",
     .max = 4096,
     .metavar = "N",
     .help = "threads a rank; 0: cores divided by ranks"},
    {.name = "micro_batch",
     .option = "micro-batch",
     .type = KNOB_U64,
     .class = KNOB_RESUME,
     FIELD(micro_batch),
     .fallback = "0",
     .max = 1 << 20,
     .metavar = "N",
     .help = "sequences that a rank computes at once; 0: chosen by it"},
    {.name = "wrap",
     .option = "wrap",
     .type = KNOB_TEXT,
     .class = KNOB_RESUME,
     FIELD(wrap),
     .fallback = "block",
     .metavar = "POLICY",
     .help = "what is gathered together: block, none, or size:MIN_PARAMS"},
    {.name = "comm",
     .option = "comm",
     .type = KNOB_CHOICE,
     .class = KNOB_RESUME,
     FIELD(comm),
     .fallback = "auto",
     .choices = "auto|self|node|mpi|nccl",
     .metavar = "NAME",
     .help = "communicator of the ranks: auto, self, node, mpi or nccl"},
    {.name = "comm_timeout",
     .type = KNOB_F64,
     .class = KNOB_RESUME,
     FIELD(comm_timeout),
     .fallback = "600",
     .min = 0.1,
     .max = 86400,
     .metavar = "SECONDS",
     .help = "how long a collective of nccl may make no progress, or a rank be silent, before the "
             "ranks restart"},
    {.name = "device",
     .option = "device",
     .type = KNOB_CHOICE,
     .class = KNOB_RESUME,
     FIELD(device),
     .fallback = "auto",
     .choices = "auto|cpu|cuda" DEVICE_OF_TESTS,
     .metavar = "NAME",
     .help = "device that computes: auto (cuda if there is one), cpu or cuda"},
    {.name = "dtype",
     .option = "dtype",
     .type = KNOB_CHOICE,
     .class = KNOB_RESUME,
     FIELD(dtype),
     .fallback = "f32",
     .choices = "f32|bf16",
     .metavar = "NAME",
     .help = "dtype of gathered parameters and activations; shards and sums are always f32"},
    {.name = "reduce_dtype",
     .option = "reduce-dtype",
     .type = KNOB_CHOICE,
     .class = KNOB_RESUME,
     FIELD(reduce_dtype),
     .fallback = "f32",
     .choices = "f32|bf16",
     .metavar = "NAME",
     .help = "dtype in which gradients are reduced; bf16 only with dtype = bf16"},
    {.name = "tensor_cores",
     .type = KNOB_CHOICE,
     .class = KNOB_RESUME,
     FIELD(tensor_cores),
     .fallback = "auto",
     .choices = "auto|on|off",
     .metavar = "WHEN",
     .help = "own kernels on tensor cores, and TF32 in f32: auto (where confirmed), on or off"},
    {.name = "offload",
     .option = "offload",
     .type = KNOB_TEXT,
     .class = KNOB_RESUME,
     FIELD(offload),
     .fallback = "none",
     .metavar = "WHAT",
     .help = "where optimizer state rests: none, optimizer=host or optimizer=file:DIR"},
    {.name = "steps",
     .option = "steps",
     .type = KNOB_U64,
     .class = KNOB_RESUME,
     FIELD(steps),
     .fallback = "1000",
     .min = 1,
     .max = count_max,
     .metavar = "N",
     .help = "the target: the step after which the run is done"},
    {.name = "allow_other",
     .option = "allow-other",
     .type = KNOB_BOOL,
     .class = KNOB_RESUME,
     FIELD(allow_other),
     .fallback = "0",
     .help = "let other users read the mount"},
    {.name = "direct_io",
     .option = "direct-io",
     .type = KNOB_BOOL,
     .class = KNOB_RESUME,
     FIELD(direct_io),
     .fallback = "0",
     .help = "serve live files past the page cache"},

    {.name = "lr",
     .option = "lr",
     .type = KNOB_F64,
     .class = KNOB_LIVE,
     FIELD(lr),
     .fallback = "0.001",
     .max = 1e3,
     .metavar = "X",
     .help = "the highest learning rate, after the warmup"},
    {.name = "min_lr_fraction",
     .type = KNOB_F64,
     .class = KNOB_LIVE,
     FIELD(min_lr_fraction),
     .fallback = "0.1",
     .max = 1,
     .metavar = "X",
     .help = "the learning rate at the end of the schedule, as a fraction of lr"},
    {.name = "clip",
     .type = KNOB_F64,
     .class = KNOB_LIVE,
     FIELD(clip),
     .fallback = "1",
     .max = 1e30,
     .metavar = "X",
     .help = "largest norm of the gradient; 0: not clipped"},
    {.name = "weight_decay",
     .type = KNOB_F64,
     .class = KNOB_LIVE,
     FIELD(weight_decay),
     .fallback = "0.1",
     .max = 1e3,
     .metavar = "X",
     .help = "AdamW's weight decay, of matrices only"},
    {.name = "snapshot_every",
     .option = "snapshot-every",
     .type = KNOB_U64,
     .class = KNOB_LIVE,
     FIELD(snapshot_every),
     .fallback = "600",
     .max = 1e9,
     .metavar = "SECONDS",
     .help = "seconds between automatic snapshots; 0: only the last one"},
    {.name = "keep",
     .option = "keep",
     .type = KNOB_U64,
     .class = KNOB_LIVE,
     FIELD(keep),
     .fallback = "3",
     .max = 1e9,
     .metavar = "N",
     .help = "automatic snapshots that are kept; 0: all"},
    {.name = "read_timeout",
     .type = KNOB_F64,
     .class = KNOB_LIVE,
     FIELD(read_timeout),
     .fallback = "10",
     .min = 0.1,
     .max = 1e6,
     .metavar = "SECONDS",
     .help = "seconds without a sign of life of a rank after which a read gives ETIMEDOUT"},
    {.name = "snapshot_grads",
     .type = KNOB_U64,
     .class = KNOB_LIVE,
     FIELD(snapshot_grads),
     .fallback = "0",
     .max = 1,
     .metavar = "0|1",
     .help = "1: snapshots hold the gradients too"},
    {.name = "take_memory",
     .type = KNOB_BYTES,
     .class = KNOB_LIVE,
     FIELD(take_memory),
     .fallback = "0",
     .max = count_max,
     .metavar = "BYTES",
     .help =
         "memory for readers, over all ranks; 0: a quarter of the host's, or twice the parameters"},
    {.name = "max_pins",
     .type = KNOB_U64,
     .class = KNOB_LIVE,
     FIELD(max_pins),
     .fallback = "1",
     .max = 1000,
     .metavar = "N",
     .help = "pins that may be held at once"},
    {.name = "log_every",
     .option = "log-every",
     .type = KNOB_U64,
     .class = KNOB_LIVE,
     FIELD(log_every),
     .fallback = "10",
     .min = 1,
     .max = count_max,
     .metavar = "N",
     .help = "steps between two lines of progress where the output is no terminal"},

    {.name = "paused",
     .option = "paused",
     .type = KNOB_BOOL,
     .class = KNOB_ONCE,
     FIELD(paused),
     .fallback = "0",
     .help = "start paused, at the step where the run is"},
    {.name = "stay",
     .option = "stay",
     .type = KNOB_BOOL,
     .class = KNOB_ONCE,
     FIELD(stay),
     .fallback = "0",
     .help = "keep the mount when the target is reached"},
    {.name = "mount",
     .option = "no-mount",
     .type = KNOB_BOOL,
     .class = KNOB_ONCE,
     FIELD(mount),
     .fallback = "1",
     .help = "train without a mount"},
    {.name = "fresh",
     .option = "new",
     .type = KNOB_BOOL,
     .class = KNOB_ONCE,
     FIELD(fresh),
     .fallback = "0",
     .help = "start over: the old run directory is renamed to RUN_DIR.1, or the next free number"},
};
const size_t knob_count = sizeof knob_table / sizeof knob_table[0];

/* ---- looking up */

const struct knob *knob_find(const char *name) {
    for (size_t i = 0; i < knob_count; i++)
        if (strcmp(knob_table[i].name, name) == 0)
            return &knob_table[i];
    return NULL;
}

const struct knob *knob_find_option(const char *option) {
    for (size_t i = 0; i < knob_count; i++)
        if (knob_table[i].option && strcmp(knob_table[i].option, option) == 0)
            return &knob_table[i];
    return NULL;
}

enum { WORD_BYTES = 64 };

/* Edit distance where a swap of neighbours counts one; '-' and '_' are the same. */
static unsigned word_distance(const char *a, size_t na, const char *b, size_t nb) {
    unsigned rows[3][WORD_BYTES + 1];
    unsigned *before = rows[0], *last = rows[1], *now = rows[2];
    for (size_t j = 0; j <= nb; j++)
        last[j] = (unsigned)j;
    for (size_t i = 1; i <= na; i++) {
        now[0] = (unsigned)i;
        for (size_t j = 1; j <= nb; j++) {
            char x = a[i - 1] == '-' ? '_' : a[i - 1], y = b[j - 1] == '-' ? '_' : b[j - 1];
            unsigned best = last[j - 1] + (x != y);
            if (last[j] + 1 < best)
                best = last[j] + 1;
            if (now[j - 1] + 1 < best)
                best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
        }
        unsigned *spare = before;
        before = last;
        last = now;
        now = spare;
    }
    return last[nb];
}

bool word_is_nearer(const char *word, const char *candidate, unsigned *best) {
    size_t nw = strlen(word), nc = strlen(candidate);
    if (nw == 0 || nw > WORD_BYTES || nc > WORD_BYTES)
        return false;
    unsigned limit = 1 + (unsigned)(nw < nc ? nw : nc) / 3;
    unsigned d = word_distance(word, nw, candidate, nc);
    /* An unfinished word is meant as its completion, but less surely than one with a typing error.
     */
    if (nw >= 3 && nw < nc && strncmp(word, candidate, nw) == 0 && d > limit)
        d = limit;
    if (d > limit || d >= *best)
        return false;
    *best = d;
    return true;
}

const struct knob *knob_suggest(const char *name) {
    const struct knob *found = NULL;
    unsigned best = ~0u;
    for (size_t i = 0; i < knob_count; i++)
        if (knob_table[i].class != KNOB_ONCE && word_is_nearer(name, knob_table[i].name, &best))
            found = &knob_table[i];
    return found;
}

/* ---- one value */

static void *field_of(struct config *c, const struct knob *k) { return (char *)c + k->offset; }
static const void *field_in(const struct config *c, const struct knob *k) {
    return (const char *)c + k->offset;
}

static int refuse(struct err *err, int code, const struct knob *k, const char *value,
                  const char *expected) {
    return err_set(err, code, "%s = %.60s%s: expected %s", k->name, value,
                   strlen(value) > 60 ? "..." : "", expected);
}

/* "a whole number from 1 to 4096" */
static void expected_range(const struct knob *k, char *out, size_t cap_bytes) {
    const char *what = k->type == KNOB_F64     ? "a number"
                       : k->type == KNOB_BYTES ? "bytes, as 1048576, 64M or 2G,"
                                               : "a whole number";
    if (k->max >= count_max)
        snprintf(out, cap_bytes, "%s of at least %g", what, k->min);
    else if (k->type == KNOB_F64)
        snprintf(out, cap_bytes, "%s from %g to %.7g", what, k->min, k->max);
    else
        snprintf(out, cap_bytes, "%s from %.0f to %.0f", what, k->min, k->max);
}

static int set_number(void *field, const struct knob *k, const char *value, struct err *err) {
    char expected[120];
    expected_range(k, expected, sizeof expected);
    uint64_t u = 0;
    double x = 0;
    int rc = k->type == KNOB_F64     ? parse_f64(value, &x)
             : k->type == KNOB_BYTES ? parse_bytes(value, &u)
                                     : parse_u64(value, &u);
    /* A sign is no syntax of a whole number, but what is meant is clear: out of range. */
    double negative;
    if (rc == -EINVAL && k->type != KNOB_F64 && value[0] == '-' && !parse_f64(value, &negative))
        rc = -ERANGE;
    if (rc)
        return refuse(err, -rc, k, value, expected);
    if (k->type != KNOB_F64)
        x = (double)u;
    if (x < k->min || x > k->max)
        return refuse(err, ERANGE, k, value, expected);
    if (k->type == KNOB_F64)
        memcpy(field, &x, sizeof x);
    else
        memcpy(field, &u, sizeof u);
    return 0;
}

static int set_bool(void *field, const struct knob *k, const char *value, struct err *err) {
    static const char *const yes[] = {"1", "yes", "true", "on"};
    static const char *const no[] = {"0", "no", "false", "off"};
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) {
        bool on = strcmp(value, yes[i]) == 0;
        if (on || strcmp(value, no[i]) == 0) {
            memcpy(field, &on, sizeof on);
            return 0;
        }
    }
    return refuse(err, EINVAL, k, value, "0 or 1");
}

/* True if value is one of "a|b|c". */
static bool is_choice(const char *choices, const char *value) {
    size_t n = strlen(value);
    for (const char *p = choices; n > 0; p++) {
        size_t len = strcspn(p, "|");
        if (len == n && memcmp(p, value, n) == 0)
            return true;
        p += len;
        if (!*p)
            return false;
    }
    return false;
}

static int set_text(char *field, const struct knob *k, const char *value, struct err *err) {
    if (k->type == KNOB_CHOICE && !is_choice(k->choices, value))
        return refuse(err, EINVAL, k, value, k->choices);
    size_t n = strlen(value);
    if (n == 0 || strpbrk(value, "\n\r"))
        return refuse(err, EINVAL, k, value, "one line of text");
    if (n >= k->size_bytes)
        return refuse(err, ERANGE, k, value, "a shorter text");
    memcpy(field, value, n + 1);
    return 0;
}

static int add_path(char *field, const struct knob *k, const char *value, struct err *err) {
    size_t have = strlen(field), n = strlen(value);
    if (n == 0 || strpbrk(value, "\n\r"))
        return refuse(err, EINVAL, k, value, "a path without line ends");
    if (have + (have > 0) + n >= k->size_bytes)
        return refuse(err, ERANGE, k, value,
                      "fewer or shorter paths: name their directory instead");
    if (have)
        field[have++] = '\n';
    memcpy(field + have, value, n + 1);
    return 0;
}

int config_set(struct config *c, const struct knob *k, const char *value, struct err *err) {
    void *field = field_of(c, k);
    switch (k->type) {
    case KNOB_U64:
    case KNOB_F64:
    case KNOB_BYTES:
        return set_number(field, k, value, err);
    case KNOB_BOOL:
        return set_bool(field, k, value, err);
    case KNOB_TEXT:
    case KNOB_CHOICE:
        return set_text(field, k, value, err);
    case KNOB_PATHS:
        return add_path(field, k, value, err);
    }
    return err_set(err, EINVAL, "%s: unknown type", k->name);
}

void config_clear_paths(struct config *c, const struct knob *k) {
    if (k->type == KNOB_PATHS)
        *(char *)field_of(c, k) = '\0';
}

/* The shortest decimal that reads back as x; whole numbers without an exponent. */
static void print_f64(double x, char out[32]) {
    if (x < count_max && x > -count_max && x == (double)(int64_t)x) {
        snprintf(out, 32, "%.0f", x);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(out, 32, "%.*g", digits, x);
        if (strtod(out, NULL) == x)
            return;
    }
}

int config_get(const struct config *c, const struct knob *k, char *out, size_t cap_bytes) {
    const void *field = field_in(c, k);
    char number[32];
    const char *text = number;
    uint64_t u;
    double x;
    switch (k->type) {
    case KNOB_U64:
    case KNOB_BYTES:
        memcpy(&u, field, sizeof u);
        snprintf(number, sizeof number, "%llu", (unsigned long long)u);
        break;
    case KNOB_F64:
        memcpy(&x, field, sizeof x);
        print_f64(x, number);
        break;
    case KNOB_BOOL:
        snprintf(number, sizeof number, "%d", *(const bool *)field);
        break;
    default:
        text = field;
    }
    size_t n = strlen(text);
    if (n >= cap_bytes)
        return -ERANGE;
    memcpy(out, text, n + 1);
    return 0;
}

bool config_equal(const struct config *a, const struct config *b, const struct knob *k) {
    const void *x = field_in(a, k), *y = field_in(b, k);
    if (k->type == KNOB_TEXT || k->type == KNOB_CHOICE || k->type == KNOB_PATHS)
        return strcmp(x, y) == 0;
    return memcmp(x, y, k->size_bytes) == 0;
}

void config_defaults(struct config *c) {
    memset(c, 0, sizeof *c);
    for (size_t i = 0; i < knob_count; i++)
        if (knob_table[i].type != KNOB_PATHS)
            config_set(c, &knob_table[i], knob_table[i].fallback, NULL);
}

/* ---- files */

static char *trim(char *s) {
    s += strspn(s, " \t\r");
    size_t n = strlen(s);
    while (n > 0 && strchr(" \t\r", s[n - 1]))
        n--;
    s[n] = '\0';
    return s;
}

int knob_unknown(const char *name, struct err *err) {
    const struct knob *near = knob_suggest(name);
    return err_set(err, EINVAL, "there is no knob '%.60s'%s%s%s", name,
                   near ? "; did you mean '" : "", near ? near->name : "", near ? "'?" : "");
}

/* One line, in place; seen[] says which lists of paths this file has begun. */
static int parse_line(struct config *c, char *line, bool *seen, bool *given, struct err *err) {
    line = trim(line);
    if (!*line || *line == '#')
        return 0;
    char *equals = strchr(line, '=');
    if (!equals)
        return err_set(err, EINVAL, "expected `knob = value`, found '%.60s'", line);
    *equals = '\0';
    const char *name = trim(line), *value = trim(equals + 1);
    const struct knob *k = knob_find(name);
    if (!k)
        return knob_unknown(name, err);
    if (k->class == KNOB_ONCE)
        return err_set(err, EINVAL, "%s is not saved: give --%s on the command line", name,
                       k->option);
    size_t i = (size_t)(k - knob_table);
    if (!seen[i])
        config_clear_paths(c, k);
    seen[i] = true;
    if (given)
        given[i] = true;
    return config_set(c, k, value, err);
}

int config_parse(struct config *c, const char *text, const char *origin, bool *given,
                 struct err *err) {
    bool seen[sizeof knob_table / sizeof knob_table[0]] = {false};
    char *line = malloc(KNOB_VALUE_BYTES);
    if (!line)
        return err_set(err, ENOMEM, "%s: no memory", origin);
    int rc = 0;
    unsigned long number = 0;
    for (const char *p = text; *p && !rc;) {
        size_t n = strcspn(p, "\n");
        number++;
        if (n >= KNOB_VALUE_BYTES) {
            rc = err_set(err, EINVAL, "the line is too long");
        } else {
            memcpy(line, p, n);
            line[n] = '\0';
            rc = parse_line(c, line, seen, given, err);
        }
        p += n + (p[n] == '\n');
    }
    free(line);
    if (rc)
        err_prefix(err, "%s:%lu", origin, number);
    return rc;
}

void config_print(const struct config *c, bool comments, struct enc *out) {
    char value[KNOB_VALUE_BYTES];
    for (size_t i = 0; i < knob_count; i++) {
        const struct knob *k = &knob_table[i];
        if (k->class == KNOB_ONCE || config_get(c, k, value, sizeof value))
            continue;
        if (comments)
            enc_printf(out, "%s# %s: %s\n", i ? "\n" : "", knob_class_names[k->class], k->help);
        for (const char *p = value; k->type == KNOB_PATHS && *p;) {
            size_t n = strcspn(p, "\n");
            enc_printf(out, "%s = %.*s\n", k->name, (int)n, p);
            p += n + (p[n] == '\n');
        }
        if (k->type != KNOB_PATHS)
            enc_printf(out, "%s = %s\n", k->name, value);
    }
}
