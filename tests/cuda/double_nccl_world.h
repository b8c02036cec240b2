/* double_nccl_world.h - what the ranks of a doubled NCCL share: a place for each rank, and the
 * exchange of data by way of it.
 *
 * The memory is a memfd of the process that made the id, which others open through /proc: nothing
 * is left behind, however a test ends. */
#ifndef GFS_TESTS_CUDA_DOUBLE_NCCL_WORLD_H
#define GFS_TESTS_CUDA_DOUBLE_NCCL_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WORLD_ID_BYTES = 128, WORLD_RANKS = 16 };

struct world;

/* 0 or -errno. */
int world_make(char id[WORLD_ID_BYTES]);
/* Opens the world without taking part yet. NULL: its maker is gone. emu_die where the id was never
 * one, or another rank says another rank_count. */
struct world *world_open(const char *call, const char id[WORLD_ID_BYTES], int rank, int rank_count);
void world_close(struct world *w);
/* Takes the place of its rank. emu_die if it is taken. */
void world_join(const char *call, struct world *w, int device);
/* Whether all ranks have come. */
bool world_complete(struct world *w);
/* Another rank on the same device, -1: none. The world is complete. */
int world_twin(const struct world *w);

enum exchange_kind { EXCHANGE_GATHER, EXCHANGE_REDUCE };
struct exchange {
    struct world *world;
    enum exchange_kind kind;
    bool bf16;       /* else f32 */
    uint64_t number; /* of the communicator's collectives */
    size_t elems;    /* of a rank's part */
    const void *send;
    void *recv;
    size_t done; /* elements of a part, 0 at the start */
    bool sent;   /* this rank's share of the next round, false at the start */
};
/* Goes on as far as the peers allow; true when all is done. emu_die where ranks do not agree. The
 * exchanges of a world come one after the other. */
bool exchange_step(struct exchange *x);

#endif
