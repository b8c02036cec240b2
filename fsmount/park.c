/* park.c - lists of waiting requests. */
#include "config.h"

#include "fsmount/park.h"

#include <errno.h>
#include <stdlib.h>

static void park_unlink(struct park *p) {
    *p->link = p->next;
    if (p->next != NULL)
        p->next->link = p->link;
}

/* libfuse calls this with the request held: replying here is safe. */
static void park_interrupted(fuse_req_t req, void *data) {
    struct park *p = data;
    void (*left)(void *) = p->left;
    void *owner = p->owner;
    park_unlink(p);
    free(p);
    fuse_reply_err(req, EINTR);
    if (left != NULL)
        left(owner);
}

struct park *park_add(struct park_list *list, fuse_req_t req, void (*left)(void *owner),
                      void *owner) {
    /* Asked first: libfuse would call the interrupt function at once, while it holds the request's
     * lock. */
    if (fuse_req_interrupted(req)) {
        fuse_reply_err(req, EINTR);
        return NULL;
    }
    struct park *p = calloc(1, sizeof(*p));
    if (p == NULL) {
        fuse_reply_err(req, ENOMEM);
        return NULL;
    }
    p->req = req;
    p->left = left;
    p->owner = owner;
    p->next = list->first;
    p->link = &list->first;
    if (p->next != NULL)
        p->next->link = &p->next;
    list->first = p;
    fuse_req_interrupt_func(req, park_interrupted, p);
    return p;
}

int park_pop(struct park_list *list, struct park *out) {
    struct park *p = list->first;
    if (p == NULL)
        return 0;
    list->first = p->next;
    if (p->next != NULL)
        p->next->link = &list->first;
    fuse_req_interrupt_func(p->req, NULL, NULL);
    *out = *p;
    free(p);
    return 1;
}

void park_fail(struct park_list *list, int code) {
    struct park p;
    while (park_pop(list, &p))
        fuse_reply_err(p.req, code);
}
