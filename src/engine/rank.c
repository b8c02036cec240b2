/* rank.c - the main thread of a rank: hello, load or initialise, then boundary and step until the
 * agenda says quit.
 *
 *   rank_hello -> rank_build -> rank_load -> READY -> +-> rank_boundary -> STEP    rank_step ----+
 *                                                     |                  -> WAIT    rank_wait ----+
 *                                                     |                  -> RESTORE rank_restore -+
 *                                                     +-------------------------------------------+
 *                                                                        -> QUIT    BYE */
#include "config.h"

#include "engine/rank.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "engine/memory_sheet.h"
#include "engine/restore.h"
#include "engine/service.h"
#include "engine/trainer.h"
#include "shard/wrap.h"

enum { RANK_HELLO_OUTBOX_BYTES = 4 << 20, RANK_WELCOME_MS = 60000, RANK_ABORT_S = 2 };

struct rank {
    const struct rank_options *options;
    uint32_t rank, world_size;
    struct link *link; /* to the supervisor, until the service thread has it */
    struct config config, live;
    char *model_config;
    char resume_dir[MSG_PATH_BYTES];
    int doorbell_fd;
    struct model *model;
    struct layout layout;
    struct data *data;
    struct arrays *arrays;
    struct inbox *inbox;
    struct rank_shared shared;
    struct service *service;
    const struct device_ops *device;
    char device_note[256];           /* why it is the CPU, where that was left to us */
    const struct comm_ops *comm_ops; /* the trainer's */
    struct trainer *trainer;
    struct agenda *agenda;
    uint64_t gen, step;
    /* what rank 0 reported last */
    bool reported_waiting;
    uint64_t reported_goal;
    bool reported;
    struct step_result result;
    double step_seconds;
    bool stepped;
};

static double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void rank_phase(struct rank *r, enum rank_phase phase) {
    atomic_store(&r->shared.phase, phase);
}

/* ---- hello */

static int rank_welcome(struct rank *r, struct frame *f, struct err *err) {
    struct msg_rank_welcome *m = calloc(1, sizeof(*m));
    if (m == NULL)
        return err_set(err, ENOMEM, "no memory for the welcome");
    int rc = 0;
    if (f->type != MSG_RANK_WELCOME || f->fd_count != 1 ||
        msg_decode(f->type, f->payload, f->len_bytes, m) != 0) {
        rc = err_set(err, EPROTO, "the supervisor answered the hello with %s",
                     msg_type_name(f->type));
        goto out;
    }
    r->doorbell_fd = f->fds[0];
    f->fds[0] = -1;
    r->gen = m->gen + 1;
    memcpy(r->resume_dir, m->resume_dir, sizeof(r->resume_dir));
    char *text = strndup((const char *)m->config.data, m->config.len_bytes);
    r->model_config = strndup((const char *)m->model_config.data, m->model_config.len_bytes);
    if (text == NULL || r->model_config == NULL)
        rc = err_set(err, ENOMEM, "no memory for the configuration");
    if (rc == 0) {
        config_defaults(&r->config);
        rc = config_parse(&r->config, text, "welcome", NULL, err);
    }
    r->live = r->config;
    free(text);
out:
    free(m);
    return rc;
}

static int rank_hello(struct rank *r, struct err *err) {
    struct msg_rank_hello hello = {.epoch = r->options->epoch,
                                   .pid = (uint64_t)getpid(),
                                   .rank = r->rank,
                                   .world_size = r->world_size,
                                   .build = PACKAGE_VERSION};
    int rc = msg_send(r->link, MSG_RANK_HELLO, 0, &hello, NULL, 0);
    double deadline = now_seconds() + RANK_WELCOME_MS / 1000.0;
    struct frame f;
    while (rc == 0) {
        struct pollfd p = {.fd = link_fd(r->link), .events = POLLIN};
        int left_ms = (int)((deadline - now_seconds()) * 1000);
        if (left_ms <= 0)
            return err_set(err, ETIMEDOUT, "the supervisor did not answer the hello");
        (void)poll(&p, 1, left_ms);
        rc = link_fill(r->link);
        int got = link_next(r->link, &f);
        if (got == 1)
            return rank_welcome(r, &f, err);
        if (got < 0)
            rc = got;
    }
    return err_set(err, -rc, "no welcome from the supervisor: %s", err_name(-rc));
}

/* ---- build */

static int rank_shape(struct rank *r, struct err *err) {
    int rc = 0;
    bool is_kept = r->model_config[0] != '\0';
    if (!is_kept) {
        free(r->model_config);
        r->model_config = NULL;
        rc = model_config_text(r->config.model, &r->model_config, err);
    }
    if (rc == 0)
        rc = model_open(r->model_config, &r->model, err);
    if (rc != 0)
        return is_kept ? err_prefix(err, "%s/model.json", r->options->run_dir) : rc;
    uint32_t count = model_tensor_count(r->model);
    struct tensor_spec *specs = calloc((size_t)count + 1, sizeof(*specs));
    if (specs == NULL)
        return err_set(err, ENOMEM, "no memory for the model's tensors");
    for (uint32_t i = 0; i < count; i++)
        specs[i] = model_tensors(r->model)[i].spec;
    rc = wrap_layout(r->config.wrap, specs, count, model_modules(r->model),
                     model_module_count(r->model), r->world_size, &r->layout, err);
    free(specs);
    return rc;
}

static int rank_data(struct rank *r, struct err *err) {
    uint64_t context = model_context(r->model);
    if (r->config.seq_len == 0)
        r->config.seq_len = r->live.seq_len = context;
    if (r->config.seq_len > context)
        return err_set(err, ERANGE, "seq_len = %llu: the model's context is %llu tokens",
                       (unsigned long long)r->config.seq_len, (unsigned long long)context);
    return data_open(r->config.data, r->config.seq_len, model_vocab(r->model), r->config.seed,
                     &r->data, err);
}

static int rank_service(struct rank *r, struct err *err) {
    if (r->rank == 0) {
        r->inbox = inbox_open(r->doorbell_fd);
        if (r->inbox == NULL)
            return err_set(err, ENOMEM, "no memory for the inbox");
    }
    struct service_args args = {.rank = r->rank,
                                .world_size = r->world_size,
                                .epoch = r->options->epoch,
                                .config = &r->config,
                                .layout = &r->layout,
                                .arrays = r->arrays,
                                .inbox = r->inbox,
                                .supervisor = r->link,
                                .shared = &r->shared,
                                .fingerprint = data_fingerprint(r->data)};
    r->link = NULL;
    return service_open(&args, &r->service, err);
}

static int rank_build(struct rank *r, struct err *err) {
    int rc = rank_shape(r, err);
    if (rc == 0)
        rc = rank_data(r, err);
    if (rc == 0)
        rc = device_find(r->config.device, &r->device, r->device_note, sizeof(r->device_note), err);
    if (rc == 0)
        rc = arrays_open(&r->layout, r->rank, &r->arrays, err);
    if (rc == 0)
        rc = rank_service(r, err);
    if (rc != 0)
        return rc;
    uint32_t local_rank = 0, local_size = 1;
    rc = comm_world_local(&local_rank, &local_size, err);
    if (rc != 0)
        return rc;
    struct trainer_args args = {.config = &r->config,
                                .model = r->model,
                                .layout = &r->layout,
                                .rank = r->rank,
                                .world_size = r->world_size,
                                .local_rank = local_rank,
                                .local_size = local_size,
                                .ops = r->device,
                                .data = r->data,
                                .arrays = r->arrays,
                                .phase = &r->shared.phase,
                                .micro = &r->shared.micro};
    rc = trainer_open(&args, &r->trainer, err);
    if (rc == 0)
        r->comm_ops = trainer_comm_ops(r->trainer);
    r->agenda = calloc(1, sizeof(*r->agenda));
    if (rc == 0 && r->agenda == NULL)
        rc = err_set(err, ENOMEM, "no memory for the agenda");
    return rc;
}

static struct comm *rank_comm(const struct rank *r) { return trainer_comm(r->trainer); }

/* ---- load */

static int rank_restore_from(struct rank *r, const char *dir, bool *changed, struct err *err) {
    struct restore_args args = {.layout = &r->layout,
                                .rank = r->rank,
                                .world_size = r->world_size,
                                .arrays = r->arrays,
                                .comm_ops = r->comm_ops,
                                .comm = rank_comm(r),
                                .gen = r->gen};
    rank_phase(r, RANK_LOADING);
    int rc = restore_load(&args, dir, &r->step, changed, err);
    if (rc == 0)
        atomic_store(&r->shared.step, r->step);
    return rc;
}

static int rank_load(struct rank *r, struct err *err) {
    bool changed;
    if (r->resume_dir[0] != '\0')
        return rank_restore_from(r, r->resume_dir, &changed, err);
    int rc = trainer_init(r->trainer, r->gen, err);
    if (rc == 0 && (rc = r->comm_ops->barrier(rank_comm(r))) != 0)
        err_set(err, -rc, "barrier after the initialisation: %s", err_name(-rc));
    return rc;
}

/* What this rank computes on, and what its memory is for. */
static void rank_describe(struct rank *r, struct msg_rank_ready *m, struct enc *memory) {
    struct device_properties p = {0};
    struct memory_sheet sheet = {.host_access = r->device->host_access};
    if (r->device->properties(trainer_device(r->trainer), &p) != 0) {
        char why[256];
        r->device->why(trainer_device(r->trainer), why, sizeof(why));
        log_warn("the properties of device %s are not known: %s", r->device->name, why);
        p = (struct device_properties){0};
    }
    trainer_memory(r->trainer, memory_sheet_add, &sheet);
    memory_sheet_print(&sheet, &p, memory);
    if (!memory->failed)
        m->memory = (struct blob){memory->data, memory->len_bytes};
    snprintf(m->device, sizeof(m->device), "%s", r->device->name);
    memcpy(m->device_name, p.name, sizeof(m->device_name));
    memcpy(m->device_id, p.id, sizeof(m->device_id));
    m->peak_flops = p.flops[trainer_dtype(r->trainer)];
}

/* What is trained, in a line. */
static void rank_summary(const struct rank *r, struct msg_rank_ready *m) {
    enum dtype t = trainer_dtype(r->trainer);
    snprintf(m->summary, sizeof(m->summary),
             "%s, %.2f M parameters in %u units, %u rank%s, comm %s, device %s%s%s, %llu tokens of "
             "data",
             model_kind(r->model), (double)m->numel / 1e6, r->layout.unit_count, r->world_size,
             r->world_size == 1 ? "" : "s", r->comm_ops->name, r->device->name,
             t == DTYPE_F32 ? "" : ", ", t == DTYPE_F32 ? "" : dtype_name(t),
             (unsigned long long)data_tokens(r->data));
}

static int rank_ready(struct rank *r, struct err *err) {
    struct enc layout = {0}, memory = {0};
    struct msg_rank_ready *m = calloc(1, sizeof(*m));
    if (m == NULL)
        return err_set(err, ENOMEM, "no memory for the ready message");
    m->gen = r->gen;
    m->step = r->step;
    m->numel = layout_numel(&r->layout);
    if (r->rank == 0) {
        layout_encode(&r->layout, &layout);
        m->layout = (struct blob){layout.data, layout.len_bytes};
        m->model_config = (struct blob){(const uint8_t *)r->model_config, strlen(r->model_config)};
        m->fingerprint = data_fingerprint(r->data);
        m->flops_per_token = model_flops_per_token(r->model, r->config.seq_len);
        snprintf(m->note, sizeof(m->note), "%s", r->device_note);
        rank_summary(r, m);
    }
    rank_describe(r, m, &memory);
    service_send(r->service, MSG_RANK_READY, m);
    enc_free(&layout);
    enc_free(&memory);
    free(m);
    return 0;
}

/* ---- boundary, step, wait, restore */

static void rank_report(struct rank *r, bool waiting) {
    if (r->rank != 0)
        return;
    bool news = r->stepped || !r->reported || r->reported_waiting != waiting ||
                r->reported_goal != r->agenda->goal_step;
    if (!news)
        return;
    struct msg_boundary m = {.epoch = r->options->epoch,
                             .gen = r->gen,
                             .step = r->step,
                             .goal_step = r->agenda->goal_step,
                             .first_of_step = r->stepped,
                             .loss = r->result.loss,
                             .grad_norm = r->result.grad_norm,
                             .clip_factor = r->result.clip_factor,
                             .lr = r->result.lr,
                             .step_seconds = r->step_seconds,
                             .tokens = r->result.tokens,
                             .waiting = waiting};
    service_send(r->service, MSG_BOUNDARY, &m);
    r->reported = true;
    r->reported_waiting = waiting;
    r->reported_goal = r->agenda->goal_step;
    r->stepped = false;
}

/* The barrier upward, then the agenda downward. When it returns no rank is still updating what this
 * boundary reports. */
static int rank_boundary(struct rank *r, struct err *err) {
    rank_phase(r, RANK_BOUNDARY);
    int rc = r->comm_ops->barrier(rank_comm(r));
    if (rc != 0)
        return err_set(err, -rc, "barrier at the boundary: %s", err_name(-rc));
    rc =
        agenda_agree(r->agenda, r->comm_ops, rank_comm(r), r->rank, r->inbox, r->gen, r->step, err);
    if (rc != 0)
        return rc;
    if (r->agenda->config != NULL)
        rc = config_parse(&r->live, r->agenda->config, "agenda", NULL, err);
    /* Holds before anything that mutates: step and restore come after. */
    service_fix(r->service, r->agenda, r->gen, r->step);
    rank_report(r, r->agenda->action == AGENDA_WAIT);
    return rc;
}

static int rank_step(struct rank *r, struct err *err) {
    double start = now_seconds();
    int rc = trainer_step(r->trainer, r->step, r->gen + 1, &r->live, &r->result, err);
    if (rc != 0)
        return rc;
    r->gen++;
    r->step++;
    r->step_seconds = now_seconds() - start;
    r->stepped = true;
    atomic_store(&r->shared.step, r->step);
    return 0;
}

/* Asleep until there is news: rank 0 is woken by its inbox and rings the others, so that no process
 * but a rank can leave one of them asleep. */
static int rank_wait(struct rank *r) {
    rank_phase(r, RANK_WAITING);
    struct pollfd p = {.fd = r->doorbell_fd, .events = POLLIN};
    while (poll(&p, 1, -1) < 0 && errno == EINTR)
        ;
    uint64_t rings;
    if (read(r->doorbell_fd, &rings, sizeof(rings)) < 0 && errno != EAGAIN)
        return -errno;
    if (r->rank == 0)
        service_ring_others(r->service);
    return 0;
}

static int rank_restore(struct rank *r, struct err *err) {
    struct msg_restored *m = calloc(1, sizeof(*m));
    if (m == NULL)
        return err_set(err, ENOMEM, "no memory for the answer to restore");
    bool changed;
    struct err why = {0};
    bool rested = r->step >= r->agenda->goal_step;
    r->gen++;
    int rc = rank_restore_from(r, r->agenda->dir, &changed, &why);
    if (rc != 0 && changed) {
        *err = why;
        goto out;
    }
    /* A failed one changed nothing, but gen never goes back. */
    if (rested && r->rank == 0)
        inbox_rest(r->inbox, r->agenda->goal_step, r->step);
    r->reported = false;
    rank_report(r, rested);
    m->command = r->agenda->command;
    m->gen = r->gen;
    m->step = r->step;
    m->code = (uint32_t)-rc;
    memcpy(m->text, why.text, sizeof(m->text));
    if (r->rank == 0)
        service_send(r->service, MSG_RESTORED, m);
    rc = 0;
out:
    free(m);
    return rc;
}

static int rank_loop(struct rank *r, struct err *err) {
    for (;;) {
        int rc = rank_boundary(r, err);
        if (rc != 0)
            return rc;
        switch (r->agenda->action) {
        case AGENDA_STEP:
            rc = rank_step(r, err);
            break;
        case AGENDA_WAIT:
            rc = rank_wait(r);
            break;
        case AGENDA_RESTORE:
            rc = rank_restore(r, err);
            break;
        case AGENDA_QUIT:
            return 0;
        }
        if (rc != 0)
            return err_set(err, -rc, "%s", strerror(-rc));
    }
}

/* ---- ends */

static void rank_bye(struct rank *r, const struct err *err) {
    struct msg_rank_bye *m = calloc(1, sizeof(*m));
    if (m == NULL)
        return;
    m->code = (uint32_t)err->code;
    memcpy(m->text, err->text, sizeof(m->text));
    if (r->service != NULL)
        service_send(r->service, MSG_RANK_BYE, m);
    else if (r->link != NULL)
        (void)msg_send(r->link, MSG_RANK_BYE, 0, m, NULL, 0);
    free(m);
}

static void rank_free(struct rank *r) {
    service_close(r->service);
    trainer_close(r->trainer);
    inbox_close(r->inbox);
    arrays_close(r->arrays);
    data_close(r->data);
    layout_free(&r->layout);
    model_close(r->model);
    link_close(r->link);
    if (r->doorbell_fd >= 0)
        close(r->doorbell_fd);
    if (r->agenda != NULL)
        free(r->agenda->config);
    free(r->agenda);
    free(r->model_config);
    free(r);
}

static void rank_limits(void) {
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) == 0 && l.rlim_cur < l.rlim_max) {
        l.rlim_cur = l.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &l);
    }
}

static int rank_connect(struct rank *r, struct err *err) {
    const char *dir = r->options->run_dir;
    int fd = link_connect(dir, "socket");
    if (fd < 0)
        return err_set(err, -fd, "%s/socket: %s: ranks are started by `gatherfs run`", dir,
                       strerror(-fd));
    r->link = link_open(fd, RANK_HELLO_OUTBOX_BYTES);
    return r->link != NULL ? 0 : err_set(err, ENOMEM, "no memory for the link to the supervisor");
}

int rank_run(const struct rank_options *o) {
    struct err err = {0};
    struct rank *r = calloc(1, sizeof(*r));
    if (r == NULL)
        return 1;
    r->options = o;
    r->doorbell_fd = -1;
    rank_limits();
    /* MPI first: its start may take longer than a silent guest is suffered on the socket. */
    int rc = comm_world_init(o->world_size, &r->rank, &r->world_size, &err);
    bool world = rc == 0;
    int connected = rank_connect(r, &err);
    if (rc == 0)
        rc = connected;
    if (rc == 0) {
        char name[32];
        snprintf(name, sizeof(name), "rank %u", r->rank);
        log_open(name, LEVEL_INFO);
        rc = rank_hello(r, &err);
    }
    if (rc == 0)
        rc = rank_build(r, &err);
    if (rc == 0)
        rc = rank_load(r, &err);
    if (rc == 0)
        rc = rank_ready(r, &err);
    if (rc == 0)
        rc = rank_loop(r, &err);
    if (rc != 0)
        log_error("%s", err.text);
    rank_bye(r, &err);
    rank_free(r);
    if (rc != 0 && world) {
        /* The supervisor has the last words and ends the launcher; aborting first would only have
         * MPI print its own over them. */
        sleep(RANK_ABORT_S);
        comm_world_abort(1);
    }
    if (world)
        comm_world_finalize();
    return rc == 0 ? 0 : 1;
}
