/* offload_file.c - direct I/O, where the file system has it. */
#include "config.h"

#include "engine/offload_file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

enum { JOBS_MAX = 4, WINDOW_BYTES = 1 << 20 };

struct offload_file {
    int fd;
    char *dir;
    pthread_t thread;
    bool running;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct offload_job jobs[JOBS_MAX];
    uint64_t started, finished; /* numbers of jobs */
    bool closing;
    int rc; /* of the first failure */
    char why[1200];
    pthread_mutex_t window_lock;
    uint8_t *window; /* WINDOW_BYTES, aligned: for ranges that are not */
};

static int transfer(int fd, bool write, uint64_t offset, uint8_t *data, size_t bytes) {
    while (bytes > 0) {
        ssize_t n =
            write ? pwrite(fd, data, bytes, (off_t)offset) : pread(fd, data, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            return -EIO;
        data += n;
        offset += (size_t)n;
        bytes -= (size_t)n;
    }
    return 0;
}

static void file_failed(struct offload_file *f, bool write, int rc) {
    if (f->rc != 0)
        return;
    f->rc = rc;
    snprintf(f->why, sizeof f->why, "offload: %s the scratch file in %s: %s",
             write ? "writing" : "reading", f->dir, strerror(-rc));
}

static void *file_main(void *arg) {
    struct offload_file *f = arg;
    pthread_mutex_lock(&f->lock);
    for (;;) {
        while (f->finished == f->started && !f->closing)
            pthread_cond_wait(&f->changed, &f->lock);
        if (f->finished == f->started)
            break;
        struct offload_job job = f->jobs[(f->finished + 1) % JOBS_MAX];
        int rc = f->rc;
        pthread_mutex_unlock(&f->lock);
        if (rc == 0 && job.before != NULL)
            rc = job.before(job.ctx);
        if (rc == 0)
            rc = transfer(f->fd, job.write, job.offset, job.data, job.bytes);
        pthread_mutex_lock(&f->lock);
        if (rc != 0)
            file_failed(f, job.write, rc);
        f->finished++;
        pthread_cond_broadcast(&f->changed);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

/* Without a name from the start where the file system can do that. */
static int file_create(const char *dir) {
    char path[4200];
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
        return fd >= 0 ? fd : -errno;
    if (snprintf(path, sizeof path, "%s/gatherfs-offload-XXXXXX", dir) >= (int)sizeof path)
        return -ENAMETOOLONG;
    fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        return -errno;
    (void)unlink(path);
    return fd;
}

static int file_reserve(struct offload_file *f, uint64_t bytes) {
    int rc = posix_fallocate(f->fd, 0, (off_t)bytes);
    if (rc != 0)
        return -rc;
    int flags = fcntl(f->fd, F_GETFL);
    if (flags >= 0)
        (void)fcntl(f->fd, F_SETFL, flags | O_DIRECT); /* tmpfs has none, and is memory anyway */
    return 0;
}

void offload_file_close(struct offload_file *f) {
    if (f == NULL)
        return;
    if (f->running) {
        pthread_mutex_lock(&f->lock);
        f->closing = true;
        pthread_cond_broadcast(&f->changed);
        pthread_mutex_unlock(&f->lock);
        pthread_join(f->thread, NULL);
    }
    if (f->fd >= 0)
        close(f->fd);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    pthread_mutex_destroy(&f->window_lock);
    free(f->window);
    free(f->dir);
    free(f);
}

int offload_file_open(const char *dir, uint64_t bytes, struct offload_file **out, struct err *err) {
    struct offload_file *f = calloc(1, sizeof *f);
    if (f == NULL)
        return err_set(err, ENOMEM, "no memory for the offload");
    f->fd = -1;
    pthread_mutex_init(&f->lock, NULL);
    pthread_mutex_init(&f->window_lock, NULL);
    pthread_cond_init(&f->changed, NULL);
    f->dir = strdup(dir);
    f->window = aligned_alloc(OFFLOAD_ALIGN_BYTES, WINDOW_BYTES);
    int rc = f->dir == NULL || f->window == NULL ? -ENOMEM : 0;
    if (rc == 0) {
        f->fd = file_create(dir);
        rc = f->fd < 0 ? f->fd : 0;
    }
    if (rc == 0)
        rc = file_reserve(f, bytes);
    if (rc != 0) {
        rc = err_set(err, -rc, "offload = optimizer=file:%s: a scratch file of %llu bytes: %s", dir,
                     (unsigned long long)bytes, strerror(-rc));
        offload_file_close(f);
        return rc;
    }
    rc = pthread_create(&f->thread, NULL, file_main, f);
    f->running = rc == 0;
    if (rc != 0) {
        rc = err_set(err, rc, "the thread of the offload could not be started");
        offload_file_close(f);
        return rc;
    }
    *out = f;
    return 0;
}

uint64_t offload_file_start(struct offload_file *f, const struct offload_job *job) {
    pthread_mutex_lock(&f->lock);
    while (f->started - f->finished == JOBS_MAX)
        pthread_cond_wait(&f->changed, &f->lock);
    uint64_t number = ++f->started;
    f->jobs[number % JOBS_MAX] = *job;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    return number;
}

int offload_file_wait(struct offload_file *f, uint64_t job) {
    pthread_mutex_lock(&f->lock);
    while (f->finished < job)
        pthread_cond_wait(&f->changed, &f->lock);
    int rc = f->rc;
    pthread_mutex_unlock(&f->lock);
    return rc;
}

/* The part of [offset, offset + bytes) that one window covers, and the window. */
struct window {
    uint64_t start;
    size_t bytes, skip, part;
};

static struct window window_at(uint64_t offset, size_t bytes) {
    struct window w = {.start = offset / OFFLOAD_ALIGN_BYTES * OFFLOAD_ALIGN_BYTES};
    w.skip = (size_t)(offset - w.start);
    w.part = bytes < WINDOW_BYTES - w.skip ? bytes : WINDOW_BYTES - w.skip;
    w.bytes =
        (w.skip + w.part + OFFLOAD_ALIGN_BYTES - 1) / OFFLOAD_ALIGN_BYTES * OFFLOAD_ALIGN_BYTES;
    return w;
}

int offload_file_read(struct offload_file *f, uint64_t offset, size_t bytes, void *dst) {
    int rc = 0;
    pthread_mutex_lock(&f->window_lock);
    for (size_t done = 0; done < bytes && rc == 0;) {
        struct window w = window_at(offset + done, bytes - done);
        rc = transfer(f->fd, false, w.start, f->window, w.bytes);
        if (rc == 0)
            memcpy((uint8_t *)dst + done, f->window + w.skip, w.part);
        done += w.part;
    }
    pthread_mutex_unlock(&f->window_lock);
    if (rc != 0) /* for a reader, who hears less; the training goes on */
        log_warn("offload: reading the scratch file in %s: %s", f->dir, strerror(-rc));
    return rc;
}

int offload_file_write(struct offload_file *f, uint64_t offset, size_t bytes, const void *src) {
    int rc = 0;
    pthread_mutex_lock(&f->window_lock);
    for (size_t done = 0; done < bytes && rc == 0;) {
        struct window w = window_at(offset + done, bytes - done);
        if (w.part != w.bytes)
            rc = transfer(f->fd, false, w.start, f->window, w.bytes);
        if (rc == 0) {
            memcpy(f->window + w.skip, (const uint8_t *)src + done, w.part);
            rc = transfer(f->fd, true, w.start, f->window, w.bytes);
        }
        done += w.part;
    }
    pthread_mutex_unlock(&f->window_lock);
    return rc;
}

const char *offload_file_why(const struct offload_file *f) { return f->why; }
