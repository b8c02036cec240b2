/* park.h - requests that wait for something. Each is answered once: with the result, by a signal
 * (EINTR), or at the end. */
#ifndef GFS_FSMOUNT_PARK_H
#define GFS_FSMOUNT_PARK_H

#define FUSE_USE_VERSION 312
#include <fuse_lowlevel.h>
#include <stddef.h>
#include <stdint.h>

struct park {
    struct park *next, **link;
    fuse_req_t req;
    void (*left)(void *owner); /* after a signal took it away; may be NULL */
    void *owner;
    uint64_t ino, offset_bytes;
    size_t size_bytes;
    struct fuse_file_info fi;
};

struct park_list {
    struct park *first;
};

/* Puts the request at the front of the list. NULL: it was answered at once (interrupted before, or
 * no memory). */
struct park *park_add(struct park_list *list, fuse_req_t req, void (*left)(void *owner),
                      void *owner);
/* Takes one out, to be answered by the caller; frees it. NULL when the list is empty. The copy in
 * *out holds the request. */
int park_pop(struct park_list *list, struct park *out);
/* Answers all with an error. */
void park_fail(struct park_list *list, int code);

#endif
