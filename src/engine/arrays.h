/* arrays.h - the sharded arrays of this rank: memory, versions, locks, and the copies that are owed to readers.
 *
 * Two threads meet here. The main thread trains: it brackets every write. The service thread copies for takes. Whoever is about
 * to overwrite makes the outstanding copies first, so that training waits for a reader at most for one copy of what it overwrites.
 *
 *   params, exp_avg, exp_avg_sq of a unit: one lock, one version; locked for the time of the write.
 *   grads of a unit: invalid from the first write of a step until the last collective of its last microbatch. */
#ifndef GFS_ENGINE_ARRAYS_H
#define GFS_ENGINE_ARRAYS_H

#include "base/err.h"
#include "shard/layout.h"

struct arrays;

/* Memory of shards[a][unit]: shard_elems floats each (padding included), owned by the caller (the trainer), zeroed. */
int arrays_open(const struct layout *l, uint32_t rank, struct arrays **out, struct err *err);
void arrays_close(struct arrays *a);
void arrays_set_shard(struct arrays *a, enum array array, uint32_t unit, float *shard);
float *arrays_shard(const struct arrays *a, enum array array, uint32_t unit);

/* Main thread only. Params and moments of a unit: returns with the unit locked, all owed copies of it made. */
void arrays_state_begin(struct arrays *a, uint32_t unit);
void arrays_state_end(struct arrays *a, uint32_t unit, uint64_t gen, uint64_t step);
/* Gradients of a unit: before the first write of a step (owed copies are made, then it is invalid) ... */
void arrays_grads_begin(struct arrays *a, uint32_t unit);
/* ... after the last collective of the last microbatch: valid, made by the step that leads to (gen, step). */
void arrays_grads_end(struct arrays *a, uint32_t unit, uint64_t gen, uint64_t step);
/* After a restore and before the first step: no gradient is valid and none is under way. */
void arrays_grads_none(struct arrays *a);

#endif
