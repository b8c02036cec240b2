/* takes.c - versions: whatever the ranks answer, and when, an open file is of one version or an
 * error. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mount_check.h"

static const char weight[] = "transformer.h.1.mlp.weight";
static const char weight_path[] = "live/params/transformer.h.1.mlp.weight.npy";

static void set_mode(struct fake_world *f, uint32_t rank, enum fake_mode mode) {
    fake_lock(f);
    f->ranks[rank].mode = mode;
    fake_unlock(f);
}

/* While it says that it waits, a copy that is cached is as good as a new one. */
static void set_training(struct fake_world *f, bool training) {
    fake_lock(f);
    f->status.state = training ? RUN_TRAINING : RUN_PAUSED;
    fake_send_status(f);
    fake_unlock(f);
    usleep(50000);
}

static uint64_t outstanding(struct fake_world *f) {
    fake_lock(f);
    uint64_t n = 0;
    for (uint32_t r = 0; r < f->world_size; r++)
        for (const void *h = f->ranks[r].holds; h != NULL; h = *(void *const *)h)
            n++;
    fake_unlock(f);
    return n;
}

static bool nothing_outstanding(struct fake_world *f) {
    for (uint32_t r = 0; r < f->world_size; r++)
        if (f->ranks[r].holds != NULL)
            return false;
    return true;
}

/* ---- versions */

static void bound(struct fake_world *f) {
    struct version a = {0}, b = {0};
    struct stat sa, sb;
    int fd = open_at(f, O_RDONLY, weight_path);
    check_version(fd, &a);
    fstat(fd, &sa);
    fake_lock(f);
    fake_step(f);
    fake_unlock(f);
    int again = open_at(f, O_RDONLY, weight_path);
    check_version(again, &b);
    fstat(again, &sb);
    check(b.gen == a.gen + 1 && sa.st_ino == sb.st_ino,
          "a later open is of the next version, with the same inode number");
    check(sb.st_mtim.tv_sec > sa.st_mtim.tv_sec ||
              (sb.st_mtim.tv_sec == sa.st_mtim.tv_sec && sb.st_mtim.tv_nsec > sa.st_mtim.tv_nsec),
          "mtime grows with the version");
    check(check_range(f, fd, ARRAY_PARAMS, weight, true, &a, 0, 1024 * 1025) == 0 &&
              check_range(f, again, ARRAY_PARAMS, weight, true, &b, 0, 1024 * 1025) == 0,
          "both open files hold the bytes of their own version");
    close(fd);
    close(again);
}

static void skewed(struct fake_world *f) {
    struct version v = {0};
    fake_lock(f);
    fake_rank_step(f, 1);
    uint64_t newest = f->ranks[1].gen;
    fake_unlock(f);
    pid_t pid = fork();
    if (pid == 0)
        _exit(check_file(f, weight_path, ARRAY_PARAMS, weight, true, &v) == 0 && v.gen == newest
                  ? 0
                  : 1);
    usleep(300000);
    bool waits = waitpid(pid, NULL, WNOHANG) == 0;
    fake_lock(f);
    fake_rank_step(f, 0);
    fake_step(f);
    fake_unlock(f);
    int status = 1;
    waitpid(pid, &status, 0);
    check(waits && status == 0,
          "a rank that is behind is waited for, and its copy is of the version of the others");
}

static void modes(struct fake_world *f) {
    static const struct {
        enum fake_mode mode;
        int want;
        const char *what;
    } cases[] = {
        {FAKE_PASSES, 0, "a rank that has passed: the agenda fixes the version"},
        {FAKE_RUNS, 0, "steps shorter than a message's way: the agenda fixes the version"},
        {FAKE_NOISY, 0, "late, repeated and foreign answers are ignored"},
        {FAKE_FAILS, -ENOBUFS, "a rank without memory: ENOBUFS"},
        {FAKE_MISFITS, -EIO, "a copy outside its segment: EIO"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        set_mode(f, 1, cases[i].mode);
        if (cases[i].mode == FAKE_RUNS)
            set_mode(f, 0, FAKE_RUNS);
        struct version v = {0};
        int rc = 0;
        for (int n = 0; n < 20 && rc == cases[i].want * (n > 0); n++)
            rc = check_file(f, weight_path, ARRAY_PARAMS, weight, true, &v);
        check(rc == cases[i].want, "%s (%d)", cases[i].what, rc);
        set_mode(f, 0, FAKE_NORMAL);
        set_mode(f, 1, FAKE_NORMAL);
        fake_lock(f);
        f->gen = f->ranks[1].gen;
        f->ranks[0].gen = f->gen;
        fake_step(f);
        fake_unlock(f);
    }
    check(check_file(f, weight_path, ARRAY_PARAMS, weight, true, NULL) == 0,
          "and after all that a take works");
}

/* Threads read while the ranks step apart: each file must be of one version, and versions of one
 * reader never go back. */
struct reader {
    struct fake_world *f;
    unsigned reads, wrong, back;
    bool stop;
};

static void *read_on(void *arg) {
    struct reader *r = arg;
    struct version last = {0}, v;
    while (!__atomic_load_n(&r->stop, __ATOMIC_RELAXED)) {
        int rc = check_file(r->f, "live/params/transformer.h.0.attn.weight.npy", ARRAY_PARAMS,
                            "transformer.h.0.attn.weight", true, &v);
        r->reads++;
        r->wrong += rc != 0;
        r->back += rc == 0 && v.gen < last.gen;
        if (rc == 0)
            last = v;
    }
    return NULL;
}

static void storm(struct fake_world *f) {
    enum { READERS = 6 };
    struct reader r[READERS];
    pthread_t t[READERS];
    uint64_t stale = 0;
    for (int i = 0; i < READERS; i++) {
        r[i] = (struct reader){.f = f};
        pthread_create(&t[i], NULL, read_on, &r[i]);
    }
    for (double end = seconds_now() + 4; seconds_now() < end;) {
        struct version v = {0};
        fake_lock(f);
        fake_rank_step(f, (uint32_t)rand() % 2);
        fake_unlock(f);
        usleep((unsigned)rand() % 500);
        write_at(f, "control/step", "1\n");
        fake_lock(f);
        uint64_t least = f->gen;
        fake_unlock(f);
        int fd = open_at(f, O_RDONLY, "live/params/transformer.h.0.attn.weight.npy");
        if (fd >= 0 && check_version(fd, &v) == 0)
            stale += v.gen < least;
        close(fd);
    }
    unsigned reads = 0, wrong = 0, back = 0;
    for (int i = 0; i < READERS; i++) {
        __atomic_store_n(&r[i].stop, true, __ATOMIC_RELAXED);
        pthread_join(t[i], NULL);
        reads += r[i].reads;
        wrong += r[i].wrong;
        back += r[i].back;
    }
    note("%u reads while stepping", reads);
    check(wrong == 0 && reads > 100,
          "readers in a storm of steps never see two versions in one file (%u)", wrong);
    check(back == 0, "versions never go back for a reader (%u)", back);
    check(stale == 0, "a read after control/step never returns the step before (%llu)",
          (unsigned long long)stale);
}

/* ---- sharing and memory */

static void shared(struct fake_world *f) {
    enum { OPENS = 1000 };
    static int fds[OPENS];
    int wrong = 0;
    fake_lock(f);
    uint64_t before = f->ranks[0].takes_asked;
    fake_unlock(f);
    for (int i = 0; i < OPENS; i++)
        wrong += (fds[i] = open_at(f, O_RDONLY, weight_path)) < 0;
    fake_lock(f);
    uint64_t asked = f->ranks[0].takes_asked - before;
    fake_unlock(f);
    check(wrong == 0 && asked <= 2,
          "1000 opens of one tensor while paused share one take (%llu asked)",
          (unsigned long long)asked);
    for (int i = 0; i < OPENS; i++)
        close(fds[i]);
}

/* 10,000 opens, a step between: beyond take_memory ENOBUFS, and all works again after. */
static void bounded(struct fake_world *f) {
    enum { OPENS = 10000 };
    static int fds[OPENS];
    unsigned good = 0, full = 0, other = 0;
    for (int i = 0; i < OPENS; i++) {
        if (i % 2 == 0 && full < 50) {
            fake_lock(f);
            fake_step(f);
            fake_unlock(f);
        }
        fds[i] = open_at(f, O_RDONLY,
                         i % 2 == 0 ? weight_path : "live/exp_avg/transformer.h.1.mlp.weight.npy");
        good += fds[i] >= 0;
        full += fds[i] == -ENOBUFS;
        other += fds[i] < 0 && fds[i] != -ENOBUFS;
    }
    note("take_memory 64M: %u of %d opens of 4 MB, the others ENOBUFS", good, OPENS);
    check(other == 0 && full > 0 && good >= 14,
          "10,000 opens beyond take_memory: ENOBUFS (%u good, %u full, %u other)", good, full,
          other);
    for (int i = 0; i < OPENS; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    usleep(200000);
    check(check_file(f, weight_path, ARRAY_PARAMS, weight, true, NULL) == 0,
          "closed files give their memory back");
}

static void released(struct fake_world *f) {
    /* A step ends the idle stretch: nothing is cached after it. */
    fake_lock(f);
    fake_step(f);
    fake_unlock(f);
    bool all = fake_wait(f, nothing_outstanding, 3);
    check(all, "every take was released by the end (%llu left)",
          (unsigned long long)outstanding(f));
}

/* ---- what does not answer */

static void silent(struct fake_world *f) {
    set_mode(f, 1, FAKE_SILENT);
    fake_lock(f);
    f->ranks[1].dead = true;
    fake_unlock(f);
    double began = seconds_now();
    int rc = open_at(f, O_RDONLY, weight_path);
    double took = seconds_now() - began;
    check(rc == -ETIMEDOUT && took > 1.8 && took < 4,
          "an owner without a sign of life: ETIMEDOUT after read_timeout (%.1f s)", took);
    fake_lock(f);
    f->ranks[1].dead = false;
    fake_unlock(f);
    /* It beats: then there is no deadline. */
    pid_t pid = fork();
    if (pid == 0)
        _exit(open_at(f, O_RDONLY, weight_path) >= 0 ? 0 : 1);
    sleep(4);
    int status = 1;
    bool waits = waitpid(pid, &status, WNOHANG) == 0;
    kill(pid, SIGTERM);
    began = seconds_now();
    waitpid(pid, &status, 0);
    took = seconds_now() - began;
    check(waits && WIFSIGNALED(status) && took < 1,
          "an owner that beats is waited for, and a signal ends the wait (%.2f s)", took);
    set_mode(f, 1, FAKE_NORMAL);
}

static void interrupted(struct fake_world *f) {
    set_mode(f, 1, FAKE_SILENT);
    /* In a process of one thread, so that it is the reader that hears the signal. */
    pid_t pid = fork();
    if (pid == 0) {
        check_signal_soon();
        _exit(-open_at(f, O_RDONLY, weight_path));
    }
    int rc = 0;
    waitpid(pid, &rc, 0);
    rc = WIFEXITED(rc) ? -WEXITSTATUS(rc) : 0;
    check(rc == -EINTR, "a handled signal: EINTR (%d)", rc);
    set_mode(f, 1, FAKE_NORMAL);
    check(check_file(f, weight_path, ARRAY_PARAMS, weight, true, NULL) == 0,
          "and the next open works");
}

/* The request comes beside the answer to the reader, not before it. */
static bool links_asked(struct fake_world *f, uint32_t count) {
    uint32_t asked = 0;
    for (int i = 0; i < 200 && asked < count; i++) {
        fake_lock(f);
        asked = f->links_asked;
        fake_unlock(f);
        usleep(10000);
    }
    return asked >= count; /* a world that ends is asked for too, for a moment */
}

static void lost(struct fake_world *f) {
    struct version v = {0};
    int held = open_at(f, O_RDONLY, weight_path);
    check_version(held, &v);
    for (int i = 0; i < 3; i++) {
        static const struct {
            enum fake_mode mode;
            const char *what;
        } cases[] = {{FAKE_SILENT, "a rank that hangs up"},
                     {FAKE_GARBAGE, "a rank that sends garbage"},
                     {FAKE_UNSEALED, "a segment that could shrink"}};
        set_mode(f, 1, cases[i].mode);
        usleep(100000); /* what the last world's end brought has come */
        fake_lock(f);
        f->links_asked = 0;
        fake_unlock(f);
        pid_t pid = fork();
        if (pid == 0)
            _exit(open_at(f, O_RDONLY, weight_path) + EIO);
        usleep(200000);
        if (i == 0) {
            fake_lock(f);
            fake_rank_hangup(f, 1);
            fake_unlock(f);
        }
        int status = 1;
        waitpid(pid, &status, 0);
        check(status == 0, "%s: EIO (%d)", cases[i].what, WEXITSTATUS(status));
        check(check_range(f, held, ARRAY_PARAMS, weight, true, &v, 0, 1024 * 1025) == 0,
              "an open file keeps its bytes");
        check(links_asked(f, 1), "the supervisor is asked for another link");
        fake_lock(f);
        fake_world_down(f);
        fake_world_up(f);
        fake_unlock(f);
    }
    struct version now = {0};
    check(check_file(f, weight_path, ARRAY_PARAMS, weight, true, &now) == 0 &&
              now.epoch == v.epoch + 3,
          "the next world serves its own epoch");
    close(held);
}

static void between_worlds(struct fake_world *f) {
    fake_lock(f);
    fake_world_down(f);
    fake_unlock(f);
    check(shell(f, "ls -lR $M >/dev/null; test $(cat $M/status/state) = restarting") == 0,
          "metadata between two worlds");
    double began = seconds_now();
    int rc = open_at(f, O_RDONLY, weight_path);
    check(rc == -ETIMEDOUT && seconds_now() - began < 4, "no world for read_timeout: ETIMEDOUT");
    pid_t pid = fork();
    if (pid == 0)
        _exit(check_file(f, weight_path, ARRAY_PARAMS, weight, true, NULL) == 0 ? 0 : 1);
    usleep(500000);
    fake_lock(f);
    fake_world_up(f);
    fake_unlock(f);
    int status = 1;
    waitpid(pid, &status, 0);
    check(status == 0, "an open waits for the next world");
}

static void wide(struct fake_world *f) {
    int a = open_at(f, O_RDONLY, "live/model.safetensors");
    struct version v = {0}, w = {0};
    check_version(a, &v);
    fake_lock(f);
    fake_step(f);
    uint64_t gen = f->gen;
    fake_unlock(f);
    int b = open_at(f, O_RDONLY, "live/model.safetensors");
    check_version(b, &w);
    check(v.gen + 1 == gen && w.gen == gen,
          "each open of model.safetensors is of the step of its time");
    close(a);
    close(b);
    usleep(200000);
    fake_lock(f);
    uint64_t open = f->wides_open;
    fake_unlock(f);
    check(open == 0, "closed, it is let go");
}

int main(void) {
    struct rlimit r = {20000, 20000};
    setrlimit(RLIMIT_NOFILE, &r);
    struct fake_world *f = fake_start(2, "take_memory = 64M\n");
    check_begin(f, 110);
    srand(3);
    bound(f);
    set_training(f, true);
    skewed(f);
    modes(f);
    storm(f);
    set_training(f, false);
    shared(f);
    bounded(f);
    set_training(f, true);
    released(f);
    wide(f);
    silent(f);
    interrupted(f);
    lost(f);
    between_worlds(f);
    fake_end(f);
    return check_end();
}
