/* mountpoint.c - mount(2) as root, else fusermount3. */
#include "config.h"

#include "run/mountpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "run/child.h"

enum { MOUNT_MAX_READ_BYTES = 1 << 20, FUSERMOUNT_WAIT_MS = 10000, ASK_MOUNT_MS = 3000 };
static const char mount_source[] = "gatherfs";
static const char mount_type[] = "fuse.gatherfs";

/* ---- /proc/self/mountinfo */

/* Octal escapes of mountinfo, in place. */
static void unescape(char *s) {
    char *out = s;
    for (; *s; s++) {
        if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] && s[3]) {
            *out++ = (char)((s[1] - '0') * 64 + (s[2] - '0') * 8 + (s[3] - '0'));
            s += 3;
        } else {
            *out++ = *s;
        }
    }
    *out = '\0';
}

/* "ID PARENT MAJOR:MINOR ROOT MOUNTPOINT OPTIONS [TAGS] - TYPE SOURCE SUPER": true if it is of
 * path. */
static bool parse_mountinfo(char *line, const char *path, char device[32], enum mount_kind *kind) {
    char *field[5], *rest = line;
    for (int i = 0; i < 5; i++)
        if (!(field[i] = strsep(&rest, " ")))
            return false;
    unescape(field[4]);
    if (strcmp(field[4], path) != 0)
        return false;
    char *type = rest ? strstr(rest, " - ") : NULL;
    bool ours = type && strncmp(type + 3, mount_type, strlen(mount_type)) == 0 &&
                type[3 + strlen(mount_type)] == ' ';
    *kind = ours ? MOUNT_OURS : MOUNT_FOREIGN;
    if (device)
        snprintf(device, 32, "%.31s", field[2]);
    return true;
}

enum mount_kind mountpoint_kind(const char *path, char device[32]) {
    enum mount_kind kind = MOUNT_NONE;
    FILE *f = fopen("/proc/self/mountinfo", "re");
    if (!f)
        return kind;
    char *line = NULL;
    size_t cap = 0;
    while (getline(&line, &cap, f) > 0)
        parse_mountinfo(line, path, device, &kind);
    free(line);
    fclose(f);
    return kind;
}

bool mountpoint_is_mounted(const struct mountpoint *m) {
    char device[32] = "";
    return m->fuse_fd >= 0 && mountpoint_kind(m->path, device) == MOUNT_OURS &&
           strcmp(device, m->device) == 0;
}

/* ---- fusermount3 */

static int wait_child(pid_t pid) {
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int receive_fd(int socket) {
    char byte;
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = &byte, .iov_len = 1};
    struct msghdr mh = {.msg_iov = &iov,
                        .msg_iovlen = 1,
                        .msg_control = control.bytes,
                        .msg_controllen = sizeof control.bytes};
    struct pollfd p = {.fd = socket, .events = POLLIN};
    if (poll(&p, 1, FUSERMOUNT_WAIT_MS) != 1)
        return -ETIMEDOUT;
    if (recvmsg(socket, &mh, MSG_CMSG_CLOEXEC) <= 0)
        return -EPIPE;
    const struct cmsghdr *c = CMSG_FIRSTHDR(&mh);
    if (!c || c->cmsg_type != SCM_RIGHTS || c->cmsg_len < CMSG_LEN(sizeof(int)))
        return -EPROTO;
    int fd;
    memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return fd;
}

static int fusermount_mount(const char *path, bool allow_other, int *out, struct err *err) {
    char options[200], number[16];
    int pair[2];
    snprintf(options, sizeof options, "fsname=%s,subtype=gatherfs,nosuid,nodev,max_read=%d%s",
             mount_source, MOUNT_MAX_READ_BYTES,
             allow_other ? ",allow_other,default_permissions" : "");
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
        return err_set(err, errno, "socketpair: %s", strerror(errno));
    const char *argv[] = {"fusermount3", "-o", options, "--", path, NULL};
    snprintf(number, sizeof number, "%d", 3);
    const char *env[] = {"_FUSE_COMMFD", number, NULL};
    struct child_args a = {
        .argv = argv, .env = env, .fds = &pair[1], .fd_count = 1, .output_fd = -1};
    pid_t pid;
    int rc = child_start(&a, &pid, err);
    close(pair[1]);
    if (!rc) {
        int fd = receive_fd(pair[0]);
        wait_child(pid);
        if (fd < 0)
            rc = err_set(err, EIO, "fusermount3 could not mount %s (see above)", path);
        else
            *out = fd;
    }
    close(pair[0]);
    return rc;
}

static int fusermount_unmount(const char *path, bool lazy) {
    const char *argv[] = {"fusermount3",      "-q", "-u", lazy ? "-z" : "--", lazy ? "--" : path,
                          lazy ? path : NULL, NULL};
    struct child_args a = {.argv = argv, .output_fd = -1};
    pid_t pid;
    int rc = child_start(&a, &pid, NULL);
    return rc ? rc : wait_child(pid) == 0 ? 0 : -EBUSY;
}

/* ---- mounting */

static int direct_mount(const char *path, bool allow_other, int *out, struct err *err) {
    char options[200];
    int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, errno, "/dev/fuse: %s", strerror(errno));
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=%u,group_id=%u,max_read=%d%s",
             fd, (unsigned)geteuid(), (unsigned)getegid(), MOUNT_MAX_READ_BYTES,
             allow_other ? ",allow_other,default_permissions" : "");
    if (mount(mount_source, path, mount_type, MS_NOSUID | MS_NODEV, options)) {
        int code = errno;
        close(fd);
        return err_set(err, code, "cannot mount %s: %s", path, strerror(code));
    }
    *out = fd;
    return 0;
}

static int unmount(const char *path, bool lazy) {
    if (geteuid() != 0)
        return fusermount_unmount(path, lazy);
    return umount2(path, UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0)) ? -errno : 0;
}

enum mount_life { MOUNT_LIVES, MOUNT_DEAD, MOUNT_SILENT };

/* A mount whose daemon is gone answers ENOTCONN. It is asked from a child, for a daemon that hangs
 * lets nobody go. */
static enum mount_life ask_mount(const char *path) {
    pid_t pid = fork();
    if (pid == 0) {
        DIR *d = opendir(path);
        _exit(!d && (errno == ENOTCONN || errno == ECONNABORTED) ? MOUNT_DEAD : MOUNT_LIVES);
    }
    for (int ms = 0; pid > 0 && ms < ASK_MOUNT_MS; ms += 5) {
        int status;
        if (waitpid(pid, &status, WNOHANG) == pid)
            return WIFEXITED(status) ? (enum mount_life)WEXITSTATUS(status) : MOUNT_SILENT;
        usleep(5000);
    }
    if (pid > 0)
        kill(pid, SIGKILL);
    return MOUNT_SILENT;
}

/* The caller holds the lock of the run directory: a dead mount of gatherfs here is nobody's. */
static int take_dead_away(const char *path, struct err *err) {
    char device[32];
    for (int i = 0; i < 8; i++) {
        enum mount_kind kind = mountpoint_kind(path, device);
        if (kind == MOUNT_NONE)
            return 0;
        if (kind == MOUNT_FOREIGN)
            return err_set(err, EBUSY, "something else is mounted at %s", path);
        enum mount_life life = ask_mount(path);
        if (life == MOUNT_LIVES)
            return err_set(err, EBUSY, "another run is mounted at %s: `gatherfs stop %s` ends it",
                           path, path);
        if (life == MOUNT_SILENT)
            return err_set(err, EBUSY,
                           "the mount at %s does not answer: `umount -l %s` takes it away", path,
                           path);
        log_info("taking away the dead mount at %s", path);
        if (unmount(path, true))
            return err_set(err, EBUSY, "cannot take away the dead mount: run `umount -l %s`", path);
    }
    return err_set(err, EBUSY, "too many mounts at %s", path);
}

static int check_directory(const char *path, struct err *err) {
    if (mkdir(path, 0755) == 0)
        return 0;
    if (errno != EEXIST)
        return err_set(err, errno, "cannot make %s: %s", path, strerror(errno));
    DIR *d = opendir(path);
    if (!d)
        return err_set(err, errno, "%s: %s", path, strerror(errno));
    bool empty = true;
    for (const struct dirent *e; empty && (e = readdir(d));)
        empty = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
    closedir(d);
    return empty ? 0
                 : err_set(err, ENOTEMPTY, "%s is not empty: nothing is mounted over files", path);
}

int mountpoint_open(const char *path, bool allow_other, struct mountpoint *out, struct err *err) {
    int fd = -1, rc = take_dead_away(path, err);
    if (!rc)
        rc = check_directory(path, err);
    if (!rc && access("/dev/fuse", F_OK))
        rc = err_set(err, ENOENT,
                     "there is no /dev/fuse here: load the module fuse, or train with --no-mount");
    if (!rc)
        rc = geteuid() == 0 ? direct_mount(path, allow_other, &fd, err)
                            : fusermount_mount(path, allow_other, &fd, err);
    if (rc)
        return rc;
    *out = (struct mountpoint){.fuse_fd = fd};
    snprintf(out->path, sizeof out->path, "%s", path);
    mountpoint_kind(path, out->device);
    return 0;
}

void mountpoint_close(struct mountpoint *m, bool *lazy) {
    if (lazy)
        *lazy = false;
    if (m->fuse_fd < 0)
        return;
    if (mountpoint_is_mounted(m) && unmount(m->path, false) && mountpoint_is_mounted(m)) {
        if (unmount(m->path, true))
            log_warn("cannot unmount %s: run `umount -l %s`", m->path, m->path);
        if (lazy)
            *lazy = true;
    }
    close(m->fuse_fd);
    m->fuse_fd = -1;
}
