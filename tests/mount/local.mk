# tests/mount: the real daemon, a real mount, the programs people use, around a double of supervisor and ranks.
gfs_mount_scripts = tests/mount/test_files.sh tests/mount/test_takes.sh \
	tests/mount/test_commands.sh tests/mount/test_restart.sh
EXTRA_DIST += $(gfs_mount_scripts)
if HAVE_FUSE
gfs_test_scripts += $(gfs_mount_scripts)
gfs_mount_double = tests/mount/fake_world.c tests/mount/fake_world.h tests/mount/fake_parts.h \
	tests/mount/fake_ranks.c tests/mount/fake_supervisor.c \
	tests/mount/fake_mount.c tests/mount/fake_mount.h \
	tests/mount/mount_check.c tests/mount/mount_check.h
check_PROGRAMS += tests/mount/files tests/mount/takes tests/mount/commands tests/mount/restart
tests_mount_files_SOURCES = tests/mount/files.c $(gfs_mount_double)
tests_mount_files_LDADD = $(GFS_CORE_LINK)
tests_mount_takes_SOURCES = tests/mount/takes.c $(gfs_mount_double)
tests_mount_takes_LDADD = $(GFS_CORE_LINK)
tests_mount_commands_SOURCES = tests/mount/commands.c $(gfs_mount_double)
tests_mount_commands_LDADD = $(GFS_CORE_LINK)
tests_mount_restart_SOURCES = tests/mount/restart.c $(gfs_mount_double)
tests_mount_restart_LDADD = $(GFS_CORE_LINK)
# The pure parts of the daemon.
gfs_unit_tests += tests/unit/test_mount_parts
tests_unit_test_mount_parts_SOURCES = tests/unit/test_mount_parts.c
tests_unit_test_mount_parts_CPPFLAGS = $(libgfs_fsmount_a_CPPFLAGS)
tests_unit_test_mount_parts_LDADD = $(GFS_FSMOUNT_LINK) $(CMOCKA_LIBS)
endif
