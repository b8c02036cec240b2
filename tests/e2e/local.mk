# tests/e2e: a whole run, as a user starts it.
gfs_test_scripts += \
	tests/e2e/test_abuse.sh \
	tests/e2e/test_memory.sh \
	tests/e2e/test_readers.py \
	tests/e2e/test_readers_emulated.sh \
	tests/e2e/test_saves.sh \
	tests/e2e/test_emulated.sh \
	tests/e2e/test_cmdline.sh \
	tests/e2e/test_run.sh \
	tests/e2e/test_supervisor.sh
EXTRA_DIST += tests/e2e/lib.sh

check_PROGRAMS += tests/e2e/fake_rank
tests_e2e_fake_rank_SOURCES = tests/e2e/fake_rank.c
tests_e2e_fake_rank_LDADD = $(GFS_CORE_LINK)
