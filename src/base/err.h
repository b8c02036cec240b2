/* err.h - an errno with the sentence that goes with it: what was wrong, where, what to do. */
#ifndef GFS_BASE_ERR_H
#define GFS_BASE_ERR_H

enum { ERR_TEXT_BYTES = 512 };

struct err {
    int code; /* positive errno, 0 while nothing failed */
    char text[ERR_TEXT_BYTES];
};

/* Fills *err (which may be NULL) and returns -code. The first cause wins: a filled err is kept. */
int err_set(struct err *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Puts "PREFIX: " before the text of a filled err; returns -err->code. */
int err_prefix(struct err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Makes one line of UTF-8 of a text that may quote what a user or a damaged file holds: control
 * bytes and bytes that are no UTF-8 become '?'. In place. */
void err_clean(char *text);

/* "ENOBUFS" for 105 and so on; "E?" for a number without a name. Static storage. */
const char *err_name(int code);

#endif
