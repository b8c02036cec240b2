/* team.h - a few threads that wait, asleep, for a function to be run in parts. */
#ifndef GFS_DEVICE_CPU_TEAM_H
#define GFS_DEVICE_CPU_TEAM_H

#include <stddef.h>
#include <stdint.h>

struct team;

/* part is 0..parts-1 */
typedef void team_fn(void *arg, size_t part, size_t parts);

/* threads >= 1, the caller's among them: one thread is no thread. -ENOMEM, -EAGAIN. */
int team_open(uint32_t threads, struct team **out);
void team_close(struct team *p);
uint32_t team_threads(const struct team *p);

/* Runs fn once a thread, the caller's as part 0, and returns when all are done. Not reentrant. */
void team_run(struct team *p, team_fn *fn, void *arg);

#endif
