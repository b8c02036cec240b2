/* manifest_state.h - the train state: an object of the ranks, with the publisher's members before
 * theirs. Kept as text: its numbers may be any that JSON can write, a seed of 64 bits too, and come
 * back as they were. */
#ifndef GFS_STORE_MANIFEST_STATE_H
#define GFS_STORE_MANIFEST_STATE_H

#include "store/snapshot.h"

/* The text of the state (caller frees): step, attempt and world_size of info, then the members of
 * `given`; indented where that fits. -EINVAL when given is no object, or has one of those members;
 * -E2BIG when the text has SNAPSHOT_TRAIN_STATE_BYTES or more. */
int manifest_state_make(const struct snapshot_info *info, const char *given, char **out,
                        struct err *err);
/* Checks the text of a manifest against its info, -EIO, and pads it with spaces and a newline to
 * SNAPSHOT_TRAIN_STATE_BYTES (caller frees). */
int manifest_state_read(const struct snapshot_info *info, const char *text, char **out,
                        struct err *err);

#endif
