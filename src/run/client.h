/* client.h - the commands that talk to a running supervisor from another process. */
#ifndef GFS_RUN_CLIENT_H
#define GFS_RUN_CLIENT_H

/* `gatherfs stop`, `gatherfs status`, `gatherfs command`: the exit code. */
int client_stop_main(int argc, char **argv);
int client_status_main(int argc, char **argv);
int client_command_main(int argc, char **argv);

#endif
