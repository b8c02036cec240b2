/* io_double_crash.c - replays a record up to a point, and makes what a crash there could have left.
 */
#include "config.h"

#include "io_double_record.h"

#include "base/buf.h"
#include "base/file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { CRASH_MAX_PENDING = 10, CRASH_MAX_STATES = 20000, CRASH_DATA_VARIANTS = 6 };

/* What one node may lose. */
struct crash_node {
    struct double_dir base;              /* a directory as last synced */
    uint32_t pending[CRASH_MAX_PENDING]; /* its changes since: indices of ops */
    uint32_t pending_count;
    uint16_t masks[1 << CRASH_MAX_PENDING]; /* the choices of a directory: bits of pending */
    size_t written, synced,
        size; /* a file: bytes written, of these synced, size with what was reserved */
    size_t synced_size;
    bool dirty;
    uint32_t choices, choice; /* how many variants, and which one now */
};

struct crash {
    const struct io_double *d;
    uint32_t point;
    struct crash_node nodes[DOUBLE_MAX_NODES];
    struct io_double_claim claims[DOUBLE_MAX_ENTRIES];
    uint32_t claim_count;
};

struct io_double_seen {
    uint64_t *hashes; /* owned, open addressing, 0: free */
    size_t count, cap;
};

/* ---- replay */

static void crash_claim(struct crash *c, const struct double_op *op) {
    uint32_t i = 0;
    while (i < c->claim_count && strcmp(c->claims[i].name, op->name) != 0)
        i++;
    if (i == c->claim_count) {
        memcpy(c->claims[i].name, op->name, sizeof(op->name));
        c->claim_count++;
    }
    c->claims[i].mark = op->mark;
}

static void crash_sync(struct crash *c, struct crash_node *n, bool is_dir) {
    if (is_dir) {
        for (uint32_t i = 0; i < n->pending_count; i++)
            double_dir_apply(&n->base, &c->d->ops[n->pending[i]]);
        n->pending_count = 0;
    } else {
        n->synced = n->written;
        n->synced_size = n->size;
        n->dirty = false;
    }
}

static bool crash_share_name(const struct double_op *a, const struct double_op *b) {
    bool rename_a = a->kind == DO_RENAME, rename_b = b->kind == DO_RENAME;
    return strcmp(a->name, b->name) == 0 || (rename_a && strcmp(a->to, b->name) == 0) ||
           (rename_b && strcmp(a->name, b->to) == 0) ||
           (rename_a && rename_b && strcmp(a->to, b->to) == 0);
}

/* No change without the earlier ones of its names. */
static bool crash_is_closed(const struct crash *c, const struct crash_node *n, uint32_t mask) {
    for (uint32_t i = 0; i < n->pending_count; i++)
        for (uint32_t k = i + 1; k < n->pending_count; k++)
            if ((mask >> i & 1) == 0 && (mask >> k & 1) != 0 &&
                crash_share_name(&c->d->ops[n->pending[i]], &c->d->ops[n->pending[k]]))
                return false;
    return true;
}

/* The sets of changes of a directory that may persist. */
static void crash_list_masks(const struct crash *c, struct crash_node *n) {
    n->choices = 0;
    for (uint32_t mask = 0; mask < 1u << n->pending_count; mask++)
        if (crash_is_closed(c, n, mask))
            n->masks[n->choices++] = (uint16_t)mask;
}

static void crash_replay(struct crash *c) {
    for (uint32_t i = 0; i < c->point; i++) {
        const struct double_op *op = &c->d->ops[i];
        struct crash_node *n = &c->nodes[op->kind == DO_MARK ? DOUBLE_ROOT : op->node];
        switch (op->kind) {
        case DO_MARK:
            crash_claim(c, op);
            break;
        case DO_WRITE:
            n->written += op->bytes;
            n->size = n->written > n->size ? n->written : n->size;
            n->dirty = true;
            break;
        case DO_SYNC:
            crash_sync(c, n, c->d->nodes[op->node].is_dir);
            break;
        default:
            if (op->kind == DO_CREATE) {
                c->nodes[op->child].size = op->bytes;
                c->nodes[op->child].dirty = true;
            }
            if (n->pending_count == CRASH_MAX_PENDING) {
                fprintf(stderr, "io_double: too many changes of a directory that are not synced\n");
                exit(99);
            }
            n->pending[n->pending_count++] = i;
        }
    }
    for (int i = 0; i < c->d->node_count; i++) {
        struct crash_node *n = &c->nodes[i];
        if (c->d->nodes[i].is_dir)
            crash_list_masks(c, n);
        else
            n->choices = n->dirty ? CRASH_DATA_VARIANTS : 1;
    }
}

/* ---- one state */

static void crash_dir(const struct crash *c, int node, struct double_dir *out) {
    const struct crash_node *n = &c->nodes[node];
    *out = n->base;
    for (uint32_t i = 0; i < n->pending_count; i++)
        if ((n->masks[n->choice] >> i & 1) != 0)
            double_dir_apply(out, &c->d->ops[n->pending[i]]);
}

/* The bytes of a file in the chosen variant. */
static void crash_data(const struct crash *c, int node, struct enc *out) {
    const struct crash_node *n = &c->nodes[node];
    struct enc all = {0};
    for (uint32_t i = 0; i < c->point; i++)
        if (c->d->ops[i].kind == DO_WRITE && c->d->ops[i].node == node)
            enc_bytes(&all, c->d->ops[i].data, c->d->ops[i].bytes);
    while (all.len_bytes < n->size)
        enc_u8(&all, 0);
    size_t half = n->synced + (n->written - n->synced) / 2, from = n->size, to = n->size;
    size_t len = n->size; /* [from, to) is zeros */
    if (n->choices > 1) {
        switch (n->choice) {
        case 0: /* lost */
            len = n->synced_size;
            break;
        case 1: /* the blocks are there, their data is not */
            from = n->synced;
            break;
        case 2: /* cut off */
            len = half;
            break;
        case 3: /* the first half arrived */
            from = half;
            break;
        case 4: /* the second half arrived */
            from = n->synced;
            to = half;
            break;
        default: /* all of it */
            break;
        }
    }
    if (from < to && to <= all.len_bytes)
        memset(all.data + from, 0, to - from);
    enc_bytes(out, all.data, len < all.len_bytes ? len : all.len_bytes);
    enc_free(&all);
}

static int crash_by_name(const void *a, const void *b) {
    return strcmp(((const struct double_entry *)a)->name, ((const struct double_entry *)b)->name);
}

/* Appends what is reachable from a node, so that equal texts are equal trees. */
static void crash_print(const struct crash *c, int node, struct enc *out) {
    struct double_dir dir;
    struct enc data = {0};
    if (!c->d->nodes[node].is_dir) {
        crash_data(c, node, &data);
        enc_blob(out, data.data, data.len_bytes);
        enc_free(&data);
        return;
    }
    crash_dir(c, node, &dir);
    qsort(dir.entries, dir.count, sizeof(dir.entries[0]), crash_by_name);
    enc_u32(out, dir.count);
    for (uint32_t i = 0; i < dir.count; i++) {
        enc_str(out, dir.entries[i].name);
        enc_u8(out, c->d->nodes[dir.entries[i].node].is_dir);
        crash_print(c, dir.entries[i].node, out);
    }
}

static void crash_make(const struct crash *c, int node, int parent, const char *name) {
    if (!c->d->nodes[node].is_dir) {
        struct enc data = {0};
        crash_data(c, node, &data);
        int fd = openat(parent, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd < 0 || file_write_all(fd, data.data, data.len_bytes) != 0) {
            perror(name);
            exit(99);
        }
        close(fd);
        enc_free(&data);
        return;
    }
    struct double_dir dir;
    crash_dir(c, node, &dir);
    int fd = mkdirat(parent, name, 0700) == 0 ? openat(parent, name, O_RDONLY | O_DIRECTORY) : -1;
    if (fd < 0) {
        perror(name);
        exit(99);
    }
    for (uint32_t i = 0; i < dir.count; i++)
        crash_make(c, dir.entries[i].node, fd, dir.entries[i].name);
    close(fd);
}

/* ---- all states */

struct io_double_seen *io_double_seen_new(void) {
    struct io_double_seen *s = calloc(1, sizeof(*s));
    if (s == NULL)
        exit(99);
    s->cap = 1 << 20;
    s->hashes = calloc(s->cap, sizeof(*s->hashes));
    if (s->hashes == NULL)
        exit(99);
    return s;
}

void io_double_seen_free(struct io_double_seen *s) {
    free(s->hashes);
    free(s);
}

/* True the first time. */
static bool crash_is_new(struct io_double_seen *s, uint64_t hash) {
    hash |= 1;
    size_t at = hash % s->cap;
    for (; s->hashes[at] != 0; at = (at + 1) % s->cap)
        if (s->hashes[at] == hash)
            return false;
    s->hashes[at] = hash;
    if (++s->count > s->cap / 2) {
        fprintf(stderr, "io_double: too many states\n");
        exit(99);
    }
    return true;
}

static bool crash_check_state(struct crash *c, int scratch, const char *path,
                              struct io_double_seen *seen, io_double_check *check, void *ctx,
                              uint64_t *checked) {
    struct enc text = {0};
    crash_print(c, DOUBLE_ROOT, &text);
    for (uint32_t i = 0; i < c->claim_count; i++) {
        enc_str(&text, c->claims[i].name);
        enc_u8(&text, (uint8_t)c->claims[i].mark);
    }
    bool is_new = crash_is_new(seen, XXH3_64bits(text.data, text.len_bytes));
    enc_free(&text);
    if (!is_new)
        return true;
    crash_make(c, DOUBLE_ROOT, scratch, "state");
    (*checked)++;
    bool good = check(ctx, path, c->claims, c->claim_count);
    file_remove_tree(scratch, "state", NULL);
    return good;
}

/* Goes through the choices of the nodes from walk->nodes[at] on, each directory before what it
 * holds in its chosen variant: a node that the choices so far have lost has none. */
struct crash_walk {
    struct crash *crash;
    int nodes[DOUBLE_MAX_NODES];
    uint32_t count, states;
    int scratch;
    const char *path;
    struct io_double_seen *seen;
    io_double_check *check;
    void *ctx;
    uint64_t *checked;
};

static bool crash_visit(struct crash_walk *w, uint32_t at) {
    if (at == w->count) {
        if (++w->states > CRASH_MAX_STATES) {
            fprintf(stderr, "io_double: too many states at point %u\n", w->crash->point);
            exit(99);
        }
        return crash_check_state(w->crash, w->scratch, w->path, w->seen, w->check, w->ctx,
                                 w->checked);
    }
    struct crash_node *n = &w->crash->nodes[w->nodes[at]];
    uint32_t count = w->count;
    bool good = true;
    for (n->choice = 0; good && n->choice < n->choices; n->choice++) {
        struct double_dir dir = {.count = 0};
        if (w->crash->d->nodes[w->nodes[at]].is_dir)
            crash_dir(w->crash, w->nodes[at], &dir);
        for (uint32_t i = 0; i < dir.count; i++)
            w->nodes[w->count++] = dir.entries[i].node;
        good = crash_visit(w, at + 1);
        w->count = count;
    }
    return good;
}

uint64_t io_double_crash(const struct io_double *d, uint32_t first, const char *scratch,
                         struct io_double_seen *seen, io_double_check *check, void *ctx,
                         uint32_t *bad) {
    char path[4200];
    uint64_t checked = 0;
    struct crash *c = malloc(sizeof(*c));
    int fd = open(scratch, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (c == NULL || fd < 0)
        exit(99);
    snprintf(path, sizeof(path), "%s/state", scratch);
    *bad = UINT32_MAX;
    for (uint32_t point = first; *bad == UINT32_MAX && point <= d->op_count; point++) {
        struct crash_walk w = {.crash = c,
                               .nodes = {DOUBLE_ROOT},
                               .count = 1,
                               .scratch = fd,
                               .path = path,
                               .seen = seen,
                               .check = check,
                               .ctx = ctx,
                               .checked = &checked};
        memset(c, 0, sizeof(*c));
        c->d = d;
        c->point = point;
        crash_replay(c);
        if (!crash_visit(&w, 0))
            *bad = point;
    }
    close(fd);
    free(c);
    return checked;
}
