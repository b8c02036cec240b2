/* peer.c - a link watched by the loop. */
#include "config.h"

#include "run/peer.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>

#include "wire/msg.h"

struct peer {
    struct loop *loop;
    struct link *link;
    struct frame frame;
    peer_frame_fn *on_frame;
    peer_end_fn *on_end;
    void *arg;
    struct loop_timer end_timer; /* calls on_end from the loop */
    bool dead;                   /* not watched any more; end_timer is set, or was */
    bool in_handler, closed;
};

static void peer_free(struct peer *p) {
    link_close(p->link);
    free(p);
}

static void update_events(struct peer *p) {
    short events = p->dead ? 0 : POLLIN;
    if (!p->dead && link_wants_write(p->link))
        events |= POLLOUT;
    loop_events(p->loop, link_fd(p->link), events);
}

static void die(struct peer *p) {
    if (p->dead)
        return;
    p->dead = true;
    loop_unwatch(p->loop, link_fd(p->link));
    loop_timer_set(p->loop, &p->end_timer, 0);
}

/* Hands out what is complete. False when the peer was closed by its handler. */
static bool deliver(struct peer *p) {
    int rc;
    while (!p->closed && (rc = link_next(p->link, &p->frame)) == 1) {
        p->in_handler = true;
        p->on_frame(p->arg, p, &p->frame);
        p->in_handler = false;
    }
    if (p->closed) {
        peer_free(p);
        return false;
    }
    if (rc < 0)
        die(p);
    return true;
}

/* A peer that no longer listens may have said why before. */
static void on_end_timer(void *arg) {
    struct peer *p = arg;
    link_fill(p->link);
    if (deliver(p))
        p->on_end(p->arg, p);
}

static void on_ready(void *arg, short revents) {
    struct peer *p = arg;
    int rc = 0;
    if (revents & POLLOUT)
        rc = link_flush(p->link);
    /* What the peer said last is heard even if it no longer listens. */
    int fill = revents & (POLLIN | POLLHUP | POLLERR) ? link_fill(p->link) : 0;
    if (!deliver(p))
        return;
    if (rc < 0 || fill < 0)
        die(p);
    if (!p->dead)
        update_events(p);
}

int peer_open(struct loop *l, int fd, size_t outbox_bytes, peer_frame_fn *on_frame,
              peer_end_fn *on_end, void *arg, struct peer **out) {
    struct peer *p = calloc(1, sizeof *p);
    struct link *link = link_open(fd, outbox_bytes);
    if (!p || !link) {
        link_close(link);
        free(p);
        return -ENOMEM;
    }
    *p = (struct peer){.loop = l, .link = link, .on_frame = on_frame, .on_end = on_end, .arg = arg};
    p->end_timer = (struct loop_timer){.fn = on_end_timer, .arg = p};
    int rc = loop_watch(l, fd, POLLIN, on_ready, p);
    if (rc) {
        peer_free(p);
        return rc;
    }
    *out = p;
    return 0;
}

void peer_close(struct peer *p) {
    if (!p || p->closed)
        return;
    if (!p->dead)
        loop_unwatch(p->loop, link_fd(p->link));
    loop_timer_cancel(p->loop, &p->end_timer);
    p->dead = true;
    p->closed = true;
    if (!p->in_handler)
        peer_free(p);
}

void peer_set_handlers(struct peer *p, peer_frame_fn *on_frame, peer_end_fn *on_end, void *arg) {
    p->on_frame = on_frame;
    p->on_end = on_end;
    p->arg = arg;
}

int peer_fd(const struct peer *p) { return link_fd(p->link); }

static void send_frame(struct peer *p, uint16_t type, uint64_t id, const void *msg, const int *fds,
                       uint32_t fd_count) {
    if (!p || p->dead)
        return;
    if (msg_send(p->link, type, id, msg, fds, fd_count) < 0)
        die(p);
    else
        update_events(p);
}

void peer_send(struct peer *p, uint16_t type, const void *msg, const int *fds, uint32_t fd_count) {
    send_frame(p, type, 0, msg, fds, fd_count);
}

void peer_reply(struct peer *p, uint16_t type, uint64_t id, const void *msg) {
    send_frame(p, type, id, msg, NULL, 0);
}

bool peer_is_slow(const struct peer *p) { return p && !p->dead && link_wants_write(p->link); }
