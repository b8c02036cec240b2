# tests/faults: failing allocations, writes, ranks and daemons.
gfs_test_scripts +=

gfs_unit_tests += tests/faults/test_store_crash
tests_faults_test_store_crash_SOURCES = tests/faults/test_store_crash.c \
	tests/faults/io_double.c tests/faults/io_double_crash.c \
	tests/faults/io_double.h tests/faults/io_double_record.h $(gfs_store_fixture)
