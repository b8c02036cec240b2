/* test_data.c - the stream of tokens, its files, and the order of sequences. */
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "engine/data.h"

enum { VOCAB = 257, END = 256 };

struct place {
    char dir[64];
    char path[4096]; /* of the last file made */
};

static int place_setup(void **state) {
    struct place *p = calloc(1, sizeof *p);
    strcpy(p->dir, "/tmp/gfs-data-XXXXXX");
    if (mkdtemp(p->dir) == NULL)
        return -1;
    *state = p;
    return 0;
}

static int place_teardown(void **state) {
    struct place *p = *state;
    int tmp = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = file_remove_tree(tmp, p->dir + strlen("/tmp/"), NULL);
    close(tmp);
    free(p);
    return rc;
}

static const char *make_file(struct place *p, const char *name, const void *data, size_t bytes) {
    assert_int_equal(file_path(p->path, sizeof p->path, "%s/%s", p->dir, name), 0);
    FILE *f = fopen(p->path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
    return p->path;
}

static const char *make_text(struct place *p, const char *name, const char *text) {
    return make_file(p, name, text, strlen(text));
}

static void make_dir(struct place *p, const char *name) {
    assert_int_equal(file_path(p->path, sizeof p->path, "%s/%s", p->dir, name), 0);
    assert_int_equal(mkdir(p->path, 0700), 0);
}

static struct data *open_data(const char *paths, uint64_t seq_len, uint64_t vocab, uint64_t seed) {
    struct data *d = NULL;
    struct err err = {0};
    if (data_open(paths, seq_len, vocab, seed, &d, &err) != 0)
        fail_msg("%s", err.text);
    return d;
}

/* The whole stream, read as the first sequence of one that is as long as the data. */
static uint64_t read_all(const char *paths, uint64_t vocab, int32_t *out, uint64_t count) {
    int32_t targets[4096];
    struct data *d = open_data(paths, count - 1, vocab, 1);
    uint64_t total = data_tokens(d);
    assert_int_equal(data_sequence(d, 0, out, targets, NULL), 0);
    out[count - 1] = targets[count - 2];
    data_close(d);
    return total;
}

static void assert_refused(const char *paths, uint64_t seq_len, uint64_t vocab, int code,
                           const char *name, const char *says) {
    struct data *d = NULL;
    struct err err = {0};
    assert_int_equal(data_open(paths, seq_len, vocab, 1, &d, &err), -code);
    assert_null(d);
    assert_int_equal(err.code, code);
    if (strstr(err.text, name) == NULL || strstr(err.text, says) == NULL)
        fail_msg("'%s' names neither '%s' nor '%s'", err.text, name, says);
}

/* ---- bytes */

static void bytes_have_the_ids_of_vocab_json(void **state) {
    uint8_t text[256];
    int32_t ids[257];
    bool seen[256] = {false};
    for (int i = 0; i < 256; i++)
        text[i] = (uint8_t)i;
    assert_int_equal(read_all(make_file(*state, "bytes", text, 256), VOCAB, ids, 256), 256);
    assert_int_equal(ids['!'], 0);
    assert_int_equal(ids['A'], 32);
    assert_int_equal(ids['~'], 93);
    assert_int_equal(ids[0xa1], 94);
    assert_int_equal(ids[0xac], 105);
    assert_int_equal(ids[0xae], 106);
    assert_int_equal(ids[0xff], 187);
    assert_int_equal(ids[0], 188);
    assert_int_equal(ids['\n'], 198);
    assert_int_equal(ids[' '], 220);
    assert_int_equal(ids[0x7f], 221);
    assert_int_equal(ids[0xa0], 254);
    assert_int_equal(ids[0xad], 255);
    for (int i = 0; i < 256; i++) {
        assert_in_range(ids[i], 0, 255);
        assert_false(seen[ids[i]]);
        seen[ids[i]] = true;
    }
}

static void an_end_of_text_stands_between_files(void **state) {
    struct place *p = *state;
    char paths[512];
    int32_t ids[7];
    make_text(p, "one", "AB");
    make_text(p, "two", "C");
    make_text(p, "three", "DE");
    snprintf(paths, sizeof paths, "%s/one\n%s/two\n\n%s/three\n", p->dir, p->dir, p->dir);
    assert_int_equal(read_all(paths, VOCAB, ids, 7), 7);
    const int32_t want[] = {32, 33, END, 34, END, 35, 36};
    assert_memory_equal(ids, want, sizeof want);
}

static void a_directory_is_read_in_byte_order_of_paths(void **state) {
    struct place *p = *state;
    int32_t ids[9];
    char link_path[256];
    make_text(p, "b", "B");
    make_text(p, "a.txt", "A");
    make_dir(p, "a");
    make_text(p, "a/z", "Z");
    make_dir(p, "a/deep");
    make_text(p, "a/deep/er", "D");
    make_text(p, "\xc3\xa4", "U");
    make_text(p, "empty", "");
    snprintf(link_path, sizeof link_path, "%s/link", p->dir);
    assert_int_equal(symlink("/etc/passwd", link_path), 0);
    /* "a.txt" sorts before "a/": '.' is below '/' */
    assert_int_equal(read_all(p->dir, VOCAB, ids, 9), 9);
    const int32_t want[] = {'A' - '!', END,       'D' - '!', END,      'Z' - '!',
                            END,       'B' - '!', END,       'U' - '!'};
    assert_memory_equal(ids, want, sizeof want);
}

/* ---- token files */

static void nanogpt_tokens_are_read(void **state) {
    const uint16_t tokens[] = {5, 50256, 7, 65};
    const int32_t want[] = {5, 50256, 7, 65};
    int32_t ids[4];
    assert_int_equal(read_all(make_file(*state, "train.bin", tokens, sizeof tokens), 50257, ids, 4),
                     4);
    assert_memory_equal(ids, want, sizeof want);
}

static size_t llmc_file(uint8_t *out, uint32_t version, uint32_t count, size_t width) {
    const uint32_t head[3] = {20240520, version, count};
    memset(out, 0, 1024);
    memcpy(out, head, sizeof head);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t token = 100 + i;
        memcpy(out + 1024 + i * width, &token, width);
    }
    return 1024 + count * width;
}

static void llmc_tokens_are_read(void **state) {
    uint8_t file[2048];
    int32_t ids[20];
    size_t bytes = llmc_file(file, 1, 20, 2);
    assert_int_equal(read_all(make_file(*state, "a.bin", file, bytes), 50257, ids, 20), 20);
    for (int i = 0; i < 20; i++)
        assert_int_equal(ids[i], 100 + i);
    bytes = llmc_file(file, 7, 20, 4);
    assert_int_equal(read_all(make_file(*state, "b.bin", file, bytes), 128256, ids, 20), 20);
    for (int i = 0; i < 20; i++)
        assert_int_equal(ids[i], 100 + i);
}

static void token_files_follow_each_other_directly(void **state) {
    struct place *p = *state;
    const uint16_t one[] = {1, 2}, two[] = {3};
    const int32_t want[] = {1, 2, 3};
    int32_t ids[3];
    make_file(p, "1.bin", one, sizeof one);
    make_file(p, "2.bin", two, sizeof two);
    assert_int_equal(read_all(p->dir, 50257, ids, 3), 3);
    assert_memory_equal(ids, want, sizeof want);
}

/* ---- refusals */

static void bad_data_is_refused_by_name(void **state) {
    struct place *p = *state;
    uint8_t file[2048];
    const uint16_t high[] = {1, 2, 300, 4};
    char path[256];
    assert_refused("", 4, VOCAB, EINVAL, "data", "no training data");
    assert_refused("/nonexistent/text", 4, VOCAB, ENOENT, "/nonexistent/text", "No such file");
    assert_refused(make_text(p, "empty", ""), 4, VOCAB, EINVAL, "empty", "is empty");
    assert_refused(p->dir, 4, VOCAB, EINVAL, p->dir, "no file below");
    assert_refused(make_text(p, "short", "abcd"), 4, VOCAB, EINVAL, "short", "4 tokens");
    assert_refused(make_text(p, "text", "some text"), 4, 256, ERANGE, "text", "vocabulary has 256");
    assert_refused(make_file(p, "odd.bin", "abc", 3), 1, VOCAB, EINVAL, "odd.bin", "odd number");
    assert_refused(make_file(p, "high.bin", high, sizeof high), 2, 257, ERANGE, "high.bin",
                   "token 2 is 300");
    size_t bytes = llmc_file(file, 1, 20, 2);
    assert_refused(make_file(p, "cut.bin", file, bytes - 2), 4, 50257, EINVAL, "cut.bin", "cut");
    bytes = llmc_file(file, 9, 20, 2);
    assert_refused(make_file(p, "new.bin", file, bytes), 4, 50257, EINVAL, "new.bin", "version 9");
    snprintf(path, sizeof path, "%s/fifo", p->dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_refused(path, 4, VOCAB, EINVAL, "fifo", "neither");
    if (geteuid() != 0) {
        make_text(p, "secret", "abcdefgh");
        assert_int_equal(chmod(p->path, 0), 0);
        assert_refused(p->path, 4, VOCAB, EACCES, "secret", "Permission denied");
    }
}

/* ---- order */

static void targets_are_the_tokens_that_follow(void **state) {
    int32_t tokens[8], targets[8];
    struct data *d = open_data(make_text(*state, "t", "abcdefghijklmnopqrstuvwxyz"), 8, VOCAB, 3);
    for (uint64_t i = 0; i < 9; i++) {
        assert_int_equal(data_sequence(d, i, tokens, targets, NULL), 0);
        for (int k = 0; k < 8; k++) {
            assert_int_equal(tokens[k], tokens[0] + k);
            assert_int_equal(targets[k], tokens[k] + 1);
        }
        assert_int_equal((tokens[0] - ('a' - '!')) % 8, 0);
    }
    data_close(d);
}

/* Numbered tokens: the first token of a sequence says which chunk it is. */
static struct data *open_numbered(struct place *p, uint64_t chunks, uint64_t seed) {
    uint16_t *tokens = calloc(chunks * 2 + 1, sizeof *tokens);
    for (uint64_t i = 0; i <= chunks * 2; i++)
        tokens[i] = (uint16_t)(i / 2);
    make_file(p, "numbered.bin", tokens, (chunks * 2 + 1) * sizeof *tokens);
    free(tokens);
    return open_data(p->path, 2, 65536, seed);
}

static uint32_t chunk_of(const struct data *d, uint64_t index) {
    int32_t tokens[2], targets[2];
    assert_int_equal(data_sequence(d, index, tokens, targets, NULL), 0);
    return (uint32_t)tokens[0];
}

static void each_epoch_draws_every_chunk_once(void **state) {
    static const uint64_t counts[] = {1, 2, 3, 4, 5, 16, 17, 63, 1000, 4097};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        uint64_t n = counts[c];
        struct data *d = open_numbered(*state, n, 42);
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            uint8_t *seen = calloc(n, 1);
            for (uint64_t i = 0; i < n; i++) {
                uint32_t chunk = chunk_of(d, epoch * n + i);
                assert_in_range(chunk, 0, n - 1);
                assert_int_equal(seen[chunk], 0);
                seen[chunk] = 1;
            }
            free(seen);
        }
        data_close(d);
    }
}

static void epochs_and_seeds_have_orders_of_their_own(void **state) {
    enum { N = 500 };
    struct data *a = open_numbered(*state, N, 1), *b = open_numbered(*state, N, 2),
                *again = open_numbered(*state, N, 1);
    int same_seed = 0, same_epoch = 0, in_place = 0;
    for (uint64_t i = 0; i < N; i++) {
        assert_int_equal(chunk_of(a, i), chunk_of(again, i));
        same_seed += chunk_of(a, i) == chunk_of(b, i);
        same_epoch += chunk_of(a, i) == chunk_of(a, N + i);
        in_place += chunk_of(a, i) == i;
    }
    /* A random permutation agrees with another in one place, give or take. */
    assert_in_range(same_seed, 0, 8);
    assert_in_range(same_epoch, 0, 8);
    assert_in_range(in_place, 0, 8);
    data_close(a);
    data_close(b);
    data_close(again);
}

static void the_fingerprint_knows_contents_and_not_names(void **state) {
    struct place *p = *state;
    static char big[300000];
    memset(big, 'x', sizeof big);
    struct data *a = open_data(make_file(p, "a", big, sizeof big), 8, VOCAB, 1);
    struct data *b = open_data(make_file(p, "b", big, sizeof big), 8, VOCAB, 2);
    big[sizeof big - 1] = 'y';
    struct data *c = open_data(make_file(p, "c", big, sizeof big), 8, VOCAB, 1);
    struct data *d = open_data(make_file(p, "d", big, sizeof big - 1), 8, VOCAB, 1);
    assert_true(data_fingerprint(a) == data_fingerprint(b));
    assert_true(data_fingerprint(a) != data_fingerprint(c));
    assert_true(data_fingerprint(a) != data_fingerprint(d));
    data_close(a);
    data_close(b);
    data_close(c);
    data_close(d);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, place_setup, place_teardown)
    const struct CMUnitTest tests[] = {
        TEST(bytes_have_the_ids_of_vocab_json),
        TEST(an_end_of_text_stands_between_files),
        TEST(a_directory_is_read_in_byte_order_of_paths),
        TEST(nanogpt_tokens_are_read),
        TEST(llmc_tokens_are_read),
        TEST(token_files_follow_each_other_directly),
        TEST(bad_data_is_refused_by_name),
        TEST(targets_are_the_tokens_that_follow),
        TEST(each_epoch_draws_every_chunk_once),
        TEST(epochs_and_seeds_have_orders_of_their_own),
        TEST(the_fingerprint_knows_contents_and_not_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
