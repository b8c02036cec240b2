/* err.c - filling and prefixing of errors; names of errno values. */
#include "config.h"

#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int err_set(struct err *err, int code, const char *fmt, ...) {
    if (err != NULL && err->code == 0) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(err->text, sizeof(err->text), fmt, ap);
        va_end(ap);
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
    return -err->code;
}

const char *err_name(int code) {
    const char *name = code == 0 ? "OK" : strerrorname_np(code);
    return name != NULL ? name : "E?";
}
