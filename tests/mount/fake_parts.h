/* fake_parts.h - what the parts of the double share. All under its lock. */
#ifndef GFS_TESTS_FAKE_PARTS_H
#define GFS_TESTS_FAKE_PARTS_H

#include <time.h>

#include "base/segment.h"
#include "fake_world.h"

enum { FAKE_OUTBOX_BYTES = 64 << 20 };

/* ---- fake_world.c */

extern const char fake_model_config[]; /* config.json text */
/* Ends the test: the double itself is broken. */
void fake_die(const char *what);
uint64_t fake_now_ns(clockid_t id);

/* ---- fake_ranks.c */

/* What the daemon said to rank r. */
void fake_rank_frame(struct fake_world *f, uint32_t r, struct frame *fr);
/* Hangs up, and forgets what was asked. */
void fake_rank_gone(struct fake_rank *k);
/* The whole dump of a rank at a version; the caller closes it. */
struct segment fake_rank_dump(const struct fake_world *f, uint32_t r, uint32_t mask, uint64_t gen);
/* Offers the dumps of a wide take to the daemon. */
void fake_send_wide(struct fake_world *f, uint64_t take, uint32_t mask, uint64_t gen);

/* ---- fake_supervisor.c */

/* Nothing, while there is no daemon. */
void fake_to_daemon(struct fake_world *f, uint16_t type, const void *m, const int *fds,
                    uint32_t count);
void fake_daemon_frame(struct fake_world *f, struct frame *fr);
void fake_send_world(struct fake_world *f);
void fake_send_pin(struct fake_world *f, const struct fake_pin *p, enum pin_state state,
                   uint32_t code);
void fake_list_snapshots(struct fake_world *f);
/* To a file of the run directory. */
void fake_append_line(const struct fake_world *f, const char *name, const char *line);

#endif
