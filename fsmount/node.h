/* node.h - volatile nodes: one for each LOOKUP of a file that changes, bound to one version, gone
 * with FORGET. */
#ifndef GFS_FSMOUNT_NODE_H
#define GFS_FSMOUNT_NODE_H

#include "fsmount/key.h"
#include "fsmount/park.h"
#include "fsmount/text.h"
#include "fsmount/wide.h"

struct nodes;

struct node {
    struct node *next; /* in its bucket */
    uint64_t id;
    struct key key; /* what it is; its pack is the st_ino */
    uint64_t lookups, size_bytes, mtime_ns;
    uint32_t opens;
    struct text *text; /* all but live/: the content */
    /* live/: bound from the first open to the last release. */
    struct live *live;
    struct model *model; /* as it was at LOOKUP, counted */
    struct take_user take;
    struct wide_user wide;
    struct park_list opening;
    bool ready;
};

/* 0 or -ENOMEM. end is called for each node that is left. */
int nodes_open(uint64_t session, struct nodes **out);
void nodes_close(struct nodes *n, void (*end)(struct node *node));

/* A fresh node with one lookup; fixed_index: what a successor may know of it (0: nothing). Takes
 * over text. NULL: no memory. */
struct node *node_new(struct nodes *n, struct key key, uint32_t fixed_index, struct text *text);
/* NULL: there is none. */
struct node *nodes_find(const struct nodes *n, uint64_t id);
/* end is called before it is freed. */
void node_forget(struct nodes *n, struct node *node, uint64_t count,
                 void (*end)(struct node *node));

#endif
