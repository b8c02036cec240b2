/* buf.c - the one place where lengths from outside meet memory. */
#include "config.h"

#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void enc_free(struct enc *e) {
    free(e->data);
    *e = (struct enc){0};
}

void enc_reset(struct enc *e) {
    e->len_bytes = 0;
    e->failed = false;
}

static bool enc_room(struct enc *e, size_t more) {
    if (e->failed)
        return false;
    if (more <= e->cap_bytes - e->len_bytes)
        return true;
    size_t cap = e->cap_bytes != 0 ? e->cap_bytes : 256;
    while (cap - e->len_bytes < more) {
        if (cap > SIZE_MAX / 2) {
            e->failed = true;
            return false;
        }
        cap *= 2;
    }
    uint8_t *data = realloc(e->data, cap);
    if (data == NULL) {
        e->failed = true;
        return false;
    }
    e->data = data;
    e->cap_bytes = cap;
    return true;
}

void enc_bytes(struct enc *e, const void *data, size_t len_bytes) {
    if (len_bytes == 0 || !enc_room(e, len_bytes))
        return;
    memcpy(e->data + e->len_bytes, data, len_bytes);
    e->len_bytes += len_bytes;
}

static void enc_le(struct enc *e, uint64_t v, size_t n) {
    uint8_t b[8];
    for (size_t i = 0; i < n; i++)
        b[i] = (uint8_t)(v >> (8 * i));
    enc_bytes(e, b, n);
}

void enc_u8(struct enc *e, uint8_t v) { enc_le(e, v, 1); }
void enc_u32(struct enc *e, uint32_t v) { enc_le(e, v, 4); }
void enc_u64(struct enc *e, uint64_t v) { enc_le(e, v, 8); }

void enc_f64(struct enc *e, double v) {
    uint64_t bits;
    memcpy(&bits, &v, sizeof(bits));
    enc_u64(e, bits);
}

void enc_blob(struct enc *e, const void *data, size_t len_bytes) {
    if (len_bytes > UINT32_MAX) {
        e->failed = true;
        return;
    }
    enc_u32(e, (uint32_t)len_bytes);
    enc_bytes(e, data, len_bytes);
}

void enc_str(struct enc *e, const char *s) { enc_blob(e, s, s != NULL ? strlen(s) : 0); }

void enc_printf(struct enc *e, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !enc_room(e, (size_t)n + 1)) {
        e->failed = true;
        return;
    }
    va_start(ap, fmt);
    vsnprintf((char *)e->data + e->len_bytes, (size_t)n + 1, fmt, ap);
    va_end(ap);
    e->len_bytes += (size_t)n;
}

struct dec dec_of(const void *data, size_t len_bytes) {
    const uint8_t *p = data;
    return (struct dec){.p = p, .end = len_bytes != 0 ? p + len_bytes : p};
}

static const uint8_t *dec_take(struct dec *d, size_t n) {
    if (d->bad || (size_t)(d->end - d->p) < n) {
        d->bad = true;
        return NULL;
    }
    const uint8_t *p = d->p;
    d->p += n;
    return p;
}

static uint64_t dec_le(struct dec *d, size_t n) {
    const uint8_t *p = dec_take(d, n);
    uint64_t v = 0;
    for (size_t i = 0; p != NULL && i < n; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

uint8_t dec_u8(struct dec *d) { return (uint8_t)dec_le(d, 1); }
uint32_t dec_u32(struct dec *d) { return (uint32_t)dec_le(d, 4); }
uint64_t dec_u64(struct dec *d) { return dec_le(d, 8); }

double dec_f64(struct dec *d) {
    uint64_t bits = dec_u64(d);
    double v;
    memcpy(&v, &bits, sizeof(v));
    return v;
}

const uint8_t *dec_blob(struct dec *d, size_t *len_bytes) {
    size_t n = dec_u32(d);
    const uint8_t *p = dec_take(d, n);
    *len_bytes = p != NULL ? n : 0;
    return p;
}

void dec_str(struct dec *d, char *out, size_t cap_bytes) {
    size_t n;
    const uint8_t *p = dec_blob(d, &n);
    if (p == NULL || n >= cap_bytes || memchr(p, 0, n) != NULL) {
        d->bad = true;
        n = 0;
    }
    if (n != 0)
        memcpy(out, p, n);
    out[n] = '\0';
}

char *dec_strdup(struct dec *d, size_t max_bytes) {
    size_t n;
    const uint8_t *p = dec_blob(d, &n);
    if (p == NULL || n > max_bytes || memchr(p, 0, n) != NULL) {
        d->bad = true;
        return NULL;
    }
    char *s = strndup((const char *)p, n);
    if (s == NULL)
        d->bad = true;
    return s;
}

bool dec_done(const struct dec *d) { return !d->bad && d->p == d->end; }
