/* cmdline.h - the options of `gatherfs run`, derived from the table of knobs; help and completion
 * from the same. */
#ifndef GFS_RUN_CMDLINE_H
#define GFS_RUN_CMDLINE_H

#include <stdio.h>

#include "run/rundir.h"

/* Fills a request from the arguments after `run`. -EINVAL for wrong usage, other errors for files
 * that can't be read. cmdline_free. */
int cmdline_run(int argc, char **argv, struct request *out, struct err *err);
void cmdline_free(struct request *q);

/* Options of `run`, by class, with defaults. */
void cmdline_help(FILE *out);
/* One long option a line, with dashes. */
void cmdline_list_options(FILE *out);
/* "; did you mean X?" or "" */
void cmdline_suggest(const char *word, const char *const *words, size_t count, char *out,
                     size_t cap_bytes);

#endif
