/* Breadth-first exploration of all states a scenario can reach. */
#ifndef TAKES_MODEL_EXPLORE_H
#define TAKES_MODEL_EXPLORE_H

#include "model.h"

#include <stdint.h>

struct explore_result {
    uint32_t states;
    uint64_t edges;
    uint32_t depth;
};

enum explore_end { EXPLORE_HOLDS, EXPLORE_VIOLATED, EXPLORE_STOPPED, EXPLORE_NOMEM };

/* Explores from first, at most max_states states. A violation is printed with the shortest sequence
 * of moves that leads to it; m->violation says what it is. */
enum explore_end explore_run(struct model *m, const struct state *first, uint32_t max_states,
                             struct explore_result *out);

#endif
