/* agenda.c - rank 0's inbox, and its broadcast. */
#include "config.h"

#include "engine/agenda.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"

enum { AGENDA_MAX_BYTES = 1 << 20 };

struct inbox {
    pthread_mutex_t lock;
    int doorbell_fd;
    uint64_t goal_step;
    char *config; /* owned; NULL: unchanged since the last agenda */
    uint32_t fix_count;
    struct agenda_fix fixes[AGENDA_MAX_FIXES];
    bool restore, quit;
    uint64_t restore_command;
    char restore_dir[AGENDA_DIR_BYTES];
};

struct inbox *inbox_open(int doorbell_fd) {
    struct inbox *i = calloc(1, sizeof(*i));
    if (i != NULL) {
        pthread_mutex_init(&i->lock, NULL);
        i->doorbell_fd = doorbell_fd;
    }
    return i;
}

void inbox_close(struct inbox *i) {
    if (i == NULL)
        return;
    pthread_mutex_destroy(&i->lock);
    free(i->config);
    free(i);
}

static void inbox_unlock_and_ring(struct inbox *i) {
    pthread_mutex_unlock(&i->lock);
    uint64_t one = 1;
    ssize_t n = write(i->doorbell_fd, &one, sizeof(one));
    (void)n;
}

int inbox_put_orders(struct inbox *i, uint64_t goal_step, const char *config, size_t config_bytes) {
    char *copy = strndup(config, config_bytes);
    if (copy == NULL)
        return -ENOMEM;
    pthread_mutex_lock(&i->lock);
    i->goal_step = goal_step;
    free(i->config);
    i->config = copy;
    inbox_unlock_and_ring(i);
    return 0;
}

/* Where a fix goes: behind the others; when there is no room a wide take's displaces the last of
 * the daemon's, whose takes have a deadline. NULL: no room. */
static struct agenda_fix *inbox_fix_slot(struct inbox *i, uint64_t session) {
    if (i->fix_count < AGENDA_MAX_FIXES)
        return &i->fixes[i->fix_count++];
    for (uint32_t f = AGENDA_MAX_FIXES; session == 0 && f > 0; f--)
        if (i->fixes[f - 1].session != 0)
            return &i->fixes[f - 1];
    return NULL;
}

int inbox_put_fix(struct inbox *i, uint64_t session, uint64_t number) {
    pthread_mutex_lock(&i->lock);
    struct agenda_fix *slot = inbox_fix_slot(i, session);
    int rc = slot != NULL ? 0 : -ENOBUFS;
    if (slot != NULL)
        *slot = (struct agenda_fix){session, number};
    inbox_unlock_and_ring(i);
    return rc;
}

int inbox_put_restore(struct inbox *i, uint64_t command, const char *dir) {
    if (strlen(dir) >= AGENDA_DIR_BYTES)
        return -ENAMETOOLONG;
    pthread_mutex_lock(&i->lock);
    i->restore = true;
    i->restore_command = command;
    memcpy(i->restore_dir, dir, strlen(dir) + 1);
    inbox_unlock_and_ring(i);
    return 0;
}

void inbox_rest(struct inbox *i, uint64_t goal_step, uint64_t step) {
    pthread_mutex_lock(&i->lock);
    if (i->goal_step == goal_step)
        i->goal_step = step;
    pthread_mutex_unlock(&i->lock);
}

void inbox_put_quit(struct inbox *i) {
    pthread_mutex_lock(&i->lock);
    i->quit = true;
    inbox_unlock_and_ring(i);
}

static void agenda_from_inbox(struct agenda *a, struct inbox *i, uint64_t gen, uint64_t step) {
    pthread_mutex_lock(&i->lock);
    a->gen = gen;
    a->goal_step = i->goal_step;
    a->config = i->config;
    i->config = NULL;
    a->fix_count = i->fix_count;
    memcpy(a->fixes, i->fixes, i->fix_count * sizeof(i->fixes[0]));
    i->fix_count = 0;
    /* A restore goes before quit and step: whoever asked for it waits for its answer. */
    if (i->restore) {
        a->action = AGENDA_RESTORE;
        a->command = i->restore_command;
        memcpy(a->dir, i->restore_dir, sizeof(a->dir));
        i->restore = false;
    } else if (i->quit) {
        a->action = AGENDA_QUIT;
    } else {
        a->action = step < i->goal_step ? AGENDA_STEP : AGENDA_WAIT;
    }
    pthread_mutex_unlock(&i->lock);
}

static void agenda_encode(const struct agenda *a, struct enc *e) {
    enc_u64(e, a->gen);
    enc_u64(e, a->goal_step);
    enc_u32(e, a->action);
    enc_u64(e, a->command);
    enc_str(e, a->action == AGENDA_RESTORE ? a->dir : "");
    enc_u8(e, a->config != NULL);
    enc_str(e, a->config);
    enc_u32(e, a->fix_count);
    for (uint32_t f = 0; f < a->fix_count; f++) {
        enc_u64(e, a->fixes[f].session);
        enc_u64(e, a->fixes[f].number);
    }
}

static int agenda_decode(struct agenda *a, const uint8_t *bytes, size_t len_bytes) {
    struct dec d = dec_of(bytes, len_bytes);
    a->gen = dec_u64(&d);
    a->goal_step = dec_u64(&d);
    uint32_t action = dec_u32(&d);
    a->command = dec_u64(&d);
    dec_str(&d, a->dir, sizeof(a->dir));
    bool changed = dec_u8(&d) != 0;
    a->config = dec_strdup(&d, AGENDA_MAX_BYTES);
    if (!changed) {
        free(a->config);
        a->config = NULL;
    }
    uint32_t fix_count = dec_u32(&d);
    a->fix_count = 0;
    if (action > AGENDA_QUIT || fix_count > AGENDA_MAX_FIXES)
        return -EPROTO;
    a->action = (enum agenda_action)action;
    for (uint32_t f = 0; f < fix_count; f++) {
        a->fixes[f].session = dec_u64(&d);
        a->fixes[f].number = dec_u64(&d);
    }
    if (!dec_done(&d))
        return -EPROTO;
    a->fix_count = fix_count;
    return 0;
}

int agenda_agree(struct agenda *a, const struct comm_ops *ops, struct comm *comm, uint32_t rank,
                 struct inbox *inbox, uint64_t gen, uint64_t step, struct err *err) {
    free(a->config);
    a->config = NULL;
    struct enc e = {0};
    uint64_t len_bytes = 0;
    int rc = 0;
    if (rank == 0) {
        agenda_from_inbox(a, inbox, gen, step);
        agenda_encode(a, &e);
        len_bytes = e.failed ? 0 : e.len_bytes;
    }
    rc = ops->broadcast(comm, &len_bytes, sizeof(len_bytes), 0);
    if (rc != 0 || len_bytes == 0 || len_bytes > AGENDA_MAX_BYTES) {
        rc = err_set(err, rc != 0 ? -rc : ENOMEM, "the agenda could not be agreed: %s",
                     err_name(rc != 0 ? -rc : ENOMEM));
        goto out;
    }
    uint8_t *bytes = rank == 0 ? e.data : malloc(len_bytes);
    if (bytes == NULL) {
        rc = err_set(err, ENOMEM, "no memory for the agenda");
        goto out;
    }
    rc = ops->broadcast(comm, bytes, len_bytes, 0);
    if (rc != 0)
        err_set(err, -rc, "the agenda could not be broadcast: %s", err_name(-rc));
    else if (rank != 0 && (rc = agenda_decode(a, bytes, len_bytes)) != 0)
        err_set(err, -rc, "the agenda is malformed");
    else if (a->gen != gen)
        rc = err_set(err, EPROTO, "this rank is at gen %llu, rank 0 at %llu",
                     (unsigned long long)gen, (unsigned long long)a->gen);
    if (rank != 0)
        free(bytes);
out:
    enc_free(&e);
    return rc;
}
