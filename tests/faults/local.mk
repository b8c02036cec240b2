# tests/faults: failing allocations, writes and fsyncs, and power loss.
gfs_unit_tests += tests/faults/test_store_crash
tests_faults_test_store_crash_SOURCES = tests/faults/test_store_crash.c \
	tests/faults/io_double.c tests/faults/io_double_crash.c \
	tests/faults/io_double.h tests/faults/io_double_record.h $(gfs_store_fixture)
gfs_unit_tests += tests/faults/test_store_faults
tests_faults_test_store_faults_SOURCES = tests/faults/test_store_faults.c \
	tests/faults/io_double.c tests/faults/io_double.h tests/faults/io_double_record.h \
	$(gfs_store_fixture)
tests_faults_test_store_faults_LDFLAGS = $(AM_LDFLAGS) \
	-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=renameat2
