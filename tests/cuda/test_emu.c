/* test_emu.c - the emulation's own tests: refusals, blocks, queues. */
#include "config.h"

#include "tests/cuda/test_emu.h"

int main(void) {
    int failed = test_emu_refusals(); /* first: its children start with a fresh emulation */
    failed += test_emu_blocks();
    failed += test_emu_queues();
    return failed != 0;
}
