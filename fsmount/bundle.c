/* bundle.c - a list of pins and snapshots, and where the bytes of their files come from. */
#include "config.h"

#include "fsmount/bundle.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "fsmount/clock.h"
#include "store/snapshot.h"
#include "tensor/npy.h"

struct bundle {
    struct bundle *next;
    struct bundles *owner;
    enum key_class class;
    uint32_t id;
    char name[NAME_MAX_BYTES + 1];
    bool listed;
    uint64_t lookups, opens; /* both of this daemon; there may be more from the one before */
    struct model *model;
    uint32_t array_mask;
    uint64_t time_ns;
    struct take_version version;
    char *train_state; /* SNAPSHOT_TRAIN_STATE_BYTES or longer, padded */
    size_t train_state_bytes;
    struct snapshot *snapshot; /* NULL: a pin, or not loaded */
    uint64_t take;             /* of a pin */
    enum pin_state state;
    int code; /* positive, why a pin failed */
    struct park_list readers;
    uint64_t waiting_since_ns;
};

struct bundles {
    char run_dir[MSG_PATH_BYTES];
    struct wides *wides;
    struct bundle *all;
    uint64_t timeout_ns;
};

int bundles_open(const char *run_dir, struct wides *wides, struct bundles **out) {
    struct bundles *b = calloc(1, sizeof(*b));
    if (b == NULL)
        return -ENOMEM;
    snprintf(b->run_dir, sizeof(b->run_dir), "%s", run_dir);
    b->wides = wides;
    *out = b;
    return 0;
}

void bundles_configure(struct bundles *b, double read_timeout_seconds) {
    b->timeout_ns = (uint64_t)(read_timeout_seconds * 1e9);
}

/* Closes a snapshot's files; they are opened again at the next use. */
static void bundle_unload(struct bundle *b) {
    snapshot_close(b->snapshot);
    b->snapshot = NULL;
    if (b->class == KEY_SNAPSHOT) {
        model_put(b->model);
        b->model = NULL;
    }
    free(b->train_state);
    b->train_state = NULL;
}

static void bundle_free(struct bundle *b) {
    park_fail(&b->readers, EIO);
    bundle_unload(b);
    if (b->class == KEY_PIN && b->take != 0)
        wides_unhold(b->owner->wides, b->take);
    model_put(b->model);
    free(b);
}

void bundles_close(struct bundles *all) {
    if (all == NULL)
        return;
    while (all->all != NULL) {
        struct bundle *b = all->all;
        all->all = b->next;
        bundle_free(b);
    }
    free(all);
}

struct bundle *bundles_find(struct bundles *all, enum key_class class, uint32_t id) {
    for (struct bundle *b = all->all; b != NULL; b = b->next)
        if (b->class == class && b->id == id)
            return b;
    return NULL;
}

struct bundle *bundles_find_name(struct bundles *all, enum key_class class, const char *name) {
    for (struct bundle *b = all->all; b != NULL; b = b->next)
        if (b->class == class && b->listed && strcmp(b->name, name) == 0)
            return b;
    return NULL;
}

/* The list is sorted by id. */
struct bundle *bundles_next(struct bundles *all, enum key_class class, uint32_t id) {
    for (struct bundle *b = all->all; b != NULL; b = b->next)
        if (b->class == class && b->listed && b->id >= id)
            return b;
    return NULL;
}

static struct bundle *bundles_add(struct bundles *all, enum key_class class, uint64_t id,
                                  const char *name) {
    if (id == 0 || id > UINT32_MAX || !parse_name_ok(name)) {
        log_error("%s %" PRIu64 " '%.100s' is refused", class == KEY_PIN ? "pin" : "snapshot", id,
                  name);
        return NULL;
    }
    struct bundle *b = calloc(1, sizeof(*b));
    if (b == NULL)
        return NULL;
    b->owner = all;
    b->class = class;
    b->id = (uint32_t)id;
    b->listed = true;
    snprintf(b->name, sizeof(b->name), "%s", name);
    struct bundle **at = &all->all;
    while (*at != NULL && (*at)->id < b->id)
        at = &(*at)->next;
    b->next = *at;
    *at = b;
    return b;
}

static void bundles_sweep(struct bundles *all, struct bundle *b) {
    if (b->listed || b->lookups != 0 || b->opens != 0)
        return;
    struct bundle **at = &all->all;
    while (*at != b)
        at = &(*at)->next;
    *at = b->next;
    bundle_free(b);
}

/* ---- snapshots */

int bundles_add_snapshot(struct bundles *all, uint64_t id, const char *name) {
    struct bundle *b = id <= UINT32_MAX ? bundles_find(all, KEY_SNAPSHOT, (uint32_t)id) : NULL;
    if (b != NULL)
        return 0;
    return bundles_add(all, KEY_SNAPSHOT, id, name) != NULL ? 0 : -EINVAL;
}

void bundles_remove_snapshot(struct bundles *all, uint64_t id) {
    struct bundle *b = id <= UINT32_MAX ? bundles_find(all, KEY_SNAPSHOT, (uint32_t)id) : NULL;
    if (b == NULL)
        return;
    b->listed = false;
    bundles_sweep(all, b);
}

/* Padded with spaces to a fixed size, a newline at the end. */
static int bundle_set_train_state(struct bundle *b, const char *text) {
    size_t len = strlen(text);
    size_t size = len + 1 > SNAPSHOT_TRAIN_STATE_BYTES ? len + 1 : SNAPSHOT_TRAIN_STATE_BYTES;
    char *padded = malloc(size);
    if (padded == NULL)
        return -ENOMEM;
    while (len > 0 && text[len - 1] == '\n')
        len--;
    snprintf(padded, size, "%-*.*s", (int)(size - 1), (int)len, text);
    padded[size - 1] = '\n';
    free(b->train_state);
    b->train_state = padded;
    b->train_state_bytes = size;
    return 0;
}

static int bundle_adopt_snapshot(struct bundle *b, struct snapshot *s, struct err *err) {
    const struct snapshot_info *info = snapshot_get_info(s);
    if (info->id != b->id)
        return err_set(err, ENOENT, "snapshot %s is number %" PRIu64 ", not %u", b->name, info->id,
                       b->id);
    const char *config = snapshot_get_model_config(s);
    struct enc e = {0};
    layout_encode(snapshot_get_layout(s), &e);
    struct blob layout = {.data = e.data, .len_bytes = e.len_bytes};
    struct blob text = {.data = (const uint8_t *)config, .len_bytes = strlen(config)};
    int rc = e.failed ? err_set(err, ENOMEM, "no memory for the layout")
                      : model_decode(&layout, &text, NULL, &b->model, err);
    enc_free(&e);
    if (rc == 0)
        rc = bundle_set_train_state(b, snapshot_get_train_state(s));
    if (rc != 0)
        return rc;
    b->array_mask = info->array_mask & ARRAY_MASK_ALL;
    b->time_ns = info->time_ns;
    b->version = (struct take_version){.epoch = info->epoch, .gen = info->gen, .step = info->step};
    return 0;
}

int bundle_load(struct bundle *b) {
    if (b->class != KEY_SNAPSHOT || b->snapshot != NULL)
        return 0;
    struct err err = {0};
    struct snapshot *s = NULL;
    int rc = snapshot_open(b->owner->run_dir, b->name, &s, &err);
    if (rc == 0)
        rc = bundle_adopt_snapshot(b, s, &err);
    if (rc != 0) {
        log_error("snapshot %s can't be read: %s", b->name, err.text);
        snapshot_close(s);
        model_put(b->model);
        b->model = NULL;
        return rc;
    }
    b->snapshot = s;
    return 0;
}

/* ---- pins */

static int bundle_pin_state_text(struct bundle *b) {
    char text[256];
    snprintf(text, sizeof(text),
             "{\"step\": %" PRIu64 ", \"epoch\": %" PRIu64 ", \"gen\": %" PRIu64
             ", \"world_size\": %u}",
             b->version.step, b->version.epoch, b->version.gen, model_layout(b->model)->world_size);
    return bundle_set_train_state(b, text);
}

static int bundle_pin_update(struct bundle *b, const struct msg_pin *m, struct err *err) {
    if (b->model == NULL) {
        int rc = model_decode(&m->layout, &m->model_config, NULL, &b->model, err);
        if (rc != 0)
            return rc;
    }
    b->array_mask = m->array_mask & ARRAY_MASK_ALL;
    b->version = (struct take_version){.epoch = m->epoch, .gen = m->gen, .step = m->step};
    if (b->time_ns == 0)
        b->time_ns = m->time_ns != 0 ? m->time_ns : clock_wall();
    if (b->take != m->take) {
        if (b->take != 0)
            wides_unhold(b->owner->wides, b->take);
        b->take = m->take;
        if (b->take != 0)
            wides_hold(b->owner->wides, b->take);
    }
    b->state = (enum pin_state)m->state;
    b->code = m->code != 0 && m->code < 4096 ? (int)m->code : EIO;
    return bundle_pin_state_text(b);
}

/* 0 when the data is there, -EAGAIN while it may still come. */
static int bundle_pin_ready(const struct bundle *b) {
    if (b->state == PIN_FAILED)
        return -b->code;
    if (b->state == PIN_READY &&
        wides_is_whole(b->owner->wides, b->take, model_layout(b->model), b->array_mask))
        return 0;
    return -EAGAIN;
}

int bundles_pin(struct bundles *all, const struct msg_pin *m, struct err *err) {
    struct bundle *b = m->pin <= UINT32_MAX ? bundles_find(all, KEY_PIN, (uint32_t)m->pin) : NULL;
    if (m->state > PIN_GONE)
        return err_set(err, EPROTO, "pin %s: state %u", m->name, m->state);
    if (m->state == PIN_GONE) {
        if (b != NULL) {
            b->listed = false;
            if (bundle_pin_ready(b) == -EAGAIN) { /* it never will be */
                b->state = PIN_FAILED;
                b->code = EIO;
                park_fail(&b->readers, EIO);
            }
            bundles_sweep(all, b);
        }
        return 0;
    }
    bool fresh = b == NULL;
    if (fresh)
        b = bundles_add(all, KEY_PIN, m->pin, m->name);
    if (b == NULL)
        return err_set(err, EINVAL, "pin '%s' can't be made", m->name);
    int rc = bundle_pin_update(b, m, err);
    if (rc != 0 && fresh) {
        b->listed = false;
        bundles_sweep(all, b);
    }
    return rc;
}

/* ---- what it is */

const char *bundle_name(const struct bundle *b) { return b->name; }
uint32_t bundle_id(const struct bundle *b) { return b->id; }
struct model *bundle_model(const struct bundle *b) {
    return b->model;
}
uint32_t bundle_array_mask(const struct bundle *b) { return b->array_mask; }
uint64_t bundle_time_ns(const struct bundle *b) { return b->time_ns; }
struct take_version bundle_version(const struct bundle *b) {
    return b->version;
}
struct park_list *bundle_readers(struct bundle *b) {
    return &b->readers;
}

uint32_t bundle_shard_file_count(const struct bundle *b) {
    return b->snapshot != NULL ? 1 + model_layout(b->model)->world_size : 0;
}

void bundle_shard_file_name(const struct bundle *b, uint32_t number, char out[FILE_NAME_BYTES]) {
    (void)b;
    if (number == 0)
        snprintf(out, FILE_NAME_BYTES, "manifest.json");
    else
        snprintf(out, FILE_NAME_BYTES, "rank-%u.bin", number - 1);
}

uint64_t bundle_file_bytes(struct bundle *b, struct bundle_index i) {
    const struct hf_dir *hf;
    size_t manifest_bytes = 0;
    switch (i.kind) {
    case BUNDLE_NPY:
        return NPY_HEADER_BYTES + model_tensor_bytes(b->model, i.number);
    case BUNDLE_RAW:
        return model_tensor_bytes(b->model, i.number);
    case BUNDLE_WEIGHTS:
        return model_weights(b->model) != NULL
                   ? model_weights(b->model)->offset_bytes[model_weights(b->model)->tensor_count]
                   : 0;
    case BUNDLE_HF_FILE:
        hf = model_hf(b->model);
        if (hf->files[i.number].kind == HF_TEXT)
            return hf->files[i.number].text_bytes;
        return hf->files[i.number].weights.offset_bytes[hf->files[i.number].weights.tensor_count];
    case BUNDLE_TRAIN_STATE:
        return b->train_state_bytes;
    case BUNDLE_SHARD_FILE:
        if (i.number == 0) {
            snapshot_get_manifest(b->snapshot, &manifest_bytes);
            return manifest_bytes;
        }
        return SNAPSHOT_HEADER_BYTES +
               layout_dump_bytes(model_layout(b->model), b->array_mask, i.number - 1);
    default:
        return 0;
    }
}

/* ---- reading */

/* dump_source.dump: of a pin from its segments, of a snapshot from its files. */
static int bundle_dump(void *ctx, uint32_t rank, const uint8_t **data, uint64_t *bytes) {
    struct bundle *b = ctx;
    if (b->class == KEY_PIN)
        return wides_dump(b->owner->wides, b->take, rank, data, bytes);
    struct err err = {0};
    int rc = snapshot_map_rank(b->snapshot, rank, data, bytes, &err);
    if (rc != 0) {
        log_error("%s", err.text);
        return rc;
    }
    if (*bytes < SNAPSHOT_HEADER_BYTES)
        return -EIO;
    *data += SNAPSHOT_HEADER_BYTES;
    *bytes -= SNAPSHOT_HEADER_BYTES;
    return 0;
}

static int bundle_read_shard(struct bundle *b, uint32_t number, struct gather *g) {
    size_t manifest_bytes;
    if (number == 0) {
        const char *manifest = snapshot_get_manifest(b->snapshot, &manifest_bytes);
        gather_add(g, 0, manifest, manifest_bytes);
        return 0;
    }
    const uint8_t *base;
    uint64_t bytes;
    struct err err = {0};
    int rc = snapshot_map_rank(b->snapshot, number - 1, &base, &bytes, &err);
    if (rc == 0)
        gather_add(g, 0, base, bytes);
    else
        log_error("%s", err.text);
    return rc;
}

static int bundle_read_tensor(struct bundle *b, struct bundle_index i, struct gather *g) {
    struct dump_source from = {.array_mask = b->array_mask, .dump = bundle_dump, .ctx = b};
    uint64_t header_bytes = 0;
    if (i.kind == BUNDLE_NPY) {
        int rc = npy_header(&model_layout(b->model)->tensors[i.number].spec, g->small);
        if (rc != 0)
            return rc;
        header_bytes = NPY_HEADER_BYTES;
        gather_add(g, 0, g->small, header_bytes);
    }
    return model_gather_tensor(b->model, &from, (enum array)i.array, i.number, header_bytes, g);
}

static int bundle_read_hf(struct bundle *b, uint32_t number, struct gather *g) {
    const struct hf_file *f = &model_hf(b->model)->files[number];
    struct dump_source from = {.array_mask = b->array_mask, .dump = bundle_dump, .ctx = b};
    if (f->kind == HF_WEIGHTS)
        return model_gather_weights(b->model, &from, &f->weights, g);
    gather_add(g, 0, f->text, f->text_bytes);
    return 0;
}

int bundle_read(struct bundle *b, struct bundle_index i, struct gather *g) {
    bool text = i.kind == BUNDLE_HF_FILE && model_hf(b->model)->files[i.number].kind == HF_TEXT;
    int rc = b->class == KEY_PIN && !text ? bundle_pin_ready(b) : 0;
    if (rc != 0)
        return rc;
    struct dump_source from = {.array_mask = b->array_mask, .dump = bundle_dump, .ctx = b};
    switch (i.kind) {
    case BUNDLE_NPY:
    case BUNDLE_RAW:
        return bundle_read_tensor(b, i, g);
    case BUNDLE_WEIGHTS:
        return model_gather_weights(b->model, &from, model_weights(b->model), g);
    case BUNDLE_HF_FILE:
        return bundle_read_hf(b, i.number, g);
    case BUNDLE_TRAIN_STATE:
        gather_add(g, 0, b->train_state, b->train_state_bytes);
        return 0;
    case BUNDLE_SHARD_FILE:
        return bundle_read_shard(b, i.number, g);
    default:
        return -EISDIR;
    }
}

/* ---- life and waiting */

void bundle_lookup(struct bundle *b, uint64_t count) { b->lookups += count; }

/* A successor does not know what its predecessor was asked: it may hear of more than it counted. */
void bundle_forget(struct bundles *all, struct bundle *b, uint64_t count) {
    b->lookups = b->lookups > count ? b->lookups - count : 0;
    if (b->lookups == 0 && b->opens == 0 && b->class == KEY_SNAPSHOT)
        bundle_unload(b);
    bundles_sweep(all, b);
}

void bundle_file_open(struct bundle *b) { b->opens++; }

void bundle_file_close(struct bundles *all, struct bundle *b) {
    b->opens--;
    bundle_forget(all, b, 0);
}

void bundles_wake(struct bundles *all, void (*wake)(void *ctx, struct bundle *b), void *ctx) {
    for (struct bundle *b = all->all; b != NULL; b = b->next)
        if (b->readers.first != NULL && bundle_pin_ready(b) != -EAGAIN)
            wake(ctx, b);
}

void bundles_world_lost(struct bundles *all) {
    for (struct bundle *b = all->all; b != NULL; b = b->next) {
        if (b->class != KEY_PIN || bundle_pin_ready(b) != -EAGAIN)
            continue;
        b->state = PIN_FAILED;
        b->code = EIO;
        park_fail(&b->readers, EIO);
    }
}

bool bundles_waiting(const struct bundles *all) {
    for (const struct bundle *b = all->all; b != NULL; b = b->next)
        if (b->readers.first != NULL)
            return true;
    return false;
}

void bundles_tick(struct bundles *all, uint64_t now_ns) {
    for (struct bundle *b = all->all; b != NULL; b = b->next) {
        if (b->readers.first == NULL) {
            b->waiting_since_ns = 0;
            continue;
        }
        if (b->waiting_since_ns == 0)
            b->waiting_since_ns = now_ns;
        uint64_t sign = wides_oldest_sign(all->wides, b->take, model_layout(b->model));
        if (sign == UINT64_MAX || sign < b->waiting_since_ns)
            sign = b->waiting_since_ns;
        if (now_ns > sign && now_ns - sign >= all->timeout_ns)
            park_fail(&b->readers, ETIMEDOUT);
    }
}
