/* err.c - filling and prefixing of errors; names of errno values. */
#include "config.h"

#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Bytes of the UTF-8 character that s begins with; 0 if it is none, or a control character. */
static size_t character_bytes(const unsigned char *s) {
    if (*s < 0x80)
        return *s >= 0x20 && *s != 0x7f;
    size_t n = *s >= 0xf0 && *s <= 0xf4 ? 4 : *s >= 0xe0 ? 3 : 2;
    if (*s < 0xc2 || *s > 0xf4)
        return 0;
    unsigned long c = *s & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) /* the end of the text, too */
            return 0;
        c = c << 6 | (s[i] & 0x3fu);
    }
    static const unsigned long least[] = {
        [2] = 0xa0 /* below: controls */, [3] = 0x800, [4] = 0x10000};
    return c >= least[n] && c <= 0x10ffff && (c < 0xd800 || c > 0xdfff) ? n : 0;
}

void err_clean(char *text) {
    for (unsigned char *s = (unsigned char *)text; *s != '\0';) {
        size_t n = character_bytes(s);
        if (n == 0)
            *s = '?';
        s += n != 0 ? n : 1;
    }
}

int err_set(struct err *err, int code, const char *fmt, ...) {
    if (err != NULL && err->code == 0) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(err->text, sizeof(err->text), fmt, ap);
        va_end(ap);
        err_clean(err->text);
        err->code = code;
    }
    return -code;
}

int err_prefix(struct err *err, const char *fmt, ...) {
    if (err == NULL || err->code == 0)
        return 0;
    char prefix[ERR_TEXT_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(prefix, sizeof(prefix), fmt, ap);
    va_end(ap);
    size_t n = strnlen(prefix, sizeof(prefix) - 3);
    size_t text = strnlen(err->text, sizeof(err->text) - 1);
    if (n + 2 + text > sizeof(err->text) - 1)
        text = n + 2 < sizeof(err->text) ? sizeof(err->text) - 1 - n - 2 : 0;
    memmove(err->text + n + 2, err->text, text);
    memcpy(err->text, prefix, n);
    memcpy(err->text + n, ": ", 2);
    err->text[n + 2 + text] = '\0';
    err_clean(err->text);
    return -err->code;
}

const char *err_name(int code) {
    const char *name = code == 0 ? "OK" : strerrorname_np(code);
    return name != NULL ? name : "E?";
}
