/* double_nccl_world.c - see the header.
 *
 * An exchange goes in rounds. In each a rank puts a piece of its data into one of the two buffers
 * of its place, counts up, waits until all others have counted as far, and reads theirs. A buffer
 * is filled again two rounds later: by then all have counted the round between, so all have read
 * it. */
#include "config.h"

#include "tests/cuda/double_nccl_world.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tensor/dtype.h"
#include "tests/cuda/emu_stream.h"

enum { STAGE_BYTES = 256 << 10 };
static const char world_magic[] = "gatherfs double of NCCL";

/* What a rank says of the collective that a round belongs to. */
struct note {
    uint64_t number;
    uint64_t elems;
    uint32_t kind;
    uint32_t bf16;
};

struct place {
    _Atomic uint32_t joined;
    int32_t device;
    _Atomic uint64_t rounds; /* how many its rank has put in */
    struct note note[2];
    unsigned char stage[2][STAGE_BYTES];
};

struct shared {
    _Atomic uint32_t rank_count; /* 0 until the first rank said it */
    _Atomic uint32_t closed;     /* the maker's descriptor */
    struct place place[WORLD_RANKS];
};

struct id {
    char magic[sizeof world_magic];
    pid_t pid;
    int fd;
};
_Static_assert(sizeof(struct id) <= WORLD_ID_BYTES, "an id holds this");

struct world {
    struct shared *shared;
    int rank, rank_count;
    int made_fd; /* to be closed once the world is complete; -1: another process made it */
};

int world_make(char id[WORLD_ID_BYTES]) {
    struct id made = {.pid = getpid()};
    memcpy(made.magic, world_magic, sizeof world_magic);
    made.fd = memfd_create("double of NCCL", MFD_CLOEXEC);
    if (made.fd < 0)
        return -errno;
    if (ftruncate(made.fd, sizeof(struct shared)) != 0) {
        int code = errno;
        (void)close(made.fd);
        return -code;
    }
    memset(id, 0, WORLD_ID_BYTES);
    memcpy(id, &made, sizeof made);
    return 0;
}

static struct shared *map_of(const struct id *id) {
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)id->pid, id->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    void *p = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)close(fd);
    return p != MAP_FAILED ? p : NULL;
}

struct world *world_open(const char *call, const char id[WORLD_ID_BYTES], int rank,
                         int rank_count) {
    struct id made;
    memcpy(&made, id, sizeof made);
    if (memcmp(made.magic, world_magic, sizeof world_magic) != 0)
        emu_die(call, "this is no id that ncclGetUniqueId made");
    struct world *w = malloc(sizeof *w);
    if (w == NULL)
        emu_die(call, "no memory");
    *w = (struct world){map_of(&made), rank, rank_count, made.pid == getpid() ? made.fd : -1};
    if (w->shared == NULL) {
        free(w);
        return NULL;
    }
    uint32_t said = 0;
    if (!atomic_compare_exchange_strong(&w->shared->rank_count, &said, (uint32_t)rank_count) &&
        said != (uint32_t)rank_count)
        emu_die(call, "rank %d says that the world has %d ranks, another said %u", rank, rank_count,
                said);
    return w;
}

void world_close(struct world *w) {
    (void)munmap(w->shared, sizeof(struct shared));
    free(w);
}

void world_join(const char *call, struct world *w, int device) {
    struct place *own = &w->shared->place[w->rank];
    uint32_t joined = 0;
    own->device = device;
    if (!atomic_compare_exchange_strong(&own->joined, &joined, 1))
        emu_die(call, "rank %d joined this world twice", w->rank);
}

bool world_complete(struct world *w) {
    for (int r = 0; r < w->rank_count; r++)
        if (atomic_load(&w->shared->place[r].joined) == 0)
            return false;
    if (w->made_fd >= 0 && atomic_exchange(&w->shared->closed, 1) == 0)
        (void)close(w->made_fd);
    w->made_fd = -1;
    return true;
}

int world_twin(const struct world *w) {
    for (int r = 0; r < w->rank_count; r++)
        if (r != w->rank && w->shared->place[r].device == w->shared->place[w->rank].device)
            return r;
    return -1;
}

static const char *kind_name(uint32_t kind) {
    return kind == EXCHANGE_GATHER ? "ncclAllGather" : "ncclReduceScatter";
}

static void notes_check(const struct world *w, size_t buffer) {
    const struct note *own = &w->shared->place[w->rank].note[buffer];
    for (int r = 0; r < w->rank_count; r++) {
        const struct note *n = &w->shared->place[r].note[buffer];
        if (n->number != own->number || n->kind != own->kind || n->elems != own->elems ||
            n->bf16 != own->bf16)
            emu_die(kind_name(own->kind),
                    "the ranks do not agree: rank %d has %s of %zu %s as its collective %zu, rank "
                    "%d has %s of %zu %s as its collective %zu",
                    w->rank, kind_name(own->kind), (size_t)own->elems,
                    own->bf16 ? "ncclBfloat16" : "ncclFloat32", (size_t)own->number, r,
                    kind_name(n->kind), (size_t)n->elems, n->bf16 ? "ncclBfloat16" : "ncclFloat32",
                    (size_t)n->number);
    }
}

static size_t elem_bytes(const struct exchange *x) {
    return dtype_bytes(x->bf16 ? DTYPE_BF16 : DTYPE_F32);
}

/* Elements of a part that the next round moves. Of a reduction a buffer holds a piece of every
 * rank's part. */
static size_t round_elems(const struct exchange *x) {
    size_t most = STAGE_BYTES / elem_bytes(x);
    if (x->kind == EXCHANGE_REDUCE)
        most /= (size_t)x->world->rank_count;
    size_t left = x->elems - x->done;
    return left < most ? left : most;
}

static void put(const struct exchange *x, size_t n, unsigned char *stage) {
    size_t bytes = elem_bytes(x);
    const unsigned char *send = x->send;
    if (x->kind == EXCHANGE_GATHER) {
        memcpy(stage, send + x->done * bytes, n * bytes);
        return;
    }
    for (size_t part = 0; part < (size_t)x->world->rank_count; part++)
        memcpy(stage + part * n * bytes, send + (part * x->elems + x->done) * bytes, n * bytes);
}

static void take_gather(const struct exchange *x, size_t n, size_t buffer) {
    size_t bytes = elem_bytes(x);
    unsigned char *recv = x->recv;
    for (size_t r = 0; r < (size_t)x->world->rank_count; r++)
        memcpy(recv + (r * x->elems + x->done) * bytes, x->world->shared->place[r].stage[buffer],
               n * bytes);
}

/* Element i of what rank r sent for this rank's part. */
static float sent_value(const struct exchange *x, size_t n, size_t buffer, size_t r, size_t i) {
    const unsigned char *stage = x->world->shared->place[r].stage[buffer];
    size_t at = (size_t)x->world->rank * n + i;
    if (!x->bf16)
        return ((const float *)(const void *)stage)[at];
    return bf16_to_f32(((const uint16_t *)(const void *)stage)[at]);
}

static void take_reduce(const struct exchange *x, size_t n, size_t buffer) {
    size_t ranks = (size_t)x->world->rank_count, own = (size_t)x->world->rank;
    for (size_t i = 0; i < n; i++) {
        float sum = sent_value(x, n, buffer, (own + 1) % ranks, i);
        for (size_t k = 2; k <= ranks; k++) {
            sum += sent_value(x, n, buffer, (own + k) % ranks, i);
            if (x->bf16)
                sum = bf16_to_f32(bf16_from_f32(sum));
        }
        if (x->bf16)
            ((uint16_t *)x->recv)[x->done + i] = bf16_from_f32(sum);
        else
            ((float *)x->recv)[x->done + i] = sum;
    }
}

static bool all_have_put(const struct world *w) {
    uint64_t rounds = atomic_load(&w->shared->place[w->rank].rounds);
    for (int r = 0; r < w->rank_count; r++)
        if (atomic_load(&w->shared->place[r].rounds) < rounds)
            return false;
    return true;
}

bool exchange_step(struct exchange *x) {
    struct place *own = &x->world->shared->place[x->world->rank];
    while (x->done < x->elems) {
        size_t n = round_elems(x);
        if (!x->sent) {
            size_t buffer = atomic_load(&own->rounds) % 2;
            own->note[buffer] = (struct note){x->number, x->elems, x->kind, x->bf16};
            put(x, n, own->stage[buffer]);
            (void)atomic_fetch_add(&own->rounds, 1);
            x->sent = true;
        }
        if (!all_have_put(x->world))
            return false;
        size_t buffer = (atomic_load(&own->rounds) - 1) % 2;
        notes_check(x->world, buffer);
        if (x->kind == EXCHANGE_GATHER)
            take_gather(x, n, buffer);
        else
            take_reduce(x, n, buffer);
        x->done += n;
        x->sent = false;
    }
    return true;
}
