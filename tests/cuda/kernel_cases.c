/* kernel_cases.c - the frame of the kernel cases: tensors on two devices, the memory around them,
 * and what is compared after a run. */
#include "tests/cuda/kernel_cases.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    GUARD_BYTES = 256,
    STAGING_BYTES = 4 << 20,
    TENSORS_MAX = 16,
    BLOCKS_MAX = TENSORS_MAX + 4, /* and scratch */
    OUT_OF_MEMORY = 99,
    UNWRITTEN = 0xff /* a NaN in every float format */
};

enum side_index { REFERENCE, TESTED, SIDES };
enum role { ROLE_IN, ROLE_INOUT, ROLE_OUT };
enum stored { STORED_F32, STORED_BF16, STORED_I32, STORED_F64 };

/* An allocation on a side: `before` bytes of guard, the body, and guard up to its end. */
struct block {
    void *base;
    size_t bytes, before, body_bytes;
    enum dev_memory kind;
    const char *what;
};

struct kc_memory {
    enum side_index index;
    struct dev_event *event;
    unsigned char *staging; /* STAGING_BYTES, pinned */
    struct block blocks[BLOCKS_MAX];
    size_t block_count;
};

struct kc_tensor {
    const char *name;
    enum kc_type type;
    enum role role;
    size_t elems;
    double limit;         /* below 0: that of the case */
    float *values;        /* floats: initial */
    int32_t *indices;     /* i32 */
    unsigned char *image; /* what was uploaded last, or came back: the whole block */
    double *want;         /* outputs: of the reference */
    unsigned char *first; /* outputs: the body after the first run of the device under test */
    size_t block[SIDES];
};

struct kc {
    struct kc_frame *frame;
    const char *name;
    char shape[160];
    struct kc_types types;
    size_t shift_elems;
    struct kc_tensor tensors[TENSORS_MAX];
    size_t tensor_count;
    uint64_t random;
    struct kernel_report report;
    char what[256];
};

struct kc_frame {
    const struct kernel_cases *cases;
    struct kc_side sides[SIDES];
    struct kc_memory memory[SIDES];
    bool bf16;
    struct kc current;
    size_t run_count, failed_count;
};

const struct kc_types kc_types[3] = {
    {DTYPE_F32, DTYPE_F32}, {DTYPE_BF16, DTYPE_BF16}, {DTYPE_BF16, DTYPE_F32}};

static void *host_memory(size_t bytes) {
    void *p = malloc(bytes + 1);
    if (p == NULL) {
        fprintf(stderr, "kernel_cases: no memory for %zu bytes\n", bytes);
        exit(OUT_OF_MEMORY);
    }
    return p;
}

/* The first thing that is wrong is what is reported. */
static void wrong(struct kc *k, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void wrong(struct kc *k, const char *fmt, ...) {
    if (k->what[0] != '\0')
        return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(k->what, sizeof k->what, fmt, args);
    va_end(args);
}

static void wrong_call(struct kc *k, struct kc_side *s, const char *call, int rc) {
    char why[160] = "";
    s->ops->why(s->dev, why, sizeof why);
    wrong(k, "%s of %s failed: %d (%s)", call, s->ops->name, rc, why);
}

/* ---- tensors ---- */

static enum stored stored_of(const struct kc_side *s, enum kc_type type) {
    enum dtype t = s->t;
    switch (type) {
    case KC_I32:
        return STORED_I32;
    case KC_F64_HOST:
        return STORED_F64;
    case KC_F32:
        return STORED_F32;
    case KC_BF16:
        return s->memory->index == REFERENCE ? STORED_F32 : STORED_BF16;
    case KC_G:
        t = s->g;
        break;
    case KC_T:
        break;
    }
    return t == DTYPE_BF16 ? STORED_BF16 : STORED_F32;
}

static size_t stored_bytes(enum stored st) {
    static const size_t bytes[] = {4, 2, 4, 8};
    return bytes[st];
}

static double stored_value(const unsigned char *body, enum stored st, size_t i) {
    float f;
    uint16_t h;
    double d;
    switch (st) {
    case STORED_BF16:
        memcpy(&h, body + i * sizeof h, sizeof h);
        return bf16_to_f32(h);
    case STORED_F64:
        memcpy(&d, body + i * sizeof d, sizeof d);
        return d;
    case STORED_F32:
    case STORED_I32:
        break;
    }
    memcpy(&f, body + i * sizeof f, sizeof f);
    return f;
}

/* splitmix64 (Steele, Lea and Flood, 2014) */
static uint64_t random_next(struct kc *k) {
    uint64_t z = k->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static struct kc_tensor *tensor_add(struct kc *k, const char *name, enum role role,
                                    enum kc_type type, size_t elems) {
    if (k->tensor_count == TENSORS_MAX) {
        fprintf(stderr, "kernel_cases: %s has more than %d tensors\n", k->name, TENSORS_MAX);
        exit(OUT_OF_MEMORY);
    }
    struct kc_tensor *x = &k->tensors[k->tensor_count++];
    *x = (struct kc_tensor){.name = name, .type = type, .role = role, .elems = elems, .limit = -1};
    return x;
}

static struct kc_tensor *tensor_random(struct kc *k, const char *name, enum role role,
                                       enum kc_type type, size_t elems, float scale) {
    struct kc_tensor *x = tensor_add(k, name, role, type, elems);
    x->values = host_memory(elems * sizeof(float));
    for (size_t i = 0; i < elems; i++)
        x->values[i] = scale * ((float)(random_next(k) >> 40) / 8388608.0f - 1.0f);
    return x;
}

struct kc_tensor *kc_in(struct kc *k, const char *name, enum kc_type type, size_t elems,
                        float scale) {
    return tensor_random(k, name, ROLE_IN, type, elems, scale);
}

struct kc_tensor *kc_inout(struct kc *k, const char *name, enum kc_type type, size_t elems,
                           float scale) {
    return tensor_random(k, name, ROLE_INOUT, type, elems, scale);
}

struct kc_tensor *kc_out(struct kc *k, const char *name, enum kc_type type, size_t elems) {
    return tensor_add(k, name, ROLE_OUT, type, elems);
}

struct kc_tensor *kc_indices(struct kc *k, const char *name, size_t elems, int32_t bound) {
    struct kc_tensor *x = tensor_add(k, name, ROLE_IN, KC_I32, elems);
    x->indices = host_memory(elems * sizeof(int32_t));
    for (size_t i = 0; i < elems; i++)
        x->indices[i] = (int32_t)(random_next(k) % (uint64_t)bound);
    return x;
}

float *kc_values(struct kc_tensor *x) { return x->values; }
int32_t *kc_index_values(struct kc_tensor *x) { return x->indices; }
void kc_limit(struct kc_tensor *x, double limit) { x->limit = limit; }
void kc_shift(struct kc *k, size_t elems) { k->shift_elems = elems; }

/* ---- memory of a side ---- */

static int synchronize(struct kc_side *s) {
    int rc = s->ops->event_record(s->dev, s->stream, s->memory->event);
    return rc != 0 ? rc : s->ops->event_synchronize(s->dev, s->memory->event);
}

/* The whole block from or to host memory. */
static int block_move(struct kc_side *s, const struct block *b, unsigned char *image, bool up) {
    if (b->kind == DEV_MEM_HOST) { /* the host's own */
        memcpy(up ? b->base : image, up ? image : b->base, b->bytes);
        return 0;
    }
    for (size_t at = 0; at < b->bytes; at += STAGING_BYTES) {
        size_t bytes = b->bytes - at < STAGING_BYTES ? b->bytes - at : STAGING_BYTES;
        unsigned char *there = (unsigned char *)b->base + at, *staging = s->memory->staging;
        if (up)
            memcpy(staging, image + at, bytes);
        int rc = up ? s->ops->copy(s->dev, s->stream, there, staging, bytes)
                    : s->ops->copy(s->dev, s->stream, staging, there, bytes);
        if (rc == 0)
            rc = synchronize(s);
        if (rc != 0)
            return rc;
        if (!up)
            memcpy(image + at, staging, bytes);
    }
    return 0;
}

static int block_add(struct kc_side *s, const char *what, enum dev_memory kind, size_t before,
                     size_t body_bytes, size_t after, struct block **out) {
    struct kc_memory *m = s->memory;
    if (m->block_count == BLOCKS_MAX)
        return -ENOMEM;
    struct block *b = &m->blocks[m->block_count];
    *b = (struct block){
        .bytes = before + body_bytes + after,
        .before = before,
        .body_bytes = body_bytes,
        .kind = kind,
        .what = what,
    };
    int rc = s->ops->alloc(s->dev, kind, b->bytes, what, &b->base);
    if (rc != 0)
        return rc;
    m->block_count++;
    *out = b;
    return 0;
}

static void blocks_free(struct kc_side *s) {
    struct kc_memory *m = s->memory;
    while (m->block_count > 0) {
        struct block *b = &m->blocks[--m->block_count];
        s->ops->free(s->dev, b->kind, b->base, b->bytes);
    }
}

void *kc_at(const struct kc_side *s, const struct kc_tensor *x) {
    const struct block *b = &s->memory->blocks[x->block[s->memory->index]];
    return (unsigned char *)b->base + b->before;
}

/* Scratch may be larger than the host's memory, so there is no image of it. */
static int block_blank(struct kc_side *s, const struct block *b) {
    memset(s->memory->staging, UNWRITTEN, STAGING_BYTES);
    int rc = 0;
    for (size_t at = 0; at < b->bytes && rc == 0; at += STAGING_BYTES) {
        size_t bytes = b->bytes - at < STAGING_BYTES ? b->bytes - at : STAGING_BYTES;
        rc = s->ops->copy(s->dev, s->stream, (unsigned char *)b->base + at, s->memory->staging,
                          bytes);
    }
    return rc == 0 ? synchronize(s) : rc;
}

void *kc_scratch(struct kc_side *s, size_t bytes) {
    struct block *b;
    if (block_add(s, "scratch", DEV_MEM_DEVICE, GUARD_BYTES, bytes, GUARD_BYTES, &b) != 0)
        return NULL;
    return block_blank(s, b) == 0 ? (unsigned char *)b->base + b->before : NULL;
}

/* ---- one run on one side ---- */

static void image_fill(const struct kc_side *s, struct kc_tensor *x, const struct block *b) {
    enum stored st = stored_of(s, x->type);
    unsigned char *body = x->image + b->before;
    memset(x->image, UNWRITTEN, b->bytes);
    for (size_t i = 0; i < x->elems && x->role != ROLE_OUT; i++) {
        uint16_t h;
        if (st == STORED_I32) {
            memcpy(body + i * 4, &x->indices[i], 4);
        } else if (st == STORED_BF16) {
            h = bf16_from_f32(x->values[i]);
            memcpy(body + i * 2, &h, 2);
        } else {
            memcpy(body + i * 4, &x->values[i], 4);
        }
    }
}

/* exact: no guards, the tensor ends where its allocation ends. */
static int tensor_upload(struct kc *k, struct kc_side *s, struct kc_tensor *x, bool exact) {
    size_t elem = stored_bytes(stored_of(s, x->type));
    size_t shift = x->type == KC_I32 || x->type == KC_F64_HOST ? 0 : k->shift_elems * elem;
    bool guarded = !exact || x->elems == 0;
    struct block *b;
    int rc = block_add(s, x->name, x->type == KC_F64_HOST ? DEV_MEM_HOST : DEV_MEM_DEVICE,
                       shift + (guarded ? GUARD_BYTES : 0), x->elems * elem,
                       guarded ? GUARD_BYTES : 0, &b);
    if (rc != 0)
        return rc;
    x->block[s->memory->index] = s->memory->block_count - 1;
    free(x->image);
    x->image = host_memory(b->bytes);
    image_fill(s, x, b);
    return block_move(s, b, x->image, true);
}

static bool all_unwritten(const unsigned char *p, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (p[i] != UNWRITTEN)
            return false;
    return true;
}

static void guard_check(struct kc *k, const struct block *b, const char *where,
                        const unsigned char *guard, size_t bytes) {
    if (!all_unwritten(guard, bytes))
        wrong(k, "memory %s %s was written", where, b->what);
}

static int tensor_download(struct kc *k, struct kc_side *s, struct kc_tensor *x) {
    const struct block *b = &s->memory->blocks[x->block[s->memory->index]];
    unsigned char *before = NULL;
    if (x->role == ROLE_IN) {
        before = host_memory(b->bytes);
        memcpy(before, x->image, b->bytes);
    }
    int rc = block_move(s, b, x->image, false);
    if (rc == 0) {
        size_t end = b->before + b->body_bytes;
        guard_check(k, b, "before", x->image, b->before);
        guard_check(k, b, "behind", x->image + end, b->bytes - end);
        if (before != NULL && memcmp(before + b->before, x->image + b->before, b->body_bytes) != 0)
            wrong(k, "input %s was written", x->name);
    }
    free(before);
    return rc;
}

static int scratch_check(struct kc *k, struct kc_side *s) {
    struct kc_memory *m = s->memory;
    for (size_t i = k->tensor_count; i < m->block_count; i++) {
        const struct block *b = &m->blocks[i];
        size_t end = b->before + b->body_bytes, after = b->bytes - end;
        int rc = s->ops->copy(s->dev, s->stream, m->staging, b->base, b->before);
        if (rc == 0)
            rc = s->ops->copy(s->dev, s->stream, m->staging + b->before,
                              (unsigned char *)b->base + end, after);
        if (rc == 0)
            rc = synchronize(s);
        if (rc != 0)
            return rc;
        guard_check(k, b, "before", m->staging, b->before);
        guard_check(k, b, "behind", m->staging + b->before, after);
    }
    return 0;
}

/* Afterwards the images of all tensors are what this side has left. */
static bool side_run(struct kc *k, struct kc_side *s, kc_run_fn *run, const void *arg, bool exact) {
    const char *call = "upload";
    int rc = 0;
    for (size_t i = 0; i < k->tensor_count && rc == 0; i++)
        rc = tensor_upload(k, s, &k->tensors[i], exact);
    if (rc == 0) {
        call = "operation";
        rc = run(s, arg);
    }
    if (rc == 0) {
        call = "synchronize";
        rc = synchronize(s);
    }
    if (rc == 0)
        call = "download";
    for (size_t i = 0; i < k->tensor_count && rc == 0; i++)
        rc = tensor_download(k, s, &k->tensors[i]);
    if (rc == 0)
        rc = scratch_check(k, s);
    if (rc != 0)
        wrong_call(k, s, call, rc);
    blocks_free(s);
    return rc == 0;
}

/* Where the body of the last image begins. */
static unsigned char *body_of(const struct kc_side *s, const struct kc_tensor *x) {
    return x->image + s->memory->blocks[x->block[s->memory->index]].before;
}

/* ---- comparison ---- */

static double input_scale(const struct kc *k) {
    double most = 0;
    for (size_t i = 0; i < k->tensor_count; i++)
        for (size_t j = 0; k->tensors[i].values != NULL && j < k->tensors[i].elems; j++) {
            double v = fabs((double)k->tensors[i].values[j]);
            most = isfinite(v) && v > most ? v : most;
        }
    return most;
}

struct sums {
    double difference, want; /* squares */
    size_t count;
};

/* What is not finite must be the same; the rest goes into the norms. */
static bool sums_of(struct sums *out, const double *want, const unsigned char *body, enum stored st,
                    size_t elems, size_t *bad) {
    *out = (struct sums){0};
    for (size_t i = 0; i < elems; i++) {
        double a = stored_value(body, st, i), b = want[i];
        if (isnan(b) ? isnan(a) : isinf(b) && a == b)
            continue;
        *bad = i;
        if (!isfinite(a) || !isfinite(b))
            return false;
        out->difference += (a - b) * (a - b);
        out->want += b * b;
        out->count++;
    }
    return true;
}

/* limit 0: what is wanted is what the dtype makes of it, a NaN where that is one. */
static void want_round(struct kc_tensor *x, enum stored st) {
    for (size_t i = 0; i < x->elems && st == STORED_BF16; i++)
        x->want[i] = bf16_to_f32(bf16_from_f32((float)x->want[i]));
}

static void wrong_element(struct kc *k, const struct kc_tensor *x, const unsigned char *body,
                          enum stored st, size_t i) {
    wrong(k, "%s[%zu of %zu] is %.9g, of the reference %.9g", x->name, i, x->elems,
          stored_value(body, st, i), x->want[i]);
}

/* An element may be off by more than the norm allows on average, but not by much more. */
enum { ELEMENT_SLACK = 8 };

static void elements_check(struct kc *k, const struct kc_tensor *x, const unsigned char *body,
                           enum stored st, double limit, double rms, double least) {
    for (size_t i = 0; i < x->elems; i++) {
        double a = stored_value(body, st, i), b = x->want[i];
        double most = ELEMENT_SLACK * (limit * (fabs(b) + rms) + least);
        if (!isfinite(b) || fabs(a - b) <= most)
            continue;
        wrong_element(k, x, body, st, i);
        return;
    }
}

static void tensor_compare(struct kc *k, struct kc_tensor *x, double scale) {
    const struct kc_side *s = &k->frame->sides[TESTED];
    enum stored st = stored_of(s, x->type);
    const unsigned char *body = body_of(s, x);
    double limit = x->limit >= 0 ? x->limit : k->types.t == DTYPE_BF16 ? 2e-2 : 1e-5;
    struct sums sums;
    size_t bad = 0;
    if (limit == 0)
        want_round(x, st);
    if (!sums_of(&sums, x->want, body, st, x->elems, &bad)) {
        wrong_element(k, x, body, st, bad);
        return;
    }
    double least = limit > 0 ? 1e-7 * scale : 0, root = sqrt((double)sums.count);
    double norm = sqrt(sums.want), difference = sqrt(sums.difference);
    double error = norm > 0 ? difference / norm : difference;
    struct kernel_report *r = &k->report;
    elements_check(k, x, body, st, limit, root > 0 ? norm / root : 0, least);
    /* NaN must not pass: the comparison is of what is good */
    if (!(difference <= limit * norm + least * root))
        wrong(k, "%s: norm(a - b) = %.3g norm(b)", x->name, error);
    if (r->worst[0] == '\0' || error * r->limit >= r->error * limit) {
        r->worst = x->name;
        r->error = error;
        r->limit = limit;
    }
}

/* ---- a case ---- */

static uint64_t hash_of(const char *text) {
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (; *text != '\0'; text++)
        h = (h ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return h;
}

bool kc_large(const struct kc_frame *f) { return f->cases->large; }

struct kc *kc_begin(struct kc_frame *f, const char *name, struct kc_types types, const char *shape,
                    ...) {
    if (strncmp(name, f->cases->only, strlen(f->cases->only)) != 0)
        return NULL;
    if (types.t == DTYPE_BF16 && !f->bf16)
        return NULL;
    struct kc *k = &f->current;
    *k = (struct kc){.frame = f, .name = name, .types = types, .random = hash_of(name)};
    k->report = (struct kernel_report){.name = name, .worst = "", .what = "", .shape = k->shape};
    int n =
        snprintf(k->shape, sizeof k->shape, "%s%s%s, ", dtype_name(types.t),
                 types.g != types.t ? " g " : "", types.g != types.t ? dtype_name(types.g) : "");
    va_list args;
    va_start(args, shape);
    vsnprintf(k->shape + n, sizeof k->shape - (size_t)n, shape, args);
    va_end(args);
    k->random ^= hash_of(k->shape + n);
    f->sides[TESTED].t = types.t;
    f->sides[TESTED].g = types.g;
    return k;
}

static void case_free(struct kc *k) {
    for (size_t i = 0; i < k->tensor_count; i++) {
        struct kc_tensor *x = &k->tensors[i];
        free(x->values);
        free(x->indices);
        free(x->image);
        free(x->want);
        free(x->first);
    }
    k->tensor_count = 0;
}

/* Floats are rounded to what the device under test stores, for both. */
static void values_round(struct kc *k) {
    for (size_t i = 0; i < k->tensor_count; i++) {
        struct kc_tensor *x = &k->tensors[i];
        if (x->values == NULL || stored_of(&k->frame->sides[TESTED], x->type) != STORED_BF16)
            continue;
        for (size_t j = 0; j < x->elems; j++)
            x->values[j] = bf16_to_f32(bf16_from_f32(x->values[j]));
    }
}

void kc_prepare(struct kc *k, kc_run_fn *run, const void *arg) {
    struct kc_side *s = &k->frame->sides[REFERENCE];
    values_round(k);
    if (!side_run(k, s, run, arg, false))
        return;
    for (size_t i = 0; i < k->tensor_count; i++) {
        struct kc_tensor *x = &k->tensors[i];
        if (x->role == ROLE_IN)
            continue;
        if (x->values == NULL)
            x->values = host_memory(x->elems * sizeof(float));
        for (size_t j = 0; j < x->elems; j++)
            x->values[j] = (float)stored_value(body_of(s, x), stored_of(s, x->type), j);
        x->role = ROLE_IN;
    }
}

static bool reference_run(struct kc *k, kc_run_fn *run, const void *arg) {
    struct kc_side *s = &k->frame->sides[REFERENCE];
    if (!side_run(k, s, run, arg, false))
        return false;
    for (size_t i = 0; i < k->tensor_count; i++) {
        struct kc_tensor *x = &k->tensors[i];
        if (x->role == ROLE_IN)
            continue;
        x->want = host_memory(x->elems * sizeof(double));
        for (size_t j = 0; j < x->elems; j++)
            x->want[j] = stored_value(body_of(s, x), stored_of(s, x->type), j);
    }
    return true;
}

static bool tested_run(struct kc *k, kc_run_fn *run, const void *arg) {
    struct kc_side *s = &k->frame->sides[TESTED];
    if (!side_run(k, s, run, arg, false))
        return false;
    double scale = input_scale(k);
    for (size_t i = 0; i < k->tensor_count; i++) {
        struct kc_tensor *x = &k->tensors[i];
        if (x->role == ROLE_IN)
            continue;
        tensor_compare(k, x, scale);
        size_t bytes = x->elems * stored_bytes(stored_of(s, x->type));
        x->first = host_memory(bytes);
        memcpy(x->first, body_of(s, x), bytes);
    }
    return true;
}

static void second_run(struct kc *k, kc_run_fn *run, const void *arg) {
    struct kc_side *s = &k->frame->sides[TESTED];
    if (!side_run(k, s, run, arg, true))
        return;
    for (size_t i = 0; i < k->tensor_count; i++) {
        struct kc_tensor *x = &k->tensors[i];
        size_t elem = stored_bytes(stored_of(s, x->type));
        for (size_t j = 0; x->first != NULL && j < x->elems; j++)
            if (memcmp(x->first + j * elem, body_of(s, x) + j * elem, elem) != 0) {
                wrong(k, "a second run has other bits in %s[%zu of %zu]", x->name, j, x->elems);
                break;
            }
    }
}

static void case_report(struct kc *k) {
    struct kc_frame *f = k->frame;
    k->report.ok = k->what[0] == '\0';
    k->report.what = k->what;
    f->run_count += k->report.skipped == NULL ? 1 : 0;
    f->failed_count += k->report.ok ? 0 : 1;
    f->cases->report(f->cases->arg, &k->report);
    case_free(k);
}

void kc_check(struct kc *k, kc_run_fn *run, const void *arg) {
    values_round(k);
    if (k->what[0] == '\0' && reference_run(k, run, arg) && tested_run(k, run, arg) &&
        k->what[0] == '\0') /* what was wrong between guards could end the program without */
        second_run(k, run, arg);
    case_report(k);
}

bool kc_skip_without(struct kc *k, uint64_t bytes) {
    struct kc_side *s = &k->frame->sides[TESTED];
    struct device_properties p = {.memory_free_bytes = 0};
    char why[96];
    if (s->ops->properties(s->dev, &p) != 0 || p.memory_free_bytes == 0 ||
        p.memory_free_bytes >= bytes + (UINT64_C(1) << 30))
        return false;
    snprintf(why, sizeof why, "%.1f GB of memory free, %.1f needed",
             (double)p.memory_free_bytes / 1e9, (double)bytes / 1e9 + 1);
    k->report.skipped = why;
    case_report(k);
    return true;
}

/* ---- both devices ---- */

static int side_open(struct kc_frame *f, enum side_index i, const struct device_ops *ops,
                     struct device *dev) {
    struct kc_side *s = &f->sides[i];
    struct kc_memory *m = &f->memory[i];
    void *staging;
    *s = (struct kc_side){.ops = ops, .dev = dev, .reference = i == REFERENCE, .memory = m};
    *m = (struct kc_memory){.index = i};
    int rc = ops->stream_open(dev, DEV_STREAM_COMPUTE, &s->stream);
    if (rc != 0)
        return rc;
    rc = ops->event_open(dev, "kernel case", &m->event);
    if (rc != 0)
        goto no_event;
    rc = ops->alloc(dev, DEV_MEM_HOST, STAGING_BYTES, "staging of kernel cases", &staging);
    if (rc != 0)
        goto no_staging;
    m->staging = staging;
    return 0;
no_staging:
    ops->event_close(dev, m->event);
no_event:
    ops->stream_close(dev, s->stream);
    return rc;
}

static void side_close(struct kc_frame *f, enum side_index i) {
    struct kc_side *s = &f->sides[i];
    s->ops->free(s->dev, DEV_MEM_HOST, f->memory[i].staging, STAGING_BYTES);
    s->ops->event_close(s->dev, f->memory[i].event);
    s->ops->stream_close(s->dev, s->stream);
}

int kernel_cases_run(const struct kernel_cases *k, size_t *run_count, size_t *failed_count) {
    struct kc_frame *f = host_memory(sizeof(*f));
    struct err err = {0};
    memset(f, 0, sizeof(*f));
    f->cases = k;
    f->bf16 = k->ops->supports(k->device, DTYPE_BF16, &err) == 0;
    int rc = side_open(f, REFERENCE, k->reference_ops, k->reference);
    if (rc != 0)
        goto no_reference;
    rc = side_open(f, TESTED, k->ops, k->device);
    if (rc != 0)
        goto no_tested;
    kc_basic_cases(f);
    kc_attention_cases(f);
    kc_softmax_xent_cases(f);
    if (k->large)
        kc_wide_cases(f);
    *run_count = f->run_count;
    *failed_count = f->failed_count;
    side_close(f, TESTED);
no_tested:
    side_close(f, REFERENCE);
no_reference:
    free(f);
    return rc;
}
