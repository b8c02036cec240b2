# src/base: errors, log, checked encoding, file replacement, knobs.
libgfs_core_a_SOURCES +=
