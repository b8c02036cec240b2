/* live.c - one node, one version: bound at the first open, let go at the last release. */
#include "config.h"

#include "fsmount/live.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>

#include "tensor/npy.h"

static struct bundle_index node_index(const struct node *n) {
    struct bundle_index i = {0};
    bundle_index_unpack(n->key.index, &i);
    return i;
}

int live_size(const struct live *l, struct bundle_index i, uint64_t *size_bytes) {
    struct model *m = world_model(l->world);
    if (m == NULL)
        return -ENOENT;
    if (i.kind == BUNDLE_WEIGHTS) {
        const struct safetensors_plan *plan = model_weights(m);
        if (plan == NULL)
            return -ENOENT;
        *size_bytes = plan->offset_bytes[plan->tensor_count];
        return 0;
    }
    if (i.number >= model_layout(m)->tensor_count)
        return -ENOENT;
    *size_bytes = model_tensor_bytes(m, i.number) + (i.kind == BUNDLE_NPY ? NPY_HEADER_BYTES : 0);
    return 0;
}

/* ---- answering */

static void live_leave(struct node *n) {
    takes_leave(n->live->takes, &n->take);
    wides_leave(n->live->wides, &n->wide);
    n->ready = false;
}

/* Nobody waits and nobody has it open: what was asked for is let go. */
static void live_left(void *owner) {
    struct node *n = owner;
    if (n->opening.first == NULL && n->opens == 0)
        live_leave(n);
}

static void live_answer_one(struct node *n, fuse_req_t req, const struct fuse_file_info *fi) {
    n->opens++;
    if (fuse_reply_open(req, fi) != 0)
        n->opens--; /* the caller is gone: no RELEASE will follow */
}

static void live_done(struct node *n, int code) {
    if (code != 0) {
        park_fail(&n->opening, code);
        return;
    }
    n->ready = true;
    struct park p;
    while (park_pop(&n->opening, &p))
        live_answer_one(n, p.req, &p.fi);
    live_left(n);
}

static void live_take_done(struct take_user *u, int code) {
    live_done((struct node *)((char *)u - offsetof(struct node, take)), code);
}

static void live_wide_done(struct wide_user *u, int code) {
    live_done((struct node *)((char *)u - offsetof(struct node, wide)), code);
}

void live_bind(struct live *l, struct node *n, uint64_t size_bytes) {
    n->live = l;
    n->model = model_get(world_model(l->world));
    n->size_bytes = size_bytes;
}

static int live_join(struct node *n, bool *ready) {
    struct bundle_index i = node_index(n);
    uint64_t size;
    /* A world with another layout may have come since the LOOKUP. */
    if (live_size(n->live, i, &size) != 0 || size != n->size_bytes)
        return -EIO;
    if (i.kind == BUNDLE_WEIGHTS) {
        n->wide.done = live_wide_done;
        return wides_join(n->live->wides, &n->wide, ready);
    }
    n->take.done = live_take_done;
    return takes_join(n->live->takes, (enum array)i.array, i.number, &n->take, ready);
}

void live_open(struct node *n, fuse_req_t req, const struct fuse_file_info *fi) {
    uint32_t state = status_get(n->live->status)->state;
    bool waits = n->take.take != NULL || n->wide.wide != NULL;
    if (!n->ready && !waits) {
        bool over =
            !world_is_complete(n->live->world) && (state == RUN_FAILED || state == RUN_OFFLINE);
        int rc = over ? -EIO : live_join(n, &n->ready);
        if (rc != 0) {
            n->ready = false;
            fuse_reply_err(req, -rc);
            return;
        }
    }
    if (n->ready) {
        live_answer_one(n, req, fi);
        live_left(n);
        return;
    }
    struct park *p = park_add(&n->opening, req, live_left, n);
    if (p != NULL)
        p->fi = *fi;
    else
        live_left(n);
}

void live_release(struct node *n) {
    if (n->opens > 0)
        n->opens--;
    live_left(n);
}

void live_end(struct node *n) {
    if (n->live == NULL)
        return;
    park_fail(&n->opening, EIO);
    live_leave(n);
    model_put(n->model);
}

/* ---- what it shows */

bool live_version(const struct node *n, struct take_version *out) {
    if (n->ready) {
        *out = n->wide.wide != NULL ? wide_version(n->wide.wide) : take_version(n->take.take);
        return true;
    }
    const struct msg_status *now = status_get(n->live->status);
    *out = (struct take_version){.epoch = now->epoch, .gen = now->gen, .step = now->step};
    if (node_index(n).array == ARRAY_GRADS && isnan(now->loss))
        out->epoch = 0; /* no step was made: there is no gradient */
    return false;
}

uint64_t live_time_ns(const struct node *n) {
    struct take_version v;
    const struct msg_status *now = status_get(n->live->status);
    if (live_version(n, &v))
        return status_time_ns(n->live->status, v.epoch, v.gen);
    return now->epoch != 0 ? status_time_ns(n->live->status, now->epoch, now->gen) : n->mtime_ns;
}

int live_read(const struct node *n, struct gather *g) {
    struct bundle_index i = node_index(n);
    uint64_t header_bytes = 0;
    if (!n->ready)
        return -EIO;
    if (i.kind == BUNDLE_WEIGHTS)
        return wide_gather(n->wide.wide, g);
    if (i.kind == BUNDLE_NPY) {
        int rc = npy_header(&model_layout(n->model)->tensors[i.number].spec, g->small);
        if (rc != 0)
            return rc;
        header_bytes = NPY_HEADER_BYTES;
        gather_add(g, 0, g->small, header_bytes);
    }
    take_gather(n->take.take, header_bytes, g);
    return 0;
}
