/* memory_sheet.c - the lines of ranks/N/memory. */
#include "config.h"

#include "engine/memory_sheet.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void memory_sheet_add(void *sheet, enum dev_memory kind, uint64_t bytes, const char *what) {
    struct memory_sheet *s = sheet;
    uint32_t i = 0;
    kind = s->host_access ? DEV_MEM_HOST : kind;
    while (i < s->count && (s->rows[i].kind != kind || strcmp(s->rows[i].what, what) != 0))
        i++;
    if (i == MEMORY_SHEET_ROWS) {
        i--;
        s->rows[i].what = "rest";
    } else if (i == s->count) {
        s->count++;
        s->rows[i].kind = kind;
        s->rows[i].what = what;
    }
    s->rows[i].bytes += bytes;
}

void memory_sheet_print(const struct memory_sheet *s, const struct device_properties *p,
                        struct enc *out) {
    static const char *const places[] = {[DEV_MEM_DEVICE] = "device", [DEV_MEM_HOST] = "host"};
    for (uint32_t i = 0; i < s->count; i++) {
        char what[64];
        snprintf(what, sizeof what, "%s", s->rows[i].what);
        for (char *c = what; *c != '\0'; c++)
            *c = *c == ' ' ? '_' : *c;
        enc_printf(out, "%s/%s\t%" PRIu64 "\n", places[s->rows[i].kind], what, s->rows[i].bytes);
    }
    const char *place = places[s->host_access ? DEV_MEM_HOST : DEV_MEM_DEVICE];
    if (p->memory_bytes != 0)
        enc_printf(out, "%s_total\t%" PRIu64 "\n%s_free\t%" PRIu64 "\n", place, p->memory_bytes,
                   place, p->memory_free_bytes);
}
