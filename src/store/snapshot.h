/* snapshot.h - durable snapshots: written by the ranks, published by the supervisor, read by everybody.
 *
 * RUN_DIR/snapshots/NAME/ holds manifest.json and rank-R.bin for each rank: a page of header, then the rank's dump
 * (shard/layout.h) of the arrays in the mask. The manifest holds the layout, the train state and an XXH3-64 checksum for each
 * section (array, unit) of each rank's file. A directory under its final name with a valid manifest is a snapshot; .tmp-* and
 * .del-* never are. Order on disk: files written and fsynced, directory fsynced, manifest written and fsynced, directory fsynced,
 * renamed without replacing, parent fsynced: only then the name is told to anybody. */
#ifndef GFS_STORE_SNAPSHOT_H
#define GFS_STORE_SNAPSHOT_H

#include "base/buf.h"
#include "base/err.h"
#include "base/parse.h"
#include "shard/layout.h"
#include "store/io.h"

enum { SNAPSHOT_HEADER_BYTES = 4096, SNAPSHOT_TRAIN_STATE_BYTES = 4096 /* train_state.json, padded with spaces */ };

/* ---- writing, rank side */

/* Writes rank's dump as dir/rank-R.bin and fsyncs it. dump holds layout_dump_bytes(l, mask, rank) bytes. Checksums are computed here.
 * *entry (caller frees): the JSON object for the manifest: {"rank":R,"file":...,"bytes":...,"sections":[...]}. cancel may be NULL; when
 * it turns true: -ECANCELED. progress_bytes (may be NULL) counts up. */
int snapshot_write_rank(const struct store_io *io, const char *dir, const struct layout *l, uint32_t rank,
                        uint32_t array_mask, const uint8_t *dump, uint64_t snapshot_id, const volatile bool *cancel,
                        volatile uint64_t *progress_bytes, char **entry, struct err *err);

/* ---- publishing, supervisor side */

struct snapshot_info {
    char name[NAME_MAX_BYTES + 1];
    uint64_t id, epoch, gen, step, time_ns;
    uint32_t world_size, array_mask, attempt;
    bool automatic;
    uint64_t bytes;
};

/* Makes RUN_DIR/snapshots/.tmp-NAME (an abandoned one is removed first); *path is its full path. */
int snapshot_begin(const struct store_io *io, const char *run_dir, const char *name, char *path, size_t cap_bytes, struct err *err);
/* Manifest, fsyncs, rename, fsync of snapshots/. entries[r]: of rank r. train_state, model_config: JSON objects. -EEXIST when
 * the name is taken. On failure the temporary directory stays for snapshot_abandon. */
int snapshot_publish(const struct store_io *io, const char *run_dir, const struct snapshot_info *info, const struct layout *l,
                     const char *const *entries, const char *train_state, const char *model_config, struct err *err);
void snapshot_abandon(const struct store_io *io, const char *run_dir, const char *name);
/* Renames to .del-NAME, fsyncs snapshots/ (fast: then it is no longer listed); the files go with snapshot_sweep. */
int snapshot_remove(const struct store_io *io, const char *run_dir, const char *name, struct err *err);
/* Deletes .tmp-* and .del-*. */
int snapshot_sweep(const struct store_io *io, const char *run_dir, struct err *err);
/* The names that `keep` lets go: automatic ones (step-%010d and marked automatic), oldest by (epoch, gen) first, never the newest
 * snapshot that is whole, never a named one, never those in protect. Returns how many of list are marked in drop[]. */
uint32_t snapshot_retention(const struct snapshot_info *list, uint32_t count, uint64_t keep, bool *drop);

/* ---- reading */

struct snapshot; /* an open snapshot: its files stay readable after its removal */
int snapshot_open(const char *run_dir, const char *name, struct snapshot **out, struct err *err);
int snapshot_open_dir(const char *dir, struct snapshot **out, struct err *err);
void snapshot_close(struct snapshot *s);
const struct snapshot_info *snapshot_get_info(const struct snapshot *s);
const struct layout *snapshot_get_layout(const struct snapshot *s);
const char *snapshot_get_train_state(const struct snapshot *s);  /* JSON text */
const char *snapshot_get_model_config(const struct snapshot *s);
const char *snapshot_get_manifest(const struct snapshot *s, size_t *len_bytes); /* as on disk */
/* The mapped file of a rank (read-only, mapped at first use): base of the whole file, its bytes. A file shorter than the manifest says
 * gives -EIO and names it. */
int snapshot_map_rank(struct snapshot *s, uint32_t rank, const uint8_t **base, uint64_t *bytes, struct err *err);
/* Copies elements [lo, hi) of a tensor (found by name in the snapshot's layout) into dst: for a restore at another world size or wrap.
 * -ENOENT, -ERANGE, -EIO. */
int snapshot_read_tensor(struct snapshot *s, enum array a, const char *name, uint64_t lo, uint64_t hi, float *dst,
                         struct err *err);
/* Verifies the checksums of the sections of the file of `rank` that hold any of unit-independent tensor `name`'s elements... or, with
 * name NULL, all sections of all ranks and the sizes. The error names the file, the section and the tensors in it. */
int snapshot_verify(struct snapshot *s, const char *name, volatile uint64_t *progress_bytes, struct err *err);

/* All sections of the file of one rank of the snapshot, and its size. The error names the file, the section and its tensors. */
int snapshot_verify_rank(struct snapshot *s, uint32_t rank, volatile uint64_t *progress_bytes, struct err *err);

/* All published snapshots, sorted by (epoch, gen); caller frees *list. A directory without a valid manifest is skipped and counted. */
int snapshot_list(const char *run_dir, struct snapshot_info **list, uint32_t *count, uint32_t *broken, struct err *err);

#endif
