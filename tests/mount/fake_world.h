/* fake_world.h - a scripted double of the supervisor and the ranks, around the real daemon and a
 * real mount.
 *
 * It runs in a thread of its own. What a tensor holds is a function of array, element and version,
 * so that a test can tell the version of each byte it reads. Ranks answer as their mode says;
 * commands are done at once, or when the test says so. */
#ifndef GFS_TESTS_FAKE_WORLD_H
#define GFS_TESTS_FAKE_WORLD_H

#include <pthread.h>

#include "base/knobs.h"
#include "shard/layout.h"
#include "store/catalogue.h"
#include "wire/msg.h"

enum { FAKE_MAX_RANKS = 4, FAKE_MAX_COMMANDS = 4096, FAKE_MAX_PINS = 64 };

enum fake_mode {
    FAKE_NORMAL,
    FAKE_SILENT,   /* never answers */
    FAKE_PASSES,   /* has always passed what it is asked for, until the agenda fixes it */
    FAKE_FAILS,    /* no memory */
    FAKE_NOISY,    /* late, repeated and foreign answers around the right one */
    FAKE_MISFITS,  /* a copy that lies outside its segment */
    FAKE_GARBAGE,  /* bytes that are no frame */
    FAKE_UNSEALED, /* a segment that can shrink */
    FAKE_RUNS, /* the world makes two steps with each question: versions never agree by themselves
                */
};

struct fake_hold;
struct fake_rank {
    struct link *link; /* NULL: not connected */
    enum fake_mode mode;
    bool dead; /* no heartbeat */
    uint64_t gen;
    uint64_t next_segment;
    uint64_t takes_asked, takes_released, fixes;
    struct fake_hold *holds;
};

struct fake_command {
    struct msg_command m;
    bool done;
    uint32_t code, times_sent;
};

struct fake_pin {
    uint64_t id, take, epoch, gen, step, time_ns;
    char name[NAME_MAX_BYTES + 1];
};

struct fake_world {
    pthread_t thread;
    /* Held by the thread while it works, by tests while they look or change. */
    pthread_mutex_t mutex;
    int wake, wake_read;
    bool stop;
    char dir[256], run_dir[300], mnt[300];
    /* the daemon */
    pid_t daemon;
    struct link *link;
    int fuse_fd, requests_fd;
    uint8_t *init;
    size_t init_bytes;
    uint64_t session;
    bool ready, unmounted, offline, mask_resend;
    uint32_t links_asked; /* links that the daemon lost and wants again */
    /* the run */
    struct config config;
    struct layout layout;
    struct msg_status status;
    uint64_t epoch, gen, step, next_take, next_object;
    bool has_grads, world_up;
    struct fake_rank ranks[FAKE_MAX_RANKS];
    uint32_t world_size;
    struct catalogue *catalogue;
    /* commands */
    bool hold_commands; /* accepted, and not done before fake_finish */
    uint32_t hold_pins; /* 1: pins are made and stay PIN_RESERVING; 2: their segments never come */
    struct fake_command commands[FAKE_MAX_COMMANDS];
    uint32_t command_count;
    struct fake_pin pins[FAKE_MAX_PINS];
    uint32_t pin_count;
    uint64_t wides_open;
};

/* Makes directories, mounts, starts the daemon and a world of world_size ranks. Exits 77 where
 * nothing can be mounted. */
struct fake_world *fake_start(uint32_t world_size, const char *extra_config);
/* Offline: a daemon over the run directory of an earlier world. */
struct fake_world *fake_start_offline(const char *run_dir);
/* Ends the daemon, unmounts, removes the directories. */
void fake_end(struct fake_world *f);

void fake_lock(struct fake_world *f);
void fake_unlock(struct fake_world *f); /* and wakes the thread */

/* Under the lock. */
void fake_send_status(struct fake_world *f);
void fake_step(struct fake_world *f);                  /* all ranks one step on, then the status */
void fake_rank_step(struct fake_world *f, uint32_t r); /* one rank only, no status */
void fake_world_down(struct fake_world *f);            /* the ranks are gone, state restarting */
void fake_world_up(struct fake_world *f);              /* a new epoch */
void fake_rank_hangup(struct fake_world *f, uint32_t r);
void fake_finish(struct fake_world *f, uint32_t command, uint32_t code, const char *text);
void fake_event(struct fake_world *f, const char *line); /* appends to events and tells */
void fake_metrics(struct fake_world *f);
void fake_pin_fix(struct fake_world *f, struct fake_pin *p);
int fake_snapshot(struct fake_world *f, const char *name); /* durable, then listed */

/* Without the lock. */
void fake_kill_daemon(struct fake_world *f);  /* SIGKILL, reaped */
void fake_start_daemon(struct fake_world *f); /* a successor; waits until it serves */
bool fake_wait(struct fake_world *f, bool (*is)(struct fake_world *f), double seconds);

/* The value of an element of a unit at a version. */
float fake_value(uint64_t epoch, uint64_t gen, uint32_t array, uint32_t unit, uint64_t elem);

#endif
