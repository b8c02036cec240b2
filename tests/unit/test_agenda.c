/* test_agenda.c - what was put into the inbox is what all ranks do, each field of it. */
#include "config.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/agenda.h"

enum { RANKS = 3, DEADLINE_SECONDS = 60 };

/* A communicator of threads: a broadcast goes through memory. What rank 0 sends as its second
 * broadcast can be replaced. */
struct comm {
    pthread_barrier_t barrier;
    const void *data;
    const uint8_t *forged;
    uint64_t forged_bytes;
    bool length_sent;
    int fails;
};

static pthread_key_t rank_key;

static int fake_broadcast(struct comm *c, void *data, size_t bytes, uint32_t root) {
    uint32_t rank = *(const uint32_t *)pthread_getspecific(rank_key);
    if (c->fails != 0)
        return c->fails;
    if (rank == root) {
        if (c->forged != NULL && !c->length_sent)
            memcpy(data, &c->forged_bytes, sizeof(c->forged_bytes));
        c->data = c->forged != NULL && c->length_sent ? c->forged : data;
        c->length_sent = true;
    }
    pthread_barrier_wait(&c->barrier);
    if (rank != root)
        memcpy(data, c->data, bytes);
    pthread_barrier_wait(&c->barrier);
    return 0;
}

static const struct comm_ops fake_ops = {.name = "fake", .broadcast = fake_broadcast};

struct fixture {
    int bell;
    struct inbox *inbox;
    struct comm comm;
    struct agenda *agenda[RANKS];
    int rc[RANKS];
    struct err err[RANKS];
    uint64_t gen[RANKS], step;
};

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof(*f));
    f->bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    f->inbox = inbox_open(f->bell);
    pthread_barrier_init(&f->comm.barrier, NULL, RANKS);
    for (int r = 0; r < RANKS; r++)
        f->agenda[r] = calloc(1, sizeof(*f->agenda[r]));
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    for (int r = 0; r < RANKS; r++) {
        free(f->agenda[r]->config);
        free(f->agenda[r]);
    }
    pthread_barrier_destroy(&f->comm.barrier);
    inbox_close(f->inbox);
    close(f->bell);
    free(f);
    return 0;
}

struct rank_arg {
    struct fixture *f;
    uint32_t rank;
};

static void *rank_main(void *arg) {
    struct rank_arg *a = arg;
    struct fixture *f = a->f;
    pthread_setspecific(rank_key, &a->rank);
    f->rc[a->rank] =
        agenda_agree(f->agenda[a->rank], &fake_ops, &f->comm, a->rank,
                     a->rank == 0 ? f->inbox : NULL, f->gen[a->rank], f->step, &f->err[a->rank]);
    return NULL;
}

static void agree(struct fixture *f, uint64_t gen, uint64_t step) {
    pthread_t threads[RANKS];
    struct rank_arg args[RANKS];
    f->step = step;
    f->comm.length_sent = false;
    for (uint32_t r = 0; r < RANKS; r++) {
        f->gen[r] = gen;
        f->err[r] = (struct err){0};
        args[r] = (struct rank_arg){f, r};
        assert_int_equal(pthread_create(&threads[r], NULL, rank_main, &args[r]), 0);
    }
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(pthread_join(threads[r], NULL), 0);
}

static bool bell_rang(const struct fixture *f) {
    uint64_t n;
    return read(f->bell, &n, sizeof(n)) == sizeof(n);
}

static void each_put_rings_the_bell(void **state) {
    struct fixture *f = *state;
    assert_false(bell_rang(f));
    assert_int_equal(inbox_put_orders(f->inbox, 3, "", 0), 0);
    assert_true(bell_rang(f));
    assert_int_equal(inbox_put_fix(f->inbox, 1, 2), 0);
    assert_true(bell_rang(f));
    assert_int_equal(inbox_put_restore(f->inbox, 1, "d"), 0);
    assert_true(bell_rang(f));
    inbox_put_quit(f->inbox);
    assert_true(bell_rang(f));
}

static void all_fields_reach_all_ranks(void **state) {
    struct fixture *f = *state;
    char dir[AGENDA_DIR_BYTES];
    memset(dir, 'x', sizeof(dir));
    dir[sizeof(dir) - 1] = '\0';
    assert_int_equal(inbox_put_orders(f->inbox, 77, "lr = 1e-3\nclip = 2\nrest", 20), 0);
    assert_int_equal(inbox_put_fix(f->inbox, 0, 5), 0);
    assert_int_equal(inbox_put_fix(f->inbox, 9, UINT64_MAX), 0);
    assert_int_equal(inbox_put_restore(f->inbox, 42, dir), 0);
    agree(f, 12, 4);
    for (int r = 0; r < RANKS; r++) {
        const struct agenda *a = f->agenda[r];
        assert_int_equal(f->rc[r], 0);
        assert_int_equal(a->gen, 12);
        assert_int_equal(a->goal_step, 77);
        assert_int_equal(a->action, AGENDA_RESTORE);
        assert_int_equal(a->command, 42);
        assert_string_equal(a->dir, dir);
        assert_string_equal(a->config, "lr = 1e-3\nclip = 2\nr");
        assert_int_equal(a->fix_count, 2);
        assert_int_equal(a->fixes[0].session, 0);
        assert_int_equal(a->fixes[0].number, 5);
        assert_int_equal(a->fixes[1].session, 9);
        assert_true(a->fixes[1].number == UINT64_MAX);
    }
    agree(f, 13, 4); /* nothing of it is left, but the goal */
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(f->rc[r], 0);
        assert_int_equal(f->agenda[r]->action, AGENDA_STEP);
        assert_int_equal(f->agenda[r]->goal_step, 77);
        assert_int_equal(f->agenda[r]->fix_count, 0);
        assert_null(f->agenda[r]->config);
    }
}

static void action_follows_the_goal(void **state) {
    struct fixture *f = *state;
    static const struct {
        uint64_t goal, step;
        enum agenda_action action;
    } cases[] = {{0, 0, AGENDA_WAIT},
                 {1, 0, AGENDA_STEP},
                 {1, 1, AGENDA_WAIT},
                 {1, 2, AGENDA_WAIT},
                 {UINT64_MAX, 5, AGENDA_STEP}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        inbox_put_orders(f->inbox, cases[i].goal, "", 0);
        agree(f, 1 + i, cases[i].step);
        for (int r = 0; r < RANKS; r++)
            assert_int_equal(f->agenda[r]->action, cases[i].action);
    }
}

static void without_orders_the_ranks_wait(void **state) {
    struct fixture *f = *state;
    agree(f, 1, 0);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(f->agenda[r]->action, AGENDA_WAIT);
}

static void newest_orders_replace_older_ones(void **state) {
    struct fixture *f = *state;
    inbox_put_orders(f->inbox, 10, "lr = 1", 6);
    inbox_put_orders(f->inbox, 5, "lr = 2", 6);
    agree(f, 1, 5);
    assert_int_equal(f->agenda[1]->action, AGENDA_WAIT);
    assert_string_equal(f->agenda[1]->config, "lr = 2");
}

static void restore_goes_before_quit_and_quit_stays(void **state) {
    struct fixture *f = *state;
    inbox_put_orders(f->inbox, 100, "", 0);
    inbox_put_quit(f->inbox);
    inbox_put_restore(f->inbox, 3, "snap");
    static const enum agenda_action expected[] = {AGENDA_RESTORE, AGENDA_QUIT, AGENDA_QUIT};
    for (uint64_t i = 0; i < 3; i++) {
        agree(f, 1 + i, 0);
        for (int r = 0; r < RANKS; r++)
            assert_int_equal(f->agenda[r]->action, expected[i]);
    }
}

static void too_long_a_directory_is_refused(void **state) {
    struct fixture *f = *state;
    char dir[AGENDA_DIR_BYTES + 1];
    memset(dir, 'x', sizeof(dir));
    dir[AGENDA_DIR_BYTES] = '\0';
    assert_int_equal(inbox_put_restore(f->inbox, 1, dir), -ENAMETOOLONG);
    agree(f, 1, 0);
    assert_int_equal(f->agenda[2]->action, AGENDA_WAIT);
}

static void more_fixes_than_fit_are_refused(void **state) {
    struct fixture *f = *state;
    for (uint64_t i = 0; i < AGENDA_MAX_FIXES; i++)
        assert_int_equal(inbox_put_fix(f->inbox, 7, i), 0);
    assert_int_equal(inbox_put_fix(f->inbox, 7, 5000), -ENOBUFS);
    agree(f, 1, 0);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(f->agenda[r]->fix_count, AGENDA_MAX_FIXES);
        for (uint64_t i = 0; i < AGENDA_MAX_FIXES; i++)
            assert_int_equal(f->agenda[r]->fixes[i].number, i);
    }
    assert_int_equal(inbox_put_fix(f->inbox, 7, 5000), 0);
    agree(f, 2, 0);
    assert_int_equal(f->agenda[1]->fix_count, 1);
}

/* Nobody would ever fix it again, while a read has a deadline. */
static void wide_take_is_fixed_however_many_reads_wait(void **state) {
    struct fixture *f = *state;
    for (uint64_t i = 0; i < AGENDA_MAX_FIXES; i++)
        assert_int_equal(inbox_put_fix(f->inbox, 7, i), 0);
    assert_int_equal(inbox_put_fix(f->inbox, 0, 1), 0);
    assert_int_equal(inbox_put_fix(f->inbox, 0, 2), 0);
    agree(f, 1, 0);
    const struct agenda *a = f->agenda[1];
    int wide = 0;
    assert_int_equal(a->fix_count, AGENDA_MAX_FIXES);
    for (uint32_t i = 0; i < a->fix_count; i++)
        wide += a->fixes[i].session == 0;
    assert_int_equal(wide, 2);
    for (uint64_t i = 0; i < AGENDA_MAX_FIXES; i++)
        assert_int_equal(inbox_put_fix(f->inbox, 0, i), 0);
    assert_int_equal(inbox_put_fix(f->inbox, 0, 5000), -ENOBUFS);
}

static void ranks_at_another_gen_notice(void **state) {
    struct fixture *f = *state;
    pthread_t threads[RANKS];
    struct rank_arg args[RANKS];
    for (uint32_t r = 0; r < RANKS; r++) {
        f->gen[r] = r == 2 ? 6 : 5;
        args[r] = (struct rank_arg){f, r};
        assert_int_equal(pthread_create(&threads[r], NULL, rank_main, &args[r]), 0);
    }
    for (uint32_t r = 0; r < RANKS; r++)
        pthread_join(threads[r], NULL);
    assert_int_equal(f->rc[0], 0);
    assert_int_equal(f->rc[2], -EPROTO);
    assert_non_null(strstr(f->err[2].text, "gen 6"));
}

static void failed_broadcast_is_an_error(void **state) {
    struct fixture *f = *state;
    f->comm.fails = -EIO;
    agree(f, 1, 0);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(f->rc[r], -EIO);
}

/* ---- bytes of rank 0 that are none of an agenda */

struct good {
    uint8_t bytes[256];
    size_t len_bytes;
};

static struct good good_agenda(uint32_t action, uint32_t fix_count, uint32_t fixes_sent) {
    struct enc e = {0};
    struct good g;
    enc_u64(&e, 4);
    enc_u64(&e, 100);
    enc_u32(&e, action);
    enc_u64(&e, 0);
    enc_str(&e, "");
    enc_u8(&e, 1);
    enc_str(&e, "lr = 1");
    enc_u32(&e, fix_count);
    for (uint32_t i = 0; i < fixes_sent; i++) {
        enc_u64(&e, 1);
        enc_u64(&e, i);
    }
    assert_true(e.len_bytes <= sizeof(g.bytes));
    memcpy(g.bytes, e.data, e.len_bytes);
    g.len_bytes = e.len_bytes;
    enc_free(&e);
    return g;
}

static int agree_on(struct fixture *f, const uint8_t *bytes, size_t len_bytes) {
    f->comm.forged = bytes;
    f->comm.forged_bytes = len_bytes;
    agree(f, 4, 0);
    f->comm.forged = NULL;
    assert_int_equal(f->rc[1], f->rc[2]);
    return f->rc[1];
}

static void malformed_agendas_are_refused(void **state) {
    struct fixture *f = *state;
    struct good g = good_agenda(AGENDA_STEP, 2, 2);
    assert_int_equal(agree_on(f, g.bytes, g.len_bytes), 0);
    assert_int_equal(f->agenda[1]->fix_count, 2);
    for (size_t n = 1; n < g.len_bytes; n++) {
        assert_int_equal(agree_on(f, g.bytes, n), -EPROTO);
        assert_true(f->agenda[1]->fix_count <= AGENDA_MAX_FIXES);
    }
    assert_int_equal(agree_on(f, g.bytes, g.len_bytes + 1), -EPROTO);
    assert_int_equal(agree_on(f, g.bytes, 0), -ENOMEM);
    assert_int_equal(agree_on(f, g.bytes, (size_t)1 << 40), -ENOMEM);
    g = good_agenda(AGENDA_STEP, AGENDA_MAX_FIXES + 1, 2);
    assert_int_equal(agree_on(f, g.bytes, g.len_bytes), -EPROTO);
    assert_int_equal(f->agenda[1]->fix_count, 0);
    g = good_agenda(AGENDA_STEP, UINT32_MAX, 2);
    assert_int_equal(agree_on(f, g.bytes, g.len_bytes), -EPROTO);
    g = good_agenda(AGENDA_QUIT + 1, 0, 0);
    assert_int_equal(agree_on(f, g.bytes, g.len_bytes), -EPROTO);
}

static void one_rank_agrees_with_itself(void **state) {
    struct fixture *f = *state;
    struct comm *comm = NULL;
    const uint64_t shard = 16;
    const struct comm_args alone = {.world_size = 1, .shard_elems = &shard, .unit_count = 1};
    assert_int_equal(comm_self.open(&alone, &comm, NULL), 0);
    inbox_put_orders(f->inbox, 2, "lr = 1", 6);
    inbox_put_fix(f->inbox, 3, 4);
    struct err err = {0};
    assert_int_equal(agenda_agree(f->agenda[0], &comm_self, comm, 0, f->inbox, 8, 1, &err), 0);
    assert_int_equal(f->agenda[0]->action, AGENDA_STEP);
    assert_int_equal(f->agenda[0]->gen, 8);
    assert_int_equal(f->agenda[0]->fix_count, 1);
    assert_string_equal(f->agenda[0]->config, "lr = 1");
    comm_self.close(comm);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(each_put_rings_the_bell, setup, teardown),
        cmocka_unit_test_setup_teardown(all_fields_reach_all_ranks, setup, teardown),
        cmocka_unit_test_setup_teardown(action_follows_the_goal, setup, teardown),
        cmocka_unit_test_setup_teardown(without_orders_the_ranks_wait, setup, teardown),
        cmocka_unit_test_setup_teardown(newest_orders_replace_older_ones, setup, teardown),
        cmocka_unit_test_setup_teardown(restore_goes_before_quit_and_quit_stays, setup, teardown),
        cmocka_unit_test_setup_teardown(too_long_a_directory_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(more_fixes_than_fit_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(wide_take_is_fixed_however_many_reads_wait, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(ranks_at_another_gen_notice, setup, teardown),
        cmocka_unit_test_setup_teardown(failed_broadcast_is_an_error, setup, teardown),
        cmocka_unit_test_setup_teardown(malformed_agendas_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(one_rank_agrees_with_itself, setup, teardown),
    };
    alarm(DEADLINE_SECONDS);
    pthread_key_create(&rank_key, NULL);
    return cmocka_run_group_tests_name("agenda", tests, NULL, NULL);
}
