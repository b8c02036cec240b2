/* pool.h - a few threads that wait, asleep, for a function to be run in parts. */
#ifndef GFS_DEVICE_CPU_POOL_H
#define GFS_DEVICE_CPU_POOL_H

#include <stddef.h>
#include <stdint.h>

struct pool;

/* part is 0..parts-1 */
typedef void pool_fn(void *arg, size_t part, size_t parts);

/* threads >= 1, the caller's among them: one thread is no thread. -ENOMEM, -EAGAIN. */
int pool_open(uint32_t threads, struct pool **out);
void pool_close(struct pool *p);
uint32_t pool_threads(const struct pool *p);

/* Runs fn once a thread, the caller's as part 0, and returns when all are done. Not reentrant. */
void pool_run(struct pool *p, pool_fn *fn, void *arg);

#endif
