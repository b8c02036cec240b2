/* layout_check.c - the rules of layout.h, written down a second time. */
#include "config.h"

#include "layout_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void check_valid(const struct layout *l, uint32_t unit) {
    const struct layout_unit *u = &l->units[unit];
    uint64_t sum = 0;
    bool ended = false;
    for (uint32_t r = 0; r < l->world_size; r++) {
        uint64_t valid = layout_shard_valid(l, unit, r);
        assert_true(valid <= u->shard_elems);
        assert_true(!ended || valid == 0);
        if (valid < u->shard_elems)
            ended = true;
        sum += valid;
    }
    assert_true(sum == u->numel);
}

static void check_units(const struct layout *l) {
    uint32_t tensors = 0;
    uint64_t numel = 0;
    for (uint32_t u = 0; u < l->unit_count; u++) {
        uint64_t offset = 0;
        uint32_t count = 0;
        for (uint32_t i = 0; i < l->tensor_count; i++) {
            if (l->tensors[i].unit != u)
                continue;
            if (count == 0)
                assert_int_equal(l->units[u].first_tensor, i);
            assert_true(l->tensors[i].offset_elems == offset);
            offset += l->tensors[i].numel;
            count++;
        }
        assert_true(l->units[u].numel == offset);
        assert_int_equal(l->units[u].tensor_count, count);
        tensors += count;
        numel += offset;
        check_valid(l, u);
    }
    assert_int_equal(tensors, l->tensor_count);
    assert_true(layout_numel(l) == numel);
}

static void check_pieces(const struct layout *l, uint32_t tensor) {
    const struct layout_tensor *t = &l->tensors[tensor];
    const struct layout_unit *u = &l->units[t->unit];
    struct layout_piece *pieces = calloc((size_t)l->world_size + 1, sizeof(*pieces));
    uint32_t count;
    uint64_t at = 0;
    assert_non_null(pieces);
    layout_tensor_pieces(l, tensor, pieces, l->world_size, &count);
    assert_true(count <= l->world_size);
    for (uint32_t i = 0; i < count; i++) {
        const struct layout_piece *p = &pieces[i];
        assert_true(p->rank < l->world_size);
        assert_true(i == 0 || p->rank > pieces[i - 1].rank);
        assert_true(p->elems > 0);
        assert_true(p->tensor_offset_elems == at);
        assert_true(p->rank * u->shard_elems + p->shard_offset_elems == t->offset_elems + at);
        assert_true(p->shard_offset_elems + p->elems <= layout_shard_valid(l, t->unit, p->rank));
        at += p->elems;
    }
    assert_true(at == t->numel);
    for (uint32_t r = 0, i = 0; r < l->world_size; r++) {
        struct layout_piece p = layout_tensor_piece(l, tensor, r);
        assert_int_equal(p.rank, r);
        if (i == count || pieces[i].rank != r) {
            assert_true(p.elems == 0);
            continue;
        }
        assert_true(p.elems == pieces[i].elems);
        assert_true(p.shard_offset_elems == pieces[i].shard_offset_elems);
        assert_true(p.tensor_offset_elems == pieces[i].tensor_offset_elems);
        i++;
    }
    free(pieces);
}

void layout_check_tables(const struct layout *l) {
    check_units(l);
    for (uint32_t i = 0; i < l->tensor_count; i++)
        check_pieces(l, i);
}

enum { MAX_ELEMS = 256 };

void layout_check_elements(const struct layout *l) {
    for (uint32_t u = 0; u < l->unit_count; u++) {
        uint8_t seen[MAX_ELEMS] = {0};
        assert_true(l->units[u].numel <= MAX_ELEMS);
        for (uint32_t i = 0; i < l->tensor_count; i++) {
            for (uint32_t r = 0; l->tensors[i].unit == u && r < l->world_size; r++) {
                struct layout_piece p = layout_tensor_piece(l, i, r);
                uint64_t first = r * l->units[u].shard_elems + p.shard_offset_elems;
                for (uint64_t k = 0; k < p.elems; k++) {
                    assert_true(first + k < l->units[u].numel);
                    seen[first + k]++;
                }
            }
        }
        for (uint64_t k = 0; k < l->units[u].numel; k++)
            assert_int_equal(seen[k], 1);
    }
}

static void check_dump(const struct layout *l, uint32_t mask, uint32_t rank) {
    uint64_t at = 0;
    for (uint32_t a = 0; a < ARRAY_COUNT; a++) {
        if ((mask & ARRAY_BIT(a)) == 0)
            continue;
        for (uint32_t u = 0; u < l->unit_count; u++) {
            assert_true(layout_dump_offset(l, mask, rank, (enum array)a, u) == at);
            at += layout_shard_valid(l, u, rank) * TENSOR_ELEM_BYTES;
        }
    }
    assert_true(layout_dump_bytes(l, mask, rank) == at);
}

void layout_check_dumps(const struct layout *l) {
    for (uint32_t mask = 0; mask <= ARRAY_MASK_ALL; mask++)
        for (uint32_t r = 0; r < l->world_size; r++)
            check_dump(l, mask, r);
}

void layout_check_equal(const struct layout *a, const struct layout *b) {
    assert_int_equal(a->world_size, b->world_size);
    assert_int_equal(a->unit_count, b->unit_count);
    assert_int_equal(a->tensor_count, b->tensor_count);
    for (uint32_t u = 0; u < a->unit_count; u++) {
        const struct layout_unit *x = &a->units[u], *y = &b->units[u];
        assert_string_equal(x->name, y->name);
        assert_int_equal(x->first_tensor, y->first_tensor);
        assert_int_equal(x->tensor_count, y->tensor_count);
        assert_true(x->numel == y->numel && x->shard_elems == y->shard_elems);
    }
    for (uint32_t i = 0; i < a->tensor_count; i++) {
        const struct layout_tensor *x = &a->tensors[i], *y = &b->tensors[i];
        assert_string_equal(x->spec.name, y->spec.name);
        assert_int_equal(x->spec.ndim, y->spec.ndim);
        assert_memory_equal(x->spec.shape, y->spec.shape, sizeof(x->spec.shape));
        assert_int_equal(x->spec.module, y->spec.module);
        assert_true(x->spec.decay == y->spec.decay);
        assert_int_equal(x->unit, y->unit);
        assert_true(x->numel == y->numel && x->offset_elems == y->offset_elems);
    }
}
