/* supervisor.h - the parts of a supervisor and what they tell each other. Internal to src/run.
 *
 * One thread. Each part owns one struct of struct supervisor and changes no other; what happens
 * between them goes through the functions below, and the state of the run is changed by
 * supervisor.c alone. */
#ifndef GFS_RUN_SUPERVISOR_H
#define GFS_RUN_SUPERVISOR_H

#include "base/knobs.h"
#include "run/goal.h"
#include "run/ledger.h"
#include "run/loop.h"
#include "run/mountpoint.h"
#include "run/output.h"
#include "run/peer.h"
#include "run/progress.h"
#include "run/record.h"
#include "run/rundir.h"
#include "run/supervisor_main.h"
#include "shard/layout.h"
#include "store/snapshot.h"
#include "wire/msg.h"

struct supervisor;

/* ---- guests.c: the socket of the run; who connects is a rank or a client */

struct guest; /* a connection that has not said who it is, or a client */
struct guests {
    int listen_fd;
    struct guest *first;
    uint32_t strangers, clients;
    struct loop_timer pause;
};
int guests_open(struct supervisor *s, struct err *err);
void guests_close(struct supervisor *s); /* nobody comes any more */
void guests_leave(struct supervisor *s); /* who waits for our end sees it: the lock must be free */
/* Answers the clients that wait for this command. */
void guests_command_done(struct supervisor *s, const struct command *c);

/* ---- world.c: the ranks */

enum world_state {
    WORLD_NONE,
    WORLD_STARTING, /* launched; not all ranks are ready */
    WORLD_READY,
    WORLD_LEAVING, /* told to quit */
    WORLD_ENDING,  /* killed; not all of it is gone */
};
struct rank {
    struct peer *peer; /* NULL: not connected, or gone */
    int pidfd, doorbell_fd;
    int64_t pid;
    bool ready, said_bye;
    uint64_t last_seen_ns;
    uint32_t silent_s; /* how many seconds of ours it has said nothing */
    struct msg_rank_alive alive;
    double peak_flops;
    struct msg_rank_device device; /* as of MSG_RANK_READY; memory is a view of the next */
    struct enc memory;
};
struct world {
    enum world_state state;
    uint64_t epoch;
    uint32_t size;
    struct rank *ranks; /* owned [size] */
    pid_t launcher;     /* mpiexec, or the only rank; 0: reaped */
    struct output *output;
    struct layout layout; /* valid if has_layout: of the newest world that was ready */
    bool has_layout;
    struct enc layout_bytes;
    char *model_config;                   /* owned; likewise */
    double flops_per_token, peak_flops;   /* likewise; 0 unknown */
    char device[16];                      /* likewise */
    char note[MSG_TEXT_BYTES];            /* what rank 0 has to say of it */
    char resume_name[NAME_MAX_BYTES + 1]; /* snapshot that the world starts from, "" none */
    uint64_t doubtful_ns; /* since when rank 0 rests though no boundary said so; 0: not */
    struct loop_timer end_timer, exit_timer;
    int launcher_status;
    bool was_ready;          /* some world of this supervisor was */
    bool is_broken_snapshot; /* why it ended */
};
int world_start(struct supervisor *s, struct err *err);
void world_adopt(struct supervisor *s, struct peer *p, const struct msg_rank_hello *hello);
/* It is no world any more, though its processes may be there: world_is_ready is false from now on.
 */
void world_lose(struct supervisor *s);
/* Kills what is there; supervisor_world_gone follows, at once or later. */
void world_kill(struct supervisor *s);
/* At once, without looking back: for the end of the process. */
void world_close(struct supervisor *s);
/* Each second: a rank that has been silent for too long is the end of this world. */
void world_tick(struct supervisor *s);
void world_orders(struct supervisor *s); /* sends goal and live knobs if there is a world */
void world_quit(struct supervisor *s);
void world_send(struct supervisor *s, uint32_t rank, uint16_t type, const void *msg);
void world_send_all(struct supervisor *s, uint16_t type, const void *msg);
/* A new daemon, or a new world: introduces them to each other. */
void world_meet_daemon(struct supervisor *s);
/* The daemon lost its link to a rank of this world. */
void world_meet_again(struct supervisor *s, const struct msg_rank_link *m);
bool world_is_ready(const struct supervisor *s);

/* ---- mountd.c: the daemon */

struct mountd {
    struct mountpoint mount;
    struct peer *peer; /* NULL: none */
    pid_t pid;         /* 0: reaped */
    uint64_t session;
    bool is_ready, has_been_ready, has_unmounted, given_up, is_offline;
    int requests_fd;
    uint8_t *fuse_init; /* owned */
    size_t fuse_init_bytes;
    struct output *output;
    struct loop_timer restart_timer, end_timer;
    uint64_t starts_ns[5]; /* of the last starts */
};
int mountd_open(struct supervisor *s, struct err *err); /* mounts, and starts the daemon */
void mountd_unmount(struct supervisor *s);
/* Unmounted, daemon gone? */
bool mountd_is_gone(const struct supervisor *s);
void mountd_close(struct supervisor *s);
void mountd_send(struct supervisor *s, uint16_t type, const void *msg);
/* True while status messages to it should wait. */
bool mountd_is_slow(const struct supervisor *s);

/* ---- wide.c: takes of everything at one boundary */

enum wide_state { WIDE_RESERVING, WIDE_FIXING, WIDE_FIXED, WIDE_READY, WIDE_FAILED };
struct wide {
    struct wide *next;
    uint64_t id, epoch, gen, step;
    uint32_t mask, code;
    enum wide_state state;
    uint32_t reserved_count, done_count;
    /* Called at each change to WIDE_FIXING and later. May release the take. */
    void (*on_change)(struct supervisor *s, struct wide *w);
    void *owner;
};
struct open_request;
struct wides {
    struct wide *first;
    struct open_request *opens; /* of files that span units, by the daemon */
    uint64_t last_id;
};
/* keep: its memory is for snapshots. NULL: no memory, or no world. */
struct wide *wide_start(struct supervisor *s, uint32_t mask, bool keep,
                        void (*on_change)(struct supervisor *s, struct wide *w), void *owner);
void wide_release(struct supervisor *s, struct wide *w); /* NULL is fine */
void wide_on_reserved(struct supervisor *s, const struct msg_take_reserved *m);
void wide_on_done(struct supervisor *s, const struct msg_take_done *m);
void wide_world_gone(struct supervisor *s); /* those that are not ready fail with EIO */
void wides_close(struct supervisor *s);
/* Opens of files that span units. */
void wide_on_open(struct supervisor *s, const struct msg_wide_open *m);
void wide_on_close(struct supervisor *s, const struct msg_wide_close *m);
void wide_daemon_gone(struct supervisor *s);

/* ---- snapshots.c */

struct snapshot_job; /* the one that is being written */
struct snapshots {
    struct snapshot_info *list; /* owned, sorted by (epoch, gen) */
    bool *broken;               /* owned, beside list */
    uint32_t count;
    uint64_t last_id;
    struct snapshot_job *job;
    struct loop_timer timer;
    uint64_t saved_gen; /* of the ranks' state that is durable, valid if has_saved */
    bool has_saved;
    uint32_t restarts; /* since the newest was written */
    char restored[NAME_MAX_BYTES + 1];
    uint64_t restored_gen;
};
int snapshots_open(struct supervisor *s, struct err *err);
void snapshots_close(struct supervisor *s);
void snapshots_start_timer(struct supervisor *s);
/* name NULL: automatic. command NULL: none waits; the end of an automatic one is told to stop.c.
 * -errno with the reason. */
int snapshots_begin(struct supervisor *s, const char *name, struct command *command,
                    struct err *err);
bool snapshots_is_current(const struct supervisor *s); /* is the ranks' state durable? */
void snapshots_on_written(struct supervisor *s, uint32_t rank, const struct msg_take_written *m);
void snapshots_world_gone(struct supervisor *s);
void snapshots_abort(struct supervisor *s); /* the one that a command waits for */
int snapshots_find(const struct supervisor *s, const char *name); /* index or -1 */
int snapshots_remove(struct supervisor *s, const char *name, struct err *err);
/* The snapshot to start from; "" if none. */
void snapshots_choose_origin(struct supervisor *s, char name[NAME_MAX_BYTES + 1]);
void snapshots_mark_broken(struct supervisor *s, const char *name);
void snapshots_restored(struct supervisor *s, const char *name, uint64_t gen);
void snapshots_tell_daemon(struct supervisor *s);
int snapshots_path(const struct supervisor *s, const char *name, char *out, size_t cap_bytes);
const char *snapshots_running(const struct supervisor *s); /* name, or "" */
bool snapshots_is_running(const struct supervisor *s);
uint64_t snapshots_newest_step(const struct supervisor *s);

/* ---- pins.c */

struct pin;
struct pins {
    struct pin *first;
    uint64_t last_id;
};
/* command NULL: made by mkdir, nobody waits. */
int pins_make(struct supervisor *s, const char *name, struct command *command, struct err *err);
int pins_remove(struct supervisor *s, const char *name, struct err *err);
void pins_abort(struct supervisor *s); /* those that commands wait for */
void pins_world_gone(struct supervisor *s);
void pins_world_ready(struct supervisor *s);
void pins_tell_daemon(struct supervisor *s);
void pins_close(struct supervisor *s);

/* ---- commands.c */

/* What came from a peer, with the frame id that it had. */
void commands_receive(struct supervisor *s, struct peer *from, uint64_t frame_id,
                      const struct msg_command *m);
void commands_execute(struct supervisor *s); /* those that waited for the world */
void commands_on_boundary(struct supervisor *s);
void commands_finish(struct supervisor *s, struct command *c, uint32_t code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* step and target that are not reached, and what waits for a world, if waiting too: ECANCELED. */
void commands_cancel_steps(struct supervisor *s, bool waiting_too, const char *why);
/* All open ones: steps ECANCELED, the others `code`. */
void commands_end_all(struct supervisor *s, uint32_t code, const char *why);
void commands_world_gone(struct supervisor *s);
void commands_on_restored(struct supervisor *s, const struct msg_restored *m);
uint64_t commands_wanted_step(const struct supervisor *s);
void commands_tell_daemon(struct supervisor *s);
void commands_tell_row(struct supervisor *s, const struct command *c);

/* ---- status.c */

struct status {
    double loss, grad_norm, clip_factor, lr, step_seconds; /* of the last step; NaN before */
    double smooth_seconds;                                 /* of recent steps, 0 unknown */
    uint64_t tokens_per_step, time_ns;
    bool is_dirty;
    char last_error[MSG_TEXT_BYTES];
    struct loop_timer timer;
};
void status_init(struct supervisor *s);
void status_fill(const struct supervisor *s, struct msg_status *m, struct enc *config_text);
void status_send(struct supervisor *s);  /* now, or when the daemon has caught up */
void status_flush(struct supervisor *s); /* what status_send put off */
void status_tell_ranks(struct supervisor *s);
double status_eta_seconds(const struct supervisor *s);
double status_tokens_per_second(const struct supervisor *s); /* NaN unknown, as these two */
double status_mfu(const struct supervisor *s);

/* ---- stop.c: how a run ends
 *
 *   stop_request                                                            the loop ends
 *  ------------> RESTING --> SNAPSHOT --> LEAVING --> UNMOUNTING ------------------------>
 *      NONE <-------------------+ stop_snapshot_failed: the run pauses
 *
 * stop_step goes on from wherever it is. */
enum stop_phase { STOP_NONE, STOP_RESTING, STOP_SNAPSHOT, STOP_LEAVING, STOP_UNMOUNTING };
struct stop {
    enum stop_phase phase;
    bool has_failed; /* the last snapshot could not be written: the next signal ends at once */
    bool is_done;    /* the target was reached */
    int exit_code;
    uint32_t signals;
    uint64_t signal_ns; /* of the last signal */
    struct loop_timer timer;
};
void stop_request(struct supervisor *s, const char *why);
void stop_step(struct supervisor *s); /* something changed that it may wait for */
void stop_snapshot_failed(struct supervisor *s, uint32_t code, const char *why);
void stop_at_once(struct supervisor *s, const char *why);

/* ---- supervisor.c */

struct supervisor {
    struct loop *loop;
    const struct request *request;
    struct config config;
    bool config_is_dirty;
    struct rundir rundir;
    enum run_state state;
    uint64_t gen;   /* the highest that any world had */
    bool has_grads; /* the world has made a step since it started or was restored */
    struct goal goal;
    struct ledger *ledger;
    struct record record;
    struct guests guests;
    struct world world;
    struct mountd mountd;
    struct wides wides;
    struct snapshots snapshots;
    struct pins pins;
    struct status status;
    struct stop stop;
    char failure[MSG_TEXT_BYTES]; /* why it is RUN_FAILED */
    struct progress progress;
    struct loop_timer housekeeping, restart_timer;
    uint32_t ticks;            /* of housekeeping */
    uint64_t told_event_bytes; /* what the daemon knows of the events file */
};

/* For `gatherfs mount`: a supervisor without a world. NULL: no memory. supervisor_close also frees
 * it. */
struct supervisor *supervisor_make(const struct request *q, enum run_state state);
void supervisor_close(struct supervisor *s);

void supervisor_update_state(struct supervisor *s); /* from the goal; sends the status */
void supervisor_set_state(struct supervisor *s, enum run_state state);
/* An error for status/last_error, events and the terminal. */
void supervisor_error(struct supervisor *s, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void supervisor_event(struct supervisor *s, const char *kind, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void supervisor_goal_changed(
    struct supervisor *s);                   /* orders, commands that need no more steps, state */
void supervisor_rests(struct supervisor *s); /* the ranks do, though no boundary said so */
void supervisor_on_boundary(struct supervisor *s, const struct msg_boundary *m);
/* What a wide take made now can show: without gradients where there are none. */
uint32_t supervisor_arrays(const struct supervisor *s, uint32_t array_mask);
void supervisor_world_ready(struct supervisor *s, uint64_t gen, uint64_t step, const char *summary);
/* The world is of no use any more; why is for people. final: starting again would not help. */
void supervisor_world_failed(struct supervisor *s, const char *why, bool is_final);
void supervisor_world_gone(struct supervisor *s); /* nothing of it runs any more */
void supervisor_fail(struct supervisor *s, const char *why);

#endif
