/* knobs.h - every setting of a run stands in one table: command line, config file, control/,
 * status/config,
 * --help and the tests of the man pages all derive from it. */
#ifndef GFS_BASE_KNOBS_H
#define GFS_BASE_KNOBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

enum knob_type { KNOB_U64, KNOB_F64, KNOB_BYTES, KNOB_BOOL, KNOB_TEXT, KNOB_CHOICE, KNOB_PATHS };

/* When a knob may change: never after the first start, at each start, while running, or it is never
 * saved. */
enum knob_class { KNOB_FIXED, KNOB_RESUME, KNOB_LIVE, KNOB_ONCE };

enum { KNOB_TEXT_BYTES = 1024, KNOB_PATHS_BYTES = 16384, KNOB_MAX_RANKS = 4096 };

/* The values, one field a knob. Plain data: copied by assignment. */
struct config {
    /* fixed */
    char model[KNOB_TEXT_BYTES];
    uint64_t seed;
    uint64_t global_batch;   /* sequences a step, over all ranks */
    uint64_t seq_len;        /* tokens a sequence; 0: the model's context */
    uint64_t schedule_steps; /* 0: the first --steps */
    uint64_t warmup_steps;
    double beta1, beta2, eps;
    /* resume */
    char data[KNOB_PATHS_BYTES];    /* paths separated by newlines */
    uint64_t ranks;                 /* 0: config_ranks */
    uint64_t threads;               /* a rank; 0: cores / ranks */
    uint64_t micro_batch;           /* sequences a rank computes at once; 0: chosen */
    char wrap[64];                  /* none | block | size:MIN_PARAMS */
    char comm[16];                  /* auto | self | node | mpi | nccl */
    double comm_timeout;            /* seconds */
    char device[16];                /* auto | cpu | cuda */
    char dtype[8], reduce_dtype[8]; /* f32 | bf16 */
    char tensor_cores[8];           /* auto | on | off */
    char offload[KNOB_TEXT_BYTES];  /* none | optimizer=host | optimizer=file:DIR */
    uint64_t steps;                 /* the target */
    bool allow_other;
    bool direct_io;
    /* live */
    double lr, min_lr_fraction, clip, weight_decay;
    uint64_t snapshot_every; /* seconds, 0: never */
    uint64_t keep;           /* automatic snapshots kept; 0: all */
    double read_timeout;     /* seconds */
    uint64_t snapshot_grads;
    uint64_t take_memory; /* bytes; 0: max(RAM/4, twice the parameters) */
    uint64_t max_pins;
    uint64_t log_every; /* steps between log lines where no terminal is */
    /* once */
    bool paused, stay, mount, fresh; /* --paused, --stay, mount = not --no-mount, --new */
};

struct knob {
    const char *name;   /* as in config files, --set, control/ and status/config */
    const char *option; /* long option without dashes, or NULL: reached by --set only */
    enum knob_type type;
    enum knob_class class;
    size_t offset, size_bytes; /* the field of struct config */
    const char *fallback;      /* default, as text */
    double min, max;           /* numbers only */
    const char *choices;       /* "a|b|c" for KNOB_CHOICE */
    const char *metavar;       /* "N", "PATH" for --help */
    const char *help;          /* one sentence with units */
};

extern const struct knob knob_table[];
extern const size_t knob_count;
extern const char *const knob_class_names[]; /* by enum knob_class */

const struct knob *knob_find(const char *name);
const struct knob *knob_find_option(const char *option);
/* The knob whose name is nearest to a misspelt one, or NULL. */
const struct knob *knob_suggest(const char *name);
/* -EINVAL and "there is no knob 'NAME'; did you mean ...?". */
int knob_unknown(const char *name, struct err *err);
/* True if candidate is nearer to a misspelt word than *best (start with ~0u), which is then
 * lowered. Words that have too little in common are never near. */
bool word_is_nearer(const char *word, const char *candidate, unsigned *best);

void config_defaults(struct config *c);
/* Parses and stores one value; a path is added to those that are there. -EINVAL syntax, -ERANGE
 * value; text says knob, value, what was expected. */
int config_set(struct config *c, const struct knob *k, const char *value, struct err *err);
void config_clear_paths(struct config *c, const struct knob *k); /* nothing for other types */
/* The value as text, no newline (KNOB_PATHS: separated by ':' is NOT used; one line each, so
 * config files repeat the line `data = PATH`). */
int config_get(const struct config *c, const struct knob *k, char *out, size_t cap_bytes);
bool config_equal(const struct config *a, const struct config *b, const struct knob *k);

/* What one value alone does not show, and the syntax of offload. -EINVAL: what was expected. */
int config_check(const struct config *c, struct err *err);
/* The number of ranks: as set, else one for each GPU of this host, where they are used, else 2; a
 * build without MPI can start one only. */
uint64_t config_ranks(const struct config *c, uint32_t gpu_count);
/* DIR of offload = optimizer=file:DIR, or NULL. */
const char *config_offload_dir(const char *offload);

/* `knob = value` lines, # comments; unknown knobs are refused with a suggestion. `origin` names the
 * file in errors, with the line number. `given` (knob_count bools, may be NULL) marks what was set.
 */
int config_parse(struct config *c, const char *text, const char *origin, bool *given,
                 struct err *err);
/* Writes all knobs but KNOB_ONCE, in the same format, a comment with class and help before each if
 * `comments`. */
void config_print(const struct config *c, bool comments, struct enc *out);

#endif
