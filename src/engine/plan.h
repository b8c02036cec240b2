/* plan.h - what a run would need: units and bytes a rank, for any model and world size, with
 * nothing allocated. */
#ifndef GFS_ENGINE_PLAN_H
#define GFS_ENGINE_PLAN_H

/* argv: options as of `gatherfs run` (--model, --ranks, --wrap, --set ...). Prints to stdout; the
 * exit status. */
int plan_main(int argc, char **argv);

#endif
