/* wide.h - takes that span units: the segments the ranks offer for pins, and opens of
 * live/model.safetensors.
 *
 * The supervisor numbers them and sees to their memory and their version; here they are only put
 * together again. */
#ifndef GFS_FSMOUNT_WIDE_H
#define GFS_FSMOUNT_WIDE_H

#include "fsmount/take.h"

struct wides;
struct wide; /* an open of a file that spans units, maybe shared */

struct wide_user {
    struct wide_user *next, **link;
    struct wide *wide;
    void (*done)(struct wide_user *u, int code); /* as take_user */
};

/* All three are borrowed. 0 or -ENOMEM. Closing ends all opens with EIO. */
int wides_open(struct link *supervisor, struct world *world, struct takes *takes,
               struct wides **out);
void wides_close(struct wides *w);
/* Before the first use, and whenever the knob changes. */
void wides_configure(struct wides *w, double read_timeout_seconds);

/* ---- segments, for pins too */

/* MSG_WIDE_SEGMENT of a rank (counts the segment up), MSG_WIDE_GONE. */
void wides_segment(struct wides *w, uint64_t epoch, uint32_t rank, const struct msg_wide_segment *m,
                   struct shared *segment);
void wides_gone(struct wides *w, uint64_t epoch, uint32_t rank, uint64_t take);
/* True when each rank of the layout has offered a segment of the size its dump has. */
bool wides_is_whole(const struct wides *w, uint64_t take, const struct layout *l,
                    uint32_t array_mask);
/* The dump of a rank; -EIO when it is not there. */
int wides_dump(const struct wides *w, uint64_t take, uint32_t rank, const uint8_t **data,
               uint64_t *bytes);
/* The most silent rank's last sign of life among those that have not offered theirs; UINT64_MAX
 * when none lacks. */
uint64_t wides_oldest_sign(const struct wides *w, uint64_t take, const struct layout *l);
/* A pin holds the segments of a take: they stay when the link that brought them ends, and when the
 * ranks let go of them. */
void wides_hold(struct wides *w, uint64_t take);
void wides_unhold(struct wides *w, uint64_t take);

/* ---- opens */

/* All parameters as they are now, or later. 0, never yet *ready; -ENOBUFS, -ENOMEM, -EIO (there was
 * no world yet). */
int wides_join(struct wides *w, struct wide_user *u, bool *ready);
/* Leaves it, ready or not. No call of done follows. */
void wides_leave(struct wides *w, struct wide_user *u);
/* MSG_WIDE: what the supervisor made of a request. */
void wides_answer(struct wides *w, const struct msg_wide *m);
/* Of a ready one. gather adds the parameters in the order of the file; 0 or -EIO. */
struct take_version wide_version(const struct wide *wide);
int wide_gather(const struct wide *wide, struct gather *g);

/* All ranks are there: what waited for a world is asked for. */
void wides_world(struct wides *w);
/* The link to a rank ended: what is not ready, and what only this link offered, is gone. */
void wides_lost(struct wides *w, uint64_t epoch, uint32_t rank);
/* After MSG_WORLD: what was asked of another epoch ends with EIO. */
void wides_world_changed(struct wides *w);
/* True while something may time out: wides_tick ends what has waited too long with ETIMEDOUT. */
bool wides_waiting(const struct wides *w);
void wides_tick(struct wides *w, uint64_t now_ns);

#endif
