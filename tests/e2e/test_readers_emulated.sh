#!/usr/bin/env bash
# Readers of live/ while a run trains whose state is on an emulated GPU, moments in pinned memory.
[ -x "${GFS_BUILD:?}/gatherfs_emulated.so" ] || {
    echo "1..0 # SKIP configured without --enable-emulation"
    exit 77
}
GFS_TEST_DEVICE=emulated EMU_ORDER=random exec python3 "${GFS_SRC:?}/tests/e2e/test_readers.py"
