/* mount_check.c - see mount_check.h. */
#include "config.h"

#include "mount_check.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "fake_mount.h"
#include "tensor/npy.h"

static unsigned done_count, failed_count;
static struct fake_world *current;

static void on_deadline(int sig) {
    (void)sig;
    static const char text[] = "Bail out! the deadline of the test has come\n";
    (void)!write(STDOUT_FILENO, text, sizeof(text) - 1);
    /* A bare system call. NOLINTNEXTLINE(bugprone-signal-handler) */
    umount2(current->mnt, MNT_DETACH | UMOUNT_NOFOLLOW);
    if (current->daemon > 0)
        kill(current->daemon, SIGKILL);
    _exit(1);
}

static void on_signal(int sig) { (void)sig; }

void check_signal_soon(void) {
    struct sigaction sa = {.sa_handler = on_signal};
    struct itimerval soon = {.it_value = {.tv_usec = 300000}};
    sigaction(SIGALRM, &sa, NULL);
    setitimer(ITIMER_REAL, &soon, NULL);
}

void check_begin(struct fake_world *f, unsigned deadline_seconds) {
    current = f;
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGALRM, on_deadline);
    alarm(deadline_seconds);
}

int check_end(void) {
    printf("1..%u\n", done_count);
    return failed_count == 0 ? 0 : 1;
}

bool check(bool is, const char *fmt, ...) {
    va_list ap;
    done_count++;
    failed_count += !is;
    printf("%sok %u - ", is ? "" : "not ", done_count);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
    return is;
}

void note(const char *fmt, ...) {
    va_list ap;
    printf("# ");
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
}

void check_skip(const char *what, const char *why) {
    printf("ok %u - %s # SKIP %s\n", ++done_count, what, why);
}

bool check_have(const char *program) {
    char command[256];
    snprintf(command, sizeof(command), "command -v %s >/dev/null 2>&1", program);
    return system(command) == 0;
}

double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void show(const char *path) {
    char line[400];
    FILE *out = fopen(path, "re");
    while (out != NULL && fgets(line, sizeof(line), out) != NULL)
        printf("#   %s%s", line, strchr(line, '\n') != NULL ? "" : "\n");
    if (out != NULL)
        fclose(out);
}

int shell(const struct fake_world *f, const char *fmt, ...) {
    char script[8192], tmp[400], out[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(script, sizeof(script), fmt, ap);
    va_end(ap);
    snprintf(tmp, sizeof(tmp), "%s/tmp", f->dir);
    snprintf(out, sizeof(out), "%s/out", f->dir);
    pid_t pid = fork();
    if (pid == 0) {
        setpgid(0, 0);
        setenv("M", f->mnt, 1);
        setenv("T", tmp, 1);
        setenv("R", f->run_dir, 1);
        int fd = open(out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        dup2(fd, STDOUT_FILENO);
        dup2(fd, STDERR_FILENO);
        signal(SIGPIPE, SIG_DFL);
        char whole[8400];
        snprintf(whole, sizeof(whole),
                 "not() { if eval \"$@\"; then return 1; else return 0; fi; }; "
                 "rm -rf \"$T\"; mkdir \"$T\"; cd \"$T\" || exit 99\n%s",
                 script);
        execlp("timeout", "timeout", "-k", "1", "30", "bash", "-eu", "-o", "pipefail", "-c", whole,
               (char *)NULL);
        _exit(127);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    int rc = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (rc != 0) {
        note("exit %d of: %.300s", rc, script);
        show(out);
    }
    return rc;
}

/* ---- files */

int open_at(const struct fake_world *f, int flags, const char *fmt, ...) {
    char path[1200], name[800];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof(name), fmt, ap);
    va_end(ap);
    snprintf(path, sizeof(path), "%s/%s", f->mnt, name);
    int fd = open(path, flags | O_CLOEXEC, 0600);
    return fd >= 0 ? fd : -errno;
}

int write_at(const struct fake_world *f, const char *path, const char *line) {
    int fd = open_at(f, O_WRONLY, "%s", path);
    if (fd < 0)
        return fd;
    ssize_t n = write(fd, line, strlen(line));
    int rc = n < 0 ? -errno : n == (ssize_t)strlen(line) ? 0 : -EIO;
    close(fd);
    return rc;
}

const char *read_at(const struct fake_world *f, const char *path) {
    static char text[4096];
    int fd = open_at(f, O_RDONLY, "%s", path);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : 0;
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
    return text;
}

int check_version(int fd, struct version *out) {
    char value[64] = "", step[64] = "";
    unsigned long long epoch, gen;
    if (fgetxattr(fd, "user.version", value, sizeof(value) - 1) < 0 ||
        fgetxattr(fd, "user.step", step, sizeof(step) - 1) < 0)
        return -errno;
    if (sscanf(value, "%llu.%llu", &epoch, &gen) != 2)
        return -EBADMSG;
    *out = (struct version){.epoch = epoch, .gen = gen, .step = strtoull(step, NULL, 10)};
    return 0;
}

static int tensor_index(const struct fake_world *f, const char *name) {
    int t = layout_find_tensor(&f->layout, name);
    if (t < 0) {
        printf("Bail out! no tensor %s\n", name);
        exit(1);
    }
    return t;
}

int check_range(const struct fake_world *f, int fd, uint32_t array, const char *tensor, bool npy,
                const struct version *v, uint64_t first_elem, uint64_t count) {
    const struct layout_tensor *t = &f->layout.tensors[tensor_index(f, tensor)];
    float *got = calloc(count + 1, sizeof(*got));
    uint64_t at = (npy ? NPY_HEADER_BYTES : 0) + first_elem * 4, done = 0;
    int rc = 0;
    while (rc == 0 && done < count * 4) {
        ssize_t n = pread(fd, (char *)got + done, count * 4 - done, (off_t)(at + done));
        rc = n < 0 ? -errno : n == 0 ? -EBADMSG : 0;
        done += n > 0 ? (uint64_t)n : 0;
    }
    for (uint64_t i = 0; rc == 0 && i < count; i++) {
        uint64_t elem = first_elem + i;
        if (got[i] != fake_value(v->epoch, v->gen, array, t->unit, t->offset_elems + elem)) {
            note("%s: element %llu is not of version %llu.%llu", tensor, (unsigned long long)elem,
                 (unsigned long long)v->epoch, (unsigned long long)v->gen);
            rc = -EBADMSG;
        }
    }
    free(got);
    return rc;
}

int check_file(const struct fake_world *f, const char *path, uint32_t array, const char *tensor,
               bool npy, struct version *out) {
    const struct layout_tensor *t = &f->layout.tensors[tensor_index(f, tensor)];
    uint8_t header[NPY_HEADER_BYTES], got[NPY_HEADER_BYTES];
    struct version v = {0};
    struct stat st;
    int fd = open_at(f, O_RDONLY, "%s", path);
    if (fd < 0)
        return fd;
    int rc = check_version(fd, &v);
    uint64_t size = t->numel * 4 + (npy ? NPY_HEADER_BYTES : 0);
    if (rc == 0 && (fstat(fd, &st) != 0 || (uint64_t)st.st_size != size))
        rc = -EBADMSG;
    if (rc == 0 && npy) {
        npy_header(&t->spec, header);
        ssize_t n = pread(fd, got, sizeof(got), 0);
        rc = n < 0                                                            ? -errno
             : n != NPY_HEADER_BYTES || memcmp(got, header, sizeof(got)) != 0 ? -EBADMSG
                                                                              : 0;
    }
    if (rc == 0)
        rc = check_range(f, fd, array, tensor, npy, &v, 0, t->numel);
    close(fd);
    if (rc == 0 && out != NULL)
        *out = v;
    return rc;
}
