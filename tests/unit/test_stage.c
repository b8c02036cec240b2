/* test_stage.c - copies out of a device that runs late: whole, of the moment that was fenced, never
 * waited for without need, dropped and failed at every place. */
#include "config.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "async_device.h"
#include "base/log.h"
#include "engine/stage.h"

enum { MEMORY_BYTES = 4096, DEADLINE_SECONDS = 120, OLD = 1, NEW = 2 };

static const struct device_ops *const ops = &async_device_ops;

/* A device with some memory, a writer and a stage. */
struct rig {
    struct device *dev;
    struct stage *stage;
    uint8_t *memory;
    struct dev_stream *writer;
    struct dev_event *written;
};

static uint8_t byte_at(size_t i, uint8_t version) { return (uint8_t)(i * 7 + version * 101); }

static void fill(struct rig *r, uint8_t version) {
    uint8_t bytes[MEMORY_BYTES];
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = byte_at(i, version);
    async_device_write(r->dev, r->writer, r->memory, bytes, sizeof(bytes));
}

static void fill_complete(struct rig *r) {
    assert_int_equal(ops->event_record(r->dev, r->writer, r->written), 0);
    assert_int_equal(ops->event_synchronize(r->dev, r->written), 0);
}

static void rig_open(struct rig *r, enum async_order order, uint64_t seed, size_t slot_bytes,
                     uint32_t slot_count, uint32_t threads) {
    void *memory = NULL;
    struct err err = {0};
    *r = (struct rig){.dev = async_device_open(order, seed)};
    assert_int_equal(ops->alloc(r->dev, DEV_MEM_DEVICE, MEMORY_BYTES, "memory", &memory), 0);
    r->memory = memory;
    assert_int_equal(ops->stream_open(r->dev, DEV_STREAM_COMPUTE, &r->writer), 0);
    assert_int_equal(ops->event_open(r->dev, "written", &r->written), 0);
    struct stage_args args = {.ops = ops,
                              .dev = r->dev,
                              .slot_bytes = slot_bytes,
                              .slot_count = slot_count,
                              .threads = threads};
    if (stage_open(&args, &r->stage, &err) != 0)
        fail_msg("%s", err.text);
    fill(r, OLD);
    fill_complete(r);
}

static void rig_close_device(struct rig *r) {
    fill_complete(r);
    ops->event_close(r->dev, r->written);
    ops->stream_close(r->dev, r->writer);
    ops->free(r->dev, DEV_MEM_DEVICE, r->memory, MEMORY_BYTES);
    ops->close(r->dev);
}

static void rig_close(struct rig *r) {
    stage_close(r->stage);
    rig_close_device(r);
}

static struct stage_copy copy_of(struct rig *r, size_t from, size_t bytes, void *dst) {
    return (struct stage_copy){.src = r->memory + from, .dst = dst, .bytes = bytes};
}

static bool is_version(const uint8_t *p, size_t from, size_t bytes, uint8_t version) {
    for (size_t i = 0; i < bytes; i++)
        if (p[i] != byte_at(from + i, version))
            return false;
    return true;
}

/* Drains until the copy is through, which is queued. */
static void come_out(struct rig *r, struct stage_copy *c) {
    struct stage_copy *done;
    while ((done = stage_next_finished(r->stage)) == NULL)
        if (!stage_drain(r->stage))
            usleep(50); /* threads of the stage have the rest in hand */
    assert_ptr_equal(done, c);
}

static void copy_whole(struct rig *r, struct stage_copy *c) {
    while (!stage_queue(r->stage, c, false))
        stage_make_room(r->stage);
    come_out(r, c);
}

/* ---- the double itself */

static void host_that_reads_device_memory_dies(void **state) {
    (void)state;
    struct rig r;
    rig_open(&r, ASYNC_EAGER, 1, 64, 2, 0);
    pid_t pid = fork();
    if (pid == 0) {
        const struct rlimit none = {0, 0};
        (void)setrlimit(RLIMIT_CORE, &none);
        signal(SIGSEGV, SIG_DFL);
        _exit(*(volatile uint8_t *)r.memory == 0 ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGSEGV);
    rig_close(&r);
}

/* Else the tests of the fence would show nothing. */
static void write_without_a_fence_reaches_the_copy(void **state) {
    (void)state;
    struct rig r;
    uint8_t buffer[500];
    rig_open(&r, ASYNC_LATE_TAKE, 1, 100, 8, 0);
    struct stage_copy c = copy_of(&r, 11, sizeof(buffer), buffer);
    assert_true(stage_queue(r.stage, &c, false));
    fill(&r, NEW);
    come_out(&r, &c);
    assert_int_equal(c.rc, 0);
    assert_true(is_version(buffer, 11, sizeof(buffer), NEW));
    rig_close(&r);
}

/* ---- out */

static void copy_of_any_size_comes_out_whole(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 63, 64, 65, 128, 1000, MEMORY_BYTES - 5};
    uint64_t seed = 0;
    for (int order = 0; order < ASYNC_ORDERS; order++) {
        for (uint32_t slots = 1; slots <= 3; slots++) {
            for (uint32_t threads = 0; threads <= 2; threads += 2) {
                struct rig r;
                rig_open(&r, (enum async_order)order, ++seed, 64, slots, threads);
                for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
                    uint8_t buffer[MEMORY_BYTES + 1] = {0};
                    struct stage_copy c = copy_of(&r, 5, sizes[i], buffer);
                    copy_whole(&r, &c);
                    assert_int_equal(c.rc, 0);
                    assert_true(is_version(buffer, 5, sizes[i], OLD));
                    assert_int_equal(buffer[sizes[i]], 0);
                }
                rig_close(&r);
            }
        }
    }
}

static void queueing_fills_the_ring_and_never_waits(void **state) {
    (void)state;
    struct rig r;
    uint8_t buffer[640];
    rig_open(&r, ASYNC_LAZY, 1, 64, 3, 0);
    uint64_t waits = async_device_waits();
    struct stage_copy c = copy_of(&r, 0, sizeof(buffer), buffer), other = copy_of(&r, 0, 1, buffer);
    assert_false(stage_queue(r.stage, &c, false));
    assert_int_equal(c.queued_bytes, 3 * 64);
    assert_int_equal(async_device_pending(r.dev, DEV_STREAM_TAKE), 6); /* copies and events */
    assert_false(stage_queue(r.stage, &c, true));
    assert_false(stage_queue(r.stage, &other, true));
    assert_int_equal(async_device_waits(), waits);
    assert_true(stage_drain(r.stage)); /* one piece, and no more of the stream than that */
    assert_int_equal(async_device_waits(), waits + 1);
    assert_int_equal(async_device_pending(r.dev, DEV_STREAM_TAKE), 4);
    assert_false(stage_queue(r.stage, &c, false));
    assert_int_equal(c.queued_bytes, 4 * 64);
    copy_whole(&r, &c);
    assert_true(is_version(buffer, 0, sizeof(buffer), OLD));
    rig_close(&r);
}

static void copy_in_a_hurry_goes_first(void **state) {
    (void)state;
    struct rig r;
    uint8_t buffer[64], urgent[64];
    rig_open(&r, ASYNC_LAZY, 1, 64, 2, 0);
    struct stage_copy c = copy_of(&r, 0, 64, buffer), u = copy_of(&r, 64, 64, urgent);
    stage_hurry(r.stage, true);
    assert_false(stage_queue(r.stage, &c, false));
    assert_int_equal(c.queued_bytes, 0);
    assert_true(stage_queue(r.stage, &u, true));
    stage_hurry(r.stage, false);
    assert_true(stage_queue(r.stage, &c, false));
    come_out(&r, &u);
    come_out(&r, &c);
    assert_true(is_version(urgent, 64, 64, OLD));
    assert_true(is_version(buffer, 0, 64, OLD));
    rig_close(&r);
}

/* ---- the fence */

static void write_behind_the_fence_does_not_reach_the_copy(void **state) {
    (void)state;
    for (int order = 0; order < ASYNC_ORDERS; order++) {
        for (uint64_t seed = 1; seed < 30; seed++) {
            struct rig r;
            uint8_t buffer[500];
            rig_open(&r, (enum async_order)order, seed, 100, 8, 0);
            uint64_t waits = async_device_waits();
            struct stage_copy c = copy_of(&r, 11, sizeof(buffer), buffer);
            assert_true(stage_queue(r.stage, &c, false));
            stage_fence(r.stage, c.ticket, r.writer);
            fill(&r, NEW);
            assert_int_equal(async_device_waits(), waits);
            come_out(&r, &c);
            assert_true(is_version(buffer, 11, sizeof(buffer), OLD));
            rig_close(&r);
        }
    }
}

static void fence_is_behind_its_piece_and_nothing_else(void **state) {
    (void)state;
    struct rig r;
    uint8_t buffers[3][100], now[MEMORY_BYTES];
    struct stage_copy c[3];
    rig_open(&r, ASYNC_LAZY, 1, 100, 3, 0);
    for (int i = 0; i < 3; i++) {
        c[i] = copy_of(&r, 0, 100, buffers[i]);
        assert_true(stage_queue(r.stage, &c[i], false));
    }
    stage_fence(r.stage, c[0].ticket, r.writer);
    fill(&r, NEW);
    fill_complete(&r);
    async_device_peek(r.dev, now, r.memory, sizeof(now));
    assert_true(is_version(now, 0, sizeof(now), NEW));
    assert_int_equal(async_device_pending(r.dev, DEV_STREAM_TAKE), 4); /* of the other two */
    for (int i = 0; i < 3; i++)
        come_out(&r, &c[i]);
    assert_true(is_version(buffers[0], 0, 100, OLD));
    assert_true(is_version(buffers[2], 0, 100, NEW));
    rig_close(&r);
}

static void fence_of_what_is_complete_costs_nothing(void **state) {
    (void)state;
    struct rig r;
    uint8_t buffer[300];
    rig_open(&r, ASYNC_LAZY, 1, 100, 3, 0);
    struct stage_copy c = copy_of(&r, 0, sizeof(buffer), buffer);
    copy_whole(&r, &c);
    uint64_t calls = async_device_calls(r.dev);
    stage_fence(r.stage, c.ticket, r.writer);
    assert_int_equal(async_device_calls(r.dev), calls);
    rig_close(&r);
}

/* The device still reads for it; the slot is used again by another one. */
static void fence_holds_for_a_cancelled_copy(void **state) {
    (void)state;
    for (int reuse = 0; reuse < 2; reuse++) {
        struct rig r;
        uint8_t buffer[100], other[100];
        rig_open(&r, ASYNC_LAZY, 1, 100, 1, 0);
        struct stage_copy c = copy_of(&r, 0, 100, buffer), o = copy_of(&r, 200, 100, other);
        assert_true(stage_queue(r.stage, &c, false));
        uint64_t ticket = c.ticket;
        stage_cancel(r.stage, &c);
        if (reuse)
            assert_true(stage_queue(r.stage, &o, false));
        stage_fence(r.stage, ticket, r.writer);
        fill(&r, NEW);
        fill_complete(&r);
        assert_int_equal(async_device_pending(r.dev, DEV_STREAM_TAKE), 0);
        if (reuse) {
            come_out(&r, &o);
            assert_true(is_version(other, 200, 100, OLD));
        }
        rig_close(&r);
    }
}

/* ---- cancel */

static void cancelled_copy_is_never_written(void **state) {
    (void)state;
    for (size_t bytes = 100; bytes <= 700; bytes += 200) { /* queued whole, and in part */
        for (int drained = 0; drained < 3; drained++) {
            struct rig r;
            uint8_t buffer[700], zeros[700] = {0}, other[150];
            rig_open(&r, ASYNC_LAZY, 1, 100, 4, 0);
            struct stage_copy c = copy_of(&r, 0, bytes, buffer), o = copy_of(&r, 9, 150, other);
            (void)stage_queue(r.stage, &c, false);
            for (int i = 0; i < drained; i++)
                (void)stage_drain(r.stage);
            stage_cancel(r.stage, &c);
            memset(buffer, 0, sizeof(buffer));
            assert_null(stage_next_finished(r.stage));
            assert_false(stage_drain(r.stage)); /* its slots are free */
            copy_whole(&r, &o);
            assert_true(is_version(other, 9, 150, OLD));
            assert_memory_equal(buffer, zeros, sizeof(buffer));
            rig_close(&r);
        }
    }
}

struct other_thread {
    struct rig *r;
    struct stage_copy *copy;
    bool result;
    atomic_bool through;
};

static void *drain_main(void *arg) {
    struct other_thread *o = arg;
    o->result = stage_drain(o->r->stage);
    return NULL;
}

static void *cancel_main(void *arg) {
    struct other_thread *o = arg;
    stage_cancel(o->r->stage, o->copy);
    memset(o->copy->dst, 0, o->copy->bytes);
    atomic_store(&o->through, true);
    return NULL;
}

static void *room_main(void *arg) {
    struct other_thread *o = arg;
    stage_make_room(o->r->stage);
    o->result = stage_queue(o->r->stage, o->copy, true);
    atomic_store(&o->through, true);
    return NULL;
}

/* One thread is in the middle of draining; what another one does then has to wait for it. */
static void while_draining(void *(*what)(void *), struct other_thread *o) {
    pthread_t draining, waiting;
    async_device_gate(o->r->dev, true);
    assert_int_equal(pthread_create(&draining, NULL, drain_main, &(struct other_thread){.r = o->r}),
                     0);
    async_device_wait_gate(o->r->dev);
    assert_int_equal(pthread_create(&waiting, NULL, what, o), 0);
    usleep(50000); /* it has begun, and if it did not wait it would be through */
    assert_false(atomic_load(&o->through));
    async_device_gate(o->r->dev, false);
    assert_int_equal(pthread_join(draining, NULL), 0);
    assert_int_equal(pthread_join(waiting, NULL), 0);
}

static void cancel_waits_for_the_piece_that_is_drained(void **state) {
    (void)state;
    uint8_t buffer[100], zeros[100] = {0};
    struct rig r;
    rig_open(&r, ASYNC_LAZY, 1, 100, 2, 0);
    struct stage_copy c = copy_of(&r, 0, 100, buffer);
    assert_true(stage_queue(r.stage, &c, false));
    while_draining(cancel_main, &(struct other_thread){.r = &r, .copy = &c});
    assert_memory_equal(buffer, zeros, sizeof(buffer));
    assert_null(stage_next_finished(r.stage));
    rig_close(&r);
}

static void room_comes_from_the_piece_that_another_drains(void **state) {
    (void)state;
    uint8_t buffer[100], more[100];
    struct rig r;
    rig_open(&r, ASYNC_LAZY, 1, 100, 1, 0);
    struct stage_copy c = copy_of(&r, 0, 100, buffer), m = copy_of(&r, 100, 100, more);
    struct other_thread o = {.r = &r, .copy = &m};
    assert_true(stage_queue(r.stage, &c, false));
    while_draining(room_main, &o);
    assert_true(o.result);
    come_out(&r, &c);
    come_out(&r, &m);
    assert_true(is_version(buffer, 0, 100, OLD));
    assert_true(is_version(more, 100, 100, OLD));
    rig_close(&r);
}

/* Nobody has to wait for a thread that waits for the device, while there is room. */
static void others_go_on_while_one_waits_for_the_device(void **state) {
    (void)state;
    uint8_t buffer[100], more[100];
    struct rig r;
    pthread_t draining;
    rig_open(&r, ASYNC_LAZY, 1, 100, 4, 0);
    struct stage_copy c = copy_of(&r, 0, 100, buffer), m = copy_of(&r, 100, 100, more);
    assert_true(stage_queue(r.stage, &c, false));
    async_device_gate(r.dev, true);
    struct other_thread o = {.r = &r};
    assert_int_equal(pthread_create(&draining, NULL, drain_main, &o), 0);
    async_device_wait_gate(r.dev);
    uint64_t waits = async_device_waits();
    stage_hurry(r.stage, true);
    assert_true(stage_queue(r.stage, &m, true));
    stage_hurry(r.stage, false);
    stage_fence(r.stage, m.ticket, r.writer);
    assert_int_equal(async_device_waits(), waits);
    fill(&r, NEW);
    assert_true(stage_drain(r.stage)); /* the second piece: the first is in hand */
    assert_ptr_equal(stage_next_finished(r.stage), &m);
    async_device_gate(r.dev, false);
    assert_int_equal(pthread_join(draining, NULL), 0);
    assert_true(o.result);
    assert_ptr_equal(stage_next_finished(r.stage), &c);
    assert_true(is_version(buffer, 0, 100, OLD));
    assert_true(is_version(more, 100, 100, OLD));
    rig_close(&r);
}

/* ---- failures */

/* Some copies with fences and writes between them. Each comes out: with the content of its version
 * or with an error. Returns how many failed. */
static uint32_t busy(struct rig *r, bool cancel) {
    enum { COPIES = 6, BYTES = 350 };
    uint8_t buffers[COPIES][BYTES];
    struct stage_copy c[COPIES];
    uint32_t failed = 0, out = 0;
    for (uint32_t i = 0; i < COPIES; i++) {
        c[i] = copy_of(r, i * 13, i == 3 ? 0 : BYTES, buffers[i]);
        while (!stage_queue(r->stage, &c[i], i % 2 == 0))
            stage_make_room(r->stage);
        if (cancel && i == 2)
            stage_cancel(r->stage, &c[i]);
        stage_fence(r->stage, c[i].ticket, r->writer);
        fill(r, (uint8_t)(i + 2));
        fill_complete(r);
        while (i % 2 == 0 && stage_drain(r->stage))
            ;
    }
    while (stage_drain(r->stage))
        ;
    for (struct stage_copy *done; (done = stage_next_finished(r->stage)) != NULL; out++) {
        uint32_t i = (uint32_t)(done - c);
        assert_true(i < COPIES);
        if (done->rc != 0)
            assert_int_equal(done->rc, -EIO);
        else
            assert_true(is_version(buffers[i], i * 13, done->bytes, (uint8_t)(i + 1)));
        failed += done->rc != 0;
    }
    assert_int_equal(out, cancel ? COPIES - 1 : COPIES);
    return failed;
}

static void device_that_fails_anywhere_gives_errors_and_no_wrong_content(void **state) {
    (void)state;
    for (int order = 0; order < ASYNC_ORDERS; order++) {
        for (uint32_t slots = 1; slots <= 3; slots++) {
            struct rig r;
            rig_open(&r, (enum async_order)order, slots, 100, slots, 0);
            uint64_t first = async_device_calls(r.dev);
            assert_int_equal(busy(&r, slots == 2), 0);
            uint64_t calls = async_device_calls(r.dev) - first;
            assert_true(calls > 40);
            rig_close(&r);
            uint32_t failed[2] = {0, 0};
            for (uint64_t nth = 1; nth <= calls; nth++) {
                for (int dead = 0; dead < 2; dead++) {
                    rig_open(&r, (enum async_order)order, slots, 100, slots, 0);
                    async_device_fail(r.dev, nth, dead != 0);
                    uint32_t n = busy(&r, slots == 2);
                    assert_true(n > 0 || dead == 0 || nth > calls / 2);
                    failed[dead] += n;
                    rig_close(&r);
                }
            }
            assert_true(failed[0] > 0 && failed[1] > failed[0]);
        }
    }
}

static void lost_slot_fails_all_that_follows(void **state) {
    (void)state;
    struct rig r;
    uint8_t buffer[100];
    rig_open(&r, ASYNC_EAGER, 1, 100, 2, 0);
    struct stage_copy c = copy_of(&r, 0, 100, buffer);
    assert_true(stage_queue(r.stage, &c, false));
    async_device_fail(r.dev, 1, false);
    come_out(&r, &c);
    assert_int_equal(c.rc, -EIO);
    uint64_t calls = async_device_calls(r.dev);
    for (int i = 0; i < 5; i++) {
        c = copy_of(&r, 0, 100, buffer);
        assert_true(stage_queue(r.stage, &c, false));
        assert_ptr_equal(stage_next_finished(r.stage), &c);
        assert_int_equal(c.rc, -EIO);
        stage_make_room(r.stage);
    }
    assert_int_equal(async_device_calls(r.dev), calls);
    rig_close(&r);
}

static void stage_that_cannot_be_opened_leaves_nothing(void **state) {
    (void)state;
    struct rig r;
    rig_open(&r, ASYNC_EAGER, 1, 100, 3, 0);
    stage_close(r.stage);
    for (uint64_t nth = 1; nth <= 6; nth++) { /* one block of memory, an event a slot */
        struct err err = {0};
        struct stage_args args = {.ops = ops, .dev = r.dev, .slot_bytes = 100, .slot_count = 3};
        async_device_fail(r.dev, nth, false);
        assert_int_equal(stage_open(&args, &r.stage, &err), -EIO);
        assert_non_null(strstr(err.text, "the double was told to fail"));
    }
    rig_close_device(&r); /* which looks for what was left */
}

/* ---- in */

struct source {
    size_t filled, fails_at;
    uint8_t version;
};

static int source_fill(void *ctx, size_t offset, size_t bytes, void *to) {
    struct source *s = ctx;
    uint8_t *p = to;
    assert_int_equal(offset, s->filled);
    if (s->fails_at != 0 && offset + bytes >= s->fails_at)
        return -EBADMSG;
    for (size_t i = 0; i < bytes; i++)
        p[i] = byte_at(offset + i, s->version);
    s->filled += bytes;
    return 0;
}

static void upload_is_whole_when_it_returns(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 99, 100, 101, 350, MEMORY_BYTES};
    for (int order = 0; order < ASYNC_ORDERS; order++) {
        struct rig r;
        rig_open(&r, (enum async_order)order, 3, 100, 1, 0);
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            struct source s = {.version = (uint8_t)(10 + i)};
            struct err err = {0};
            uint8_t now[MEMORY_BYTES];
            assert_int_equal(stage_upload(r.stage, r.memory, sizes[i], source_fill, &s, &err), 0);
            async_device_peek(r.dev, now, r.memory, sizeof(now));
            assert_true(is_version(now, 0, sizes[i], s.version));
        }
        rig_close(&r);
    }
}

/* On one stream with them. */
static void upload_does_not_reach_copies_queued_before(void **state) {
    (void)state;
    struct rig r;
    uint8_t buffer[300];
    struct source s = {.version = NEW};
    struct err err = {0};
    rig_open(&r, ASYNC_LAZY, 3, 100, 3, 0);
    struct stage_copy c = copy_of(&r, 0, sizeof(buffer), buffer);
    assert_true(stage_queue(r.stage, &c, false));
    assert_int_equal(stage_upload(r.stage, r.memory, MEMORY_BYTES, source_fill, &s, &err), 0);
    come_out(&r, &c);
    assert_true(is_version(buffer, 0, sizeof(buffer), OLD));
    rig_close(&r);
}

static void upload_that_fails_says_so(void **state) {
    (void)state;
    struct rig r;
    struct err err = {0};
    rig_open(&r, ASYNC_LAZY, 3, 100, 1, 0);
    struct source s = {.version = NEW, .fails_at = 250};
    assert_int_equal(stage_upload(r.stage, r.memory, 900, source_fill, &s, &err), -EBADMSG);
    assert_int_equal(err.code, 0);             /* the source's to say */
    for (uint64_t nth = 1; nth <= 27; nth++) { /* copy, record and wait for each of nine pieces */
        err = (struct err){0};
        s = (struct source){.version = NEW};
        async_device_fail(r.dev, nth, false);
        assert_int_equal(stage_upload(r.stage, r.memory, 900, source_fill, &s, &err), -EIO);
        assert_non_null(strstr(err.text, "the double was told to fail"));
    }
    s = (struct source){.version = NEW};
    async_device_fail(r.dev, 28, false);
    assert_int_equal(stage_upload(r.stage, r.memory, 900, source_fill, &s, &err), 0);
    rig_close(&r);
}

/* More failures than one wants to read of. */
static int quiet(void **state) {
    (void)state;
    async_device_quiet(true);
    return 0;
}

static int loud(void **state) {
    (void)state;
    async_device_quiet(false);
    return 0;
}

/* An argument is a pattern of names: those tests alone. */
int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(host_that_reads_device_memory_dies),
        cmocka_unit_test(write_without_a_fence_reaches_the_copy),
        cmocka_unit_test(copy_of_any_size_comes_out_whole),
        cmocka_unit_test(queueing_fills_the_ring_and_never_waits),
        cmocka_unit_test(copy_in_a_hurry_goes_first),
        cmocka_unit_test(write_behind_the_fence_does_not_reach_the_copy),
        cmocka_unit_test(fence_is_behind_its_piece_and_nothing_else),
        cmocka_unit_test(fence_of_what_is_complete_costs_nothing),
        cmocka_unit_test(fence_holds_for_a_cancelled_copy),
        cmocka_unit_test(cancelled_copy_is_never_written),
        cmocka_unit_test(cancel_waits_for_the_piece_that_is_drained),
        cmocka_unit_test(room_comes_from_the_piece_that_another_drains),
        cmocka_unit_test(others_go_on_while_one_waits_for_the_device),
        cmocka_unit_test_setup_teardown(
            device_that_fails_anywhere_gives_errors_and_no_wrong_content, quiet, loud),
        cmocka_unit_test(lost_slot_fails_all_that_follows),
        cmocka_unit_test(stage_that_cannot_be_opened_leaves_nothing),
        cmocka_unit_test(upload_is_whole_when_it_returns),
        cmocka_unit_test(upload_does_not_reach_copies_queued_before),
        cmocka_unit_test(upload_that_fails_says_so),
    };
    alarm(DEADLINE_SECONDS);
    log_set_level(LEVEL_ERROR);
    cmocka_set_test_filter(argc > 1 ? argv[1] : NULL);
    return cmocka_run_group_tests_name("stage", tests, NULL, NULL);
}
