/* progress.c - lines on standard output. */
#include "config.h"

#include "run/progress.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/file.h"
#include "base/parse.h"
#include "run/loop.h"

enum { PROGRESS_LINE_BYTES = 512, PROGRESS_INTERVAL_NS = 100000000 };

void progress_open(struct progress *p) {
    const char *no_colour = getenv("NO_COLOR"), *term = getenv("TERM");
    *p = (struct progress){.is_terminal =
                               isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0};
    p->has_colour = p->is_terminal && !(no_colour && *no_colour);
}

/* One write a line; a terminal that went away is no error of the run. */
static void put(const char *text, size_t len_bytes) {
    file_write_all(STDOUT_FILENO, text, len_bytes);
}

static void wipe(struct progress *p) {
    if (p->has_line)
        put("\r\033[K", 4);
    p->has_line = false;
}

void progress_say(struct progress *p, const char *fmt, ...) {
    char line[2048];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line - 1, fmt, ap);
    va_end(ap);
    if (n < 0)
        return;
    size_t len = (size_t)n < sizeof line - 1 ? (size_t)n : sizeof line - 2;
    line[len++] = '\n';
    wipe(p);
    put(line, len);
}

/* The text of a line of progress, without line end. */
static int progress_format(const struct progress_values *v, char *out, unsigned cap_bytes) {
    char loss[32] = "", speed[48] = "", mfu[32] = "", eta[48] = "", seconds[32];
    if (!isnan(v->loss))
        snprintf(loss, sizeof loss, "  loss %.4f", v->loss);
    if (!isnan(v->tokens_per_second))
        snprintf(speed, sizeof speed, "  %.0f tokens/s", v->tokens_per_second);
    if (!isnan(v->mfu))
        snprintf(mfu, sizeof mfu, "  MFU %.3g%%", v->mfu * 100);
    if (!isnan(v->eta_seconds)) {
        parse_format_seconds(v->eta_seconds, seconds, sizeof seconds);
        snprintf(eta, sizeof eta, "  %s left", seconds);
    }
    return snprintf(out, cap_bytes, "%-10s step %" PRIu64 "/%" PRIu64 "%s%s%s%s%s%s", v->state,
                    v->step, v->target, loss, speed, mfu, eta, *v->note ? "  " : "", v->note);
}

void progress_show(struct progress *p, const struct progress_values *v, bool now) {
    char text[PROGRESS_LINE_BYTES], line[PROGRESS_LINE_BYTES + 32];
    struct winsize size;
    uint64_t time = loop_now_ns();
    /* Behind a shell the line would be drawn over what is being typed. */
    bool is_foreground = p->is_terminal && tcgetpgrp(STDOUT_FILENO) == getpgrp();
    if (!is_foreground || (!now && time - p->last_ns < PROGRESS_INTERVAL_NS))
        return;
    p->last_ns = time;
    progress_format(v, text, sizeof text);
    int width =
        ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : 79;
    int n = p->has_colour ? snprintf(line, sizeof line, "\r\033[K\033[1m%.10s\033[0m%.*s", text,
                                     width > 10 ? width - 10 : 0, text + 10)
                          : snprintf(line, sizeof line, "\r\033[K%.*s", width, text);
    put(line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
    p->has_line = true;
}

void progress_print(struct progress *p, const struct progress_values *v) {
    char text[PROGRESS_LINE_BYTES];
    progress_format(v, text, sizeof text);
    progress_say(p, "%s", text);
}

void progress_close(struct progress *p) {
    if (p->has_line)
        put("\n", 1);
    p->has_line = false;
}
