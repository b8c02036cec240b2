/* test_catalogue.c - run.db: what is queued is in it, what is broken is put aside, nothing stops
 * the caller. */
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store_fixture.h"

#include "base/file.h"
#include "store/catalogue.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

static const char *path_of(const char *name) {
    static char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", run_dir, name);
    return path;
}

/* The first value of a query in a database file, as text; "" for NULL. */
static const char *query_file(const char *path, const char *sql) {
    static char out[512];
    sqlite3 *db;
    sqlite3_stmt *q;
    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    if (sqlite3_prepare_v2(db, sql, -1, &q, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    int rc = sqlite3_step(q);
    const char *text = rc == SQLITE_ROW ? (const char *)sqlite3_column_text(q, 0) : NULL;
    snprintf(out, sizeof(out), "%s", text != NULL ? text : "");
    sqlite3_finalize(q);
    sqlite3_close(db);
    return out;
}

static const char *query(const char *sql) { return query_file(path_of("run.db"), sql); }

static struct catalogue *open_it(void) {
    struct catalogue *c;
    assert_int_equal(catalogue_open(run_dir, &c, NULL), 0);
    assert_non_null(c);
    return c;
}

static void add_step(struct catalogue *c, uint64_t step) {
    struct catalogue_step s = {.step = step,
                               .attempt = 1,
                               .epoch = 2,
                               .gen = step,
                               .tokens = step * 10,
                               .time_ns = step,
                               .loss = 2.5,
                               .grad_norm = NAN,
                               .clip_factor = 1,
                               .lr = 3e-4,
                               .step_seconds = 0.25};
    catalogue_step(c, &s);
}

static void what_is_queued_is_in_the_database(void **state) {
    (void)state;
    struct catalogue *c = open_it();
    catalogue_run(c, "0.1.0", "lr = 1\n");
    catalogue_attempt(c, 1, 2, 4, NULL);
    for (uint64_t i = 1; i <= 100; i++)
        add_step(c, i);
    struct catalogue_command cmd = {
        .number = 1, .id = "x", .name = "step", .value = "100", .state = "waiting", .text = ""};
    catalogue_command(c, &cmd);
    cmd.state = "done";
    cmd.text = "step 100: reached";
    catalogue_command(c, &cmd);
    catalogue_event(c, 77, "start", "it's \"quoted\"; DROP TABLE runs");
    assert_int_equal(catalogue_flush(c, true), 0);
    assert_string_equal(query("SELECT count(*) FROM steps"), "100");
    assert_string_equal(query("SELECT loss FROM steps WHERE step = 7"), "2.5");
    assert_string_equal(query("SELECT grad_norm FROM steps WHERE step = 7"), "");
    assert_string_equal(query("SELECT config FROM runs WHERE run = 1"), "lr = 1\n");
    assert_string_equal(query("SELECT state || code || text FROM commands WHERE run = 1"),
                        "done0step 100: reached");
    assert_string_equal(query("SELECT text FROM events WHERE run = 1 AND time_ns = 77"),
                        "it's \"quoted\"; DROP TABLE runs");
    assert_string_equal(query("SELECT outcome FROM attempts WHERE epoch = 2"), "");
    catalogue_attempt(c, 1, 2, 4, "killed");
    assert_int_equal(catalogue_flush(c, false), 0);
    assert_string_equal(query("SELECT outcome || world_size FROM attempts WHERE epoch = 2"),
                        "killed4");
    assert_string_equal(query("PRAGMA user_version"), "1");
    assert_string_equal(query("PRAGMA journal_mode"), "wal");
    struct stat st;
    assert_int_equal(stat(path_of("run.db"), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    catalogue_close(c);
    assert_string_equal(query("SELECT count(*) FROM steps"), "100");
}

static void a_second_run_adds_to_the_first(void **state) {
    (void)state;
    for (uint64_t run = 1; run <= 3; run++) {
        struct catalogue *c = open_it();
        struct catalogue_command cmd = {.number = 1, .id = "", .name = "run", .value = "1"};
        catalogue_run(c, "0.1.0", "");
        cmd.state = cmd.text = "";
        catalogue_command(c, &cmd);
        add_step(c, run);
        catalogue_close(c);
    }
    assert_string_equal(query("SELECT count(*) FROM runs"), "3");
    assert_string_equal(query("SELECT count(*) FROM commands"), "3");
    assert_string_equal(query("SELECT count(*) FROM steps"), "3");
}

static void take(const char *name, uint64_t gen) {
    struct layout l;
    assert_int_equal(fixture_layout(2, 1, &l), 0);
    struct snapshot_info info = fixture_info(&l, name, 3, gen, ARRAY_MASK_STATE);
    assert_int_equal(fixture_snapshot(&store_io_posix, run_dir, &l, &info, NULL), 0);
    layout_free(&l);
}

static void snapshot_rows_follow_the_directories(void **state) {
    (void)state;
    struct snapshot_info gone = {.name = "gone", .epoch = 1};
    struct catalogue *c = open_it();
    catalogue_snapshot(c, &gone, false);
    assert_int_equal(catalogue_flush(c, false), 0);
    assert_string_equal(query("SELECT count(*) FROM snapshots WHERE removed_ns IS NULL"), "1");
    catalogue_close(c);
    take("a", 1);
    take("b", 2);
    c = open_it();
    assert_int_equal(catalogue_flush(c, false), 0);
    assert_string_equal(
        query("SELECT group_concat(name || gen) FROM snapshots WHERE removed_ns IS NULL"), "a1,b2");
    assert_string_equal(query("SELECT name FROM snapshots WHERE removed_ns IS NOT NULL"), "gone");
    struct snapshot_info info = {.name = "a"};
    catalogue_snapshot(c, &info, true);
    assert_int_equal(catalogue_flush(c, false), 0);
    assert_string_equal(query("SELECT group_concat(name) FROM snapshots WHERE removed_ns IS NULL"),
                        "b");
    catalogue_close(c);
}

static void write_file(const char *name, const void *data, size_t len) {
    int fd = open(path_of(name), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_int_equal(file_write_all(fd, data, len), 0);
    close(fd);
}

static void what_is_no_database_is_put_aside(void **state) {
    (void)state;
    static const char junk[4096] = "this is not a database";
    for (int n = 1; n <= 3; n++) {
        char aside[32];
        struct stat st;
        write_file("run.db", junk, sizeof(junk));
        struct catalogue *c = open_it();
        catalogue_event(c, 1, "a", "b");
        assert_int_equal(catalogue_flush(c, true), 0);
        catalogue_close(c);
        assert_string_equal(query("SELECT count(*) FROM events"), "1");
        snprintf(aside, sizeof(aside), "run.db.broken-%d", n);
        assert_int_equal(stat(path_of(aside), &st), 0);
        assert_int_equal(st.st_size, sizeof(junk));
    }
}

static void a_database_of_others_is_put_aside(void **state) {
    (void)state;
    static const char *const sql[] = {"CREATE TABLE x (y)", "PRAGMA user_version = 9",
                                      "PRAGMA application_id = 5"};
    for (size_t i = 0; i < 3; i++) {
        sqlite3 *db;
        char aside[32];
        struct stat st;
        unlink(path_of("run.db"));
        assert_int_equal(sqlite3_open(path_of("run.db"), &db), SQLITE_OK);
        assert_int_equal(sqlite3_exec(db, sql[i], NULL, NULL, NULL), SQLITE_OK);
        sqlite3_close(db);
        struct catalogue *c = open_it();
        catalogue_close(c);
        snprintf(aside, sizeof(aside), "run.db.broken-%d", (int)i + 1);
        assert_int_equal(stat(path_of(aside), &st), 0);
        assert_string_equal(query("PRAGMA application_id"), "1734767409");
    }
}

static void a_link_in_place_of_the_database_is_not_followed(void **state) {
    (void)state;
    struct stat st;
    write_file("elsewhere", "", 0);
    assert_int_equal(symlink("elsewhere", path_of("run.db")), 0);
    struct catalogue *c = open_it();
    catalogue_event(c, 1, "a", "b");
    assert_true(catalogue_flush(c, true) < 0);
    catalogue_close(c);
    assert_int_equal(stat(path_of("elsewhere"), &st), 0);
    assert_int_equal(st.st_size, 0);
}

static void damage_while_running_costs_history_only(void **state) {
    (void)state;
    static const char junk[16384] = "no database any more";
    struct catalogue *c = open_it();
    catalogue_run(c, "1", "");
    for (uint64_t i = 0; i < 1000; i++)
        add_step(c, i);
    assert_int_equal(catalogue_flush(c, true), 0);
    catalogue_close(c);
    /* Closed, so that the pages are in the file and not in a cache; then broken behind the back of
     * a second one. */
    c = open_it();
    catalogue_run(c, "2", "");
    int fd = open(path_of("run.db"), O_WRONLY);
    assert_int_equal(pwrite(fd, junk, sizeof(junk), 0), sizeof(junk));
    close(fd);
    add_step(c, 5);
    int rc = catalogue_flush(c, true);
    if (rc != 0) /* seen, and put aside, when it is opened again */
        print_message("flush: %s\n", strerror(-rc));
    catalogue_close(c);
    c = open_it();
    catalogue_close(c);
    assert_string_equal(query("PRAGMA integrity_check"), "ok");
}

static void a_locked_database_is_tried_again_later(void **state) {
    (void)state;
    struct catalogue *c = open_it();
    catalogue_event(c, 1, "before", "");
    assert_int_equal(catalogue_flush(c, false), 0);
    sqlite3 *other;
    assert_int_equal(sqlite3_open(path_of("run.db"), &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    catalogue_event(c, 2, "during", "");
    assert_int_equal(catalogue_flush(c, false), -EBUSY);
    assert_int_equal(catalogue_flush(c, false), -EBUSY); /* at once: not before the next try */
    sqlite3_close(other);
    catalogue_close(c); /* tries once more */
    assert_string_equal(query("SELECT group_concat(kind) FROM events"), "before,during");
}

static void what_waits_is_bounded_and_the_loss_is_told(void **state) {
    (void)state;
    struct catalogue *c = open_it();
    for (uint64_t i = 0; i < 70000; i++)
        add_step(c, i);
    catalogue_event(c, 1, "kept", "");
    assert_int_equal(catalogue_flush(c, false), 0);
    assert_string_equal(query("SELECT count(*) FROM steps"), "65536");
    assert_string_equal(query("SELECT min(step) FROM steps"), "4464");
    assert_string_equal(query("SELECT text FROM events WHERE kind = 'lost'"),
                        "4464 steps and 0 other rows were not recorded");
    assert_string_equal(query("SELECT count(*) FROM events WHERE kind = 'kept'"), "1");
    char *large = malloc(1 << 20);
    memset(large, 'x', (1 << 20) - 1);
    large[(1 << 20) - 1] = '\0';
    add_step(c, 1000000);
    for (int i = 0; i < 40; i++)
        catalogue_event(c, 1, "large", large);
    assert_int_equal(catalogue_flush(c, false), 0);
    assert_string_equal(query("SELECT count(*) FROM events WHERE kind = 'large'"), "15");
    free(large);
    catalogue_close(c);
}

static void a_directory_that_cannot_be_written_stops_nobody(void **state) {
    (void)state;
    struct catalogue *c;
    assert_int_equal(catalogue_open("/proc/self/no/such", &c, NULL), 0);
    catalogue_run(c, "1", "");
    add_step(c, 1);
    assert_true(catalogue_flush(c, true) < 0);
    catalogue_close(c);
}

static void an_image_opens_without_files_beside_it(void **state) {
    (void)state;
    uint8_t *image;
    size_t len;
    assert_int_equal(catalogue_image(run_dir, &image, &len, NULL), -ENOENT);
    struct catalogue *c = open_it();
    for (uint64_t i = 0; i < 500; i++)
        add_step(c, i);
    assert_int_equal(catalogue_flush(c, false), 0);
    struct stat st;
    assert_int_equal(stat(path_of("run.db-wal"), &st), 0); /* not all is in the file itself */
    assert_true(st.st_size > 0);
    assert_int_equal(catalogue_image(run_dir, &image, &len, NULL), 0);
    assert_int_equal(image[18], 1);
    assert_int_equal(image[19], 1);
    assert_int_equal(mkdir(path_of("mnt"), 0700), 0);
    write_file("mnt/image.db", image, len);
    assert_int_equal(chmod(path_of("mnt"), 0500), 0);
    char file[PATH_MAX];
    snprintf(file, sizeof(file), "%s", path_of("mnt/image.db"));
    assert_string_equal(query_file(file, "SELECT count(*) FROM steps"), "500");
    assert_string_equal(query_file(file, "PRAGMA integrity_check"), "ok");
    assert_string_equal(query_file(file, "PRAGMA journal_mode"), "delete");
    assert_int_equal(chmod(path_of("mnt"), 0700), 0);
    free(image);
    add_step(c, 1000);
    assert_int_equal(catalogue_flush(c, false), 0);
    catalogue_close(c);
    assert_int_equal(catalogue_image(run_dir, &image, &len, NULL), 0);
    free(image);
}

static void an_image_of_a_path_with_odd_characters(void **state) {
    (void)state;
    uint8_t *image;
    size_t len;
    char dir[PATH_MAX];
    snprintf(dir, sizeof(dir), "%s", path_of("a?b#c%41 d"));
    assert_int_equal(mkdir(dir, 0700), 0);
    struct catalogue *c;
    assert_int_equal(catalogue_open(dir, &c, NULL), 0);
    catalogue_close(c);
    assert_int_equal(catalogue_image(dir, &image, &len, NULL), 0);
    free(image);
}

static void epochs_are_never_issued_twice(void **state) {
    (void)state;
    uint64_t epoch = 0;
    for (uint64_t i = 1; i <= 5; i++) {
        assert_int_equal(catalogue_next_epoch(run_dir, &epoch, NULL), 0);
        assert_int_equal(epoch, i);
    }
    write_file("epoch", "41", 2);
    assert_int_equal(catalogue_next_epoch(run_dir, &epoch, NULL), 0);
    assert_int_equal(epoch, 42);
    static const char *const bad[] = {"",
                                      "x",
                                      "-1",
                                      "1 2",
                                      "18446744073709551615",
                                      "9223372036854775807",
                                      "99999999999999999999999"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct err err = {0};
        write_file("epoch", bad[i], strlen(bad[i]));
        assert_int_equal(catalogue_next_epoch(run_dir, &epoch, &err), -EIO);
        assert_non_null(strstr(err.text, "epoch"));
        assert_int_equal(epoch, 42);
    }
    /* Lost altogether: the snapshots know. */
    take("a", 1);
    assert_int_equal(unlink(path_of("epoch")), 0);
    assert_int_equal(catalogue_next_epoch(run_dir, &epoch, NULL), 0);
    assert_int_equal(epoch, 4);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(what_is_queued_is_in_the_database),
        TEST(a_second_run_adds_to_the_first),
        TEST(snapshot_rows_follow_the_directories),
        TEST(what_is_no_database_is_put_aside),
        TEST(a_database_of_others_is_put_aside),
        TEST(a_link_in_place_of_the_database_is_not_followed),
        TEST(damage_while_running_costs_history_only),
        TEST(a_locked_database_is_tried_again_later),
        TEST(what_waits_is_bounded_and_the_loss_is_told),
        TEST(a_directory_that_cannot_be_written_stops_nobody),
        TEST(an_image_opens_without_files_beside_it),
        TEST(an_image_of_a_path_with_odd_characters),
        TEST(epochs_are_never_issued_twice),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
