/* child.c - fork, exec, and the error of exec through a pipe. */
#include "config.h"

#include "run/child.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"

enum { CHILD_FIRST_FD = 3, CHILD_MAX_FDS = 8 };

static void reset_signals(void) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
}

/* First all above their destination, then down: no dup2 overwrites one that is still to be moved.
 */
static int place_fds(const struct child_args *a, int *error_fd) {
    int high[CHILD_MAX_FDS];
    int floor = CHILD_FIRST_FD + (int)a->fd_count;
    for (unsigned i = 0; i < a->fd_count; i++)
        if ((high[i] = fcntl(a->fds[i], F_DUPFD_CLOEXEC, floor)) < 0)
            return -1;
    int moved = fcntl(*error_fd, F_DUPFD_CLOEXEC, floor);
    if (moved < 0)
        return -1;
    *error_fd = moved;
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null < 0 || dup2(null, STDIN_FILENO) < 0)
        return -1;
    if (a->output_fd >= 0 &&
        (dup2(a->output_fd, STDOUT_FILENO) < 0 || dup2(a->output_fd, STDERR_FILENO) < 0))
        return -1;
    for (unsigned i = 0; i < a->fd_count; i++)
        if (dup2(high[i], CHILD_FIRST_FD + (int)i) < 0)
            return -1;
    return 0;
}

static _Noreturn void child_exec(const struct child_args *a, pid_t parent, int error_fd) {
    if (!a->may_outlive) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(127);
    }
    if (a->own_session)
        setsid();
    if (place_fds(a, &error_fd) == 0) {
        for (const char *const *e = a->env; e && e[0]; e += 2)
            setenv(e[0], e[1], 1);
        reset_signals();
        execvp(a->argv[0], (char *const *)a->argv);
    }
    int code = errno;
    ssize_t n = write(error_fd, &code, sizeof code);
    (void)n;
    _exit(127);
}

int child_start(const struct child_args *a, pid_t *pid, struct err *err) {
    if (a->fd_count > CHILD_MAX_FDS)
        return err_set(err, EINVAL, "too many descriptors for %s", a->argv[0]);
    int error_pipe[2];
    if (pipe2(error_pipe, O_CLOEXEC))
        return err_set(err, errno, "pipe: %s", strerror(errno));
    pid_t parent = getpid(), child = fork();
    if (child == 0)
        child_exec(a, parent, error_pipe[1]);
    int code = child < 0 ? errno : 0;
    close(error_pipe[1]);
    if (child > 0) {
        ssize_t n;
        do
            n = read(error_pipe[0], &code, sizeof code);
        while (n < 0 && errno == EINTR);
        if (n != (ssize_t)sizeof code)
            code = 0;
        else
            waitpid(child, NULL, 0);
    }
    close(error_pipe[0]);
    if (code)
        return err_set(err, code, "cannot start %s: %s", a->argv[0], strerror(code));
    *pid = child;
    return 0;
}

int child_program(const char *name, char *out, size_t cap_bytes, struct err *err) {
    char dir[PATH_MAX];
    int rc = file_exe_dir(dir, sizeof dir);
    if (!rc)
        rc = file_path(out, cap_bytes, "%s/%s", dir, name);
    if (!rc && access(out, X_OK) == 0)
        return 0;
    rc = file_path(out, cap_bytes, "%s/%s", GFS_LIBEXECDIR, name);
    if (!rc && access(out, X_OK) == 0)
        return 0;
    return err_set(err, ENOENT, "%s is neither beside this program nor in %s", name,
                   GFS_LIBEXECDIR);
}
