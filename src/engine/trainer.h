/* trainer.h - one step of sharded training: gather, forward, backward, reduce, clip, update. Knows
 * nothing of readers, agenda or supervisor: it brackets its writes with arrays.h and reports its
 * phase through two atomics. */
#ifndef GFS_ENGINE_TRAINER_H
#define GFS_ENGINE_TRAINER_H

#include <stdatomic.h>

#include "base/knobs.h"
#include "comm/comm.h"
#include "device/device.h"
#include "engine/arrays.h"
#include "engine/data.h"
#include "model/model.h"
#include "shard/layout.h"

struct trainer;

struct trainer_args {
    const struct config *config; /* copied; fixed and resume knobs */
    struct model *model;         /* borrowed */
    const struct layout *layout; /* borrowed */
    uint32_t rank, world_size;
    uint32_t local_rank, local_size; /* among the ranks of this host; size 0 is 1 */
    const struct device_ops *ops;    /* opened by the trainer */
    const struct comm_ops *comm;     /* NULL: as the config says */
    struct data *data;               /* borrowed; opened with the sequence length of the config */
    struct arrays *arrays;           /* borrowed; the trainer allocates the shards and sets them */
    _Atomic uint32_t *phase;         /* enum rank_phase (wire/msg.h), may be NULL */
    _Atomic uint64_t *micro;         /* microbatches done in this step, may be NULL */
};

struct step_result {
    double loss;      /* mean over the tokens of the global batch, before the update */
    double grad_norm; /* before clipping */
    double clip_factor, lr;
    uint64_t tokens;
    bool skipped; /* non-finite gradient norm: parameters untouched; the step still counts */
};

/* All memory that training needs is allocated here. A collective. */
int trainer_open(const struct trainer_args *args, struct trainer **out, struct err *err);
/* Nobody may use the arrays any more. */
void trainer_close(struct trainer *t);
/* For agenda and barrier; borrowed. */
struct comm *trainer_comm(struct trainer *t);
const struct comm_ops *trainer_comm_ops(const struct trainer *t);
struct device *trainer_device(struct trainer *t);
enum dtype trainer_dtype(const struct trainer *t); /* of gathered units and activations */
/* Tells of each block of the trainer, its communicator, its offload and the stage of takes. */
void trainer_memory(const struct trainer *t, dev_memory_fn *tell, void *ctx);
/* What a microbatch on this rank is, for people: sequences, tokens each, microbatches a step. */
void trainer_microbatch(const struct trainer *t, uint64_t *sequences, uint64_t *seq_len,
                        uint64_t *micro_count);

/* Writes the initial parameters (shard by shard, counter-based, independent of the sharding) and
 * zero moments at (gen, step 0). The caller puts a barrier between this, or a restore, and the
 * first step. */
int trainer_init(struct trainer *t, uint64_t gen, struct err *err);
/* Executes step `step` (0-based: the step that leads from `step` to step + 1) and writes arrays at
 * (gen, step + 1); a skipped step writes gradients only. live: the live knobs in force. Collective:
 * every rank calls it with equal arguments, and the caller puts a barrier between two steps. */
int trainer_step(struct trainer *t, uint64_t step, uint64_t gen, const struct config *live,
                 struct step_result *out, struct err *err);
/* Learning rate of the step that leads to step + 1: linear warm-up, then cosine to min_lr_fraction
 * * lr at schedule_steps (0: steps). */
double trainer_lr(const struct config *c, const struct config *live, uint64_t step);

#endif
