/* status.c - one table of the files in status/; each is printed from the newest messages. */
#include "config.h"

#include "fsmount/status.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "fsmount/clock.h"
#include "store/catalogue.h"

enum { STATUS_ROWS = 256, STATUS_GROWING_FILES = 3 };

/* An open growing file; opened when it is first wanted, for it may come later than we do. */
struct growing {
    const char *path; /* below the run directory */
    int fd;
};

struct status {
    char run_dir[MSG_PATH_BYTES];
    struct msg_status now;
    struct config config;
    bool known;
    uint64_t changed_ns, events_bytes;
    char error[MSG_TEXT_BYTES];
    char said_error[MSG_TEXT_BYTES]; /* the supervisor's last_error when it was taken over */
    struct versions versions;
    struct msg_command_row *rows[STATUS_ROWS]; /* ascending by number */
    uint32_t row_count;
    struct growing growing[STATUS_GROWING_FILES];
    /* The image of run.db that is shown, and the files it was made from. */
    struct text *image;
    struct stat image_db, image_wal;
};

enum { GROWING_METRICS, GROWING_EVENTS, GROWING_LOG };

int status_open(const char *run_dir, const struct config *config, struct status **out) {
    struct status *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return -ENOMEM;
    snprintf(s->run_dir, sizeof(s->run_dir), "%s", run_dir);
    s->config = *config;
    s->now.loss = s->now.grad_norm = s->now.clip_factor = s->now.lr = NAN;
    s->now.tokens_per_second = s->now.step_seconds = s->now.eta_seconds = s->now.mfu = NAN;
    s->changed_ns = clock_wall();
    s->growing[GROWING_METRICS] = (struct growing){.path = "metrics.tsv", .fd = -1};
    s->growing[GROWING_EVENTS] = (struct growing){.path = "events", .fd = -1};
    s->growing[GROWING_LOG] = (struct growing){.path = "log/run.log", .fd = -1};
    *out = s;
    return 0;
}

void status_close(struct status *s) {
    if (s == NULL)
        return;
    for (uint32_t i = 0; i < s->row_count; i++)
        free(s->rows[i]);
    for (int i = 0; i < STATUS_GROWING_FILES; i++)
        if (s->growing[i].fd >= 0)
            close(s->growing[i].fd);
    text_put(s->image);
    free(s);
}

/* ---- from the supervisor */

static int status_set_config(struct status *s, const struct blob *text, struct err *err) {
    if (text->len_bytes == 0)
        return 0;
    char *copy = malloc(text->len_bytes + 1);
    struct config *parsed = malloc(sizeof(*parsed));
    int rc = -ENOMEM;
    if (copy != NULL && parsed != NULL) {
        memcpy(copy, text->data, text->len_bytes);
        copy[text->len_bytes] = '\0';
        *parsed = s->config;
        rc = config_parse(parsed, copy, "the supervisor's config", NULL, err);
        if (rc == 0)
            s->config = *parsed;
    } else {
        err_set(err, ENOMEM, "no memory for the config");
    }
    free(copy);
    free(parsed);
    return rc;
}

int status_set(struct status *s, const struct msg_status *m, struct err *err) {
    if (m->state >= RUN_STATE_COUNT)
        return err_set(err, EPROTO, "state %u of the run", m->state);
    int rc = status_set_config(s, &m->config, err);
    s->now = *m;
    s->now.config = (struct blob){0};
    s->known = true;
    s->changed_ns = clock_wall();
    if (m->epoch != 0)
        versions_time(&s->versions, m->epoch, m->gen, m->time_ns != 0 ? m->time_ns : s->changed_ns);
    if (strcmp(m->last_error, s->said_error) != 0) {
        memcpy(s->said_error, m->last_error, sizeof(s->said_error));
        memcpy(s->error, m->last_error, sizeof(s->error));
    }
    return rc;
}

void status_row(struct status *s, const struct msg_command_row *m) {
    uint32_t at = s->row_count;
    while (at > 0 && s->rows[at - 1]->number > m->number)
        at--;
    if (at > 0 && s->rows[at - 1]->number == m->number) {
        *s->rows[at - 1] = *m;
        return;
    }
    struct msg_command_row *row = malloc(sizeof(*row));
    if (row == NULL || (at == 0 && s->row_count == STATUS_ROWS)) {
        free(row);
        return;
    }
    *row = *m;
    if (s->row_count == STATUS_ROWS) {
        free(s->rows[0]);
        memmove(&s->rows[0], &s->rows[1], (STATUS_ROWS - 1) * sizeof(struct msg_command_row *));
        s->row_count--;
        at--;
    }
    memmove(&s->rows[at + 1], &s->rows[at], (s->row_count - at) * sizeof(struct msg_command_row *));
    s->rows[at] = row;
    s->row_count++;
}

void status_events(struct status *s, uint64_t bytes) { s->events_bytes = bytes; }

void status_error(struct status *s, const char *text) {
    snprintf(s->error, sizeof(s->error), "%s", text);
    err_clean(s->error);
}

const struct msg_status *status_get(const struct status *s) { return &s->now; }
const struct config *status_config(const struct status *s) { return &s->config; }

bool status_is_idle(const struct status *s) {
    bool waits = s->now.state == RUN_PAUSED || s->now.state == RUN_DONE;
    return s->known && waits && s->now.step == s->now.goal_step;
}

uint64_t status_time_ns(struct status *s, uint64_t epoch, uint64_t gen) {
    return versions_time(&s->versions, epoch, gen, clock_wall());
}

/* ---- values */

static void print_f64(double x, struct enc *e) {
    if (isfinite(x))
        enc_printf(e, "%.9g\n", x);
    else
        enc_printf(e, "nan\n");
}

#define PRINT_U64(field)                                                                           \
    static void print_##field(const struct status *s, const struct world *w, struct enc *e) {      \
        (void)w;                                                                                   \
        enc_printf(e, "%" PRIu64 "\n", (uint64_t)s->now.field);                                    \
    }
#define PRINT_F64(field)                                                                           \
    static void print_##field(const struct status *s, const struct world *w, struct enc *e) {      \
        (void)w;                                                                                   \
        print_f64(s->now.field, e);                                                                \
    }
#define PRINT_TEXT(name, expression)                                                               \
    static void print_##name(const struct status *s, const struct world *w, struct enc *e) {       \
        (void)w;                                                                                   \
        enc_printf(e, "%s\n", expression);                                                         \
    }
PRINT_TEXT(state, run_state_names[s->now.state])
PRINT_U64(step)
PRINT_U64(target)
PRINT_U64(goal_step)
PRINT_F64(loss)
PRINT_F64(grad_norm)
PRINT_F64(clip_factor)
PRINT_F64(lr)
PRINT_F64(tokens_per_second)
PRINT_F64(step_seconds)
PRINT_F64(eta_seconds)
PRINT_F64(mfu)
PRINT_U64(tokens_seen)
PRINT_U64(world_size)
PRINT_TEXT(device, *s->now.device ? s->now.device : s->config.device)
PRINT_TEXT(model, s->config.model)
PRINT_U64(attempt)
PRINT_U64(epoch)
PRINT_U64(gen)
PRINT_U64(last_snapshot_step)
PRINT_U64(snapshot_count)
PRINT_TEXT(snapshot_running, s->now.snapshot_running)
PRINT_TEXT(last_error, s->error)

static void print_config(const struct status *s, const struct world *w, struct enc *e) {
    (void)w;
    config_print(&s->config, false, e);
}

static void print_commands(const struct status *s, const struct world *w, struct enc *e) {
    (void)w;
    enc_printf(e, "id\tstate\terrno\ttext\n");
    for (uint32_t i = 0; i < s->row_count; i++) {
        const struct msg_command_row *r = s->rows[i];
        /* The key says where the id is from; users know only their own. */
        const char *id = strncmp(r->id, "id:", 3) == 0 ? r->id + 3 : r->id;
        enc_printf(e, "%s\t%s\t%s\t%s\n", id, r->state, r->code == 0 ? "0" : err_name((int)r->code),
                   r->text);
    }
}

static const char *tensor_kind(const struct tensor_spec *t) {
    static const char *const kinds[] = {"scalar", "vector", "matrix"};
    return t->ndim < 3 ? kinds[t->ndim] : "tensor";
}

static void print_tensor_ranks(const struct layout *l, uint32_t tensor, struct enc *e) {
    uint32_t count = 0;
    struct layout_piece first;
    layout_tensor_pieces(l, tensor, &first, 1, &count);
    if (count == 0)
        enc_printf(e, "-\n");
    else if (count == 1)
        enc_printf(e, "%u\n", first.rank);
    else
        enc_printf(e, "%u-%u\n", first.rank, first.rank + count - 1);
}

static void print_tensors(const struct status *s, const struct world *w, struct enc *e) {
    (void)s;
    enc_printf(e, "name\tkind\tdtype\tshape\tnumel\tbytes\tunit\tranks\n");
    if (w == NULL || world_model(w) == NULL)
        return;
    const struct layout *l = model_layout(world_model(w));
    for (uint32_t i = 0; i < l->tensor_count; i++) {
        const struct layout_tensor *t = &l->tensors[i];
        char shape[128], name[FILE_NAME_BYTES];
        if (tensor_shape_print(&t->spec, shape, sizeof(shape)) != 0 ||
            model_tensor_file(world_model(w), i, "", name) != 0)
            continue;
        enc_printf(e, "%s\t%s\tf32\t%s\t%" PRIu64 "\t%" PRIu64 "\t%s\t", name,
                   tensor_kind(&t->spec), shape, t->numel, t->numel * TENSOR_ELEM_BYTES,
                   l->units[t->unit].name);
        print_tensor_ranks(l, i, e);
    }
}

struct status_file {
    const char *name;
    void (*print)(const struct status *s, const struct world *w,
                  struct enc *e); /* STATUS_VALUE; NULL: run.db */
    enum status_kind kind;
    int growing;
};

#define VALUE(field)                                                                               \
    { .name = #field, .kind = STATUS_VALUE, .print = print_##field }
static const struct status_file status_files[] = {
    VALUE(state),
    VALUE(step),
    VALUE(target),
    VALUE(goal_step),
    VALUE(loss),
    VALUE(grad_norm),
    VALUE(clip_factor),
    VALUE(lr),
    VALUE(tokens_per_second),
    VALUE(step_seconds),
    VALUE(eta_seconds),
    VALUE(mfu),
    VALUE(tokens_seen),
    VALUE(world_size),
    VALUE(device),
    VALUE(model),
    VALUE(attempt),
    VALUE(epoch),
    VALUE(gen),
    VALUE(last_snapshot_step),
    VALUE(snapshot_count),
    VALUE(snapshot_running),
    VALUE(last_error),
    VALUE(config),
    {.name = "tensors.tsv", .kind = STATUS_VALUE, .print = print_tensors},
    {.name = "commands.tsv", .kind = STATUS_VALUE, .print = print_commands},
    {.name = "run.db", .kind = STATUS_VALUE},
    {.name = "metrics.tsv", .kind = STATUS_GROWING, .growing = GROWING_METRICS},
    {.name = "log", .kind = STATUS_GROWING, .growing = GROWING_LOG},
    {.name = "events", .kind = STATUS_EVENTS, .growing = GROWING_EVENTS},
};

uint32_t status_file_count(void) { return sizeof(status_files) / sizeof(status_files[0]); }
const char *status_file_name(uint32_t file) { return status_files[file].name; }
enum status_kind status_file_kind(uint32_t file) { return status_files[file].kind; }

/* ---- run.db */

static bool same_file(const struct stat *a, const struct stat *b) {
    return a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static void status_stat(const struct status *s, const char *name, struct stat *st) {
    char path[MSG_PATH_BYTES + 32];
    memset(st, 0, sizeof(*st));
    if (file_path(path, sizeof(path), "%s/%s", s->run_dir, name) != 0 || stat(path, st) != 0)
        memset(st, 0, sizeof(*st));
}

static struct text *status_image(struct status *s) {
    struct stat db, wal;
    status_stat(s, "run.db", &db);
    status_stat(s, "run.db-wal", &wal);
    if (s->image != NULL && same_file(&db, &s->image_db) && same_file(&wal, &s->image_wal))
        return text_get(s->image);
    struct err err = {0};
    uint8_t *data;
    size_t len;
    if (catalogue_image(s->run_dir, &data, &len, &err) != 0) {
        if (err.code != ENOENT)
            log_warn("status/run.db: %s", err.text);
        return NULL;
    }
    struct text *fresh = text_adopt(data, len);
    if (fresh == NULL)
        return NULL;
    text_put(s->image);
    s->image = text_get(fresh);
    s->image_db = db;
    s->image_wal = wal;
    return fresh;
}

struct text *status_file_text(struct status *s, uint32_t file, const struct world *world) {
    if (status_files[file].print == NULL)
        return status_image(s);
    struct enc e = {0};
    status_files[file].print(s, world, &e);
    return text_of_enc(&e);
}

/* ---- growing files */

static int growing_fd(const struct status *s, struct growing *g) {
    char path[MSG_PATH_BYTES + 32];
    if (g->fd < 0 && file_path(path, sizeof(path), "%s/%s", s->run_dir, g->path) == 0)
        g->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    return g->fd;
}

uint64_t status_file_bytes(struct status *s, uint32_t file) {
    struct stat st;
    int which = status_files[file].growing, fd = growing_fd(s, &s->growing[which]);
    if (fd < 0 || fstat(fd, &st) != 0)
        return 0;
    uint64_t size = (uint64_t)st.st_size;
    /* Rows of a step that is not reported yet, and half rows, are not shown. */
    if (which == GROWING_METRICS && s->known && s->now.state != RUN_OFFLINE &&
        s->now.metrics_bytes < size)
        size = s->now.metrics_bytes;
    return size;
}

ssize_t status_file_read(struct status *s, uint32_t file, uint64_t offset_bytes, void *out,
                         size_t len_bytes) {
    uint64_t size = status_file_bytes(s, file);
    if (offset_bytes >= size)
        return 0;
    if (len_bytes > size - offset_bytes)
        len_bytes = (size_t)(size - offset_bytes);
    ssize_t n =
        pread(s->growing[status_files[file].growing].fd, out, len_bytes, (off_t)offset_bytes);
    return n >= 0 ? n : -errno;
}

static uint64_t stat_time_ns(const struct stat *st) {
    return (uint64_t)st->st_mtim.tv_sec * UINT64_C(1000000000) + (uint64_t)st->st_mtim.tv_nsec;
}

uint64_t status_file_time_ns(struct status *s, uint32_t file) {
    struct stat st;
    if (status_files[file].kind == STATUS_VALUE)
        return s->changed_ns;
    int fd = growing_fd(s, &s->growing[status_files[file].growing]);
    return fd >= 0 && fstat(fd, &st) == 0 ? stat_time_ns(&st) : s->changed_ns;
}

/* ---- ranks/ */

const char *status_rank_file_name(uint32_t file) {
    static const char *const names[RANK_FILE_COUNT] = {
        [RANK_DIR] = "",          [RANK_STATE] = "state", [RANK_LAST_SEEN] = "last_seen",
        [RANK_MEMORY] = "memory", [RANK_PID] = "pid",     [RANK_HOLDS] = "holds",
        [RANK_DEVICE] = "device"};
    return names[file];
}

static void print_holds(const struct world *world, uint32_t rank, struct enc *e) {
    enc_printf(e, "unit\tfirst\tcount\n");
    const struct layout *l = world_model(world) != NULL ? model_layout(world_model(world)) : NULL;
    if (l == NULL || rank >= l->world_size)
        return;
    for (uint32_t u = 0; u < l->unit_count; u++)
        enc_printf(e, "%s\t%" PRIu64 "\t%" PRIu64 "\n", l->units[u].name,
                   rank * l->units[u].shard_elems, layout_shard_valid(l, u, rank));
}

struct text *status_rank_text(const struct world *world, uint32_t rank, uint32_t file) {
    const struct msg_rank_table *t = world_rank(world, rank);
    const struct msg_rank_device *d = world_rank_device(world, rank);
    struct enc e = {0};
    if (t == NULL)
        return NULL;
    switch (file) {
    case RANK_STATE:
        enc_printf(&e, "%s\n", t->state);
        break;
    case RANK_LAST_SEEN:
        enc_printf(&e, "%" PRIu64 ".%09" PRIu64 "\n", t->last_seen_ns / 1000000000u,
                   t->last_seen_ns % 1000000000u);
        break;
    case RANK_MEMORY:
        enc_printf(&e, "rss_bytes\t%" PRIu64 "\ntake_bytes\t%" PRIu64 "\n", t->rss_bytes,
                   t->take_bytes);
        enc_bytes(&e, d->memory.data, d->memory.len_bytes);
        break;
    case RANK_PID:
        enc_printf(&e, "%" PRIu64 "\n", t->pid);
        break;
    case RANK_DEVICE:
        enc_printf(&e, "device\t%s\nname\t%s\nid\t%s\n", d->device, d->device_name, d->device_id);
        break;
    default:
        print_holds(world, rank, &e);
    }
    return text_of_enc(&e);
}
