/* store_fixture.c - small snapshots whose every element is known. */
#include "config.h"

#include "store_fixture.h"

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void fixture_dir_make(const char *parent, char *out, size_t cap_bytes) {
    const char *tmp = getenv("TMPDIR");
    if (parent == NULL)
        parent = tmp != NULL ? tmp : "/tmp";
    snprintf(out, cap_bytes, "%s/gfs-store-XXXXXX", parent);
    if (mkdtemp(out) == NULL) {
        perror(out);
        exit(99);
    }
}

void fixture_dir_remove(const char *dir) {
    char parent[PATH_MAX];
    snprintf(parent, sizeof(parent), "%s", dir);
    char *name = strrchr(parent, '/');
    *name = '\0';
    int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || file_remove_tree(fd, name + 1, NULL) != 0) {
        perror(dir);
        exit(99);
    }
    close(fd);
}

int fixture_layout(uint32_t world_size, uint32_t align_elems, struct layout *out) {
    static const struct tensor_spec specs[] = {
        {.name = "wte.weight", .ndim = 2, .shape = {5, 4}, .module = 0, .decay = true},
        {.name = "h.0.w/x", .ndim = 2, .shape = {4, 6}, .module = 1, .decay = true},
        {.name = "h.0.b", .ndim = 1, .shape = {7}, .module = 1},
        {.name = "h.1.none", .ndim = 2, .shape = {0, 3}, .module = 2},
        {.name = "h.1.w", .ndim = 2, .shape = {1, 2}, .module = 2, .decay = true},
        {.name = "ln_f.\"bias\"", .ndim = 1, .shape = {3}, .module = 3},
    };
    static const uint32_t unit_of[] = {0, 1, 1, 2, 2, 0};
    static const char *const units[] = {"root", "h.0", "h.1"};
    return layout_build(specs, unit_of, 6, units, 3, world_size, align_elems, out, NULL);
}

float fixture_value(enum array a, uint32_t tensor, uint64_t k) {
    return (float)((uint32_t)a * 100000 + tensor * 1000 + k) + 0.5f;
}

static void fixture_fill(const struct layout *l, enum array a, uint32_t tensor, uint32_t rank,
                         uint8_t *section) {
    struct layout_piece p = layout_tensor_piece(l, tensor, rank);
    for (uint64_t i = 0; i < p.elems; i++) {
        float v = fixture_value(a, tensor, p.tensor_offset_elems + i);
        memcpy(section + (p.shard_offset_elems + i) * 4, &v, 4);
    }
}

uint8_t *fixture_dump(const struct layout *l, uint32_t array_mask, uint32_t rank) {
    uint8_t *dump = calloc(1, layout_dump_bytes(l, array_mask, rank) + 1);
    for (uint32_t a = 0; dump != NULL && a < ARRAY_COUNT; a++)
        for (uint32_t t = 0; (array_mask & ARRAY_BIT(a)) != 0 && t < l->tensor_count; t++)
            fixture_fill(
                l, (enum array)a, t, rank,
                dump + layout_dump_offset(l, array_mask, rank, (enum array)a, l->tensors[t].unit));
    return dump;
}

struct snapshot_info fixture_info(const struct layout *l, const char *name, uint64_t epoch,
                                  uint64_t gen, uint32_t array_mask) {
    struct snapshot_info info = {
        .id = epoch * 1000 + gen,
        .epoch = epoch,
        .gen = gen,
        .step = gen,
        .time_ns = 1700000000000000000u,
        .world_size = l->world_size,
        .array_mask = array_mask,
        .attempt = 3,
        .automatic = strncmp(name, "step-", 5) == 0,
    };
    snprintf(info.name, sizeof(info.name), "%s", name);
    return info;
}

void fixture_entries_free(char **entries, uint32_t count) {
    for (uint32_t r = 0; r < count; r++) {
        free(entries[r]);
        entries[r] = NULL;
    }
}

int fixture_begin_and_write(const struct store_io *io, const char *run_dir, const struct layout *l,
                            const struct snapshot_info *info, char **entries, struct err *err) {
    char path[PATH_MAX];
    int rc = snapshot_begin(io, run_dir, info->name, path, sizeof(path), err);
    for (uint32_t r = 0; rc == 0 && r < l->world_size; r++) {
        uint8_t *dump = fixture_dump(l, info->array_mask, r);
        rc = dump == NULL ? err_set(err, ENOMEM, "no memory for a dump")
                          : snapshot_write_rank(io, path, l, r, info->array_mask, dump, info->id,
                                                NULL, NULL, &entries[r], err);
        free(dump);
    }
    return rc;
}

int fixture_snapshot(const struct store_io *io, const char *run_dir, const struct layout *l,
                     const struct snapshot_info *info, struct err *err) {
    char *entries[64] = {NULL};
    int rc = fixture_begin_and_write(io, run_dir, l, info, entries, err);
    if (rc == 0)
        rc = snapshot_publish(io, run_dir, info, l, (const char *const *)entries, FIXTURE_STATE,
                              FIXTURE_CONFIG, err);
    fixture_entries_free(entries, l->world_size);
    return rc;
}
