/* service.c - the poll loop of the rank's second thread. */
#include "config.h"

#include "engine/service.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "engine/take.h"
#include "engine/wide.h"

enum {
    SERVICE_DAEMON_OUTBOX_BYTES =
        1 << 20, /* some thousand answers: a daemon that is behind by more is not reading */
    SERVICE_ALIVE_MS = 1000,
    SERVICE_CLOSE_MS = 1000,
    SERVICE_COPY_MS = 20, /* of copies, before messages and signs of life have their turn */
    SERVICE_NICE = -10
};

/* A message on its way to the supervisor. */
struct outgoing {
    struct outgoing *next;
    uint16_t type;
    struct enc payload;
};

struct service {
    struct service_args args;
    struct config config;
    pthread_t thread;
    struct link *supervisor, *daemon;
    uint64_t session;
    struct takes *takes;
    struct wides *wides;
    int wake_fd;
    pthread_mutex_t lock; /* the queue, the doorbells, closing */
    pthread_cond_t doorbells_complete;
    struct outgoing *first, **last;
    int *doorbells; /* rank 0: [world_size], -1 until the supervisor sent it */
    uint32_t doorbell_count;
    bool closing, orphaned;
    bool told_failed; /* that the device has failed */
    uint64_t next_alive_ms;
};

static uint64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

void service_wake(struct service *s) {
    uint64_t one = 1;
    ssize_t n = write(s->wake_fd, &one, sizeof(one));
    (void)n;
}

struct link *service_daemon(struct service *s) {
    return s->daemon;
}

void service_send(struct service *s, uint16_t type, const void *msg) {
    struct outgoing *o = calloc(1, sizeof(*o));
    if (o == NULL) {
        log_error("no memory for a message to the supervisor");
        return;
    }
    o->type = type;
    msg_encode(type, msg, &o->payload);
    pthread_mutex_lock(&s->lock);
    *s->last = o;
    s->last = &o->next;
    pthread_mutex_unlock(&s->lock);
    service_wake(s);
}

/* The supervisor is the life of all: without it nobody would ever end this process. */
static void service_orphaned(struct service *s, const char *why) {
    pthread_mutex_lock(&s->lock);
    bool closing = s->closing;
    s->orphaned = true;
    pthread_mutex_unlock(&s->lock);
    if (closing)
        return; /* it ends anyhow, with a status of its own */
    log_warn("the supervisor is gone (%s): this rank ends", why);
    _exit(1);
}

static void service_flush_queue(struct service *s) {
    for (;;) {
        pthread_mutex_lock(&s->lock);
        struct outgoing *o = s->first;
        if (o != NULL) {
            s->first = o->next;
            if (s->first == NULL)
                s->last = &s->first;
        }
        pthread_mutex_unlock(&s->lock);
        if (o == NULL)
            return;
        int rc = o->payload.failed ? -ENOMEM
                                   : link_send(s->supervisor, o->type, 0, o->payload.data,
                                               o->payload.len_bytes, NULL, 0);
        enc_free(&o->payload);
        free(o);
        if (rc != 0) {
            service_orphaned(s, err_name(-rc));
            return;
        }
    }
}

static void service_drop_daemon(struct service *s, const char *why) {
    if (s->daemon == NULL)
        return;
    log_info("the link to the mount daemon ends: %s", why);
    takes_set_daemon(s->takes, NULL, 0);
    link_close(s->daemon);
    s->daemon = NULL;
    s->session = 0;
}

static void service_new_daemon(struct service *s, uint64_t session, int fd) {
    service_drop_daemon(s, "there is a new one");
    s->daemon = link_open(fd, SERVICE_DAEMON_OUTBOX_BYTES);
    if (s->daemon == NULL)
        return;
    s->session = session;
    takes_set_daemon(s->takes, s->daemon, session);
    if (wides_offer_all(s->wides, s->daemon) != 0)
        service_drop_daemon(s, "it does not read");
}

static void service_keep_doorbell(struct service *s, uint32_t rank, int fd) {
    pthread_mutex_lock(&s->lock);
    /* Its own is not among those that it rings. */
    if (s->doorbells != NULL && rank != 0 && rank < s->args.world_size && s->doorbells[rank] < 0) {
        s->doorbells[rank] = fd;
        s->doorbell_count++;
        pthread_cond_broadcast(&s->doorbells_complete);
        fd = -1;
    }
    pthread_mutex_unlock(&s->lock);
    if (fd >= 0)
        close(fd);
}

void service_ring_others(struct service *s) {
    pthread_mutex_lock(&s->lock);
    while (s->doorbell_count + 1 < s->args.world_size)
        pthread_cond_wait(&s->doorbells_complete, &s->lock);
    pthread_mutex_unlock(&s->lock);
    for (uint32_t r = 1; r < s->args.world_size; r++) {
        uint64_t one = 1;
        ssize_t n = write(s->doorbells[r], &one, sizeof(one));
        (void)n; /* an eventfd that nobody reads holds 2^64 - 2 rings */
    }
}

void service_fix(struct service *s, const struct agenda *a, uint64_t gen, uint64_t step) {
    for (uint32_t i = 0; i < a->fix_count; i++) {
        if (a->fixes[i].session == 0)
            wides_fix(s->wides, a->fixes[i].number, gen, step);
        else
            takes_fix(s->takes, a->fixes[i].session, a->fixes[i].number);
    }
}

/* What a resumed run needs besides the arrays. Random numbers are counter-based and the order of
 * the data depends on the seed alone, so both are positions. */
static char *service_train_state(const struct service *s, uint64_t take) {
    const struct config *c = &s->config;
    uint64_t step;
    struct enc e = {0};
    if (s->args.rank != 0 || !wides_step(s->wides, take, &step))
        return NULL;
    uint64_t next_sequence = step * c->global_batch;
    enc_printf(&e,
               "{\"rng\":{\"kind\":\"philox4x32-10\",\"seed\":%llu},"
               "\"data\":{\"next_sequence\":%llu,\"fingerprint\":\"%016llx\"},"
               "\"schedule\":{\"schedule_steps\":%llu,\"warmup_steps\":%llu,\"lr\":%.17g,\"min_lr_"
               "fraction\":%.17g},"
               "\"global_batch\":%llu,\"seq_len\":%llu}",
               (unsigned long long)c->seed, (unsigned long long)next_sequence,
               (unsigned long long)s->args.fingerprint, (unsigned long long)c->schedule_steps,
               (unsigned long long)c->warmup_steps, c->lr, c->min_lr_fraction,
               (unsigned long long)c->global_batch, (unsigned long long)c->seq_len);
    enc_u8(&e, 0);
    if (e.failed) {
        enc_free(&e);
        return NULL;
    }
    return (char *)e.data;
}

/* What one rank may hold for takes; the daemon bounds the sum over ranks, this bounds a daemon that
 * does not. */
static size_t service_take_limit(const struct service *s) {
    uint64_t ram = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / 4;
    uint64_t twice = 2 * layout_numel(s->args.layout) * TENSOR_ELEM_BYTES;
    return s->config.take_memory != 0 ? s->config.take_memory : ram > twice ? ram : twice;
}

static int service_config(struct service *s, const struct blob *text) {
    struct err err = {0};
    char *copy = strndup((const char *)text->data, text->len_bytes);
    int rc = copy != NULL ? config_parse(&s->config, copy, "orders", NULL, &err) : -ENOMEM;
    free(copy);
    if (rc != 0)
        log_error("orders of the supervisor: %s", err.text);
    else
        takes_set_limit(s->takes, service_take_limit(s));
    return rc;
}

/* What the supervisor may say: a message of another type would not fit where it is decoded. */
static bool supervisor_may_send(uint16_t type) {
    switch (type) {
    case MSG_DOORBELL:
    case MSG_DAEMON_LINK:
    case MSG_ORDERS:
    case MSG_TAKE_RESERVE:
    case MSG_TAKE_FIX:
    case MSG_TAKE_WRITE:
    case MSG_TAKE_RELEASE:
    case MSG_RESTORE:
    case MSG_QUIT:
        return true;
    default:
        return false;
    }
}

union supervisor_message {
    struct msg_doorbell doorbell;
    struct msg_daemon_link daemon_link;
    struct msg_orders orders;
    struct msg_take_reserve reserve;
    struct msg_take_fix fix;
    struct msg_take_write write;
    struct msg_take_release release;
    struct msg_restore restore;
    struct msg_quit quit;
};

/* One case a message; the messages themselves are carried out elsewhere. */
static int service_obey(struct service *s, struct frame *f, const union supervisor_message *m) {
    bool first = s->args.inbox != NULL;
    int rc = 0;
    switch (f->type) {
    case MSG_DOORBELL:
        if (f->fd_count == 1) {
            service_keep_doorbell(s, m->doorbell.rank, f->fds[0]);
            f->fds[0] = -1;
        }
        break;
    case MSG_DAEMON_LINK:
        if (f->fd_count == 1) {
            service_new_daemon(s, m->daemon_link.session, f->fds[0]);
            f->fds[0] = -1;
        }
        break;
    case MSG_ORDERS:
        rc = service_config(s, &m->orders.config);
        if (rc == 0 && first)
            rc = inbox_put_orders(s->args.inbox, m->orders.goal_step,
                                  (const char *)m->orders.config.data, m->orders.config.len_bytes);
        break;
    case MSG_TAKE_RESERVE:
        wides_reserve(s->wides, &m->reserve);
        break;
    case MSG_TAKE_FIX:
        rc = first ? inbox_put_fix(s->args.inbox, 0, m->fix.number) : -EPROTO;
        break;
    case MSG_TAKE_WRITE: {
        char *state = service_train_state(s, m->write.take);
        wides_write(s->wides, &m->write, state);
        free(state);
        break;
    }
    case MSG_TAKE_RELEASE:
        if (wides_release(s->wides, m->release.number) != 0)
            service_drop_daemon(s, "it does not read");
        break;
    case MSG_RESTORE:
        rc = first ? inbox_put_restore(s->args.inbox, m->restore.command, m->restore.dir) : -EPROTO;
        break;
    case MSG_QUIT:
        if (first)
            inbox_put_quit(s->args.inbox);
        break;
    default:
        rc = -EPROTO;
    }
    return rc;
}

static int service_supervisor_frame(struct service *s, struct frame *f) {
    union supervisor_message *m = calloc(1, sizeof(*m));
    int rc = m != NULL ? -EPROTO : -ENOMEM;
    if (m != NULL && supervisor_may_send(f->type))
        rc = msg_decode(f->type, f->payload, f->len_bytes, m);
    if (rc == 0)
        rc = service_obey(s, f, m);
    free(m);
    if (rc != 0)
        log_error("message %s of the supervisor: %s", msg_type_name(f->type), err_name(-rc));
    return rc;
}

static int service_daemon_frame(struct service *s, const struct frame *f) {
    union {
        struct msg_take take;
        struct msg_take_release release;
        struct msg_take_fix fix;
    } m;
    if (f->type != MSG_TAKE && f->type != MSG_TAKE_RELEASE && f->type != MSG_TAKE_FIX)
        return -EPROTO;
    int rc = msg_decode(f->type, f->payload, f->len_bytes, &m);
    if (rc != 0)
        return rc;
    switch (f->type) {
    case MSG_TAKE:
        return takes_request(s->takes, &m.take);
    case MSG_TAKE_RELEASE:
        takes_release(s->takes, m.release.session, m.release.number);
        return 0;
    case MSG_TAKE_FIX:
        if (s->args.inbox == NULL || m.fix.session != s->session || s->session == 0)
            return 0;
        /* Too many wait: the daemon's deadline ends the take, nothing else suffers. */
        (void)inbox_put_fix(s->args.inbox, m.fix.session, m.fix.number);
        return 0;
    default:
        return -EPROTO;
    }
}

static void service_read_supervisor(struct service *s) {
    int filled = link_fill(s->supervisor), rc;
    struct frame f;
    while ((rc = link_next(s->supervisor, &f)) == 1)
        (void)service_supervisor_frame(s, &f);
    if (filled != 0 || rc < 0)
        service_orphaned(s, err_name(filled != 0 ? -filled : -rc));
}

static void service_read_daemon(struct service *s) {
    int filled = link_fill(s->daemon), rc, done = 0;
    struct frame f;
    while (s->daemon != NULL && (rc = link_next(s->daemon, &f)) != 0) {
        done = rc == 1 ? service_daemon_frame(s, &f) : rc;
        if (done != 0)
            break;
    }
    if (done != 0 || filled != 0)
        service_drop_daemon(s, err_name(done != 0 ? -done : -filled));
}

static uint64_t rss_bytes(void) {
    unsigned long long size = 0, rss = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f == NULL)
        return 0;
    if (fscanf(f, "%llu %llu", &size, &rss) != 2)
        rss = 0;
    fclose(f);
    return rss * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void service_alive(struct service *s) {
    struct msg_rank_alive m = {.rss_bytes = rss_bytes(),
                               .take_bytes =
                                   takes_used_bytes(s->takes) + wides_used_bytes(s->wides),
                               .step = atomic_load(&s->args.shared->step),
                               .micro = atomic_load(&s->args.shared->micro),
                               .phase = atomic_load(&s->args.shared->phase)};
    service_send(s, MSG_RANK_ALIVE, &m);
    s->next_alive_ms = now_ms() + SERVICE_ALIVE_MS;
}

static void eventfd_drain(int fd) {
    uint64_t n;
    ssize_t got = read(fd, &n, sizeof(n));
    (void)got;
}

/* Without its device this rank is of no use, and while it rests no step would find out. The
 * supervisor hears of it before it hears what failed by it, and ends the ranks. */
static void service_check_device(struct service *s) {
    struct err err = {0};
    if (s->told_failed || arrays_failed(s->args.arrays, &err) == 0)
        return;
    struct msg_rank_bye *m = calloc(1, sizeof(*m));
    if (m == NULL)
        return;
    m->code = (uint32_t)err.code;
    memcpy(m->text, err.text, sizeof(m->text));
    service_send(s, MSG_RANK_BYE, m);
    free(m);
    s->told_failed = true;
}

/* Finished copies are answered before the next one is made: who waits longest goes first. */
static void service_copies(struct service *s) {
    struct hold *h;
    uint64_t until_ms = now_ms() + SERVICE_COPY_MS;
    bool more;
    do {
        while ((h = arrays_next_done(s->args.arrays)) != NULL) {
            const struct hold_owner *owner = h->owner;
            if (h->result == HOLD_FAILED)
                service_check_device(s);
            int rc = owner->kind == OWNER_WIDE ? wides_finished(s->wides, h)
                                               : takes_finished(s->takes, h);
            if (rc != 0)
                service_drop_daemon(s, "it does not read");
        }
        more = arrays_serve(s->args.arrays);
    } while (more && now_ms() < until_ms);
    if (more)
        service_wake(s); /* goes on after the others */
}

static bool service_done(struct service *s, uint64_t *deadline_ms) {
    pthread_mutex_lock(&s->lock);
    bool closing = s->closing, orphaned = s->orphaned, queued = s->first != NULL;
    pthread_mutex_unlock(&s->lock);
    if (!closing || orphaned)
        return orphaned;
    if (*deadline_ms == 0)
        *deadline_ms = now_ms() + SERVICE_CLOSE_MS;
    return (!queued && !link_wants_write(s->supervisor)) || now_ms() >= *deadline_ms;
}

static void *service_main(void *arg) {
    struct service *s = arg;
    /* Copies for readers are short; when both cores compute they should not wait for a time slice.
     * Needs a right that an ordinary user lacks: then it is only slower. */
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), SERVICE_NICE);
    uint64_t deadline_ms = 0;
    while (!service_done(s, &deadline_ms)) {
        service_flush_queue(s);
        struct pollfd p[4] = {
            {.fd = s->wake_fd, .events = POLLIN},
            {.fd = arrays_wake_fd(s->args.arrays), .events = POLLIN},
            {.fd = link_fd(s->supervisor),
             .events = (short)(POLLIN | (link_wants_write(s->supervisor) ? POLLOUT : 0))},
            {.fd = s->daemon != NULL ? link_fd(s->daemon) : -1,
             .events = (short)(POLLIN |
                               (s->daemon != NULL && link_wants_write(s->daemon) ? POLLOUT : 0))},
        };
        uint64_t now = now_ms();
        int wait_ms = s->next_alive_ms > now ? (int)(s->next_alive_ms - now) : 0;
        if (poll(p, 4, deadline_ms != 0 ? 10 : wait_ms) < 0 && errno != EINTR)
            service_orphaned(s, "poll failed");
        if (p[0].revents != 0)
            eventfd_drain(s->wake_fd);
        if (p[1].revents != 0)
            eventfd_drain(p[1].fd);
        service_copies(s);
        if (s->daemon != NULL && (p[3].revents & POLLOUT) != 0 && link_flush(s->daemon) != 0)
            service_drop_daemon(s, "it does not read");
        if (s->daemon != NULL && (p[3].revents & (POLLIN | POLLHUP | POLLERR)) != 0)
            service_read_daemon(s);
        if ((p[2].revents & POLLOUT) != 0)
            (void)link_flush(s->supervisor);
        if ((p[2].revents & (POLLIN | POLLHUP | POLLERR)) != 0)
            service_read_supervisor(s);
        service_copies(s);
        wides_reap(s->wides);
        if (now_ms() >= s->next_alive_ms)
            service_alive(s);
    }
    return NULL;
}

static void service_free(struct service *s) {
    takes_close(s->takes);
    wides_close(s->wides);
    while (s->first != NULL) {
        struct outgoing *o = s->first;
        s->first = o->next;
        enc_free(&o->payload);
        free(o);
    }
    for (uint32_t r = 0; s->doorbells != NULL && r < s->args.world_size; r++)
        if (s->doorbells[r] >= 0)
            close(s->doorbells[r]);
    free(s->doorbells);
    if (s->wake_fd >= 0)
        close(s->wake_fd);
    link_close(s->daemon);
    link_close(s->supervisor);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->doorbells_complete);
    free(s);
}

int service_open(const struct service_args *args, struct service **out, struct err *err) {
    struct service *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        link_close(args->supervisor);
        return err_set(err, ENOMEM, "no memory for the service thread");
    }
    s->args = *args;
    s->config = *args->config;
    s->supervisor = args->supervisor;
    s->last = &s->first;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->doorbells_complete, NULL);
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->takes =
        takes_open(args->arrays, args->layout, args->rank, args->epoch, service_take_limit(s));
    s->wides = wides_open(s, args->arrays, args->layout, args->rank, args->epoch);
    if (args->inbox != NULL) {
        s->doorbells = malloc(args->world_size * sizeof(*s->doorbells));
        for (uint32_t r = 0; s->doorbells != NULL && r < args->world_size; r++)
            s->doorbells[r] = -1;
    }
    int rc = ENOMEM;
    if (s->wake_fd >= 0 && s->takes != NULL && s->wides != NULL &&
        (args->inbox == NULL || s->doorbells != NULL))
        rc = pthread_create(&s->thread, NULL, service_main, s);
    if (rc != 0) {
        service_free(s);
        return err_set(err, rc, "the service thread could not be started: %s", strerror(rc));
    }
    *out = s;
    return 0;
}

void service_close(struct service *s) {
    if (s == NULL)
        return;
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_mutex_unlock(&s->lock);
    service_wake(s);
    pthread_join(s->thread, NULL);
    service_free(s);
}
