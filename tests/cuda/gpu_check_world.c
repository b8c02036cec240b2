/* gpu_check_world.c - ranks as processes of one program, each bounded in time. */
#include "config.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "comm/world_fork.h"
#include "tests/cuda/gpu_check.h"

static const long poll_ns = 2 * 1000 * 1000;

/* The ranks' sentences; shared with them. */
struct texts {
    char text[CHECK_MAX_RANKS][ERR_TEXT_BYTES];
};

static void rank_main(uint32_t rank, struct texts *texts, rank_body *body, void *arg) {
    struct err err = {0};
    int rc = body(rank, arg, &err);
    snprintf(texts->text[rank], ERR_TEXT_BYTES, "%s", err.text);
    (void)fflush(NULL);
    _exit(rc != 0); /* without taking the device down: it goes with the process */
}

static void rank_ended(struct rank_end *end, pid_t *pid) {
    end->at = check_now();
    *pid = 0;
}

/* Those that have ended; all, if `kill_all`. How many are left. */
static uint32_t reap(uint32_t ranks, pid_t *pids, struct rank_end *ends, bool kill_all, bool late) {
    uint32_t left = 0;
    for (uint32_t r = 0; r < ranks; r++) {
        if (pids[r] == 0)
            continue;
        if (kill_all) {
            ends[r].late = late;
            (void)kill(pids[r], SIGKILL);
        }
        if (waitpid(pids[r], &ends[r].status, kill_all ? 0 : WNOHANG) == pids[r])
            rank_ended(&ends[r], &pids[r]);
        else
            left++;
    }
    return left;
}

static bool any_failed(uint32_t ranks, const pid_t *pids, const struct rank_end *ends) {
    for (uint32_t r = 0; r < ranks; r++)
        if (pids[r] == 0 && ends[r].status != 0)
            return true;
    return false;
}

static int world_run(uint32_t ranks, double seconds, bool all, rank_body *body, void *arg,
                     struct rank_end *ends, struct err *err) {
    pid_t pids[WORLD_FORK_MAX];
    uint32_t rank = 0;
    struct texts *texts = check_shared(sizeof *texts);
    memset(ends, 0, ranks * sizeof *ends);
    (void)fflush(NULL); /* else each rank would print it once more */
    double deadline = check_now() + seconds;
    int rc = world_fork(ranks, pids, &rank, err);
    if (rc == 0 && rank != WORLD_FORK_PARENT)
        rank_main(rank, texts, body, arg);
    if (rc != 0)
        goto out;
    while (reap(ranks, pids, ends, false, false) > 0) {
        bool late = check_now() >= deadline;
        if (late || (all && any_failed(ranks, pids, ends)))
            (void)reap(ranks, pids, ends, true, late);
        else
            (void)nanosleep(&(struct timespec){.tv_nsec = poll_ns}, NULL);
    }
    for (uint32_t r = 0; r < ranks; r++)
        memcpy(ends[r].text, texts->text[r], ERR_TEXT_BYTES);
out:
    (void)munmap(texts, sizeof *texts);
    return rc;
}

int check_world(uint32_t ranks, double seconds, rank_body *body, void *arg, struct rank_end *ends,
                struct err *err) {
    return world_run(ranks, seconds, false, body, arg, ends, err);
}

/* How a rank ended that did not end well, by itself or of what it did. */
static int rank_failure(uint32_t rank, uint32_t ranks, const struct rank_end *e, double seconds,
                        struct err *err) {
    char who[32] = "";
    if (ranks > 1)
        snprintf(who, sizeof who, "rank %u: ", rank);
    if (e->late)
        return err_set(err, ETIMEDOUT, "%snot done after %.0f s", who, seconds);
    if (WIFSIGNALED(e->status))
        return err_set(err, EIO, "%sended by signal %d (%s)", who, WTERMSIG(e->status),
                       strsignal(WTERMSIG(e->status)));
    return err_set(err, EIO, "%s%s", who, e->text[0] != '\0' ? e->text : "failed");
}

int check_world_all(uint32_t ranks, double seconds, rank_body *body, void *arg, struct err *err) {
    struct rank_end ends[CHECK_MAX_RANKS];
    int rc = world_run(ranks, seconds, true, body, arg, ends, err);
    uint32_t first = ranks;
    for (uint32_t r = 0; r < ranks && rc == 0; r++)
        if (ends[r].status != 0 && (first == ranks || ends[r].at < ends[first].at))
            first = r;
    if (rc != 0 || first == ranks)
        return rc;
    return rank_failure(first, ranks, &ends[first], seconds, err);
}
