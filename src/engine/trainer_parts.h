/* trainer_parts.h - what the files of the trainer share; for them only.
 *
 * Three streams. COMPUTE runs modules and the optimizer, GATHER brings units, REDUCE takes
 * gradients away. What must be over before what is said by marks: an event and whether it was ever
 * recorded.
 *
 *   gathered[slot]   GATHER  -> COMPUTE   the unit may be read
 *   released[slot]   COMPUTE -> GATHER    the unit is no longer read
 *   ready[slot]      COMPUTE -> REDUCE    the gradients of a unit are whole
 *   reduced[slot]    REDUCE  -> COMPUTE   their buffer may be written again
 *   updated          COMPUTE -> GATHER, REDUCE    shards are of the next step, gradients were read
 *   applied[2]       COMPUTE -> host              a unit is updated: readers may have it
 */
#ifndef GFS_ENGINE_TRAINER_PARTS_H
#define GFS_ENGINE_TRAINER_PARTS_H

#include "engine/offload.h"
#include "engine/schedule.h"
#include "engine/stage.h"
#include "engine/trainer.h"

struct mark {
    struct dev_event *event;
    bool set;
};

/* The root has slot 0; the other units take turns in 1 and 2. */
enum { SLOT_ROOT, SLOT_FIRST_OTHER, SLOT_COUNT = COMM_GRAD_SLOTS };
enum { UNIT_NONE = UINT32_MAX };

struct gather_slot {
    uint32_t unit;    /* UNIT_NONE: empty */
    void *buffer;     /* NULL where the communicator gives views */
    const void *view; /* the gathered unit, of t->dtype */
    struct mark gathered, released;
};

struct grad_slot {
    void *full; /* this rank's gradients of a whole unit, of t->grad_dtype */
    struct mark ready, reduced;
};

/* Consecutive modules of one unit. */
struct visit {
    uint32_t unit, first_module, module_count;
};

/* Consecutive elements of this rank's shard of a unit to which weight decay applies, or does not.
 */
struct decay_run {
    uint32_t unit;
    uint64_t first, elems;
    bool decay;
};

struct trainer_block {
    void *p;
    size_t bytes;
    enum dev_memory kind;
    const char *what;
};
enum { TRAINER_MAX_BLOCKS = 24, TRAINER_APPLIED = 2 };

struct trainer {
    struct config config;
    struct model *model;
    const struct layout *layout;
    uint32_t rank, world_size;
    const struct device_ops *ops;
    struct device *dev;
    const struct comm_ops *comm_ops;
    struct comm *comm;
    struct data *data;
    struct arrays *arrays;
    _Atomic uint32_t *phase;
    _Atomic uint64_t *micro;

    enum dtype dtype, grad_dtype; /* of gathered units and activations; of their gradients */
    struct dev_stream *streams[DEV_STREAM_COUNT]; /* TAKE is not used here */
    struct mark updated, computed, normed, applied[TRAINER_APPLIED];
    struct offload *offload; /* NULL: all state rests in device memory */
    struct stage *stage;     /* of readers' copies; NULL where the host reads the device's memory */
    struct trainer_block blocks[TRAINER_MAX_BLOCKS]; /* of device memory, freed at close */
    uint32_t block_count;

    uint32_t unit_count;
    /* By unit: this rank's shard as it is gathered. Where dtype is f32 the master itself, else a
     * copy that the optimizer keeps up to date. */
    void **gather_shards;
    uint64_t copied_gen; /* of the state that those copies were made of, 0: none */
    struct gather_slot gathers[SLOT_COUNT];
    struct grad_slot grads[SLOT_COUNT];
    uint32_t next_grad_slot;

    struct visit *visits;
    uint32_t visit_count;
    struct decay_run *runs; /* ascending by unit and first */
    uint32_t run_count;

    uint64_t seq_len; /* T */
    struct batch_share share;
    int32_t *host_tokens, *host_targets; /* (share.count, T) */
    int32_t *tokens, *targets;           /* the same in device memory */
    double *losses;                      /* by microbatch, host memory */
    double *squares;                     /* by unit, host memory */
    void *arena;

    bool *touched;       /* by tensor: its gradient was written in this microbatch */
    const void **params; /* arguments of one module */
    void **param_grads;
    bool *accumulate;

    const char *doing; /* for the sentence of a failure */
    const char *doing_what;
};

/* trainer.c */
int mark_record(struct trainer *t, enum dev_stream_kind stream, struct mark *m);
int mark_wait(struct trainer *t, enum dev_stream_kind stream, const struct mark *m);
int mark_synchronize(struct trainer *t, const struct mark *m);
/* Notes what is going on ... */
void trainer_doing(struct trainer *t, const char *doing, const char *what);
/* ... and makes the sentence for its failure, with what the device says. Returns rc. */
int trainer_failed(struct trainer *t, int rc, struct err *err);

/* trainer_memory.c: all that trainer_open allocates. */
int trainer_memory_open(struct trainer *t, struct err *err);
void trainer_memory_close(struct trainer *t);

/* trainer_units.c: the way of units and gradients through a microbatch. */
int units_gather(struct trainer *t, uint32_t unit);  /* brings it, unless it is there */
int units_use(struct trainer *t, uint32_t unit);     /* COMPUTE waits until it is there */
int units_release(struct trainer *t, uint32_t unit); /* COMPUTE no longer reads it */
const void *units_view(const struct trainer *t, uint32_t unit);
/* The shards are those of gen: forgets what was gathered, and makes the copies that are gathered
 * where the optimizer did not. */
int units_refresh(struct trainer *t, uint64_t gen);
int grads_begin(struct trainer *t, uint32_t unit, bool empty, uint32_t *slot);
int grads_reduce(struct trainer *t, uint32_t unit, uint32_t slot, bool first_micro);

/* trainer_state.c: a unit's params and moments, wherever they rest. */
int state_open(struct trainer *t, struct err *err);
bool state_is_offloaded(const struct trainer *t, enum array a);
int state_fetch(struct trainer *t, uint32_t unit); /* begins to bring it, if it must be brought */
/* COMPUTE may work on shards[a] from now on. */
int state_enter(struct trainer *t, uint32_t unit, float *shards[ARRAY_COUNT]);
int state_leave(struct trainer *t, uint32_t unit, bool written);
int state_settle(struct trainer *t, uint32_t unit); /* the host waits: it is where it rests */

/* trainer_optimizer.c */
int optimizer_plan(struct trainer *t, struct err *err);
int optimizer_norm(struct trainer *t);
int optimizer_update(struct trainer *t, uint64_t step, uint64_t gen, const struct config *live,
                     const struct step_result *r);

#endif
