/* test_ledger.c - commands by key. */
#include "config.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "run/ledger.h"

static struct command *add(struct ledger *l, const char *key) {
    struct msg_command m = {.name = "step", .value = "3"};
    snprintf(m.key, sizeof m.key, "%s", key);
    struct command *c = ledger_add(l, &m);
    assert_non_null(c);
    return c;
}

static void a_key_is_found_again(void **state) {
    (void)state;
    struct ledger *l = ledger_open(10);
    assert_null(ledger_find(l, "id:a"));
    struct command *a = add(l, "id:a"), *b = add(l, "u:12");
    assert_ptr_equal(ledger_find(l, "id:a"), a);
    assert_ptr_equal(ledger_find(l, "u:12"), b);
    assert_int_equal(a->number, 1);
    assert_int_equal(b->number, 2);
    assert_string_equal(command_id(a), "a");
    assert_string_equal(command_id(b), "u:12");
    ledger_close(l);
}

static void a_result_makes_the_state(void **state) {
    (void)state;
    static const struct {
        uint32_t code;
        const char *state;
    } results[] = {{0, "done"}, {ECANCELED, "canceled"}, {ENOSPC, "failed"}};
    struct ledger *l = ledger_open(10);
    for (size_t i = 0; i < 3; i++) {
        char key[8];
        snprintf(key, sizeof key, "id:%zu", i);
        struct command *c = add(l, key);
        assert_string_equal(command_state_name(c), "waiting");
        c->state = COMMAND_ACCEPTED;
        assert_string_equal(command_state_name(c), "waiting");
        ledger_retry(c);
        assert_true(command_is_open(c));
        ledger_finish(l, c, results[i].code, "text");
        assert_false(command_is_open(c));
        assert_string_equal(command_state_name(c), results[i].state);
        assert_string_equal(c->text, "text");
    }
    ledger_close(l);
}

static void open_ones_may_end_while_they_are_walked(void **state) {
    (void)state;
    struct ledger *l = ledger_open(10);
    struct command *c[6];
    for (int i = 0; i < 6; i++) {
        char key[8];
        snprintf(key, sizeof key, "id:%d", i);
        c[i] = add(l, key);
    }
    int seen = 0;
    for (struct command *o = ledger_first_open(l); o; o = ledger_next_open(o)) {
        seen++;
        if (o == c[1]) { /* itself, the next, the one before */
            ledger_finish(l, c[2], 0, "");
            ledger_finish(l, c[1], 0, "");
            ledger_finish(l, c[0], 0, "");
        }
    }
    assert_int_equal(seen, 5);
    assert_int_equal(ledger_open_count(l), 3);
    assert_ptr_equal(ledger_first_open(l), c[3]);
    ledger_finish(l, c[5], 0, "");
    add(l, "id:new");
    seen = 0;
    for (struct command *o = ledger_first_open(l); o; o = ledger_next_open(o))
        seen++;
    assert_int_equal(seen, 3);
    ledger_close(l);
}

static void only_old_finished_ones_are_forgotten(void **state) {
    (void)state;
    struct ledger *l = ledger_open(100);
    struct command *waits = add(l, "id:waits");
    for (int i = 0; i < 1000; i++) {
        char key[16];
        snprintf(key, sizeof key, "u:%d", i);
        ledger_finish(l, add(l, key), 0, "");
        ledger_trim(l);
    }
    assert_ptr_equal(ledger_find(l, "id:waits"), waits);
    ledger_finish(l, waits, 0, "");
    ledger_trim(l);
    assert_null(ledger_find(l, "id:waits"));
    assert_null(ledger_find(l, "u:899"));
    assert_non_null(ledger_find(l, "u:900"));
    assert_non_null(ledger_find(l, "u:999"));
    assert_string_equal(ledger_tail(l, 2)->key, "u:998");
    assert_string_equal(ledger_tail(l, 100000)->key, "u:900");
    ledger_close(l);
}

static void an_empty_ledger_has_no_tail(void **state) {
    (void)state;
    struct ledger *l = ledger_open(1);
    assert_null(ledger_tail(l, 5));
    assert_null(ledger_first_open(l));
    ledger_trim(l);
    ledger_close(l);
    ledger_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_is_found_again),
        cmocka_unit_test(a_result_makes_the_state),
        cmocka_unit_test(open_ones_may_end_while_they_are_walked),
        cmocka_unit_test(only_old_finished_ones_are_forgotten),
        cmocka_unit_test(an_empty_ledger_has_no_tail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
