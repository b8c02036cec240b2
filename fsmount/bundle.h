/* bundle.h - pins and snapshots: the same tree of files over dumps, in segments or on disk. */
#ifndef GFS_FSMOUNT_BUNDLE_H
#define GFS_FSMOUNT_BUNDLE_H

#include "fsmount/key.h"
#include "fsmount/park.h"
#include "fsmount/wide.h"

struct bundles;
struct bundle;

/* Both are borrowed. 0 or -ENOMEM. */
int bundles_open(const char *run_dir, struct wides *wides, struct bundles **out);
void bundles_close(struct bundles *b);
/* Before the first use, and whenever the knob changes. */
void bundles_configure(struct bundles *b, double read_timeout_seconds);

/* From the supervisor (or the directory, offline). */
int bundles_add_snapshot(struct bundles *b, uint64_t id, const char *name);
void bundles_remove_snapshot(struct bundles *b, uint64_t id);
int bundles_pin(struct bundles *b, const struct msg_pin *m, struct err *err);

/* The listed one with this name, or with the smallest id from `id` on; NULL. */
struct bundle *bundles_find_name(struct bundles *b, enum key_class class, const char *name);
struct bundle *bundles_next(struct bundles *b, enum key_class class, uint32_t id);
/* By id, listed or not; NULL when it is gone. */
struct bundle *bundles_find(struct bundles *b, enum key_class class, uint32_t id);

const char *bundle_name(const struct bundle *b);
uint32_t bundle_id(const struct bundle *b);
/* Opens a snapshot's files at first use. 0 or -errno; before it the calls below must not be used.
 */
int bundle_load(struct bundle *b);
struct model *bundle_model(const struct bundle *b);
uint32_t bundle_array_mask(const struct bundle *b);
uint64_t bundle_time_ns(const struct bundle *b);
struct take_version bundle_version(const struct bundle *b);

/* Sizes of what has no plan: train_state.json, the files in shards/. */
uint32_t bundle_shard_file_count(const struct bundle *b); /* 0: no shards/ */
void bundle_shard_file_name(const struct bundle *b, uint32_t number, char out[FILE_NAME_BYTES]);
uint64_t bundle_file_bytes(struct bundle *b, struct bundle_index i);

/* Fills g with a range of a file. 0, -errno, or -EAGAIN: not yet, park the READ in bundle_readers.
 */
int bundle_read(struct bundle *b, struct bundle_index i, struct gather *g);
struct park_list *bundle_readers(struct bundle *b);

/* What the kernel knows keeps a removed one alive. */
void bundle_lookup(struct bundle *b, uint64_t count);
void bundle_forget(struct bundles *all, struct bundle *b, uint64_t count);
/* So does an open file: names that the daemon before this one has looked up are not looked up
 * again. */
void bundle_file_open(struct bundle *b);
void bundle_file_close(struct bundles *all, struct bundle *b);

/* Pins whose readers can be answered now are handed to wake, one call a pin. */
void bundles_wake(struct bundles *b, void (*wake)(void *ctx, struct bundle *b), void *ctx);
/* The world ended: pins that are not whole fail, unless the supervisor says otherwise later. */
void bundles_world_lost(struct bundles *b);
bool bundles_waiting(const struct bundles *b);
void bundles_tick(struct bundles *b, uint64_t now_ns);

#endif
