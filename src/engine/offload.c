/* offload.c - homes, two slots, and the way between them. */
#include "config.h"

#include "engine/offload.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/offload_file.h"

enum { SLOTS = 2 };

/* A unit on its way. */
struct slot {
    struct offload *offload;
    uint8_t *data;   /* what the user's stream works on: device memory */
    uint8_t *pinned; /* with a file: what the file's thread fills and empties; may be data */
    struct dev_event *here, *used, *left;
    bool was_left;                /* left was recorded */
    uint64_t read_job, write_job; /* with a file: the last ones of this slot */
};

struct offload {
    struct offload_args args;
    bool staged;          /* with a file: data and pinned are two */
    uint32_t array_count; /* in the mask */
    uint8_t **homes;      /* by unit, OFFLOAD_HOST: pinned */
    uint64_t *offsets;    /* by unit, OFFLOAD_FILE */
    uint8_t *slot_of;     /* by unit: which slot it was fetched to last */
    uint32_t turn;
    size_t slot_bytes;
    struct slot slots[SLOTS];
    struct offload_file *file;
};

int offload_parse(const char *text, enum offload_kind *kind, const char **dir, struct err *err) {
    static const char file[] = "optimizer=file:";
    *dir = NULL;
    *kind = OFFLOAD_NONE;
    if (strcmp(text, "none") == 0)
        return 0;
    *kind = OFFLOAD_HOST;
    if (strcmp(text, "optimizer=host") == 0)
        return 0;
    *kind = OFFLOAD_FILE;
    if (strncmp(text, file, sizeof file - 1) == 0 && text[sizeof file - 1] != '\0') {
        *dir = text + sizeof file - 1;
        return 0;
    }
    return err_set(err, EINVAL, "offload = %s: expected none, optimizer=host or optimizer=file:DIR",
                   text);
}

/* Of one array in a home or a slot. */
static size_t array_bytes(const struct offload *o, uint32_t unit) {
    size_t bytes = o->args.layout->units[unit].shard_elems * sizeof(float);
    return (bytes + OFFLOAD_ALIGN_BYTES - 1) / OFFLOAD_ALIGN_BYTES * OFFLOAD_ALIGN_BYTES;
}

static size_t unit_bytes(const struct offload *o, uint32_t unit) {
    return array_bytes(o, unit) * o->array_count;
}

/* Where an array begins in the unit's home or slot: those of the mask lie in ascending order. */
static size_t array_offset(const struct offload *o, uint32_t unit, enum array a) {
    uint32_t before = 0;
    for (uint32_t i = 0; i < (uint32_t)a; i++)
        before += (o->args.array_mask >> i) & 1;
    return before * array_bytes(o, unit);
}

static bool is_offloaded(const struct offload *o, uint32_t a) {
    return (o->args.array_mask & ARRAY_BIT(a)) != 0;
}

/* ---- open and close */

static int block_get(struct offload *o, enum dev_memory kind, size_t bytes, const char *what,
                     uint8_t **out, struct err *err) {
    void *p = NULL;
    int rc = o->args.ops->alloc(o->args.dev, kind, bytes, what, &p);
    if (rc != 0)
        return device_failed(o->args.ops, o->args.dev, rc, err, "%zu bytes for %s", bytes, what);
    *out = p;
    return 0;
}

static void block_put(struct offload *o, enum dev_memory kind, uint8_t *p, size_t bytes) {
    if (p != NULL)
        o->args.ops->free(o->args.dev, kind, p, bytes);
}

static int file_read(void *ctx, enum array a, uint32_t unit, uint64_t lo, uint64_t hi, void *dst) {
    struct offload *o = ctx;
    return offload_file_read(o->file,
                             o->offsets[unit] + array_offset(o, unit, a) + lo * sizeof(float),
                             (hi - lo) * sizeof(float), dst);
}

static int file_write(void *ctx, enum array a, uint32_t unit, uint64_t lo, uint64_t hi,
                      const void *src) {
    struct offload *o = ctx;
    return offload_file_write(o->file,
                              o->offsets[unit] + array_offset(o, unit, a) + lo * sizeof(float),
                              (hi - lo) * sizeof(float), src);
}

static int homes_in_file(struct offload *o, struct err *err) {
    uint64_t bytes = 0;
    for (uint32_t u = 0; u < o->args.layout->unit_count; u++) {
        o->offsets[u] = bytes;
        bytes += unit_bytes(o, u);
    }
    int rc = offload_file_open(o->args.dir, bytes > 0 ? bytes : OFFLOAD_ALIGN_BYTES, &o->file, err);
    const struct array_home home = {
        .place = ARRAY_ELSEWHERE, .read = file_read, .write = file_write, .ctx = o};
    for (uint32_t u = 0; u < o->args.layout->unit_count && rc == 0; u++)
        for (uint32_t a = 0; a < ARRAY_COUNT; a++)
            if (is_offloaded(o, a))
                arrays_set_home(o->args.arrays, a, u, &home);
    return rc;
}

static int homes_in_host(struct offload *o, struct err *err) {
    const struct array_home home = {.place = ARRAY_IN_HOST};
    int rc = 0;
    for (uint32_t u = 0; u < o->args.layout->unit_count && rc == 0; u++) {
        if (unit_bytes(o, u) == 0)
            continue;
        rc = block_get(o, DEV_MEM_HOST, unit_bytes(o, u), "offloaded optimizer state", &o->homes[u],
                       err);
        if (rc != 0)
            break;
        memset(o->homes[u], 0, unit_bytes(o, u));
        for (uint32_t a = 0; a < ARRAY_COUNT; a++) {
            if (!is_offloaded(o, a))
                continue;
            arrays_set_shard(o->args.arrays, a, u,
                             (float *)(void *)(o->homes[u] + array_offset(o, u, a)));
            arrays_set_home(o->args.arrays, a, u, &home);
        }
    }
    return rc;
}

static int slot_open(struct offload *o, struct slot *s, struct err *err) {
    const struct device_ops *ops = o->args.ops;
    int rc = 0;
    if (o->args.kind == OFFLOAD_FILE)
        rc = block_get(o, DEV_MEM_HOST, o->slot_bytes, "staging of offloaded state", &s->pinned,
                       err);
    if (rc == 0 && (o->args.kind == OFFLOAD_HOST || o->staged))
        rc =
            block_get(o, DEV_MEM_DEVICE, o->slot_bytes, "optimizer state of a unit", &s->data, err);
    if (rc == 0 && s->data == NULL)
        s->data = s->pinned;
    if (rc == 0 && (ops->event_open(o->args.dev, "offload here", &s->here) != 0 ||
                    ops->event_open(o->args.dev, "offload used", &s->used) != 0 ||
                    ops->event_open(o->args.dev, "offload left", &s->left) != 0))
        rc = device_failed(ops, o->args.dev, -ENOMEM, err, "an event");
    return rc;
}

static void slot_close(struct offload *o, struct slot *s) {
    struct dev_event *events[] = {s->here, s->used, s->left};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i] != NULL)
            o->args.ops->event_close(o->args.dev, events[i]);
    if (s->data != s->pinned)
        block_put(o, DEV_MEM_DEVICE, s->data, o->slot_bytes);
    block_put(o, DEV_MEM_HOST, s->pinned, o->slot_bytes);
}

void offload_close(struct offload *o) {
    if (o == NULL)
        return;
    offload_file_close(o->file); /* its last jobs use the slots */
    for (size_t i = 0; i < SLOTS; i++)
        if (o->slots[i].left != NULL) {
            if (o->args.ops->event_record(o->args.dev, o->args.stream, o->slots[i].left) == 0)
                (void)o->args.ops->event_synchronize(o->args.dev, o->slots[i].left);
        }
    for (size_t i = 0; i < SLOTS; i++)
        slot_close(o, &o->slots[i]);
    for (uint32_t u = 0; o->homes != NULL && u < o->args.layout->unit_count; u++)
        block_put(o, DEV_MEM_HOST, o->homes[u], unit_bytes(o, u));
    free(o->homes);
    free(o->offsets);
    free(o->slot_of);
    free(o);
}

int offload_open(const struct offload_args *args, struct offload **out, struct err *err) {
    struct offload *o = calloc(1, sizeof *o);
    if (o == NULL)
        return err_set(err, ENOMEM, "no memory for the offload");
    size_t units = args->layout->unit_count;
    o->args = *args;
    o->staged = !args->ops->host_access;
    for (uint32_t a = 0; a < ARRAY_COUNT; a++)
        o->array_count += is_offloaded(o, a);
    o->homes = calloc(units + 1, sizeof *o->homes);
    o->offsets = calloc(units + 1, sizeof *o->offsets);
    o->slot_of = calloc(units + 1, sizeof *o->slot_of);
    int rc = o->homes == NULL || o->offsets == NULL || o->slot_of == NULL
                 ? err_set(err, ENOMEM, "no memory for the offload")
                 : 0;
    o->slot_bytes = OFFLOAD_ALIGN_BYTES;
    for (uint32_t u = 0; u < units; u++)
        if (o->slot_bytes < unit_bytes(o, u))
            o->slot_bytes = unit_bytes(o, u);
    if (rc == 0)
        rc = args->kind == OFFLOAD_FILE ? homes_in_file(o, err) : homes_in_host(o, err);
    for (size_t i = 0; i < SLOTS; i++)
        o->slots[i].offload = o;
    for (size_t i = 0; i < SLOTS && rc == 0; i++)
        rc = slot_open(o, &o->slots[i], err);
    if (rc != 0) {
        offload_close(o);
        return rc;
    }
    *out = o;
    return 0;
}

/* ---- the way in and out */

static struct slot *slot_of(struct offload *o, uint32_t unit) {
    return &o->slots[o->slot_of[unit]];
}

static int stream_copy(struct offload *o, void *dst, const void *src, uint32_t unit) {
    size_t bytes = unit_bytes(o, unit);
    return bytes == 0 ? 0 : o->args.ops->copy(o->args.dev, o->args.stream, dst, src, bytes);
}

/* On the file's thread, before it touches the pinned memory of a slot: the stream is done with it.
 * The event is not recorded again meanwhile, since the unit that does it waits for this job. */
static int wait_until_left(void *ctx) {
    const struct slot *s = ctx;
    return s->offload->args.ops->event_synchronize(s->offload->args.dev, s->left);
}

static uint64_t job_start(struct offload *o, struct slot *s, uint32_t unit, bool write) {
    const struct offload_job job = {
        .write = write,
        .offset = o->offsets[unit],
        .data = s->pinned,
        .bytes = unit_bytes(o, unit),
        /* Where the host reads the device's memory everything ran at once. */
        .before = o->staged && s->was_left ? wait_until_left : NULL,
        .ctx = s,
    };
    return offload_file_start(o->file, &job);
}

int offload_fetch(struct offload *o, uint32_t unit) {
    o->slot_of[unit] = (uint8_t)o->turn;
    o->turn = (o->turn + 1) % SLOTS;
    struct slot *s = slot_of(o, unit);
    if (o->args.kind == OFFLOAD_FILE) {
        s->read_job = job_start(o, s, unit, false);
        return 0;
    }
    int rc = stream_copy(o, s->data, o->homes[unit], unit);
    return rc != 0 ? rc : o->args.ops->event_record(o->args.dev, o->args.stream, s->here);
}

int offload_enter(struct offload *o, uint32_t unit, struct dev_stream *user,
                  float *shards[ARRAY_COUNT]) {
    struct slot *s = slot_of(o, unit);
    int rc = 0;
    if (o->args.kind == OFFLOAD_FILE) {
        rc = offload_file_wait(o->file, s->read_job);
        if (rc == 0 && o->staged)
            rc = stream_copy(o, s->data, s->pinned, unit);
        if (rc == 0)
            rc = o->args.ops->event_record(o->args.dev, o->args.stream, s->here);
    }
    if (rc == 0)
        rc = o->args.ops->stream_wait(o->args.dev, user, s->here);
    for (uint32_t a = 0; a < ARRAY_COUNT; a++)
        if (is_offloaded(o, a))
            shards[a] = (float *)(void *)(s->data + array_offset(o, unit, a));
    return rc;
}

int offload_leave(struct offload *o, uint32_t unit, struct dev_stream *user, bool written) {
    struct slot *s = slot_of(o, unit);
    const struct device_ops *ops = o->args.ops;
    int rc = ops->event_record(o->args.dev, user, s->used);
    if (rc == 0)
        rc = ops->stream_wait(o->args.dev, o->args.stream, s->used);
    if (rc == 0 && written && o->args.kind == OFFLOAD_HOST)
        rc = stream_copy(o, o->homes[unit], s->data, unit);
    if (rc == 0 && written && o->args.kind == OFFLOAD_FILE && o->staged)
        rc = stream_copy(o, s->pinned, s->data, unit);
    if (rc == 0)
        rc = ops->event_record(o->args.dev, o->args.stream, s->left);
    s->was_left = rc == 0;
    if (rc == 0 && written && o->args.kind == OFFLOAD_FILE)
        s->write_job = job_start(o, s, unit, true);
    return rc;
}

int offload_settle(struct offload *o, uint32_t unit) {
    struct slot *s = slot_of(o, unit);
    int rc = o->args.ops->event_synchronize(o->args.dev, s->left);
    if (rc == 0 && o->args.kind == OFFLOAD_FILE)
        rc = offload_file_wait(o->file, s->write_job);
    return rc;
}

void offload_memory(const struct offload *o, dev_memory_fn *tell, void *ctx) {
    for (uint32_t u = 0; u < o->args.layout->unit_count; u++)
        if (o->homes[u] != NULL)
            tell(ctx, DEV_MEM_HOST, unit_bytes(o, u), "offloaded optimizer state");
    for (size_t i = 0; i < SLOTS; i++) {
        if (o->slots[i].pinned != NULL)
            tell(ctx, DEV_MEM_HOST, o->slot_bytes, "staging of offloaded state");
        if (o->slots[i].data != o->slots[i].pinned)
            tell(ctx, DEV_MEM_DEVICE, o->slot_bytes, "optimizer state of a unit");
    }
}

const char *offload_why(const struct offload *o) {
    return o->file != NULL ? offload_file_why(o->file) : "";
}
