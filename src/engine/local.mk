# src/engine: step, agenda, takes, data, optimizer, schedule; the program gatherfs-rank.
libgfs_engine_a_SOURCES +=
