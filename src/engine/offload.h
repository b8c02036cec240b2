/* offload.h - optimizer state that rests outside of the device: in pinned memory of the host, or in
 * a file. Unit by unit it comes in and goes out through two slots of device memory, on a stream of
 * its own, ahead of the update and behind it.
 *
 *   offload_fetch(u)   OFFLOAD: home -> slot
 *   offload_enter(u)   the user's stream waits until it is there, and may work on it
 *   offload_leave(u)   OFFLOAD waits for the user's stream, then slot -> home
 *   offload_settle(u)  the host waits until it is home: readers may have it
 *
 * Two units can be on their way at a time: u may be fetched once u - 2 was left. With a file the
 * same slots are pinned memory, which a thread of its own fills and empties by direct I/O, and a
 * device with memory of its own has a pair of slots besides. All is called by the main thread.
 *
 * The file is scratch: it has no name, and a new world fills it from a snapshot. */
#ifndef GFS_ENGINE_OFFLOAD_H
#define GFS_ENGINE_OFFLOAD_H

#include <stdbool.h>

#include "device/device.h"
#include "engine/arrays.h"
#include "shard/layout.h"

struct offload;

enum offload_kind { OFFLOAD_NONE, OFFLOAD_HOST, OFFLOAD_FILE };

/* "none", "optimizer=host" or "optimizer=file:DIR"; *dir points into text. -EINVAL. */
int offload_parse(const char *text, enum offload_kind *kind, const char **dir, struct err *err);

struct offload_args {
    enum offload_kind kind; /* not OFFLOAD_NONE */
    const char *dir;        /* OFFLOAD_FILE: an existing directory */
    uint32_t array_mask;    /* which arrays rest there */
    const struct device_ops *ops;
    struct device *dev;
    struct dev_stream *stream;   /* DEV_STREAM_OFFLOAD */
    const struct layout *layout; /* all borrowed until close */
    uint32_t rank;
    struct arrays *arrays; /* the homes are told to it */
};

/* Allocates homes (zeros) and slots. -ENOSPC and the like name the directory. */
int offload_open(const struct offload_args *args, struct offload **out, struct err *err);
/* Waits for what is under way. The arrays must not be used afterwards. */
void offload_close(struct offload *o);

int offload_fetch(struct offload *o, uint32_t unit);
/* shards[a]: the unit's array a in device memory, for a in the mask; others are left alone. */
int offload_enter(struct offload *o, uint32_t unit, struct dev_stream *user,
                  float *shards[ARRAY_COUNT]);
/* written false: it goes home unchanged, which costs nothing. */
int offload_leave(struct offload *o, uint32_t unit, struct dev_stream *user, bool written);
int offload_settle(struct offload *o, uint32_t unit);
/* Tells of homes in pinned memory, and of the slots. */
void offload_memory(const struct offload *o, dev_memory_fn *tell, void *ctx);
/* The sentence of a failure of the file, "" if there was none. */
const char *offload_why(const struct offload *o);

#endif
