/* parse.c - whole string or nothing. */
#include "config.h"

#include "base/parse.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int parse_digits(const char *s, size_t n, uint64_t *out) {
    if (n == 0)
        return -EINVAL;
    uint64_t v = 0;
    bool over = false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9')
            return -EINVAL;
        uint64_t digit = (uint64_t)(s[i] - '0');
        if (v > (UINT64_MAX - digit) / 10)
            over = true;
        else
            v = v * 10 + digit;
    }
    if (over)
        return -ERANGE;
    *out = v;
    return 0;
}

int parse_u64(const char *s, uint64_t *out) { return parse_digits(s, strlen(s), out); }

int parse_f64(const char *s, double *out) {
    if (strspn(s, "0123456789+-.eE") != strlen(s) || *s == '\0')
        return -EINVAL;
    char *end;
    errno = 0;
    double v = strtod(s, &end);
    if (end == s || *end != '\0')
        return -EINVAL;
    if (!isfinite(v))
        return -ERANGE;
    *out = v;
    return 0;
}

int parse_bytes(const char *s, uint64_t *out) {
    static const char units[] = "KMGT";
    size_t n = strlen(s);
    unsigned shift = 0;
    const char *unit = n > 1 ? strchr(units, s[n - 1]) : NULL;
    if (unit != NULL) {
        shift = 10 * (unsigned)(unit - units + 1);
        n--;
    }
    uint64_t v;
    int rc = parse_digits(s, n, &v);
    if (rc != 0)
        return rc;
    if (v > UINT64_MAX >> shift)
        return -ERANGE;
    *out = v << shift;
    return 0;
}

static const char letters_digits[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

static bool parse_all_in(const char *s, const char *extra, size_t max_bytes) {
    size_t n = strlen(s);
    if (n == 0 || n > max_bytes)
        return false;
    for (; *s != '\0'; s++)
        if (strchr(letters_digits, *s) == NULL && strchr(extra, *s) == NULL)
            return false;
    return true;
}

bool parse_name_ok(const char *s) {
    return parse_all_in(s, "._-", NAME_MAX_BYTES) && *s != '.' && *s != '-';
}

bool parse_command_id_ok(const char *s) { return parse_all_in(s, "._:-", COMMAND_ID_MAX_BYTES); }

void parse_format_bytes(uint64_t bytes, char *out, size_t cap_bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double v = (double)bytes;
    size_t u = 0;
    while (v >= 1024 && u + 1 < sizeof(units) / sizeof(units[0])) {
        v /= 1024;
        u++;
    }
    snprintf(out, cap_bytes, u == 0 || v >= 100 ? "%.0f %s" : "%.1f %s", v, units[u]);
}

void parse_format_seconds(double seconds, char *out, size_t cap_bytes) {
    if (!(seconds >= 0) || seconds > 1e9) {
        snprintf(out, cap_bytes, "?");
        return;
    }
    uint64_t s = (uint64_t)(seconds + 0.5);
    if (s >= 86400)
        snprintf(out, cap_bytes, "%llud%02lluh", (unsigned long long)(s / 86400),
                 (unsigned long long)(s % 86400 / 3600));
    else if (s >= 3600)
        snprintf(out, cap_bytes, "%lluh%02llum", (unsigned long long)(s / 3600),
                 (unsigned long long)(s % 3600 / 60));
    else if (s >= 60)
        snprintf(out, cap_bytes, "%llum%02llus", (unsigned long long)(s / 60),
                 (unsigned long long)(s % 60));
    else
        snprintf(out, cap_bytes, "%llus", (unsigned long long)s);
}
