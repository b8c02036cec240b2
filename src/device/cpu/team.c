/* team.c - threads that sleep between parts of work. */
#include "config.h"

#include "device/cpu/team.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>

struct worker {
    struct team *team;
    pthread_t thread;
    size_t part;
};

struct team {
    pthread_mutex_t lock;
    pthread_cond_t start, done;
    uint64_t round; /* counts the calls of team_run */
    size_t running; /* workers that have not ended this round */
    bool closing;
    team_fn *fn;
    void *arg;
    uint32_t threads;
    struct worker workers[]; /* threads - 1 */
};

static void *worker_main(void *arg) {
    struct worker *w = arg;
    struct team *p = w->team;
    uint64_t seen = 0;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (p->round == seen && !p->closing)
            pthread_cond_wait(&p->start, &p->lock);
        if (p->closing)
            break;
        seen = p->round;
        pthread_mutex_unlock(&p->lock);
        p->fn(p->arg, w->part, p->threads);
        pthread_mutex_lock(&p->lock);
        if (--p->running == 0)
            pthread_cond_signal(&p->done);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Ends the first `count` workers. */
static void team_stop(struct team *p, size_t count) {
    pthread_mutex_lock(&p->lock);
    p->closing = true;
    pthread_cond_broadcast(&p->start);
    pthread_mutex_unlock(&p->lock);
    for (size_t i = 0; i < count; i++)
        pthread_join(p->workers[i].thread, NULL);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->start);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

int team_open(uint32_t threads, struct team **out) {
    size_t count = threads > 0 ? threads - 1 : 0;
    struct team *p = calloc(1, sizeof(*p) + count * sizeof(p->workers[0]));
    if (p == NULL)
        return -ENOMEM;
    p->threads = (uint32_t)count + 1;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->start, NULL);
    pthread_cond_init(&p->done, NULL);

    /* Signals are for the threads that ask for them. */
    sigset_t all, saved;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &saved);
    int rc = 0;
    size_t made = 0;
    for (; made < count; made++) {
        struct worker *w = &p->workers[made];
        *w = (struct worker){.team = p, .part = made + 1};
        rc = -pthread_create(&w->thread, NULL, worker_main, w);
        if (rc != 0)
            break;
    }
    pthread_sigmask(SIG_SETMASK, &saved, NULL);
    if (rc != 0) {
        team_stop(p, made);
        return rc;
    }
    *out = p;
    return 0;
}

void team_close(struct team *p) {
    if (p != NULL)
        team_stop(p, p->threads - 1);
}

uint32_t team_threads(const struct team *p) { return p->threads; }

void team_run(struct team *p, team_fn *fn, void *arg) {
    if (p->threads == 1) {
        fn(arg, 0, 1);
        return;
    }
    pthread_mutex_lock(&p->lock);
    p->fn = fn;
    p->arg = arg;
    p->running = p->threads - 1;
    p->round++;
    pthread_cond_broadcast(&p->start);
    pthread_mutex_unlock(&p->lock);
    fn(arg, 0, p->threads);
    pthread_mutex_lock(&p->lock);
    while (p->running > 0)
        pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
}
