/* loop.h - the supervisor's event loop: descriptors, timers, signals, children; one thread, nothing
 * blocks. */
#ifndef GFS_RUN_LOOP_H
#define GFS_RUN_LOOP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct loop;

typedef void loop_fd_fn(void *arg, short revents);
typedef void loop_timer_fn(void *arg);
typedef void loop_child_fn(void *arg, int wait_status);
typedef void loop_signal_fn(void *arg, int signal_number);

/* Embedded by its owner; set fn and arg once. */
struct loop_timer {
    struct loop_timer *next;
    uint64_t due_ns;
    bool armed;
    loop_timer_fn *fn;
    void *arg;
};

/* Blocks SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGCHLD for the process and ignores SIGPIPE; children
 * undo it (child.h). */
int loop_open(loop_signal_fn *on_signal, void *arg, struct loop **out);
void loop_close(struct loop *l);
/* Runs until loop_stop. 0 or -errno. */
int loop_run(struct loop *l);
void loop_stop(struct loop *l);

/* The owner closes fd after loop_unwatch. A handler may unwatch any descriptor, its own too. */
int loop_watch(struct loop *l, int fd, short events, loop_fd_fn *fn, void *arg);
void loop_events(struct loop *l, int fd, short events);
void loop_unwatch(struct loop *l, int fd);

void loop_timer_set(struct loop *l, struct loop_timer *t, uint64_t delay_ms); /* again: replaces */
void loop_timer_cancel(struct loop *l, struct loop_timer *t);

/* fn is called once, when the child has ended and was reaped. */
int loop_child(struct loop *l, pid_t pid, loop_child_fn *fn, void *arg);

uint64_t loop_now_ns(void);  /* CLOCK_MONOTONIC */
uint64_t loop_time_ns(void); /* CLOCK_REALTIME */

#endif
