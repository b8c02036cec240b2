# src/wire: messages between supervisor, ranks and daemon.
libgfs_core_a_SOURCES +=
