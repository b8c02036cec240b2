/* catalogue_epoch.c - RUN_DIR/epoch, the number of the last world of ranks. */
#include "config.h"

#include "base/file.h"
#include "store/catalogue.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EPOCH_MAX_BYTES = 32 };

/* Without the file, the snapshots still know epochs that were used. */
static int epoch_of_snapshots(const char *run_dir, uint64_t *epoch, struct err *err) {
    struct snapshot_info *list;
    uint32_t count;
    int rc = snapshot_list(run_dir, &list, &count, NULL, err);
    if (rc != 0)
        return rc;
    *epoch = count > 0 ? list[count - 1].epoch : 0;
    free(list);
    return 0;
}

static int epoch_read(const char *run_dir, const char *path, uint64_t *epoch, struct err *err) {
    struct err why = {0};
    char *text;
    int rc = file_read(path, EPOCH_MAX_BYTES, &text, NULL, &why);
    if (rc == -ENOENT)
        return epoch_of_snapshots(run_dir, epoch, err);
    if (rc != 0)
        return err_set(err, why.code, "%s", why.text);
    text[strcspn(text, "\n")] = '\0';
    rc = parse_u64(text, epoch);
    free(text);
    if (rc != 0 || *epoch >= INT64_MAX)
        return err_set(err, EIO,
                       "%s: is not a number; write the largest epoch that was ever used into it",
                       path);
    return 0;
}

int catalogue_next_epoch(const char *run_dir, uint64_t *epoch, struct err *err) {
    char path[PATH_MAX], text[EPOCH_MAX_BYTES];
    uint64_t last = 0;
    if (file_path(path, sizeof(path), "%s/epoch", run_dir) != 0)
        return err_set(err, ENAMETOOLONG, "%s: the path is too long", run_dir);
    int rc = epoch_read(run_dir, path, &last, err);
    if (rc != 0)
        return rc;
    int len = snprintf(text, sizeof(text), "%" PRIu64 "\n", last + 1);
    rc = file_replace(path, text, (size_t)len, err);
    if (rc == 0)
        *epoch = last + 1;
    return rc;
}
