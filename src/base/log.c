/* log.c - lines on stderr: time, level, component, text; one write(2) a line, so that lines of many
 * processes do not mix. */
#include "config.h"

#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char log_component[32] = "gatherfs";
static enum log_level log_limit = LEVEL_INFO;

void log_open(const char *component, enum log_level level) {
    snprintf(log_component, sizeof(log_component), "%s", component);
    log_limit = level;
}

void log_set_level(enum log_level level) { log_limit = level; }

static void __attribute__((format(printf, 2, 0)))
log_line(enum log_level level, const char *fmt, va_list ap) {
    static const char *const names[] = {"error", "warning", "info", "debug"};
    if (level > log_limit)
        return;
    int saved = errno;
    char line[1024];
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    size_t n = strftime(line, sizeof(line), "%Y-%m-%dT%H:%M:%S", &tm);
    n += (size_t)snprintf(line + n, sizeof(line) - n, ".%03ldZ %s: %s: ", now.tv_nsec / 1000000,
                          log_component, names[level]);
    int text = vsnprintf(line + n, sizeof(line) - n - 1, fmt, ap);
    if (text > 0)
        n += (size_t)text;
    if (n > sizeof(line) - 2)
        n = sizeof(line) - 2;
    /* Names and what peers say may hold any byte: an event stays one line. */
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = '?';
    line[n++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, n);
    (void)written; /* nowhere left to say it */
    errno = saved;
}

#define LOG_BODY(level)                                                                            \
    va_list ap;                                                                                    \
    va_start(ap, fmt);                                                                             \
    log_line(level, fmt, ap);                                                                      \
    va_end(ap)

void log_error(const char *fmt, ...) { LOG_BODY(LEVEL_ERROR); }
void log_warn(const char *fmt, ...) { LOG_BODY(LEVEL_WARN); }
void log_info(const char *fmt, ...) { LOG_BODY(LEVEL_INFO); }
void log_debug(const char *fmt, ...) { LOG_BODY(LEVEL_DEBUG); }
