/* offline.h - `gatherfs mount`: the snapshots and the status of a run directory, with no training
 * at all. */
#ifndef GFS_RUN_OFFLINE_H
#define GFS_RUN_OFFLINE_H

/* argv[0] is the name of the command. Foreground until unmounted or signalled. The exit code. */
int offline_main(int argc, char **argv);

#endif
