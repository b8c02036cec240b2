/* fixture.h - what tests of files and descriptors share: a directory of their own, a count of open
 * descriptors, numbers that repeat. */
#ifndef GFS_TESTS_UNIT_FIXTURE_H
#define GFS_TESTS_UNIT_FIXTURE_H

#include <stdint.h>

/* Setup and teardown of a test: *state is the path of a fresh directory, without links in it; it is
 * removed with all it holds. */
int fixture_dir_make(void **state);
int fixture_dir_remove(void **state);

/* Open descriptors of this process. */
int fixture_fd_count(void);

/* The next of a sequence that *seed, not 0, determines. */
uint64_t fixture_random(uint64_t *seed);

#endif
