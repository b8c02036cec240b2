/* tree.c - the names of the mount, its directories and its attributes. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/parse.h"
#include "fsmount/daemon.h"
#include "store/snapshot.h"

static const char readme_text[] =
    "gatherfs: the live state of a training run.\n"
    "\n"
    "  status/      one value per file: state, step, loss, lr, ...; metrics.tsv has a row per "
    "step;\n"
    "               tensors.tsv lists the tensors; last_error is the newest error in words\n"
    "  live/        params/ grads/ exp_avg/ exp_avg_sq/ as NAME.npy; raw/ without the header;\n"
    "               model.safetensors. Each open file is of one version:\n"
    "               getfattr -n user.version FILE, of an open file, gives EPOCH.GEN\n"
    "  snapshots/   durable: the same files, hf/ for transformers, shards/ as they lie on disk\n"
    "  pins/        steps frozen in memory: mkdir pins/NAME, rmdir lets go\n"
    "  ranks/       what each rank holds and does\n"
    "  control/     write one line 'VALUE [id]':\n"
    "                 echo 100 > control/step          run 100 steps; returns when they are done\n"
    "                 echo 5000 > control/target       run to step 5000\n"
    "                 echo 1 > control/run             train to the end; 0 pauses\n"
    "                 echo NAME > control/snapshot     returns when it is durable\n"
    "                 echo NAME > control/restore      loads that snapshot\n"
    "                 echo NAME > control/pin          freezes this step in memory\n"
    "                 echo 1 > control/abort           ends what waits in the others\n"
    "                 echo 1 > control/stop            snapshot, stop, unmount\n"
    "                 echo 3e-4 > control/lr           and the other knobs, each readable\n";
static const char version_text[] = PACKAGE_VERSION "\n";

const char *tree_static_text(uint32_t fixed_index) {
    return fixed_index == FIXED_README ? readme_text : version_text;
}

/* ---- kinds */

static bool fixed_is_status(uint32_t index) {
    return index >= FIXED_STATUS_FILE && index < FIXED_STATUS_FILE + status_file_count();
}
static bool fixed_is_control(uint32_t index) {
    return index >= FIXED_CONTROL_FILE && index < FIXED_CONTROL_FILE + control_file_count();
}

bool tree_is_dir(struct key k) {
    struct bundle_index i;
    switch (k.class) {
    case KEY_FIXED:
        return k.index == FIXED_ROOT || (k.index >= FIXED_STATUS && k.index <= FIXED_SNAPSHOTS);
    case KEY_RANK:
        return k.index == RANK_DIR;
    default:
        if (!bundle_index_unpack(k.index, &i))
            return false;
        return i.kind == BUNDLE_DIR || i.kind == BUNDLE_ARRAY_DIR || i.kind == BUNDLE_RAW_DIR ||
               i.kind == BUNDLE_RAW_ARRAY_DIR || i.kind == BUNDLE_HF_DIR ||
               i.kind == BUNDLE_SHARDS_DIR;
    }
}

bool tree_is_volatile(struct key k) {
    if (tree_is_dir(k))
        return false;
    switch (k.class) {
    case KEY_FIXED:
        if (fixed_is_status(k.index))
            return status_file_kind(k.index - FIXED_STATUS_FILE) == STATUS_VALUE;
        return fixed_is_control(k.index);
    case KEY_RANK:
    case KEY_LIVE:
        return true;
    default:
        return false;
    }
}

/* ---- pins, snapshots, and live/ as one more */

struct view {
    struct model *model; /* NULL: live/ before the first world */
    uint32_t array_mask;
    struct bundle *bundle; /* NULL: live/ */
};

static int tree_view(struct daemon *d, struct key k, struct view *out) {
    if (k.class == KEY_LIVE) {
        *out = (struct view){.model = world_model(d->world), .array_mask = ARRAY_MASK_ALL};
        return 0;
    }
    struct bundle *b = bundles_find(d->bundles, k.class, k.object);
    int rc = b != NULL ? bundle_load(b) : -ESTALE;
    if (rc != 0)
        return rc;
    *out = (struct view){.model = bundle_model(b), .array_mask = bundle_array_mask(b), .bundle = b};
    return 0;
}

/* A number from the kernel may be of a file that is no more. */
static bool view_has(const struct view *v, struct bundle_index i) {
    bool has_array = (v->array_mask >> i.array & 1) != 0;
    const struct hf_dir *hf;
    switch (i.kind) {
    case BUNDLE_DIR:
    case BUNDLE_RAW_DIR:
        return true;
    case BUNDLE_ARRAY_DIR:
    case BUNDLE_RAW_ARRAY_DIR:
        return has_array;
    case BUNDLE_NPY:
    case BUNDLE_RAW:
        return has_array && v->model != NULL && i.number < model_layout(v->model)->tensor_count;
    case BUNDLE_WEIGHTS:
        return v->model != NULL && (v->array_mask & ARRAY_BIT(ARRAY_PARAMS)) != 0 &&
               model_weights(v->model) != NULL;
    case BUNDLE_TRAIN_STATE:
        return v->bundle != NULL;
    case BUNDLE_HF_DIR:
        return v->bundle != NULL && (v->array_mask & ARRAY_BIT(ARRAY_PARAMS)) != 0 &&
               model_hf(v->model) != NULL;
    case BUNDLE_HF_FILE:
        hf = v->bundle != NULL ? model_hf(v->model) : NULL;
        return hf != NULL && (v->array_mask & ARRAY_BIT(ARRAY_PARAMS)) != 0 &&
               i.number < hf->file_count;
    case BUNDLE_SHARDS_DIR:
        return v->bundle != NULL && bundle_shard_file_count(v->bundle) != 0;
    case BUNDLE_SHARD_FILE:
        return v->bundle != NULL && i.number < bundle_shard_file_count(v->bundle);
    default:
        return false;
    }
}

int tree_bundle(struct daemon *d, struct key k, struct bundle **out) {
    struct view v;
    struct bundle_index i;
    int rc = tree_view(d, k, &v);
    if (rc == 0 && (v.bundle == NULL || !bundle_index_unpack(k.index, &i) || !view_has(&v, i)))
        rc = -ESTALE;
    if (rc == 0)
        *out = v.bundle;
    return rc;
}

static const struct {
    const char *name;
    enum bundle_kind kind;
} bundle_entries[] = {
    {"raw", BUNDLE_RAW_DIR},       {"model.safetensors", BUNDLE_WEIGHTS},
    {"hf", BUNDLE_HF_DIR},         {"train_state.json", BUNDLE_TRAIN_STATE},
    {"shards", BUNDLE_SHARDS_DIR},
};
enum { BUNDLE_ENTRY_COUNT = sizeof(bundle_entries) / sizeof(bundle_entries[0]) };

/* Entries of a bundle's own directory: the arrays, then the rest. */
static bool bundle_entry(const struct view *v, bool raw, uint64_t pos, char name[FILE_NAME_BYTES],
                         struct bundle_index *out) {
    if (pos < ARRAY_COUNT) {
        out->kind = raw ? BUNDLE_RAW_ARRAY_DIR : BUNDLE_ARRAY_DIR;
        out->array = (uint32_t)pos;
        snprintf(name, FILE_NAME_BYTES, "%s", array_names[pos]);
    } else {
        out->kind = bundle_entries[pos - ARRAY_COUNT].kind;
        snprintf(name, FILE_NAME_BYTES, "%s", bundle_entries[pos - ARRAY_COUNT].name);
    }
    return view_has(v, *out);
}

/* The entry at a place of a bundle's directory. False: nothing stands there. */
static bool view_entry(const struct view *v, struct bundle_index dir, uint64_t pos,
                       char name[FILE_NAME_BYTES], struct bundle_index *out) {
    *out = (struct bundle_index){.array = dir.array, .number = (uint32_t)pos};
    switch (dir.kind) {
    case BUNDLE_DIR:
    case BUNDLE_RAW_DIR:
        out->number = 0;
        return bundle_entry(v, dir.kind == BUNDLE_RAW_DIR, pos, name, out);
    case BUNDLE_ARRAY_DIR:
        out->kind = BUNDLE_NPY;
        return model_tensor_file(v->model, (uint32_t)pos, ".npy", name) == 0;
    case BUNDLE_RAW_ARRAY_DIR:
        out->kind = BUNDLE_RAW;
        return model_tensor_file(v->model, (uint32_t)pos, "", name) == 0;
    case BUNDLE_HF_DIR:
        out->kind = BUNDLE_HF_FILE;
        snprintf(name, FILE_NAME_BYTES, "%s", model_hf(v->model)->files[pos].name);
        return true;
    default:
        out->kind = BUNDLE_SHARD_FILE;
        bundle_shard_file_name(v->bundle, (uint32_t)pos, name);
        return true;
    }
}

static uint64_t view_entry_count(const struct view *v, struct bundle_index dir) {
    switch (dir.kind) {
    case BUNDLE_DIR:
        return ARRAY_COUNT + BUNDLE_ENTRY_COUNT;
    case BUNDLE_RAW_DIR:
        return ARRAY_COUNT;
    case BUNDLE_HF_DIR:
        return model_hf(v->model)->file_count;
    case BUNDLE_SHARDS_DIR:
        return bundle_shard_file_count(v->bundle);
    default:
        return v->model != NULL ? model_layout(v->model)->tensor_count : 0;
    }
}

static int bundle_next(struct daemon *d, struct key dir, uint64_t *pos, char name[FILE_NAME_BYTES],
                       struct key *out) {
    struct view v;
    struct bundle_index i, e;
    int rc = tree_view(d, dir, &v);
    if (rc != 0)
        return rc;
    if (!bundle_index_unpack(dir.index, &i) || !view_has(&v, i))
        return -ESTALE;
    for (uint64_t count = view_entry_count(&v, i); *pos < count; (*pos)++) {
        if (!view_entry(&v, i, *pos, name, &e))
            continue;
        *out = key_bundle(dir.class, dir.object, e.kind, e.array, e.number);
        (*pos)++;
        return 1;
    }
    return 0;
}

static int bundle_lookup_tensor(struct daemon *d, struct key dir, struct bundle_index i,
                                const char *name, struct key *out) {
    struct view v;
    int rc = tree_view(d, dir, &v);
    if (rc != 0)
        return rc;
    if (v.model == NULL || !view_has(&v, i))
        return -ENOENT;
    bool raw = i.kind == BUNDLE_RAW_ARRAY_DIR;
    int tensor = model_find_file(v.model, name, raw ? "" : ".npy");
    if (tensor < 0)
        return tensor;
    *out =
        key_bundle(dir.class, dir.object, raw ? BUNDLE_RAW : BUNDLE_NPY, i.array, (uint32_t)tensor);
    return 0;
}

/* ---- the fixed directories */

static const struct {
    const char *name;
    struct key key;
    bool online; /* only where there is training */
} root_entries[] = {
    {"README", {KEY_FIXED, 0, FIXED_README}, false},
    {"version", {KEY_FIXED, 0, FIXED_VERSION}, false},
    {"status", {KEY_FIXED, 0, FIXED_STATUS}, false},
    {"ranks", {KEY_FIXED, 0, FIXED_RANKS}, true},
    {"control", {KEY_FIXED, 0, FIXED_CONTROL}, true},
    {"live", {KEY_LIVE, 0, 0}, false},
    {"pins", {KEY_FIXED, 0, FIXED_PINS}, true},
    {"snapshots", {KEY_FIXED, 0, FIXED_SNAPSHOTS}, false},
};

static bool fixed_entry(struct daemon *d, uint32_t dir, uint64_t pos, char name[FILE_NAME_BYTES],
                        struct key *out) {
    const char *found = NULL;
    char path[MSG_PATH_BYTES + 16];
    switch (dir) {
    case FIXED_ROOT:
        *out = root_entries[pos].key;
        found = d->offline && root_entries[pos].online ? NULL : root_entries[pos].name;
        break;
    case FIXED_STATUS:
        *out = key_fixed(FIXED_STATUS_FILE + (uint32_t)pos);
        found = status_file_name((uint32_t)pos);
        snprintf(path, sizeof(path), "%s/%s", d->run_dir, found);
        if (strcmp(found, "run.db") == 0 && access(path, R_OK) != 0)
            found = NULL;
        break;
    case FIXED_RANKS:
        *out = (struct key){.class = KEY_RANK, .object = (uint32_t)pos, .index = RANK_DIR};
        snprintf(name, FILE_NAME_BYTES, "%u", (uint32_t)pos);
        return true;
    default:
        *out = key_fixed(FIXED_CONTROL_FILE + (uint32_t)pos);
        found = control_file_name((uint32_t)pos);
    }
    if (found != NULL)
        snprintf(name, FILE_NAME_BYTES, "%s", found);
    return found != NULL;
}

static uint64_t fixed_entry_count(const struct daemon *d, uint32_t dir) {
    switch (dir) {
    case FIXED_ROOT:
        return sizeof(root_entries) / sizeof(root_entries[0]);
    case FIXED_STATUS:
        return status_file_count();
    case FIXED_RANKS:
        return world_rank_count(d->world);
    case FIXED_CONTROL:
        return control_file_count();
    default:
        return 0;
    }
}

/* Ids are never reused and ascend: they are the places, so that a listing is right whatever comes
 * and goes. */
static int objects_next(struct daemon *d, enum key_class class, uint64_t *pos,
                        char name[FILE_NAME_BYTES], struct key *out) {
    struct bundle *b = *pos <= UINT32_MAX ? bundles_next(d->bundles, class, (uint32_t)*pos) : NULL;
    if (b == NULL)
        return 0;
    snprintf(name, FILE_NAME_BYTES, "%s", bundle_name(b));
    *out = key_bundle(class, bundle_id(b), BUNDLE_DIR, 0, 0);
    *pos = (uint64_t)bundle_id(b) + 1;
    return 1;
}

static int rank_next(const struct daemon *d, uint32_t rank, uint64_t *pos,
                     char name[FILE_NAME_BYTES], struct key *out) {
    if (rank >= world_rank_count(d->world))
        return -ESTALE;
    if (*pos + 1 >= RANK_FILE_COUNT)
        return 0;
    *out = (struct key){.class = KEY_RANK, .object = rank, .index = (uint32_t)*pos + 1};
    snprintf(name, FILE_NAME_BYTES, "%s", status_rank_file_name(out->index));
    (*pos)++;
    return 1;
}

int tree_next(struct daemon *d, struct key dir, uint64_t *pos, char name[FILE_NAME_BYTES],
              struct key *out) {
    if (dir.class == KEY_RANK)
        return rank_next(d, dir.object, pos, name, out);
    if (dir.class != KEY_FIXED)
        return bundle_next(d, dir, pos, name, out);
    if (dir.index == FIXED_PINS || dir.index == FIXED_SNAPSHOTS)
        return objects_next(d, dir.index == FIXED_PINS ? KEY_PIN : KEY_SNAPSHOT, pos, name, out);
    for (uint64_t count = fixed_entry_count(d, dir.index); *pos < count;) {
        if (fixed_entry(d, dir.index, (*pos)++, name, out))
            return 1;
    }
    return 0;
}

/* ---- names */

static int object_lookup(struct daemon *d, enum key_class class, const char *name,
                         struct key *out) {
    struct bundle *b = bundles_find_name(d->bundles, class, name);
    if (b == NULL)
        return -ENOENT;
    *out = key_bundle(class, bundle_id(b), BUNDLE_DIR, 0, 0);
    return bundle_load(b);
}

int tree_lookup(struct daemon *d, struct key dir, const char *name, struct key *out) {
    struct bundle_index i;
    char found[FILE_NAME_BYTES];
    uint64_t pos = 0;
    int rc;
    if (!tree_is_dir(dir))
        return -ENOTDIR;
    if (dir.class == KEY_FIXED && (dir.index == FIXED_PINS || dir.index == FIXED_SNAPSHOTS))
        return object_lookup(d, dir.index == FIXED_PINS ? KEY_PIN : KEY_SNAPSHOT, name, out);
    if (dir.class >= KEY_LIVE && bundle_index_unpack(dir.index, &i) &&
        (i.kind == BUNDLE_ARRAY_DIR || i.kind == BUNDLE_RAW_ARRAY_DIR))
        return bundle_lookup_tensor(d, dir, i, name, out);
    while ((rc = tree_next(d, dir, &pos, found, out)) > 0)
        if (strcmp(found, name) == 0)
            return 0;
    return rc < 0 ? rc : -ENOENT;
}

/* ---- attributes */

static void set_time(struct stat *st, uint64_t ns) {
    st->st_mtim = (struct timespec){.tv_sec = (time_t)(ns / 1000000000u),
                                    .tv_nsec = (long)(ns % 1000000000u)};
    st->st_atim = st->st_ctim = st->st_mtim;
}

static int bundle_attr(struct daemon *d, struct key k, struct stat *st) {
    struct view v;
    struct bundle_index i;
    int rc = tree_view(d, k, &v);
    if (rc != 0)
        return rc;
    if (!bundle_index_unpack(k.index, &i) || !view_has(&v, i))
        return -ESTALE;
    if (v.bundle == NULL) {
        const struct msg_status *now = status_get(d->status);
        if (now->epoch != 0)
            set_time(st, status_time_ns(d->status, now->epoch, now->gen));
        return 0;
    }
    set_time(st, bundle_time_ns(v.bundle));
    if (S_ISREG(st->st_mode)) {
        st->st_mode = S_IFREG | 0644; /* a copy of it is meant to be worked on */
        st->st_size = (off_t)bundle_file_bytes(v.bundle, i);
    }
    return 0;
}

static void fixed_attr(struct daemon *d, uint32_t index, struct stat *st) {
    if (index == FIXED_CONTROL)
        st->st_mode = S_IFDIR | 0700;
    else if (index == FIXED_README || index == FIXED_VERSION)
        st->st_size = (off_t)strlen(tree_static_text(index));
    else if (fixed_is_control(index))
        st->st_mode = S_IFREG | 0600;
    else if (fixed_is_status(index) &&
             status_file_kind(index - FIXED_STATUS_FILE) != STATUS_VALUE) {
        st->st_size = (off_t)status_file_bytes(d->status, index - FIXED_STATUS_FILE);
        set_time(st, status_file_time_ns(d->status, index - FIXED_STATUS_FILE));
    }
}

int tree_attr(struct daemon *d, struct key k, struct stat *out) {
    struct stat st = {
        .st_ino = key_pack(k), .st_uid = d->uid, .st_gid = d->gid, .st_blksize = 1 << 20};
    bool dir = tree_is_dir(k);
    int rc = 0;
    st.st_mode = dir ? S_IFDIR | 0755 : S_IFREG | 0444;
    st.st_nlink = dir ? 2 : 1;
    set_time(&st, d->start_ns);
    if (k.class == KEY_FIXED)
        fixed_attr(d, k.index, &st);
    else if (k.class == KEY_RANK)
        rc = k.object < world_rank_count(d->world) ? 0 : -ESTALE;
    else
        rc = bundle_attr(d, k, &st);
    if (rc != 0)
        return rc;
    st.st_blocks = (st.st_size + 511) / 512;
    *out = st;
    return 0;
}
