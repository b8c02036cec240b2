/* client.h - talking to a running supervisor from another process: stop, status, any command. */
#ifndef GFS_RUN_CLIENT_H
#define GFS_RUN_CLIENT_H

#include "base/err.h"
#include "wire/msg.h"

struct client;

/* dir_or_mount: a run directory, or the mountpoint of a run whose directory is beside it (MNT.run)
 * or stands in its status. -ENOENT, -ECONNREFUSED when nobody runs it. */
int client_open(const char *dir_or_mount, struct client **out, struct err *err);
void client_close(struct client *c);
const char *client_run_dir(const struct client *c);
int client_ask(struct client *c, struct err *err); /* for the status of now */
/* The status that the supervisor said when asked last, or at the start; its config is not kept. */
const struct msg_status *client_status(const struct client *c);
/* One command; waits for its result at most timeout_ms (-1: for ever). id may be NULL. Returns
 * -errno of the command. */
int client_command(struct client *c, const char *name, const char *value, const char *id,
                   int timeout_ms, struct err *err);
/* Waits until the supervisor is gone. -ETIMEDOUT. */
int client_wait_end(struct client *c, int timeout_ms);

/* `gatherfs stop`, `gatherfs status`, `gatherfs command`: the exit code. */
int client_stop_main(int argc, char **argv);
int client_status_main(int argc, char **argv);
int client_command_main(int argc, char **argv);

#endif
