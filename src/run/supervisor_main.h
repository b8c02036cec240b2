/* supervisor_main.h - what the command line needs of the supervisor. */
#ifndef GFS_RUN_SUPERVISOR_MAIN_H
#define GFS_RUN_SUPERVISOR_MAIN_H

#include "run/rundir.h"

/* Runs until the end; the exit code of the program. */
int supervisor_run(const struct request *q);

#endif
