/* tree.h - the directory snapshots/ and what lies in it: opening, listing, removing; no link is
 * ever followed below RUN_DIR. */
#ifndef GFS_STORE_TREE_H
#define GFS_STORE_TREE_H

#include "base/buf.h"
#include "base/err.h"
#include "store/io.h"

#define TREE_TMP_PREFIX ".tmp-"
#define TREE_DEL_PREFIX ".del-"

/* Opens RUN_DIR/snapshots; -ENOENT when there is none. */
int tree_open_snapshots(const struct store_io *io, const char *run_dir, int *fd, struct err *err);
/* The same, but makes it where it is missing, and makes its entry durable. */
int tree_make_snapshots(const struct store_io *io, const char *run_dir, int *fd, struct err *err);

/* Appends the names in a directory (not "." and ".."), each with its NUL. */
int tree_names(int dirfd, struct enc *out, struct err *err);

/* Removes a file or a directory tree; missing is success. */
int tree_remove(const struct store_io *io, int dirfd, const char *name, struct err *err);

#endif
