/* text.c - counted bytes. */
#include "config.h"

#include "fsmount/text.h"

#include <stdlib.h>

struct text *text_adopt(uint8_t *data, size_t len_bytes) {
    struct text *t = malloc(sizeof(*t));
    if (t == NULL) {
        free(data);
        return NULL;
    }
    *t = (struct text){.refs = 1, .len_bytes = len_bytes, .data = data};
    return t;
}

struct text *text_of_enc(struct enc *e) {
    if (e->failed) {
        enc_free(e);
        return NULL;
    }
    struct text *t = text_adopt(e->data, e->len_bytes);
    *e = (struct enc){0};
    return t;
}

struct text *text_get(struct text *t) {
    t->refs++;
    return t;
}

void text_put(struct text *t) {
    if (t == NULL || --t->refs != 0)
        return;
    free(t->data);
    free(t);
}
