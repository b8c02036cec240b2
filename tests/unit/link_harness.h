/* link_harness.h - two links, or a link and a raw socket, at the ends of a socket pair. */
#ifndef GFS_TESTS_UNIT_LINK_HARNESS_H
#define GFS_TESTS_UNIT_LINK_HARNESS_H

#include <stddef.h>
#include <stdint.h>

#include "wire/link.h"

enum { HARNESS_HEADER_BYTES = 16 };

/* Two links that talk to each other. */
void harness_pair(size_t outbox_bytes, struct link **a, struct link **b);
/* A link and a socket (non-blocking) that says to it what the test wants. */
void harness_raw(size_t outbox_bytes, struct link **link, int *fd);

/* The header of a frame, written down a second time. */
void harness_header(uint8_t *h, unsigned version, unsigned fd_count, unsigned type, uint32_t len,
                    uint64_t id);
/* Writes all, with descriptors at the first byte; the socket must have room. */
void harness_write(int fd, const void *data, size_t len_bytes, const int *fds, uint32_t fd_count);
/* Writes a frame without payload. */
void harness_write_frame(int fd, unsigned type, const int *fds, uint32_t fd_count);

/* Flushes `from` and reads from `to` until there is a frame, at most ten seconds. 1 and the frame,
 * or the first error. `from` may be NULL. */
int harness_receive(struct link *from, struct link *to, struct frame *out);

/* A descriptor that says who it is: its offset is the number. */
int harness_fd_make(uint64_t number);
uint64_t harness_fd_number(int fd);

#endif
