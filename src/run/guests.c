/* guests.c - who connects to RUN_DIR/socket: ranks, which world.c takes over, and clients such as
 * `gatherfs stop`. */
#include "config.h"

#include "run/supervisor.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"

enum {
    RANK_OUTBOX_BYTES = 4 << 20,
    GUEST_HELLO_MS = 10000,
    GUEST_MAX_WAITS = 64,
    GUESTS_MAX_STRANGERS = 128, /* who has not said who it is */
    GUESTS_MAX_CLIENTS = 256,
    GUESTS_PAUSE_MS = 100, /* before we look again whether there is room for another */
};

struct guest {
    struct guest *next;
    struct supervisor *s;
    struct peer *peer;
    struct loop_timer timer; /* ends a connection that does not say who it is */
    uint32_t uid;
    bool is_client;
    char *waits[GUEST_MAX_WAITS]; /* keys of commands whose result it gets; owned */
    uint32_t wait_count;
};

static uint32_t *guest_count(struct guest *g) {
    return g->is_client ? &g->s->guests.clients : &g->s->guests.strangers;
}

/* Without closing the link: it may have become a rank's. */
static void guest_forget(struct guest *g) {
    struct guest **at = &g->s->guests.first;
    while (*at != g)
        at = &(*at)->next;
    *at = g->next;
    *guest_count(g) -= 1;
    loop_timer_cancel(g->s->loop, &g->timer);
    for (uint32_t i = 0; i < g->wait_count; i++)
        free(g->waits[i]);
    free(g);
}

static void guest_close(struct guest *g) {
    peer_close(g->peer);
    guest_forget(g);
}

static void on_guest_end(void *arg, struct peer *p) {
    (void)p;
    guest_close(arg);
}

static void on_guest_timer(void *arg) { guest_close(arg); }

static void send_result(struct peer *p, const struct command *c) {
    struct msg_command_done m = {.code = c->code};
    snprintf(m.key, sizeof m.key, "%s", c->key);
    snprintf(m.text, sizeof m.text, "%s", c->text);
    peer_send(p, MSG_COMMAND_DONE, &m, NULL, 0);
}

void guests_command_done(struct supervisor *s, const struct command *c) {
    for (struct guest *g = s->guests.first; g; g = g->next) {
        for (uint32_t i = 0; i < g->wait_count;) {
            if (strcmp(g->waits[i], c->key) != 0) {
                i++;
                continue;
            }
            send_result(g->peer, c);
            free(g->waits[i]);
            g->waits[i] = g->waits[--g->wait_count];
        }
    }
}

static void on_client_command(struct guest *g, uint64_t frame_id, struct msg_command *m) {
    m->uid = g->uid; /* what the kernel says, not what the client does */
    char *key = g->wait_count < GUEST_MAX_WAITS ? strdup(m->key) : NULL;
    if (!key) {
        guest_close(g);
        return;
    }
    g->waits[g->wait_count++] = key;
    commands_receive(g->s, g->peer, frame_id, m);
}

static void on_client_hello(struct guest *g) {
    struct msg_status m;
    struct enc config = {0};
    if (!g->is_client && g->s->guests.clients >= GUESTS_MAX_CLIENTS) {
        log_warn("there are %d clients of the run's socket: one more is turned away",
                 GUESTS_MAX_CLIENTS);
        guest_close(g);
        return;
    }
    *guest_count(g) -= 1;
    g->is_client = true;
    *guest_count(g) += 1;
    loop_timer_cancel(g->s->loop, &g->timer);
    status_fill(g->s, &m, &config);
    peer_send(g->peer, MSG_STATUS, &m, NULL, 0);
    enc_free(&config);
}

static void on_guest_frame(void *arg, struct peer *p, struct frame *f) {
    struct guest *g = arg;
    struct supervisor *s = g->s;
    struct msg_rank_hello rank;
    struct msg_client_hello client;
    struct msg_command command;
    if (f->type == MSG_RANK_HELLO && !g->is_client &&
        msg_decode(f->type, f->payload, f->len_bytes, &rank) == 0) {
        guest_forget(g);
        world_adopt(s, p, &rank);
    } else if (f->type == MSG_CLIENT_HELLO &&
               msg_decode(f->type, f->payload, f->len_bytes, &client) == 0) {
        on_client_hello(g);
    } else if (f->type == MSG_CLIENT_COMMAND && g->is_client &&
               msg_decode(f->type, f->payload, f->len_bytes, &command) == 0) {
        on_client_command(g, f->id, &command);
    } else {
        log_warn("a connection to the run's socket does not speak our language");
        guest_close(g);
    }
}

static void on_pause(void *arg) {
    struct supervisor *s = arg;
    loop_events(s->loop, s->guests.listen_fd, POLLIN);
}

/* No room: who connects waits in the queue of the socket, and the loop does not spin. */
static void pause_listening(struct supervisor *s) {
    loop_events(s->loop, s->guests.listen_fd, 0);
    loop_timer_set(s->loop, &s->guests.pause, GUESTS_PAUSE_MS);
}

static void on_listen(void *arg, short revents) {
    struct supervisor *s = arg;
    uint32_t uid;
    (void)revents;
    if (s->guests.strangers >= GUESTS_MAX_STRANGERS) {
        pause_listening(s);
        return;
    }
    int fd = accept4(s->guests.listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR)
            pause_listening(s);
        return;
    }
    if (link_peer_uid(fd, &uid) || (uid != geteuid() && uid != 0)) {
        close(fd);
        return;
    }
    struct guest *g = calloc(1, sizeof *g);
    if (!g) {
        close(fd);
        return;
    }
    g->s = s;
    g->uid = uid;
    g->timer = (struct loop_timer){.fn = on_guest_timer, .arg = g};
    if (peer_open(s->loop, fd, RANK_OUTBOX_BYTES, on_guest_frame, on_guest_end, g, &g->peer)) {
        free(g);
        return;
    }
    g->next = s->guests.first;
    s->guests.first = g;
    s->guests.strangers++;
    loop_timer_set(s->loop, &g->timer, GUEST_HELLO_MS);
}

int guests_open(struct supervisor *s, struct err *err) {
    int fd = link_listen(s->rundir.path, "socket");
    if (fd < 0)
        return err_set(err, -fd, "%s/socket: %s", s->rundir.path, strerror(-fd));
    s->guests.listen_fd = fd;
    s->guests.pause = (struct loop_timer){.fn = on_pause, .arg = s};
    if (loop_watch(s->loop, fd, POLLIN, on_listen, s))
        return err_set(err, ENOMEM, "no memory");
    return 0;
}

void guests_leave(struct supervisor *s) {
    for (struct guest *g = s->guests.first, *next; g; g = next) {
        next = g->next;
        guest_close(g);
    }
}

void guests_close(struct supervisor *s) {
    if (s->guests.listen_fd < 0)
        return;
    loop_timer_cancel(s->loop, &s->guests.pause);
    loop_unwatch(s->loop, s->guests.listen_fd);
    close(s->guests.listen_fd);
    s->guests.listen_fd = -1;
    char path[RUNDIR_PATH_BYTES + 16];
    snprintf(path, sizeof path, "%s/socket", s->rundir.path);
    unlink(path);
}
