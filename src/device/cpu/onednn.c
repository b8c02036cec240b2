/* onednn.c - bf16 products by oneDNN, which makes a "primitive" (code, for this processor) for each
 * shape.
 *
 * c is cut into tiles whose sizes follow from its own alone; each is a product for one thread,
 * which takes the next when it is done. So the number of threads changes no bit, and oneDNN starts
 * no threads of its own. */
#include "config.h"

#include "device/cpu/onednn.h"

#include <errno.h>

#ifndef HAVE_ONEDNN

bool onednn_there(void) { return false; }

int onednn_open(uint32_t threads, struct onednn **out) {
    (void)threads, (void)out;
    return -ENOTSUP;
}

void onednn_close(struct onednn *o) { (void)o; }

int onednn_multiply(struct onednn *o, struct team *team, const struct onednn_shape *s,
                    const void *a, const void *b, void *c, const char **what) {
    (void)o, (void)team, (void)s, (void)a, (void)b, (void)c;
    *what = "built without oneDNN";
    return -ENOTSUP;
}

#else

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/segment.h"
#include "device/cpu/onednn_api.h"

enum {
    TILE_ROWS = 256,
    TILE_COLUMNS = 512,
    TILE_UNIT = 64,
    SHAPES_MAX = 256, /* of tiles; when there are more all are made anew */
    SMALL = 1 << 22   /* multiplications that are not worth waking the threads for */
};

struct thread {
    dnnl_stream_t stream;
    void *scratch;
    size_t scratch_bytes;
};

/* The memory objects say where, and are set for each tile. */
struct operands {
    dnnl_memory_t a, b, c, scratch;
};

struct primitive {
    struct onednn_shape shape; /* of a tile */
    dnnl_primitive_t code;
    size_t scratch_bytes;
    struct operands *of_thread; /* (threads) */
};

struct onednn {
    dnnl_engine_t engine;
    uint32_t threads;
    struct thread *thread; /* (threads) */
    size_t count;
    struct primitive primitives[SHAPES_MAX];
};

bool onednn_there(void) { return true; }

static void primitive_close(struct onednn *o, struct primitive *p) {
    for (uint32_t i = 0; p->of_thread != NULL && i < o->threads; i++) {
        dnnl_memory_t all[] = {p->of_thread[i].a, p->of_thread[i].b, p->of_thread[i].c,
                               p->of_thread[i].scratch};
        for (size_t j = 0; j < sizeof(all) / sizeof(all[0]); j++)
            if (all[j] != NULL)
                dnnl_memory_destroy(all[j]);
    }
    free(p->of_thread);
    if (p->code != NULL)
        dnnl_primitive_destroy(p->code);
    *p = (struct primitive){0};
}

static void primitives_close(struct onednn *o) {
    for (size_t i = 0; i < o->count; i++)
        primitive_close(o, &o->primitives[i]);
    o->count = 0;
}

void onednn_close(struct onednn *o) {
    if (o == NULL)
        return;
    primitives_close(o);
    for (uint32_t i = 0; o->thread != NULL && i < o->threads; i++) {
        if (o->thread[i].stream != NULL)
            dnnl_stream_destroy(o->thread[i].stream);
        if (o->thread[i].scratch != NULL)
            segment_private_free(o->thread[i].scratch, o->thread[i].scratch_bytes);
    }
    free(o->thread);
    if (o->engine != NULL)
        dnnl_engine_destroy(o->engine);
    free(o);
}

int onednn_open(uint32_t threads, struct onednn **out) {
    struct onednn *o = calloc(1, sizeof(*o));
    if (o == NULL)
        return -ENOMEM;
    o->threads = threads;
    o->thread = calloc(threads, sizeof(*o->thread));
    bool made = o->thread != NULL && dnnl_engine_create(&o->engine, dnnl_cpu, 0) == dnnl_success;
    for (uint32_t i = 0; made && i < threads; i++)
        made = dnnl_stream_create(&o->thread[i].stream, o->engine, dnnl_stream_default_flags) ==
               dnnl_success;
    if (!made) {
        onednn_close(o);
        return -ENOMEM;
    }
    *out = o;
    return 0;
}

static bool same_shape(const struct onednn_shape *a, const struct onednn_shape *b) {
    return a->m == b->m && a->n == b->n && a->k == b->k && a->lda == b->lda && a->ldb == b->ldb &&
           a->ldc == b->ldc && a->alpha == b->alpha && a->beta == b->beta &&
           a->c_dtype == b->c_dtype && a->trans_a == b->trans_a && a->trans_b == b->trans_b;
}

static const struct primitive *primitive_find(const struct onednn *o,
                                              const struct onednn_shape *s) {
    for (size_t i = 0; i < o->count; i++)
        if (same_shape(&o->primitives[i].shape, s))
            return &o->primitives[i];
    return NULL;
}

static bool operands_make(struct onednn *o, const struct onednn_shape *s, size_t scratch_bytes,
                          struct operands *p) {
    return onednn_memory(o->engine, s->m, s->k, s->lda, s->trans_a, DTYPE_BF16, &p->a) &&
           onednn_memory(o->engine, s->k, s->n, s->ldb, s->trans_b, DTYPE_BF16, &p->b) &&
           onednn_memory(o->engine, s->m, s->n, s->ldc, false, s->c_dtype, &p->c) &&
           onednn_memory_bytes(o->engine, scratch_bytes, &p->scratch);
}

/* Every thread has as much scratch as the primitive that wants most. */
static int scratch_grow(struct onednn *o, size_t bytes) {
    for (uint32_t i = 0; i < o->threads; i++) {
        struct thread *t = &o->thread[i];
        if (t->scratch_bytes >= bytes)
            continue;
        void *more = segment_private_alloc(bytes);
        if (more == NULL)
            return -ENOMEM;
        if (t->scratch != NULL)
            segment_private_free(t->scratch, t->scratch_bytes);
        t->scratch = more;
        t->scratch_bytes = bytes;
    }
    return 0;
}

static int primitive_make(struct onednn *o, const struct onednn_shape *s, const char **what) {
    struct primitive p = {.shape = *s};
    *what = onednn_primitive(o->engine, s, &p.code, &p.scratch_bytes);
    int rc = *what == NULL ? 0 : -EIO;
    if (rc == 0) {
        *what = "memory for oneDNN";
        p.of_thread = calloc(o->threads, sizeof(*p.of_thread));
        rc = p.of_thread != NULL ? scratch_grow(o, p.scratch_bytes) : -ENOMEM;
    }
    for (uint32_t i = 0; rc == 0 && i < o->threads; i++)
        rc = operands_make(o, s, p.scratch_bytes, &p.of_thread[i]) ? 0 : -ENOMEM;
    if (rc != 0)
        primitive_close(o, &p);
    else
        o->primitives[o->count++] = p;
    return rc;
}

/* c cut into rows x columns tiles of height x width, the last ones less. */
struct cut {
    size_t height, width, rows, columns;
};

/* The side of a tile, such that all are about equal. */
static size_t tile_side(size_t whole, size_t most) {
    size_t tiles = (whole + most - 1) / most, side = (whole + tiles - 1) / tiles;
    return (side + TILE_UNIT - 1) / TILE_UNIT * TILE_UNIT;
}

static struct cut cut_of(const struct onednn_shape *s) {
    struct cut c = {tile_side(s->m, TILE_ROWS), tile_side(s->n, TILE_COLUMNS), 0, 0};
    c.rows = (s->m + c.height - 1) / c.height;
    c.columns = (s->n + c.width - 1) / c.width;
    return c;
}

/* The shape of the tile of row i and column j. */
static struct onednn_shape tile_shape(const struct onednn_shape *s, const struct cut *c, size_t i,
                                      size_t j) {
    struct onednn_shape t = *s;
    t.m = i + 1 < c->rows ? c->height : s->m - i * c->height;
    t.n = j + 1 < c->columns ? c->width : s->n - j * c->width;
    return t;
}

/* Primitives for the tiles inside, of the last column, of the last row and of the corner. */
static int primitives_ready(struct onednn *o, const struct onednn_shape *s, const struct cut *c,
                            const struct primitive *kinds[4], const char **what) {
    for (size_t i = 0; i < 4; i++) {
        struct onednn_shape t =
            tile_shape(s, c, i / 2 ? c->rows - 1 : 0, i % 2 ? c->columns - 1 : 0);
        kinds[i] = primitive_find(o, &t);
        if (kinds[i] != NULL)
            continue;
        int rc = primitive_make(o, &t, what);
        if (rc != 0)
            return rc;
        kinds[i] = &o->primitives[o->count - 1];
    }
    return 0;
}

struct job {
    struct onednn *o;
    struct onednn_shape s;
    struct cut cut;
    const struct primitive *kinds[4];
    const char *a, *b;
    char *c;
    atomic_size_t next; /* tile */
    atomic_bool failed;
};

static bool tile_run(struct job *j, size_t part, size_t row, size_t column) {
    const struct onednn_shape *s = &j->s;
    size_t kind = (row + 1 == j->cut.rows ? 2u : 0u) + (column + 1 == j->cut.columns ? 1u : 0u);
    const struct primitive *p = j->kinds[kind];
    const struct operands *m = &p->of_thread[part];
    const struct thread *t = &j->o->thread[part];
    size_t i = row * j->cut.height, k = column * j->cut.width;
    const char *a = j->a + (s->trans_a ? i : i * s->lda) * dtype_bytes(DTYPE_BF16);
    const char *b = j->b + (s->trans_b ? k * s->ldb : k) * dtype_bytes(DTYPE_BF16);
    char *c = j->c + (i * s->ldc + k) * dtype_bytes(s->c_dtype);
    dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, m->a},
                              {DNNL_ARG_WEIGHTS, m->b},
                              {DNNL_ARG_DST, m->c},
                              {DNNL_ARG_SCRATCHPAD, m->scratch}};
    return dnnl_memory_set_data_handle(m->a, (void *)a) == dnnl_success &&
           dnnl_memory_set_data_handle(m->b, (void *)b) == dnnl_success &&
           dnnl_memory_set_data_handle(m->c, c) == dnnl_success &&
           dnnl_memory_set_data_handle(m->scratch, t->scratch) == dnnl_success &&
           dnnl_primitive_execute(p->code, t->stream, 4, args) == dnnl_success &&
           dnnl_stream_wait(t->stream) == dnnl_success;
}

static void job_part(void *arg, size_t part, size_t parts) {
    (void)parts;
    struct job *j = arg;
    size_t tiles = j->cut.rows * j->cut.columns;
    int kept = onednn_one_thread();
    for (;;) {
        size_t i = atomic_fetch_add(&j->next, 1);
        if (i >= tiles)
            break;
        if (!tile_run(j, part, i / j->cut.columns, i % j->cut.columns))
            atomic_store(&j->failed, true);
    }
    onednn_threads(kept);
}

int onednn_multiply(struct onednn *o, struct team *team, const struct onednn_shape *s,
                    const void *a, const void *b, void *c, const char **what) {
    struct job j = {.o = o, .s = *s, .cut = cut_of(s), .a = a, .b = b, .c = c};
    if (o->count + 4 > SHAPES_MAX)
        primitives_close(o);
    int kept = onednn_one_thread();
    int rc = primitives_ready(o, s, &j.cut, j.kinds, what);
    onednn_threads(kept);
    if (rc != 0)
        return rc;
    if (s->m * s->n < SMALL / s->k || j.cut.rows * j.cut.columns == 1)
        job_part(&j, 0, 1);
    else
        team_run(team, job_part, &j);
    if (!atomic_load(&j.failed))
        return 0;
    *what = "dnnl_primitive_execute";
    return -EIO;
}

#endif
