/* onednn_threads.c - keeps oneDNN, built with OpenMP, from starting threads: the setting belongs to
 * the thread that calls. */
#include "config.h"

#include "device/cpu/onednn_api.h"

#ifdef HAVE_ONEDNN

#if DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_OMP

/* Of OpenMP's library; its header comes with a compiler, and not with each. */
int omp_get_max_threads(void);
void omp_set_num_threads(int threads);

int onednn_one_thread(void) {
    int kept = omp_get_max_threads();
    if (kept != 1)
        omp_set_num_threads(1);
    return kept;
}

void onednn_threads(int threads) {
    if (threads != 1)
        omp_set_num_threads(threads);
}

#else /* configure takes no other than that without threads */

int onednn_one_thread(void) { return 1; }

void onednn_threads(int threads) { (void)threads; }

#endif
#endif
