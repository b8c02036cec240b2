/* world.c - one peer a rank link; the current epoch is what MSG_WORLD said last. */
#include "config.h"

#include "fsmount/world.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "fsmount/clock.h"

enum { WORLD_OUTBOX_BYTES = 16 << 20 };

struct peer {
    struct peer *next;
    uint64_t epoch;
    uint32_t rank;
    struct link *link;
    uint64_t alive_ns;
    bool dead, replaced;
    struct shared *segments; /* those that came on this link */
};

struct world_row {
    struct msg_rank_table table;
    struct msg_rank_device device; /* memory is a view of the next */
    struct enc memory;
    uint64_t alive_ns;
};

struct world {
    uint64_t session, epoch;
    uint32_t world_size; /* 0: no world */
    bool complete;
    struct model *model;
    struct peer *peers;
    uint32_t row_count;
    struct world_row *rows; /* [row_count] */
    const struct world_ops *ops;
    void *ctx;
};

struct shared *shared_get(struct shared *s) {
    s->refs++;
    return s;
}

void shared_put(struct shared *s) {
    if (s == NULL || --s->refs != 0)
        return;
    segment_close(&s->segment);
    free(s);
}

/* The mapping is enough: with many takes the descriptors would run out first. Takes over fd. */
static struct shared *shared_adopt(uint64_t id, int fd, size_t min_bytes) {
    struct shared *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        close(fd);
        return NULL;
    }
    if (segment_adopt(fd, min_bytes, false, &s->segment) != 0) {
        free(s);
        return NULL;
    }
    close(s->segment.fd);
    s->segment.fd = -1;
    s->refs = 1;
    s->id = id;
    return s;
}

int world_open(uint64_t session, const struct world_ops *ops, void *ctx, struct world **out) {
    struct world *w = calloc(1, sizeof(*w));
    if (w == NULL)
        return -ENOMEM;
    w->session = session;
    w->ops = ops;
    w->ctx = ctx;
    *out = w;
    return 0;
}

static void peer_free(struct peer *p) {
    while (p->segments != NULL) {
        struct shared *s = p->segments;
        p->segments = s->next;
        shared_put(s);
    }
    link_close(p->link);
    free(p);
}

void world_close(struct world *w) {
    if (w == NULL)
        return;
    while (w->peers != NULL) {
        struct peer *p = w->peers;
        w->peers = p->next;
        peer_free(p);
    }
    model_put(w->model);
    for (uint32_t r = 0; r < w->row_count; r++)
        enc_free(&w->rows[r].memory);
    free(w->rows);
    free(w);
}

static struct peer *world_peer(const struct world *w, uint64_t epoch, uint32_t rank) {
    for (struct peer *p = w->peers; p != NULL; p = p->next)
        if (p->epoch == epoch && p->rank == rank && !p->dead)
            return p;
    return NULL;
}

static void world_check_complete(struct world *w) {
    bool complete = w->world_size != 0;
    for (uint32_t r = 0; complete && r < w->world_size; r++)
        complete = world_peer(w, w->epoch, r) != NULL;
    bool began = complete && !w->complete;
    w->complete = complete;
    if (began)
        w->ops->complete(w->ctx);
}

static int world_grow_rows(struct world *w, uint32_t count) {
    if (count <= w->row_count)
        return 0;
    if (count > LAYOUT_MAX_RANKS)
        return -EPROTO;
    struct world_row *rows = realloc(w->rows, count * sizeof(*rows));
    if (rows == NULL)
        return -ENOMEM;
    memset(rows + w->row_count, 0, (count - w->row_count) * sizeof(*rows));
    for (uint32_t r = w->row_count; r < count; r++) {
        rows[r].table.rank = r;
        memcpy(rows[r].table.state, "unknown", sizeof("unknown"));
    }
    w->rows = rows;
    w->row_count = count;
    return 0;
}

int world_set(struct world *w, const struct msg_world *m, struct err *err) {
    if (m->world_size == 0) {
        w->world_size = 0;
        w->complete = false;
    } else {
        struct model *model;
        int rc = model_decode(&m->layout, &m->model_config, w->model, &model, err);
        if (rc != 0)
            return rc;
        if (model_layout(model)->world_size != m->world_size) {
            model_put(model);
            return err_set(err, EPROTO, "a layout for another number of ranks than the world's %u",
                           m->world_size);
        }
        model_put(w->model);
        w->model = model;
        w->complete = w->complete && m->epoch == w->epoch && m->world_size == w->world_size;
        w->world_size = m->world_size;
        w->row_count = w->row_count > m->world_size ? m->world_size : w->row_count;
        rc = world_grow_rows(w, m->world_size);
        if (rc != 0)
            return err_set(err, -rc, "no room for %u ranks", m->world_size);
    }
    w->epoch = m->epoch;
    for (struct peer *p = w->peers; p != NULL; p = p->next)
        if (p->epoch < w->epoch || (p->epoch == w->epoch && p->rank >= w->world_size))
            p->dead = true;
    world_check_complete(w);
    return 0;
}

int world_add_link(struct world *w, const struct msg_rank_link *m, int fd) {
    if (m->rank >= LAYOUT_MAX_RANKS || m->epoch < w->epoch) {
        close(fd);
        return m->rank >= LAYOUT_MAX_RANKS ? -EPROTO : 0;
    }
    struct peer *older = world_peer(w, m->epoch, m->rank);
    struct link *link = link_open(fd, WORLD_OUTBOX_BYTES);
    struct peer *p = calloc(1, sizeof(*p));
    if (link == NULL || p == NULL) {
        link_close(link);
        free(p);
        return -ENOMEM;
    }
    *p = (struct peer){.next = w->peers,
                       .epoch = m->epoch,
                       .rank = m->rank,
                       .link = link,
                       .alive_ns = clock_now()};
    w->peers = p;
    if (older != NULL) {
        older->dead = older->replaced = true;
        if (m->epoch == w->epoch)
            w->ops->replaced(w->ctx, m->rank);
    }
    world_check_complete(w);
    return 0;
}

/* The clock of last_seen_ns is the supervisor's affair: that it moved is the sign of life. */
void world_table(struct world *w, const struct msg_rank_table *m) {
    if (world_grow_rows(w, m->rank + 1) != 0)
        return;
    struct world_row *row = &w->rows[m->rank];
    if (row->table.last_seen_ns != m->last_seen_ns)
        row->alive_ns = clock_now();
    row->table = *m;
}

/* Without memory for its lines they are not shown. */
void world_device(struct world *w, const struct msg_rank_device *m) {
    if (world_grow_rows(w, m->rank + 1) != 0)
        return;
    struct world_row *row = &w->rows[m->rank];
    enc_reset(&row->memory);
    enc_bytes(&row->memory, m->memory.data, m->memory.len_bytes);
    row->device = *m;
    row->device.memory = (struct blob){.data = row->memory.data,
                                       .len_bytes = row->memory.failed ? 0 : m->memory.len_bytes};
}

uint64_t world_epoch(const struct world *w) { return w->epoch; }
bool world_is_up(const struct world *w) { return w->world_size != 0; }
bool world_is_complete(const struct world *w) { return w->complete; }
struct model *world_model(const struct world *w) {
    return w->model;
}
uint32_t world_rank_count(const struct world *w) { return w->row_count; }
const struct msg_rank_table *world_rank(const struct world *w, uint32_t rank) {
    return rank < w->row_count ? &w->rows[rank].table : NULL;
}

const struct msg_rank_device *world_rank_device(const struct world *w, uint32_t rank) {
    return rank < w->row_count ? &w->rows[rank].device : NULL;
}

uint64_t world_alive_ns(const struct world *w, uint32_t rank) {
    const struct peer *p = world_peer(w, w->epoch, rank);
    uint64_t alive = p != NULL ? p->alive_ns : 0;
    if (rank < w->row_count && w->rows[rank].alive_ns > alive)
        alive = w->rows[rank].alive_ns;
    return alive;
}

int world_send(struct world *w, uint32_t rank, uint16_t type, const void *msg) {
    struct peer *p = world_peer(w, w->epoch, rank);
    if (p == NULL)
        return -ENOTCONN;
    int rc = msg_send(p->link, type, 0, msg, NULL, 0);
    if (rc != 0) {
        log_warn("rank %u: link lost while sending: %s", rank, strerror(-rc));
        p->dead = true;
    }
    return rc;
}

/* ---- what ranks send */

static struct shared *peer_find_segment(struct peer *p, uint64_t id) {
    for (struct shared **s = &p->segments; *s != NULL; s = &(*s)->next) {
        if ((*s)->id != id)
            continue;
        struct shared *found = *s;
        *s = found->next; /* to the front: takes come in runs */
        found->next = p->segments;
        p->segments = found;
        return found;
    }
    return NULL;
}

/* The rank keeps its segments in a pool, and each is passed over once: it is mapped until the link
 * ends. A new descriptor for a known id replaces it. */
static struct shared *peer_segment(struct peer *p, uint64_t id, uint64_t bytes, struct frame *f) {
    struct shared *s = peer_find_segment(p, id);
    if (f->fd_count == 0)
        return s;
    struct shared *fresh = shared_adopt(id, f->fds[0], bytes);
    f->fds[0] = -1;
    if (fresh == NULL)
        return NULL;
    if (s != NULL) {
        p->segments = s->next;
        shared_put(s);
    }
    fresh->next = p->segments;
    p->segments = fresh;
    return fresh;
}

static int peer_take_reply(struct world *w, struct peer *p, struct frame *f) {
    struct msg_take_reply m;
    if (msg_decode(f->type, f->payload, f->len_bytes, &m) != 0)
        return -EPROTO;
    struct shared *s = NULL;
    if (m.state == TAKE_COPY) {
        s = peer_segment(p, m.segment, m.segment_bytes, f);
        if (s == NULL || m.offset_bytes > s->segment.bytes ||
            m.offset_bytes % TENSOR_ELEM_BYTES != 0)
            return -EPROTO;
    }
    if (m.session == w->session && p->epoch == w->epoch && m.epoch == p->epoch)
        w->ops->reply(w->ctx, p->rank, &m, s);
    return 0;
}

static int peer_wide_segment(struct world *w, struct peer *p, struct frame *f) {
    struct msg_wide_segment m;
    if (msg_decode(f->type, f->payload, f->len_bytes, &m) != 0 || f->fd_count != 1)
        return -EPROTO;
    struct shared *s = shared_adopt(0, f->fds[0], m.bytes);
    f->fds[0] = -1;
    if (s == NULL)
        return -EPROTO;
    w->ops->wide(w->ctx, p->epoch, p->rank, &m, s);
    shared_put(s);
    return 0;
}

static int peer_handle(struct world *w, struct peer *p, struct frame *f) {
    struct msg_wide_gone gone;
    switch (f->type) {
    case MSG_TAKE_REPLY:
        return peer_take_reply(w, p, f);
    case MSG_WIDE_SEGMENT:
        return peer_wide_segment(w, p, f);
    case MSG_WIDE_GONE:
        if (msg_decode(f->type, f->payload, f->len_bytes, &gone) != 0)
            return -EPROTO;
        w->ops->wide_gone(w->ctx, p->epoch, p->rank, gone.take);
        return 0;
    default:
        return -EPROTO;
    }
}

static void peer_read(struct world *w, struct peer *p) {
    struct frame f = {0};
    int end = link_fill(p->link), rc;
    while (!p->dead && (rc = link_next(p->link, &f)) != 0) {
        if (rc > 0) {
            p->alive_ns = clock_now();
            rc = peer_handle(w, p, &f);
        }
        if (rc < 0) {
            log_error("rank %u of epoch %llu: %s refused (%s), link closed", p->rank,
                      (unsigned long long)p->epoch, msg_type_name(f.type), strerror(-rc));
            p->dead = true;
        }
    }
    if (end != 0)
        p->dead = true;
}

size_t world_link_count(const struct world *w) {
    size_t n = 0;
    for (const struct peer *p = w->peers; p != NULL; p = p->next)
        n++;
    return n;
}

size_t world_poll_fill(struct world *w, struct pollfd *fds, size_t cap) {
    size_t n = 0;
    for (struct peer *p = w->peers; p != NULL && n < cap; p = p->next)
        fds[n++] =
            (struct pollfd){.fd = link_fd(p->link),
                            .events = (short)(POLLIN | (link_wants_write(p->link) ? POLLOUT : 0))};
    return n;
}

/* Links are added at the front and removed by world_reap only: the entries are the last `count` of
 * the list. */
void world_poll_handle(struct world *w, const struct pollfd *fds, size_t count) {
    struct peer *p = w->peers;
    for (size_t skip = world_link_count(w) - count; skip > 0; skip--)
        p = p->next;
    for (size_t i = 0; i < count && p != NULL; i++, p = p->next) {
        if (p->dead || fds[i].revents == 0)
            continue;
        if ((fds[i].revents & POLLOUT) != 0 && link_flush(p->link) != 0)
            p->dead = true;
        if ((fds[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0)
            peer_read(w, p);
    }
}

void world_reap(struct world *w) {
    for (struct peer **at = &w->peers; *at != NULL;) {
        struct peer *p = *at;
        if (!p->dead) {
            at = &p->next;
            continue;
        }
        *at = p->next;
        uint64_t epoch = p->epoch;
        uint32_t rank = p->rank;
        bool replaced = p->replaced;
        peer_free(p);
        if (replaced)
            continue;
        if (epoch == w->epoch)
            w->complete = false;
        w->ops->lost(w->ctx, epoch, rank);
        at = &w->peers; /* the callback may have marked others */
    }
}
