/* gpu_check_wide.c - see the header. */
#include "config.h"

#include "tests/cuda/gpu_check_wide.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/segment.h"

enum { WAIT_MS = 20 };

static void holds_reset(struct wide *w) {
    const struct layout *l = &w->rig->shape.layout;
    w->hold_count = 0;
    for (uint32_t a = 0; a < ARRAY_COUNT; a++)
        for (uint32_t u = 0; u < l->unit_count && (w->array_mask & ARRAY_BIT(a)) != 0; u++)
            w->holds[w->hold_count++] = (struct hold){
                .array = (enum array)a,
                .unit = u,
                .hi = layout_shard_valid(l, u, w->rig->rank),
                .dst =
                    w->dump + layout_dump_offset(l, w->array_mask, w->rig->rank, (enum array)a, u),
            };
}

static int hold_verdict(const struct hold *h, struct err *err) {
    if (h->result == HOLD_COPIED)
        return 0;
    int code = h->result == HOLD_FAILED ? h->code : EIO;
    return err_set(err, code, "a copy of %s: %s", array_names[h->array], strerror(code));
}

static void wide_finish(struct wide *w) {
    if (w->err.code == 0 && w->copied != NULL)
        (void)w->copied(w->ctx, w, &w->err);
    atomic_store(&w->fixed, false);
    atomic_store(&w->done, true);
}

static void wide_serve(struct wide *w) {
    struct pollfd p = {.fd = arrays_wake_fd(w->rig->arrays), .events = POLLIN};
    uint64_t count;
    bool any = arrays_serve(w->rig->arrays);
    for (struct hold *h; (h = arrays_next_done(w->rig->arrays)) != NULL; any = true) {
        (void)hold_verdict(h, &w->err);
        if (--w->left == 0)
            wide_finish(w);
    }
    if (!any && poll(&p, 1, WAIT_MS) > 0 && read(p.fd, &count, sizeof count) < 0)
        return; /* it was for others */
}

static void *wide_main(void *arg) {
    struct wide *w = arg;
    while (!atomic_load(&w->stop))
        wide_serve(w);
    for (uint32_t i = 0; i < w->hold_count && atomic_load(&w->fixed); i++)
        arrays_cancel(w->rig->arrays, &w->holds[i]);
    return NULL;
}

int wide_open(struct wide *w, struct rig *r, uint32_t array_mask,
              int (*copied)(void *ctx, struct wide *w, struct err *err), void *ctx,
              struct err *err) {
    *w = (struct wide){.rig = r, .array_mask = array_mask, .copied = copied, .ctx = ctx};
    w->dump_bytes = layout_dump_bytes(&r->shape.layout, array_mask, r->rank);
    w->dump = segment_private_alloc(w->dump_bytes);
    w->holds = calloc((size_t)ARRAY_COUNT * r->shape.layout.unit_count, sizeof *w->holds);
    if (w->dump == NULL || w->holds == NULL)
        return err_set(err, ENOMEM, "no memory for a copy of %llu bytes",
                       (unsigned long long)w->dump_bytes);
    memset(w->dump, 0, w->dump_bytes); /* touched */
    int code = pthread_create(&w->thread, NULL, wide_main, w);
    w->started = code == 0;
    return code == 0 ? 0 : err_set(err, code, "no thread for copies");
}

void wide_fix(struct wide *w, uint64_t step) {
    holds_reset(w);
    w->step = step;
    w->left = w->hold_count;
    atomic_store(&w->done, false);
    atomic_store(&w->fixed, true);
    for (uint32_t i = 0; i < w->hold_count; i++)
        arrays_fix(w->rig->arrays, &w->holds[i]);
}

bool wide_is_done(struct wide *w) { return atomic_load(&w->done); }

int wide_wait(struct wide *w, struct err *err) {
    while (!wide_is_done(w))
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (w->err.code == 0)
        return 0;
    return err_set(err, w->err.code, "%s", w->err.text);
}

void wide_close(struct wide *w) {
    if (w->started) {
        atomic_store(&w->stop, true);
        (void)pthread_join(w->thread, NULL);
    }
    if (w->dump != NULL)
        segment_private_free(w->dump, w->dump_bytes);
    free(w->holds);
    *w = (struct wide){.started = false};
}
