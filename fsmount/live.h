/* live.h - open files of live/: from OPEN to the take that answers it, and back. */
#ifndef GFS_FSMOUNT_LIVE_H
#define GFS_FSMOUNT_LIVE_H

#include "fsmount/node.h"
#include "fsmount/status.h"

struct live {
    struct world *world;
    struct takes *takes;
    struct wides *wides;
    struct status *status;
};

/* Size of a file of live/, the same for each version; 0 and -ENOENT when there is no such file. */
int live_size(const struct live *l, struct bundle_index i, uint64_t *size_bytes);
/* Sets up a fresh node. */
void live_bind(struct live *l, struct node *n, uint64_t size_bytes);
/* Answers the OPEN: at once when its version is known, else when the ranks have. */
void live_open(struct node *n, fuse_req_t req, const struct fuse_file_info *fi);
void live_release(struct node *n);
/* Before a node is freed. */
void live_end(struct node *n);
/* The version it is bound to; false while it has none: *out is then the newest that is known, epoch
 * 0 for none. */
bool live_version(const struct node *n, struct take_version *out);
uint64_t live_time_ns(const struct node *n);
int live_read(const struct node *n, struct gather *g);

#endif
