/* output.c - a pipe, cut into lines, sorted into files by the component that wrote them. */
#include "config.h"

#include "run/output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

enum { LINE_BYTES = 8192, OUTPUT_MAX_FILES = 64 };

/* An open log file, by the name of its component. */
struct log_file {
    char name[32];
    int fd;
};

struct output {
    struct loop *loop;
    char run_dir[PATH_MAX], name[32];
    output_line_fn *on_line;
    void *arg;
    int fd;
    char line[LINE_BYTES];
    size_t len;
    struct log_file files[OUTPUT_MAX_FILES];
    size_t file_count;
};

static int file_of(struct output *o, const char *name) {
    for (size_t i = 0; i < o->file_count; i++)
        if (strcmp(o->files[i].name, name) == 0)
            return o->files[i].fd;
    if (o->file_count == OUTPUT_MAX_FILES)
        return o->files[0].fd;
    char path[PATH_MAX];
    if (file_path(path, sizeof path, "%s/log/%s.log", o->run_dir, name))
        return -1;
    struct log_file *f = &o->files[o->file_count++];
    snprintf(f->name, sizeof f->name, "%s", name);
    f->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    return f->fd;
}

/* "TIME COMPONENT: LEVEL: TEXT" as base/log.c writes it. False for any other line. */
static bool parse_log_line(const char *line, char component[32], bool *is_warning) {
    size_t time = strcspn(line, " ");
    if (time < 20 || line[time] != ' ' || line[10] != 'T')
        return false;
    const char *name = line + time + 1, *colon = strstr(name, ": ");
    if (!colon || colon - name >= 32)
        return false;
    snprintf(component, 32, "%.*s", (int)(colon - name), name);
    *is_warning = strncmp(colon + 2, "error: ", 7) == 0 || strncmp(colon + 2, "warning: ", 9) == 0;
    return true;
}

static void take_line(struct output *o) {
    char component[32] = "", name[32];
    bool is_warning = true;
    unsigned rank;
    o->line[o->len] = '\0';
    bool is_ours = parse_log_line(o->line, component, &is_warning);
    if (is_ours && sscanf(component, "rank %u", &rank) == 1)
        snprintf(name, sizeof name, "rank-%u", rank);
    else
        snprintf(name, sizeof name, "%s", o->name);
    if (is_warning && o->len > 0)
        o->on_line(o->arg, o->line, is_ours);
    o->line[o->len++] = '\n';
    int fd = file_of(o, name);
    if (fd >= 0)
        file_write_all(fd, o->line, o->len);
    o->len = 0;
}

/* True if there may be more now; *ended at the end of the pipe. */
static bool read_some(struct output *o, bool *ended) {
    char buffer[LINE_BYTES];
    ssize_t n = read(o->fd, buffer, sizeof buffer);
    *ended = n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN);
    if (n <= 0)
        return n < 0 && errno == EINTR;
    for (ssize_t i = 0; i < n; i++) {
        if (buffer[i] == '\n' || o->len == LINE_BYTES - 2)
            take_line(o);
        if (buffer[i] != '\n')
            o->line[o->len++] = buffer[i];
    }
    return true;
}

static void on_pipe(void *arg, short revents) {
    struct output *o = arg;
    bool ended;
    (void)revents;
    read_some(o, &ended);
    if (ended)
        loop_unwatch(o->loop, o->fd); /* freed by its owner */
}

int output_open(struct loop *l, const char *run_dir, const char *name, output_line_fn *on_line,
                void *arg, struct output **out, int *child_fd) {
    int fds[2];
    struct output *o = calloc(1, sizeof *o);
    if (!o)
        return -ENOMEM;
    if (pipe2(fds, O_CLOEXEC)) {
        int code = errno;
        free(o);
        return -code;
    }
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    o->loop = l;
    o->fd = fds[0];
    o->on_line = on_line;
    o->arg = arg;
    snprintf(o->run_dir, sizeof o->run_dir, "%s", run_dir);
    snprintf(o->name, sizeof o->name, "%s", name);
    int rc = loop_watch(l, o->fd, POLLIN, on_pipe, o);
    if (rc) {
        close(fds[0]);
        close(fds[1]);
        free(o);
        return rc;
    }
    *out = o;
    *child_fd = fds[1];
    return 0;
}

void output_close(struct output *o) {
    if (!o)
        return;
    bool ended;
    while (read_some(o, &ended))
        ;
    if (o->len > 0)
        take_line(o);
    loop_unwatch(o->loop, o->fd);
    close(o->fd);
    for (size_t i = 0; i < o->file_count; i++)
        if (o->files[i].fd >= 0)
            close(o->files[i].fd);
    free(o);
}
