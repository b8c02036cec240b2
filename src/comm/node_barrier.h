/* node_barrier.h - a barrier of processes in shared memory that sleeps when it takes long. */
#ifndef GFS_COMM_NODE_BARRIER_H
#define GFS_COMM_NODE_BARRIER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* All zero at first. Each word in a cache line of its own: who spins does not slow who arrives. */
struct node_barrier {
    _Alignas(64) _Atomic uint32_t arrived;
    _Alignas(64) _Atomic uint32_t round; /* the futex */
    _Alignas(64) _Atomic uint32_t sleepers;
};

/* Whether a rank may spin for a moment: with fewer cores than ranks it would keep a peer from
 * arriving. */
bool node_barrier_may_spin(uint32_t rank_count);

/* Returns when all ranks have called it; what they wrote before is seen after. */
void node_barrier_wait(struct node_barrier *b, uint32_t rank_count, bool may_spin);

#endif
