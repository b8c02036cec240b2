# src/store: catalogue, snapshots, the I/O table.
libgfs_core_a_SOURCES +=
