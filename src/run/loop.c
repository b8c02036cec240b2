/* loop.c - poll(2), signalfd, a list of timers, a list of children. */
#include "config.h"

#include "run/loop.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct watch {
    loop_fd_fn *fn;
    void *arg;
    uint64_t serial; /* tells a new watch of the same descriptor from the one that poll saw */
};

struct child_entry {
    struct child_entry *next;
    pid_t pid;
    loop_child_fn *fn;
    void *arg;
};

struct loop {
    struct pollfd *polls; /* polls[i] belongs to watches[i] */
    struct watch *watches;
    size_t count, cap;
    uint64_t serial;
    struct loop_timer *timers; /* sorted by due_ns */
    struct child_entry *children;
    int signal_fd;
    loop_signal_fn *on_signal;
    void *signal_arg;
    bool stopped;
};

static uint64_t clock_ns(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t loop_now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }
uint64_t loop_time_ns(void) { return clock_ns(CLOCK_REALTIME); }

static void reap(struct loop *l) {
    struct child_entry **at = &l->children;
    while (*at) {
        struct child_entry *c = *at;
        int status;
        if (waitpid(c->pid, &status, WNOHANG) != c->pid) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        c->fn(c->arg, status);
        free(c);
        at = &l->children; /* the handler may have added or waited for others */
    }
}

static void on_signal_fd(void *arg, short revents) {
    struct loop *l = arg;
    struct signalfd_siginfo info;
    (void)revents;
    while (read(l->signal_fd, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGCHLD)
            reap(l);
        else
            l->on_signal(l->signal_arg, (int)info.ssi_signo);
    }
}

int loop_open(loop_signal_fn *on_signal, void *arg, struct loop **out) {
    struct loop *l = calloc(1, sizeof *l);
    if (!l)
        return -ENOMEM;
    l->on_signal = on_signal;
    l->signal_arg = arg;
    sigset_t set;
    sigemptyset(&set);
    static const int caught[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD};
    for (size_t i = 0; i < sizeof caught / sizeof caught[0]; i++)
        sigaddset(&set, caught[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    l->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    int rc = l->signal_fd < 0 ? -errno : 0;
    if (!rc)
        rc = loop_watch(l, l->signal_fd, POLLIN, on_signal_fd, l);
    if (rc) {
        loop_close(l);
        return rc;
    }
    *out = l;
    return 0;
}

void loop_close(struct loop *l) {
    if (!l)
        return;
    if (l->signal_fd >= 0)
        close(l->signal_fd);
    while (l->children) {
        struct child_entry *c = l->children;
        l->children = c->next;
        free(c);
    }
    free(l->polls);
    free(l->watches);
    free(l);
}

void loop_stop(struct loop *l) { l->stopped = true; }

static size_t find(const struct loop *l, int fd) {
    size_t i = 0;
    while (i < l->count && l->polls[i].fd != fd)
        i++;
    return i;
}

int loop_watch(struct loop *l, int fd, short events, loop_fd_fn *fn, void *arg) {
    if (l->count == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 16;
        struct pollfd *polls = realloc(l->polls, cap * sizeof *polls);
        if (polls)
            l->polls = polls;
        struct watch *watches = realloc(l->watches, cap * sizeof *watches);
        if (watches)
            l->watches = watches;
        if (!polls || !watches)
            return -ENOMEM;
        l->cap = cap;
    }
    l->polls[l->count] = (struct pollfd){.fd = fd, .events = events};
    l->watches[l->count++] = (struct watch){.fn = fn, .arg = arg, .serial = ++l->serial};
    return 0;
}

void loop_events(struct loop *l, int fd, short events) {
    size_t i = find(l, fd);
    if (i < l->count)
        l->polls[i].events = events;
}

void loop_unwatch(struct loop *l, int fd) {
    size_t i = find(l, fd);
    if (i == l->count)
        return;
    l->count--;
    l->polls[i] = l->polls[l->count];
    l->watches[i] = l->watches[l->count];
}

void loop_timer_cancel(struct loop *l, struct loop_timer *t) {
    struct loop_timer **at = &l->timers;
    while (*at && *at != t)
        at = &(*at)->next;
    if (*at)
        *at = t->next;
    t->armed = false;
}

void loop_timer_set(struct loop *l, struct loop_timer *t, uint64_t delay_ms) {
    if (t->armed)
        loop_timer_cancel(l, t);
    t->due_ns = loop_now_ns() + delay_ms * 1000000u;
    t->armed = true;
    struct loop_timer **at = &l->timers;
    while (*at && (*at)->due_ns <= t->due_ns)
        at = &(*at)->next;
    t->next = *at;
    *at = t;
}

int loop_child(struct loop *l, pid_t pid, loop_child_fn *fn, void *arg) {
    struct child_entry *c = malloc(sizeof *c);
    if (!c)
        return -ENOMEM;
    *c = (struct child_entry){.next = l->children, .pid = pid, .fn = fn, .arg = arg};
    l->children = c;
    return 0;
}

/* Those that are due now; one that a handler sets anew waits for the next round. */
static void run_timers(struct loop *l) {
    uint64_t now = loop_now_ns();
    while (!l->stopped && l->timers && l->timers->due_ns <= now) {
        struct loop_timer *t = l->timers;
        l->timers = t->next;
        t->armed = false;
        t->fn(t->arg);
    }
}

static int wait_ms(const struct loop *l) {
    if (!l->timers)
        return -1;
    uint64_t now = loop_now_ns();
    if (l->timers->due_ns <= now)
        return 0;
    uint64_t ms = (l->timers->due_ns - now + 999999) / 1000000;
    return ms > 60000 ? 60000 : (int)ms;
}

/* Handlers add and remove watches: so the ready ones are found by descriptor and serial, each from
 * a fresh look. */
static void dispatch(struct loop *l, uint64_t last_serial) {
    for (size_t i = 0; i < l->count && !l->stopped;) {
        short revents = l->polls[i].revents;
        if (revents == 0 || l->watches[i].serial > last_serial) {
            i++;
            continue;
        }
        l->polls[i].revents = 0;
        l->watches[i].fn(l->watches[i].arg, revents);
        i = 0;
    }
}

int loop_run(struct loop *l) {
    l->stopped = false;
    while (!l->stopped) {
        int n = poll(l->polls, l->count, wait_ms(l));
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n > 0)
            dispatch(l, l->serial);
        run_timers(l);
    }
    return 0;
}
