/* child.h - starting programs: signals as they were, output into a pipe, gone when the supervisor
 * is. */
#ifndef GFS_RUN_CHILD_H
#define GFS_RUN_CHILD_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"

struct child_args {
    const char *const *argv; /* NULL-terminated; argv[0] is looked up in PATH if it has no slash */
    const char *const *env;  /* NULL-terminated pairs: name, value; may be NULL */
    const int *fds;          /* these become 3, 4, ... of the child */
    unsigned fd_count;
    bool own_session; /* setsid: a terminal's signals do not reach it */
    bool may_outlive; /* it ends by itself when we do; else it gets SIGKILL then */
    int output_fd;    /* stdout and stderr; -1: as ours */
};

/* Returns after exec succeeded: -errno with a
 * sentence if it did not. */
int child_start(const struct child_args *a, pid_t *pid, struct err *err);

/* Full path of one of our own programs: beside /proc/self/exe, else in the libexec folder. */
int child_program(const char *name, char *out, size_t cap_bytes, struct err *err);

#endif
