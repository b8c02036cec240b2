/* fake_mount.c - fusermount3 and its socket. */
#include "config.h"

#include "fake_mount.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static char mounts[4][512]; /* those that exist */

static _Noreturn void skip(const char *why) {
    printf("1..0 # SKIP %s\n", why);
    exit(77);
}

static pid_t spawn_mount(const char *mnt, bool allow_other, int socket) {
    char options[256], number[16];
    snprintf(options, sizeof(options),
             "fsname=gatherfs,subtype=gatherfs,max_read=1048576,default_permissions,nosuid,nodev%s",
             allow_other ? ",allow_other" : "");
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    fcntl(socket, F_SETFD, 0);
    snprintf(number, sizeof(number), "%d", socket);
    setenv("_FUSE_COMMFD", number, 1);
    execlp("fusermount3", "fusermount3", "-o", options, "--", mnt, (char *)NULL);
    _exit(127);
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
                        .msg_controllen = sizeof(control)};
    int fd = -1;
    if (recvmsg(socket, &mh, MSG_CMSG_CLOEXEC) != 1)
        return -1;
    struct cmsghdr *c = CMSG_FIRSTHDR(&mh);
    if (c != NULL && c->cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(c), sizeof(fd));
    return fd;
}

static void unmount_all(void) {
    for (int i = 0; i < 4; i++)
        if (mounts[i][0] != '\0')
            fake_unmount(mounts[i]);
}

static void remember(const char *mnt) {
    static bool registered;
    if (!registered)
        atexit(unmount_all);
    registered = true;
    for (int i = 0; i < 4; i++) {
        if (mounts[i][0] == '\0') {
            snprintf(mounts[i], sizeof(mounts[i]), "%s", mnt);
            return;
        }
    }
}

int fake_mount(const char *mnt, bool allow_other) {
    int fds[2];
    if (access("/dev/fuse", R_OK | W_OK) != 0)
        skip("/dev/fuse can't be opened");
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
        skip("no socket pair");
    pid_t pid = spawn_mount(mnt, allow_other, fds[1]);
    close(fds[1]);
    int fd = receive_fd(fds[0]), status = 0;
    close(fds[0]);
    waitpid(pid, &status, 0);
    if (fd < 0)
        skip(WIFEXITED(status) && WEXITSTATUS(status) == 127 ? "fusermount3 is not there"
                                                             : "fusermount3 can't mount here");
    remember(mnt);
    return fd;
}

void fake_unmount(const char *mnt) {
    if (umount2(mnt, MNT_DETACH | UMOUNT_NOFOLLOW) != 0 && errno == EPERM) {
        pid_t pid = fork();
        if (pid == 0) {
            execlp("fusermount3", "fusermount3", "-u", "-z", "-q", "--", mnt, (char *)NULL);
            _exit(127);
        }
        waitpid(pid, NULL, 0);
    }
    for (int i = 0; i < 4; i++)
        if (mnt != mounts[i] && strcmp(mounts[i], mnt) == 0)
            mounts[i][0] = '\0';
}
