/* test_store_faults.c - the Nth allocation or I/O operation fails, for every N: an error comes
 * back, a listed snapshot is whole, older ones are as they were. */
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../unit/store_fixture.h"
#include "io_double.h"

#include "base/log.h"
#include "store/catalogue.h"
#include "tensor/hf.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MASK = ARRAY_BIT(ARRAY_PARAMS) | ARRAY_BIT(ARRAY_EXP_AVG), WORLD = 3, MAX_FAULTS = 20000 };

static char run_dir[PATH_MAX / 2];
static struct layout layout;

/* ---- allocations that fail: the linker leads all of the program's here (--wrap). Those of the
 * libraries it calls are left alone: jansson takes a failed one for bad text here and there, and
 * asserts elsewhere. */

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *p, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *p, size_t size);

static struct {
    bool armed, forever; /* forever: also all allocations after the Nth */
    uint32_t at, count, hits;
} faults;

static bool fault_hits(void) {
    if (!faults.armed)
        return false;
    uint32_t n = faults.count++;
    bool hit = n == faults.at || (faults.forever && n > faults.at);
    faults.hits += hit;
    return hit;
}

void *__wrap_malloc(size_t size) { return fault_hits() ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t count, size_t size) {
    return fault_hits() ? NULL : __real_calloc(count, size);
}
void *__wrap_realloc(void *p, size_t size) { return fault_hits() ? NULL : __real_realloc(p, size); }

/* Runs an action for each N until it runs through without a fault; after each, `look` sees that all
 * is well. */
static void with_every_fault(int (*action)(void), void (*look)(int rc)) {
    for (int forever = 0; forever < 2; forever++) {
        uint32_t n = 0;
        for (; n < MAX_FAULTS; n++) {
            faults.at = n;
            faults.forever = forever != 0;
            faults.count = faults.hits = 0;
            faults.armed = true;
            int rc = action();
            faults.armed = false;
            look(rc);
            if (faults.hits == 0) {
                assert_int_equal(rc, 0);
                break;
            }
        }
        assert_true(n > 0 && n < MAX_FAULTS);
        print_message("%u faults%s\n", n, forever ? ", each for ever" : "");
    }
}

/* ---- what must hold */

static bool is_whole(const char *name) {
    struct snapshot *s;
    if (snapshot_open(run_dir, name, &s, NULL) != 0)
        return false;
    int rc = snapshot_verify(s, NULL, NULL, NULL);
    snapshot_close(s);
    return rc == 0;
}

static void only_whole_ones(int rc, const char *maybe) {
    struct snapshot_info *list;
    uint32_t count, broken;
    assert_int_equal(snapshot_list(run_dir, &list, &count, &broken, NULL), 0);
    assert_int_equal(broken, 0);
    bool has = false;
    for (uint32_t i = 0; i < count; i++) {
        assert_true(is_whole(list[i].name));
        has = has || strcmp(list[i].name, maybe) == 0;
    }
    free(list);
    assert_int_equal(has, rc == 0);
    assert_true(is_whole("old"));
}

/* ---- allocations */

static int take_new(void) {
    struct snapshot_info info = fixture_info(&layout, "new", 1, 2, MASK);
    struct err err = {0};
    int rc = fixture_snapshot(&store_io_posix, run_dir, &layout, &info, &err);
    assert_int_equal(rc, -err.code);
    assert_true(rc == 0 || err.text[0] != '\0');
    if (rc != 0)
        snapshot_abandon(&store_io_posix, run_dir, "new");
    return rc;
}

static void look_new(int rc) {
    assert_true(rc == 0 || rc == -ENOMEM);
    only_whole_ones(rc, "new");
    if (rc == 0)
        assert_int_equal(snapshot_remove(&store_io_posix, run_dir, "new", NULL), 0);
    assert_int_equal(snapshot_sweep(&store_io_posix, run_dir, NULL), 0);
}

static void taking_a_snapshot_without_memory(void **state) {
    (void)state;
    with_every_fault(take_new, look_new);
}

static int read_old(void) {
    struct snapshot *s;
    float out[24];
    struct err err = {0};
    int rc = snapshot_open(run_dir, "old", &s, &err);
    if (rc != 0)
        return rc;
    rc = snapshot_verify(s, NULL, NULL, &err);
    if (rc == 0)
        rc = snapshot_read_tensor(s, ARRAY_PARAMS, "h.0.w/x", 0, 24, out, &err);
    const uint8_t *base;
    uint64_t bytes;
    if (rc == 0)
        rc = snapshot_map_rank(s, 1, &base, &bytes, &err);
    snapshot_close(s);
    assert_int_equal(rc, -err.code);
    return rc;
}

static void look_memory(int rc) { assert_true(rc == 0 || rc == -ENOMEM); }

static void reading_a_snapshot_without_memory(void **state) {
    (void)state;
    with_every_fault(read_old, look_memory);
}

static int list_all(void) {
    struct snapshot_info *list;
    uint32_t count, broken;
    int rc = snapshot_list(run_dir, &list, &count, &broken, NULL);
    if (rc != 0)
        return rc;
    /* Too little memory is no damage. */
    assert_int_equal(count, 1);
    assert_int_equal(broken, 0);
    free(list);
    return 0;
}

static void listing_without_memory(void **state) {
    (void)state;
    with_every_fault(list_all, look_memory);
}

static int remove_and_sweep(void) {
    int rc = snapshot_remove(&store_io_posix, run_dir, "extra", NULL);
    return rc == 0 ? snapshot_sweep(&store_io_posix, run_dir, NULL) : rc;
}

static void look_removed(int rc) {
    look_memory(rc);
    only_whole_ones(1, "extra");
    struct snapshot_info info = fixture_info(&layout, "extra", 1, 3, MASK);
    assert_int_equal(fixture_snapshot(&store_io_posix, run_dir, &layout, &info, NULL), 0);
}

static void removing_without_memory(void **state) {
    (void)state;
    struct snapshot_info info = fixture_info(&layout, "extra", 1, 3, MASK);
    assert_int_equal(fixture_snapshot(&store_io_posix, run_dir, &layout, &info, NULL), 0);
    with_every_fault(remove_and_sweep, look_removed);
    assert_int_equal(snapshot_remove(&store_io_posix, run_dir, "extra", NULL), 0);
    assert_int_equal(snapshot_sweep(&store_io_posix, run_dir, NULL), 0);
}

static int plan_directory(void) {
    static const struct tensor_spec tensors[] = {{.name = "b", .ndim = 1, .shape = {100}},
                                                 {.name = "a", .ndim = 2, .shape = {30, 3}}};
    static const char config[] = "{\"vocab_size\":257,\"eos_token_id\":256,\"n_positions\":8}";
    struct hf_dir d;
    struct err err = {0};
    int rc = hf_dir_plan(tensors, 2, config, 400, &d, &err);
    assert_int_equal(rc, -err.code);
    if (rc == 0) {
        assert_int_equal(d.file_count, 8);
        hf_dir_free(&d);
    }
    return rc;
}

static void planning_a_directory_without_memory(void **state) {
    (void)state;
    with_every_fault(plan_directory, look_memory);
}

static int keep_history(void) {
    struct catalogue *c;
    struct catalogue_step s = {.step = 1, .epoch = 1, .gen = 1};
    struct catalogue_command cmd = {.number = 1, .id = "i", .name = "n", .value = "v"};
    int rc = catalogue_open(run_dir, &c, NULL);
    if (rc != 0)
        return rc;
    cmd.state = cmd.text = "";
    catalogue_run(c, "1", "config");
    catalogue_attempt(c, 1, 1, 1, NULL);
    catalogue_step(c, &s);
    catalogue_command(c, &cmd);
    catalogue_event(c, 1, "kind", "text");
    rc = catalogue_flush(c, false);
    catalogue_close(c);
    return rc;
}

static void keeping_history_without_memory(void **state) {
    (void)state;
    with_every_fault(keep_history, look_memory);
}

static int next_epoch(void) {
    static uint64_t last;
    uint64_t epoch;
    int rc = catalogue_next_epoch(run_dir, &epoch, NULL);
    if (rc == 0) {
        assert_true(epoch > last);
        last = epoch;
    }
    return rc;
}

static void issuing_epochs_without_memory(void **state) {
    (void)state;
    with_every_fault(next_epoch, look_memory);
}

static int make_image(void) {
    uint8_t *image;
    size_t len;
    int rc = catalogue_image(run_dir, &image, &len, NULL);
    if (rc == 0)
        free(image);
    return rc;
}

static void an_image_without_memory(void **state) {
    (void)state;
    with_every_fault(make_image, look_memory);
}

/* ---- I/O */

static int take_through(struct io_double *d, const char *name, uint64_t gen, struct err *err) {
    const struct store_io *io = io_double_table(d);
    struct snapshot_info info = fixture_info(&layout, name, 1, gen, MASK);
    int rc = fixture_snapshot(io, run_dir, &layout, &info, err);
    if (rc != 0)
        snapshot_abandon(io, run_dir, name);
    return rc;
}

static void every_operation_that_fails_is_reported(void **state) {
    (void)state;
    static const int codes[] = {ENOSPC, EIO, EDQUOT};
    char saved[sizeof(run_dir)];
    memcpy(saved, run_dir, sizeof(saved));
    uint32_t failures = 0;
    for (size_t c = 0; c < sizeof(codes) / sizeof(codes[0]); c++) {
        for (uint32_t k = 0;; k++) {
            struct err err = {0};
            fixture_dir_make(NULL, run_dir, sizeof(run_dir));
            struct io_double *d = io_double_new(run_dir);
            assert_int_equal(take_through(d, "old", 1, NULL), 0);
            uint32_t before = io_double_count(d);
            io_double_fail(d, k, codes[c], false);
            int rc = take_through(d, "new", 2, &err);
            bool done = io_double_count(d) - before <= k;
            only_whole_ones(rc, "new");
            if (!done) {
                assert_int_equal(rc, -codes[c]);
                assert_int_equal(err.code, codes[c]);
                assert_non_null(strstr(err.text, strerror(codes[c])));
                failures++;
            }
            io_double_revive(d);
            assert_int_equal(snapshot_sweep(io_double_table(d), run_dir, NULL), 0);
            if (rc != 0)
                assert_int_equal(take_through(d, "new", 3, NULL), 0);
            only_whole_ones(0, "new");
            io_double_free(d);
            fixture_dir_remove(run_dir);
            if (done)
                break;
        }
    }
    print_message("%u failures\n", failures);
    memcpy(run_dir, saved, sizeof(saved));
}

/* ---- a filesystem that cannot rename without replacing */

int __real_renameat2(int olddirfd, const char *from, int newdirfd, const char *to, unsigned flags);
int __wrap_renameat2(int olddirfd, const char *from, int newdirfd, const char *to, unsigned flags);
static int rename_code;

int __wrap_renameat2(int olddirfd, const char *from, int newdirfd, const char *to, unsigned flags) {
    if (rename_code == 0)
        return __real_renameat2(olddirfd, from, newdirfd, to, flags);
    errno = rename_code;
    return -1;
}

static void a_name_is_never_replaced_by_a_plain_rename(void **state) {
    (void)state;
    rename_code = EINVAL;
    assert_int_equal(take_new(), 0);
    only_whole_ones(0, "new");
    assert_int_equal(take_new(), -EEXIST);
    char path[PATH_MAX];
    struct snapshot *s;
    int fd = store_io_posix.open_dir(NULL, -100 /* AT_FDCWD */, run_dir);
    snprintf(path, sizeof(path), "%s/snapshots", run_dir);
    int parent = store_io_posix.open_dir(NULL, -100, path);
    assert_int_equal(store_io_posix.rename_new(NULL, parent, "old", "new"), -EEXIST);
    assert_int_equal(snapshot_open(run_dir, "new", &s, NULL), 0);
    assert_int_equal(snapshot_get_info(s)->gen, 2);
    snapshot_close(s);
    store_io_posix.close(NULL, parent);
    store_io_posix.close(NULL, fd);
    assert_int_equal(snapshot_remove(&store_io_posix, run_dir, "new", NULL), 0);
    rename_code = EXDEV;
    assert_int_equal(take_new(), -EXDEV);
    rename_code = 0;
    only_whole_ones(1, "new");
}

static int setup(void **state) {
    (void)state;
    log_set_level(LEVEL_ERROR); /* that memory is short is what is tested */
    fixture_dir_make(NULL, run_dir, sizeof(run_dir));
    if (fixture_layout(WORLD, 4, &layout) != 0)
        return -1;
    struct snapshot_info info = fixture_info(&layout, "old", 1, 1, MASK);
    return fixture_snapshot(&store_io_posix, run_dir, &layout, &info, NULL);
}

static int teardown(void **state) {
    (void)state;
    layout_free(&layout);
    fixture_dir_remove(run_dir);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(taking_a_snapshot_without_memory),
        cmocka_unit_test(reading_a_snapshot_without_memory),
        cmocka_unit_test(listing_without_memory),
        cmocka_unit_test(removing_without_memory),
        cmocka_unit_test(planning_a_directory_without_memory),
        cmocka_unit_test(keeping_history_without_memory),
        cmocka_unit_test(issuing_epochs_without_memory),
        cmocka_unit_test(an_image_without_memory),
        cmocka_unit_test(every_operation_that_fails_is_reported),
        cmocka_unit_test(a_name_is_never_replaced_by_a_plain_rename),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
