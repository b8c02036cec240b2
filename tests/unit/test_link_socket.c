/* test_link_socket.c - sockets with a name: long folders, modes, who calls. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "fixture.h"
#include "link_harness.h"

static void expect_conversation(const char *dir, const char *name) {
    int listening = link_listen(dir, name), calling = link_connect(dir, name);
    assert_true(listening >= 0 && calling >= 0);
    struct pollfd p = {.fd = listening, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 10000), 1);
    int called = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
    assert_true(called >= 0);
    struct link *a = link_open(calling, 1000), *b = link_open(called, 1000);
    struct frame f;
    uint32_t uid = UINT32_MAX;
    assert_true(a != NULL && b != NULL);
    assert_int_equal(link_peer_uid(called, &uid), 0);
    assert_int_equal(uid, getuid());
    assert_int_equal(link_send(a, 5, 6, "hi", 2, NULL, 0), 0);
    assert_int_equal(harness_receive(a, b, &f), 1);
    assert_int_equal(f.type, 5);
    link_close(a);
    link_close(b);
    close(listening);
}

static void a_named_socket_carries_links(void **state) {
    int before = fixture_fd_count();
    expect_conversation(*state, "socket");
    assert_int_equal(fixture_fd_count(), before);
}

/* sun_path has 108 bytes; run directories may be deeper. */
static void a_folder_may_be_longer_than_a_socket_address(void **state) {
    char dir[2000];
    size_t n = (size_t)snprintf(dir, sizeof(dir), "%s", (const char *)*state);
    while (n < 1000) {
        n += (size_t)snprintf(dir + n, sizeof(dir) - n, "/%0100d", 7);
        assert_int_equal(mkdir(dir, 0700), 0);
    }
    expect_conversation(dir, "socket");
}

static void a_socket_left_by_another_is_replaced(void **state) {
    int old = link_listen(*state, "socket");
    assert_true(old >= 0);
    close(old);
    assert_int_equal(link_connect(*state, "socket"), -ECONNREFUSED);
    expect_conversation(*state, "socket");
}

static void the_mode_is_0600_whatever_the_umask(void **state) {
    char path[4096];
    struct stat st;
    snprintf(path, sizeof(path), "%s/socket", (const char *)*state);
    mode_t mask = umask(0);
    int fd = link_listen(*state, "socket");
    umask(mask);
    assert_true(fd >= 0);
    assert_int_equal(stat(path, &st), 0);
    assert_true(S_ISSOCK(st.st_mode));
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_true((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    assert_true((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
    close(fd);
}

static void what_cannot_be_listened_on_or_called_is_an_error(void **state) {
    int before = fixture_fd_count();
    char missing[4096], name[200];
    snprintf(missing, sizeof(missing), "%s/missing", (const char *)*state);
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    assert_int_equal(link_listen(missing, "socket"), -ENOENT);
    assert_int_equal(link_connect(missing, "socket"), -ENOENT);
    assert_int_equal(link_connect(*state, "socket"), -ENOENT);
    assert_int_equal(link_listen(*state, name), -ENAMETOOLONG);
    assert_int_equal(link_connect(*state, name), -ENAMETOOLONG);
    uint32_t uid = 5;
    assert_int_equal(link_peer_uid(-1, &uid), -EBADF);
    assert_int_equal(uid, 5);
    assert_int_equal(fixture_fd_count(), before);
}

int main(void) {
#define IN_DIR(test) cmocka_unit_test_setup_teardown(test, fixture_dir_make, fixture_dir_remove)
    const struct CMUnitTest tests[] = {
        IN_DIR(a_named_socket_carries_links),
        IN_DIR(a_folder_may_be_longer_than_a_socket_address),
        IN_DIR(a_socket_left_by_another_is_replaced),
        IN_DIR(the_mode_is_0600_whatever_the_umask),
        IN_DIR(what_cannot_be_listened_on_or_called_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
