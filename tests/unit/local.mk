# tests/unit: one part at a time, with cmocka.
gfs_unit_tests +=
