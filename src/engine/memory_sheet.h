/* memory_sheet.h - what a rank's memory is for: blocks of the same purpose and kind are one line.
 */
#ifndef GFS_ENGINE_MEMORY_SHEET_H
#define GFS_ENGINE_MEMORY_SHEET_H

#include "base/buf.h"
#include "device/device.h"

enum { MEMORY_SHEET_ROWS = 48 };

/* Begins as zeros. */
struct memory_sheet {
    bool host_access; /* of the device: all its memory is the host's */
    uint32_t count;
    struct {
        enum dev_memory kind;
        const char *what; /* borrowed */
        uint64_t bytes;
    } rows[MEMORY_SHEET_ROWS];
};

/* A dev_memory_fn. Where there are too many purposes the last line has the rest. */
void memory_sheet_add(void *sheet, enum dev_memory kind, uint64_t bytes, const char *what);
/* Lines "KIND\tBYTES\n" in the order of the first of each: KIND is device/PURPOSE or host/PURPOSE,
 * without spaces. Then device_total and device_free (host_ with host_access), where p knows them.
 */
void memory_sheet_print(const struct memory_sheet *s, const struct device_properties *p,
                        struct enc *out);

#endif
