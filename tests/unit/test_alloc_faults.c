/* test_alloc_faults.c - the Nth allocation fails, for every N: an error, no crash, no leak. Linked
 * with --wrap for malloc, calloc, realloc, strndup and free. */
#include "config.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/file.h"
#include "fixture.h"
#include "layout_check.h"
#include "link_harness.h"
#include "shard/wrap.h"
#include "wire/msg.h"

/* ---- allocations of the code under test: those of libraries and of cmocka do not come here */

static struct {
    bool armed;
    long left; /* allocations until one fails */
    bool hit;  /* it failed */
    long live; /* blocks not freed */
} faults;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *p, size_t size);
char *__real_strndup(const char *s, size_t max);
void __real_free(void *p);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *p, size_t size);
char *__wrap_strndup(const char *s, size_t max);
void __wrap_free(void *p);

static bool fails(void) {
    if (!faults.armed || --faults.left != 0)
        return false;
    faults.hit = true;
    errno = ENOMEM;
    return true;
}

static void *counted(void *p) {
    faults.live += p != NULL;
    return p;
}

void *__wrap_malloc(size_t size) { return fails() ? NULL : counted(__real_malloc(size)); }

void *__wrap_calloc(size_t count, size_t size) {
    return fails() ? NULL : counted(__real_calloc(count, size));
}

void *__wrap_realloc(void *p, size_t size) {
    if (fails())
        return NULL;
    void *fresh = __real_realloc(p, size);
    faults.live += p == NULL && fresh != NULL;
    return fresh;
}

char *__wrap_strndup(const char *s, size_t max) {
    return fails() ? NULL : counted(__real_strndup(s, max));
}

void __wrap_free(void *p) {
    faults.live -= p != NULL;
    __real_free(p);
}

/* Runs fn, which returns 0 or -errno and gives back all it took, with each of its allocations
 * failing in turn: -ENOMEM each time; then without: 0. Returns how many there are. */
static long for_every_allocation(int (*fn)(void *), void *arg) {
    for (long n = 1;; n++) {
        long live = faults.live;
        int fds = fixture_fd_count();
        faults.left = n;
        faults.hit = false;
        faults.armed = true;
        int rc = fn(arg);
        faults.armed = false;
        assert_int_equal(faults.live, live);
        assert_int_equal(fixture_fd_count(), fds);
        assert_int_equal(rc, faults.hit ? -ENOMEM : 0);
        if (!faults.hit)
            return n - 1;
        assert_true(n < 100000);
    }
}

/* ---- buf */

static int fill_buffer(void *arg) {
    struct enc e = {0};
    char want[64] = "";
    size_t len = 0;
    bool failed = false;
    (void)arg;
    for (int i = 0; i < 200 && !failed; i++) {
        size_t before = e.len_bytes;
        enc_u64(&e, 1);
        enc_str(&e, "text");
        enc_f64(&e, 2);
        enc_printf(&e, "%64s", "");
        failed = e.failed;
        len = failed ? len : e.len_bytes;
        assert_true(e.len_bytes >= before && e.len_bytes <= e.cap_bytes);
    }
    if (failed) { /* nothing is added any more; after a reset it works as before */
        size_t stays = e.len_bytes;
        enc_u8(&e, 1);
        enc_printf(&e, "x");
        enc_blob(&e, want, sizeof(want));
        assert_int_equal(e.len_bytes, stays);
        assert_true(e.failed);
        enc_reset(&e);
        enc_str(&e, "again");
        assert_false(e.failed);
        assert_int_equal(e.len_bytes, 9);
    }
    enc_free(&e);
    return failed ? -ENOMEM : 0;
}

static void a_buffer_without_memory_fails_and_recovers(void **state) {
    (void)state;
    assert_true(for_every_allocation(fill_buffer, NULL) >= 6);
}

static int read_strings(void *arg) {
    struct dec d = dec_of(arg, 16);
    char *a = dec_strdup(&d, 10), *b = dec_strdup(&d, 10);
    bool bad = d.bad;
    assert_true(bad == (a == NULL || b == NULL));
    free(a);
    free(b);
    return bad ? -ENOMEM : 0;
}

static void a_string_without_memory_is_bad(void **state) {
    (void)state;
    uint8_t two[] = {4, 0, 0, 0, 'a', 'b', 'c', 'd', 4, 0, 0, 0, 'e', 'f', 'g', 'h'};
    assert_int_equal(for_every_allocation(read_strings, two), 2);
}

/* ---- files */

static int read_file(void *arg) {
    char *data = NULL;
    size_t len = 0;
    struct err err = {0};
    int rc = file_read(arg, 1 << 20, &data, &len, &err);
    assert_true((rc == 0) == (data != NULL));
    assert_int_equal(err.code, -rc);
    free(data);
    return rc;
}

static void a_file_without_memory_is_not_read(void **state) {
    char path[4096];
    static const char text[50000];
    assert_int_equal(file_path(path, sizeof(path), "%s/f", (const char *)*state), 0);
    assert_int_equal(file_replace(path, text, sizeof(text), NULL), 0);
    assert_true(for_every_allocation(read_file, path) >= 4);
}

/* ---- layouts */

static const struct wrap_module modules[] = {{"wte", -1}, {"h.0.attn", 0}, {"h.1.attn", 1}};
static const struct tensor_spec tensors[] = {
    {.name = "wte.weight", .ndim = 2, .shape = {7, 3}, .module = 0},
    {.name = "h.0.weight", .ndim = 1, .shape = {9}, .module = 1},
    {.name = "h.1.weight", .ndim = 1, .shape = {11}, .module = 2},
};

static int build_layout(void *arg) {
    struct layout l = {.world_size = 77}, before = l;
    struct err err = {0};
    (void)arg;
    int rc = wrap_layout("block", tensors, 3, modules, 3, 3, &l, &err);
    assert_int_equal(err.code, -rc);
    if (rc != 0) {
        assert_memory_equal(&l, &before, sizeof(l));
        return rc;
    }
    faults.armed = false; /* the check allocates too */
    layout_check_tables(&l);
    layout_free(&l);
    return 0;
}

static void a_layout_without_memory_is_not_built(void **state) {
    (void)state;
    assert_true(for_every_allocation(build_layout, NULL) >= 7);
}

static int decode_layout(void *arg) {
    const struct enc *e = arg;
    struct layout l = {.world_size = 77}, before = l;
    struct err err = {0};
    struct dec d = dec_of(e->data, e->len_bytes);
    int rc = layout_decode(&d, &l, &err);
    assert_int_equal(err.code, -rc);
    if (rc != 0) {
        assert_memory_equal(&l, &before, sizeof(l));
        return rc;
    }
    layout_free(&l);
    return 0;
}

static void a_layout_without_memory_is_not_decoded(void **state) {
    (void)state;
    struct layout l;
    struct enc e = {0};
    assert_int_equal(wrap_layout("block", tensors, 3, modules, 3, 3, &l, NULL), 0);
    layout_encode(&l, &e);
    assert_true(for_every_allocation(decode_layout, &e) >= 7);
    layout_free(&l);
    enc_free(&e);
}

/* ---- links */

static int open_links(void *arg) {
    int fds[2];
    (void)arg;
    assert_int_equal(link_pair(fds), 0);
    struct link *a = link_open(fds[0], 1000), *b = link_open(fds[1], 1000);
    int rc = a != NULL && b != NULL ? 0 : -ENOMEM;
    link_close(a);
    link_close(b);
    return rc;
}

static void a_link_without_memory_closes_its_descriptor(void **state) {
    (void)state;
    assert_int_equal(for_every_allocation(open_links, NULL), 2);
}

/* Opens, sends frames with descriptors of which many wait, receives them, closes. */
static int converse(void *arg) {
    static const uint8_t payload[40000];
    struct link *a = NULL, *b = NULL;
    struct frame f;
    int fds[2], rc, *fd = arg;
    assert_int_equal(link_pair(fds), 0);
    a = link_open(fds[0], 1 << 20);
    b = link_open(fds[1], 1 << 20);
    rc = a != NULL && b != NULL ? 0 : -ENOMEM;
    for (uint64_t id = 0; rc == 0 && id < 20; id++) {
        rc = link_send(a, 1, id, payload, sizeof(payload), fd, 1);
        if (rc != 0) {
            assert_int_equal(link_send(a, 1, id, NULL, 0, NULL, 0), rc);
            assert_int_equal(link_flush(a), rc);
        }
    }
    for (uint64_t id = 0; rc == 0 && id < 20; id++) {
        int got = harness_receive(a, b, &f);
        if (got == 1)
            assert_true(f.id == id && f.len_bytes == sizeof(payload) && f.fd_count == 1);
        else
            rc = got;
    }
    if (rc != 0 && a != NULL && b != NULL && link_flush(a) == 0)
        assert_int_equal(link_fill(b), rc);
    link_close(a);
    link_close(b);
    return rc;
}

static void a_conversation_without_memory_ends_with_its_cause(void **state) {
    (void)state;
    int fd = harness_fd_make(1);
    assert_true(for_every_allocation(converse, &fd) >= 23);
    close(fd);
}

/* ---- messages */

static int send_message(void *arg) {
    struct link *a, *b;
    struct msg_rank_welcome *m = arg;
    faults.armed = false; /* opening is tested above */
    harness_pair(1 << 20, &a, &b);
    faults.armed = true;
    int rc = msg_send(a, MSG_RANK_WELCOME, 0, m, NULL, 0);
    faults.armed = false;
    if (rc != 0)
        assert_int_equal(link_flush(a), rc);
    link_close(a);
    link_close(b);
    return rc;
}

static void a_message_without_memory_ends_the_link(void **state) {
    (void)state;
    static const uint8_t text[3000];
    struct msg_rank_welcome m = {
        .run_dir = "/run", .config = {text, sizeof(text)}, .model_config = {text, sizeof(text)}};
    assert_true(for_every_allocation(send_message, &m) >= 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_buffer_without_memory_fails_and_recovers),
        cmocka_unit_test(a_string_without_memory_is_bad),
        cmocka_unit_test_setup_teardown(a_file_without_memory_is_not_read, fixture_dir_make,
                                        fixture_dir_remove),
        cmocka_unit_test(a_layout_without_memory_is_not_built),
        cmocka_unit_test(a_layout_without_memory_is_not_decoded),
        cmocka_unit_test(a_link_without_memory_closes_its_descriptor),
        cmocka_unit_test(a_conversation_without_memory_ends_with_its_cause),
        cmocka_unit_test(a_message_without_memory_ends_the_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
