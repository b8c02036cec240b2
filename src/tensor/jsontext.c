/* jsontext.c - JSON strings: UTF-8 checked, controls escaped. */
#include "config.h"

#include "tensor/jsontext.h"

#include <errno.h>
#include <string.h>

/* Length of the UTF-8 sequence at p, 0 if it is none (overlong forms and surrogates are none). */
static size_t jsontext_sequence(const unsigned char *p) {
    if (p[0] < 0x80)
        return 1;
    size_t len = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4)
        return 0;
    for (size_t i = 1; i < len; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    bool overlong = (p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xf0 && p[1] < 0x90);
    bool surrogate = p[0] == 0xed && p[1] >= 0xa0;
    bool too_high = p[0] == 0xf4 && p[1] >= 0x90;
    if (overlong || surrogate || too_high)
        return 0;
    return len;
}

int jsontext_string(struct enc *out, const char *s) {
    const unsigned char *p = (const unsigned char *)s;
    for (size_t i = 0, n; p[i] != '\0'; i += n) {
        n = jsontext_sequence(p + i);
        if (n == 0)
            return -EINVAL;
    }
    enc_u8(out, '"');
    for (; *p != '\0'; p++) {
        if (*p == '"' || *p == '\\')
            enc_u8(out, '\\');
        if (*p == '\n')
            enc_bytes(out, "\\n", 2);
        else if (*p < 0x20)
            enc_printf(out, "\\u%04x", *p);
        else
            enc_u8(out, *p);
    }
    enc_u8(out, '"');
    return 0;
}
