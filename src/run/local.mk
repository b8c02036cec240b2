# src/run: the supervisor.
libgfs_run_a_SOURCES +=
