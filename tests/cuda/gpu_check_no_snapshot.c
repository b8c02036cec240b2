/* gpu_check_no_snapshot.c - in the place of gpu_check_snapshot.c where jansson or xxhash is not
 * there to build src/store with. */
#include "config.h"

#include "tests/cuda/gpu_check.h"

void check_snapshots(const struct check_test *t, const struct check_options *o) {
    (void)o;
    check_not_run(t->name, "%s", GFS_NO_STORE);
}
