/* gpu_check_rig.h - a training run of the check: GPT-2 of some shape on synthetic data, on one or
 * more ranks, without readers unless a test adds one. */
#ifndef GFS_TESTS_CUDA_GPU_CHECK_RIG_H
#define GFS_TESTS_CUDA_GPU_CHECK_RIG_H

#include "engine/trainer.h"
#include "model/gpt2.h"
#include "shard/layout.h"
#include "tests/cuda/gpu_check.h"

/* What a run is. */
struct run_spec {
    const struct device_ops *ops;
    uint32_t ranks;
    bool one_gpu;     /* all ranks on the first GPU */
    const char *comm; /* as the knob */
    struct gpt2_shape shape;
    uint64_t seq_len, global_batch, micro_batch, steps;
    enum dtype dtype, reduce_dtype;
    bool tensor_cores;
    char offload[1024]; /* as the knob; "": none */
    double comm_timeout, lr;
    uint32_t threads; /* of the CPU */
};

/* A spec for the tests: small, uneven, of 10 steps. */
struct run_spec run_spec_of(const struct check_options *o, const struct device_ops *ops,
                            enum dtype t);
struct gpt2_shape run_shape_124m(void);

/* What can be known of a run without a device. */
struct rig_shape {
    struct model *model;
    struct layout layout;
};
/* rig_shape_close after a failure too. */
int rig_shape_open(struct rig_shape *s, const struct run_spec *spec, struct err *err);
void rig_shape_close(struct rig_shape *s);

struct rig {
    const struct run_spec *spec;
    struct config config;
    uint32_t rank;
    struct rig_shape shape;
    struct data *data;
    struct arrays *arrays;
    struct trainer *trainer;
};

/* In a rank, or in a process that has forked no ranks. A collective. rig_close for whatever was
 * opened, after a failure too. */
int rig_open(struct rig *r, const struct run_spec *spec, uint32_t rank, struct err *err);
void rig_close(struct rig *r);
/* trainer_init and the barrier behind it. */
int rig_init(struct rig *r, struct err *err);
/* trainer_step and the barrier behind it. */
int rig_step(struct rig *r, uint64_t step, struct step_result *out, struct err *err);
/* [lo, hi) of this rank's shard, as a reader gets it. Nobody else may be reading. */
int rig_read(struct rig *r, enum array a, uint32_t unit, uint64_t lo, uint64_t hi, float *dst);

enum { RUN_MAX_STEPS = 1024 };
/* What a run came to; in memory shared with the ranks. */
struct run_result {
    double losses[RUN_MAX_STEPS], norms[RUN_MAX_STEPS];
    uint64_t numel;
    float
        arrays[]; /* [ARRAY_COUNT][numel]: the tensors in the model's order, after the last step */
};
/* The whole run, in processes of its own. *out is shared memory, and stays. */
int run_train(const struct run_spec *spec, double seconds, struct run_result **out,
              struct err *err);

/* gpu_check_data.c: sequences of a language that can be learnt a little; by the seed alone. */
struct data *run_data_open(uint64_t seq_len, uint64_t vocab, uint64_t seed);
void run_data_close(struct data *d);

#endif
