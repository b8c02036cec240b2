/* ops.c - the FUSE operations: each unpacks, makes one call, and replies once or parks. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/log.h"
#include "fsmount/daemon.h"

/* Of what never changes: longer than any run waits for it. Below the limit of the kernel's clock.
 */
static const double for_ever_seconds = 86400.0 * 365;

static struct daemon *daemon_of(fuse_req_t req) { return session_userdata(req); }

static bool key_is_control(struct key k) {
    return k.class == KEY_FIXED && k.index >= FIXED_CONTROL_FILE;
}

/* Of a volatile node of any session: what a dead one's was, if its id says so. */
static bool ino_is_control(fuse_ino_t ino) {
    return key_is_volatile(ino) && key_volatile_fixed(ino) >= FIXED_CONTROL_FILE &&
           key_volatile_fixed(ino) < FIXED_CONTROL_FILE + control_file_count();
}

static uint32_t ino_control_file(fuse_ino_t ino) {
    return key_volatile_fixed(ino) - FIXED_CONTROL_FILE;
}

static bool key_is_growing(struct key k) {
    return k.class == KEY_FIXED && k.index >= FIXED_STATUS_FILE && k.index < FIXED_CONTROL_FILE;
}

static void set_mtime(struct stat *st, uint64_t ns) {
    st->st_mtim = (struct timespec){.tv_sec = (time_t)(ns / 1000000000u),
                                    .tv_nsec = (long)(ns % 1000000000u)};
    st->st_atim = st->st_ctim = st->st_mtim;
}

/* ---- nodes */

void daemon_end_node(struct node *n) { live_end(n); }

/* Attributes of a volatile node; *timeout: how long they are true. */
static int volatile_attr(struct daemon *d, const struct node *n, struct stat *st, double *timeout) {
    int rc = tree_attr(d, n->key, st);
    if (rc != 0)
        return rc;
    st->st_size = (off_t)n->size_bytes;
    st->st_blocks = (st->st_size + 511) / 512;
    set_mtime(st, n->live != NULL ? live_time_ns(n) : n->mtime_ns);
    *timeout = n->live == NULL || n->ready ? for_ever_seconds : 0;
    return 0;
}

/* The content that a LOOKUP binds a node to; live/ has none yet. */
static struct text *volatile_text(struct daemon *d, struct key k) {
    if (key_is_control(k))
        return control_file_text(d->control, k.index - FIXED_CONTROL_FILE);
    if (k.class == KEY_FIXED)
        return status_file_text(d->status, k.index - FIXED_STATUS_FILE, d->world);
    return status_rank_text(d->world, k.object, k.index);
}

static int volatile_make(struct daemon *d, struct key k, struct node **out) {
    struct text *text = NULL;
    uint64_t size_bytes = 0;
    struct bundle_index i;
    if (k.class == KEY_LIVE) {
        bundle_index_unpack(k.index, &i);
        int rc = live_size(&d->live, i, &size_bytes);
        if (rc != 0)
            return rc;
    } else {
        text = volatile_text(d, k);
        if (text == NULL)
            return -EIO;
    }
    struct node *n = node_new(d->nodes, k, k.class == KEY_FIXED ? k.index : 0, text);
    if (n == NULL)
        return -ENOMEM;
    n->mtime_ns = k.class == KEY_FIXED && !key_is_control(k)
                      ? status_file_time_ns(d->status, k.index - FIXED_STATUS_FILE)
                      : d->start_ns;
    if (k.class == KEY_LIVE)
        live_bind(&d->live, n, size_bytes);
    *out = n;
    return 0;
}

static void lookup_volatile(struct daemon *d, fuse_req_t req, struct key k) {
    struct node *n;
    struct fuse_entry_param e = {0};
    int rc = volatile_make(d, k, &n);
    if (rc != 0) {
        fuse_reply_err(req, -rc);
        return;
    }
    rc = volatile_attr(d, n, &e.attr, &e.attr_timeout);
    e.ino = n->id;
    e.generation = 1;
    if (rc != 0)
        fuse_reply_err(req, -rc);
    if (rc != 0 || fuse_reply_entry(req, &e) != 0)
        node_forget(d->nodes, n, 1, daemon_end_node);
}

static double attr_timeout_of(struct key k) { return key_is_growing(k) ? 0 : for_ever_seconds; }

/* Names of pins and snapshots go when their object goes; all below them lives as long as they. */
static double entry_timeout_of(struct key k) {
    struct bundle_index i;
    bool object = (k.class == KEY_PIN || k.class == KEY_SNAPSHOT) &&
                  bundle_index_unpack(k.index, &i) && i.kind == BUNDLE_DIR;
    return object || k.class == KEY_RANK ? 0 : for_ever_seconds;
}

static struct bundle *bundle_of_key(struct daemon *d, struct key k) {
    return k.class == KEY_PIN || k.class == KEY_SNAPSHOT
               ? bundles_find(d->bundles, k.class, k.object)
               : NULL;
}

static void reply_static(struct daemon *d, fuse_req_t req, struct key k) {
    struct fuse_entry_param e = {.ino = key_pack(k),
                                 .generation = 1,
                                 .attr_timeout = attr_timeout_of(k),
                                 .entry_timeout = entry_timeout_of(k)};
    int rc = tree_attr(d, k, &e.attr);
    if (rc != 0) {
        fuse_reply_err(req, -rc);
        return;
    }
    if (k.class == KEY_LIVE)
        e.attr_timeout = 0; /* their mtime moves */
    struct bundle *b = bundle_of_key(d, k);
    if (fuse_reply_entry(req, &e) == 0 && b != NULL)
        bundle_lookup(b, 1);
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name) {
    struct daemon *d = daemon_of(req);
    struct key dir, k;
    if (!key_unpack(parent, &dir)) {
        fuse_reply_err(req, key_is_volatile(parent) ? ENOTDIR : ESTALE);
        return;
    }
    int rc = tree_lookup(d, dir, name, &k);
    if (rc != 0)
        fuse_reply_err(req, -rc);
    else if (tree_is_volatile(k))
        lookup_volatile(d, req, k);
    else
        reply_static(d, req, k);
}

static void forget_one(struct daemon *d, fuse_ino_t ino, uint64_t count) {
    struct key k;
    if (key_is_volatile(ino)) {
        struct node *n = nodes_find(d->nodes, ino);
        if (n != NULL)
            node_forget(d->nodes, n, count, daemon_end_node);
    } else if (key_unpack(ino, &k)) {
        struct bundle *b = bundle_of_key(d, k);
        if (b != NULL)
            bundle_forget(d->bundles, b, count);
    }
}

static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t count) {
    forget_one(daemon_of(req), ino, count);
    fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets) {
    for (size_t i = 0; i < count; i++)
        forget_one(daemon_of(req), forgets[i].ino, forgets[i].nlookup);
    fuse_reply_none(req);
}

/* ---- attributes */

/* An open control file outlives its daemon: what it shows is the value of now. */
static int stale_control_attr(struct daemon *d, fuse_ino_t ino, struct stat *st) {
    struct text *t = control_file_text(d->control, ino_control_file(ino));
    int rc = t != NULL ? tree_attr(d, key_fixed(key_volatile_fixed(ino)), st) : -ENOMEM;
    if (rc == 0)
        st->st_size = (off_t)t->len_bytes;
    text_put(t);
    return rc;
}

static int attr_of(struct daemon *d, fuse_ino_t ino, struct stat *st, double *timeout) {
    struct key k;
    *timeout = 0;
    if (!key_is_volatile(ino)) {
        if (!key_unpack(ino, &k))
            return -ESTALE;
        *timeout = k.class == KEY_LIVE ? 0 : attr_timeout_of(k);
        return tree_attr(d, k, st);
    }
    struct node *n = nodes_find(d->nodes, ino);
    if (n != NULL)
        return volatile_attr(d, n, st, timeout);
    return ino_is_control(ino) ? stale_control_attr(d, ino, st) : -EIO;
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
    (void)fi;
    struct stat st = {0};
    double timeout;
    int rc = attr_of(daemon_of(req), ino, &st, &timeout);
    if (rc != 0)
        fuse_reply_err(req, -rc);
    else
        fuse_reply_attr(req, &st, timeout);
}

/* The shell truncates before it writes, and touch sets times: both mean nothing here. */
static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
                       struct fuse_file_info *fi) {
    (void)attr;
    int harmless = FUSE_SET_ATTR_SIZE | FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME |
                   FUSE_SET_ATTR_ATIME_NOW | FUSE_SET_ATTR_MTIME_NOW | FUSE_SET_ATTR_CTIME;
    if (ino_is_control(ino) && (to_set & ~harmless) == 0)
        op_getattr(req, ino, fi);
    else
        fuse_reply_err(req, ino_is_control(ino) ? EPERM : EROFS);
}

/* ---- directories */

struct listing {
    fuse_req_t req;
    char *data;
    size_t used, cap;
};

/* False when it is full. */
static bool listing_add(struct listing *l, const char *name, uint64_t ino, mode_t mode,
                        uint64_t next) {
    struct stat st = {.st_ino = ino, .st_mode = mode};
    size_t need =
        fuse_add_direntry(l->req, l->data + l->used, l->cap - l->used, name, &st, (off_t)next);
    if (need > l->cap - l->used)
        return false;
    l->used += need;
    return true;
}

/* Places: 0 ".", 1 "..", then those of tree_next. */
static int listing_fill(struct daemon *d, struct listing *l, struct key dir, uint64_t at) {
    static const char *const dots[] = {".", ".."};
    char name[FILE_NAME_BYTES];
    struct key k;
    for (; at < 2; at++)
        if (!listing_add(l, dots[at], key_pack(dir), S_IFDIR, at + 1))
            return 0;
    uint64_t pos = at - 2;
    int rc;
    while ((rc = tree_next(d, dir, &pos, name, &k)) > 0)
        if (!listing_add(l, name, key_pack(k), tree_is_dir(k) ? S_IFDIR : S_IFREG, pos + 2))
            return 0;
    return rc;
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
                       struct fuse_file_info *fi) {
    (void)fi;
    struct daemon *d = daemon_of(req);
    struct key dir;
    struct listing l = {.req = req,
                        .data = (char *)d->gather.bounce,
                        .cap = size < GATHER_MAX_BYTES ? size : GATHER_MAX_BYTES};
    int rc = key_unpack(ino, &dir) && tree_is_dir(dir) ? listing_fill(d, &l, dir, (uint64_t)off)
                                                       : -ENOTDIR;
    if (rc < 0 && l.used == 0)
        fuse_reply_err(req, -rc);
    else
        fuse_reply_buf(req, l.data, l.used);
}

/* ---- open files */

static void open_volatile(struct daemon *d, fuse_req_t req, fuse_ino_t ino,
                          struct fuse_file_info *fi) {
    struct node *n = nodes_find(d->nodes, ino);
    if (ino_is_control(ino)) {
        fi->direct_io = 1; /* one write, one command, whatever its length */
        fuse_reply_open(req, fi);
    } else if (n == NULL) {
        fuse_reply_err(req, EIO);
    } else if (n->live == NULL) {
        fuse_reply_open(req, fi);
    } else {
        fi->direct_io = status_config(d->status)->direct_io;
        live_open(n, req, fi);
    }
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
    struct daemon *d = daemon_of(req);
    struct key k;
    struct bundle *b = NULL;
    bool writes = (fi->flags & O_ACCMODE) != O_RDONLY || (fi->flags & O_TRUNC) != 0;
    /* A close need not wait for us: a process that starts our successor while it has files of this
     * mount open would hang in exec, with the successor in it. */
    fi->noflush = 1;
    if (writes && !ino_is_control(ino)) {
        fuse_reply_err(req, EROFS);
        return;
    }
    if (key_is_volatile(ino)) {
        open_volatile(d, req, ino, fi);
        return;
    }
    int rc = key_unpack(ino, &k) ? 0 : -ESTALE;
    if (rc == 0 && k.class != KEY_FIXED)
        rc = tree_bundle(d, k, &b);
    if (rc != 0) {
        fuse_reply_err(req, -rc);
        return;
    }
    fi->direct_io =
        key_is_growing(k) || (k.class != KEY_FIXED && status_config(d->status)->direct_io);
    fi->keep_cache = !fi->direct_io;
    fi->fh = key_is_growing(k) ? (d->number & 0xffff) << 48 | ++d->next_fh : 0;
    if (b != NULL) {
        fi->fh = d->number; /* which daemon counted it */
        bundle_file_open(b);
    }
    if (fuse_reply_open(req, fi) != 0 && b != NULL)
        bundle_file_close(d->bundles, b);
}

static struct poller *daemon_poller(struct daemon *d, uint64_t fh, bool make) {
    struct poller *p = d->pollers;
    while (p != NULL && p->fh != fh)
        p = p->next;
    if (p != NULL || !make || (p = calloc(1, sizeof(*p))) == NULL)
        return p;
    *p = (struct poller){.next = d->pollers, .fh = fh};
    d->pollers = p;
    return p;
}

static void poller_free(struct daemon *d, struct poller *p) {
    struct poller **at = &d->pollers;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    if (p->handle != NULL)
        fuse_pollhandle_destroy(p->handle);
    free(p);
}

static void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
    struct daemon *d = daemon_of(req);
    struct node *n = key_is_volatile(ino) ? nodes_find(d->nodes, ino) : NULL;
    if (n != NULL && n->live != NULL)
        live_release(n);
    struct poller *p = fi->fh != 0 ? daemon_poller(d, fi->fh, false) : NULL;
    if (p != NULL)
        poller_free(d, p);
    struct key k;
    struct bundle *b = n == NULL && key_unpack(ino, &k) ? bundle_of_key(d, k) : NULL;
    if (b != NULL && fi->fh == d->number)
        bundle_file_close(d->bundles, b);
    fuse_reply_err(req, 0);
}

/* ---- reading */

static void reply_gather(fuse_req_t req, const struct gather *g, int rc) {
    if (rc == 0)
        rc = gather_end(g);
    if (rc != 0)
        fuse_reply_err(req, -rc);
    else if (g->want_bytes == 0)
        fuse_reply_buf(req, NULL, 0);
    else
        fuse_reply_iov(req, g->pieces, g->piece_count);
}

static void reply_text(fuse_req_t req, struct gather *g, const void *data, size_t len, size_t size,
                       off_t off) {
    gather_begin(g, (uint64_t)off, size, len);
    gather_add(g, 0, data, len);
    reply_gather(req, g, 0);
}

static void read_volatile(struct daemon *d, fuse_req_t req, fuse_ino_t ino, size_t size,
                          off_t off) {
    struct node *n = nodes_find(d->nodes, ino);
    if (n == NULL) {
        struct text *t =
            ino_is_control(ino) ? control_file_text(d->control, ino_control_file(ino)) : NULL;
        if (t == NULL)
            fuse_reply_err(req, EIO);
        else
            reply_text(req, &d->gather, t->data, t->len_bytes, size, off);
        text_put(t);
    } else if (n->text != NULL) {
        reply_text(req, &d->gather, n->text->data, n->text->len_bytes, size, off);
    } else {
        gather_begin(&d->gather, (uint64_t)off, size, n->size_bytes);
        int rc = live_read(n, &d->gather);
        reply_gather(req, &d->gather, rc);
    }
}

static void read_growing(struct daemon *d, fuse_req_t req, struct key k, size_t size, off_t off,
                         uint64_t fh) {
    size_t cap = size < GATHER_MAX_BYTES ? size : GATHER_MAX_BYTES;
    ssize_t n = status_file_read(d->status, k.index - FIXED_STATUS_FILE, (uint64_t)off,
                                 d->gather.bounce, cap);
    if (n < 0) {
        fuse_reply_err(req, (int)-n);
        return;
    }
    bool events = status_file_kind(k.index - FIXED_STATUS_FILE) == STATUS_EVENTS;
    struct poller *p = events && fh != 0 ? daemon_poller(d, fh, true) : NULL;
    if (p != NULL)
        p->seen_bytes = (uint64_t)off + (uint64_t)n;
    fuse_reply_buf(req, (char *)d->gather.bounce, (size_t)n);
}

static void read_bundle(struct daemon *d, fuse_req_t req, struct key k, size_t size, off_t off) {
    struct bundle *b;
    struct bundle_index i;
    int rc = tree_bundle(d, k, &b);
    if (rc != 0) {
        fuse_reply_err(req, -rc);
        return;
    }
    bundle_index_unpack(k.index, &i);
    gather_begin(&d->gather, (uint64_t)off, size, bundle_file_bytes(b, i));
    rc = bundle_read(b, i, &d->gather);
    if (rc != -EAGAIN) {
        reply_gather(req, &d->gather, rc);
        return;
    }
    struct park *p = park_add(bundle_readers(b), req, NULL, NULL);
    if (p != NULL) {
        p->ino = key_pack(k);
        p->offset_bytes = (uint64_t)off;
        p->size_bytes = size;
    }
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
                    struct fuse_file_info *fi) {
    struct daemon *d = daemon_of(req);
    struct key k;
    if (off < 0)
        fuse_reply_err(req, EINVAL);
    else if (key_is_volatile(ino))
        read_volatile(d, req, ino, size, off);
    else if (!key_unpack(ino, &k))
        fuse_reply_err(req, ESTALE);
    else if (key_is_growing(k))
        read_growing(d, req, k, size, off, fi->fh);
    else if (k.class == KEY_FIXED)
        reply_text(req, &d->gather, tree_static_text(k.index), strlen(tree_static_text(k.index)),
                   size, off);
    else
        read_bundle(d, req, k, size, off);
}

static void wake_pin(void *ctx, struct bundle *b) {
    struct daemon *d = ctx;
    struct park_list readers = *bundle_readers(b);
    *bundle_readers(b) = (struct park_list){NULL};
    if (readers.first != NULL)
        readers.first->link = &readers.first;
    struct park p;
    struct key k;
    while (park_pop(&readers, &p)) {
        key_unpack(p.ino, &k);
        read_bundle(d, p.req, k, p.size_bytes, (off_t)p.offset_bytes);
    }
}

void daemon_wake_pins(struct daemon *d) { bundles_wake(d->bundles, wake_pin, d); }

/* ---- commands */

static bool may_command(struct daemon *d, fuse_req_t req, const char *what) {
    uid_t uid = fuse_req_ctx(req)->uid;
    if (uid == d->uid || uid == 0)
        return true;
    char text[MSG_TEXT_BYTES];
    snprintf(text, sizeof(text), "%s: user %u may not command a run of user %u", what, uid, d->uid);
    status_error(d->status, text);
    return false;
}

static void op_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off,
                     struct fuse_file_info *fi) {
    (void)off;
    (void)fi;
    struct daemon *d = daemon_of(req);
    struct msg_command m;
    struct err err = {0};
    if (!ino_is_control(ino)) {
        fuse_reply_err(req, EROFS);
        return;
    }
    if (!may_command(d, req, control_file_name(ino_control_file(ino)))) {
        fuse_reply_err(req, EPERM);
        return;
    }
    int rc = control_parse(ino_control_file(ino), buf, size, status_config(d->status),
                           session_unique(req), &m, &err);
    if (rc != 0) {
        status_error(d->status, err.text);
        fuse_reply_err(req, -rc);
        return;
    }
    m.uid = fuse_req_ctx(req)->uid;
    m.pid = (uint32_t)fuse_req_ctx(req)->pid;
    control_submit(d->control, req, &m, size, NULL, NULL, ino);
}

static void submit_dir(struct daemon *d, fuse_req_t req, const char *command, const char *name,
                       void (*reply)(void *ctx, const struct park *p, const char *value)) {
    struct msg_command m = {.uid = fuse_req_ctx(req)->uid, .pid = (uint32_t)fuse_req_ctx(req)->pid};
    if (!may_command(d, req, command)) {
        fuse_reply_err(req, EPERM);
        return;
    }
    snprintf(m.key, sizeof(m.key), "u:%" PRIu64, session_unique(req));
    snprintf(m.name, sizeof(m.name), "%s", command);
    snprintf(m.value, sizeof(m.value), "%s", name);
    control_submit(d->control, req, &m, 0, reply, d, 0);
}

/* MSG_PIN came before the answer, on the same link. */
static void mkdir_done(void *ctx, const struct park *p, const char *value) {
    struct daemon *d = ctx;
    struct bundle *b = bundles_find_name(d->bundles, KEY_PIN, value);
    if (b == NULL) {
        log_error("pin %s was made but is not there", value);
        fuse_reply_err(p->req, EIO);
        return;
    }
    reply_static(d, p->req, key_bundle(KEY_PIN, bundle_id(b), BUNDLE_DIR, 0, 0));
}

static void rmdir_done(void *ctx, const struct park *p, const char *value) {
    (void)ctx;
    (void)value;
    fuse_reply_err(p->req, 0);
}

static void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode) {
    (void)mode;
    struct daemon *d = daemon_of(req);
    struct key dir;
    bool fixed = key_unpack(parent, &dir) && dir.class == KEY_FIXED;
    char text[MSG_TEXT_BYTES];
    if (fixed && dir.index == FIXED_SNAPSHOTS && !d->offline) {
        snprintf(text, sizeof(text),
                 "mkdir snapshots/%.100s: write the name to control/snapshot instead", name);
        status_error(d->status, text);
        fuse_reply_err(req, EPERM);
    } else if (!fixed || dir.index != FIXED_PINS || d->offline) {
        fuse_reply_err(req, EROFS);
    } else if (!parse_name_ok(name)) {
        snprintf(text, sizeof(text), "mkdir pins/%.100s: no name for a pin", name);
        status_error(d->status, text);
        fuse_reply_err(req, EINVAL);
    } else {
        submit_dir(d, req, "mkdir-pin", name, mkdir_done);
    }
}

static void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name) {
    struct daemon *d = daemon_of(req);
    struct key dir;
    bool fixed = key_unpack(parent, &dir) && dir.class == KEY_FIXED && !d->offline;
    if (fixed && (dir.index == FIXED_SNAPSHOTS || dir.index == FIXED_PINS)) {
        bool pin = dir.index == FIXED_PINS;
        if (bundles_find_name(d->bundles, pin ? KEY_PIN : KEY_SNAPSHOT, name) == NULL)
            fuse_reply_err(req, ENOENT);
        else
            submit_dir(d, req, pin ? "rmdir-pin" : "rmdir-snapshot", name, rmdir_done);
        return;
    }
    fuse_reply_err(req, EROFS);
}

/* ---- what writes and is not a command */

static void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev) {
    (void)parent, (void)name, (void)mode, (void)rdev;
    fuse_reply_err(req, EROFS);
}
static void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
                      struct fuse_file_info *fi) {
    (void)parent, (void)name, (void)mode, (void)fi;
    fuse_reply_err(req, EROFS);
}
static void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name) {
    (void)parent, (void)name;
    fuse_reply_err(req, EROFS);
}
static void op_symlink(fuse_req_t req, const char *link, fuse_ino_t parent, const char *name) {
    (void)link, (void)parent, (void)name;
    fuse_reply_err(req, EROFS);
}
static void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t newparent,
                      const char *newname, unsigned int flags) {
    (void)parent, (void)name, (void)newparent, (void)newname, (void)flags;
    fuse_reply_err(req, EROFS);
}
static void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t newparent, const char *newname) {
    (void)ino, (void)newparent, (void)newname;
    fuse_reply_err(req, EROFS);
}
static void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value,
                        size_t size, int flags) {
    (void)ino, (void)name, (void)value, (void)size, (void)flags;
    fuse_reply_err(req, EROFS);
}
static void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name) {
    (void)ino, (void)name;
    fuse_reply_err(req, EROFS);
}
static void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len,
                         struct fuse_file_info *fi) {
    (void)ino, (void)mode, (void)off, (void)len, (void)fi;
    fuse_reply_err(req, EROFS);
}

/* ---- versions */

/* 0, -ENODATA for a file without version, -EIO for one of a dead session. */
static int version_of(struct daemon *d, fuse_ino_t ino, struct take_version *out) {
    struct key k;
    struct bundle *b;
    *out = (struct take_version){0};
    if (key_is_volatile(ino)) {
        struct node *n = nodes_find(d->nodes, ino);
        if (n == NULL)
            return ino_is_control(ino) ? -ENODATA : -EIO;
        if (n->live != NULL)
            live_version(n, out);
    } else if (key_unpack(ino, &k) && (k.class == KEY_PIN || k.class == KEY_SNAPSHOT)) {
        int rc = tree_bundle(d, k, &b);
        if (rc != 0)
            return rc;
        *out = bundle_version(b);
    }
    return out->epoch != 0 ? 0 : -ENODATA;
}

static void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size) {
    struct take_version v;
    char value[64];
    bool version = strcmp(name, "user.version") == 0;
    int rc =
        version || strcmp(name, "user.step") == 0 ? version_of(daemon_of(req), ino, &v) : -ENODATA;
    if (rc != 0) {
        fuse_reply_err(req, -rc);
        return;
    }
    if (version)
        snprintf(value, sizeof(value), "%" PRIu64 ".%" PRIu64, v.epoch, v.gen);
    else
        snprintf(value, sizeof(value), "%" PRIu64, v.step);
    if (size == 0)
        fuse_reply_xattr(req, strlen(value));
    else if (size < strlen(value))
        fuse_reply_err(req, ERANGE);
    else
        fuse_reply_buf(req, value, strlen(value));
}

static void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size) {
    static const char names[] = "user.version\0user.step";
    struct take_version v;
    size_t len = version_of(daemon_of(req), ino, &v) == 0 ? sizeof(names) : 0;
    if (size == 0)
        fuse_reply_xattr(req, len);
    else if (size < len)
        fuse_reply_err(req, ERANGE);
    else
        fuse_reply_buf(req, names, len);
}

/* ---- the rest */

static void op_statfs(fuse_req_t req, fuse_ino_t ino) {
    (void)ino;
    struct statvfs st;
    if (statvfs(daemon_of(req)->run_dir, &st) != 0) {
        fuse_reply_err(req, errno);
        return;
    }
    st.f_namemax = FILE_NAME_BYTES - 1;
    fuse_reply_statfs(req, &st);
}

/* ENOSYS for one file would end poll for all. */
static void op_poll(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi,
                    struct fuse_pollhandle *ph) {
    struct daemon *d = daemon_of(req);
    struct key k;
    bool events = !key_is_volatile(ino) && key_unpack(ino, &k) && key_is_growing(k) &&
                  status_file_kind(k.index - FIXED_STATUS_FILE) == STATUS_EVENTS;
    struct poller *p = events && fi->fh != 0 ? daemon_poller(d, fi->fh, true) : NULL;
    if (p == NULL) {
        if (ph != NULL)
            fuse_pollhandle_destroy(ph);
        fuse_reply_poll(req, POLLIN | POLLOUT | POLLRDNORM | POLLWRNORM);
        return;
    }
    if (ph != NULL && p->handle != NULL)
        fuse_pollhandle_destroy(p->handle);
    if (ph != NULL)
        p->handle = ph;
    bool grown = status_file_bytes(d->status, k.index - FIXED_STATUS_FILE) > p->seen_bytes;
    fuse_reply_poll(req, grown ? POLLIN | POLLRDNORM : 0);
}

void daemon_notify_events(struct daemon *d) {
    for (struct poller *p = d->pollers; p != NULL; p = p->next) {
        if (p->handle == NULL)
            continue;
        struct fuse_pollhandle *handle = p->handle;
        p->handle = NULL;
        fuse_lowlevel_notify_poll(handle);
        fuse_pollhandle_destroy(handle);
    }
}

static void op_init(void *userdata, struct fuse_conn_info *conn) {
    (void)userdata;
    conn->max_read = SESSION_MAX_READ_BYTES;
    conn->max_readahead = SESSION_MAX_READ_BYTES;
    conn->max_write = SESSION_MAX_READ_BYTES;
    /* Replies come from mapped memory; through a pipe they would be slower by far. */
    conn->want &= ~(unsigned)(FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE |
                              FUSE_CAP_WRITEBACK_CACHE);
}

const struct fuse_lowlevel_ops daemon_ops = {
    .init = op_init,
    .lookup = op_lookup,
    .forget = op_forget,
    .forget_multi = op_forget_multi,
    .getattr = op_getattr,
    .setattr = op_setattr,
    .mknod = op_mknod,
    .mkdir = op_mkdir,
    .unlink = op_unlink,
    .rmdir = op_rmdir,
    .symlink = op_symlink,
    .rename = op_rename,
    .link = op_link,
    .open = op_open,
    .read = op_read,
    .write = op_write,
    .release = op_release,
    .readdir = op_readdir,
    .statfs = op_statfs,
    .setxattr = op_setxattr,
    .getxattr = op_getxattr,
    .listxattr = op_listxattr,
    .removexattr = op_removexattr,
    .create = op_create,
    .poll = op_poll,
    .fallocate = op_fallocate,
};
