/* test_snapshot.c - snapshots from writing to removal, as the ranks, the supervisor and readers see
 * them. */
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store_fixture.h"

#include "store/manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MASK = ARRAY_MASK_STATE };
static const struct store_io *const io = &store_io_posix;
static char run_dir[PATH_MAX / 2];

static int setup(void **state) {
    (void)state;
    fixture_dir_make(NULL, run_dir, sizeof(run_dir));
    return 0;
}

static int teardown(void **state) {
    (void)state;
    fixture_dir_remove(run_dir);
    return 0;
}

static int take(const char *name, uint32_t world, uint64_t epoch, uint64_t gen, uint32_t mask) {
    struct layout l;
    assert_int_equal(fixture_layout(world, 4, &l), 0);
    struct snapshot_info info = fixture_info(&l, name, epoch, gen, mask);
    struct err err = {0};
    int rc = fixture_snapshot(io, run_dir, &l, &info, &err);
    assert_int_equal(rc, -err.code);
    if (rc != 0)
        snapshot_abandon(io, run_dir, name);
    layout_free(&l);
    return rc;
}

static uint32_t count_of(uint32_t *broken) {
    struct snapshot_info *list;
    uint32_t count;
    assert_int_equal(snapshot_list(run_dir, &list, &count, broken, NULL), 0);
    free(list);
    return count;
}

static bool exists(const char *fmt, const char *name) {
    char path[PATH_MAX], tail[256];
    struct stat st;
    snprintf(tail, sizeof(tail), "%s%s", fmt, name);
    snprintf(path, sizeof(path), "%s/snapshots/%s", run_dir, tail);
    return lstat(path, &st) == 0;
}

static void what_was_written_is_read(void **state) {
    (void)state;
    for (uint32_t world = 1; world <= 9; world++) {
        char name[16];
        struct snapshot *s;
        snprintf(name, sizeof(name), "w%u", world);
        assert_int_equal(take(name, world, 1, world, MASK), 0);
        assert_int_equal(snapshot_open(run_dir, name, &s, NULL), 0);
        const struct layout *l = snapshot_get_layout(s);
        assert_int_equal(l->world_size, world);
        for (uint32_t a = 0; a < ARRAY_COUNT; a++) {
            for (uint32_t t = 0; (MASK & ARRAY_BIT(a)) != 0 && t < l->tensor_count; t++) {
                const char *tensor = l->tensors[t].spec.name;
                uint64_t numel = l->tensors[t].numel;
                for (uint64_t lo = 0; lo <= numel; lo++) {
                    for (uint64_t hi = lo; hi <= numel; hi++) {
                        float out[64];
                        assert_int_equal(
                            snapshot_read_tensor(s, (enum array)a, tensor, lo, hi, out, NULL), 0);
                        for (uint64_t k = lo; k < hi; k++)
                            assert_true(out[k - lo] == fixture_value((enum array)a, t, k));
                    }
                }
            }
        }
        uint64_t progress = 0;
        assert_int_equal(snapshot_verify(s, NULL, &progress, NULL), 0);
        assert_int_equal(progress, layout_numel(l) * 3 * 4);
        assert_int_equal(snapshot_verify(s, "h.0.b", NULL, NULL), 0);
        snapshot_close(s);
    }
}

static void reading_beyond_a_tensor_is_refused(void **state) {
    (void)state;
    struct snapshot *s;
    float out[64];
    assert_int_equal(take("a", 2, 1, 1, MASK), 0);
    assert_int_equal(snapshot_open(run_dir, "a", &s, NULL), 0);
    assert_int_equal(snapshot_read_tensor(s, ARRAY_PARAMS, "h.0.b", 0, 8, out, NULL), -ERANGE);
    assert_int_equal(snapshot_read_tensor(s, ARRAY_PARAMS, "h.0.b", 5, 4, out, NULL), -ERANGE);
    assert_int_equal(snapshot_read_tensor(s, ARRAY_PARAMS, "no", 0, 0, out, NULL), -ENOENT);
    assert_int_equal(snapshot_read_tensor(s, ARRAY_GRADS, "h.0.b", 0, 1, out, NULL), -ENOENT);
    assert_int_equal(snapshot_verify(s, "no", NULL, NULL), -ENOENT);
    snapshot_close(s);
}

static void a_mapped_rank_is_header_and_dump(void **state) {
    (void)state;
    struct snapshot *s;
    assert_int_equal(take("a", 3, 1, 1, ARRAY_MASK_ALL), 0);
    assert_int_equal(snapshot_open(run_dir, "a", &s, NULL), 0);
    const struct layout *l = snapshot_get_layout(s);
    for (uint32_t r = 0; r < 3; r++) {
        const uint8_t *base, *again;
        uint64_t bytes;
        assert_int_equal(snapshot_map_rank(s, r, &base, &bytes, NULL), 0);
        assert_int_equal(bytes, SNAPSHOT_HEADER_BYTES + layout_dump_bytes(l, ARRAY_MASK_ALL, r));
        uint8_t *dump = fixture_dump(l, ARRAY_MASK_ALL, r);
        assert_memory_equal(base + SNAPSHOT_HEADER_BYTES, dump, bytes - SNAPSHOT_HEADER_BYTES);
        free(dump);
        assert_memory_equal(base, "gatherfs rank file 1\n", 21);
        assert_int_equal(snapshot_map_rank(s, r, &again, &bytes, NULL), 0);
        assert_ptr_equal(base, again);
    }
    const uint8_t *base;
    uint64_t bytes;
    assert_int_equal(snapshot_map_rank(s, 3, &base, &bytes, NULL), -EINVAL);
    snapshot_close(s);
}

static void the_manifest_keeps_what_it_was_told(void **state) {
    (void)state;
    struct snapshot *s;
    assert_int_equal(take("step-0000000007", 2, 5, 7, MASK), 0);
    assert_int_equal(snapshot_open(run_dir, "step-0000000007", &s, NULL), 0);
    const struct snapshot_info *i = snapshot_get_info(s);
    assert_string_equal(i->name, "step-0000000007");
    assert_int_equal(i->id, 5007);
    assert_int_equal(i->epoch, 5);
    assert_int_equal(i->gen, 7);
    assert_int_equal(i->step, 7);
    assert_int_equal(i->attempt, 3);
    assert_int_equal(i->world_size, 2);
    assert_int_equal(i->array_mask, MASK);
    assert_true(i->automatic);
    assert_true(i->time_ns == 1700000000000000000u);
    const struct layout *l = snapshot_get_layout(s);
    assert_int_equal(i->bytes, 2 * SNAPSHOT_HEADER_BYTES + layout_numel(l) * 12);
    assert_string_equal(snapshot_get_model_config(s), FIXTURE_CONFIG);
    const char *text = snapshot_get_train_state(s);
    assert_int_equal(strlen(text), SNAPSHOT_TRAIN_STATE_BYTES);
    assert_int_equal(text[SNAPSHOT_TRAIN_STATE_BYTES - 1], '\n');
    /* Numbers are as they were written, beyond 2^63 too. */
    static const char expected[] = "{\n  \"step\": 7,\n  \"attempt\": 3,\n  \"world_size\": 2,\n"
                                   "  \"lr\": 0.10,\n  \"rng\": {\n"
                                   "    \"seed\": 18446744073709551615,\n    \"a\": []\n  }\n} ";
    assert_memory_equal(text, expected, sizeof(expected) - 1);
    assert_int_equal(strspn(text + sizeof(expected) - 2, " "), 4096 - sizeof(expected) + 1);
    size_t len;
    const char *manifest = snapshot_get_manifest(s, &len);
    json_t *v = json_loadb(manifest, len, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(v);
    json_decref(v);
    snapshot_close(s);
}

static void files_are_for_their_owner_only(void **state) {
    (void)state;
    static const char *const names[] = {"", "/a", "/a/manifest.json", "/a/rank-0.bin"};
    assert_int_equal(take("a", 1, 1, 1, MASK), 0);
    for (size_t i = 0; i < 4; i++) {
        char path[PATH_MAX];
        struct stat st;
        snprintf(path, sizeof(path), "%s/snapshots%s", run_dir, names[i]);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 07777, S_ISDIR(st.st_mode) ? 0700 : 0600);
    }
}

static void an_open_snapshot_survives_its_removal(void **state) {
    (void)state;
    struct snapshot *s;
    float out[20];
    const uint8_t *base;
    uint64_t bytes;
    assert_int_equal(take("a", 2, 1, 1, MASK), 0);
    assert_int_equal(snapshot_open(run_dir, "a", &s, NULL), 0);
    assert_int_equal(snapshot_remove(io, run_dir, "a", NULL), 0);
    assert_int_equal(snapshot_sweep_removed(io, run_dir, NULL), 0);
    assert_int_equal(count_of(NULL), 0);
    assert_int_equal(snapshot_map_rank(s, 1, &base, &bytes, NULL), 0);
    assert_int_equal(snapshot_read_tensor(s, ARRAY_PARAMS, "wte.weight", 0, 20, out, NULL), 0);
    assert_true(out[19] == fixture_value(ARRAY_PARAMS, 0, 19));
    assert_int_equal(snapshot_verify(s, NULL, NULL, NULL), 0);
    snapshot_close(s);
}

static void a_taken_name_stays_as_it_is(void **state) {
    (void)state;
    struct layout l;
    struct err err = {0};
    char path[PATH_MAX], *entries[2] = {NULL};
    assert_int_equal(fixture_layout(2, 1, &l), 0);
    struct snapshot_info info = fixture_info(&l, "a", 1, 2, MASK);
    /* The name is taken between the beginning and the publication. */
    assert_int_equal(fixture_begin_and_write(io, run_dir, &l, &info, entries, NULL), 0);
    char other[PATH_MAX];
    snprintf(path, sizeof(path), "%s/snapshots/.tmp-a", run_dir);
    snprintf(other, sizeof(other), "%s/snapshots/.tmp-b", run_dir);
    assert_int_equal(rename(path, other), 0);
    assert_int_equal(take("a", 2, 1, 1, MASK), 0);
    assert_int_equal(rename(other, path), 0);
    assert_int_equal(snapshot_publish(io, run_dir, &info, &l, (const char *const *)entries,
                                      FIXTURE_STATE, FIXTURE_CONFIG, &err),
                     -EEXIST);
    assert_non_null(strstr(err.text, "a exists already"));
    snapshot_abandon(io, run_dir, "a");
    assert_false(exists(".tmp-", "a"));
    assert_int_equal(take("a", 2, 1, 3, MASK), -EEXIST);
    struct snapshot *s;
    assert_int_equal(snapshot_open(run_dir, "a", &s, NULL), 0);
    assert_int_equal(snapshot_get_info(s)->gen, 1);
    snapshot_close(s);
    fixture_entries_free(entries, 2);
    layout_free(&l);
}

static void publishing_wants_every_rank(void **state) {
    (void)state;
    struct layout l;
    char path[PATH_MAX], *entries[2] = {NULL};
    assert_int_equal(fixture_layout(2, 1, &l), 0);
    struct snapshot_info info = fixture_info(&l, "a", 1, 1, MASK);
    assert_int_equal(fixture_begin_and_write(io, run_dir, &l, &info, entries, NULL), 0);
    const char *missing[] = {entries[0], NULL}, *twice[] = {entries[0], entries[0]};
    const char *good[] = {entries[0], entries[1]};
    const char *const *const wrong[] = {missing, twice};
    for (size_t i = 0; i < 2; i++)
        assert_true(snapshot_publish(io, run_dir, &info, &l, wrong[i], FIXTURE_STATE,
                                     FIXTURE_CONFIG, NULL) < 0);
    snprintf(path, sizeof(path), "%s/snapshots/.tmp-a/rank-1.bin", run_dir);
    assert_int_equal(truncate(path, SNAPSHOT_HEADER_BYTES), 0);
    struct err err = {0};
    assert_int_equal(
        snapshot_publish(io, run_dir, &info, &l, good, FIXTURE_STATE, FIXTURE_CONFIG, &err), -EIO);
    assert_non_null(strstr(err.text, "rank-1.bin"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(
        snapshot_publish(io, run_dir, &info, &l, good, FIXTURE_STATE, FIXTURE_CONFIG, NULL), -EIO);
    assert_int_equal(count_of(NULL), 0);
    fixture_entries_free(entries, 2);
    layout_free(&l);
}

static void bad_texts_are_not_published(void **state) {
    (void)state;
    struct layout l;
    char *entries[1] = {NULL}, *large = malloc(5000);
    assert_int_equal(fixture_layout(1, 1, &l), 0);
    struct snapshot_info info = fixture_info(&l, "a", 1, 1, MASK);
    assert_int_equal(fixture_begin_and_write(io, run_dir, &l, &info, entries, NULL), 0);
    const char *const *e = (const char *const *)entries;
    snprintf(large, 5000, "{\"a\":\"%04096d\"}", 0);
    const char *const states[] = {
        "", "[]", "{", "{\"step\":1}", "{\"a\":1} x", "{\"a\":\"\\u0000\"}", large};
    for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        struct err err = {0};
        assert_true(snapshot_publish(io, run_dir, &info, &l, e, states[i], FIXTURE_CONFIG, &err) <
                    0);
        assert_non_null(strstr(err.text, "train state"));
    }
    assert_true(snapshot_publish(io, run_dir, &info, &l, e, "{}", "[]", NULL) < 0);
    struct snapshot_info bad = info;
    bad.gen = (uint64_t)INT64_MAX + 1;
    assert_int_equal(snapshot_publish(io, run_dir, &bad, &l, e, "{}", "{}", NULL), -EINVAL);
    bad = info;
    bad.array_mask = 0;
    assert_int_equal(snapshot_publish(io, run_dir, &bad, &l, e, "{}", "{}", NULL), -EINVAL);
    bad = info;
    bad.world_size = 2;
    assert_int_equal(snapshot_publish(io, run_dir, &bad, &l, e, "{}", "{}", NULL), -EINVAL);
    assert_int_equal(snapshot_publish(io, run_dir, &info, &l, e, "{}", "{}", NULL), 0);
    free(large);
    fixture_entries_free(entries, 1);
    layout_free(&l);
}

static void names_that_are_none_are_refused(void **state) {
    (void)state;
    static const char *const names[] = {"", ".", "..", ".tmp-a", "a/b", "-a", "a b", "../a"};
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct snapshot *s;
        assert_int_equal(snapshot_begin(io, run_dir, names[i], path, sizeof(path), NULL), -EINVAL);
        assert_int_equal(snapshot_remove(io, run_dir, names[i], NULL), -EINVAL);
        assert_int_equal(snapshot_open(run_dir, names[i], &s, NULL), -EINVAL);
        snapshot_abandon(io, run_dir, names[i]);
    }
}

static void what_is_not_there_is_enoent(void **state) {
    (void)state;
    struct snapshot *s;
    assert_int_equal(snapshot_open(run_dir, "a", &s, NULL), -ENOENT);
    assert_int_equal(snapshot_remove(io, run_dir, "a", NULL), -ENOENT);
    assert_int_equal(snapshot_sweep(io, run_dir, NULL), 0);
    assert_int_equal(count_of(NULL), 0);
    assert_int_equal(take("a", 1, 1, 1, MASK), 0);
    assert_int_equal(snapshot_open(run_dir, "b", &s, NULL), -ENOENT);
    assert_int_equal(snapshot_remove(io, run_dir, "b", NULL), -ENOENT);
}

static void a_canceled_write_says_so(void **state) {
    (void)state;
    struct layout l;
    char path[PATH_MAX], *entry = NULL;
    atomic_bool cancel = true;
    volatile uint64_t progress = 0;
    assert_int_equal(fixture_layout(1, 1, &l), 0);
    uint8_t *dump = fixture_dump(&l, MASK, 0);
    assert_int_equal(snapshot_begin(io, run_dir, "a", path, sizeof(path), NULL), 0);
    assert_int_equal(
        snapshot_write_rank(io, path, &l, 0, MASK, dump, 1, &cancel, &progress, &entry, NULL),
        -ECANCELED);
    assert_null(entry);
    assert_int_equal(progress, 0);
    assert_int_equal(snapshot_begin(io, run_dir, "a", path, sizeof(path), NULL), 0);
    cancel = false;
    assert_int_equal(
        snapshot_write_rank(io, path, &l, 0, MASK, dump, 1, &cancel, &progress, &entry, NULL), 0);
    assert_int_equal(progress, layout_dump_bytes(&l, MASK, 0));
    free(entry);
    snapshot_abandon(io, run_dir, "a");
    assert_false(exists(".tmp-", "a"));
    free(dump);
    layout_free(&l);
}

static void large_dumps_go_in_chunks(void **state) {
    (void)state;
    /* 9 Mi elements: a chunk ends in the middle of a section, another holds several. */
    static const struct tensor_spec specs[] = {{.name = "a", .ndim = 1, .shape = {9 << 20}},
                                               {.name = "b", .ndim = 1, .shape = {5}},
                                               {.name = "c", .ndim = 1, .shape = {4 << 20}}};
    static const uint32_t unit_of[] = {0, 1, 2};
    static const char *const units[] = {"a", "b", "c"};
    struct layout l;
    char path[PATH_MAX], *entries[1] = {NULL};
    assert_int_equal(layout_build(specs, unit_of, 3, units, 3, 1, 1, &l, NULL), 0);
    uint64_t bytes = layout_dump_bytes(&l, ARRAY_BIT(ARRAY_PARAMS), 0);
    uint32_t *dump = malloc(bytes);
    for (uint64_t i = 0; i < bytes / 4; i++)
        dump[i] = (uint32_t)(i * 2654435761u);
    struct snapshot_info info = fixture_info(&l, "big", 1, 1, ARRAY_BIT(ARRAY_PARAMS));
    assert_int_equal(snapshot_begin(io, run_dir, "big", path, sizeof(path), NULL), 0);
    assert_int_equal(snapshot_write_rank(io, path, &l, 0, info.array_mask, (uint8_t *)dump, info.id,
                                         NULL, NULL, &entries[0], NULL),
                     0);
    assert_int_equal(
        snapshot_publish(io, run_dir, &info, &l, (const char *const *)entries, "{}", "{}", NULL),
        0);
    struct snapshot *s;
    assert_int_equal(snapshot_open(run_dir, "big", &s, NULL), 0);
    assert_int_equal(snapshot_verify(s, NULL, NULL, NULL), 0);
    float *out = malloc((4 << 20) * sizeof(*out));
    assert_int_equal(snapshot_read_tensor(s, ARRAY_PARAMS, "c", 0, 4 << 20, out, NULL), 0);
    assert_memory_equal(out, dump + (9 << 20) + 5, (4 << 20) * sizeof(*out));
    free(out);
    snapshot_close(s);
    free(dump);
    free(entries[0]);
    layout_free(&l);
}

static void the_list_is_in_order_and_counts_the_broken(void **state) {
    (void)state;
    static const char *const names[] = {"z", "step-0000009900", "step-0000010000", "a"};
    struct snapshot_info *list;
    uint32_t count, broken;
    char path[PATH_MAX];
    assert_int_equal(take("a", 1, 2, 1, MASK), 0);
    assert_int_equal(take("step-0000010000", 2, 1, 10000, MASK), 0);
    assert_int_equal(take("z", 1, 1, 3, MASK), 0);
    assert_int_equal(take("step-0000009900", 3, 1, 9900, MASK), 0);
    snprintf(path, sizeof(path), "%s/snapshots/no-manifest", run_dir);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof(path), "%s/snapshots/.tmp-x", run_dir);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof(path), "%s/snapshots/file", run_dir);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    snprintf(path, sizeof(path), "%s/snapshots/link", run_dir);
    assert_int_equal(symlink("a", path), 0);
    assert_int_equal(snapshot_list(run_dir, &list, &count, &broken, NULL), 0);
    assert_int_equal(count, 4);
    assert_int_equal(broken, 1);
    for (uint32_t i = 0; i < 4; i++)
        assert_string_equal(list[i].name, names[i]);
    free(list);
    struct snapshot *s;
    assert_true(snapshot_open(run_dir, "link", &s, NULL) < 0);
}

static void a_removed_name_can_be_used_again(void **state) {
    (void)state;
    for (uint64_t gen = 1; gen <= 4; gen++) {
        assert_int_equal(take("a", 2, 1, gen, MASK), 0);
        assert_int_equal(count_of(NULL), 1);
        assert_int_equal(snapshot_remove(io, run_dir, "a", NULL), 0);
        assert_int_equal(count_of(NULL), 0);
    }
    assert_true(exists(".del-", "a"));
    assert_true(exists(".del-", "a~3"));
    assert_int_equal(snapshot_sweep_removed(io, run_dir, NULL), 0);
    assert_false(exists(".del-", "a"));
    assert_false(exists(".del-", "a~3"));
}

static void sweeping_leaves_snapshots_and_what_it_was_not_asked_for(void **state) {
    (void)state;
    char path[PATH_MAX], elsewhere[PATH_MAX / 2 + 16];
    assert_int_equal(take("a", 2, 1, 1, MASK), 0);
    assert_int_equal(snapshot_begin(io, run_dir, "b", path, sizeof(path), NULL), 0);
    /* A link to the outside is removed, not followed. */
    snprintf(elsewhere, sizeof(elsewhere), "%s/outside", run_dir);
    assert_int_equal(mkdir(elsewhere, 0700), 0);
    snprintf(path, sizeof(path), "%s/snapshots/.del-link", run_dir);
    assert_int_equal(symlink(elsewhere, path), 0);
    assert_int_equal(snapshot_sweep_removed(io, run_dir, NULL), 0);
    assert_true(exists(".tmp-", "b"));
    assert_false(exists(".del-", "link"));
    assert_int_equal(snapshot_sweep(io, run_dir, NULL), 0);
    assert_false(exists(".tmp-", "b"));
    assert_true(exists("", "a"));
    struct stat st;
    assert_int_equal(stat(elsewhere, &st), 0);
    assert_int_equal(count_of(NULL), 1);
}

static void damage_is_found_and_named(void **state) {
    (void)state;
    struct snapshot *s;
    struct err err = {0};
    char path[PATH_MAX];
    assert_int_equal(take("a", 2, 1, 1, MASK), 0);
    snprintf(path, sizeof(path), "%s/snapshots/a/rank-1.bin", run_dir);
    int fd = open(path, O_RDWR);
    assert_int_equal(pwrite(fd, "x", 1, SNAPSHOT_HEADER_BYTES + 1), 1);
    assert_int_equal(snapshot_open(run_dir, "a", &s, NULL), 0);
    assert_int_equal(snapshot_verify(s, NULL, NULL, &err), -EIO);
    assert_non_null(strstr(err.text, "a/rank-1.bin"));
    assert_non_null(strstr(err.text, "params of unit root (wte.weight, ln_f.\"bias\")"));
    /* The rest is still good. */
    assert_int_equal(snapshot_verify(s, "h.0.b", NULL, NULL), 0);
    assert_int_equal(snapshot_verify(s, "ln_f.\"bias\"", NULL, NULL), -EIO);
    assert_int_equal(ftruncate(fd, SNAPSHOT_HEADER_BYTES), 0);
    const uint8_t *base;
    uint64_t bytes;
    err = (struct err){0};
    assert_int_equal(snapshot_map_rank(s, 1, &base, &bytes, &err), -EIO);
    assert_non_null(strstr(err.text, "a/rank-1.bin"));
    assert_int_equal(snapshot_map_rank(s, 0, &base, &bytes, NULL), 0);
    float out[7];
    assert_int_equal(snapshot_read_tensor(s, ARRAY_PARAMS, "h.0.b", 0, 7, out, NULL), -EIO);
    snapshot_close(s);
    close(fd);
    uint32_t broken;
    assert_int_equal(count_of(&broken), 0);
    assert_int_equal(broken, 1);
}

static void a_rank_file_of_another_snapshot_is_noticed(void **state) {
    (void)state;
    struct snapshot *s;
    struct err err = {0};
    char from[PATH_MAX], to[PATH_MAX];
    assert_int_equal(take("a", 2, 1, 1, MASK), 0);
    assert_int_equal(take("b", 2, 1, 2, MASK), 0);
    snprintf(from, sizeof(from), "%s/snapshots/a/rank-0.bin", run_dir);
    snprintf(to, sizeof(to), "%s/snapshots/b/rank-0.bin", run_dir);
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(snapshot_open(run_dir, "b", &s, NULL), 0);
    assert_int_equal(snapshot_verify(s, NULL, NULL, &err), -EIO);
    assert_non_null(strstr(err.text, "b/rank-0.bin: its header"));
    snapshot_close(s);
}

static void a_copied_directory_opens_by_its_path(void **state) {
    (void)state;
    struct snapshot *s;
    char from[PATH_MAX], to[PATH_MAX];
    assert_int_equal(take("a", 2, 1, 1, MASK), 0);
    snprintf(from, sizeof(from), "%s/snapshots/a", run_dir);
    snprintf(to, sizeof(to), "%s/copy", run_dir);
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(snapshot_open_dir(to, &s, NULL), 0);
    assert_string_equal(snapshot_get_info(s)->name, "a");
    assert_int_equal(snapshot_verify(s, NULL, NULL, NULL), 0);
    snapshot_close(s);
    snprintf(from, sizeof(from), "%s/snapshots/renamed", run_dir);
    assert_int_equal(rename(to, from), 0);
    assert_int_equal(snapshot_open(run_dir, "renamed", &s, NULL), 0);
    assert_string_equal(snapshot_get_info(s)->name, "renamed");
    snapshot_close(s);
}

static uint32_t retention(const char *const names[], const uint64_t gens[], uint32_t count,
                          uint64_t keep, char *kept) {
    struct snapshot_info list[16] = {0};
    bool drop[16];
    for (uint32_t i = 0; i < count; i++) {
        list[i] = (struct snapshot_info){.epoch = 1, .gen = gens[i]};
        snprintf(list[i].name, sizeof(list[i].name), "%s", names[i]);
        list[i].automatic = names[i][0] != 'n';
    }
    uint32_t n = snapshot_retention(list, count, keep, drop);
    for (uint32_t i = 0; i < count; i++)
        kept[i] = drop[i] ? '-' : '+';
    kept[count] = '\0';
    return n;
}

static void retention_keeps_the_newest_and_the_named(void **state) {
    (void)state;
    static const char *const names[] = {"step-0000000009", "named", "step-0000000010",
                                        "step-0000000008", "mine",  "step-0000000011"};
    static const uint64_t gens[] = {9, 1, 10, 8, 2, 11};
    char kept[16];
    assert_int_equal(retention(names, gens, 6, 2, kept), 2);
    assert_string_equal(kept, "-++-++");
    assert_int_equal(retention(names, gens, 6, 1, kept), 3);
    assert_string_equal(kept, "-+--++");
    assert_int_equal(retention(names, gens, 6, 0, kept), 0);
    assert_int_equal(retention(names, gens, 6, 4, kept), 0);
    assert_int_equal(retention(names, gens, 6, 100, kept), 0);
    assert_int_equal(retention(names, gens, 0, 1, kept), 0);
    /* A named one that is newer does not count as one kept. */
    static const uint64_t newer[] = {9, 50, 10, 8, 2, 11};
    assert_int_equal(retention(names, newer, 6, 1, kept), 3);
    assert_string_equal(kept, "-+--++");
    assert_int_equal(retention(names, gens, 1, 1, kept), 0);
    /* Of a step that was reached again; and names that look automatic and are not. */
    static const char *const again[] = {"step-0000000009-2", "step-0000000009-", "step-9",
                                        "step-0000000009-x", "step-00000000010", "step-0000000011"};
    static const uint64_t in_order[] = {1, 2, 3, 4, 5, 6};
    assert_int_equal(retention(again, in_order, 6, 1, kept), 2);
    assert_string_equal(kept, "-+++-+");
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(what_was_written_is_read),
        TEST(reading_beyond_a_tensor_is_refused),
        TEST(a_mapped_rank_is_header_and_dump),
        TEST(the_manifest_keeps_what_it_was_told),
        TEST(files_are_for_their_owner_only),
        TEST(an_open_snapshot_survives_its_removal),
        TEST(a_taken_name_stays_as_it_is),
        TEST(publishing_wants_every_rank),
        TEST(bad_texts_are_not_published),
        TEST(names_that_are_none_are_refused),
        TEST(what_is_not_there_is_enoent),
        TEST(a_canceled_write_says_so),
        TEST(large_dumps_go_in_chunks),
        TEST(the_list_is_in_order_and_counts_the_broken),
        TEST(a_removed_name_can_be_used_again),
        TEST(sweeping_leaves_snapshots_and_what_it_was_not_asked_for),
        TEST(damage_is_found_and_named),
        TEST(a_rank_file_of_another_snapshot_is_noticed),
        TEST(a_copied_directory_opens_by_its_path),
        cmocka_unit_test(retention_keeps_the_newest_and_the_named),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
