/* ranks.h - for tests of the doubles and of what runs on them: ranks as processes, each bounded in
 * time; a program that must end with a message; data to a device and back. */
#ifndef GFS_TESTS_CUDA_RANKS_H
#define GFS_TESTS_CUDA_RANKS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>

enum { RANKS_MOST = 4 };

/* How a rank ended. */
struct rank_end {
    int status;      /* of waitpid */
    bool late;       /* it was killed at the deadline */
    double seconds;  /* since its start */
    char text[4096]; /* of its stderr */
};
/* What a rank does: forked, it ends when body returns, with 0, or at a check that fails, with 1. */
typedef void rank_body(unsigned rank, void *arg);

/* Runs ranks 0 to count - 1 at once. */
void ranks_run(unsigned count, double within_s, rank_body *body, void *arg, struct rank_end *ends);
/* The same, and fails the cmocka test, with what they said, unless all ended with 0 in time. */
void ranks_must_pass(unsigned count, double within_s, rank_body *body, void *arg);
/* Runs them, and fails the test unless rank `dying` ended by abort() and said `text`. The others
 * may end as they like; they are killed a second later. */
void ranks_must_die(unsigned count, unsigned dying, rank_body *body, void *arg, const char *text);

/* In a rank: prints the place and ends it unless ok. */
void rank_check(bool ok, const char *what, const char *file, int line);
#define RANK_CHECK(ok) rank_check((ok), #ok, __FILE__, __LINE__)
/* The same, and says what text is. */
void rank_check_text(const char *text, const char *part, const char *file, int line);
#define RANK_CHECK_TEXT(text, part) rank_check_text((text), (part), __FILE__, __LINE__)
double rank_now(void); /* seconds, monotonic */

/* In a rank: so many emulated devices, of which it uses this one. */
void rank_devices(int count, int device);
cudaStream_t rank_stream(void);
/* Device memory; a copy of host memory in it; its content, after all of s. */
void *rank_alloc(size_t bytes);
void *rank_put(cudaStream_t s, const void *host, size_t bytes);
void rank_get(cudaStream_t s, const void *device, void *host, size_t bytes);

#endif
