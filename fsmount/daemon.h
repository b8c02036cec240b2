/* daemon.h - the parts of one gatherfs-mountd, as main puts them together for the operations. */
#ifndef GFS_FSMOUNT_DAEMON_H
#define GFS_FSMOUNT_DAEMON_H

#include "fsmount/bundle.h"
#include "fsmount/control.h"
#include "fsmount/live.h"
#include "fsmount/node.h"
#include "fsmount/session.h"

/* Who polls status/events through one open file. */
struct poller {
    struct poller *next;
    uint64_t fh, seen_bytes;
    struct fuse_pollhandle *handle; /* NULL: nobody sleeps */
};

struct daemon {
    uint64_t number; /* of the session */
    bool offline;
    char run_dir[MSG_PATH_BYTES], mountpoint[MSG_PATH_BYTES];
    uid_t uid;
    gid_t gid;
    uint64_t start_ns; /* mtime of what has no other */
    struct link *supervisor;
    struct session *session;
    struct world *world;
    struct takes *takes;
    struct wides *wides;
    struct bundles *bundles;
    struct status *status;
    struct control *control;
    struct nodes *nodes;
    struct live live;
    struct gather gather;
    struct poller *pollers;
    uint64_t next_fh;
};

/* ---- tree.c: which files there are */

/* A static node, or what a volatile one would be: the key of a name. -ENOENT, -ENOTDIR, -EIO. */
int tree_lookup(struct daemon *d, struct key dir, const char *name, struct key *out);
/* The entry at *pos or after; *pos becomes the place after it. 1, 0 at the end, -errno. */
int tree_next(struct daemon *d, struct key dir, uint64_t *pos, char name[FILE_NAME_BYTES],
              struct key *out);
bool tree_is_dir(struct key k);
/* Files that get a fresh node for each LOOKUP. */
bool tree_is_volatile(struct key k);
/* Attributes of a static node, or of a volatile one without its size and time. -ESTALE when it is
 * gone. */
int tree_attr(struct daemon *d, struct key k, struct stat *out);
/* README and version. */
const char *tree_static_text(uint32_t fixed_index);
/* The loaded pin or snapshot of a key that is in range; -ESTALE, -EIO. */
int tree_bundle(struct daemon *d, struct key k, struct bundle **out);

/* ---- ops.c: the operations, and the events that answer what waits */

extern const struct fuse_lowlevel_ops daemon_ops;
/* Answers the reads of pins that can be answered now. */
void daemon_wake_pins(struct daemon *d);
/* The events file has grown. Never from within an operation. */
void daemon_notify_events(struct daemon *d);
void daemon_end_node(struct node *n);

/* ---- offline.c */

/* status and snapshots from the run directory alone. */
int daemon_load_offline(struct daemon *d, struct err *err);

#endif
