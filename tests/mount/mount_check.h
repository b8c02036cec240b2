/* mount_check.h - TAP lines, shell commands with a deadline, and the comparison of a file with what
 * its version holds. */
#ifndef GFS_TESTS_MOUNT_CHECK_H
#define GFS_TESTS_MOUNT_CHECK_H

#include <stdbool.h>

#include "fake_world.h"

/* After this many seconds the test unmounts, kills its daemon, prints what it was doing and ends.
 */
void check_begin(struct fake_world *f, unsigned deadline_seconds);
/* "1..N"; the exit status. */
int check_end(void);

/* One TAP line. */
bool check(bool is, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* A case that can't be had here. */
void check_skip(const char *what, const char *why);
bool check_have(const char *program);
/* For a forked process of one thread: a signal comes in 0.3 s, and ends what it waits in. */
void check_signal_soon(void);

/* Runs a script in bash in a new process group with a deadline of 30 s; $M is the mount, $T an
 * empty directory, $R the run directory; `not COMMAND` succeeds when the command fails. Its output
 * is shown when it fails. Returns the exit status. */
int shell(const struct fake_world *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

struct version {
    uint64_t epoch, gen, step;
};
/* user.version and user.step of an open file; -errno. */
int check_version(int fd, struct version *out);
/* Reads `bytes` at offset of a file of an array and tensor and compares them: raw, no header.
 * -errno of the read, -EBADMSG when they differ. */
int check_range(const struct fake_world *f, int fd, uint32_t array, const char *tensor, bool npy,
                const struct version *v, uint64_t first_elem, uint64_t count);
/* A whole file, opened below the mount. -errno; -EBADMSG: a wrong byte or size. */
int check_file(const struct fake_world *f, const char *path, uint32_t array, const char *tensor,
               bool npy, struct version *out);

int open_at(const struct fake_world *f, int flags, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* open and write and close; 0 or -errno of the write. */
int write_at(const struct fake_world *f, const char *path, const char *line);
/* The content of a small file, newline cut off; "" when it can't be read. Static storage. */
const char *read_at(const struct fake_world *f, const char *path);
double seconds_now(void);

#endif
