# src/run: the supervisor.
libgfs_run_a_SOURCES += \
	src/run/child.c src/run/child.h \
	src/run/client.c src/run/client.h \
	src/run/cmdline.c src/run/cmdline.h \
	src/run/command_table.c src/run/commands.c src/run/commands.h \
	src/run/goal.c src/run/goal.h \
	src/run/gpus.c src/run/gpus.h \
	src/run/guests.c \
	src/run/launch.c src/run/launch.h \
	src/run/ledger.c src/run/ledger.h \
	src/run/loop.c src/run/loop.h \
	src/run/mfu.c src/run/mfu.h \
	src/run/mountd.c \
	src/run/mountpoint.c src/run/mountpoint.h \
	src/run/offline.c src/run/offline.h \
	src/run/output.c src/run/output.h \
	src/run/peer.c src/run/peer.h \
	src/run/pins.c \
	src/run/progress.c src/run/progress.h \
	src/run/record.c src/run/record.h \
	src/run/rundir.c src/run/rundir.h \
	src/run/snapshot_job.c src/run/snapshot_job.h \
	src/run/snapshots.c \
	src/run/status.c \
	src/run/stop.c \
	src/run/supervisor.c src/run/supervisor.h src/run/supervisor_main.h \
	src/run/wide.c \
	src/run/world.c
