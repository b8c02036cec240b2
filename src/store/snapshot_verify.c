/* snapshot_verify.c - do the bytes on disk have the checksums of the manifest? */
#include "config.h"

#include "base/file.h"
#include "store/snapshot_open.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

enum { VERIFY_CHUNK_BYTES = 1 << 20 };

struct verify_job {
    struct snapshot *snapshot;
    uint8_t *chunk;      /* owned [VERIFY_CHUNK_BYTES] */
    XXH3_state_t *state; /* owned */
    volatile uint64_t *progress_bytes;
};

static int verify_read(const struct verify_job *job, uint32_t rank, uint64_t at, uint64_t bytes,
                       uint64_t *sum) {
    XXH3_64bits_reset(job->state);
    while (bytes > 0) {
        size_t n = bytes < VERIFY_CHUNK_BYTES ? (size_t)bytes : VERIFY_CHUNK_BYTES;
        int rc = file_pread_all(job->snapshot->files[rank].fd, job->chunk, n, at);
        if (rc != 0)
            return rc;
        XXH3_64bits_update(job->state, job->chunk, n);
        if (job->progress_bytes != NULL)
            *job->progress_bytes += n;
        at += n;
        bytes -= n;
    }
    *sum = XXH3_64bits_digest(job->state);
    return 0;
}

/* Appends the tensors that have elements in the rank's shard of a unit, as many as fit. */
static void verify_name_tensors(const struct layout *l, uint32_t unit, uint32_t rank, char *out,
                                size_t cap_bytes) {
    size_t n = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < l->tensor_count; i++) {
        if (l->tensors[i].unit != unit || layout_tensor_piece(l, i, rank).elems == 0)
            continue;
        int w =
            snprintf(out + n, cap_bytes - n, "%s%s", n == 0 ? "" : ", ", l->tensors[i].spec.name);
        if (w < 0 || (size_t)w >= cap_bytes - n) {
            snprintf(out + n, cap_bytes - n, "%s", n + 5 < cap_bytes ? ", ..." : "");
            return;
        }
        n += (size_t)w;
    }
}

static int verify_section(const struct verify_job *job, uint32_t rank, uint32_t index, uint64_t at,
                          struct err *err) {
    const struct snapshot *s = job->snapshot;
    const struct layout *l = &s->manifest.layout;
    struct manifest_section section =
        manifest_section_at(l, s->manifest.info.array_mask, rank, index);
    const char *unit = l->units[section.unit].name;
    uint64_t sum = 0;
    int rc = verify_read(job, rank, at, section.bytes, &sum);
    if (rc != 0)
        return err_set(err, EIO, "%s/rank-%" PRIu32 ".bin: %s of unit %s: cannot be read: %s",
                       s->label, rank, array_names[section.array], unit, strerror(-rc));
    if (sum == s->manifest.checksums[(size_t)rank * s->manifest.section_count + index])
        return 0;
    char tensors[256];
    verify_name_tensors(l, section.unit, rank, tensors, sizeof(tensors));
    return err_set(err, EIO,
                   "%s/rank-%" PRIu32 ".bin: wrong checksum in bytes %" PRIu64 " to %" PRIu64
                   ", %s of unit %s (%s)",
                   s->label, rank, at, at + section.bytes, array_names[section.array], unit,
                   tensors);
}

static int verify_header(const struct verify_job *job, uint32_t rank, struct err *err) {
    const struct snapshot *s = job->snapshot;
    uint8_t expected[SNAPSHOT_HEADER_BYTES];
    struct stat st;
    if (fstat(s->files[rank].fd, &st) != 0 || (uint64_t)st.st_size != s->files[rank].bytes)
        return err_set(err, EIO, "%s/rank-%" PRIu32 ".bin: its size is not %" PRIu64 " bytes",
                       s->label, rank, s->files[rank].bytes);
    manifest_rank_header(&s->manifest.layout, s->manifest.info.array_mask, rank,
                         s->manifest.info.id, expected);
    int rc = file_pread_all(s->files[rank].fd, job->chunk, SNAPSHOT_HEADER_BYTES, 0);
    if (rc != 0)
        return err_set(err, EIO, "%s/rank-%" PRIu32 ".bin: cannot be read: %s", s->label, rank,
                       strerror(-rc));
    if (memcmp(job->chunk, expected, SNAPSHOT_HEADER_BYTES) != 0)
        return err_set(err, EIO,
                       "%s/rank-%" PRIu32 ".bin: its header is damaged, or of another snapshot",
                       s->label, rank);
    return 0;
}

/* unit: UINT32_MAX for all. */
static int verify_rank(const struct verify_job *job, uint32_t rank, uint32_t unit,
                       struct err *err) {
    const struct manifest *m = &job->snapshot->manifest;
    uint64_t at = SNAPSHOT_HEADER_BYTES;
    int rc = verify_header(job, rank, err);
    for (uint32_t i = 0; rc == 0 && i < m->section_count; i++) {
        struct manifest_section section =
            manifest_section_at(&m->layout, m->info.array_mask, rank, i);
        if (unit == UINT32_MAX || unit == section.unit)
            rc = verify_section(job, rank, i, at, err);
        at += section.bytes;
    }
    return rc;
}

static int verify_begin(struct verify_job *job, struct err *err) {
    job->chunk = malloc(VERIFY_CHUNK_BYTES);
    job->state = XXH3_createState();
    if (job->chunk == NULL || job->state == NULL)
        return err_set(err, ENOMEM, "no memory to verify %s", job->snapshot->label);
    return 0;
}

static void verify_end(struct verify_job *job) {
    XXH3_freeState(job->state);
    free(job->chunk);
}

int snapshot_verify_rank(struct snapshot *s, uint32_t rank, volatile uint64_t *progress_bytes,
                         struct err *err) {
    struct verify_job job = {.snapshot = s, .progress_bytes = progress_bytes};
    int rc = verify_begin(&job, err);
    if (rc == 0)
        rc = verify_rank(&job, rank, UINT32_MAX, err);
    verify_end(&job);
    return rc;
}

int snapshot_verify(struct snapshot *s, const char *name, volatile uint64_t *progress_bytes,
                    struct err *err) {
    const struct layout *l = &s->manifest.layout;
    struct verify_job job = {.snapshot = s, .progress_bytes = progress_bytes};
    int tensor = name != NULL ? layout_find_tensor(l, name) : 0;
    if (tensor < 0)
        return err_set(err, ENOENT, "%s: has no tensor %s", s->label, name);
    int rc = verify_begin(&job, err);
    for (uint32_t r = 0; rc == 0 && r < l->world_size; r++) {
        if (name == NULL)
            rc = verify_rank(&job, r, UINT32_MAX, err);
        else if (layout_tensor_piece(l, (uint32_t)tensor, r).elems > 0)
            rc = verify_rank(&job, r, l->tensors[tensor].unit, err);
    }
    verify_end(&job);
    return rc;
}
