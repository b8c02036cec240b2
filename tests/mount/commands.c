/* commands.c - control/, pins and events: one write, one command, answered once. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mount_check.h"

static uint32_t commands(struct fake_world *f) {
    fake_lock(f);
    uint32_t n = f->command_count;
    fake_unlock(f);
    return n;
}

static void hold(struct fake_world *f, bool on) {
    fake_lock(f);
    f->hold_commands = on;
    fake_unlock(f);
}

static uint32_t wanted;
static bool has_wanted(struct fake_world *f) { return f->command_count >= wanted; }
static bool wait_commands(struct fake_world *f, uint32_t count) {
    wanted = count;
    return fake_wait(f, has_wanted, 5);
}

/* A child that writes and exits with the errno. */
static pid_t write_later(struct fake_world *f, const char *path, const char *line) {
    pid_t pid = fork();
    if (pid == 0)
        _exit(-write_at(f, path, line));
    return pid;
}

static int exit_of(pid_t pid) {
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void shells(struct fake_world *f) {
    check(shell(f, "s=$(cat $M/status/step); echo 3 >$M/control/step; test $(cat $M/status/step) = "
                   "$((s + 3)); test $(cat $M/control/step) = $((s + 3))\n"
                   "test $(stat -c %%s $M/control/step) = $(wc -c <$M/control/step)") == 0,
          "echo 3 >control/step returns when the steps are done");
    check(shell(f,
                "s=$(cat $M/status/step); echo 1 >>$M/control/step; printf 1 >$M/control/step; "
                "truncate -s 0 $M/control/step; touch $M/control/step\n"
                "echo 1 | dd of=$M/control/step bs=1M 2>/dev/null; echo 1 | dd of=$M/control/step "
                "conv=notrunc 2>/dev/null; echo 1 | tee $M/control/step >/dev/null\n"
                "echo 1 >one; cp one $M/control/step; printf '1\\n1\\n' >$M/control/step; sh -c "
                "'echo 1 >$M/control/step'; test $(cat $M/status/step) = $((s + 9))") == 0,
          ">, >>, printf, dd, tee and cp are commands; truncate and touch are none");
    if (check_have("busybox"))
        check(shell(f, "s=$(cat $M/status/step); busybox sh -c 'echo 2 >$M/control/step'; busybox "
                       "cat $M/control/step | grep -x $((s + 2))") == 0,
              "busybox writes commands");
    else
        check_skip("busybox", "busybox is not there");
    check(shell(f,
                "echo 3e-4 >$M/control/lr; test $(cat $M/control/lr) = 0.0003; grep -qx 'lr = "
                "0.0003' $M/status/config; echo '5M' >$M/control/take_memory; grep -qx 5242880 "
                "$M/control/take_memory\n"
                "echo 1G >$M/control/take_memory; echo named >$M/control/snapshot; test -d "
                "$M/snapshots/named; grep -qx named $M/control/snapshot; grep -qx 0 "
                "$M/control/restore\n"
                "tail -n1 $M/status/commands.tsv | grep 'snapshot named'; head -n1 "
                "$M/status/commands.tsv | grep -x \"$(printf 'id\\tstate\\terrno\\ttext')\"") == 0,
          "knobs and names: written, read back, listed");
}

static void refused(struct fake_world *f) {
    static const struct {
        const char *path, *line;
        int want;
    } cases[] = {
        {"control/step", "", 0}, /* no write at all */
        {"control/step", "\n", -EINVAL},
        {"control/step", "ten\n", -EINVAL},
        {"control/step", "1 2 3\n", -EINVAL},
        {"control/step", "1\n2\n", -EINVAL},
        {"control/step", "1 bad/id\n", -EINVAL},
        {"control/step", "0\n", -ERANGE},
        {"control/step", "-1\n", -ERANGE},
        {"control/step", "99999999999999999999999\n", -ERANGE},
        {"control/run", "2\n", -ERANGE},
        {"control/run", "yes\n", -EINVAL},
        {"control/abort", "0\n", -ERANGE},
        {"control/snapshot", "../x\n", -EINVAL},
        {"control/snapshot", ".hidden\n", -EINVAL},
        {"control/pin", "a b/\n", -EINVAL},
        {"control/lr", "much\n", -EINVAL},
        {"control/lr", "-1\n", -ERANGE},
        {"control/lr", "nan\n", -EINVAL},
        {"control/keep", "1.5\n", -EINVAL},
    };
    uint32_t before = commands(f);
    unsigned wrong = 0;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int rc = write_at(f, cases[i].path, cases[i].line);
        if (rc != cases[i].want) {
            note("%s '%.20s': %d, not %d", cases[i].path, cases[i].line, rc, cases[i].want);
            wrong++;
        }
        if (rc != 0 && strlen(read_at(f, "status/last_error")) < 10)
            wrong++;
    }
    check(wrong == 0 && commands(f) == before,
          "syntax is EINVAL, values are ERANGE, last_error says why, and nothing was sent");
}

static void garbage_refused(struct fake_world *f) {
    uint32_t before = commands(f);
    unsigned wrong = 0;
    char *garbage = malloc(1 << 20);
    for (int round = 0; round < 8; round++) {
        size_t len = round < 4 ? 1 << 20 : (size_t)rand() % 3000 + 1;
        for (size_t i = 0; i < len; i++)
            garbage[i] = (char)(round % 2 == 0 ? rand() : 'a' + rand() % 26);
        int fd = open_at(f, O_WRONLY, "control/%s", round % 2 == 0 ? "step" : "snapshot");
        wrong += write(fd, garbage, len) >= 0 || errno != EINVAL;
        close(fd);
    }
    int fd = open_at(f, O_WRONLY, "control/step");
    wrong += write(fd, "1\0", 2) >= 0 || errno != EINVAL;
    close(fd);
    free(garbage);
    check(wrong == 0 && commands(f) == before, "1 MB of garbage, long lines and NUL are EINVAL");
}

static void another_user_refused(struct fake_world *f) {
    uint32_t before = commands(f);
    if (getuid() == 0) {
        pid_t pid = fork();
        if (pid == 0) {
            int fd = open_at(f, O_WRONLY, "control/step");
            if (setuid(65534) != 0)
                _exit(1);
            _exit(write(fd, "1\n", 2) < 0 && errno == EPERM ? 0 : 2);
        }
        check(exit_of(pid) == 0 && commands(f) == before,
              "a write by another user is EPERM, whoever opened the file");
    } else {
        check_skip("another user", "only root can become one");
    }
}

static void parked(struct fake_world *f) {
    hold(f, true);
    uint32_t first = commands(f);
    pid_t pids[4];
    static const char *const lines[] = {"1\n", "2\n", "3 three\n", "3 three\n"};
    for (int i = 0; i < 4; i++) {
        pids[i] = write_later(f, "control/step", lines[i]);
        usleep(50000);
    }
    bool all = wait_commands(f, first + 3);
    usleep(100000);
    check(all && commands(f) == first + 3,
          "writes that wait in one file all reach the supervisor, the same id once");
    check(shell(f, "ls -lR $M >/dev/null; cat $M/status/state $M/live/params/scale.npy >/dev/null; "
                   "test $(cat $M/control/lr) = 0.0003") == 0,
          "nothing else waits for them");
    check(write_at(f, "control/step", "4 three\n") == -EINVAL,
          "the id with another value is EINVAL");
    static const uint32_t codes[] = {ECANCELED, EBUSY, 0};
    fake_lock(f);
    for (uint32_t i = 0; i < 3; i++)
        fake_finish(f, first + i, codes[i], codes[i] != 0 ? "the supervisor's reason" : "done");
    fake_unlock(f);
    int got[4];
    for (int i = 0; i < 4; i++)
        got[i] = exit_of(pids[i]);
    check(got[0] == ECANCELED && got[1] == EBUSY && got[2] == 0 && got[3] == 0,
          "each is answered with its own result (%d %d %d %d)", got[0], got[1], got[2], got[3]);
    check(strcmp(read_at(f, "status/last_error"), "the supervisor's reason") == 0,
          "last_error is the newest error in words");
    check(write_at(f, "control/step", "3 three\n") == 0, "an id that is done answers at once");
}

static void interrupted(struct fake_world *f) {
    uint32_t first = commands(f);
    pid_t pid = fork();
    if (pid == 0) {
        check_signal_soon();
        _exit(-write_at(f, "control/step", "7 seven\n"));
    }
    check(exit_of(pid) == EINTR, "a signal releases who waits");
    pid = write_later(f, "control/step", "7 seven\n");
    usleep(200000);
    fake_lock(f);
    uint32_t count = f->command_count, sent = f->commands[first].times_sent;
    fake_finish(f, first, 0, "done");
    fake_unlock(f);
    check(exit_of(pid) == 0 && count == first + 1 && sent == 2,
          "the command went on, and the same id attaches to it");
    pid = write_later(f, "control/step", "8\n");
    wait_commands(f, first + 2);
    kill(pid, SIGKILL);
    double began = seconds_now();
    waitpid(pid, NULL, 0);
    check(seconds_now() - began < 1, "a killed writer ends at once");
    hold(f, false);
}

static void pins(struct fake_world *f) {
    fake_lock(f);
    f->hold_pins = 1;
    fake_unlock(f);
    check(shell(f, "mkdir $M/pins/early; test $(stat -c %%s $M/pins/early/params/scale.npy) = 132; "
                   "ls -lR $M/pins >/dev/null; not 'mkdir $M/pins/early'; not 'mkdir $M/pins/.x'\n"
                   "not 'getfattr -n user.version $M/pins/early/params/scale.npy 2>/dev/null'; cat "
                   "$M/pins/early/hf/config.json >/dev/null") == 0,
          "mkdir pins/X returns at once: names and sizes are known");
    pid_t pid = fork();
    struct version v = {0};
    if (pid == 0)
        _exit(check_file(f, "pins/early/params/transformer.h.0.attn.weight.npy", ARRAY_PARAMS,
                         "transformer.h.0.attn.weight", true, &v) == -ENODATA
                  ? 1
                  : 0);
    int fd = open_at(f, O_RDONLY, "pins/early/params/transformer.h.0.attn.weight.npy");
    pid_t reader = fork();
    char byte[256];
    if (reader == 0)
        _exit(pread(fd, byte, 256, 0) == 256 ? 0 : 1);
    usleep(300000);
    bool waits = waitpid(reader, NULL, WNOHANG) == 0;
    fake_lock(f);
    fake_step(f);
    fake_pin_fix(f, &f->pins[f->pin_count - 1]);
    fake_unlock(f);
    exit_of(pid);
    check(waits && exit_of(reader) == 0, "its first read waits for the step boundary");
    check(check_file(f, "pins/early/params/transformer.h.0.attn.weight.npy", ARRAY_PARAMS,
                     "transformer.h.0.attn.weight", true, &v) == 0 &&
              v.gen == f->gen,
          "and it is of that version");
    close(fd);
    fake_lock(f);
    f->hold_pins = 2;
    fake_unlock(f);
    check(shell(f, "mkdir $M/pins/stuck") == 0, "a pin whose segments never come");
    fake_lock(f);
    f->ranks[0].dead = f->ranks[1].dead = true;
    fake_unlock(f);
    double began = seconds_now();
    int rc = check_file(f, "pins/stuck/params/scale.npy", ARRAY_PARAMS, "scale", true, NULL);
    check(rc == -ETIMEDOUT, "its read ends after read_timeout (%d, %.1f s)", rc,
          seconds_now() - began);
    check(seconds_now() - began < 8, "and not later");
    fake_lock(f);
    f->ranks[0].dead = f->ranks[1].dead = false;
    f->hold_pins = 0;
    fake_unlock(f);
    check(shell(f, "rmdir $M/pins/stuck $M/pins/early; echo steady >$M/control/pin; test -d "
                   "$M/pins/steady/exp_avg; getfattr --only-values -n user.version "
                   "$M/pins/steady/params/scale.npy 2>/dev/null | grep .") == 0,
          "control/pin, user.version, rmdir");
}

static void *event_later(void *arg) {
    struct fake_world *f = arg;
    usleep(300000);
    fake_lock(f);
    fake_event(f, "something happened\n");
    fake_unlock(f);
    return NULL;
}

static void events(struct fake_world *f) {
    char text[256];
    int fd = open_at(f, O_RDONLY, "status/events");
    struct pollfd p = {.fd = fd, .events = POLLIN};
    check(poll(&p, 1, 1000) == 1 && read(fd, text, sizeof(text)) > 0,
          "a new reader of events is ready");
    check(read(fd, text, sizeof(text)) == 0 && poll(&p, 1, 200) == 0, "at the end poll waits");
    pthread_t t;
    pthread_create(&t, NULL, event_later, f);
    double began = seconds_now();
    int n = poll(&p, 1, 5000);
    double took = seconds_now() - began;
    pthread_join(t, NULL);
    check(n == 1 && took > 0.2 && took < 2, "poll wakes when events grows (%.2f s)", took);
    ssize_t got = read(fd, text, sizeof(text));
    check(got == 19 && memcmp(text, "something happened\n", 19) == 0, "and the new line is read");
    struct pollfd plain = {.fd = open_at(f, O_RDONLY, "status/step"), .events = POLLIN};
    check(poll(&plain, 1, 1000) == 1, "other files are always ready");
    close(plain.fd);
    close(fd);
}

int main(void) {
    struct fake_world *f = fake_start(2, NULL);
    check_begin(f, 100);
    srand(5);
    shells(f);
    refused(f);
    garbage_refused(f);
    another_user_refused(f);
    parked(f);
    interrupted(f);
    events(f);
    pins(f);
    fake_end(f);
    return check_end();
}
