/* buf.h - checked encoding and decoding of little-endian fields; the one place that does bounds. */
#ifndef GFS_BASE_BUF_H
#define GFS_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A growing output buffer. After any failed allocation `failed` stays set and puts do nothing. */
struct enc {
    uint8_t *data; /* owned; freed by enc_free */
    size_t len_bytes, cap_bytes;
    bool failed;
};

void enc_free(struct enc *e);
void enc_reset(struct enc *e); /* len 0, memory kept, failed cleared */
void enc_u8(struct enc *e, uint8_t v);
void enc_u32(struct enc *e, uint32_t v);
void enc_u64(struct enc *e, uint64_t v);
void enc_f64(struct enc *e, double v);
void enc_bytes(struct enc *e, const void *data, size_t len_bytes); /* raw, no length */
void enc_blob(struct enc *e, const void *data, size_t len_bytes);  /* u32 length, bytes */
void enc_str(struct enc *e, const char *s);                        /* as enc_blob; NULL is "" */
/* printf into the buffer, no terminator: for text files. */
void enc_printf(struct enc *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* A cursor over input that is not trusted. After the first read past the end `bad` stays set and
 * all gets return 0 / "" / NULL; check dec_done once at the end. */
struct dec {
    const uint8_t *p, *end;
    bool bad;
};

struct dec dec_of(const void *data, size_t len_bytes);
uint8_t dec_u8(struct dec *d);
uint32_t dec_u32(struct dec *d);
uint64_t dec_u64(struct dec *d);
double dec_f64(struct dec *d);
/* The bytes of a blob, not copied: valid as long as the input. */
const uint8_t *dec_blob(struct dec *d, size_t *len_bytes);
/* Copies a string of at most cap_bytes - 1 into out, terminated; longer, or with a NUL inside: bad.
 */
void dec_str(struct dec *d, char *out, size_t cap_bytes);
/* As dec_str into fresh memory that the caller frees; NULL when bad. At most max_bytes long. */
char *dec_strdup(struct dec *d, size_t max_bytes);
/* True if nothing was bad and nothing is left over. */
bool dec_done(const struct dec *d);

#endif
