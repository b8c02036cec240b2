/* schedule.c - shares of the batch, learning rate, clipping. */
#include "config.h"

#include "engine/schedule.h"

#include <math.h>

#include "engine/trainer.h"

static uint64_t div_up(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

static uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }

struct batch_share batch_share_of(uint64_t global_batch, uint64_t seq_len, uint64_t micro_batch,
                                  uint64_t micro_tokens, uint32_t rank, uint32_t world_size) {
    uint64_t base = global_batch / world_size, extra = global_batch % world_size;
    uint64_t largest = div_up(global_batch, world_size);
    uint64_t cap = micro_batch;
    if (cap == 0)
        cap = seq_len < micro_tokens ? micro_tokens / seq_len : 1;
    uint64_t micro_count = div_up(largest, min_u64(cap, largest));
    return (struct batch_share){
        .first = rank * base + min_u64(rank, extra),
        .count = base + (rank < extra ? 1 : 0),
        .micro = micro_batch == 0 ? div_up(largest, micro_count) : min_u64(cap, largest),
        .micro_count = micro_count,
    };
}

uint64_t batch_micro_count(const struct batch_share *s, uint64_t m) {
    uint64_t before = m * s->micro;
    return before >= s->count ? 0 : min_u64(s->micro, s->count - before);
}

double clip_factor_of(double norm, double clip) {
    return clip > 0 && norm > clip ? clip / (norm + 1e-6) : 1;
}

double trainer_lr(const struct config *c, const struct config *live, uint64_t step) {
    uint64_t end = c->schedule_steps != 0 ? c->schedule_steps : c->steps;
    if (step < c->warmup_steps)
        return live->lr * ((double)step + 1) / (double)c->warmup_steps;
    if (end <= c->warmup_steps)
        return live->lr;
    double progress = (double)(step - c->warmup_steps) / (double)(end - c->warmup_steps);
    if (progress > 1)
        progress = 1;
    double cosine = 0.5 * (1 + cos(3.14159265358979323846 * progress));
    return live->lr * (live->min_lr_fraction + (1 - live->min_lr_fraction) * cosine);
}
