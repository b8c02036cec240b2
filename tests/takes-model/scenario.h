/* What the environment of the protocol may do in one exploration. */
#ifndef TAKES_MODEL_SCENARIO_H
#define TAKES_MODEL_SCENARIO_H

#include <stdbool.h>

/* What a client can open. TAIL: a range of which rank 0 owns nothing. */
enum what { WHAT_P0, WHAT_P1, WHAT_P0_TAIL, WHAT_G0, WHAT_G0_TAIL, WHAT_PIN, WHATS };

enum cmd_kind { CMD_NONE, CMD_EDIT, CMD_RESTORE };

struct scenario {
    const char *name;
    const char *text;
    unsigned whats; /* bit of each enum what that may be opened */
    enum cmd_kind cmd[2];
    bool trains;      /* the goal is all steps from the start; else the client raises it */
    int steps, takes; /* steps: of ranks 2; takes: in all, pins among them */
    int steps_wide, takes_wide; /* with 3 ranks; 0: not part of the run with 3 ranks */
    int daemon_deaths, world_deaths, links, order_links, nomem;
};

extern const struct scenario scenarios[];
extern const int scenario_count;
extern const struct scenario scenarios_full[];
extern const int scenario_full_count;

#endif
