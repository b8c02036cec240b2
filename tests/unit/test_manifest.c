/* test_manifest.c - manifests that are not exactly what was written, and directories with any byte
 * flipped. */
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store_fixture.h"

#include "base/file.h"
#include "store/manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { MASK = ARRAY_BIT(ARRAY_PARAMS) | ARRAY_BIT(ARRAY_EXP_AVG), WORLD = 2 };
static const struct store_io *const io = &store_io_posix;
static char run_dir[PATH_MAX / 2];

static int setup(void **state) {
    (void)state;
    struct layout l;
    fixture_dir_make(NULL, run_dir, sizeof(run_dir));
    if (fixture_layout(WORLD, 4, &l) != 0)
        return -1;
    struct snapshot_info info = fixture_info(&l, "a", 1, 1, MASK);
    int rc = fixture_snapshot(io, run_dir, &l, &info, NULL);
    layout_free(&l);
    return rc;
}

static int teardown(void **state) {
    (void)state;
    fixture_dir_remove(run_dir);
    return 0;
}

static char *read_manifest(size_t *len) {
    char path[PATH_MAX], *text;
    snprintf(path, sizeof(path), "%s/snapshots/a/manifest.json", run_dir);
    assert_int_equal(file_read(path, 1 << 20, &text, len, NULL), 0);
    return text;
}

/* Text of a manifest with a checksum that is right for it, so that only its content can be wrong.
 */
static int decode_sealed(const json_t *root, struct err *err) {
    struct manifest m;
    struct enc text = {0};
    json_t *copy = json_copy((json_t *)root);
    json_object_del(copy, "xxh3");
    char *body = json_dumps(copy, JSON_COMPACT);
    enc_bytes(&text, body, strlen(body) - 1);
    uint64_t sum = XXH3_64bits(text.data, text.len_bytes);
    enc_printf(&text, ",\n\"xxh3\":\"%016" PRIx64 "\"}\n", sum);
    int rc = manifest_decode((const char *)text.data, text.len_bytes, &m, err);
    if (rc == 0)
        manifest_free(&m);
    enc_free(&text);
    free(body);
    json_decref(copy);
    return rc;
}

/* ---- each field changed */

/* Values of other types, and numbers at all ends of their ranges. */
static json_t *replacement(uint32_t i, const json_t *old) {
    static const json_int_t steps[] = {1, -1, 1000000};
    json_int_t n = json_integer_value(old);
    switch (i) {
    case 0:
        return json_null();
    case 1:
        return json_is_string(old) ? json_integer(0) : json_string("x");
    case 2:
        return json_is_array(old) ? json_object() : json_array();
    case 3:
        return json_is_object(old) ? json_array() : json_object();
    case 4:
        return json_is_integer(old) ? json_real(1.5) : json_integer(7);
    case 5:
        return json_is_integer(old) ? json_integer(-1) : json_string("");
    case 6:
        return json_is_integer(old) ? json_integer(INT64_MAX) : json_true();
    case 7:
    case 8:
    case 9:
        return json_is_integer(old) ? json_integer(n + steps[i - 7]) : json_false();
    default:
        return NULL;
    }
}

/* Members whose value is free within its range: another value of the same type is another good
 * manifest. */
static bool is_free(const char *path, const json_t *old, const json_t *new) {
    static const char *const numbers[] = {"/id", "/epoch", "/gen", "/time_ns", "/attempt", "/step"};
    if (strstr(path, "/module") != NULL || strstr(path, "/shard_elems") != NULL)
        return json_is_integer(new) && json_integer_value(new) >= 0;
    if (strncmp(path, "/tensors/3/shape/", 17) == 0)
        return json_is_integer(new) && json_integer_value(new) >= 0;
    if (strstr(path, "/decay") != NULL || strcmp(path, "/automatic") == 0)
        return json_is_boolean(new);
    if (strstr(path, "/name") != NULL)
        return json_is_string(new);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (strcmp(path, numbers[i]) == 0)
            return json_is_integer(new) && json_integer_value(new) >= 0;
    return json_equal((json_t *)old, (json_t *)new);
}

struct mutation {
    json_t *root;
    uint32_t refused, allowed;
};

static void expect(struct mutation *m, const char *path, bool may_pass) {
    struct err err = {0};
    int rc = decode_sealed(m->root, &err);
    if (rc != 0)
        m->refused++;
    else
        m->allowed++;
    if (rc == 0 && !may_pass)
        fail_msg("%s: accepted though changed", path);
    if (rc != 0 && (rc != -EIO || err.code != EIO || err.text[0] == '\0'))
        fail_msg("%s: %d '%s'", path, rc, err.text);
}

static void mutate(struct mutation *m, json_t *v, const char *path);

static void mutate_member(struct mutation *m, json_t *object, const char *key, const char *path) {
    json_t *old = json_incref(json_object_get(object, key));
    for (uint32_t i = 0;; i++) {
        json_t *new = replacement(i, old);
        if (new == NULL)
            break;
        bool may_pass = is_free(path, old, new);
        json_object_set_new(object, key, new);
        expect(m, path, may_pass);
    }
    json_object_del(object, key);
    expect(m, path, false);
    json_object_set_new(object, key, old);
}

/* A tensor of no elements may be missing, and have any shape of none; a dimension of 1 may come and
 * go. */
static bool is_same_layout(const char *path) {
    return strcmp(path, "/tensors/3") == 0 || strncmp(path, "/tensors/3/shape", 16) == 0 ||
           strcmp(path, "/tensors/4/shape/0") == 0;
}

static void mutate_entry(struct mutation *m, json_t *array, size_t index, const char *path) {
    json_t *old = json_incref(json_array_get(array, index));
    for (uint32_t i = 0;; i++) {
        json_t *new = replacement(i, old);
        if (new == NULL)
            break;
        bool may_pass = is_free(path, old, new);
        json_array_set_new(array, index, new);
        expect(m, path, may_pass);
    }
    json_array_remove(array, index);
    expect(m, path, is_same_layout(path));
    json_array_insert(array, index, old);
    json_array_insert(array, index, old);
    expect(m, path, strcmp(path, "/tensors/3") != 0 && is_same_layout(path));
    json_array_remove(array, index);
    json_decref(old);
}

static void mutate(struct mutation *m, json_t *v, const char *path) {
    char below[256];
    const char *key;
    json_t *value;
    void *next;
    size_t index;
    if (json_is_object(v)) {
        json_object_set_new(v, "unknown", json_integer(1));
        expect(m, path, false);
        json_object_del(v, "unknown");
        json_t *keys = json_array();
        json_object_foreach_safe(v, next, key, value) json_array_append_new(keys, json_string(key));
        for (index = 0; index < json_array_size(keys); index++) {
            key = json_string_value(json_array_get(keys, index));
            snprintf(below, sizeof(below), "%s/%s", path, key);
            if (strcmp(below, "/xxh3") == 0)
                continue;
            mutate_member(m, v, key, below);
            mutate(m, json_object_get(v, key), below);
        }
        json_decref(keys);
    } else if (json_is_array(v)) {
        for (index = 0; index < json_array_size(v); index++) {
            snprintf(below, sizeof(below), "%s/%zu", path, index);
            mutate_entry(m, v, index, below);
            mutate(m, json_array_get(v, index), below);
        }
    }
}

static void each_field_is_checked(void **state) {
    (void)state;
    size_t len;
    char *text = read_manifest(&len);
    struct mutation m = {.root = json_loadb(text, len, 0, NULL)};
    assert_int_equal(decode_sealed(m.root, NULL), 0);
    mutate(&m, m.root, "");
    print_message("%u refused, %u allowed\n", m.refused, m.allowed);
    assert_true(m.refused > 1000);
    assert_int_equal(decode_sealed(m.root, NULL), 0); /* all was put back */
    json_decref(m.root);
    free(text);
}

static void a_manifest_that_is_cut_off_is_refused(void **state) {
    (void)state;
    size_t len;
    char *text = read_manifest(&len);
    struct manifest m;
    for (size_t n = 0; n < len; n++)
        assert_int_equal(manifest_decode(text, n, &m, NULL), -EIO);
    assert_int_equal(manifest_decode(text, len, &m, NULL), 0);
    manifest_free(&m);
    free(text);
}

static void hostile_layouts_are_refused(void **state) {
    (void)state;
    static const char *const dims[] = {"1", "1073741824", "1099511627776", "4611686018427387904",
                                       "9223372036854775807"};
    size_t len;
    char *text = read_manifest(&len);
    json_t *root = json_loadb(text, len, 0, NULL);
    json_t *shape = json_object_get(json_array_get(json_object_get(root, "tensors"), 0), "shape");
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
        for (size_t k = 0; k < sizeof(dims) / sizeof(dims[0]); k++) {
            json_array_set_new(shape, 0, json_integer(atoll(dims[i])));
            json_array_set_new(shape, 1, json_integer(atoll(dims[k])));
            assert_int_equal(decode_sealed(root, NULL), -EIO);
        }
    }
    json_decref(root);
    free(text);
}

/* ---- each byte flipped */

static void flip(int fd, size_t at, uint8_t bits) {
    uint8_t b;
    assert_int_equal(pread(fd, &b, 1, (off_t)at), 1);
    b ^= bits;
    assert_int_equal(pwrite(fd, &b, 1, (off_t)at), 1);
}

static int open_and_verify(struct err *err) {
    struct snapshot *s;
    int rc = snapshot_open(run_dir, "a", &s, err);
    if (rc != 0)
        return rc;
    rc = snapshot_verify(s, NULL, NULL, err);
    snapshot_close(s);
    return rc;
}

static void every_flipped_byte_is_noticed_and_its_file_named(void **state) {
    (void)state;
    static const char *const files[] = {"manifest.json", "rank-0.bin", "rank-1.bin"};
    for (size_t f = 0; f < 3; f++) {
        char path[PATH_MAX];
        snprintf(path, sizeof(path), "%s/snapshots/a/%s", run_dir, files[f]);
        int fd = open(path, O_RDWR);
        size_t len = (size_t)lseek(fd, 0, SEEK_END);
        for (size_t at = 0; at < len; at++) {
            uint8_t bits = (uint8_t)(1u << (at % 8));
            struct err err = {0};
            flip(fd, at, bits);
            if (open_and_verify(&err) != -EIO)
                fail_msg("%s: byte %zu", files[f], at);
            if (strstr(err.text, files[f]) == NULL)
                fail_msg("%s: byte %zu: '%s'", files[f], at, err.text);
            flip(fd, at, bits);
        }
        close(fd);
        assert_int_equal(open_and_verify(NULL), 0);
    }
}

static void files_of_a_wrong_size_are_noticed_and_named(void **state) {
    (void)state;
    static const char *const files[] = {"manifest.json", "rank-0.bin", "rank-1.bin"};
    for (size_t f = 0; f < 3; f++) {
        for (int change = -1; change <= 1; change++) {
            char path[PATH_MAX];
            struct err err = {0};
            assert_int_equal(teardown(NULL) + setup(NULL), 0);
            snprintf(path, sizeof(path), "%s/snapshots/a/%s", run_dir, files[f]);
            int fd = open(path, O_RDWR);
            off_t len = lseek(fd, 0, SEEK_END);
            if (change == 0)
                assert_int_equal(unlink(path), 0);
            else
                assert_int_equal(ftruncate(fd, len + change), 0);
            close(fd);
            assert_int_equal(open_and_verify(&err), -EIO);
            assert_non_null(strstr(err.text, files[f]));
        }
    }
    assert_int_equal(teardown(NULL) + setup(NULL), 0);
}

static void links_in_place_of_files_are_not_followed(void **state) {
    (void)state;
    static const char *const files[] = {"manifest.json", "rank-0.bin"};
    for (size_t f = 0; f < 2; f++) {
        char path[PATH_MAX], other[PATH_MAX];
        snprintf(path, sizeof(path), "%s/snapshots/a/%s", run_dir, files[f]);
        snprintf(other, sizeof(other), "%s/snapshots/a/other", run_dir);
        assert_int_equal(rename(path, other), 0);
        assert_int_equal(symlink("other", path), 0);
        assert_int_equal(open_and_verify(NULL), -EIO);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(mkfifo(path, 0600), 0);
        assert_int_equal(open_and_verify(NULL), -EIO); /* and does not wait */
        assert_int_equal(unlink(path), 0);
        assert_int_equal(rename(other, path), 0);
        assert_int_equal(open_and_verify(NULL), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_field_is_checked),
        cmocka_unit_test(a_manifest_that_is_cut_off_is_refused),
        cmocka_unit_test(hostile_layouts_are_refused),
        cmocka_unit_test(every_flipped_byte_is_noticed_and_its_file_named),
        cmocka_unit_test(files_of_a_wrong_size_are_noticed_and_named),
        cmocka_unit_test(links_in_place_of_files_are_not_followed),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
