/* output.h - the lines that children write: kept in RUN_DIR/log, warnings and errors shown. */
#ifndef GFS_RUN_OUTPUT_H
#define GFS_RUN_OUTPUT_H

#include <stdbool.h>

#include "run/loop.h"

struct output;

/* Gets each line of level warning or error, and each line that is not from our own log (of a
 * launcher, a library): then is_ours is false. */
typedef void output_line_fn(void *arg, const char *line, bool is_ours);

/* Lines go to RUN_DIR/log/NAME.log, those of `rank R` to log/rank-R.log. *child_fd: for the child's
 * stdout and stderr; the caller closes it after the child has started. The output closes itself at
 * the pipe's end when no longer held. */
int output_open(struct loop *l, const char *run_dir, const char *name, output_line_fn *on_line,
                void *arg, struct output **out, int *child_fd);
/* What was written last, then the end. */
void output_close(struct output *o);

#endif
