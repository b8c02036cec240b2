/* ranks.c - see the header. */
#include "config.h"

#include "tests/cuda/ranks.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/cuda/emu_control.h"

double rank_now(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- processes ---- */

struct rank {
    pid_t pid; /* 0: ended */
    int text_fd;
};

static void rank_main(unsigned rank, int text_fd, rank_body *body, void *arg) {
    struct rlimit none = {0, 0};
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)setrlimit(RLIMIT_CORE, &none); /* many end by abort() */
    (void)dup2(text_fd, STDERR_FILENO);
    body(rank, arg);
    _exit(0);
}

static void rank_start(struct rank *r, unsigned rank, rank_body *body, void *arg) {
    r->text_fd = memfd_create("stderr of a rank", MFD_CLOEXEC);
    assert_true(r->text_fd >= 0);
    (void)fflush(NULL);
    r->pid = fork();
    assert_true(r->pid >= 0);
    if (r->pid == 0)
        rank_main(rank, r->text_fd, body, arg);
}

static void rank_ended(struct rank *r, struct rank_end *end, double start) {
    ssize_t n = pread(r->text_fd, end->text, sizeof end->text - 1, 0);
    end->text[n > 0 ? n : 0] = '\0';
    end->seconds = rank_now() - start;
    (void)close(r->text_fd);
    r->pid = 0;
}

/* Reaps who has ended, and whoever is left when the time is over. Returns how many are left. */
static unsigned ranks_reap(unsigned count, struct rank *ranks, struct rank_end *ends, double start,
                           bool over) {
    unsigned left = 0;
    for (unsigned i = 0; i < count; i++) {
        if (ranks[i].pid == 0)
            continue;
        if (over) {
            ends[i].late = true;
            (void)kill(ranks[i].pid, SIGKILL);
        }
        if (waitpid(ranks[i].pid, &ends[i].status, over ? 0 : WNOHANG) == ranks[i].pid)
            rank_ended(&ranks[i], &ends[i], start);
        else
            left++;
    }
    return left;
}

/* until_dead: once this rank has ended, the others have a second more. RANKS_MOST: none. */
static void run(unsigned count, double within_s, unsigned until_dead, rank_body *body, void *arg,
                struct rank_end *ends) {
    struct rank ranks[RANKS_MOST];
    double start = rank_now(), deadline = start + within_s;
    assert_true(count <= RANKS_MOST);
    for (unsigned i = 0; i < count; i++) {
        memset(&ends[i], 0, sizeof ends[i]);
        rank_start(&ranks[i], i, body, arg);
    }
    while (ranks_reap(count, ranks, ends, start, rank_now() >= deadline) > 0) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
        if (until_dead < count && ranks[until_dead].pid == 0 && deadline > rank_now() + 1)
            deadline = rank_now() + 1;
    }
}

void ranks_run(unsigned count, double within_s, rank_body *body, void *arg, struct rank_end *ends) {
    run(count, within_s, RANKS_MOST, body, arg, ends);
}

void ranks_must_pass(unsigned count, double within_s, rank_body *body, void *arg) {
    struct rank_end ends[RANKS_MOST];
    bool ok = true;
    ranks_run(count, within_s, body, arg, ends);
    for (unsigned i = 0; i < count; i++) {
        if (ends[i].status == 0 && !ends[i].late)
            continue;
        ok = false;
        print_error("rank %u of %u: status %#x%s after %.2f s\n%s\n", i, count,
                    (unsigned)ends[i].status, ends[i].late ? " (late)" : "", ends[i].seconds,
                    ends[i].text);
    }
    assert_true(ok);
}

void ranks_must_die(unsigned count, unsigned dying, rank_body *body, void *arg, const char *text) {
    struct rank_end ends[RANKS_MOST];
    run(count, 10, dying, body, arg, ends);
    const struct rank_end *e = &ends[dying];
    if (!e->late && WIFSIGNALED(e->status) && WTERMSIG(e->status) == SIGABRT &&
        strstr(e->text, text) != NULL)
        return;
    print_error("rank %u: status %#x%s; expected an abort that says \"%s\":\n%s\n", dying,
                (unsigned)e->status, e->late ? " (late)" : "", text, e->text);
    fail();
}

/* ---- in a rank ---- */

void rank_check(bool ok, const char *what, const char *file, int line) {
    if (ok)
        return;
    (void)fprintf(stderr, "%s:%d: not so: %s\n", file, line, what);
    _exit(1);
}

void rank_check_text(const char *text, const char *part, const char *file, int line) {
    if (strstr(text, part) != NULL)
        return;
    (void)fprintf(stderr, "%s:%d: \"%s\" is not in \"%s\"\n", file, line, part, text);
    _exit(1);
}

void rank_devices(int count, int device) {
    struct emu_settings s = emu_get_settings();
    s.devices = count;
    emu_set_settings(&s);
    RANK_CHECK(cudaSetDevice(device) == cudaSuccess);
}

cudaStream_t rank_stream(void) {
    cudaStream_t s = NULL;
    RANK_CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess);
    return s;
}

void *rank_alloc(size_t bytes) {
    void *p = NULL;
    RANK_CHECK(cudaMalloc(&p, bytes) == cudaSuccess);
    return p;
}

static void *pinned_alloc(size_t bytes) {
    void *p = NULL;
    RANK_CHECK(cudaHostAlloc(&p, bytes, cudaHostAllocDefault) == cudaSuccess);
    return p;
}

static void move(cudaStream_t s, void *to, const void *from, size_t bytes) {
    RANK_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s) == cudaSuccess);
    RANK_CHECK(cudaStreamSynchronize(s) == cudaSuccess);
}

void *rank_put(cudaStream_t s, const void *host, size_t bytes) {
    void *device = rank_alloc(bytes), *pinned = pinned_alloc(bytes);
    memcpy(pinned, host, bytes);
    move(s, device, pinned, bytes);
    RANK_CHECK(cudaFreeHost(pinned) == cudaSuccess);
    return device;
}

void rank_get(cudaStream_t s, const void *device, void *host, size_t bytes) {
    void *pinned = pinned_alloc(bytes);
    move(s, pinned, device, bytes);
    memcpy(host, pinned, bytes);
    RANK_CHECK(cudaFreeHost(pinned) == cudaSuccess);
}
