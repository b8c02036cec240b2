/* test_ckpt.c - gatherfs ckpt list, verify, rm: output, exit status, refusals. */
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store_fixture.h"

#include "base/file.h"
#include "store/ckpt.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char run_dir[PATH_MAX / 2];
static char output[8192];

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

static void take(const char *name, uint64_t gen) {
    struct layout l;
    assert_int_equal(fixture_layout(2, 1, &l), 0);
    struct snapshot_info info = fixture_info(&l, name, 3, gen, ARRAY_MASK_STATE);
    assert_int_equal(fixture_snapshot(&store_io_posix, run_dir, &l, &info, NULL), 0);
    layout_free(&l);
}

/* Runs ckpt_main in a process of its own; stdout and stderr go to `output`. "@" stands for the run
 * directory. */
static int ckpt(const char *a, const char *b, const char *c, const char *d) {
    const char *const given[] = {a, b, c, d};
    char *argv[6] = {(char *)"ckpt"};
    int argc = 1, fds[2], status;
    for (int i = 0; i < 4 && given[i] != NULL; i++)
        argv[argc++] = strcmp(given[i], "@") == 0 ? run_dir : (char *)given[i];
    assert_int_equal(pipe(fds), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fds[1], STDOUT_FILENO);
        dup2(fds[1], STDERR_FILENO);
        close(fds[0]);
        status = ckpt_main(argc, argv);
        fflush(NULL);
        _exit(status);
    }
    close(fds[1]);
    size_t len = 0;
    for (ssize_t n; (n = read(fds[0], output + len, sizeof(output) - 1 - len)) > 0;)
        len += (size_t)n;
    output[len] = '\0';
    close(fds[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void assert_says(const char *text) {
    if (strstr(output, text) == NULL)
        fail_msg("'%s' does not say '%s'", output, text);
}

static void list_is_a_table_oldest_first(void **state) {
    (void)state;
    setenv("TZ", "UTC", 1);
    take("later", 20);
    take("step-0000000009", 9);
    assert_int_equal(ckpt("list", "@", NULL, NULL), 0);
    assert_string_equal(
        output, "NAME                   STEP   EPOCH        SIZE  RANKS  WHEN\n"
                "step-0000000009           9       3     8.7 KiB      2  2023-11-14 22:13:20\n"
                "later                    20       3     8.7 KiB      2  2023-11-14 22:13:20\n");
}

static void list_of_none_says_so(void **state) {
    (void)state;
    take("a", 1);
    assert_int_equal(ckpt("rm", "@", "a", NULL), 0);
    assert_int_equal(ckpt("list", "@", NULL, NULL), 0);
    assert_string_equal(output, "no snapshots\n");
}

static void damage(const char *name) {
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/snapshots/%s", run_dir, name);
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, "x", 1, SNAPSHOT_HEADER_BYTES + 4), 1);
    close(fd);
}

static void list_names_what_is_broken(void **state) {
    (void)state;
    char path[PATH_MAX];
    take("a", 1);
    take("b", 2);
    snprintf(path, sizeof(path), "%s/snapshots/b/manifest.json", run_dir);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(ckpt("list", "@", NULL, NULL), 1);
    assert_says("a   ");
    assert_says("gatherfs ckpt: b: manifest.json: cannot be opened");
}

static void verify_reads_all_or_some(void **state) {
    (void)state;
    take("a", 1);
    take("b", 2);
    assert_int_equal(ckpt("verify", "@", NULL, NULL), 0);
    assert_says("a: ok, 8.7 KiB\n");
    assert_says("b: ok, 8.7 KiB\n");
    damage("b/rank-1.bin");
    assert_int_equal(ckpt("verify", "@", NULL, NULL), 1);
    assert_says("a: ok");
    assert_says("b: FAILED\n");
    assert_says("gatherfs ckpt: b/rank-1.bin: wrong checksum");
    assert_int_equal(ckpt("verify", "@", "a", NULL), 0);
    assert_int_equal(ckpt("verify", "@", "a", "b"), 1);
    assert_int_equal(ckpt("verify", "@", "c", NULL), 1);
    assert_says("there is no snapshot c");
    assert_true(strchr(output, '\r') == NULL); /* no progress where no terminal is */
}

static void rm_deletes_files_too(void **state) {
    (void)state;
    char path[PATH_MAX];
    struct stat st;
    take("a", 1);
    take("b", 2);
    take("c", 3);
    assert_int_equal(ckpt("rm", "@", "a", "b"), 0);
    assert_string_equal(output, "");
    snprintf(path, sizeof(path), "%s/snapshots/a", run_dir);
    assert_true(lstat(path, &st) != 0);
    snprintf(path, sizeof(path), "%s/snapshots/.del-a", run_dir);
    assert_true(lstat(path, &st) != 0);
    assert_int_equal(ckpt("rm", "@", "a", "c"), 1); /* goes on after the first */
    assert_says("there is no snapshot a");
    assert_int_equal(ckpt("list", "@", NULL, NULL), 0);
    assert_string_equal(output, "no snapshots\n");
}

static void rm_is_refused_while_a_run_is_alive(void **state) {
    (void)state;
    char path[PATH_MAX];
    take("a", 1);
    snprintf(path, sizeof(path), "%s/lock", run_dir);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_int_equal(ckpt("rm", "@", "a", NULL), 1);
    assert_says("a run is alive there");
    assert_says("rmdir");
    assert_int_equal(ckpt("list", "@", NULL, NULL), 0);
    assert_says("a  ");
    assert_int_equal(ckpt("verify", "@", NULL, NULL), 0);
    close(fd);
    assert_int_equal(ckpt("rm", "@", "a", NULL), 0);
}

static void wrong_command_lines_are_two(void **state) {
    (void)state;
    take("a", 1);
    assert_int_equal(ckpt(NULL, NULL, NULL, NULL), 2);
    assert_int_equal(ckpt("list", NULL, NULL, NULL), 2);
    assert_int_equal(ckpt("lost", "@", NULL, NULL), 2);
    assert_int_equal(ckpt("list", "@", "a", NULL), 2);
    assert_int_equal(ckpt("rm", "@", NULL, NULL), 2);
    assert_int_equal(ckpt("rm", "@", "../a", NULL), 2);
    assert_int_equal(ckpt("--force", "rm", "@", "a"), 2);
    assert_says("--help");
    assert_int_equal(ckpt("--help", NULL, NULL, NULL), 0);
    assert_says("usage: gatherfs ckpt list RUN_DIR");
    assert_int_equal(ckpt("rm", "--help", NULL, NULL), 0);
    assert_int_equal(ckpt("list", "/nonexistent", NULL, NULL), 1);
    assert_int_equal(ckpt("list", "/", NULL, NULL), 1);
    assert_says("is it a run directory?");
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(list_is_a_table_oldest_first), TEST(list_of_none_says_so),
        TEST(list_names_what_is_broken),    TEST(verify_reads_all_or_some),
        TEST(rm_deletes_files_too),         TEST(rm_is_refused_while_a_run_is_alive),
        TEST(wrong_command_lines_are_two),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
