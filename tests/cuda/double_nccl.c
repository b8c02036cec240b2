/* double_nccl.c - see the header: communicators, their states, and collectives on streams. */
#include "config.h"

#include "tests/cuda/double_nccl.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/cuda/double_nccl_world.h"
#include "tests/cuda/emu_memory.h"
#include "tests/cuda/emu_stream.h"

_Static_assert(sizeof(ncclUniqueId) == WORLD_ID_BYTES, "an id fits");

enum { COMM_LIVES = 0x6e63636c, QUESTIONS = 2 };

/* What a communicator is busy with, which the answer ncclInProgress stands for. */
enum doing { DOING_NOTHING, DOING_JOIN, DOING_QUEUE, DOING_FINALIZE };

struct task {
    struct ncclComm *comm;
    struct exchange exchange;
    cudaStream_t stream;
};

struct ncclComm {
    uint32_t magic; /* 0 once it is destroyed or aborted: never freed, so that late use is seen */
    struct world *world;
    int rank, rank_count, device;
    enum doing doing;
    ncclResult_t error; /* stays, once it is one */
    bool finalized, aborted, joined;
    uint64_t issued;
    struct task *next; /* DOING_QUEUE: not on its stream yet */
    pthread_t issuer;
    unsigned questions; /* until it is */
    bool in_call;       /* issuer has not come back from its call */
    cudaEvent_t last;   /* behind the collective that was queued last */
    size_t queued;      /* on streams, not done */
    struct ncclComm *older;
};

/* All below under emu_lock. */
static struct ncclComm *comms;
static char last_error[1024];
struct fault {
    int rank; /* -1: none */
    uint64_t call;
};
static struct fault hang = {-1, 0}, async_error = {-1, 0};
static unsigned slow_ms; /* of each collective's call */
static bool environment_read;

/* ---- faults ---- */

static void fault_read(const char *name, struct fault *f) {
    const char *text = getenv(name);
    int rank = 0, end = 0;
    unsigned long long call = 0;
    if (text == NULL || *text == '\0')
        return;
    if (sscanf(text, "%d:%llu%n", &rank, &call, &end) != 2 || text[end] != '\0' || rank < 0)
        emu_die(name, "'%s': expected RANK:N", text);
    *f = (struct fault){rank, call};
}

static void environment(void) {
    if (environment_read)
        return;
    environment_read = true;
    fault_read("NCCL_DOUBLE_HANG", &hang);
    fault_read("NCCL_DOUBLE_ASYNC_ERROR", &async_error);
}

static bool fault_is(const struct fault *f, const struct ncclComm *comm, uint64_t call) {
    return f->rank == comm->rank && f->call == call;
}

void double_nccl_hang(int rank, uint64_t call) {
    emu_lock();
    environment();
    hang = (struct fault){rank, call};
    emu_unlock();
}

void double_nccl_async_error(int rank, uint64_t call) {
    emu_lock();
    environment();
    async_error = (struct fault){rank, call};
    emu_unlock();
}

void double_nccl_slow_calls(unsigned ms) {
    emu_lock();
    slow_ms = ms;
    emu_unlock();
}

size_t double_nccl_open_count(void) {
    size_t n = 0;
    emu_lock();
    for (const struct ncclComm *c = comms; c != NULL; c = c->older)
        n += c->magic == COMM_LIVES;
    emu_unlock();
    return n;
}

/* ---- errors ---- */

static const struct {
    const char *name, *text;
} results[ncclNumResults] = {
    [ncclSuccess] = {"ncclSuccess", "no error"},
    [ncclUnhandledCudaError] = {"ncclUnhandledCudaError",
                                "unhandled cuda error (run with NCCL_DEBUG=INFO for details)"},
    [ncclSystemError] = {"ncclSystemError",
                         "unhandled system error (run with NCCL_DEBUG=INFO for details)"},
    [ncclInternalError] = {"ncclInternalError",
                           "internal error - please report this issue to the NCCL developers"},
    [ncclInvalidArgument] = {"ncclInvalidArgument",
                             "invalid argument (run with NCCL_DEBUG=WARN for details)"},
    [ncclInvalidUsage] = {"ncclInvalidUsage",
                          "invalid usage (run with NCCL_DEBUG=WARN for details)"},
    [ncclRemoteError] = {"ncclRemoteError", "remote process exited or there was a network error"},
    [ncclInProgress] = {"ncclInProgress", "NCCL operation in progress"},
};

static ncclResult_t warn(ncclResult_t r, const char *text) {
    (void)snprintf(last_error, sizeof last_error, "%s", text);
    return r;
}

/* What an injected failure of the call is: the error that EMU_FAIL_AT names, or one of CUDA below,
 * or a system call that failed. */
static ncclResult_t injected(const char *call) {
    const char *name = emu_fail_error();
    ncclResult_t r = strncmp(name, "cuda", 4) == 0 ? ncclUnhandledCudaError : ncclSystemError;
    for (int i = ncclUnhandledCudaError; i < ncclInProgress; i++)
        if (strcmp(name, results[i].name) == 0)
            r = (ncclResult_t)i;
    (void)snprintf(last_error, sizeof last_error, "injected into %s", call);
    return r;
}

const char *ncclGetErrorString(ncclResult_t result) {
    return (unsigned)result < ncclNumResults ? results[result].text : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm) {
    (void)comm; /* nor does NCCL look at it */
    return last_error;
}

ncclResult_t ncclGetVersion(int *version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

/* ---- the life of a communicator ---- */

static void comm_check(const char *call, const struct ncclComm *comm) {
    if (comm == NULL)
        emu_die(call, "the communicator is NULL");
    for (const struct ncclComm *c = comms; c != NULL; c = c->older)
        if (c == comm && c->magic == COMM_LIVES)
            return;
    emu_die(call, "this communicator was destroyed or aborted, or never was one");
}

/* As for every call that starts something: what was started before must be done. */
static ncclResult_t comm_ready(struct ncclComm *comm) {
    if (comm->error == ncclSuccess && comm->doing != DOING_NOTHING)
        comm->error = warn(ncclInvalidArgument, "Attempt to use communicator before the previous "
                                                "operation returned ncclSuccess");
    return comm->error;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId) {
    if (emu_fail(__func__))
        return injected(__func__);
    return world_make(uniqueId->internal) == 0 ? ncclSuccess
                                               : warn(ncclSystemError, "memfd_create failed");
}

static void config_check(const char *call, const ncclConfig_t *config) {
    static const ncclConfig_t fresh = NCCL_CONFIG_INITIALIZER;
    if (config == NULL)
        emu_die(call, "blocking communicators are not modelled: no config was given");
    if (config->size != fresh.size || config->magic != fresh.magic ||
        config->version != fresh.version)
        emu_die(call, "the config was not made by NCCL_CONFIG_INITIALIZER");
    ncclConfig_t plain = *config;
    if (plain.blocking != 0)
        emu_die(call, "blocking communicators are not modelled: config.blocking is %d",
                plain.blocking);
    plain.blocking = fresh.blocking;
    if (memcmp(&plain, &fresh, sizeof plain) != 0)
        emu_die(call, "of the config only blocking is modelled");
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int nranks, ncclUniqueId commId, int rank,
                                    ncclConfig_t *config) {
    if (emu_fail(__func__))
        return injected(__func__);
    config_check(__func__, config);
    if (nranks < 1 || rank < 0 || rank >= nranks)
        return warn(ncclInvalidArgument, "invalid rank or number of ranks");
    if (nranks > WORLD_RANKS)
        emu_die(__func__, "worlds of more than %d ranks are not modelled", WORLD_RANKS);
    int device = -1;
    if (cudaGetDevice(&device) != cudaSuccess)
        return warn(ncclUnhandledCudaError, "cudaGetDevice failed");
    struct ncclComm *comm = calloc(1, sizeof *comm);
    if (comm == NULL)
        emu_die(__func__, "no memory");
    comm->rank = rank;
    comm->rank_count = nranks;
    comm->device = device;
    if (cudaEventCreateWithFlags(&comm->last, cudaEventDisableTiming) != cudaSuccess) {
        free(comm);
        return warn(ncclUnhandledCudaError, "cudaEventCreateWithFlags failed");
    }
    emu_lock();
    environment();
    comm->magic = COMM_LIVES;
    comm->doing = DOING_JOIN;
    comm->world = world_open(__func__, commId.internal, rank, nranks);
    if (comm->world == NULL)
        comm->error = warn(ncclSystemError, "socketPollConnect: connect returned Connection "
                                            "refused: who made the id is gone");
    else if (!fault_is(&hang, comm, 0))
        world_join(__func__, comm->world, device);
    comm->older = comms;
    comms = comm;
    *out = comm;
    emu_unlock();
    return ncclInProgress;
}

static void go_on_joining(struct ncclComm *comm) {
    if (comm->joined || !world_complete(comm->world))
        return;
    int twin = world_twin(comm->world);
    comm->joined = true;
    comm->doing = DOING_NOTHING;
    if (twin >= 0) {
        (void)snprintf(last_error, sizeof last_error,
                       "Duplicate GPU detected : rank %d and rank %d both on CUDA device %x",
                       comm->rank, twin, (unsigned)comm->device << 12);
        comm->error = ncclInvalidUsage;
    }
}

static ncclResult_t task_launch(struct task *t);

static void go_on(struct ncclComm *comm) {
    if (comm->error != ncclSuccess)
        return;
    if (comm->doing == DOING_JOIN) {
        go_on_joining(comm);
    } else if (comm->doing == DOING_QUEUE && pthread_equal(comm->issuer, pthread_self()) &&
               --comm->questions == 0) {
        comm->doing = DOING_NOTHING;
        comm->error = task_launch(comm->next);
        comm->next = NULL;
    } else if (comm->doing == DOING_FINALIZE) {
        cudaError_t e = cudaEventQuery(comm->last);
        if (e == cudaSuccess && comm->queued == 0)
            comm->doing = DOING_NOTHING;
        else if (e != cudaSuccess && e != cudaErrorNotReady)
            comm->error = warn(ncclUnhandledCudaError, "the device failed");
    }
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError) {
    emu_lock();
    comm_check(__func__, comm);
    if (comm->in_call && !pthread_equal(comm->issuer, pthread_self()))
        emu_die(__func__, "another thread is in a call of this communicator");
    go_on(comm);
    *asyncError = comm->error != ncclSuccess     ? comm->error
                  : comm->doing != DOING_NOTHING ? ncclInProgress
                                                 : ncclSuccess;
    emu_unlock();
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    bool fails = emu_fail(__func__);
    emu_lock();
    comm_check(__func__, comm);
    ncclResult_t r = fails ? injected(__func__) : comm_ready(comm);
    if (r == ncclSuccess && comm->finalized)
        r = warn(ncclInvalidArgument, "the communicator was finalized before");
    comm->error = r;
    if (r == ncclSuccess) {
        comm->finalized = true;
        comm->doing = DOING_FINALIZE;
        r = ncclInProgress;
    }
    emu_unlock();
    return r;
}

/* The world goes with the last that used it. */
static void comm_leave(struct ncclComm *comm) {
    if (comm->magic == COMM_LIVES || comm->queued > 0 || comm->world == NULL)
        return;
    world_close(comm->world);
    comm->world = NULL;
}

static void comm_end(struct ncclComm *comm) {
    comm->magic = 0;
    free(comm->next);
    comm->next = NULL;
    (void)cudaEventDestroy(comm->last);
    comm_leave(comm);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    bool fails = emu_fail(__func__);
    emu_lock();
    comm_check(__func__, comm);
    if (!comm->finalized || comm->doing != DOING_NOTHING || comm->error != ncclSuccess)
        emu_die(__func__, "not modelled before ncclCommFinalize is done");
    comm_end(comm);
    emu_unlock();
    return fails ? injected(__func__) : ncclInProgress;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    bool fails = emu_fail(__func__);
    emu_lock();
    comm_check(__func__, comm);
    comm->aborted = true;
    comm_end(comm);
    emu_unlock();
    return fails ? injected(__func__) : ncclInProgress;
}

/* ---- collectives ---- */

static size_t elem_bytes(const struct exchange *x) { return x->bf16 ? 2 : 4; }

static size_t recv_bytes(const struct task *t) {
    size_t parts = t->exchange.kind == EXCHANGE_GATHER ? (size_t)t->comm->rank_count : 1;
    return parts * t->exchange.elems * elem_bytes(&t->exchange);
}

static size_t send_bytes(const struct task *t) {
    size_t parts = t->exchange.kind == EXCHANGE_GATHER ? 1 : (size_t)t->comm->rank_count;
    return parts * t->exchange.elems * elem_bytes(&t->exchange);
}

static bool task_poll(void *arg) {
    struct task *t = arg;
    struct ncclComm *comm = t->comm;
    if (comm->aborted) {
        memset(t->exchange.recv, 0xff, recv_bytes(t));
        return true;
    }
    if (fault_is(&hang, comm, t->exchange.number))
        return false;
    if (fault_is(&async_error, comm, t->exchange.number) && comm->error == ncclSuccess)
        comm->error = warn(ncclRemoteError, "NET/Socket : peer has closed its connection");
    if (comm->error == ncclRemoteError)
        return false; /* from then on nothing comes or goes */
    return exchange_step(&t->exchange);
}

static void task_release(void *arg) {
    struct task *t = arg;
    t->comm->queued--;
    comm_leave(t->comm);
    free(t);
}

static ncclResult_t task_launch(struct task *t) {
    struct ncclComm *comm = t->comm;
    cudaStream_t stream = t->stream;
    cudaError_t e = cudaSuccess;
    if (t->exchange.number > 1)
        e = cudaStreamWaitEvent(stream, comm->last, 0);
    if (e != cudaSuccess) {
        free(t);
        return warn(ncclUnhandledCudaError, "cudaStreamWaitEvent failed");
    }
    struct emu_op op = {
        .name = t->exchange.kind == EXCHANGE_GATHER ? "ncclAllGather" : "ncclReduceScatter",
        .poll = task_poll,
        .release = task_release,
        .arg = t,
        .ranges = {emu_reads(t->exchange.send, send_bytes(t)),
                   emu_writes(t->exchange.recv, recv_bytes(t))},
        .range_count = 2,
    };
    comm->queued++;
    emu_queue(stream, &op);
    e = cudaEventRecord(comm->last, stream);
    return e == cudaSuccess ? ncclSuccess : warn(ncclUnhandledCudaError, "cudaEventRecord failed");
}

static void buffer_check(const char *call, const char *what, const struct ncclComm *comm,
                         struct emu_range range) {
    emu_check_range(call, what, &range, EMU_DEVICE);
    if (emu_memory_find(range.start)->device != comm->device)
        emu_die(call, "%s is not memory of the communicator's device %d", what, comm->device);
}

static void task_check(const char *call, const struct task *t) {
    const struct exchange *x = &t->exchange;
    const unsigned char *send = x->send;
    const unsigned char *recv = x->recv;
    size_t part = x->elems * elem_bytes(x), own = (size_t)t->comm->rank * part;
    int device = emu_check_stream(call, t->stream);
    if (device != t->comm->device)
        emu_die(call, "a stream of device %d, a communicator of device %d", device,
                t->comm->device);
    if ((uintptr_t)send % elem_bytes(x) != 0 || (uintptr_t)recv % elem_bytes(x) != 0)
        emu_die(call, "a buffer is not aligned to its elements");
    buffer_check(call, "sendbuff", t->comm, emu_reads(send, send_bytes(t)));
    buffer_check(call, "recvbuff", t->comm, emu_writes(recv, recv_bytes(t)));
    bool in_place = x->kind == EXCHANGE_GATHER ? send == recv + own : recv == send + own;
    if (!in_place && send < recv + recv_bytes(t) && recv < send + send_bytes(t))
        emu_die(call, "the buffers overlap, and not as a call in place has them");
}

/* Others go on meanwhile. */
static void call_takes_time(struct ncclComm *comm) {
    unsigned ms = slow_ms;
    if (ms == 0)
        return;
    comm->in_call = true;
    emu_unlock();
    (void)nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
    emu_lock();
    comm->in_call = false;
}

static ncclResult_t collective(const char *call, enum exchange_kind kind, const void *send,
                               void *recv, size_t elems, ncclDataType_t type, ncclComm_t comm,
                               cudaStream_t stream) {
    bool fails = emu_fail(call);
    emu_lock();
    comm_check(call, comm);
    if (type != ncclFloat32 && type != ncclBfloat16)
        emu_die(call, "dtype %d is not modelled, only ncclFloat32 and ncclBfloat16", (int)type);
    ncclResult_t r = fails ? injected(call) : comm_ready(comm);
    if (r == ncclSuccess && comm->finalized)
        emu_die(call, "after ncclCommFinalize");
    if (r != ncclSuccess)
        comm->error = r; /* as in NCCL, whatever failed */
    if (r != ncclSuccess || elems == 0) {
        emu_unlock();
        return r;
    }
    struct task *t = malloc(sizeof *t);
    if (t == NULL)
        emu_die(call, "no memory");
    *t = (struct task){comm,
                       {.world = comm->world,
                        .kind = kind,
                        .bf16 = type == ncclBfloat16,
                        .number = ++comm->issued,
                        .elems = elems,
                        .send = send,
                        .recv = recv},
                       stream};
    task_check(call, t);
    comm->next = t;
    comm->doing = DOING_QUEUE;
    comm->issuer = pthread_self();
    comm->questions = QUESTIONS;
    call_takes_time(comm);
    emu_unlock();
    return ncclInProgress;
}

ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount,
                           ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream) {
    return collective(__func__, EXCHANGE_GATHER, sendbuff, recvbuff, sendcount, datatype, comm,
                      stream);
}

ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                               ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
    if (op != ncclSum)
        emu_die(__func__, "reduction %d is not modelled, only ncclSum", (int)op);
    return collective(__func__, EXCHANGE_REDUCE, sendbuff, recvbuff, recvcount, datatype, comm,
                      stream);
}
