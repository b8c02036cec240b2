/* test_store_crash.c - after a crash at any moment, whatever was not synced lost in any way: every
 * listed snapshot is whole, those that were reported are there, those whose removal was reported
 * are not. And each fsync of the protocol is needed for that. */
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../unit/store_fixture.h"
#include "io_double.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* One array, few elements: what is tested is the order of operations. */
enum { MASK = ARRAY_BIT(ARRAY_PARAMS), WORLD = 2 };

static char scratch[PATH_MAX / 2];
static struct layout layout;

/* ---- what must hold in every state */

static bool complain(const char *what, const char *name, const struct err *err) {
    if (getenv("GFS_CRASH_VERBOSE") != NULL)
        fprintf(stderr, "%s %s %s\n", what, name, err != NULL ? err->text : "");
    return false;
}

static bool is_listed(const struct snapshot_info *list, uint32_t count, const char *name) {
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(list[i].name, name) == 0)
            return true;
    return false;
}

static bool is_whole(const char *dir, const char *name) {
    struct snapshot *s;
    struct err err = {0};
    if (snapshot_open(dir, name, &s, &err) != 0)
        return complain("cannot be opened:", name, &err);
    bool good = snapshot_verify(s, NULL, NULL, &err) == 0;
    snapshot_close(s);
    return good || complain("is damaged:", name, &err);
}

static bool holds(const char *dir, const struct io_double_claim *claims, uint32_t claim_count,
                  uint32_t *count) {
    struct snapshot_info *list;
    uint32_t broken;
    struct err err = {0};
    if (snapshot_list(dir, &list, count, &broken, &err) != 0)
        return complain("cannot be listed:", dir, &err);
    bool good = broken == 0 || complain("a broken one stands under its final name", "", NULL);
    for (uint32_t i = 0; good && i < *count; i++)
        good = is_whole(dir, list[i].name);
    for (uint32_t i = 0; good && i < claim_count; i++) {
        bool listed = is_listed(list, *count, claims[i].name);
        if (claims[i].mark == MARK_PRESENT && !listed)
            good = complain("is lost:", claims[i].name, NULL);
        if (claims[i].mark == MARK_ABSENT && listed)
            good = complain("came back:", claims[i].name, NULL);
    }
    free(list);
    return good;
}

/* The state itself, and what the next run makes of it: it sweeps, and takes a snapshot of a name
 * that was in use. */
static bool check_state(void *ctx, const char *dir, const struct io_double_claim *claims,
                        uint32_t count) {
    (void)ctx;
    uint32_t before, after;
    struct err err = {0};
    if (!holds(dir, claims, count, &before))
        return false;
    if (snapshot_sweep(&store_io_posix, dir, &err) != 0)
        return complain("cannot be swept:", dir, &err);
    if (!holds(dir, claims, count, &after))
        return false;
    if (before != after)
        return complain("sweeping changed the list", "", NULL);
    struct snapshot_info info = fixture_info(&layout, "next", 9, 9, MASK);
    if (fixture_snapshot(&store_io_posix, dir, &layout, &info, &err) != 0)
        return complain("no further snapshot:", "next", &err);
    return true;
}

/* ---- what a run does */

struct world {
    char run_dir[PATH_MAX / 2];
    struct io_double *d;
    const struct store_io *io;
    bool abandons; /* after a failure; else it just begins again */
};

static void world_open(struct world *w, const char *drop) {
    fixture_dir_make(scratch, w->run_dir, sizeof(w->run_dir));
    w->d = io_double_new(w->run_dir);
    w->io = io_double_table(w->d);
    w->abandons = true;
    io_double_drop(w->d, drop);
}

static void world_close(struct world *w) {
    io_double_free(w->d);
    fixture_dir_remove(w->run_dir);
}

static int take(struct world *w, const char *name, uint64_t gen) {
    struct snapshot_info info = fixture_info(&layout, name, 1, gen, MASK);
    char path[PATH_MAX], *entries[WORLD] = {NULL};
    io_double_mark(w->d, name, MARK_PENDING);
    io_double_phase(w->d, "begin");
    int rc = snapshot_begin(w->io, w->run_dir, name, path, sizeof(path), NULL);
    bool begun = rc == 0;
    io_double_phase(w->d, "write");
    for (uint32_t r = 0; rc == 0 && r < WORLD; r++) {
        uint8_t *dump = fixture_dump(&layout, MASK, r);
        rc = snapshot_write_rank(w->io, path, &layout, r, MASK, dump, info.id, NULL, NULL,
                                 &entries[r], NULL);
        free(dump);
    }
    io_double_phase(w->d, "publish");
    if (rc == 0)
        rc = snapshot_publish(w->io, w->run_dir, &info, &layout, (const char *const *)entries, "{}",
                              "{}", NULL);
    io_double_phase(w->d, "abandon");
    if (rc == 0)
        io_double_mark(w->d, name, MARK_PRESENT);
    else if (begun && w->abandons)
        snapshot_abandon(w->io, w->run_dir, name);
    fixture_entries_free(entries, WORLD);
    return rc;
}

static int drop(struct world *w, const char *name) {
    io_double_mark(w->d, name, MARK_PENDING);
    io_double_phase(w->d, "remove");
    int rc = snapshot_remove(w->io, w->run_dir, name, NULL);
    if (rc == 0)
        io_double_mark(w->d, name, MARK_ABSENT);
    return rc;
}

static void sweep(struct world *w, bool all) {
    io_double_phase(w->d, "sweep");
    if (all)
        snapshot_sweep(w->io, w->run_dir, NULL);
    else
        snapshot_sweep_removed(w->io, w->run_dir, NULL);
}

static void live(struct world *w) {
    if (take(w, "a", 1) != 0)
        take(w, "a", 1);
    if (take(w, "b", 2) != 0)
        take(w, "b", 2);
    drop(w, "a");
    sweep(w, false);
    take(w, "a", 3);
}

/* The next process: what it finds under its name after the sweep it tells to everybody. */
static void live_again(struct world *w) {
    struct snapshot_info *list = NULL;
    uint32_t count = 0;
    sweep(w, true);
    snapshot_list(w->run_dir, &list, &count, NULL, NULL);
    for (uint32_t i = 0; i < count; i++)
        io_double_mark(w->d, list[i].name, MARK_PRESENT);
    free(list);
    take(w, "c", 4);
}

/* ---- the scenarios; each returns whether all its states are as they must be */

struct tally {
    struct io_double_seen *seen;
    uint64_t states;
};

static bool crash_anywhere(struct world *w, uint32_t first, struct tally *t) {
    uint32_t bad;
    t->states += io_double_crash(w->d, first, scratch, t->seen, check_state, NULL, &bad);
    return bad == UINT32_MAX;
}

/* Number of I/O operations of a life without failures. */
static uint32_t life_length(void) {
    struct world w;
    world_open(&w, NULL);
    live(&w);
    uint32_t n = io_double_count(w.d);
    world_close(&w);
    return n;
}

static bool undisturbed(const char *class, struct tally *t) {
    struct world w;
    world_open(&w, class);
    live(&w);
    bool good = crash_anywhere(&w, 0, t);
    world_close(&w);
    return good;
}

static bool one_operation_fails(const char *class, struct tally *t, bool abandons) {
    bool good = true;
    uint32_t n = life_length();
    for (uint32_t k = 0; good && k < n; k++) {
        struct world w;
        world_open(&w, class);
        w.abandons = abandons;
        io_double_fail(w.d, k, k % 2 == 0 ? EIO : ENOSPC, false);
        live(&w);
        good = crash_anywhere(&w, 0, t);
        world_close(&w);
    }
    return good;
}

static bool the_process_dies(const char *class, struct tally *t) {
    bool good = true;
    uint32_t n = life_length();
    for (uint32_t k = 0; good && k < n; k++) {
        struct world w;
        world_open(&w, class);
        io_double_fail(w.d, k, EIO, true);
        live(&w);
        io_double_revive(w.d);
        live_again(&w);
        good = crash_anywhere(&w, 0, t);
        world_close(&w);
    }
    return good;
}

static bool all_scenarios(const char *class, uint64_t *states) {
    struct tally t = {.seen = io_double_seen_new()};
    bool good = undisturbed(class, &t) && the_process_dies(class, &t) &&
                one_operation_fails(class, &t, true) && one_operation_fails(class, &t, false);
    io_double_seen_free(t.seen);
    *states = t.states;
    return good;
}

/* ---- tests */

static void listed_snapshots_are_whole_after_any_crash(void **state) {
    (void)state;
    uint64_t states;
    assert_true(all_scenarios(NULL, &states));
    print_message("%llu states\n", (unsigned long long)states);
    assert_true(states > 1000);
}

static void each_fsync_is_needed(void **state) {
    (void)state;
    static const char *const protocol[] = {
        "begin run",         "begin snapshots",  "write rank",
        "publish manifest",  "publish tmp",      "publish snapshots",
        "abandon snapshots", "remove snapshots", "sweep snapshots",
    };
    for (size_t i = 0; i < sizeof(protocol) / sizeof(protocol[0]); i++) {
        uint64_t states;
        bool good = all_scenarios(protocol[i], &states);
        print_message("without fsync in '%s': %s after %llu states\n", protocol[i],
                      good ? "NOTHING" : "damage", (unsigned long long)states);
        assert_false(good);
    }
}

/* The list above is complete: whoever adds an fsync adds it there. */
static void the_protocol_has_no_other_fsync(void **state) {
    (void)state;
    static const char *const known = " begin run; begin snapshots; write rank; publish manifest; "
                                     "publish tmp; publish snapshots; abandon snapshots; "
                                     "remove snapshots; sweep snapshots;";
    uint32_t n = life_length();
    for (uint32_t k = 0; k < n; k++) {
        for (int abandons = 0; abandons < 2; abandons++) {
            struct world w;
            const char *const *classes;
            world_open(&w, NULL);
            w.abandons = abandons != 0;
            io_double_fail(w.d, k, EIO, false);
            live(&w);
            live_again(&w);
            uint32_t count = io_double_classes(w.d, &classes);
            for (uint32_t i = 0; i < count; i++) {
                char text[160];
                snprintf(text, sizeof(text), " %s;", classes[i]);
                assert_non_null(strstr(known, text));
            }
            world_close(&w);
        }
    }
}

/* Memory that is not on a disk makes the states in a tenth of the time. */
static int setup(void **state) {
    (void)state;
    struct stat st;
    bool shm = stat("/dev/shm", &st) == 0 && access("/dev/shm", W_OK) == 0;
    fixture_dir_make(shm ? "/dev/shm" : NULL, scratch, sizeof(scratch));
    return fixture_layout(WORLD, 1, &layout);
}

static int teardown(void **state) {
    (void)state;
    layout_free(&layout);
    fixture_dir_remove(scratch);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(listed_snapshots_are_whole_after_any_crash),
        cmocka_unit_test(each_fsync_is_needed),
        cmocka_unit_test(the_protocol_has_no_other_fsync),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
