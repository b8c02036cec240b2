/* ckpt.h - `gatherfs ckpt`: the snapshots of a run directory, with no mount and no training. */
#ifndef GFS_STORE_CKPT_H
#define GFS_STORE_CKPT_H

/* argv[0] is the name of the command, then list|verify|rm RUN_DIR [NAME...]. Returns the exit
 * status: 0, 1 when something failed or is damaged, 2 when the command line is wrong. Output goes
 * to stdout, errors and progress to stderr. */
int ckpt_main(int argc, char **argv);

#endif
