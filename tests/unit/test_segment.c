/* test_segment.c - memory that a peer can neither shrink nor grow under a mapping. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/segment.h"
#include "fixture.h"

enum { HUGE_BYTES = 2 << 20 };

static size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

/* A memfd of `bytes`, sealed or not. */
static int memfd_of(size_t bytes, int seals) {
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    if (seals != 0)
        assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void a_segment_is_zero_and_a_multiple_of_pages(void **state) {
    (void)state;
    int before = fixture_fd_count();
    const size_t page = page_bytes(), sizes[] = {0, 1, page - 1, page, page + 1, 3000000};
    for (size_t i = 0; i < 2 * sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct segment s;
        struct stat st;
        size_t size = sizes[i / 2], bits = 0;
        assert_int_equal(segment_create("test", size, i % 2 == 0, &s), 0);
        assert_true(s.bytes >= size && s.bytes >= page && s.bytes - size <= page);
        assert_int_equal(s.bytes % page, 0);
        assert_int_equal(fstat(s.fd, &st), 0);
        assert_int_equal(st.st_size, s.bytes);
        assert_true((size_t)st.st_blocks * 512 >= s.bytes); /* all is there, not only promised */
        assert_true((fcntl(s.fd, F_GETFD) & FD_CLOEXEC) != 0);
        for (size_t k = 0; k < s.bytes; k++)
            bits |= s.base[k];
        assert_int_equal(bits, 0);
        memset(s.base, 0x5a, s.bytes);
        segment_close(&s);
        assert_int_equal(s.fd, -1);
        assert_null(s.base);
        segment_close(&s);
    }
    assert_int_equal(fixture_fd_count(), before);
}

static void a_segment_cannot_shrink_or_grow(void **state) {
    (void)state;
    struct segment s;
    assert_int_equal(segment_create("test", 10000, true, &s), 0);
    assert_int_equal(ftruncate(s.fd, 0), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(ftruncate(s.fd, (off_t)s.bytes - 1), -1);
    assert_int_equal(ftruncate(s.fd, (off_t)s.bytes + 1), -1);
    assert_int_equal(fallocate(s.fd, 0, (off_t)s.bytes, 4096), -1);
    assert_int_equal(fcntl(s.fd, F_ADD_SEALS, F_SEAL_WRITE), -1); /* nor be sealed further */
    assert_int_equal(fcntl(s.fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    segment_close(&s);
}

static void what_no_memory_can_hold_is_refused(void **state) {
    (void)state;
    int before = fixture_fd_count();
    struct segment s = SEGMENT_EMPTY;
    assert_int_equal(segment_create("test", SIZE_MAX, false, &s), -ENOMEM);
    assert_int_equal(segment_create("test", SIZE_MAX / 2 + 1, false, &s), -ENOMEM);
    assert_int_equal(segment_create("test", SIZE_MAX / 2, false, &s), -ENOMEM);
    assert_int_equal(s.fd, -1);
    assert_int_equal(fixture_fd_count(), before);
}

static void an_adopted_segment_shows_what_the_peer_writes(void **state) {
    (void)state;
    struct segment mine, theirs;
    assert_int_equal(segment_create("test", 10000, true, &mine), 0);
    assert_int_equal(segment_adopt(dup(mine.fd), 10000, false, &theirs), 0);
    assert_int_equal(theirs.bytes, mine.bytes);
    assert_ptr_not_equal(theirs.base, mine.base);
    memcpy(mine.base + 5000, "hello", 5);
    assert_memory_equal(theirs.base + 5000, "hello", 5);
    segment_close(&theirs);
    assert_int_equal(segment_adopt(dup(mine.fd), mine.bytes, true, &theirs), 0);
    theirs.base[0] = 7;
    assert_int_equal(mine.base[0], 7);
    segment_close(&mine); /* the mapping outlives the maker */
    assert_memory_equal(theirs.base + 5000, "hello", 5);
    segment_close(&theirs);
}

static void adopting_for_reading_needs_no_right_to_write(void **state) {
    (void)state;
    struct segment s;
    int fd = memfd_of(4096, F_SEAL_SHRINK | F_SEAL_WRITE);
    assert_int_equal(segment_adopt(dup(fd), 1, false, &s), 0);
    segment_close(&s);
    int before = fixture_fd_count();
    assert_true(segment_adopt(dup(fd), 1, true, &s) < 0);
    assert_int_equal(fixture_fd_count(), before);
    close(fd);
}

static void expect_not_adopted(int fd, size_t min_bytes) {
    int before = fixture_fd_count();
    struct segment s = SEGMENT_EMPTY;
    assert_int_equal(segment_adopt(fd, min_bytes, false, &s), -EPROTO);
    assert_int_equal(s.fd, -1);
    assert_null(s.base);
    if (fd >= 0) {
        assert_int_equal(fixture_fd_count(), before - 1); /* taken over all the same */
        assert_int_equal(fcntl(fd, F_GETFD), -1);
    }
}

static void what_may_shrink_is_not_adopted(void **state) {
    (void)state;
    expect_not_adopted(memfd_of(8192, 0), 100);
    expect_not_adopted(memfd_of(8192, F_SEAL_GROW), 100);
    expect_not_adopted(memfd_of(8192, F_SEAL_GROW | F_SEAL_WRITE), 100);
}

static void what_is_too_short_is_not_adopted(void **state) {
    (void)state;
    expect_not_adopted(memfd_of(4096, F_SEAL_SHRINK), 4097);
    expect_not_adopted(memfd_of(4096, F_SEAL_SHRINK), SIZE_MAX);
    expect_not_adopted(memfd_of(0, F_SEAL_SHRINK), 0);
}

static void what_is_no_memfd_is_not_adopted(void **state) {
    int p[2], dir = open(*state, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int file = openat(dir, "file", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(ftruncate(file, 8192), 0);
    assert_int_equal(pipe(p), 0);
    expect_not_adopted(file, 100);
    expect_not_adopted(dir, 0);
    expect_not_adopted(p[0], 0);
    expect_not_adopted(p[1], 0);
    expect_not_adopted(open("/dev/zero", O_RDWR | O_CLOEXEC), 100);
    expect_not_adopted(-1, 0);
}

static void private_memory_starts_at_a_huge_page_and_is_zero(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 4096, HUGE_BYTES, HUGE_BYTES + 1, 3 * HUGE_BYTES};
    uint8_t *p[6];
    for (size_t i = 0; i < 6; i++) {
        p[i] = segment_private_alloc(sizes[i]);
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % HUGE_BYTES, 0);
        for (size_t k = 0; k < sizes[i]; k++) {
            assert_int_equal(p[i][k], 0);
            p[i][k] = (uint8_t)(i + 1);
        }
    }
    for (size_t i = 0; i < 6; i++) { /* none overlaps another */
        for (size_t k = 0; k < sizes[i]; k++)
            if (p[i][k] != i + 1)
                fail();
        segment_private_free(p[i], sizes[i]);
    }
    assert_null(segment_private_alloc(SIZE_MAX));
    assert_null(segment_private_alloc(SIZE_MAX / 2));
    segment_private_free(NULL, 5);
}

/* Pages of a mapping that is gone cannot be asked for. */
static void private_memory_is_given_back_whole(void **state) {
    (void)state;
    static const size_t sizes[] = {1, HUGE_BYTES, HUGE_BYTES + 1};
    for (size_t i = 0; i < 3; i++) {
        size_t whole = (sizes[i] + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES, page = page_bytes();
        uint8_t *p = segment_private_alloc(sizes[i]);
        unsigned char here;
        assert_non_null(p);
        assert_int_equal(mincore(p, page, &here), 0);
        assert_int_equal(mincore(p + whole - page, page, &here), 0);
        segment_private_free(p, sizes[i]);
        for (size_t at = 0; at < whole; at += page)
            assert_int_equal(mincore(p + at, page, &here), -1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_segment_is_zero_and_a_multiple_of_pages),
        cmocka_unit_test(a_segment_cannot_shrink_or_grow),
        cmocka_unit_test(what_no_memory_can_hold_is_refused),
        cmocka_unit_test(an_adopted_segment_shows_what_the_peer_writes),
        cmocka_unit_test(adopting_for_reading_needs_no_right_to_write),
        cmocka_unit_test(what_may_shrink_is_not_adopted),
        cmocka_unit_test(what_is_too_short_is_not_adopted),
        cmocka_unit_test_setup_teardown(what_is_no_memfd_is_not_adopted, fixture_dir_make,
                                        fixture_dir_remove),
        cmocka_unit_test(private_memory_starts_at_a_huge_page_and_is_zero),
        cmocka_unit_test(private_memory_is_given_back_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
