/* schedule.h - arithmetic of a step: who computes which sequences, and the clip factor. */
#ifndef GFS_ENGINE_SCHEDULE_H
#define GFS_ENGINE_SCHEDULE_H

#include <stdint.h>

/* The sequences of a global batch that a rank computes, and in how many microbatches. */
struct batch_share {
    uint64_t first, count; /* of this rank; contiguous */
    uint64_t micro;        /* sequences a microbatch; the last ones may have fewer, or none */
    uint64_t micro_count;  /* the same on all ranks */
};

/* Tokens of a microbatch that is chosen: enough to keep a processor busy, and a GPU. */
enum { MICRO_TOKENS = 1024, MICRO_TOKENS_GPU = 8192 };

/* micro_batch 0: chosen so that a rank's share fits in few equal microbatches of at most
 * micro_tokens tokens (or one sequence). */
struct batch_share batch_share_of(uint64_t global_batch, uint64_t seq_len, uint64_t micro_batch,
                                  uint64_t micro_tokens, uint32_t rank, uint32_t world_size);
/* Sequences of microbatch m on this rank. */
uint64_t batch_micro_count(const struct batch_share *s, uint64_t m);

/* Factor on gradients of this norm: 1 when clip is 0 or the norm is below it. */
double clip_factor_of(double norm, double clip);

#endif
