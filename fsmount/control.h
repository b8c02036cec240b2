/* control.h - the files of control/: parsing what is written, and the requests that wait for an
 * answer.
 *
 * A command belongs to the supervisor, which knows each key it ever saw; here only the caller
 * waits. So a signal releases the caller and the command goes on, and a successor of this daemon
 * attaches the same request to the same command. */
#ifndef GFS_FSMOUNT_CONTROL_H
#define GFS_FSMOUNT_CONTROL_H

#include "base/knobs.h"
#include "fsmount/park.h"
#include "fsmount/status.h"
#include "wire/msg.h"

struct control;

/* The files of control/: commands first, then the live knobs in the order of their table. */
uint32_t control_file_count(void);
const char *control_file_name(uint32_t file);
/* -ENOENT. */
int control_file_find(const char *name);

/* One line "VALUE [id]" for a file, checked whole. Fills key (from the id, or from unique), name
 * and value of *out. -EINVAL syntax, -ERANGE value; err says what was expected. config: of the run,
 * to check a knob against. */
int control_parse(uint32_t file, const char *data, size_t len_bytes, const struct config *config,
                  uint64_t unique, struct msg_command *out, struct err *err);

/* Both are borrowed. 0 or -ENOMEM. */
int control_open(struct link *supervisor, struct status *status, struct control **out);
void control_close(struct control *c); /* answers all with EIO */

/* The current value, as it is read: newline-ended. */
struct text *control_file_text(const struct control *c, uint32_t file);

/* Sends the command, if none with its key waits already, and parks the request, which is answered
 * by control_done: with fuse_reply_write for size_bytes, or by `reply` if that is not NULL. Replies
 * itself when it can't be parked. */
void control_submit(struct control *c, fuse_req_t req, const struct msg_command *m,
                    size_t size_bytes,
                    void (*reply)(void *ctx, const struct park *p, const char *value), void *ctx,
                    uint64_t ino);
void control_done(struct control *c, const struct msg_command_done *m);

#endif
