/* recording_list.h - inside the recording device: the list behind it. */
#ifndef GFS_DEVICE_RECORDING_LIST_H
#define GFS_DEVICE_RECORDING_LIST_H

#include <pthread.h>

#include "device/recording.h"

enum { RECORDING_NONE = UINT32_MAX };

struct recording_memory {
    char *what; /* owned */
    char *start;
    size_t bytes, mapped_bytes;
};

struct dev_stream {
    enum dev_stream_kind kind;
    uint32_t index;
};

struct dev_event {
    char *what; /* owned by the device: entries point to it */
    uint32_t index;
};

struct device {
    pthread_mutex_t lock; /* any thread may add */
    struct recording_entry *entries;
    size_t count, cap;
    struct recording_memory *memory;
    size_t memory_count, memory_cap;
    char **event_names;
    size_t event_cap;
    uint32_t stream_count, event_count;
};

int recording_add(struct device *d, const struct recording_entry *e);
/* Makes room for one more element. -ENOMEM. */
int recording_grow(void **array, size_t count, size_t *cap, size_t elem_bytes);

#endif
