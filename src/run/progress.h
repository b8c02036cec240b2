/* progress.h - what the terminal shows: a line that changes, or plain lines where there is no
 * terminal. */
#ifndef GFS_RUN_PROGRESS_H
#define GFS_RUN_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    bool is_terminal, has_colour, has_line;
    uint64_t last_ns;
    char summary[512]; /* what is trained, in rank 0's words */
};
struct progress_values {
    const char *state, *note; /* note: "snapshot before", or "" */
    uint64_t step, target;
    double loss, tokens_per_second, mfu, eta_seconds; /* NaN unknown */
};

void progress_open(struct progress *p);
/* A line that stays. */
void progress_say(struct progress *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The changing line of a terminal, at most ten times a second unless `now`. */
void progress_show(struct progress *p, const struct progress_values *v, bool now);
/* One plain line of the same. */
void progress_print(struct progress *p, const struct progress_values *v);
void progress_close(struct progress *p);

#endif
