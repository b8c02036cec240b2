/* gpu_check_data.c - synthetic training data in the place of engine/data.c, of which the trainer
 * only calls data_sequence.
 *
 * A language with something to learn: three of four tokens are of the first 32 and follow from the
 * one before, the rest are drawn at random, low ids more often than high ones. */
#include "config.h"

#include <stdlib.h>

#include "engine/data.h"
#include "tests/cuda/gpu_check_rig.h"

enum { COMMON = 32 };

struct data {
    uint64_t seq_len, vocab, seed;
};

struct data *run_data_open(uint64_t seq_len, uint64_t vocab, uint64_t seed) {
    struct data *d = malloc(sizeof *d);
    if (d != NULL)
        *d = (struct data){.seq_len = seq_len, .vocab = vocab, .seed = seed};
    return d;
}

void run_data_close(struct data *d) { free(d); }

static int32_t next_token(const struct data *d, int32_t token, uint64_t *state) {
    uint64_t draw = check_random(state);
    if (draw % 4 != 0)
        return (int32_t)(((uint64_t)token * 5 + 7) % COMMON);
    double u = (double)(draw >> 11) * 0x1p-53;
    return (int32_t)(u * u * (double)d->vocab);
}

int data_sequence(const struct data *d, uint64_t index, int32_t *tokens, int32_t *targets,
                  struct err *err) {
    (void)err;
    uint64_t state = d->seed * 0x9e3779b97f4a7c15u + index;
    int32_t token = (int32_t)(check_random(&state) % d->vocab);
    for (uint64_t i = 0; i < d->seq_len; i++) {
        tokens[i] = token;
        token = next_token(d, token, &state);
        targets[i] = token;
    }
    return 0;
}
