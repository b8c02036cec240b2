/* data.h - training data as one stream of tokens, and the order in which sequences are drawn from
 * it: a function of the seed alone. */
#ifndef GFS_ENGINE_DATA_H
#define GFS_ENGINE_DATA_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct data;

/* paths: newline-separated files or directories (all regular files below that are not empty, in
 * byte order of their paths, links not followed). A file that ends in .bin is a token file (llm.c
 * header 20240520 version 1 uint16, or 7 uint32; nanoGPT: bare uint16); everything else is text,
 * any bytes: token = the byte's id in the GPT-2 byte alphabet order of vocab.json, <|endoftext|> =
 * 256 between a text and what follows. Fails with a sentence that names the file: unreadable,
 * empty, cut, token id >= vocab (of data above 256 MiB, when the sequence is drawn); or shorter
 * than one sequence (seq_len + 1 tokens in all). Large files are mapped, not read. */
int data_open(const char *paths, uint64_t seq_len, uint64_t vocab, uint64_t seed, struct data **out,
              struct err *err);
void data_close(struct data *d);
uint64_t data_tokens(const struct data *d);
/* XXH3-64 over sizes and contents sampled at fixed places: the fixed knob "data fingerprint". */
uint64_t data_fingerprint(const struct data *d);
/* tokens and targets (seq_len each) of sequence `index` = step * global_batch + i. Without
 * replacement within an epoch: a keyed permutation (Feistel) of the chunks of seq_len tokens.
 * -ERANGE for a token id
 * >= vocab. */
int data_sequence(const struct data *d, uint64_t index, int32_t *tokens, int32_t *targets,
                  struct err *err);

#endif
