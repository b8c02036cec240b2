# src/model: modules of the models.
libgfs_engine_a_SOURCES +=
