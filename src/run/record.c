/* record.c - appending to metrics.tsv and events, and passing on to the catalogue. */
#include "config.h"

#include "run/record.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "run/loop.h"

static const char metrics_header[] =
    "step\tattempt\tepoch\tgen\tloss\tgrad_norm\tclip_factor\tlr\ttokens\tstep_seconds\ttime\n";

enum { TAIL_BYTES = 4096 };

/* Opens for appending; cuts a last line that has no end. */
static int open_append(const char *run_dir, const char *name, uint64_t *bytes,
                       char tail[TAIL_BYTES]) {
    char path[PATH_MAX];
    struct stat st;
    tail[0] = '\0';
    if (file_path(path, sizeof path, "%s/%s", run_dir, name))
        return -ENAMETOOLONG;
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st))
        goto fail;
    off_t from = st.st_size > TAIL_BYTES - 1 ? st.st_size - (TAIL_BYTES - 1) : 0;
    ssize_t n = pread(fd, tail, (size_t)(st.st_size - from), from);
    if (n < 0)
        goto fail;
    tail[n] = '\0';
    char *end = memrchr(tail, '\n', (size_t)n);
    size_t keep = end ? (size_t)(end - tail) + 1 : 0;
    tail[keep] = '\0';
    if ((ssize_t)keep < n && (end || from == 0) && ftruncate(fd, from + (off_t)keep))
        goto fail;
    *bytes = (uint64_t)from + keep;
    return fd;
fail:;
    int code = errno;
    close(fd);
    return -code;
}

/* The step and gen of the last row. */
static void read_last_row(struct record *r, char *tail) {
    size_t n = strlen(tail);
    if (n == 0)
        return;
    tail[n - 1] = '\0';
    const char *row = strrchr(tail, '\n');
    row = row ? row + 1 : tail;
    uint64_t step, gen;
    if (sscanf(row, "%" SCNu64 "\t%*s\t%*s\t%" SCNu64 "\t", &step, &gen) == 2) {
        r->last_step = step;
        r->last_gen = gen;
    }
}

static void append(struct record *r, int *fd, uint64_t *bytes, const char *text, size_t len_bytes,
                   const char *name) {
    if (*fd < 0)
        return;
    ssize_t n = write(*fd, text, len_bytes);
    if (n == (ssize_t)len_bytes) {
        *bytes += len_bytes;
        return;
    }
    int code = n < 0 ? errno : ENOSPC;
    /* No half line; the file goes on when there is room again. */
    if (n > 0 && ftruncate(*fd, (off_t)*bytes))
        *bytes += (uint64_t)n;
    if (code != r->warned_code)
        log_warn("%s: %s", name, strerror(code));
    r->warned_code = code;
}

int record_open(const char *run_dir, struct record *out, struct err *err) {
    char tail[TAIL_BYTES];
    struct record r = {0};
    r.metrics_fd = open_append(run_dir, "metrics.tsv", &r.metrics_bytes, tail);
    if (r.metrics_fd < 0)
        return err_set(err, -r.metrics_fd, "%s/metrics.tsv: %s", run_dir, strerror(-r.metrics_fd));
    read_last_row(&r, tail);
    if (r.metrics_bytes == 0)
        append(&r, &r.metrics_fd, &r.metrics_bytes, metrics_header, strlen(metrics_header),
               "metrics.tsv");
    r.events_fd = open_append(run_dir, "events", &r.events_bytes, tail);
    if (r.events_fd < 0) {
        close(r.metrics_fd);
        return err_set(err, -r.events_fd, "%s/events: %s", run_dir, strerror(-r.events_fd));
    }
    struct err why = {0};
    if (catalogue_open(run_dir, &r.catalogue, &why)) {
        log_warn("the run is not recorded in run.db: %s", why.text);
        r.catalogue = NULL;
    }
    *out = r;
    return 0;
}

void record_close(struct record *r) {
    if (r->catalogue) {
        catalogue_flush(r->catalogue, true);
        catalogue_close(r->catalogue);
    }
    if (r->metrics_fd >= 0)
        close(r->metrics_fd);
    if (r->events_fd >= 0)
        close(r->events_fd);
    *r = (struct record){.metrics_fd = -1, .events_fd = -1};
}

void record_step(struct record *r, const struct catalogue_step *s) {
    char row[400];
    int n = snprintf(row, sizeof row,
                     "%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64
                     "\t%.9g\t%.9g\t%.9g\t%.9g\t%" PRIu64 "\t%.6f\t%" PRIu64 ".%03" PRIu64 "\n",
                     s->step, s->attempt, s->epoch, s->gen, s->loss, s->grad_norm, s->clip_factor,
                     s->lr, s->tokens, s->step_seconds, s->time_ns / 1000000000u,
                     s->time_ns / 1000000u % 1000u);
    append(r, &r->metrics_fd, &r->metrics_bytes, row, (size_t)n, "metrics.tsv");
    if (r->catalogue)
        catalogue_step(r->catalogue, s);
}

void record_event(struct record *r, const char *kind, const char *fmt, ...) {
    char text[600], line[700], when[32];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (char *p = text; *p; p++)
        if (*p == '\n' || *p == '\r')
            *p = ' ';
    uint64_t now = loop_time_ns();
    time_t seconds = (time_t)(now / 1000000000u);
    struct tm tm;
    gmtime_r(&seconds, &tm);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &tm);
    int n = snprintf(line, sizeof line, "%s.%03uZ %s %s\n", when,
                     (unsigned)(now / 1000000u % 1000u), kind, text);
    append(r, &r->events_fd, &r->events_bytes, line, (size_t)n, "events");
    if (r->catalogue)
        catalogue_event(r->catalogue, now, kind, text);
}

void record_command(struct record *r, const struct catalogue_command *c) {
    if (r->catalogue)
        catalogue_command(r->catalogue, c);
}

void record_attempt(struct record *r, uint64_t attempt, uint64_t epoch, uint32_t world_size,
                    const char *outcome) {
    if (r->catalogue)
        catalogue_attempt(r->catalogue, attempt, epoch, world_size, outcome);
}

void record_snapshot(struct record *r, const struct snapshot_info *info, bool removed) {
    if (!r->catalogue)
        return;
    catalogue_snapshot(r->catalogue, info, removed);
    catalogue_flush(r->catalogue, true);
}

void record_flush(struct record *r) {
    if (r->catalogue)
        catalogue_flush(r->catalogue, false);
}
