/* node_barrier.c - arrive, spin a little, sleep on a futex. */
#include "config.h"

#include "comm/node_barrier.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

/* About 20 to 50 us: what a sleep and a wake-up would cost. */
enum { SPIN_PAUSES = 1000 };

#if defined(__x86_64__) || defined(__i386__)
static void spin_pause(void) { __builtin_ia32_pause(); }
#else
static void spin_pause(void) { atomic_signal_fence(memory_order_seq_cst); }
#endif

bool node_barrier_may_spin(uint32_t rank_count) {
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof cores, &cores) != 0)
        return false;
    return (uint32_t)CPU_COUNT(&cores) >= rank_count;
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen) {
    (void)syscall(SYS_futex, word, FUTEX_WAIT, seen, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word) {
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void node_barrier_wait(struct node_barrier *b, uint32_t rank_count, bool may_spin) {
    uint32_t round = atomic_load(&b->round);
    if (atomic_fetch_add(&b->arrived, 1) + 1 == rank_count) {
        /* Nobody arrives for the next round before this one is over. */
        atomic_store(&b->arrived, 0);
        atomic_store(&b->round, round + 1);
        /* Who is not yet counted here sees the new round when it tries to sleep. */
        if (atomic_load(&b->sleepers) > 0)
            futex_wake_all(&b->round);
        return;
    }
    for (int i = 0; may_spin && i < SPIN_PAUSES; i++) {
        if (atomic_load(&b->round) != round)
            return;
        spin_pause();
    }
    atomic_fetch_add(&b->sleepers, 1);
    while (atomic_load(&b->round) == round)
        futex_wait(&b->round, round);
    atomic_fetch_sub(&b->sleepers, 1);
}
