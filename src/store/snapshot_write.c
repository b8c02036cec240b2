/* snapshot_write.c - a rank writes its part of a snapshot. */
#include "config.h"

#include "base/file.h"
#include "store/manifest.h"
#include "store/snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { WRITE_CHUNK_BYTES = 8 << 20 };

/* Checksums of the sections, computed while their bytes pass by in pieces of any size. */
struct write_sums {
    const struct layout *layout;
    uint32_t array_mask, rank;
    uint32_t count, next; /* next: the section that the coming byte belongs to */
    uint64_t left_bytes;  /* of it */
    XXH3_state_t *state;  /* owned */
    uint64_t *sums;       /* owned [count] */
};

static void write_sums_free(struct write_sums *s) {
    XXH3_freeState(s->state);
    free(s->sums);
}

/* Ends sections without bytes, and starts the first that has some. */
static void write_sums_start(struct write_sums *s) {
    for (; s->next < s->count; s->next++) {
        XXH3_64bits_reset(s->state);
        s->left_bytes = manifest_section_at(s->layout, s->array_mask, s->rank, s->next).bytes;
        if (s->left_bytes != 0)
            return;
        s->sums[s->next] = XXH3_64bits_digest(s->state);
    }
}

static int write_sums_init(struct write_sums *s) {
    s->count = manifest_section_count(s->layout, s->array_mask);
    s->sums = calloc((size_t)s->count + 1, sizeof(*s->sums));
    s->state = XXH3_createState();
    if (s->sums == NULL || s->state == NULL)
        return -ENOMEM;
    write_sums_start(s);
    return 0;
}

static void write_sums_add(struct write_sums *s, const uint8_t *data, size_t len_bytes) {
    while (len_bytes > 0) {
        size_t n = len_bytes < s->left_bytes ? len_bytes : (size_t)s->left_bytes;
        XXH3_64bits_update(s->state, data, n);
        data += n;
        len_bytes -= n;
        s->left_bytes -= n;
        if (s->left_bytes > 0)
            continue;
        s->sums[s->next++] = XXH3_64bits_digest(s->state);
        write_sums_start(s);
    }
}

struct write_job {
    const struct store_io *io;
    const uint8_t *dump;
    uint64_t dump_bytes;
    const atomic_bool *cancel;
    volatile uint64_t *progress_bytes;
};

static int write_dump(const struct write_job *job, int fd, struct write_sums *sums) {
    for (uint64_t at = 0; at < job->dump_bytes;) {
        if (job->cancel != NULL && atomic_load(job->cancel))
            return -ECANCELED;
        uint64_t left = job->dump_bytes - at;
        size_t n = left < WRITE_CHUNK_BYTES ? (size_t)left : WRITE_CHUNK_BYTES;
        int rc = job->io->write(job->io->ctx, fd, job->dump + at, n);
        if (rc != 0)
            return rc;
        write_sums_add(sums, job->dump + at, n);
        at += n;
        if (job->progress_bytes != NULL)
            *job->progress_bytes += n;
    }
    return job->cancel != NULL && atomic_load(job->cancel) ? -ECANCELED : 0;
}

/* Returns 0 or -errno; *step says what failed. */
static int write_file(const struct write_job *job, const char *dir, const char *file,
                      const uint8_t header[SNAPSHOT_HEADER_BYTES], struct write_sums *sums,
                      const char **step) {
    const struct store_io *io = job->io;
    *step = "open the directory";
    int dirfd = io->open_dir(io->ctx, AT_FDCWD, dir);
    if (dirfd < 0)
        return dirfd;
    *step = "create";
    int fd = io->create(io->ctx, dirfd, file, SNAPSHOT_HEADER_BYTES + job->dump_bytes);
    io->close(io->ctx, dirfd);
    if (fd < 0)
        return fd;
    *step = "write";
    int rc = io->write(io->ctx, fd, header, SNAPSHOT_HEADER_BYTES);
    if (rc == 0)
        rc = write_dump(job, fd, sums);
    if (rc == 0) {
        *step = "sync";
        rc = io->fsync(io->ctx, fd);
    }
    io->close(io->ctx, fd);
    return rc;
}

static int write_entry(const struct write_sums *s, char **entry, struct err *err) {
    struct enc text = {0};
    int rc = manifest_put_rank(s->layout, s->array_mask, s->rank, s->sums, &text);
    enc_u8(&text, '\0');
    if (rc == 0 && text.failed)
        rc = -ENOMEM;
    if (rc != 0) {
        enc_free(&text);
        return err_set(err, -rc, "the entry of rank %u: %s", s->rank, strerror(-rc));
    }
    *entry = (char *)text.data;
    return 0;
}

int snapshot_write_rank(const struct store_io *io, const char *dir, const struct layout *l,
                        uint32_t rank, uint32_t array_mask, const uint8_t *dump,
                        uint64_t snapshot_id, const atomic_bool *cancel,
                        volatile uint64_t *progress_bytes, char **entry, struct err *err) {
    struct write_sums sums = {.layout = l, .array_mask = array_mask, .rank = rank};
    struct write_job job = {
        .io = io,
        .dump = dump,
        .dump_bytes = layout_dump_bytes(l, array_mask, rank),
        .cancel = cancel,
        .progress_bytes = progress_bytes,
    };
    uint8_t header[SNAPSHOT_HEADER_BYTES];
    char file[MANIFEST_RANK_FILE_BYTES];
    const char *step = "prepare";
    manifest_rank_file(rank, file);
    manifest_rank_header(l, array_mask, rank, snapshot_id, header);
    int rc = write_sums_init(&sums);
    if (rc == 0)
        rc = write_file(&job, dir, file, header, &sums, &step);
    if (rc != 0)
        err_set(err, -rc, "%s/%s: cannot %s: %s", dir, file, step, strerror(-rc));
    else
        rc = write_entry(&sums, entry, err);
    write_sums_free(&sums);
    return rc;
}
