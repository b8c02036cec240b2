/* world_fork.c - a world of processes that one program forked, without a launcher. */
#include "config.h"

#include "comm/world_fork.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/comm.h"
#include "comm/node_barrier.h"
#include "comm/world.h"

enum { BOX_BYTES = 4096 };

/* What all ranks map from before they were forked. */
struct shared {
    struct node_barrier barrier;
    int least[WORLD_FORK_MAX];
    uint8_t box[BOX_BYTES];
};

static struct {
    struct shared *shared;
    uint32_t rank, size;
} world = {.size = 1};

int world_fork(uint32_t size, pid_t pids[WORLD_FORK_MAX], uint32_t *rank, struct err *err) {
    pid_t parent = getpid();
    if (size == 0 || size > WORLD_FORK_MAX)
        return err_set(err, EINVAL, "%u ranks: expected 1 to %d", size, WORLD_FORK_MAX);
    world.shared =
        mmap(NULL, sizeof *world.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (world.shared == MAP_FAILED)
        return err_set(err, errno, "memory shared by %u ranks: %s", size, strerror(errno));
    world.size = size;
    for (uint32_t r = 0; r < size; r++) {
        pids[r] = fork();
        if (pids[r] < 0) {
            int code = errno;
            for (uint32_t q = 0; q < r; q++)
                (void)kill(pids[q], SIGKILL);
            return err_set(err, code, "fork: %s", strerror(code));
        }
        if (pids[r] == 0) {
            /* Ends with who waits for it, even if that is killed. */
            if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
                _exit(1);
            world.rank = *rank = r;
            return 0;
        }
    }
    *rank = WORLD_FORK_PARENT;
    (void)munmap(world.shared, sizeof *world.shared);
    world.shared = NULL;
    world.size = 1;
    return 0;
}

int world_has_peers(struct err *err) {
    (void)err;
    return 0;
}

int world_start(struct err *err) {
    (void)err;
    return 0;
}

int world_is_one_host(bool *one_host, struct err *err) {
    (void)err;
    *one_host = true;
    return 0;
}

static void world_wait(void) {
    if (world.size > 1)
        node_barrier_wait(&world.shared->barrier, world.size, false);
}

int world_broadcast(void *data, size_t bytes, uint32_t root, struct err *err) {
    if (bytes > BOX_BYTES)
        return err_set(err, EMSGSIZE, "%zu bytes for all ranks: at most %d", bytes, BOX_BYTES);
    if (world.size == 1)
        return 0;
    if (world.rank == root)
        memcpy(world.shared->box, data, bytes);
    world_wait();
    memcpy(data, world.shared->box, bytes);
    world_wait(); /* all have read before it is written again */
    return 0;
}

int world_least(int *rc, struct err *err) {
    (void)err;
    if (world.size == 1)
        return 0;
    world.shared->least[world.rank] = *rc;
    world_wait();
    for (uint32_t r = 0; r < world.size; r++)
        if (world.shared->least[r] < *rc)
            *rc = world.shared->least[r];
    world_wait();
    return 0;
}

int comm_world_init(uint32_t expected_world_size, uint32_t *rank, uint32_t *world_size,
                    struct err *err) {
    *rank = world.rank;
    *world_size = world.size;
    return expected_world_size == world.size
               ? 0
               : err_set(err, EINVAL, "expected %u ranks, but %u were forked", expected_world_size,
                         world.size);
}

int comm_world_local(uint32_t *local_rank, uint32_t *local_size, struct err *err) {
    (void)err;
    *local_rank = world.rank;
    *local_size = world.size;
    return 0;
}

void comm_world_finalize(void) {}

void comm_world_abort(int status) { _exit(status); }
