/* test_file.c - whole files: limits, replacement that leaves the old or the new, trees without
 * links followed. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "fixture.h"

/* A path in the test's directory; one at a time. */
static const char *in(void **state, const char *name) {
    static char path[4096];
    assert_int_equal(file_path(path, sizeof(path), "%s/%s", (const char *)*state, name), 0);
    return path;
}

static void put(const char *path, const void *data, size_t len, mode_t mode) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    assert_true(fd >= 0);
    assert_int_equal(file_write_all(fd, data, len), 0);
    close(fd);
}

static void expect_content(const char *path, const char *want) {
    char *data;
    size_t len;
    assert_int_equal(file_read(path, 1 << 20, &data, &len, NULL), 0);
    assert_int_equal(len, strlen(want));
    assert_string_equal(data, want);
    free(data);
}

static unsigned mode_of(const char *path) {
    struct stat st;
    assert_int_equal(lstat(path, &st), 0);
    return st.st_mode & 07777;
}

/* ---- reading */

static void a_file_is_read_whole_up_to_its_limit(void **state) {
    static const size_t sizes[] = {0, 1, 4095, 4096, 4097, 8191, 8192, 8193, 100000};
    char *bytes = malloc(100000);
    assert_non_null(bytes);
    for (size_t i = 0; i < 100000; i++)
        bytes[i] = (char)(i * 7);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        char *data = NULL;
        size_t len = 0;
        struct err err = {0};
        put(in(state, "f"), bytes, sizes[i], 0600);
        assert_int_equal(file_read(in(state, "f"), sizes[i], &data, &len, &err), 0);
        assert_int_equal(len, sizes[i]);
        if (len != 0)
            assert_memory_equal(data, bytes, len);
        assert_int_equal(data[len], '\0');
        free(data);
        assert_int_equal(file_read(in(state, "f"), SIZE_MAX, &data, NULL, &err), 0);
        free(data);
        if (sizes[i] == 0)
            continue;
        data = NULL;
        assert_int_equal(file_read(in(state, "f"), sizes[i] - 1, &data, &len, &err), -EFBIG);
        assert_null(data);
        assert_int_equal(err.code, EFBIG);
        assert_non_null(strstr(err.text, "/f: cannot be read"));
    }
    free(bytes);
}

static void what_cannot_be_read_is_an_error_with_its_path(void **state) {
    int before = fixture_fd_count();
    char *data = NULL;
    struct err err = {0};
    assert_int_equal(file_read(in(state, "missing"), 100, &data, NULL, &err), -ENOENT);
    assert_non_null(strstr(err.text, "/missing: "));
    assert_int_equal(file_read(*state, 100, &data, NULL, NULL), -EISDIR);
    assert_null(data);
    assert_int_equal(fixture_fd_count(), before);
}

static void pread_all_reads_from_anywhere_and_not_beyond(void **state) {
    char out[4] = "";
    put(in(state, "f"), "0123456789", 10, 0600);
    int fd = open(in(state, "f"), O_RDONLY | O_CLOEXEC);
    assert_int_equal(file_pread_all(fd, out, 3, 4), 0);
    assert_string_equal(out, "456");
    assert_int_equal(file_pread_all(fd, out, 0, 100), 0);
    assert_int_equal(file_pread_all(fd, out, 3, 7), 0);
    assert_int_equal(file_pread_all(fd, out, 3, 8), -EIO);
    assert_int_equal(file_pread_all(fd, out, 1, 10), -EIO);
    assert_int_equal(file_pread_all(fd, out, 1, UINT64_MAX), -EINVAL);
    close(fd);
    assert_int_equal(file_pread_all(fd, out, 1, 0), -EBADF);
}

static void write_all_writes_through_a_pipe_that_is_smaller(void **state) {
    (void)state;
    enum { BYTES = 1 << 20 };
    int p[2];
    static char data[BYTES];
    assert_int_equal(pipe(p), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char buf[5000];
        size_t got = 0;
        ssize_t n;
        close(p[1]);
        while ((n = read(p[0], buf, sizeof(buf))) > 0)
            got += (size_t)n;
        _exit(got == BYTES ? 0 : 1);
    }
    close(p[0]);
    assert_int_equal(file_write_all(p[1], data, BYTES), 0);
    close(p[1]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(file_write_all(-1, data, 1), -EBADF);
    assert_int_equal(file_write_all(-1, data, 0), 0);
}

/* ---- replacing */

static void replace_makes_and_replaces_with_mode_0600(void **state) {
    int before = fixture_fd_count();
    mode_t mask = umask(0);
    assert_int_equal(file_replace(in(state, "f"), "one", 3, NULL), 0);
    expect_content(in(state, "f"), "one");
    assert_int_equal(mode_of(in(state, "f")), 0600);
    assert_int_equal(file_replace(in(state, "f"), "", 0, NULL), 0);
    expect_content(in(state, "f"), "");
    assert_int_equal(chmod(in(state, "f"), 0644), 0);
    assert_int_equal(file_replace(in(state, "f"), "three", 5, NULL), 0);
    expect_content(in(state, "f"), "three");
    assert_int_equal(mode_of(in(state, "f")), 0600);
    assert_int_equal(access(in(state, "f.tmp"), F_OK), -1);
    umask(mask);
    assert_int_equal(fixture_fd_count(), before);
}

/* Who has the old file open keeps the old content: it is another file that takes the name. */
static void replace_leaves_the_old_file_to_its_readers(void **state) {
    char out[8] = "";
    put(in(state, "f"), "old", 3, 0600);
    int fd = open(in(state, "f"), O_RDONLY | O_CLOEXEC);
    assert_int_equal(file_replace(in(state, "f"), "new", 3, NULL), 0);
    assert_int_equal(file_pread_all(fd, out, 3, 0), 0);
    assert_string_equal(out, "old");
    expect_content(in(state, "f"), "new");
    close(fd);
}

/* At each moment the name is there, whole, with one content or the other. */
static void replace_is_atomic_for_those_who_read_meanwhile(void **state) {
    enum { BYTES = 20000, ROUNDS = 200 };
    static char a[BYTES], b[BYTES];
    memset(a, 'a', BYTES);
    memset(b, 'b', BYTES);
    assert_int_equal(file_replace(in(state, "f"), a, BYTES, NULL), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        for (int i = 0; i < ROUNDS; i++)
            if (file_replace(in(state, "f"), i % 2 == 0 ? b : a, BYTES, NULL) != 0)
                _exit(1);
        _exit(0);
    }
    int status, wrong = 0;
    do {
        char *data = NULL;
        size_t len = 0;
        int rc = file_read(in(state, "f"), BYTES, &data, &len, NULL);
        wrong +=
            rc != 0 || len != BYTES || (memcmp(data, a, len) != 0 && memcmp(data, b, len) != 0);
        free(data);
    } while (waitpid(child, &status, WNOHANG) == 0);
    assert_int_equal(status, 0);
    assert_int_equal(wrong, 0);
}

/* A crash leaves a temporary file; it may be anything. */
static void replace_takes_nothing_from_a_temporary_file_left_behind(void **state) {
    put(in(state, "f.tmp"), "a longer rest", 13, 0644);
    assert_int_equal(chmod(in(state, "f.tmp"), 0666), 0);
    assert_int_equal(file_replace(in(state, "f"), "new", 3, NULL), 0);
    expect_content(in(state, "f"), "new");
    assert_int_equal(mode_of(in(state, "f")), 0600);
    /* A second name of another file, and a link to one. */
    char target[4096];
    snprintf(target, sizeof(target), "%s", in(state, "other"));
    put(target, "other", 5, 0600);
    assert_int_equal(link(target, in(state, "f.tmp")), 0);
    assert_int_equal(file_replace(in(state, "f"), "newer", 5, NULL), 0);
    expect_content(in(state, "f"), "newer");
    expect_content(target, "other");
    assert_int_equal(symlink(target, in(state, "f.tmp")), 0);
    assert_int_equal(file_replace(in(state, "f"), "newest", 6, NULL), 0);
    expect_content(in(state, "f"), "newest");
    expect_content(target, "other");
}

static void replace_that_fails_leaves_the_old_file_and_nothing_else(void **state) {
    int before = fixture_fd_count();
    struct err err = {0};
    assert_int_equal(file_replace(in(state, "no/f"), "x", 1, &err), -ENOENT);
    assert_non_null(strstr(err.text, "cannot create"));
    assert_int_equal(mkdir(in(state, "d"), 0700), 0);
    put(in(state, "d/in"), "x", 1, 0600);
    err = (struct err){0};
    assert_int_equal(file_replace(in(state, "d"), "x", 1, &err), -EISDIR);
    assert_non_null(strstr(err.text, "cannot rename"));
    assert_int_equal(access(in(state, "d.tmp"), F_OK), -1);
    expect_content(in(state, "d/in"), "x");
    char path[5000];
    memset(path, 'p', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    assert_int_equal(file_replace(path, "x", 1, NULL), -ENAMETOOLONG);
    assert_int_equal(fixture_fd_count(), before);
}

static void replace_without_a_folder_means_the_current_one(void **state) {
    char old[4096];
    assert_non_null(getcwd(old, sizeof(old)));
    assert_int_equal(chdir(*state), 0);
    assert_int_equal(file_replace("plain", "x", 1, NULL), 0);
    assert_int_equal(chdir(old), 0);
    expect_content(in(state, "plain"), "x");
}

/* ---- paths */

static void a_path_fits_or_is_an_error(void **state) {
    (void)state;
    char out[8];
    assert_int_equal(file_path(out, sizeof(out), "%s/%s", "abc", "def"), 0);
    assert_string_equal(out, "abc/def");
    assert_int_equal(file_path(out, sizeof(out), "%s/%s", "abc", "defg"), -ENAMETOOLONG);
}

static void the_folder_of_the_program_is_found(void **state) {
    (void)state;
    char exe[4096] = "", dir[4096], small[4];
    assert_true(readlink("/proc/self/exe", exe, sizeof(exe) - 1) > 0);
    assert_int_equal(file_exe_dir(dir, sizeof(dir)), 0);
    assert_memory_equal(exe, dir, strlen(dir));
    assert_int_equal(exe[strlen(dir)], '/');
    assert_null(strchr(exe + strlen(dir) + 1, '/'));
    assert_int_equal(file_exe_dir(small, sizeof(small)), -ENAMETOOLONG);
}

/* ---- removing */

static int open_dir(void **state) {
    int fd = open(*state, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static void a_tree_is_removed_with_all_it_holds(void **state) {
    int before = fixture_fd_count(), dir = open_dir(state);
    assert_int_equal(mkdir(in(state, "t"), 0700), 0);
    assert_int_equal(mkdir(in(state, "t/a"), 0700), 0);
    assert_int_equal(mkdir(in(state, "t/a/b"), 0700), 0);
    for (int i = 0; i < 500; i++) {
        char name[32];
        snprintf(name, sizeof(name), "t/a/file%d", i);
        put(in(state, name), "x", 1, 0600);
    }
    put(in(state, "t/a/b/.hidden"), "x", 1, 0400);
    assert_int_equal(mkfifo(in(state, "t/pipe"), 0600), 0);
    put(in(state, "beside"), "x", 1, 0600);
    assert_int_equal(file_remove_tree(dir, "t", NULL), 0);
    assert_int_equal(access(in(state, "t"), F_OK), -1);
    expect_content(in(state, "beside"), "x");
    assert_int_equal(file_remove_tree(dir, "beside", NULL), 0); /* a file is a small tree */
    assert_int_equal(file_remove_tree(dir, "beside", NULL), 0); /* missing is success */
    close(dir);
    assert_int_equal(fixture_fd_count(), before);
}

static void links_are_removed_and_not_followed(void **state) {
    int dir = open_dir(state);
    char outside[4096];
    snprintf(outside, sizeof(outside), "%s", in(state, "outside"));
    assert_int_equal(mkdir(outside, 0700), 0);
    put(in(state, "outside/kept"), "x", 1, 0600);
    assert_int_equal(mkdir(in(state, "t"), 0700), 0);
    assert_int_equal(symlink(outside, in(state, "t/absolute")), 0);
    assert_int_equal(symlink("../outside", in(state, "t/relative")), 0);
    assert_int_equal(symlink("../outside/kept", in(state, "t/file")), 0);
    assert_int_equal(symlink("nowhere", in(state, "t/dangling")), 0);
    assert_int_equal(file_remove_tree(dir, "t", NULL), 0);
    expect_content(in(state, "outside/kept"), "x");
    assert_int_equal(symlink("outside", in(state, "link")), 0);
    assert_int_equal(file_remove_tree(dir, "link", NULL), 0);
    expect_content(in(state, "outside/kept"), "x");
    close(dir);
}

/* A name that leads out of the folder, or is the folder itself, removes nothing. */
static void only_a_name_can_be_removed(void **state) {
    static const char *const bad[] = {"", ".", "../outside", "t/..", "t/a", "./t", "..", "/"};
    char below[4096];
    assert_int_equal(mkdir(in(state, "outside"), 0700), 0);
    put(in(state, "outside/kept"), "x", 1, 0600);
    assert_int_equal(mkdir(in(state, "below"), 0700), 0);
    assert_int_equal(mkdir(in(state, "below/t"), 0700), 0);
    put(in(state, "below/t/a"), "x", 1, 0600);
    snprintf(below, sizeof(below), "%s", in(state, "below"));
    int dir = open(below, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct err err = {0};
        assert_int_equal(file_remove_tree(dir, bad[i], &err), -EINVAL);
        assert_int_equal(err.code, EINVAL);
    }
    expect_content(in(state, "outside/kept"), "x");
    expect_content(in(state, "below/t/a"), "x");
    close(dir);
}

static void a_tree_deeper_than_ours_ever_are_is_an_error(void **state) {
    int before = fixture_fd_count(), dir = open_dir(state);
    char path[4096];
    struct err err = {0};
    size_t n = (size_t)snprintf(path, sizeof(path), "%s/t", (const char *)*state);
    assert_int_equal(mkdir(path, 0700), 0);
    for (int i = 0; i < 30; i++) {
        n += (size_t)snprintf(path + n, sizeof(path) - n, "/d");
        assert_int_equal(mkdir(path, 0700), 0);
    }
    assert_int_equal(file_remove_tree(dir, "t", &err), -ELOOP);
    assert_non_null(strstr(err.text, "t: cannot be removed"));
    close(dir);
    assert_int_equal(fixture_fd_count(), before);
}

int main(void) {
#define IN_DIR(test) cmocka_unit_test_setup_teardown(test, fixture_dir_make, fixture_dir_remove)
    const struct CMUnitTest tests[] = {
        IN_DIR(a_file_is_read_whole_up_to_its_limit),
        IN_DIR(what_cannot_be_read_is_an_error_with_its_path),
        IN_DIR(pread_all_reads_from_anywhere_and_not_beyond),
        IN_DIR(write_all_writes_through_a_pipe_that_is_smaller),
        IN_DIR(replace_makes_and_replaces_with_mode_0600),
        IN_DIR(replace_leaves_the_old_file_to_its_readers),
        IN_DIR(replace_is_atomic_for_those_who_read_meanwhile),
        IN_DIR(replace_takes_nothing_from_a_temporary_file_left_behind),
        IN_DIR(replace_that_fails_leaves_the_old_file_and_nothing_else),
        IN_DIR(replace_without_a_folder_means_the_current_one),
        IN_DIR(a_path_fits_or_is_an_error),
        IN_DIR(the_folder_of_the_program_is_found),
        IN_DIR(a_tree_is_removed_with_all_it_holds),
        IN_DIR(links_are_removed_and_not_followed),
        IN_DIR(only_a_name_can_be_removed),
        IN_DIR(a_tree_deeper_than_ours_ever_are_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
