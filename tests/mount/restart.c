/* restart.c - the daemon dies and another takes the mount over; and how a mount ends. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mount_check.h"

static const char weight[] = "transformer.h.1.mlp.weight";
enum { ELEMS = 1024 * 1025 };

static int exit_of(pid_t pid) {
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static uint32_t wanted;
static bool has_wanted(struct fake_world *f) { return f->command_count >= wanted; }

/* Has the kernel this very question or must it ask? Nothing of the file is cached yet when it was
 * opened last. */
static void survive(struct fake_world *f) {
    struct version v = {f->epoch, f->gen, f->step};
    int snapshot = open_at(f, O_RDONLY, "snapshots/first/params/%s.npy", weight);
    int pin = open_at(f, O_RDONLY, "pins/pinned/raw/exp_avg/%s", weight);
    int live = open_at(f, O_RDONLY, "live/params/%s.npy", weight);
    int control = open_at(f, O_RDWR, "control/lr");
    int dir = open_at(f, O_RDONLY | O_DIRECTORY, "snapshots/first/params");
    fake_kill_daemon(f);
    fake_start_daemon(f);
    check(check_range(f, snapshot, ARRAY_PARAMS, weight, true, &v, 0, ELEMS) == 0,
          "an open file of a snapshot goes on reading");
    check(check_range(f, pin, ARRAY_EXP_AVG, weight, false, &v, 0, ELEMS) == 0,
          "an open file of a pin goes on reading");
    check(check_range(f, live, ARRAY_PARAMS, weight, true, &v, 0, ELEMS) == -EIO,
          "an open live file gives EIO");
    char value[64] = "";
    check(pwrite(control, "0.002\n", 6, 0) == 6 && pread(control, value, 63, 0) > 0,
          "an open control file goes on");
    struct stat st;
    check(fstatat(dir, "scale.npy", &st, 0) == 0 && st.st_size == 132, "an open directory goes on");
    check(check_file(f, "live/params/scale.npy", ARRAY_PARAMS, "scale", true, NULL) == 0,
          "a new open works");
    close(snapshot);
    close(pin);
    close(live);
    close(control);
    close(dir);
}

static void parked(struct fake_world *f, bool mask) {
    const char *how = mask ? "without resend" : "with resend";
    fake_lock(f);
    f->hold_commands = true;
    f->mask_resend = mask;
    uint32_t first = f->command_count;
    fake_unlock(f);
    const char *line = mask ? "5 masked\n" : "5\n";
    pid_t writer = fork();
    if (writer == 0)
        _exit(-write_at(f, "control/step", line));
    wanted = first + 1;
    fake_wait(f, has_wanted, 5);
    fake_kill_daemon(f);
    usleep(100000);
    fake_start_daemon(f);
    usleep(200000);
    fake_lock(f);
    fake_finish(f, first, 0, "done");
    f->hold_commands = false;
    uint32_t count = f->command_count;
    fake_unlock(f);
    int code = exit_of(writer);
    check(code == (mask ? EIO : 0) && count == first + 1,
          "%s: a write that waits %s (%d), and the command is there once", how,
          mask ? "gets EIO" : "is answered by the successor", code);
    if (mask)
        check(write_at(f, "control/step", line) == 0, "%s: the same id attaches to what went on",
              how);
    fake_lock(f);
    f->mask_resend = false;
    fake_unlock(f);
}

/* A read of a pin that waits for its boundary, through two daemons. */
static void waiting_pin(struct fake_world *f) {
    fake_lock(f);
    f->hold_pins = 1;
    fake_unlock(f);
    check(shell(f, "mkdir $M/pins/late") == 0, "a pin that waits");
    pid_t reader = fork();
    if (reader == 0) {
        char byte;
        int fd = open_at(f, O_RDONLY, "pins/late/params/scale.npy");
        _exit(pread(fd, &byte, 1, 0) == 1 ? 0 : 1);
    }
    usleep(300000);
    for (int i = 0; i < 2; i++) {
        fake_kill_daemon(f);
        fake_start_daemon(f);
    }
    fake_lock(f);
    fake_pin_fix(f, &f->pins[f->pin_count - 1]);
    f->hold_pins = 0;
    fake_unlock(f);
    check(exit_of(reader) == 0, "a read that waits for its pin is answered after two restarts");
}

struct reader {
    struct fake_world *f;
    bool stop;
    unsigned reads, wrong, live_wrong;
};

static void *read_on(void *arg) {
    struct reader *r = arg;
    while (!__atomic_load_n(&r->stop, __ATOMIC_RELAXED)) {
        int rc = check_file(r->f, "snapshots/first/exp_avg/transformer.h.0.attn.weight.npy",
                            ARRAY_EXP_AVG, "transformer.h.0.attn.weight", true, NULL);
        if (rc != 0)
            note("snapshot read: %d", rc);
        r->wrong += rc != 0;
        rc = check_file(r->f, "live/params/transformer.h.0.attn.weight.npy", ARRAY_PARAMS,
                        "transformer.h.0.attn.weight", true, NULL);
        r->live_wrong += rc != 0 && rc != -EIO;
        r->reads++;
    }
    return NULL;
}

static void storm(struct fake_world *f) {
    enum { READERS = 4 };
    struct reader r[READERS];
    pthread_t t[READERS];
    for (int i = 0; i < READERS; i++) {
        r[i] = (struct reader){.f = f};
        pthread_create(&t[i], NULL, read_on, &r[i]);
    }
    for (int i = 0; i < 12; i++) {
        usleep((unsigned)rand() % 150000);
        fake_kill_daemon(f);
        fake_start_daemon(f);
    }
    unsigned reads = 0, wrong = 0, live_wrong = 0;
    for (int i = 0; i < READERS; i++) {
        __atomic_store_n(&r[i].stop, true, __ATOMIC_RELAXED);
        pthread_join(t[i], NULL);
        reads += r[i].reads;
        wrong += r[i].wrong;
        live_wrong += r[i].live_wrong;
    }
    note("%u reads over 12 restarts", reads);
    check(wrong == 0, "readers of a snapshot notice nothing of 12 restarts (%u)", wrong);
    check(live_wrong == 0, "live reads are right or EIO (%u)", live_wrong);
}

static void speed(struct fake_world *f) {
    double began = seconds_now();
    fake_kill_daemon(f);
    fake_start_daemon(f);
    int fd = open_at(f, O_RDONLY, "status/step");
    note("outage %.0f ms", (seconds_now() - began) * 1e3);
    check(fd >= 0 && seconds_now() - began < 2, "the outage is short");
    close(fd);
}

/* ---- the end */

static bool is_mounted(const struct fake_world *f) {
    char line[4096];
    bool found = false;
    FILE *m = fopen("/proc/self/mountinfo", "re");
    while (m != NULL && fgets(line, sizeof(line), m) != NULL)
        found = found || strstr(line, f->mnt) != NULL;
    if (m != NULL)
        fclose(m);
    return found;
}

static int daemon_exit(struct fake_world *f) {
    int status = -1;
    for (int i = 0; i < 500 && waitpid(f->daemon, &status, WNOHANG) == 0; i++)
        usleep(10000);
    f->daemon = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool was_told(struct fake_world *f) { return f->unmounted; }

static void unmounted_by_user(void) {
    struct fake_world *f = fake_start(2, NULL);
    check_begin(f, 60);
    int rc = umount2(f->mnt, 0), code = daemon_exit(f);
    /* What it said last may be read after it is gone. */
    check(rc == 0 && code == 0 && fake_wait(f, was_told, 5),
          "umount: the supervisor is told, exit 0");
    fake_end(f);
}

static void ordered(void) {
    struct fake_world *f = fake_start(2, NULL);
    check_begin(f, 60);
    fake_lock(f);
    f->hold_commands = true;
    fake_unlock(f);
    pid_t writer = fork();
    if (writer == 0)
        _exit(-write_at(f, "control/step", "5\n"));
    wanted = 1;
    fake_wait(f, has_wanted, 5);
    int held = open_at(f, O_RDONLY, "README");
    fake_lock(f);
    struct msg_unmount m = {0};
    msg_send(f->link, MSG_UNMOUNT, 0, &m, NULL, 0);
    fake_unlock(f);
    check(daemon_exit(f) == 0 && !is_mounted(f), "MSG_UNMOUNT of a busy mount: gone, exit 0");
    check(exit_of(writer) == EIO, "who still waited is answered");
    close(held);
    fake_end(f);
}

static void orphaned(void) {
    struct fake_world *f = fake_start(2, NULL);
    check_begin(f, 60);
    fake_lock(f);
    shutdown(link_fd(f->link), SHUT_RDWR);
    fake_unlock(f);
    check(daemon_exit(f) == 0 && !is_mounted(f),
          "without its supervisor the daemon takes the mount away and ends");
    fake_end(f);
}

int main(void) {
    struct fake_world *f = fake_start(2, NULL);
    check_begin(f, 100);
    srand(11);
    fake_lock(f);
    fake_step(f);
    fake_snapshot(f, "first");
    fake_unlock(f);
    check(shell(f, "mkdir $M/pins/pinned") == 0, "a pin");
    survive(f);
    parked(f, false);
    parked(f, true);
    waiting_pin(f);
    storm(f);
    speed(f);
    fake_end(f);
    unmounted_by_user();
    ordered();
    orphaned();
    return check_end();
}
