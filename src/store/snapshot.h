/* snapshot.h - durable snapshots: written by the ranks, published by the supervisor, read by
 * everybody.
 *
 * RUN_DIR/snapshots/NAME/ holds manifest.json and rank-R.bin for each rank: a page of header, then
 * the rank's dump (shard/layout.h) of the arrays in the mask. The manifest holds the layout, the
 * train state and an XXH3-64 checksum for each section (array, unit) of each rank's file. A
 * directory under its final name with a valid manifest is a snapshot; .tmp-* and .del-* never are.
 * Order on disk: files written and fsynced, manifest written and fsynced, directory fsynced,
 * renamed without replacing, parent fsynced: only then the name is told to anybody. The manifest's
 * last member is a checksum of all bytes before it. */
#ifndef GFS_STORE_SNAPSHOT_H
#define GFS_STORE_SNAPSHOT_H

#include <stdatomic.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/parse.h"
#include "shard/layout.h"
#include "store/io.h"

enum {
    SNAPSHOT_HEADER_BYTES = 4096,
    SNAPSHOT_TRAIN_STATE_BYTES = 4096 /* train_state.json, padded with spaces */
};

/* ---- writing, rank side */

/* Writes rank's dump as dir/rank-R.bin and fsyncs it. dump holds layout_dump_bytes(l, mask, rank)
 * bytes. Checksums are computed here. *entry (caller frees): the JSON object for the manifest:
 * {"rank":R,"file":...,"bytes":...,"sections":[...]}. cancel may be NULL; when it turns true:
 * -ECANCELED. progress_bytes (may be NULL) counts up the bytes of the dump. After a failure the
 * file may be left, for snapshot_abandon; it is never written again. */
int snapshot_write_rank(const struct store_io *io, const char *dir, const struct layout *l,
                        uint32_t rank, uint32_t array_mask, const uint8_t *dump,
                        uint64_t snapshot_id, const atomic_bool *cancel,
                        volatile uint64_t *progress_bytes, char **entry, struct err *err);

/* ---- publishing, supervisor side */

struct snapshot_info {
    char name[NAME_MAX_BYTES + 1];
    uint64_t id, epoch, gen, step, time_ns;
    uint32_t world_size, array_mask, attempt;
    bool automatic;
    uint64_t bytes;
};

/* Makes RUN_DIR/snapshots/.tmp-NAME (an abandoned one is removed first, snapshots/ is made where
 * missing); path gets its full path. -EINVAL for the name, -EEXIST when it is taken. */
int snapshot_begin(const struct store_io *io, const char *run_dir, const char *name, char *path,
                   size_t cap_bytes, struct err *err);
/* Manifest, fsyncs, rename, fsync of snapshots/. entries[r]: of rank r; each must be what the
 * layout says, and the files must be there. info->bytes is not read: the layout says it.
 * train_state, model_config: JSON objects; step, attempt and world_size of the train state are
 * added here (-EINVAL when they are there), its other members stay as they are written, and it must
 * print in SNAPSHOT_TRAIN_STATE_BYTES: -E2BIG. -EEXIST when the name is taken. On failure the name
 * is not taken, and the temporary directory stays for snapshot_abandon. */
int snapshot_publish(const struct store_io *io, const char *run_dir,
                     const struct snapshot_info *info, const struct layout *l,
                     const char *const *entries, const char *train_state, const char *model_config,
                     struct err *err);
void snapshot_abandon(const struct store_io *io, const char *run_dir, const char *name);
/* Renames to .del-NAME, fsyncs snapshots/ (fast: then it is no longer listed); the files go with
 * snapshot_sweep. */
int snapshot_remove(const struct store_io *io, const char *run_dir, const char *name,
                    struct err *err);
/* Deletes .tmp-* and .del-*: at the start of a run, when no snapshot is being written. */
int snapshot_sweep(const struct store_io *io, const char *run_dir, struct err *err);
/* Deletes .del-* only: after snapshot_remove, at any time. */
int snapshot_sweep_removed(const struct store_io *io, const char *run_dir, struct err *err);
/* The names that `keep` lets go: automatic ones (step-%010d or step-%010d-N, and marked automatic)
 * beyond the newest `keep` of them by (epoch, gen); never the newest snapshot of all, never a named
 * one; none when keep is 0. list holds whole snapshots only, in any order. drop[count] is set;
 * returns how many are marked. A caller that needs one of them still (it is being restored) clears
 * its mark. */
uint32_t snapshot_retention(const struct snapshot_info *list, uint32_t count, uint64_t keep,
                            bool *drop);

/* ---- reading */

/* An open snapshot: its files stay readable after its removal. It holds a descriptor for each rank.
 * Not for use by two threads at once. */
struct snapshot;
/* Checks the manifest whole, and that each rank's file has its size. -ENOENT when there is no such
 * directory, -EINVAL for a name that cannot be one, -EIO when it is damaged, -ENOMEM, -EMFILE.
 * info's name is the directory's (open_dir: the manifest's). */
int snapshot_open(const char *run_dir, const char *name, struct snapshot **out, struct err *err);
int snapshot_open_dir(const char *dir, struct snapshot **out, struct err *err);
void snapshot_close(struct snapshot *s);
const struct snapshot_info *snapshot_get_info(const struct snapshot *s);
const struct layout *snapshot_get_layout(const struct snapshot *s);
/* JSON text of exactly SNAPSHOT_TRAIN_STATE_BYTES bytes: the object, spaces, a newline. */
const char *snapshot_get_train_state(const struct snapshot *s);
const char *
snapshot_get_model_config(const struct snapshot *s); /* JSON text, as given to snapshot_publish */
const char *snapshot_get_manifest(const struct snapshot *s, size_t *len_bytes); /* as on disk */
/* The mapped file of a rank (read-only, mapped at first use): base of the whole file, its bytes. A
 * file shorter than the manifest says gives -EIO and names it, at each call. */
int snapshot_map_rank(struct snapshot *s, uint32_t rank, const uint8_t **base, uint64_t *bytes,
                      struct err *err);
/* Copies elements [lo, hi) of a tensor (found by name in the snapshot's layout) into dst: for a
 * restore at another world size or wrap. -ENOENT, -ERANGE, -EIO. */
int snapshot_read_tensor(struct snapshot *s, enum array a, const char *name, uint64_t lo,
                         uint64_t hi, float *dst, struct err *err);
/* Verifies sizes, header pages and the checksums of all sections of all ranks; with a name, of
 * those ranks that hold elements of that tensor the sections of its unit in all arrays.
 * progress_bytes (may be NULL) counts up the bytes of sections. -EIO: the error names the file, the
 * section and the tensors in it. -ENOENT for the tensor. */
int snapshot_verify(struct snapshot *s, const char *name, volatile uint64_t *progress_bytes,
                    struct err *err);

/* All sections of the file of one rank of the snapshot, and its size. The error names the file, the
 * section and its tensors. */
int snapshot_verify_rank(struct snapshot *s, uint32_t rank, volatile uint64_t *progress_bytes,
                         struct err *err);

/* All published snapshots, sorted by (epoch, gen); caller frees *list. What snapshot_open would
 * call damaged is skipped and counted in *broken (may be NULL). -ENOMEM, -EMFILE and the like end
 * the listing. */
int snapshot_list(const char *run_dir, struct snapshot_info **list, uint32_t *count,
                  uint32_t *broken, struct err *err);

#endif
