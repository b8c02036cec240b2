/* test_restore.c - a snapshot of one layout is loaded into another, or nothing is changed. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "async_device.h"
#include "base/log.h"
#include "engine/restore.h"
#include "shard/wrap.h"
#include "store/snapshot.h"

enum { TENSORS = 6, MODULES = 4, DEADLINE_SECONDS = 60, STEP = 41 };
static const enum array state_arrays[] = {ARRAY_PARAMS, ARRAY_EXP_AVG, ARRAY_EXP_AVG_SQ};

struct model {
    struct tensor_spec tensors[TENSORS];
    struct wrap_module modules[MODULES];
};

static void add(struct model *m, int i, const char *name, uint32_t module, uint64_t rows,
                uint64_t cols) {
    struct tensor_spec *t = &m->tensors[i];
    *t = (struct tensor_spec){.ndim = cols != 0 ? 2 : 1, .shape = {rows, cols}, .module = module};
    strncpy(t->name, name, sizeof(t->name) - 1);
}

static struct model small_model(void) {
    struct model m = {.modules = {{"wte", -1}, {"h.0", 0}, {"h.1", 1}, {"ln_f", -1}}};
    add(&m, 0, "wte.weight", 0, 37, 5);
    add(&m, 1, "h.0.weight", 1, 11, 13);
    add(&m, 2, "h.0.bias", 1, 11, 0);
    add(&m, 3, "h.1.weight", 2, 3, 3);
    add(&m, 4, "h.1.bias", 2, 1, 0);
    add(&m, 5, "ln_f.weight", 3, 5, 0);
    return m;
}

/* All ranks of a world, in one process. */
struct side {
    struct layout layout;
    uint32_t world_size;
    struct arrays *arrays[4];
    float *memory[4], *shards[4]; /* shards: as the arrays know it; memory, or the device's */
    uint64_t elems;               /* of a rank */
};

static void side_shards(struct side *s, uint32_t rank, float *at) {
    s->shards[rank] = at;
    for (uint32_t u = 0; u < s->layout.unit_count; u++)
        for (enum array a = 0; a < ARRAY_COUNT; a++, at += s->layout.units[u].shard_elems)
            arrays_set_shard(s->arrays[rank], a, u, at);
}

static void side_open(struct side *s, const struct model *m, const char *wrap,
                      uint32_t world_size) {
    struct err err = {0};
    *s = (struct side){.world_size = world_size};
    if (wrap_layout(wrap, m->tensors, TENSORS, m->modules, MODULES, world_size, &s->layout, &err) !=
        0)
        fail_msg("%s", err.text);
    for (uint32_t u = 0; u < s->layout.unit_count; u++)
        s->elems += ARRAY_COUNT * s->layout.units[u].shard_elems;
    for (uint32_t r = 0; r < world_size; r++) {
        assert_int_equal(arrays_open(&s->layout, r, &s->arrays[r], &err), 0);
        s->memory[r] = calloc(s->elems + 1, sizeof(float));
        assert_non_null(s->memory[r]);
        side_shards(s, r, s->memory[r]);
    }
}

static void side_close(struct side *s) {
    for (uint32_t r = 0; r < s->world_size; r++) {
        arrays_close(s->arrays[r]);
        free(s->memory[r]);
    }
    layout_free(&s->layout);
}

/* Bits that no arithmetic would keep: denormals, NaNs with payloads, negative zero. */
static uint32_t bits_of(enum array a, uint32_t tensor, uint64_t i, uint32_t salt) {
    uint32_t x =
        (uint32_t)a * 0x9e3779b9u + tensor * 0x85ebca6bu + (uint32_t)i * 0xc2b2ae35u + salt;
    x ^= x >> 15;
    return x * 0x2c1b3c6du;
}

/* Fills, or checks, each element of the state arrays. */
static bool side_bits(struct side *s, uint32_t salt, bool check) {
    for (uint32_t t = 0; t < s->layout.tensor_count; t++) {
        for (uint32_t r = 0; r < s->world_size; r++) {
            struct layout_piece p = layout_tensor_piece(&s->layout, t, r);
            for (uint64_t i = 0; i < 3 * p.elems; i++) {
                enum array a = state_arrays[i % 3];
                uint64_t e = i / 3;
                uint32_t bits = bits_of(a, t, p.tensor_offset_elems + e, salt);
                const float *shard = arrays_shard(s->arrays[r], a, s->layout.tensors[t].unit);
                float *at = s->memory[r] + (shard - s->shards[r]) + p.shard_offset_elems + e;
                uint32_t is;
                memcpy(&is, at, sizeof(is));
                if (check && is != bits)
                    return false;
                memcpy(at, &bits, sizeof(bits));
            }
        }
    }
    return true;
}

struct disk {
    char run_dir[64], tmp[4096], path[4200];
};

static void disk_open(struct disk *d) {
    snprintf(d->run_dir, sizeof(d->run_dir), "/tmp/gatherfs-test-restore-XXXXXX");
    assert_non_null(mkdtemp(d->run_dir));
}

static void disk_close(const struct disk *d) {
    char command[128];
    snprintf(command, sizeof(command), "rm -r '%s'", d->run_dir);
    assert_int_equal(system(command), 0);
}

static uint8_t *side_dump(struct side *s, uint32_t r, uint32_t mask) {
    uint8_t *dump = malloc(layout_dump_bytes(&s->layout, mask, r) + 1);
    assert_non_null(dump);
    for (enum array a = 0; a < ARRAY_COUNT; a++)
        for (uint32_t u = 0; u < s->layout.unit_count && (mask & ARRAY_BIT(a)) != 0; u++)
            memcpy(dump + layout_dump_offset(&s->layout, mask, r, a, u),
                   arrays_shard(s->arrays[r], a, u),
                   layout_shard_valid(&s->layout, u, r) * TENSOR_ELEM_BYTES);
    return dump;
}

static void side_write(struct side *s, struct disk *d, uint32_t mask) {
    struct err err = {0};
    char *entries[4] = {NULL};
    struct snapshot_info info = {.name = "one",
                                 .id = 1,
                                 .epoch = 1,
                                 .gen = 50,
                                 .step = STEP,
                                 .world_size = s->world_size,
                                 .array_mask = mask};
    disk_open(d);
    int rc = snapshot_begin(&store_io_posix, d->run_dir, "one", d->tmp, sizeof(d->tmp), &err);
    for (uint32_t r = 0; r < s->world_size && rc == 0; r++) {
        uint8_t *dump = side_dump(s, r, mask);
        rc = snapshot_write_rank(&store_io_posix, d->tmp, &s->layout, r, mask, dump, 1, NULL, NULL,
                                 &entries[r], &err);
        free(dump);
    }
    if (rc == 0)
        rc = snapshot_publish(&store_io_posix, d->run_dir, &info, &s->layout,
                              (const char *const *)entries, "{}", "{}", &err);
    if (rc != 0)
        fail_msg("%s", err.text);
    snprintf(d->path, sizeof(d->path), "%s/snapshots/one", d->run_dir);
    for (uint32_t r = 0; r < s->world_size; r++)
        free(entries[r]);
}

static int load(struct side *s, uint32_t rank, const char *dir, const struct comm_ops *ops,
                struct comm *comm, bool *changed, uint64_t *step, struct err *err) {
    struct restore_args args = {.layout = &s->layout,
                                .rank = rank,
                                .world_size = s->world_size,
                                .arrays = s->arrays[rank],
                                .comm_ops = ops,
                                .comm = comm,
                                .gen = 60};
    return restore_load(&args, dir, step, changed, err);
}

static int load_alone(struct side *s, const char *dir, bool *changed, uint64_t *step,
                      struct err *err) {
    const uint64_t shard = 16;
    struct comm *comm = NULL;
    const struct comm_args alone = {.world_size = 1, .shard_elems = &shard, .unit_count = 1};
    assert_int_equal(comm_self.open(&alone, &comm, NULL), 0);
    int rc = load(s, 0, dir, &comm_self, comm, changed, step, err);
    comm_self.close(comm);
    return rc;
}

/* ---- what is loaded */

static void between(const char *from_wrap, uint32_t from, const char *to_wrap, uint32_t mask) {
    struct model m = small_model();
    struct side a, b;
    struct disk d;
    struct err err = {0};
    bool changed = false;
    uint64_t step = 0;
    side_open(&a, &m, from_wrap, from);
    side_bits(&a, 1, false);
    side_write(&a, &d, mask);
    side_open(&b, &m, to_wrap, 1);
    side_bits(&b, 2, false);
    if (load_alone(&b, d.path, &changed, &step, &err) != 0)
        fail_msg("%s", err.text);
    assert_true(changed);
    assert_int_equal(step, STEP);
    assert_true(side_bits(&b, 1, true));
    side_close(&a);
    side_close(&b);
    disk_close(&d);
}

static void snapshot_of_three_ranks_is_loaded_into_one(void **state) {
    (void)state;
    between("none", 3, "block", ARRAY_MASK_STATE);
    between("block", 3, "none", ARRAY_MASK_STATE);
    between("block", 4, "size:100", ARRAY_MASK_ALL);
    between("none", 1, "none", ARRAY_MASK_STATE);
}

static void restored_arrays_have_the_new_version_and_no_gradients(void **state) {
    (void)state;
    struct model m = small_model();
    struct side a;
    struct disk d;
    struct err err = {0};
    bool changed = false;
    uint64_t step = 0;
    float sink[1024];
    side_open(&a, &m, "block", 1);
    for (uint32_t u = 0; u < a.layout.unit_count; u++) {
        arrays_grads_begin(a.arrays[0], u);
        arrays_grads_end(a.arrays[0], u, 50, STEP);
    }
    side_write(&a, &d, ARRAY_MASK_STATE);
    assert_int_equal(load_alone(&a, d.path, &changed, &step, &err), 0);
    for (uint32_t u = 0; u < a.layout.unit_count; u++) {
        struct hold h = {.array = ARRAY_EXP_AVG, .unit = u, .hi = 1, .dst = (uint8_t *)sink};
        assert_true(arrays_take(a.arrays[0], &h));
        assert_int_equal(h.result, HOLD_COPIED);
        assert_int_equal(h.gen, 60);
        assert_int_equal(h.step, STEP);
        h = (struct hold){.array = ARRAY_GRADS, .unit = u, .hi = 1, .dst = (uint8_t *)sink};
        assert_true(arrays_take(a.arrays[0], &h));
        assert_int_equal(h.result, HOLD_NONE);
    }
    side_close(&a);
    disk_close(&d);
}

static void owed_copies_are_made_before_a_restore(void **state) {
    (void)state;
    struct model m = small_model();
    struct side a;
    struct disk d;
    struct err err = {0};
    bool changed = false;
    uint64_t step = 0;
    float sink[1024];
    side_open(&a, &m, "none", 1);
    side_bits(&a, 1, false);
    side_write(&a, &d, ARRAY_MASK_STATE);
    side_bits(&a, 2, false);
    arrays_state_begin(a.arrays[0], 0);
    arrays_state_end(a.arrays[0], 0, 59, STEP + 8);
    struct hold h = {.array = ARRAY_PARAMS, .hi = 37, .dst = (uint8_t *)sink};
    arrays_fix(a.arrays[0], &h);
    assert_int_equal(load_alone(&a, d.path, &changed, &step, &err), 0);
    assert_ptr_equal(arrays_next_done(a.arrays[0]), &h);
    assert_int_equal(h.gen, 59);
    for (uint64_t i = 0; i < 37; i++) {
        uint32_t bits = bits_of(ARRAY_PARAMS, 0, i, 2);
        assert_memory_equal(&sink[i], &bits, sizeof(bits));
    }
    side_close(&a);
    disk_close(&d);
}

/* ---- into memory of a device */

/* A side of one rank, whose shards lie there; `memory` is what the test sees of it. */
struct gpu {
    struct side *side;
    struct device *dev;
    struct stage *stage;
    struct dev_stream *writer;
    struct dev_event *written;
};

static void gpu_wait(struct gpu *g) {
    assert_int_equal(async_device_ops.event_record(g->dev, g->writer, g->written), 0);
    assert_int_equal(async_device_ops.event_synchronize(g->dev, g->written), 0);
}

static void gpu_write(struct gpu *g) {
    async_device_write(g->dev, g->writer, g->side->shards[0], g->side->memory[0],
                       g->side->elems * sizeof(float));
    gpu_wait(g);
}

static void gpu_read(struct gpu *g) {
    async_device_peek(g->dev, g->side->memory[0], g->side->shards[0],
                      g->side->elems * sizeof(float));
}

static void gpu_open(struct gpu *g, struct side *s, enum async_order order) {
    const struct device_ops *ops = &async_device_ops;
    struct err err = {0};
    void *shards = NULL;
    *g = (struct gpu){.side = s, .dev = async_device_open(order, 1)};
    assert_int_equal(
        ops->alloc(g->dev, DEV_MEM_DEVICE, s->elems * sizeof(float), "shards", &shards), 0);
    assert_int_equal(ops->stream_open(g->dev, DEV_STREAM_COMPUTE, &g->writer), 0);
    assert_int_equal(ops->event_open(g->dev, "written", &g->written), 0);
    struct stage_args args = {.ops = ops, .dev = g->dev, .slot_bytes = 48, .slot_count = 2};
    assert_int_equal(stage_open(&args, &g->stage, &err), 0);
    arrays_set_stage(s->arrays[0], g->stage, g->writer, g->writer);
    side_shards(s, 0, shards);
    side_bits(s, 2, false);
    gpu_write(g);
}

static void gpu_close(struct gpu *g) {
    const struct device_ops *ops = &async_device_ops;
    gpu_wait(g);
    stage_close(g->stage);
    ops->event_close(g->dev, g->written);
    ops->stream_close(g->dev, g->writer);
    ops->free(g->dev, DEV_MEM_DEVICE, g->side->shards[0], g->side->elems * sizeof(float));
    ops->close(g->dev);
}

static void snapshot_is_loaded_into_memory_of_a_device(void **state) {
    (void)state;
    struct model m = small_model();
    struct side a, b;
    struct disk d;
    side_open(&a, &m, "block", 3);
    side_bits(&a, 1, false);
    side_write(&a, &d, ARRAY_MASK_STATE);
    for (int order = 0; order < ASYNC_ORDERS; order++) {
        struct gpu g;
        struct err err = {0};
        bool changed = false;
        uint64_t step = 0;
        float sink[1024];
        side_open(&b, &m, "none", 1);
        gpu_open(&g, &b, (enum async_order)order);
        arrays_state_begin(b.arrays[0], 0);
        arrays_state_end(b.arrays[0], 0, 59, STEP + 8);
        struct hold h = {.array = ARRAY_PARAMS, .hi = 37, .dst = (uint8_t *)sink};
        arrays_fix(b.arrays[0], &h); /* owed before it is overwritten */
        if (load_alone(&b, d.path, &changed, &step, &err) != 0)
            fail_msg("%s", err.text);
        assert_true(changed);
        gpu_read(&g);
        assert_true(side_bits(&b, 1, true));
        while (arrays_serve(b.arrays[0]))
            ;
        assert_ptr_equal(arrays_next_done(b.arrays[0]), &h);
        assert_int_equal(h.gen, 59);
        for (uint64_t i = 0; i < 37; i++) {
            uint32_t bits = bits_of(ARRAY_PARAMS, 0, i, 2);
            assert_memory_equal(&sink[i], &bits, sizeof(bits));
        }
        gpu_close(&g);
        side_close(&b);
    }
    side_close(&a);
    disk_close(&d);
}

static void device_that_fails_during_the_load_ends_it(void **state) {
    (void)state;
    struct model m = small_model();
    struct side a, b;
    struct disk d;
    struct gpu g;
    side_open(&a, &m, "none", 1);
    side_bits(&a, 1, false);
    side_write(&a, &d, ARRAY_MASK_STATE);
    side_open(&b, &m, "none", 1);
    gpu_open(&g, &b, ASYNC_LAZY);
    uint64_t before = async_device_calls(g.dev), step = 7;
    bool changed = false;
    struct err none = {0};
    assert_int_equal(load_alone(&b, d.path, &changed, &step, &none), 0);
    uint64_t calls = async_device_calls(g.dev) - before;
    assert_true(calls > 100);
    for (uint64_t nth = 1; nth <= calls; nth++) {
        struct err err = {0};
        step = 7;
        changed = false;
        async_device_fail(g.dev, nth, false);
        assert_int_equal(load_alone(&b, d.path, &changed, &step, &err), -EIO);
        assert_true(changed);
        assert_int_equal(step, 7);
        assert_non_null(strstr(err.text, "told to fail"));
    }
    gpu_close(&g);
    side_close(&a);
    side_close(&b);
    disk_close(&d);
}

/* ---- what is refused */

/* The snapshot of the small model is not loaded into b, and b is as it was. */
static int refused(struct side *b, const char *dir, struct err *err) {
    bool changed = true;
    uint64_t step = 7;
    side_bits(b, 5, false);
    int rc = load_alone(b, dir, &changed, &step, err);
    assert_false(changed);
    assert_int_equal(step, 7);
    assert_true(side_bits(b, 5, true));
    assert_true(err->text[0] != '\0');
    return rc;
}

static void snapshot_of_another_model_is_refused(void **state) {
    (void)state;
    struct model m = small_model();
    struct side a, b;
    struct disk d;
    side_open(&a, &m, "none", 3);
    side_write(&a, &d, ARRAY_MASK_STATE);
    for (int i = 0; i < 3; i++) {
        struct err err = {0};
        struct model other = small_model();
        if (i == 0)
            other.tensors[3].shape[1] = 4;
        else if (i == 1)
            strcpy(other.tensors[2].name, "h.0.gain");
        else
            other.tensors[2] =
                (struct tensor_spec){.name = "h.0.bias", .ndim = 2, .shape = {11, 1}, .module = 1};
        side_open(&b, &other, "block", 1);
        assert_int_equal(refused(&b, d.path, &err), -EINVAL);
        assert_non_null(strstr(err.text, i == 0 ? "h.1.weight" : "h.0."));
        side_close(&b);
    }
    side_close(&a);
    disk_close(&d);
}

static void snapshot_without_optimizer_state_is_refused(void **state) {
    (void)state;
    struct model m = small_model();
    struct side a;
    struct disk d;
    struct err err = {0};
    side_open(&a, &m, "none", 1);
    side_write(&a, &d, ARRAY_BIT(ARRAY_PARAMS));
    assert_int_equal(refused(&a, d.path, &err), -EINVAL);
    side_close(&a);
    disk_close(&d);
}

static void missing_snapshot_is_refused(void **state) {
    (void)state;
    struct model m = small_model();
    struct side a;
    struct err err = {0};
    side_open(&a, &m, "none", 1);
    assert_int_equal(refused(&a, "/nonexistent/snapshot", &err), -EBADMSG);
    side_close(&a);
}

static void flip(const char *dir, const char *file, off_t at) {
    char path[4300];
    uint8_t byte;
    snprintf(path, sizeof(path), "%s/%s", dir, file);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void flipped_byte_anywhere_is_refused(void **state) {
    (void)state;
    struct model m = small_model();
    struct side a, b;
    struct disk d;
    side_open(&a, &m, "none", 3);
    side_bits(&a, 1, false);
    side_write(&a, &d, ARRAY_MASK_STATE);
    side_open(&b, &m, "block", 1);
    for (uint32_t r = 0; r < 3; r++) {
        char file[32];
        off_t bytes = (off_t)layout_dump_bytes(&a.layout, ARRAY_MASK_STATE, r);
        const off_t places[] = {0, bytes / 2, bytes - 1};
        snprintf(file, sizeof(file), "rank-%u.bin", r);
        for (size_t i = 0; i < 3; i++) {
            struct err err = {0};
            flip(d.path, file, SNAPSHOT_HEADER_BYTES + places[i]);
            assert_int_equal(refused(&b, d.path, &err), -EBADMSG);
            assert_non_null(strstr(err.text, file));
            flip(d.path, file, SNAPSHOT_HEADER_BYTES + places[i]);
        }
    }
    struct err err = {0};
    flip(d.path, "manifest.json", 100);
    assert_int_not_equal(refused(&b, d.path, &err), 0);
    flip(d.path, "manifest.json", 100);
    bool changed = false;
    uint64_t step = 0;
    struct err none = {0};
    assert_int_equal(load_alone(&b, d.path, &changed, &step, &none), 0);
    side_close(&a);
    side_close(&b);
    disk_close(&d);
}

/* ---- other ranks */

/* A world in which the others have a verdict of their own. */
struct comm {
    uint64_t verdicts[4]; /* of the others, agreement by agreement */
    int calls, fails_at;
};

static int others_all_reduce_u64(struct comm *c, uint64_t *inout, size_t count, enum comm_op op) {
    assert_int_equal(count, 1);
    assert_int_equal(op, COMM_MIN);
    int call = c->calls++;
    if (c->fails_at == call + 1)
        return -EIO;
    if (c->verdicts[call] != 0 && *inout == UINT64_MAX)
        *inout = 1; /* rank 1 found something; its reason follows in the broadcast */
    return 0;
}

static int others_broadcast(struct comm *c, void *data, size_t bytes, uint32_t root) {
    (void)c;
    struct err why = {.code = EBADMSG, .text = "rank-1.bin: wrong checksum"};
    assert_int_equal(bytes, sizeof(why));
    if (root == 1)
        memcpy(data, &why, sizeof(why));
    return 0;
}

static const struct comm_ops others = {
    .name = "others", .all_reduce_u64 = others_all_reduce_u64, .broadcast = others_broadcast};

static int load_with(struct comm c, bool *changed, bool *kept) {
    struct model m = small_model();
    struct side a;
    struct disk d;
    struct err err = {0};
    uint64_t step = 7;
    side_open(&a, &m, "none", 2);
    side_bits(&a, 1, false);
    side_write(&a, &d, ARRAY_MASK_STATE);
    side_bits(&a, 5, false);
    int rc = load(&a, 0, d.path, &others, &c, changed, &step, &err);
    assert_int_equal(step, rc == 0 ? STEP : 7);
    *kept = side_bits(&a, 5, true);
    side_close(&a);
    disk_close(&d);
    return rc;
}

static void refusal_of_another_rank_changes_nothing(void **state) {
    (void)state;
    bool changed, kept;
    assert_int_equal(load_with((struct comm){.verdicts = {1}}, &changed, &kept), -EBADMSG);
    assert_false(changed);
    assert_true(kept);
    assert_int_equal(load_with((struct comm){.fails_at = 1}, &changed, &kept), -EIO);
    assert_false(changed);
    assert_true(kept);
}

static void failure_of_another_rank_after_the_agreement_is_told(void **state) {
    (void)state;
    bool changed, kept;
    assert_int_equal(load_with((struct comm){.verdicts = {0, 1}}, &changed, &kept), -EBADMSG);
    assert_true(changed);
    assert_int_equal(load_with((struct comm){.fails_at = 2}, &changed, &kept), -EIO);
    assert_true(changed);
    assert_int_equal(load_with((struct comm){0}, &changed, &kept), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(snapshot_of_three_ranks_is_loaded_into_one),
        cmocka_unit_test(restored_arrays_have_the_new_version_and_no_gradients),
        cmocka_unit_test(owed_copies_are_made_before_a_restore),
        cmocka_unit_test(snapshot_is_loaded_into_memory_of_a_device),
        cmocka_unit_test(device_that_fails_during_the_load_ends_it),
        cmocka_unit_test(snapshot_of_another_model_is_refused),
        cmocka_unit_test(snapshot_without_optimizer_state_is_refused),
        cmocka_unit_test(missing_snapshot_is_refused),
        cmocka_unit_test(flipped_byte_anywhere_is_refused),
        cmocka_unit_test(refusal_of_another_rank_changes_nothing),
        cmocka_unit_test(failure_of_another_rank_after_the_agreement_is_told),
    };
    alarm(DEADLINE_SECONDS);
    log_set_level(LEVEL_ERROR);
    return cmocka_run_group_tests_name("restore", tests, NULL, NULL);
}
