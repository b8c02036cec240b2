/* gpu_check_takes.c - a reader who takes copies all the time while the device trains: each copy is
 * of one version, and training does not notice. */
#include "config.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/cuda/gpu_check_hashes.h"

enum { READERS = 6 /* copies under way at once */, WAIT_MS = 20 };

/* What the reader found; shared with the caller. */
struct found {
    uint64_t copies[ARRAY_COUNT];
    uint64_t versions, passed, none;
    uint64_t bytes;
    char wrong[256]; /* "": nothing */
};

struct copy {
    struct hold hold;
    bool under_way;
    float *memory; /* of the largest unit */
};

struct reader {
    struct rig *rig;
    const struct hashes *hashes;
    struct found *found;
    atomic_bool stop;
    uint64_t random;
    uint64_t newest_gen;
    bool seen[RUN_MAX_STEPS + 2]; /* by gen */
    struct copy copies[READERS];
};

/* A range of whole blocks of some unit: sometimes all of it. One in four wants the version that
 * comes after the newest that was seen. */
static void copy_choose(struct reader *r, struct copy *c) {
    const struct layout *l = &r->rig->shape.layout;
    uint32_t unit = (uint32_t)(check_random(&r->random) % l->unit_count);
    uint64_t elems = layout_shard_valid(l, unit, 0), blocks = unit_blocks(elems);
    uint64_t from = 0, to = blocks, draw = check_random(&r->random);
    if (draw % 3 != 0) {
        from = check_random(&r->random) % blocks;
        to = from + 1 + check_random(&r->random) % (blocks - from);
    }
    enum array a = draw / 3 % 2 == 0 ? ARRAY_PARAMS : (enum array)(draw / 6 % ARRAY_COUNT);
    c->hold = (struct hold){.array = a,
                            .unit = unit,
                            .lo = from * HASH_BLOCK_ELEMS,
                            .hi = to < blocks ? to * HASH_BLOCK_ELEMS : elems,
                            .dst = (uint8_t *)c->memory,
                            .want_gen = draw / 32 % 4 == 0 ? r->newest_gen + 1 : 0,
                            .owner = c};
}

static void wrong(struct reader *r, const struct hold *h, const char *what) {
    if (r->found->wrong[0] != '\0')
        return;
    snprintf(r->found->wrong, sizeof r->found->wrong,
             "%s of %s [%llu, %llu), version %llu, wanted %llu: %s", array_names[h->array],
             r->rig->shape.layout.units[h->unit].name, (unsigned long long)h->lo,
             (unsigned long long)h->hi, (unsigned long long)h->gen, (unsigned long long)h->want_gen,
             what);
}

static void copy_arrived(struct reader *r, const struct hold *h) {
    const float *p = (const float *)(const void *)h->dst;
    if (h->want_gen != 0 && h->gen != h->want_gen)
        wrong(r, h, "another version than asked for");
    else if (!hashes_agree(r->hashes, h->gen, h->array, h->unit, h->lo, p, h->hi - h->lo))
        wrong(r, h, "the copy is of no version or of another");
    r->found->copies[h->array]++;
    r->found->bytes += (h->hi - h->lo) * sizeof(float);
    if (h->gen > r->newest_gen)
        r->newest_gen = h->gen;
    if (h->gen <= RUN_MAX_STEPS + 1 && !r->seen[h->gen]) {
        r->seen[h->gen] = true;
        r->found->versions++;
    }
}

static void copy_done(struct reader *r, struct copy *c) {
    struct hold *h = &c->hold;
    c->under_way = false;
    switch (h->result) {
    case HOLD_COPIED:
        copy_arrived(r, h);
        break;
    case HOLD_NONE:
        r->found->none++;
        if (h->array != ARRAY_GRADS)
            wrong(r, h, "there is none");
        break;
    case HOLD_PASSED:
        r->found->passed++;
        if (h->want_gen == 0 || h->gen <= h->want_gen)
            wrong(r, h, "passed, it says");
        break;
    case HOLD_FAILED:
        wrong(r, h, strerror(h->code));
        break;
    }
}

static void reader_begin(struct reader *r) {
    for (uint32_t i = 0; i < READERS; i++) {
        struct copy *c = &r->copies[i];
        if (c->under_way)
            continue;
        copy_choose(r, c);
        c->under_way = true;
        if (arrays_take(r->rig->arrays, &c->hold))
            copy_done(r, c);
    }
}

/* Whether anything was to be done. */
static bool reader_serve(struct reader *r) {
    bool any = arrays_serve(r->rig->arrays);
    for (struct hold *h; (h = arrays_next_done(r->rig->arrays)) != NULL; any = true)
        copy_done(r, h->owner);
    return any;
}

static void reader_wait(struct reader *r) {
    struct pollfd p = {.fd = arrays_wake_fd(r->rig->arrays), .events = POLLIN};
    uint64_t count;
    if (poll(&p, 1, WAIT_MS) > 0 && read(p.fd, &count, sizeof count) < 0)
        return; /* somebody else was faster */
}

static void *reader_main(void *arg) {
    struct reader *r = arg;
    while (!atomic_load(&r->stop)) {
        reader_begin(r);
        if (!reader_serve(r))
            reader_wait(r);
    }
    for (uint32_t i = 0; i < READERS; i++)
        if (r->copies[i].under_way)
            arrays_cancel(r->rig->arrays, &r->copies[i].hold);
    return NULL;
}

/* ---- the run beside it */

struct takes {
    const struct run_spec *spec;
    const struct hashes *hashes;
    struct found *found;
    double *losses; /* shared */
};

static int takes_steps(struct rig *r, const struct takes *t, struct err *err) {
    int rc = 0;
    for (uint64_t step = 0; step < t->spec->steps && rc == 0; step++) {
        struct step_result s;
        rc = rig_step(r, step, &s, err);
        if (rc == 0)
            t->losses[step] = s.loss;
    }
    return rc;
}

static int reader_memory(struct reader *r, struct err *err) {
    const struct layout *l = &r->rig->shape.layout;
    uint64_t largest = 1;
    for (uint32_t u = 0; u < l->unit_count; u++)
        largest = largest < l->units[u].numel ? l->units[u].numel : largest;
    for (uint32_t i = 0; i < READERS; i++) {
        r->copies[i].memory = calloc(largest, sizeof(float));
        if (r->copies[i].memory == NULL)
            return err_set(err, ENOMEM, "no memory for copies");
    }
    return 0;
}

static int takes_with_reader(struct rig *r, const struct takes *t, struct err *err) {
    struct reader *reader = calloc(1, sizeof *reader);
    pthread_t thread;
    if (reader == NULL)
        return err_set(err, ENOMEM, "no memory for a reader");
    reader->rig = r;
    reader->hashes = t->hashes;
    reader->found = t->found;
    reader->random = 5;
    reader->newest_gen = 1;
    int rc = reader_memory(reader, err);
    if (rc == 0) {
        int code = pthread_create(&thread, NULL, reader_main, reader);
        rc = code != 0 ? err_set(err, code, "no thread for a reader") : 0;
    }
    if (rc == 0) {
        rc = takes_steps(r, t, err);
        atomic_store(&reader->stop, true);
        (void)pthread_join(thread, NULL);
    }
    for (uint32_t i = 0; i < READERS; i++)
        free(reader->copies[i].memory);
    free(reader);
    return rc;
}

static int takes_body(uint32_t rank, void *arg, struct err *err) {
    const struct takes *t = arg;
    struct rig r;
    int rc = rig_open(&r, t->spec, rank, err);
    if (rc == 0)
        rc = rig_init(&r, err);
    if (rc == 0)
        rc = takes_with_reader(&r, t, err);
    rig_close(&r);
    return rc;
}

static void takes_verdict(const struct check_test *t, const struct takes *k) {
    const struct found *f = k->found;
    uint64_t copies = 0;
    for (uint32_t a = 0; a < ARRAY_COUNT; a++)
        copies += f->copies[a];
    if (f->wrong[0] != '\0')
        check_failed(t->name, "%s", f->wrong);
    else if (!check_same_bits(k->losses, k->hashes->losses, sizeof k->hashes->losses))
        check_failed(t->name, "the losses are not those of a run without readers");
    else if (f->copies[ARRAY_PARAMS] == 0 || f->versions < 2)
        check_failed(t->name,
                     "the reader got %llu copies of %llu versions: too few to say anything",
                     (unsigned long long)copies, (unsigned long long)f->versions);
    else
        check_passed(t->name,
                     "%llu copies (%.1f MB) of %llu versions in %llu steps, each of one; losses as "
                     "without",
                     (unsigned long long)copies, (double)f->bytes / 1e6,
                     (unsigned long long)f->versions, (unsigned long long)k->spec->steps);
}

void check_takes(const struct check_test *t, const struct check_options *o) {
    struct run_spec s = run_spec_of(o, check_device, t->dtype);
    double seconds = (o->quick ? t->quick_seconds : t->seconds) / 2.0;
    struct hashes *h = NULL;
    struct err err = {0};
    s.steps = o->small ? 6 : o->quick ? 100 : 300;
    s.tensor_cores = t->tensor_cores;
    if (!o->small) { /* steps long enough to be read in */
        s.shape.width = 384;
        s.shape.inner = 4 * s.shape.width;
        s.shape.heads = 6;
    }
    if (t->offload != NULL)
        snprintf(s.offload, sizeof s.offload, "optimizer=%s", t->offload);
    int rc = hashes_of(&s, seconds, &h, &err);
    struct takes k = {.spec = &s,
                      .hashes = h,
                      .found = check_shared(sizeof *k.found),
                      .losses = check_shared(RUN_MAX_STEPS * sizeof *k.losses)};
    if (rc == 0)
        rc = check_world_all(1, seconds, takes_body, &k, &err);
    if (rc != 0)
        check_failed(t->name, "%s", err.text);
    else
        takes_verdict(t, &k);
}
