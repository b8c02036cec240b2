/* msg.c - the fields of every message in one table; encoding, bounds and NUL checks derive from it.
 */
#include "config.h"

#include "wire/msg.h"

#include <errno.h>
#include <string.h>

enum field_kind { FIELD_U32, FIELD_U64, FIELD_F64, FIELD_STR, FIELD_BLOB };
struct msg_field {
    enum field_kind kind;
    size_t offset, size_bytes;
};
struct msg_shape {
    uint16_t type;
    const char *name;
    const struct msg_field *fields;
    size_t field_count, size_bytes;
};

#define FIELD(kind, s, f)                                                                          \
    { kind, offsetof(struct s, f), sizeof(((struct s *)0)->f) }
#define U32(s, f) FIELD(FIELD_U32, s, f)
#define U64(s, f) FIELD(FIELD_U64, s, f)
#define F64(s, f) FIELD(FIELD_F64, s, f)
#define STR(s, f) FIELD(FIELD_STR, s, f)
#define BLOB(s, f) FIELD(FIELD_BLOB, s, f)
#define SHAPE(type, s)                                                                             \
    { type, #type, s##_fields, sizeof(s##_fields) / sizeof(s##_fields[0]), sizeof(struct s) }

static const struct msg_field msg_rank_hello_fields[] = {
    U64(msg_rank_hello, epoch),      U64(msg_rank_hello, pid),   U32(msg_rank_hello, rank),
    U32(msg_rank_hello, world_size), STR(msg_rank_hello, build),
};
static const struct msg_field msg_rank_welcome_fields[] = {
    U64(msg_rank_welcome, gen),           STR(msg_rank_welcome, run_dir),
    STR(msg_rank_welcome, resume_dir),    BLOB(msg_rank_welcome, config),
    BLOB(msg_rank_welcome, model_config),
};
static const struct msg_field msg_doorbell_fields[] = {
    U32(msg_doorbell, rank),
};
static const struct msg_field msg_daemon_link_fields[] = {
    U64(msg_daemon_link, session),
};
static const struct msg_field msg_rank_ready_fields[] = {
    U64(msg_rank_ready, gen),         U64(msg_rank_ready, step),
    BLOB(msg_rank_ready, layout),     BLOB(msg_rank_ready, model_config),
    STR(msg_rank_ready, summary),     U64(msg_rank_ready, numel),
    U64(msg_rank_ready, fingerprint), F64(msg_rank_ready, flops_per_token),
    F64(msg_rank_ready, peak_flops),  STR(msg_rank_ready, device),
    STR(msg_rank_ready, device_name), STR(msg_rank_ready, device_id),
    STR(msg_rank_ready, note),        BLOB(msg_rank_ready, memory),
};
static const struct msg_field msg_rank_alive_fields[] = {
    U64(msg_rank_alive, rss_bytes), U64(msg_rank_alive, take_bytes), U64(msg_rank_alive, step),
    U64(msg_rank_alive, micro),     U32(msg_rank_alive, phase),
};
static const struct msg_field msg_rank_bye_fields[] = {
    U32(msg_rank_bye, code),
    STR(msg_rank_bye, text),
};
static const struct msg_field msg_orders_fields[] = {
    U64(msg_orders, goal_step),
    BLOB(msg_orders, config),
};
static const struct msg_field msg_take_reserve_fields[] = {
    U64(msg_take_reserve, take),
    U32(msg_take_reserve, array_mask),
    U32(msg_take_reserve, keep),
};
static const struct msg_field msg_take_reserved_fields[] = {
    U64(msg_take_reserved, take),
    U32(msg_take_reserved, code),
};
static const struct msg_field msg_take_fix_fields[] = {
    U64(msg_take_fix, session),
    U64(msg_take_fix, number),
};
static const struct msg_field msg_take_done_fields[] = {
    U64(msg_take_done, take),
    U64(msg_take_done, gen),
    U64(msg_take_done, step),
    U32(msg_take_done, code),
};
static const struct msg_field msg_take_write_fields[] = {
    U64(msg_take_write, take),
    U64(msg_take_write, snapshot),
    STR(msg_take_write, dir),
};
static const struct msg_field msg_take_written_fields[] = {
    U64(msg_take_written, take),   U32(msg_take_written, code),   STR(msg_take_written, text),
    BLOB(msg_take_written, entry), BLOB(msg_take_written, state),
};
static const struct msg_field msg_take_release_fields[] = {
    U64(msg_take_release, session),
    U64(msg_take_release, number),
};
static const struct msg_field msg_restore_fields[] = {
    U64(msg_restore, command),
    STR(msg_restore, dir),
};
static const struct msg_field msg_restored_fields[] = {
    U64(msg_restored, command), U64(msg_restored, gen),  U64(msg_restored, step),
    U32(msg_restored, code),    STR(msg_restored, text),
};
static const struct msg_field msg_quit_fields[] = {
    U32(msg_quit, unused),
};
static const struct msg_field msg_boundary_fields[] = {
    U64(msg_boundary, epoch),        U64(msg_boundary, gen),           U64(msg_boundary, step),
    U64(msg_boundary, goal_step),    U64(msg_boundary, first_of_step), F64(msg_boundary, loss),
    F64(msg_boundary, grad_norm),    F64(msg_boundary, clip_factor),   F64(msg_boundary, lr),
    F64(msg_boundary, step_seconds), U64(msg_boundary, tokens),        U32(msg_boundary, waiting),
};
static const struct msg_field msg_daemon_start_fields[] = {
    U64(msg_daemon_start, session),     U32(msg_daemon_start, offline),
    U32(msg_daemon_start, mask_resend), STR(msg_daemon_start, mountpoint),
    STR(msg_daemon_start, run_dir),     BLOB(msg_daemon_start, config),
    BLOB(msg_daemon_start, fuse_init),
};
static const struct msg_field msg_fuse_init_fields[] = {
    BLOB(msg_fuse_init, init),
};
static const struct msg_field msg_daemon_ready_fields[] = {
    U64(msg_daemon_ready, session),
};
static const struct msg_field msg_world_fields[] = {
    U64(msg_world, epoch),
    U32(msg_world, world_size),
    BLOB(msg_world, layout),
    BLOB(msg_world, model_config),
};
static const struct msg_field msg_rank_link_fields[] = {
    U64(msg_rank_link, epoch),
    U32(msg_rank_link, rank),
};
static const struct msg_field msg_status_fields[] = {
    U32(msg_status, state),
    U32(msg_status, world_size),
    U32(msg_status, attempt),
    U64(msg_status, epoch),
    U64(msg_status, gen),
    U64(msg_status, step),
    U64(msg_status, target),
    U64(msg_status, goal_step),
    U64(msg_status, time_ns),
    F64(msg_status, loss),
    F64(msg_status, grad_norm),
    F64(msg_status, clip_factor),
    F64(msg_status, lr),
    F64(msg_status, tokens_per_second),
    F64(msg_status, step_seconds),
    F64(msg_status, eta_seconds),
    F64(msg_status, mfu),
    STR(msg_status, device),
    U64(msg_status, tokens_seen),
    U64(msg_status, metrics_bytes),
    U64(msg_status, last_snapshot_step),
    U64(msg_status, snapshot_count),
    STR(msg_status, snapshot_running),
    STR(msg_status, last_error),
    BLOB(msg_status, config),
};
static const struct msg_field msg_rank_table_fields[] = {
    U32(msg_rank_table, rank),         U64(msg_rank_table, pid),
    U64(msg_rank_table, last_seen_ns), U64(msg_rank_table, rss_bytes),
    U64(msg_rank_table, take_bytes),   STR(msg_rank_table, state),
};
static const struct msg_field msg_rank_device_fields[] = {
    U32(msg_rank_device, rank),        STR(msg_rank_device, device),
    STR(msg_rank_device, device_name), STR(msg_rank_device, device_id),
    BLOB(msg_rank_device, memory),
};
static const struct msg_field msg_command_fields[] = {
    STR(msg_command, key), STR(msg_command, name), STR(msg_command, value),
    U32(msg_command, uid), U32(msg_command, pid),
};
static const struct msg_field msg_command_done_fields[] = {
    STR(msg_command_done, key),
    U32(msg_command_done, code),
    STR(msg_command_done, text),
};
static const struct msg_field msg_command_row_fields[] = {
    U64(msg_command_row, number), STR(msg_command_row, id),   STR(msg_command_row, state),
    U32(msg_command_row, code),   STR(msg_command_row, text),
};
static const struct msg_field msg_snapshot_added_fields[] = {
    U64(msg_snapshot_added, snapshot),
    STR(msg_snapshot_added, name),
};
static const struct msg_field msg_snapshot_removed_fields[] = {
    U64(msg_snapshot_removed, snapshot),
};
static const struct msg_field msg_pin_fields[] = {
    U64(msg_pin, pin),     U64(msg_pin, take),          U32(msg_pin, state),
    U32(msg_pin, code),    U64(msg_pin, epoch),         U64(msg_pin, gen),
    U64(msg_pin, step),    U32(msg_pin, array_mask),    STR(msg_pin, name),
    BLOB(msg_pin, layout), BLOB(msg_pin, model_config), U64(msg_pin, time_ns),
};
static const struct msg_field msg_wide_open_fields[] = {
    U64(msg_wide_open, request),
    U32(msg_wide_open, array_mask),
};
static const struct msg_field msg_wide_fields[] = {
    U64(msg_wide, request), U64(msg_wide, take),  U64(msg_wide, epoch), U64(msg_wide, gen),
    U64(msg_wide, step),    U32(msg_wide, state), U32(msg_wide, code),
};
static const struct msg_field msg_wide_close_fields[] = {
    U64(msg_wide_close, request),
};
static const struct msg_field msg_event_fields[] = {
    U64(msg_event, bytes),
};
static const struct msg_field msg_unmount_fields[] = {
    U32(msg_unmount, unused),
};
static const struct msg_field msg_unmounted_fields[] = {
    U32(msg_unmounted, unused),
};
static const struct msg_field msg_take_fields[] = {
    U64(msg_take, session), U64(msg_take, number), U64(msg_take, try),
    U64(msg_take, epoch),   U32(msg_take, array),  U32(msg_take, unit),
    U64(msg_take, lo),      U64(msg_take, hi),     U64(msg_take, want_gen),
};
static const struct msg_field msg_take_reply_fields[] = {
    U64(msg_take_reply, session),       U64(msg_take_reply, number),
    U64(msg_take_reply, try),           U64(msg_take_reply, epoch),
    U32(msg_take_reply, state),         U32(msg_take_reply, code),
    U64(msg_take_reply, gen),           U64(msg_take_reply, step),
    U64(msg_take_reply, offset_bytes),  U64(msg_take_reply, segment),
    U64(msg_take_reply, segment_bytes),
};
static const struct msg_field msg_wide_segment_fields[] = {
    U64(msg_wide_segment, take), U64(msg_wide_segment, epoch),      U64(msg_wide_segment, gen),
    U64(msg_wide_segment, step), U32(msg_wide_segment, array_mask), U64(msg_wide_segment, bytes),
};
static const struct msg_field msg_wide_gone_fields[] = {
    U64(msg_wide_gone, take),
};
static const struct msg_field msg_client_hello_fields[] = {
    STR(msg_client_hello, build),
};

static const struct msg_shape msg_shapes[] = {
    SHAPE(MSG_RANK_HELLO, msg_rank_hello),
    SHAPE(MSG_RANK_WELCOME, msg_rank_welcome),
    SHAPE(MSG_DOORBELL, msg_doorbell),
    SHAPE(MSG_DAEMON_LINK, msg_daemon_link),
    SHAPE(MSG_RANK_READY, msg_rank_ready),
    SHAPE(MSG_RANK_ALIVE, msg_rank_alive),
    SHAPE(MSG_RANK_BYE, msg_rank_bye),
    SHAPE(MSG_ORDERS, msg_orders),
    SHAPE(MSG_TAKE_RESERVE, msg_take_reserve),
    SHAPE(MSG_TAKE_RESERVED, msg_take_reserved),
    SHAPE(MSG_TAKE_FIX, msg_take_fix),
    SHAPE(MSG_TAKE_DONE, msg_take_done),
    SHAPE(MSG_TAKE_WRITE, msg_take_write),
    SHAPE(MSG_TAKE_WRITTEN, msg_take_written),
    SHAPE(MSG_TAKE_RELEASE, msg_take_release),
    SHAPE(MSG_RESTORE, msg_restore),
    SHAPE(MSG_RESTORED, msg_restored),
    SHAPE(MSG_QUIT, msg_quit),
    SHAPE(MSG_BOUNDARY, msg_boundary),
    SHAPE(MSG_DAEMON_START, msg_daemon_start),
    SHAPE(MSG_FUSE_INIT, msg_fuse_init),
    SHAPE(MSG_DAEMON_READY, msg_daemon_ready),
    SHAPE(MSG_WORLD, msg_world),
    SHAPE(MSG_RANK_LINK, msg_rank_link),
    SHAPE(MSG_STATUS, msg_status),
    SHAPE(MSG_RANK_TABLE, msg_rank_table),
    SHAPE(MSG_RANK_DEVICE, msg_rank_device),
    SHAPE(MSG_COMMAND, msg_command),
    SHAPE(MSG_COMMAND_DONE, msg_command_done),
    SHAPE(MSG_COMMAND_ROW, msg_command_row),
    SHAPE(MSG_SNAPSHOT_ADDED, msg_snapshot_added),
    SHAPE(MSG_SNAPSHOT_REMOVED, msg_snapshot_removed),
    SHAPE(MSG_PIN, msg_pin),
    SHAPE(MSG_WIDE_OPEN, msg_wide_open),
    SHAPE(MSG_WIDE, msg_wide),
    SHAPE(MSG_WIDE_CLOSE, msg_wide_close),
    SHAPE(MSG_EVENT, msg_event),
    SHAPE(MSG_UNMOUNT, msg_unmount),
    SHAPE(MSG_UNMOUNTED, msg_unmounted),
    SHAPE(MSG_TAKE, msg_take),
    SHAPE(MSG_TAKE_REPLY, msg_take_reply),
    SHAPE(MSG_WIDE_SEGMENT, msg_wide_segment),
    SHAPE(MSG_WIDE_GONE, msg_wide_gone),
    SHAPE(MSG_CLIENT_HELLO, msg_client_hello),
    SHAPE(MSG_CLIENT_COMMAND, msg_command),
};

const char *const rank_phase_names[RANK_PHASE_COUNT] = {
    "starting", "waiting", "forward", "backward", "update", "boundary", "loading",
};
const char *const run_state_names[RUN_STATE_COUNT] = {
    "starting", "paused", "training", "restarting", "failed", "done", "stopping", "offline",
};

static const struct msg_shape *msg_shape_of(uint16_t type) {
    for (size_t i = 0; i < sizeof(msg_shapes) / sizeof(msg_shapes[0]); i++)
        if (msg_shapes[i].type == type)
            return &msg_shapes[i];
    return NULL;
}

const char *msg_type_name(uint16_t type) {
    const struct msg_shape *shape = msg_shape_of(type);
    return shape != NULL ? shape->name : "MSG_UNKNOWN";
}

void msg_encode(uint16_t type, const void *msg, struct enc *out) {
    const struct msg_shape *shape = msg_shape_of(type);
    if (shape == NULL) {
        out->failed = true;
        return;
    }
    for (size_t i = 0; i < shape->field_count; i++) {
        const struct msg_field *f = &shape->fields[i];
        const char *at = (const char *)msg + f->offset;
        uint32_t u32;
        uint64_t u64;
        double f64;
        struct blob blob;
        switch (f->kind) {
        case FIELD_U32:
            memcpy(&u32, at, sizeof(u32));
            enc_u32(out, u32);
            break;
        case FIELD_U64:
            memcpy(&u64, at, sizeof(u64));
            enc_u64(out, u64);
            break;
        case FIELD_F64:
            memcpy(&f64, at, sizeof(f64));
            enc_f64(out, f64);
            break;
        case FIELD_STR:
            enc_blob(out, at, strnlen(at, f->size_bytes - 1));
            break;
        case FIELD_BLOB:
            memcpy(&blob, at, sizeof(blob));
            enc_blob(out, blob.data, blob.len_bytes);
            break;
        }
    }
}

int msg_decode(uint16_t type, const void *payload, size_t len_bytes, void *msg) {
    const struct msg_shape *shape = msg_shape_of(type);
    if (shape == NULL)
        return -EPROTO;
    struct dec d = dec_of(payload, len_bytes);
    for (size_t i = 0; i < shape->field_count; i++) {
        const struct msg_field *f = &shape->fields[i];
        char *at = (char *)msg + f->offset;
        uint32_t u32;
        uint64_t u64;
        double f64;
        struct blob blob;
        switch (f->kind) {
        case FIELD_U32:
            u32 = dec_u32(&d);
            memcpy(at, &u32, sizeof(u32));
            break;
        case FIELD_U64:
            u64 = dec_u64(&d);
            memcpy(at, &u64, sizeof(u64));
            break;
        case FIELD_F64:
            f64 = dec_f64(&d);
            memcpy(at, &f64, sizeof(f64));
            break;
        case FIELD_STR:
            dec_str(&d, at, f->size_bytes);
            break;
        case FIELD_BLOB:
            blob.data = dec_blob(&d, &blob.len_bytes);
            memcpy(at, &blob, sizeof(blob));
            break;
        }
    }
    if (dec_done(&d))
        return 0;
    memset(msg, 0, shape->size_bytes);
    return -EPROTO;
}

int msg_send(struct link *l, uint16_t type, uint64_t id, const void *msg, const int *fds,
             uint32_t fd_count) {
    struct enc e = {0};
    msg_encode(type, msg, &e);
    int rc = e.failed ? link_fail(l, msg_shape_of(type) != NULL ? -ENOMEM : -EPROTO)
                      : link_send(l, type, id, e.data, e.len_bytes, fds, fd_count);
    enc_free(&e);
    return rc;
}
