/* fuzz_layout.c - libFuzzer: an encoded layout. What is accepted must keep the rules of layout.h,
 * and give the same bytes when it is encoded again. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "shard/layout.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds) {
    if (!holds)
        abort();
}

/* The pieces of each tensor follow each other in it and in its unit. */
static void check_tensor(const struct layout *l, uint32_t tensor) {
    const struct layout_tensor *t = &l->tensors[tensor];
    const struct layout_unit *u = &l->units[t->unit];
    static struct layout_piece pieces[LAYOUT_MAX_RANKS];
    uint32_t count;
    uint64_t at = 0;
    layout_tensor_pieces(l, tensor, pieces, LAYOUT_MAX_RANKS, &count);
    must(count <= l->world_size);
    for (uint32_t i = 0; i < count; i++) {
        const struct layout_piece *p = &pieces[i];
        must(p->rank < l->world_size && (i == 0 || p->rank > pieces[i - 1].rank));
        must(p->elems > 0 && p->tensor_offset_elems == at);
        must(p->rank * u->shard_elems + p->shard_offset_elems == t->offset_elems + at);
        must(p->shard_offset_elems + p->elems <= layout_shard_valid(l, t->unit, p->rank));
        at += p->elems;
    }
    must(at == t->numel);
}

static void check_dumps(const struct layout *l) {
    uint64_t bytes = 0;
    for (uint32_t r = 0; r < l->world_size && r < 64; r++) {
        uint64_t dump = layout_dump_bytes(l, ARRAY_MASK_ALL, r);
        must(dump <= UINT64_MAX - bytes);
        bytes += dump;
    }
    must(bytes <= layout_numel(l) * TENSOR_ELEM_BYTES * ARRAY_COUNT);
    must(l->world_size > 64 || bytes == layout_numel(l) * TENSOR_ELEM_BYTES * ARRAY_COUNT);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct dec d = dec_of(data, size);
    struct layout l;
    if (layout_decode(&d, &l, NULL) != 0)
        return 0;
    size_t used = (size_t)(d.p - data);
    struct enc e = {0};
    layout_encode(&l, &e);
    must(!e.failed && e.len_bytes == used && memcmp(e.data, data, used) == 0);
    for (uint32_t i = 0; i < l.tensor_count; i++)
        check_tensor(&l, i);
    check_dumps(&l);
    enc_free(&e);
    layout_free(&l);
    return 0;
}
