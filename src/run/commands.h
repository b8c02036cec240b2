/* commands.h - what commands.c needs of the commands that change something; internal to src/run. */
#ifndef GFS_RUN_COMMANDS_H
#define GFS_RUN_COMMANDS_H

#include "run/supervisor.h"

struct command_def {
    const char *name;
    bool needs_world; /* waits while the run is starting or restarting */
    /* Carries it out, or begins to: finishes it now or later. */
    void (*execute)(struct supervisor *s, struct command *c);
    const char *expected; /* what its value is, for people */
};
const struct command_def *command_find(const char *name);

/* The syntax of a value, before anything else is looked at. 0, -EINVAL, -ERANGE. */
int command_check(const char *name, const char *value, struct err *err);

#endif
