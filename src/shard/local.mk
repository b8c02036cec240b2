# src/shard: layout arithmetic, units, wrap policy.
libgfs_core_a_SOURCES +=
