# tests/faults: failing allocations, writes, ranks and daemons.
gfs_test_scripts +=
