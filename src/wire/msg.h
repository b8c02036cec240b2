/* msg.h - every message between supervisor (S), ranks (R, rank 0: R0) and the mount daemon (D).
 *
 * The supervisor is the will: it holds the goal, the commands and their results, names and the run
 * directory. The agenda is the agreement: what R0 was told by the boundary is broadcast there.
 * Ranks own arrays. The daemon owns the mount. Daemon and ranks meet on socket pairs that the
 * supervisor makes and hands to both.
 *
 * A message is a struct; its fields stand in one table (msg.c) from which encoding and checking
 * derive. */
#ifndef GFS_WIRE_MSG_H
#define GFS_WIRE_MSG_H

#include "base/buf.h"
#include "base/err.h"
#include "base/parse.h"
#include "wire/link.h"

enum { MSG_TEXT_BYTES = ERR_TEXT_BYTES, MSG_PATH_BYTES = 4096, MSG_VALUE_BYTES = 1024 };

/* A view into the payload (decode) or the caller's memory (encode). */
struct blob {
    const uint8_t *data;
    size_t len_bytes;
};

enum msg_type {
    /* ranks and supervisor */
    MSG_RANK_HELLO = 1, /* R->S */
    MSG_RANK_WELCOME,  /* S->R, fds: own doorbell; for rank 0 the doorbells of all ranks (own first)
                          follow in MSG_DOORBELL */
    MSG_DOORBELL,      /* S->R0, fd: eventfd of `rank` */
    MSG_DAEMON_LINK,   /* S->R, fd: stream to the daemon of `session`; replaces an older one */
    MSG_RANK_READY,    /* R->S initialised or restored */
    MSG_RANK_ALIVE,    /* R->S each second, and what the service thread sees */
    MSG_RANK_BYE,      /* R->S last words: errno 0 after QUIT */
    MSG_ORDERS,        /* S->R goal (R0's) and live knobs; the newest replaces all older ones */
    MSG_TAKE_RESERVE,  /* S->R allocate and touch memory for a wide take */
    MSG_TAKE_RESERVED, /* R->S */
    MSG_TAKE_FIX,      /* S->R0 (wide) and D->R0 (take of one tensor): put it on the agenda */
    MSG_TAKE_DONE,     /* R->S all pieces copied, or errno */
    MSG_TAKE_WRITE,    /* S->R write the wide take as this rank's files of a snapshot */
    MSG_TAKE_WRITTEN,  /* R->S durable, with the manifest entry of this rank */
    MSG_TAKE_RELEASE,  /* S->R wide, D->R take of one tensor; unknown ids are fine */
    MSG_RESTORE,       /* S->R0 agenda: load a snapshot */
    MSG_RESTORED,      /* R0->S */
    MSG_QUIT,          /* S->R0 agenda: leave training, exit 0 */
    MSG_BOUNDARY,      /* R0->S after every boundary that changed something */

    /* daemon and supervisor */
    MSG_DAEMON_START = 64, /* S->D first; fds: /dev/fuse, memfd of requests in flight */
    MSG_FUSE_INIT,         /* D->S the kernel's INIT, kept for a successor */
    MSG_DAEMON_READY,      /* D->S serving */
    MSG_WORLD,     /* S->D a world of ranks of a new epoch is ready (or gone: world_size 0) */
    MSG_RANK_LINK, /* S->D fd: stream to `rank` of `epoch`; D->S without: it ended, make another */
    MSG_STATUS,    /* S->D all status values, whenever one changed; the first one comes after what a
                      new daemon must know to answer requests sent again (snapshots, pins, world):
                      with it the daemon begins to serve */
    MSG_RANK_TABLE,       /* S->D what ranks/R shows and changes all the time */
    MSG_RANK_DEVICE,      /* S->D what it shows besides, once the world is ready */
    MSG_COMMAND,          /* D->S one write to a control file, syntax checked */
    MSG_COMMAND_DONE,     /* S->D by key */
    MSG_COMMAND_ROW,      /* S->D a row of commands.tsv, new or changed */
    MSG_SNAPSHOT_ADDED,   /* S->D durable: may be listed */
    MSG_SNAPSHOT_REMOVED, /* S->D */
    MSG_PIN,              /* S->D a pin's state; PIN_GONE takes it away */
    MSG_WIDE_OPEN,        /* D->S a file that spans units was opened: make a take of array_mask */
    MSG_WIDE,             /* S->D take id and state for it */
    MSG_WIDE_CLOSE,       /* D->S */
    MSG_EVENT,            /* S->D the events file grew to `bytes` (poll) */
    MSG_UNMOUNT,          /* S->D unmount now (lazily), then exit */
    MSG_UNMOUNTED,        /* D->S the kernel ended the session (somebody called umount) */

    /* daemon and ranks */
    MSG_TAKE = 128,   /* D->R */
    MSG_TAKE_REPLY,   /* R->D, fd: segment when state is TAKE_COPY and it was not sent on this link
                         before */
    MSG_WIDE_SEGMENT, /* R->D fd: this rank's dump of a wide take; offered again to each new daemon
                       */
    MSG_WIDE_GONE,    /* R->D the segment of a wide take was released */

    /* a client on the run's socket (gatherfs stop) and supervisor */
    MSG_CLIENT_HELLO = 192, /* C->S */
    MSG_CLIENT_COMMAND,     /* C->S as MSG_COMMAND */
};
const char *msg_type_name(uint16_t type);

struct msg_rank_hello {
    uint64_t epoch, pid;
    uint32_t rank, world_size;
    char build[64]; /* must equal the supervisor's */
};
struct msg_rank_welcome {
    uint64_t gen; /* first gen of this epoch is above it */
    char run_dir[MSG_PATH_BYTES];
    char resume_dir[MSG_PATH_BYTES]; /* snapshot to start from, "" for fresh */
    struct blob config;              /* config_print text */
    struct blob model_config;        /* config.json text of the model */
};
struct msg_doorbell {
    uint32_t rank;
};
struct msg_daemon_link {
    uint64_t session;
};
struct msg_rank_ready {
    uint64_t gen, step;
    struct blob layout;           /* rank 0: layout_encode; else empty */
    struct blob model_config;     /* rank 0: Hugging Face config.json text */
    char summary[MSG_TEXT_BYTES]; /* "gpt2 10.8M parameters, 7 units, comm node, device cpu, 1
                                     thread" */
    uint64_t numel;
    uint64_t fingerprint;   /* rank 0: data_fingerprint of the training data */
    double flops_per_token; /* rank 0: model_flops_per_token */
    double peak_flops;      /* of this rank's device, a second, in the dtype in use; 0 unknown */
    char device[16];        /* name of its table: "cuda" */
    char device_name[128];
    char device_id[40];        /* the same for two ranks only if they share the device; "" */
    char note[MSG_TEXT_BYTES]; /* why it is not the device that was meant, or "" */
    struct blob memory;        /* lines "KIND\tBYTES\n" */
};
struct msg_rank_alive {
    uint64_t rss_bytes, take_bytes, step, micro; /* micro: microbatches done in this step */
    uint32_t phase;                              /* enum rank_phase */
};
enum rank_phase {
    RANK_STARTING,
    RANK_WAITING,
    RANK_FORWARD,
    RANK_BACKWARD,
    RANK_UPDATE,
    RANK_BOUNDARY,
    RANK_LOADING,
    RANK_PHASE_COUNT
};
extern const char *const rank_phase_names[RANK_PHASE_COUNT];
struct msg_rank_bye {
    uint32_t code;
    char text[MSG_TEXT_BYTES];
};
struct msg_orders {
    uint64_t goal_step; /* step until this one, then wait; 0: wait as soon as possible */
    struct blob config; /* the live knobs, as text */
};
struct msg_take_reserve {
    uint64_t take;
    uint32_t array_mask;
    uint32_t keep; /* 1: for a snapshot: not offered to the daemon, and its memory is kept for the
                      next one */
};
struct msg_take_reserved {
    uint64_t take;
    uint32_t code;
};
struct msg_take_fix {
    uint64_t session, number;
}; /* session 0: number is a wide take of the supervisor */
struct msg_take_done {
    uint64_t take, gen, step;
    uint32_t code;
};
struct msg_take_write {
    uint64_t take, snapshot;
    char dir[MSG_PATH_BYTES];
};
struct msg_take_written {
    uint64_t take;
    uint32_t code;
    char text[MSG_TEXT_BYTES];
    struct blob entry; /* JSON object for the manifest's "ranks" array (store/snapshot.h) */
    struct blob state; /* rank 0: the train state as JSON (data position, RNG, schedule) */
};
struct msg_take_release {
    uint64_t session, number;
}; /* session 0: wide */
struct msg_restore {
    uint64_t command;
    char dir[MSG_PATH_BYTES];
};
struct msg_restored {
    uint64_t command, gen, step;
    uint32_t code;
    char text[MSG_TEXT_BYTES];
};
struct msg_quit {
    uint32_t unused;
};
struct msg_boundary {
    uint64_t epoch, gen, step, goal_step;
    uint64_t
        first_of_step; /* 1: a step was executed since the last report, the fields below are its */
    double loss, grad_norm, clip_factor, lr, step_seconds;
    uint64_t tokens;  /* of this step, over the world */
    uint32_t waiting; /* 1: the ranks wait at this boundary (goal reached) */
};

struct msg_daemon_start {
    uint64_t session;
    uint32_t offline;     /* 1: no training, snapshots and status of run_dir only */
    uint32_t mask_resend; /* test: behave as if the kernel had no FUSE_NOTIFY_RESEND */
    char mountpoint[MSG_PATH_BYTES];
    char run_dir[MSG_PATH_BYTES];
    struct blob config;
    struct blob fuse_init; /* of a predecessor, or empty */
};
struct msg_fuse_init {
    struct blob init;
};
struct msg_daemon_ready {
    uint64_t session;
};
struct msg_world {
    uint64_t epoch;
    uint32_t world_size; /* 0: no world, takes end with EIO until the next */
    struct blob layout, model_config;
};
struct msg_rank_link {
    uint64_t epoch;
    uint32_t rank;
};
enum run_state {
    RUN_STARTING,
    RUN_PAUSED,
    RUN_TRAINING,
    RUN_RESTARTING,
    RUN_FAILED,
    RUN_DONE,
    RUN_STOPPING,
    RUN_OFFLINE,
    RUN_STATE_COUNT
};
extern const char *const run_state_names[RUN_STATE_COUNT];
struct msg_status {
    uint32_t state, world_size, attempt;
    uint64_t epoch, gen, step, target, goal_step;
    uint64_t time_ns; /* CLOCK_REALTIME of the boundary that made gen */
    double loss, grad_norm, clip_factor, lr, tokens_per_second,
        step_seconds;   /* NaN before the first step */
    double eta_seconds; /* to the target; NaN unknown */
    double mfu;      /* share of the peak of the world's devices that the model uses; NaN unknown */
    char device[16]; /* that computes, as rank 0 says; "" before */
    uint64_t tokens_seen, metrics_bytes; /* metrics_bytes: size of metrics.tsv to show */
    uint64_t last_snapshot_step, snapshot_count;
    char snapshot_running[NAME_MAX_BYTES + 1]; /* "" when none is being written */
    char last_error[MSG_TEXT_BYTES];
    struct blob config; /* config_print text */
};
struct msg_rank_table {
    uint32_t rank;
    uint64_t pid, last_seen_ns, rss_bytes, take_bytes;
    char state[32];
};
struct msg_rank_device {
    uint32_t rank;
    char device[16], device_name[128], device_id[40]; /* as in msg_rank_ready */
    struct blob memory;
};
/* key: the idempotence key. With an id of the user's "id:ID", else "u:UNIQUE" of the FUSE request.
 */
struct msg_command {
    char key[COMMAND_ID_MAX_BYTES + 8];
    char name[64]; /* control file, or "rmdir-pin", "mkdir-pin", "rmdir-snapshot" */
    char value[MSG_VALUE_BYTES];
    uint32_t uid, pid;
};
/* The frame's id is that of a MSG_COMMAND when only that one is answered (its key was used for
 * another command: EINVAL); else 0: all that wait for the key are. */
struct msg_command_done {
    char key[COMMAND_ID_MAX_BYTES + 8];
    uint32_t code; /* errno, 0 for success */
    char text[MSG_TEXT_BYTES];
};
struct msg_command_row {
    uint64_t number; /* of the command in this run, from 1 */
    char id[COMMAND_ID_MAX_BYTES + 8];
    char state[16]; /* waiting, done, failed, canceled */
    uint32_t code;
    char text[MSG_TEXT_BYTES]; /* "step 10: reached step 110" */
};
struct msg_snapshot_added {
    uint64_t snapshot; /* id, never reused in this run */
    char name[NAME_MAX_BYTES + 1];
};
struct msg_snapshot_removed {
    uint64_t snapshot;
};
enum pin_state { PIN_RESERVING, PIN_FIXED, PIN_READY, PIN_FAILED, PIN_GONE };
struct msg_pin {
    uint64_t pin, take;   /* id of the name, never reused; wide take that holds it */
    uint32_t state, code; /* code: why it failed, ENOBUFS */
    uint64_t epoch, gen, step;
    uint32_t array_mask;
    char name[NAME_MAX_BYTES + 1];
    struct blob layout, model_config; /* as they were */
    uint64_t time_ns; /* CLOCK_REALTIME when the pin was made: mtime of its files, the same for each
                         daemon */
};
struct msg_wide_open {
    uint64_t request;
    uint32_t array_mask;
};
struct msg_wide {
    uint64_t request, take, epoch, gen, step;
    uint32_t state, code;
}; /* state: enum pin_state */
struct msg_wide_close {
    uint64_t request;
};
struct msg_event {
    uint64_t bytes;
};
struct msg_unmount {
    uint32_t unused;
};
struct msg_unmounted {
    uint32_t unused;
};

enum take_state {
    TAKE_COPY,   /* here it is: the segment holds [lo, hi) at gen */
    TAKE_NONE,   /* the array has no valid content and none is under way (ENODATA) */
    TAKE_PASSED, /* wanted gen is gone; gen says what is there */
    TAKE_HELD,   /* registered; TAKE_COPY or TAKE_NONE follows with the same try */
    TAKE_FAILED, /* code says why (ENOBUFS no memory) */
};
struct msg_take {
    uint64_t session, number, try, epoch;
    uint32_t array, unit;
    uint64_t lo, hi;   /* elements of this rank's shard of the unit */
    uint64_t want_gen; /* 0: what is there */
};
struct msg_take_reply {
    uint64_t session, number, try, epoch;
    uint32_t state, code;
    uint64_t gen, step;
    uint64_t offset_bytes; /* of element lo in the segment */
    uint64_t segment;      /* id of the segment on this link: the fd comes with its first use */
    uint64_t segment_bytes;
};
struct msg_wide_segment {
    uint64_t take, epoch, gen, step;
    uint32_t array_mask;
    uint64_t bytes;
};
struct msg_wide_gone {
    uint64_t take;
};

struct msg_client_hello {
    char build[64];
};

/* Appends the encoding of the struct of `type`; out->failed if there is no such type or no memory.
 */
void msg_encode(uint16_t type, const void *msg, struct enc *out);
/* Fills the struct of `type` from an untrusted payload; blobs are views. -EPROTO: *msg is all zero,
 * or as it was if there is no such type. */
int msg_decode(uint16_t type, const void *payload, size_t len_bytes, void *msg);
/* Encode and link_send in one: after any error the link is dead. */
int msg_send(struct link *l, uint16_t type, uint64_t id, const void *msg, const int *fds,
             uint32_t fd_count);

#endif
