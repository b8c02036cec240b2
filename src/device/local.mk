# src/device: tables of device operations.
libgfs_engine_a_SOURCES +=
