/* store_fixture.h - a run directory of its own for each test, and small snapshots in it. */
#ifndef GFS_TESTS_STORE_FIXTURE_H
#define GFS_TESTS_STORE_FIXTURE_H

#include "shard/layout.h"
#include "store/io.h"
#include "store/snapshot.h"

#define FIXTURE_STATE "{ \"lr\":0.10,\"rng\":{\"seed\":18446744073709551615,\"a\":[]}}"
#define FIXTURE_CONFIG "{\"model_type\": \"gpt2\",\n \"layer_norm_epsilon\": 1e-05}\n"

/* A fresh directory of mode 0700 below `parent` (NULL: TMPDIR or /tmp); ends the test program when
 * that fails. */
void fixture_dir_make(const char *parent, char *out, size_t cap_bytes);
void fixture_dir_remove(const char *dir);

/* Five tensors in three units: root (two, apart), a block, a block with an empty tensor. */
int fixture_layout(uint32_t world_size, uint32_t align_elems, struct layout *out);
/* Element k of a tensor. */
float fixture_value(enum array a, uint32_t tensor, uint64_t k);
/* The dump of a rank (caller frees); NULL without memory. */
uint8_t *fixture_dump(const struct layout *l, uint32_t array_mask, uint32_t rank);

struct snapshot_info fixture_info(const struct layout *l, const char *name, uint64_t epoch,
                                  uint64_t gen, uint32_t array_mask);
/* All of a snapshot but the abandoning after a failure. */
int fixture_begin_and_write(const struct store_io *io, const char *run_dir, const struct layout *l,
                            const struct snapshot_info *info, char **entries, struct err *err);
int fixture_snapshot(const struct store_io *io, const char *run_dir, const struct layout *l,
                     const struct snapshot_info *info, struct err *err);
void fixture_entries_free(char **entries, uint32_t count);

#endif
