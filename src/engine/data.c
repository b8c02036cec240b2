/* data.c - the stream of tokens and the order of its sequences. */
#include "config.h"

#include "engine/data.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "engine/data_files.h"

enum {
    BYTE_COUNT = 256,
    TOKEN_END_OF_TEXT = 256,
    TEXT_VOCAB = 257,
    SAMPLE_COUNT = 16,
    SAMPLE_BYTES = 4096,
};
/* Data up to this size is checked at open, all of it; larger data where it is read. */
#define DATA_CHECK_BYTES ((uint64_t)256 << 20)

/* Tokens [first, first + file.token_count) of the stream, and one <|endoftext|> if it follows. */
struct span {
    uint64_t first;
    bool end_of_text;
};

struct data {
    uint64_t seq_len, vocab, seed;
    uint64_t token_count;
    uint64_t chunk_count; /* sequences in an epoch */
    struct data_files files;
    struct span *spans;           /* by file */
    uint16_t byte_id[BYTE_COUNT]; /* token of a byte of text */
};

/* ---- bytes as tokens */

/* The bytes that GPT-2's alphabet prints as themselves; the others follow them, in byte order. */
static bool byte_is_printable(unsigned b) {
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
}

static void byte_ids(uint16_t ids[BYTE_COUNT]) {
    uint16_t next = 0;
    for (unsigned pass = 0; pass < 2; pass++)
        for (unsigned b = 0; b < BYTE_COUNT; b++)
            if (byte_is_printable(b) == (pass == 0))
                ids[b] = next++;
}

/* ---- the stream */

static uint32_t file_token(const struct data *d, const struct data_file *f, uint64_t i) {
    uint16_t u16;
    uint32_t u32;
    switch (f->kind) {
    case DATA_U16:
        memcpy(&u16, f->tokens + 2 * i, sizeof u16);
        return u16;
    case DATA_U32:
        memcpy(&u32, f->tokens + 4 * i, sizeof u32);
        return u32;
    case DATA_TEXT:
        break;
    }
    return d->byte_id[f->tokens[i]];
}

static int bad_token(const struct data *d, const struct data_file *f, uint64_t i, struct err *err) {
    return err_set(err, ERANGE,
                   "data %s: token %llu is %u, but the model's vocabulary has %llu tokens", f->path,
                   (unsigned long long)i, file_token(d, f, i), (unsigned long long)d->vocab);
}

/* Reads tokens [i, i + count) of a file. */
static int file_tokens(const struct data *d, const struct data_file *f, uint64_t i, uint64_t count,
                       int32_t *out, struct err *err) {
    for (uint64_t k = 0; k < count; k++) {
        uint32_t token = file_token(d, f, i + k);
        if (token >= d->vocab)
            return bad_token(d, f, i + k, err);
        out[k] = (int32_t)token;
    }
    return 0;
}

/* The last file whose span begins at or before a position. */
static size_t file_at(const struct data *d, uint64_t position) {
    size_t lo = 0, hi = d->files.count;
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (d->spans[mid].first <= position)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

/* Reads tokens [position, position + count) of the stream. */
static int stream_tokens(const struct data *d, uint64_t position, uint64_t count, int32_t *out,
                         struct err *err) {
    for (size_t i = file_at(d, position); count > 0; i++) {
        const struct data_file *f = &d->files.files[i];
        uint64_t at = position - d->spans[i].first;
        uint64_t n = at < f->token_count ? f->token_count - at : 0;
        n = n < count ? n : count;
        int rc = file_tokens(d, f, at, n, out, err);
        if (rc != 0)
            return rc;
        position += n;
        out += n;
        count -= n;
        if (count > 0 && d->spans[i].end_of_text) {
            *out++ = TOKEN_END_OF_TEXT;
            position++;
            count--;
        }
    }
    return 0;
}

/* ---- open */

static int stream_plan(struct data *d, struct err *err) {
    d->spans = calloc(d->files.count, sizeof *d->spans);
    if (d->spans == NULL)
        return err_set(err, ENOMEM, "no memory for the list of data files");
    for (size_t i = 0; i < d->files.count; i++) {
        const struct data_file *f = &d->files.files[i];
        if (f->kind == DATA_TEXT && d->vocab < TEXT_VOCAB)
            return err_set(
                err, ERANGE,
                "data %s: text needs the %d tokens of bytes, but the model's vocabulary has "
                "%llu",
                f->path, TEXT_VOCAB, (unsigned long long)d->vocab);
        /* Files of tokens hold their own ends of text. */
        d->spans[i].end_of_text = f->kind == DATA_TEXT && i + 1 < d->files.count;
        d->spans[i].first = d->token_count;
        d->token_count += f->token_count + (d->spans[i].end_of_text ? 1 : 0);
    }
    if (d->token_count <= d->seq_len)
        return err_set(
            err, EINVAL,
            "data %s: %llu tokens%s, but one sequence is %llu tokens and its targets one "
            "more: give more data or a smaller seq_len",
            d->files.files[0].path, (unsigned long long)d->token_count,
            d->files.count > 1 ? " with all files after it" : "", (unsigned long long)d->seq_len);
    d->chunk_count = (d->token_count - 1) / d->seq_len;
    return 0;
}

static int stream_check(const struct data *d, struct err *err) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < d->files.count; i++)
        bytes += d->files.files[i].kind == DATA_TEXT ? 0 : d->files.files[i].size_bytes;
    if (bytes > DATA_CHECK_BYTES)
        return 0;
    for (size_t i = 0; i < d->files.count; i++) {
        const struct data_file *f = &d->files.files[i];
        if (f->kind == DATA_TEXT || (f->kind == DATA_U16 && d->vocab > UINT16_MAX))
            continue;
        for (uint64_t k = 0; k < f->token_count; k++)
            if (file_token(d, f, k) >= d->vocab)
                return bad_token(d, f, k, err);
    }
    return 0;
}

int data_open(const char *paths, uint64_t seq_len, uint64_t vocab, uint64_t seed, struct data **out,
              struct err *err) {
    if (seq_len == 0 || vocab == 0)
        return err_set(err, EINVAL, "data needs a sequence length and a vocabulary above 0");
    struct data *d = calloc(1, sizeof *d);
    if (d == NULL)
        return err_set(err, ENOMEM, "no memory for the training data");
    d->seq_len = seq_len;
    d->vocab = vocab;
    d->seed = seed;
    byte_ids(d->byte_id);
    int rc = data_files_open(paths, &d->files, err);
    if (rc == 0)
        rc = stream_plan(d, err);
    if (rc == 0)
        rc = stream_check(d, err);
    if (rc != 0) {
        data_close(d);
        return rc;
    }
    *out = d;
    return 0;
}

void data_close(struct data *d) {
    if (d == NULL)
        return;
    data_files_close(&d->files);
    free(d->spans);
    free(d);
}

uint64_t data_tokens(const struct data *d) { return d->token_count; }

uint64_t data_fingerprint(const struct data *d) {
    XXH64_hash_t hash = 0;
    for (size_t i = 0; i < d->files.count; i++) {
        const struct data_file *f = &d->files.files[i];
        uint64_t head[2] = {f->size_bytes, (uint64_t)f->kind};
        hash = XXH3_64bits_withSeed(head, sizeof head, hash);
        if (f->size_bytes <= (uint64_t)SAMPLE_COUNT * SAMPLE_BYTES) {
            hash = XXH3_64bits_withSeed(f->bytes, f->size_bytes, hash);
            continue;
        }
        for (unsigned k = 0; k < SAMPLE_COUNT; k++) {
            uint64_t last = f->size_bytes - SAMPLE_BYTES;
            uint64_t at = last / (SAMPLE_COUNT - 1) * k;
            hash = XXH3_64bits_withSeed(f->bytes + (k + 1 < SAMPLE_COUNT ? at : last), SAMPLE_BYTES,
                                        hash);
        }
    }
    return hash;
}

/* ---- order */

/* The finalizer of splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

/* A bijection of [0, count) by `key`: a Feistel network over the next power of four, walked until
 * it comes back into the range (Black and Rogaway, 2002). */
static uint64_t permute(uint64_t x, uint64_t count, uint64_t key) {
    enum { ROUNDS = 8 };
    unsigned half = 1;
    while (half < 32 && (count - 1) >> (2 * half) != 0)
        half++;
    uint64_t mask = ((uint64_t)1 << half) - 1;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (unsigned round = 0; round < ROUNDS; round++) {
            uint64_t next = left ^ (mix(key ^ mix(right + ((uint64_t)round << 32))) & mask);
            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= count);
    return x;
}

int data_sequence(const struct data *d, uint64_t index, int32_t *tokens, int32_t *targets,
                  struct err *err) {
    uint64_t epoch = index / d->chunk_count;
    uint64_t chunk = permute(index % d->chunk_count, d->chunk_count, mix(d->seed ^ mix(epoch)));
    uint64_t first = chunk * d->seq_len;
    int rc = stream_tokens(d, first, d->seq_len, tokens, err);
    if (rc == 0)
        rc = stream_tokens(d, first + d->seq_len, 1, targets + d->seq_len - 1, err);
    if (rc == 0)
        memcpy(targets, tokens + 1, (d->seq_len - 1) * sizeof *targets);
    return rc;
}
