/* test_memory_sheet.c - blocks of memory as the lines of ranks/N/memory. */
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/memory_sheet.h"

static void expect(const struct memory_sheet *s, const struct device_properties *p,
                   const char *text) {
    struct enc e = {0};
    memory_sheet_print(s, p, &e);
    enc_u8(&e, 0);
    assert_false(e.failed);
    assert_string_equal((const char *)e.data, text);
    enc_free(&e);
}

static void device_and_host_are_told_apart(void **state) {
    (void)state;
    struct memory_sheet s = {0};
    struct device_properties p = {.memory_bytes = 1000, .memory_free_bytes = 10};
    memory_sheet_add(&s, DEV_MEM_DEVICE, 5, "batch");
    memory_sheet_add(&s, DEV_MEM_HOST, 7, "batch");
    memory_sheet_add(&s, DEV_MEM_DEVICE, UINT64_MAX - 5, "params as gathered");
    expect(&s, &p,
           "device/batch\t5\nhost/batch\t7\ndevice/params_as_gathered\t18446744073709551610\n"
           "device_total\t1000\ndevice_free\t10\n");
}

static void blocks_of_one_purpose_are_one_line(void **state) {
    (void)state;
    struct memory_sheet s = {0};
    struct device_properties p = {0};
    char what[] = "gathered units"; /* another pointer, the same words */
    memory_sheet_add(&s, DEV_MEM_DEVICE, 1, "gathered units");
    memory_sheet_add(&s, DEV_MEM_DEVICE, 2, "grads");
    memory_sheet_add(&s, DEV_MEM_DEVICE, 4, what);
    expect(&s, &p, "device/gathered_units\t5\ndevice/grads\t2\n");
}

static void memory_that_the_host_reads_is_the_hosts(void **state) {
    (void)state;
    struct memory_sheet s = {.host_access = true};
    struct device_properties p = {.memory_bytes = 8};
    memory_sheet_add(&s, DEV_MEM_DEVICE, 1, "batch");
    memory_sheet_add(&s, DEV_MEM_HOST, 2, "batch");
    expect(&s, &p, "host/batch\t3\nhost_total\t8\nhost_free\t0\n");
}

static void no_byte_is_lost_when_there_are_many_purposes(void **state) {
    (void)state;
    static char names[MEMORY_SHEET_ROWS + 10][16];
    struct memory_sheet s = {0};
    uint64_t sum = 0;
    for (int i = 0; i < MEMORY_SHEET_ROWS + 10; i++) {
        snprintf(names[i], sizeof names[i], "purpose %d", i);
        memory_sheet_add(&s, DEV_MEM_DEVICE, (uint64_t)i + 1, names[i]);
    }
    assert_int_equal(s.count, MEMORY_SHEET_ROWS);
    for (uint32_t i = 0; i < s.count; i++)
        sum += s.rows[i].bytes;
    assert_int_equal(sum, (MEMORY_SHEET_ROWS + 10) * (MEMORY_SHEET_ROWS + 11) / 2);
    assert_string_equal(s.rows[MEMORY_SHEET_ROWS - 1].what, "rest");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(device_and_host_are_told_apart),
        cmocka_unit_test(blocks_of_one_purpose_are_one_line),
        cmocka_unit_test(memory_that_the_host_reads_is_the_hosts),
        cmocka_unit_test(no_byte_is_lost_when_there_are_many_purposes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
