/* recording.h - the device that runs nothing: what it was asked to do stands in a list, and is
 * checked for missing order.
 *
 * Memory has real addresses (zeros, taken from the kernel only when touched) that are not used
 * again before the device is closed, so an address means one thing in the whole list. What is on
 * one stream is in order; between streams and the host there is only the order that events make, as
 * on a device that runs late. */
#ifndef GFS_DEVICE_RECORDING_H
#define GFS_DEVICE_RECORDING_H

#include <stddef.h>
#include <stdint.h>

#include "device/device.h"

enum { RECORDING_RANGES_MAX = 8 };

struct recording_range {
    const void *start;
    size_t bytes;
};

enum recording_kind {
    RECORDING_OPERATION, /* on a stream */
    RECORDING_HOST,      /* the host's own access, see recording_note */
    RECORDING_EVENT,     /* event_record */
    RECORDING_WAIT,      /* stream_wait */
    RECORDING_SYNC       /* event_synchronize */
};

struct recording_entry {
    enum recording_kind kind;
    const char *name; /* of the operation, or the event's */
    uint32_t stream;  /* index in order of opening, 0.. ; the host's kinds have none: UINT32_MAX */
    uint32_t event;   /* index likewise */
    uint32_t read_count, write_count;
    struct recording_range reads[RECORDING_RANGES_MAX], writes[RECORDING_RANGES_MAX];
};

size_t recording_count(const struct device *d);
const struct recording_entry *recording_at(const struct device *d, size_t i);
/* Forgets the list, not the memory. */
void recording_clear(struct device *d);
/* Takes entry i out: what would be, had it been forgotten? */
void recording_remove(struct device *d, size_t i);

/* Adds what is no operation of the table: a collective on stream s, or, s NULL, an access by the
 * host. name is kept as a pointer. -E2BIG above RECORDING_RANGES_MAX ranges, -ENOMEM. */
int recording_note(struct device *d, struct dev_stream *s, const char *name,
                   const struct recording_range *reads, size_t read_count,
                   const struct recording_range *writes, size_t write_count);

/* The name given to alloc of the memory that holds p; "?" outside of all. */
const char *recording_memory_name(const struct device *d, const void *p);

struct recording_conflict {
    size_t first, second;         /* entries, by index */
    struct recording_range range; /* what both touch, and one of them writes */
    char text[256];               /* for people */
};

/* Looks for two entries that touch the same bytes, one of them writing, without anything that puts
 * one before the other. 0 if there are none, 1 with the first such pair, -ENOMEM. */
int recording_check(const struct device *d, struct recording_conflict *out);

#endif
