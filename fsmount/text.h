/* text.h - counted immutable bytes: the content of a volatile file, bound when it is looked up. */
#ifndef GFS_FSMOUNT_TEXT_H
#define GFS_FSMOUNT_TEXT_H

#include "base/buf.h"

struct text {
    uint32_t refs;
    size_t len_bytes;
    uint8_t *data; /* owned */
};

/* Takes over malloc'ed data, also on failure. NULL: no memory. */
struct text *text_adopt(uint8_t *data, size_t len_bytes);
/* Takes what was encoded; e is empty after that. NULL when it had failed. */
struct text *text_of_enc(struct enc *e);
struct text *text_get(struct text *t);
void text_put(struct text *t); /* NULL is fine */

#endif
