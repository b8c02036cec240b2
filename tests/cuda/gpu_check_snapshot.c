/* gpu_check_snapshot.c - snapshots written while the device trains: each is whole, of the step at
 * which it was taken, and training does not notice. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "store/snapshot.h"
#include "tests/cuda/gpu_check_hashes.h"
#include "tests/cuda/gpu_check_wide.h"

enum { SNAPSHOTS_MAX = 8 };

struct snapshots {
    const struct run_spec *spec;
    const struct hashes *hashes;
    double *losses;    /* shared */
    uint32_t *written; /* shared: how many */
    char run_dir[1024];
};

static void snapshot_name(char out[32], uint64_t step) {
    snprintf(out, 32, "step-%010llu", (unsigned long long)step);
}

/* The thread of the copies: writes and publishes, while the next steps are made. */
static int snapshot_write(void *ctx, struct wide *w, struct err *err) {
    struct snapshots *s = ctx;
    const struct layout *l = &w->rig->shape.layout;
    struct snapshot_info info = {.id = w->step + 1,
                                 .epoch = 1,
                                 .gen = w->step + 1,
                                 .step = w->step,
                                 .time_ns = 1,
                                 .world_size = 1,
                                 .array_mask = w->array_mask,
                                 .automatic = true};
    char path[1200], *entry = NULL;
    snapshot_name(info.name, w->step);
    int rc = snapshot_begin(&store_io_posix, s->run_dir, info.name, path, sizeof path, err);
    if (rc == 0)
        rc = snapshot_write_rank(&store_io_posix, path, l, 0, w->array_mask, w->dump, info.id, NULL,
                                 NULL, &entry, err);
    const char *const entries[] = {entry};
    if (rc == 0)
        rc = snapshot_publish(&store_io_posix, s->run_dir, &info, l, entries, "{\"seed\": 1}",
                              "{\"model_type\": \"gpt2\"}", err);
    free(entry);
    *s->written += rc == 0;
    return rc;
}

/* A snapshot is taken at a boundary whenever the last one is done. */
static int snapshots_steps(struct rig *r, struct snapshots *s, struct wide *w, struct err *err) {
    bool under_way = false;
    int rc = 0;
    for (uint64_t step = 0; step < s->spec->steps && rc == 0; step++) {
        struct step_result result;
        if (under_way && wide_is_done(w)) {
            rc = wide_wait(w, err);
            under_way = false;
        }
        if (rc == 0 && !under_way && *s->written < SNAPSHOTS_MAX) {
            wide_fix(w, step);
            under_way = true;
        }
        if (rc == 0)
            rc = rig_step(r, step, &result, err);
        if (rc == 0)
            s->losses[step] = result.loss;
    }
    return rc == 0 && under_way ? wide_wait(w, err) : rc;
}

static int snapshots_body(uint32_t rank, void *arg, struct err *err) {
    struct snapshots *s = arg;
    struct wide w = {.started = false};
    struct rig r;
    int rc = rig_open(&r, s->spec, rank, err);
    if (rc == 0)
        rc = rig_init(&r, err);
    if (rc == 0)
        rc = wide_open(&w, &r, ARRAY_MASK_STATE, snapshot_write, s, err);
    if (rc == 0)
        rc = snapshots_steps(&r, s, &w, err);
    wide_close(&w);
    rig_close(&r);
    return rc;
}

/* ---- what is on disk */

static int array_compare(const struct hashes *h, const struct snapshot_info *info,
                         const struct layout *l, enum array a, const uint8_t *base,
                         struct err *err) {
    for (uint32_t u = 0; u < l->unit_count; u++) {
        uint64_t at = layout_dump_offset(l, info->array_mask, 0, a, u);
        const float *p = (const float *)(const void *)(base + SNAPSHOT_HEADER_BYTES + at);
        if (!hashes_agree(h, info->gen, a, u, 0, p, layout_shard_valid(l, u, 0)))
            return err_set(err, EIO, "%s: %s of %s is not what it was at step %llu", info->name,
                           array_names[a], l->units[u].name, (unsigned long long)info->step);
    }
    return 0;
}

static int snapshot_compare(const struct snapshots *s, const char *name, struct err *err) {
    struct snapshot *snap = NULL;
    const uint8_t *base;
    uint64_t bytes;
    int rc = snapshot_open(s->run_dir, name, &snap, err);
    if (rc != 0)
        return rc;
    rc = snapshot_verify(snap, NULL, NULL, err);
    if (rc == 0)
        rc = snapshot_map_rank(snap, 0, &base, &bytes, err);
    for (enum array a = ARRAY_PARAMS; a < ARRAY_COUNT && rc == 0; a++)
        if ((ARRAY_MASK_STATE & ARRAY_BIT(a)) != 0)
            rc = array_compare(s->hashes, snapshot_get_info(snap), snapshot_get_layout(snap), a,
                               base, err);
    snapshot_close(snap);
    return rc;
}

static int snapshots_compare(const struct snapshots *s, uint32_t *count, struct err *err) {
    struct snapshot_info *list = NULL;
    uint32_t broken = 0;
    int rc = snapshot_list(s->run_dir, &list, count, &broken, err);
    if (rc == 0 && broken > 0)
        rc = err_set(err, EIO, "%u snapshots are damaged", broken);
    for (uint32_t i = 0; rc == 0 && i < *count; i++)
        rc = snapshot_compare(s, list[i].name, err);
    free(list);
    return rc;
}

void check_snapshots(const struct check_test *t, const struct check_options *o) {
    struct run_spec spec = run_spec_of(o, check_device, t->dtype);
    double seconds = (o->quick ? t->quick_seconds : t->seconds) / 2.0;
    struct hashes *h = NULL;
    struct err err = {0};
    uint32_t count = 0;
    spec.steps = o->small ? 6 : 100;
    int rc = hashes_of(&spec, seconds, &h, &err);
    struct snapshots s = {.spec = &spec,
                          .hashes = h,
                          .losses = check_shared(RUN_MAX_STEPS * sizeof *s.losses),
                          .written = check_shared(sizeof *s.written)};
    if (rc == 0)
        rc = file_path(s.run_dir, sizeof s.run_dir, "%s", o->tmp_dir);
    if (rc == 0)
        rc = check_world_all(1, seconds, snapshots_body, &s, &err);
    if (rc == 0)
        rc = snapshots_compare(&s, &count, &err);
    if (rc != 0)
        check_failed(t->name, "%s", err.text[0] != '\0' ? err.text : strerror(-rc));
    else if (count == 0 || count != *s.written)
        check_failed(t->name, "%u were written and %u are there", *s.written, count);
    else if (!check_same_bits(s.losses, h->losses, sizeof h->losses))
        check_failed(t->name, "the losses are not those of a run without snapshots");
    else
        check_passed(t->name, "%u in %llu steps, each whole and of its step; losses as without",
                     count, (unsigned long long)spec.steps);
}
